"""Rehearsals: what they call is what the readers call, and no row waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.connectors import line_kernels, line_stand_ins, text_kernels
from penstock.connectors.folder import FolderSource, Format
from penstock.connectors.rehearsals import rehearse_lines
from penstock.kernels.background import BackgroundKernels, wanted
from penstock.loops import loops_of
from penstock.testing.memory_log import MemoryLog

LINES_PACKAGE = {line_kernels: line_stand_ins.LINES, text_kernels: line_stand_ins.TEXTS}
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("s", pa.string()),
        ("t", pa.timestamp("us", "UTC")),
        ("d", pa.date32()),
        ("f", pa.float64()),
        ("b", pa.bool_()),
    ]
)
LINES: dict[Format, str] = {
    "text": "one line",
    "jsonl": '{"n":1, "s":"a", "t":"2024-05-06T07:08:09.123Z", "d":"2024-05-06", "f":1, "b":true}',
    "csv": "1,a,2024-05-06 07:08:09,2024-05-06,1.5,false",
}


@pytest.fixture(autouse=True)
def own_machine_code() -> Iterator[None]:
    """Each test begins as a new process does."""
    loops = [loop for module in LINES_PACKAGE for loop in loops_of(module)]
    for loop in loops:
        vars(loop).pop("machine_code", None)
    yield
    for loop in loops:
        loop.use(None)


def fail(folder: Path, lock: int) -> None:
    pytest.fail("a compiler is started, so somebody waits for it")


@pytest.mark.parametrize("form", LINES)
def test_reading_calls_nothing_that_was_not_rehearsed(form: Format, tmp_path: Path) -> None:
    kernels = BackgroundKernels(tmp_path / "kernels", fail, LINES_PACKAGE)
    schema = SCHEMA if form != "text" else pa.schema([("value", pa.string())])
    rehearse_lines(form, schema)
    rehearsed = set(wanted(kernels))
    assert rehearsed
    folder = tmp_path / "input"
    folder.mkdir()
    (folder / "a").write_text(f"{LINES[form]}\n" * 3)
    source = FolderSource(folder, form, MemoryLog(), schema)
    assert source.read(source.initial_offset(), 10).rows == 3
    assert set(wanted(kernels)) == rehearsed
