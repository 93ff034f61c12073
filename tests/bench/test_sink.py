"""`penstock bench sink`: every way of copying has the same rows, and it ends with JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from penstock.bench.sink import FILES, KINDS, copy_files, write_rows
from penstock.cli.main import main


@pytest.mark.parametrize("kind", KINDS)
def test_the_bare_copy_has_every_row(kind: str, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows", kind, 1_003)
    files = sorted(rows.iterdir())
    assert len(files) == FILES
    copy_files(0.0, files, tmp_path)
    for file in files:
        assert pq.read_table(tmp_path / f"bare-{file.name}").equals(pq.read_table(file))
    ids = pq.read_table(rows, columns=["id"])["id"].to_pylist()
    assert sorted(ids) == list(range(1_003))


@pytest.mark.campaign
def test_a_few_rows_are_copied_and_nothing_is_left_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--rows", "1000", "--repeats", "1", "--against", "none", "--dir", str(tmp_path)]
    assert main(["bench", "sink", *few]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    for kind in KINDS:
        assert all(
            figures[f"{kind}_{key}"] > 0
            for key in ("rows_per_s", "stream_rows_per_s", "bare_rows_per_s")
        )
        assert f"{kind}_no_thread_holds_the_sink_up" in figures["reach"]
    assert list(tmp_path.iterdir()) == []
