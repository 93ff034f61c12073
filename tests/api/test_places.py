"""Where a query keeps its log: folders that nobody can write to."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# For root everything may be written: it is somebody else who starts the query.
START = """
import os, sys
from pathlib import Path
from penstock.api.places import open_own, refuse_spark_checkpoint

os.geteuid() or os.seteuid(65534)
refuse_spark_checkpoint(sys.argv[1])
open_own(None, Path(sys.argv[1]))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that everybody can reach, as pytest's are not."""
    found = Path(tempfile.mkdtemp())
    found.chmod(0o755)
    yield found
    for path in found.iterdir():
        path.chmod(0o755)
    shutil.rmtree(found)


@pytest.mark.parametrize("mode", [0o555, 0o000])
@pytest.mark.parametrize("place", ["kept", "kept/new"])
def test_a_place_that_cannot_be_written_to_is_named(folder: Path, mode: int, place: str) -> None:
    (folder / "kept").mkdir()
    (folder / "kept").chmod(mode)
    answer = subprocess.run(
        [sys.executable, "-c", START, str(folder / place)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    error = answer.stderr.splitlines()[-1]
    assert error.startswith("penstock.errors.LogReadOnly: "), answer.stderr
    assert f"{folder / place}" in error
    assert "Permission denied" in error
