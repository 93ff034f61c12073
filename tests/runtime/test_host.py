"""Hosts: what wakes one that has nothing to do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.connectors import folder_events, folder_listing
from penstock.connectors.contract import AGAIN_S
from penstock.connectors.folder_events import FolderEvents
from penstock.connectors.folder_listing import LOOK_S, TICK_S
from penstock.log import open_log
from penstock.runtime import host as host_module
from penstock.runtime.streams import StreamWriter, create_stream
from penstock.testing.clock import ManualClock
from penstock.testing.plans import parse_schema, query, scan_source, scan_stream
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


def test_vertices_share_one_look_at_a_folder_and_rest_until_the_next(
    lab: Laboratory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str | Path] = []
    scan = os.scandir
    spied = tmp_path / "in"

    def spy(path: str | Path) -> Any:
        listed.extend([path] if Path(path) == spied else [])
        return scan(path)

    monkeypatch.setattr(os, "scandir", spy)
    monkeypatch.setattr(folder_events, "LOCAL", frozenset())  # the kernel is not asked
    rows = scan_source("folder", "value string", None, path=str(tmp_path / "in"), format="text")
    (tmp_path / "in").mkdir()
    clock = ManualClock()
    shared = query("shared", rows.to_stream("out"), parallelism=3)
    with lab.open(shared, clock=clock) as process:
        vertices = [process.host.vertex(name) for name in process.statistics().vertices]
        for _ in range(3):
            process.host.step()
        assert len(listed) == 3
        clock.advance(TICK_S)
        process.host.step()
        assert len(listed) == 3
        assert {vertex.work_due_in_s() for vertex in vertices} == {LOOK_S}
        (tmp_path / "in" / "a").write_text("x\n")
        clock.advance(1)  # it has settled
        process.host.step()
        assert len(listed) == 4
        assert sum(vertex.statistics().rows_in for vertex in vertices) == 1
    assert LOOK_S > AGAIN_S


def test_a_host_that_sleeps_is_woken_by_a_file_that_comes(
    lab: Laboratory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    if not FolderEvents().watch(folder, ""):
        pytest.skip("the kernel does not tell what comes into this folder")
    for module, name in ((host_module, "WAIT_S"), (folder_listing, "WOKEN_S")):
        monkeypatch.setattr(module, name, 600.0)  # beyond the test's own time limit
    rows = scan_source("folder", "value string", None, path=str(folder), format="text")
    with lab.open(query("woken", rows.to_stream("out"))) as process:
        while process.host.step():
            pass
        (folder / "a").write_text("x\n")
        while not lab.rows("out"):
            process.host.wait()
            process.host.step()


def test_a_vertex_that_leaves_takes_its_look_at_the_folder_with_it(
    lab: Laboratory, tmp_path: Path
) -> None:
    """Nobody would take what comes, and all who wait for the log would be woken for it."""
    folder = tmp_path / "in"
    folder.mkdir()
    rows = scan_source("folder", "value string", None, path=str(folder), format="text")
    with lab.open(query("gone", rows.to_stream("out"), parallelism=2)) as process:
        listings = process.host._assembly.listings
        process.host.step()
        assert len(listings) == 1
        process.host.abandon()
        assert len(listings) == 0
