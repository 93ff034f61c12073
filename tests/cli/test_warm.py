"""`penstock warm`: what it leaves behind is found by the next process."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.log import open_log
from penstock.plan.optimizer import plan_program
from penstock.runtime.queries import StoredQuery
from penstock.testing.plans import col, query, scan_source


def test_kernels_of_stored_queries_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package's own loops take half a minute; that they can be compiled is shown elsewhere."""
    monkeypatch.setattr("penstock.cli.warm.compile_package", lambda kernels: 0)
    rows = scan_source("rate", "timestamp timestamp, value bigint", rows_per_s=10)
    odd = rows.filter(col("value") % 2 == 1).select((col("value") * 3).alias("n"))
    program = plan_program(query("odd", odd.to_stream("out")))
    with open_log(tmp_path / "log", create=True) as log:
        stored = StoredQuery("id", "odd", program, "out", None, "stream out")
        log.put("query/odd", stored.encode())
    folder = tmp_path / "kernels"
    assert main(["warm", str(tmp_path / "log"), "--kernels", str(folder)]) == 0
    assert [path.suffix for path in sorted(folder.glob("k_*.*"))] == [".compiled", ".py"]
