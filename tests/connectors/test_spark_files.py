"""Files as Spark reads them: every row that is read here is Spark's, and the rest is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.connectors.folder import FolderOptions, FolderSource, Format
from penstock.connectors.rejects import with_plain_texts
from penstock.expressions.types import arrow_schema
from penstock.testing.memory_log import MemoryLog
from penstock.testing.plans import parse_schema
from tests.oracle.file_cases import GROUPS, MALFORMED, Group, answers, file_name, shown
from tests.oracle.verdict import Row, plain

FORMATS: dict[str, Format] = {"json": "jsonl", "csv": "csv", "text": "text", "parquet": "parquet"}
OPTIONS = {"header": "header", "sep": "delimiter", "escape": "escape"}
REFUSED = "refused"


def read_here(folder: Path, group: Group, coded: bool) -> str:
    """What the folder source makes of a folder's files: rows, or that something was refused."""
    given = {
        OPTIONS[name]: True if value == "true" else value for name, value in group.options.items()
    }
    schema = arrow_schema(parse_schema(group.schema.replace("`", "")))
    source = FolderSource(
        folder,
        FORMATS[group.format],
        MemoryLog(),
        schema,
        FolderOptions(mode="deadletter", bounded=True, **given),  # type: ignore[arg-type]
        coded=frozenset(schema.names) if coded else frozenset(),
    )
    rows: list[Row] = []
    offset, ended = source.initial_offset(), False
    while not ended:
        answer = source.read(offset, 3)
        if answer.rejected is not None:
            return REFUSED
        if answer.batch is not None:
            answer.batch.validate(full=True)
            rows += plain(with_plain_texts(answer.batch))
        offset, ended = answer.next_offset, answer.ended
    source.close()
    return shown(rows)


@pytest.mark.parametrize(
    ("number", "group"), list(enumerate(GROUPS)), ids=[group.name for group in GROUPS]
)
def test_what_is_read_here_is_what_spark_reads(tmp_path: Path, number: int, group: Group) -> None:
    expected = answers()[f"{number} {group.name}"]
    assert len(expected) == len(group.contents), (
        "ask Spark again: python -m tests.oracle.file_cases"
    )
    wrong = []
    for place, (content, theirs) in enumerate(zip(group.contents, expected, strict=True)):
        folder = tmp_path / str(place)
        folder.mkdir()
        (folder / file_name(group, place)).write_bytes(content)
        refuses = theirs == MALFORMED or place >= len(group.same)
        for coded in (False, True) if group.format == "parquet" else (False,):
            ours = read_here(folder, group, coded)
            if ours != (REFUSED if refuses else theirs):
                wrong.append((content, ours, theirs))
        if place >= len(group.same) and theirs == MALFORMED:
            wrong.append((content, "Spark refuses it too", theirs))
    assert not wrong
