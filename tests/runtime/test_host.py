"""Hosts: what wakes one that has nothing to do."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.log import open_log
from penstock.plan.build import parse_schema, query, scan_stream
from penstock.runtime import host as host_module
from penstock.runtime.streams import StreamWriter, create_stream
from tests.runtime.laboratory import UNSYNCED, Laboratory

ORDERS = "item bigint not null"


def test_rows_that_come_between_a_step_and_the_wait_are_not_slept_over(
    lab: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "WAIT_S", 600.0)  # beyond the test's own time limit
    with open_log(lab.folder, create=True, config=UNSYNCED) as log:
        create_stream(log, "orders", parse_schema(ORDERS))
        writer = StreamWriter(log, "orders", "shop")
        copied = query("copy", scan_stream("orders", ORDERS).to_stream("copied"))
        with lab.open(copied) as process:
            while process.host.step():
                pass
            writer.write(pa.record_batch({"item": [1, 2, 3]}))
            process.host.wait()
            process.run_available()
    assert [row["item"] for row in lab.rows("copied")] == [1, 2, 3]
