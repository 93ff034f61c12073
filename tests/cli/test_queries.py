"""`penstock queries` and `penstock explain`: what they tell of the queries of a log."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import main
from penstock.errors import InvalidProgram, QueryNotFound
from penstock.log import open_log
from penstock.plan.optimizer import plan_program
from penstock.runtime.queries import (
    RunState,
    StoredQuery,
    lock_path,
    needed_query,
    note_run,
    query_progress,
    run_state,
    running_process,
    stored_names,
    stored_query,
)
from penstock.stages.program import Program
from penstock.stages.settings import Settings
from penstock.testing.memory_log import MemoryLog
from penstock.testing.plans import col, count, query, scan_source, window
from penstock.testing.single_process import SingleProcess

BIDS = "auction bigint, price bigint, dateTime timestamp"
EVENTS = 2_000
ID = "6f1c2d34-0000-4000-8000-000000000001"


def hot() -> Program:
    """A windowed count over a bounded source: it ends by itself."""
    bids = scan_source("nexmark", BIDS, None, kind="bids", events_max=EVENTS, rate=1_000.0)
    timed = bids.filter(col("price") > 0).with_watermark("dateTime", "1 second")
    counted = timed.group_by("auction", window=window("dateTime", "1 second")).agg(
        count().alias("n")
    )
    settings = Settings(dead_letter_stream="bad")
    return plan_program(query("hot", counted.to_stream("hot_items"), settings=settings))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with a query that has ended, and one that was stored and never ran."""
    path = tmp_path_factory.mktemp("queries") / "log"
    program = hot()
    with SingleProcess(program, path) as process:
        process.run()
    idle = plan_program(
        query("idle", scan_source("nexmark", BIDS, None, kind="bids").to_stream("all_bids"))
    )
    with open_log(path) as log:
        log.put("query/hot", StoredQuery(ID, "hot", program, "hot_items", None).encode())
        stored = StoredQuery("id2", "idle", idle, "all_bids", "at/here", "parquet /out")
        log.put("query/idle", stored.encode())
    return path


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a query's lock, as whoever runs it does."""
    path.parent.mkdir(exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert main([str(word) for word in argv]) == 0
    return capsys.readouterr().out


def objects(capsys: pytest.CaptureFixture[str], folder: Path) -> dict[str, dict[str, Any]]:
    lines = run(capsys, "queries", folder, "--json").splitlines()
    return {facts["name"]: facts for facts in map(json.loads, lines)}


def test_a_query_that_has_ended(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = objects(capsys, folder)["hot"]
    assert (facts["id"], facts["state"], facts["process"]) == (ID, "ended", None)
    assert (facts["output"], facts["stages"], facts["rejected_rows"]) == ("hot_items", 1, 0)
    (name,) = facts["vertices"]
    vertex = facts["vertices"][name]
    assert vertex["ended"]
    assert vertex["epoch"] == facts["epoch"] >= 1
    assert vertex["instance"] >= 1


def test_a_query_that_never_ran(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = objects(capsys, folder)["idle"]
    assert (facts["state"], facts["epoch"], facts["watermark_us"]) == ("new", 0, None)
    assert facts["checkpoint_location"] == "at/here"
    assert list(facts["vertices"].values()) == [None]


def test_a_running_query_shows_its_process(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert running_process(folder, "idle") is None
    with held(lock_path(folder, "idle")):
        assert running_process(folder, "idle") == os.getpid()
        assert running_process(folder, "hot") is None
        facts = objects(capsys, folder)["idle"]
        assert (facts["state"], facts["process"]) == ("running", os.getpid())
        assert f"running  {os.getpid()}" in run(capsys, "queries", folder)
    assert running_process(folder, "idle") is None  # the file stays, the lock is gone


def test_a_query_that_was_killed_is_not_called_stopped(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = shutil.copytree(folder, tmp_path / "log")
    shown = []
    for state in (RunState.RUNNING, RunState.STOPPED, RunState.FAILED):
        with open_log(own) as log:
            note_run(log, "idle", 1, state)
        shown.append(objects(capsys, own)["idle"]["state"])
    assert shown == ["died", "stopped", "failed"]


def test_a_run_that_ends_late_says_nothing_about_its_successor() -> None:
    log = MemoryLog()
    note_run(log, "q", 1, RunState.RUNNING)
    note_run(log, "q", 2, RunState.RUNNING)
    note_run(log, "q", 1, RunState.FAILED)
    assert run_state(log, "q") is RunState.RUNNING
    note_run(log, "q", 2, RunState.STOPPED)
    assert run_state(log, "q") is RunState.STOPPED
    log.put("state/q", b"\xff")
    assert run_state(log, "q") is None


def test_the_table_has_a_line_per_query(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heading, _, first, second = run(capsys, "queries", folder).splitlines()
    assert heading.split()[:4] == ["query", "state", "process", "output"]
    assert first.split()[:2] == ["hot", "ended"]
    assert second.split()[:2] == ["idle", "new"]


def test_progress_is_that_of_the_markers(folder: Path) -> None:
    with open_log(folder, read_only=True) as log:
        assert stored_names(log) == ["hot", "idle"]
        stored = needed_query(log, "hot")
        progress = query_progress(log, stored.program)
        (marker,) = progress.markers.values()
        record = log.last(stored.program.vertices[0].vertex_tag)
    assert marker is not None
    assert record is not None
    assert json.loads(bytes(record.body))["epoch"] == marker.epoch == progress.epoch
    assert progress.has_ended


def test_a_log_without_queries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_log(tmp_path / "log", create=True).close()
    assert run(capsys, "queries", tmp_path / "log") == "no queries\n"
    assert run(capsys, "queries", tmp_path / "log", "--json") == ""


def test_explain(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "explain", folder, "hot")
    for part in (
        "Query hot: 1 stage",
        "[numba]",
        "S/hot_items",
        "on disk before a marker counts",
        "moved to stream bad, once",
    ):
        assert part in shown
    assert "\nSink " not in shown  # the stream itself
    assert "Sink parquet /out\n  exactly once: a row is in" in run(
        capsys, "explain", folder, "idle"
    )
    facts = json.loads(run(capsys, "explain", folder, "hot", "--json"))
    assert (facts["id"], facts["sink"]) == (ID, None)
    assert Program.from_json(json.dumps(facts["program"])) == hot()


def test_an_unknown_query_names_those_that_are_there(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(folder), "cold"]) == 2
    assert "no query 'cold' in this log; known: hot, idle" in capsys.readouterr().err
    with open_log(folder, read_only=True) as log:
        assert stored_query(log, "cold") is None
        with pytest.raises(QueryNotFound):
            needed_query(log, "cold")


@pytest.mark.parametrize("value", [b"", b"[]", b'{"id": 1}', b'{"id": 1, "name": "x/y"}', b"[" * 9])
def test_a_damaged_entry_is_named(tmp_path: Path, value: bytes) -> None:
    with open_log(tmp_path / "log", create=True) as log:
        log.put("query/broken", value)
        with pytest.raises(InvalidProgram, match="'broken' cannot be read"):
            stored_query(log, "broken")
