"""Rehearsals: what they compile is what the readers call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

READING = """
import sys
from pathlib import Path
import pyarrow as pa
from numba.core.dispatcher import Dispatcher
from penstock.connectors import line_kernels, text_kernels
from penstock.connectors.folder import FolderSource
from penstock.connectors.rehearsals import REHEARSALS, rehearsals_for
from penstock.connectors.folder_registry import MemoryRegistry

folder, format, line = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
(folder / "a").write_text(f"{line}\\n" * 3)
columns = [("n", pa.int64()), ("s", pa.string()), ("t", pa.timestamp("us", "UTC"))]
schema = None if format == "text" else pa.schema(columns)

def compiled():
    modules = (line_kernels, text_kernels)
    loops = {n: v for m in modules for n, v in vars(m).items() if isinstance(v, Dispatcher)}
    return {(name, str(signature)) for name, loop in loops.items() for signature in loop.signatures}

for name in rehearsals_for("folder", {"format": format}, schema or pa.schema([])):
    REHEARSALS[name]()
before = compiled()
source = FolderSource(folder, format, MemoryRegistry(), schema)
assert source.read(source.initial_offset(), 10).rows == 3
assert before, "nothing was rehearsed"
assert compiled() == before, sorted(compiled() - before)
"""

LINES = {
    "text": "one line",
    "jsonl": '{"n": 1, "s": "a", "t": "2024-05-06T07:08:09.123Z"}',
    "csv": "1,a,2024-05-06 07:08:09",
}


@pytest.mark.slow
@pytest.mark.parametrize("format", LINES)
def test_reading_compiles_nothing_that_was_not_rehearsed(format: str, tmp_path: Path) -> None:
    """In a process of its own, where nobody has read anything before."""
    command = [sys.executable, "-c", READING, str(tmp_path), format, LINES[format]]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
