"""The driver dies, is doubled, or loses its session; queries go on from the log, exactly once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.spark.expected import running_counts
from tests.spark.rig import DriverProcess, Refused, hurry, verify
from tests.spark.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

RATE = 5_000
EVENTS = 60 * RATE  # longer than anything here takes: the rest comes at once in the end


@pytest.mark.slow
def test_a_killed_driver_is_followed_by_another(
    new_driver: Callable[[str], DriverProcess], tmp_path: Path
) -> None:
    """Three kinds of sinks; a second driver is refused while the first lives, then takes over."""
    files, notes = tmp_path / "files", tmp_path / "notes.jsonl"
    queries = (
        ("counts", {"kind": "counts", "checkpointLocation": str(tmp_path / "checkpoint")}),
        ("files", {"kind": "windows", "sink": "parquet", "path": str(files)}),
        ("notes", {"kind": "counts", "sink": "foreach", "path": str(notes)}),
    )
    first, second = new_driver("local[4]"), new_driver("local[4]")
    for driver in (first, second):
        driver.wait_ready()
    begun = {"counts": _start(first, *queries[0])}
    with pytest.raises(Refused, match="is already running in process") as refused:
        _start(second, *queries[0])
    assert refused.value.error == "QUERY_ACTIVE"
    assert refused.value.details["holder"] == str(first.pid)
    begun |= {name: _start(first, name, options) for name, options in queries[1:]}
    wait_for("deliveries", lambda: notes.exists() and any(files.glob("*.parquet")))
    _check_whole(files)
    first.kill()
    hurry(second.log, *begun)
    for name, options in queries:
        again = _start(second, name, options)
        assert again["id"] == begun[name]["id"]
        assert again["runId"] != begun[name]["runId"]
    for name, _ in queries:
        second.wait_end(name)
    verify(second.log, "counts", "counts", EVENTS, RATE)
    verify(files, "parquet", "windows", EVENTS, RATE)
    _check_notes(notes)
    _check_too_few_task_slots(second)
    _check_stopped_session(second)


@pytest.mark.slow
def test_what_a_killed_driver_hosted_is_hosted_by_the_next(
    new_driver: Callable[[str], DriverProcess],
) -> None:
    """Rows that Spark had computed are not computed into the output again."""
    events = 20 * RATE
    first, second = new_driver("local[4]"), new_driver("local[4]")
    for driver in (first, second):
        driver.wait_ready()
    for driver in (first, second):
        driver.start("hosted", "windows", events, RATE, standbySlots=0, by_spark=True)
        hosts = dict(driver.ask("slots", name="hosted"))
        (vertex,) = hosts[driver.pid]
        wait_for("a report", lambda d=driver, v=vertex: v in d.ask("epochs", name="hosted"))
        epochs = driver.ask("epochs", name="hosted")
        wait_for(
            "commits",
            lambda driver=driver, vertex=vertex, before=epochs[vertex]: (
                driver.ask("epochs", name="hosted")[vertex] > before + 5
            ),
        )
        if driver is first:
            first.kill()
    hurry(second.log, "hosted")
    second.wait_end("hosted")
    verify(second.log, "hosted", "windows", events, RATE)


@pytest.mark.slow
def test_no_row_shows_two_values_of_chance_when_the_driver_is_killed(
    new_driver: Callable[[str], DriverProcess], tmp_path: Path
) -> None:
    """What was seen of rand(), uuid() and a function of the user's is there in the end, once."""
    files = tmp_path / "files"
    first, second = new_driver("local[4]"), new_driver("local[4]")
    for driver in (first, second):
        driver.wait_ready()
    given = {"path": str(files), "events": EVENTS, "rate": RATE}
    first.ask("chance", name="chance", **given)
    wait_for("rows", lambda: len(list(files.glob("*.parquet"))) > 1)
    first.kill()
    seen = _rows_by_token(files)
    assert seen
    second.ask("chance", name="chance", **given)
    hurry(second.log, "chance")
    second.wait_end("chance")
    found = _rows_by_token(files)
    assert {token: found[token] for token in seen} == seen
    assert Counter(row["auction"] for row in found.values()) == running_counts(EVENTS, RATE)


def _rows_by_token(files: Path) -> dict[str, dict[str, Any]]:
    rows = [row for path in files.glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    found = {row["t"]: row for row in rows}
    assert len(found) == len({row["u"] for row in rows}) == len(rows)
    return found


def _start(driver: DriverProcess, name: str, options: dict[str, Any]) -> dict[str, Any]:
    return driver.start(name, events=EVENTS, rate=RATE, standbySlots=0, **options)


def _check_whole(files: Path) -> None:
    """Whenever one looks, each file that can be seen is complete."""
    for path in files.glob("*.parquet"):
        assert pq.read_table(path).num_rows > 0


def _check_notes(notes: Path) -> None:
    """An epoch may come twice, never with other rows; each of them once gives the right counts."""
    epochs: dict[int, list[dict[str, Any]]] = {}
    for line in notes.read_text().splitlines():
        epoch, rows = json.loads(line)
        assert epochs.setdefault(epoch, rows) == rows, f"epoch {epoch} came with other rows"
    assert list(epochs) == sorted(epochs)
    counts: dict[int, int] = {}
    for rows in epochs.values():
        for row in rows:
            assert row["count"] > counts.get(row["auction"], 0)
            counts[row["auction"]] = row["count"]
    assert counts == running_counts(EVENTS, RATE)


def _check_too_few_task_slots(driver: DriverProcess) -> None:
    with pytest.raises(Refused, match=r"takes 5 task slots .* has 4: use local\[6\]") as refused:
        driver.ask("start", name="wide", kind="counts", events=EVENTS, rate=RATE, parallelism=5)
    assert refused.value.error == "TOO_FEW_SLOTS"
    assert (refused.value.details["needed"], refused.value.details["available"]) == ("5", "4")


def _check_stopped_session(driver: DriverProcess) -> None:
    """A name is taken while its query runs; a query whose session is stopped ends and says why.

    Also where a function is stuck for ever: a job that comes while Spark stops is lost in there.
    """
    events = 100 * EVENTS  # on a slow machine, too, the session is stopped before they are all made
    for name in ("narrow", "stuck"):
        sink = "foreach" if name == "narrow" else name
        path = driver.log.parent / f"{name}.jsonl"
        driver.start(name, "counts", events, RATE, standbySlots=0, sink=sink, path=str(path))
        wait_for("a batch", path.exists)
    with pytest.raises(Refused, match="running in this process") as refused:
        driver.ask("start", name="narrow", kind="counts", events=events, rate=RATE)
    assert refused.value.details["holder"] == str(driver.pid)
    driver.ask("stop_session")
    for name in ("narrow", "stuck"):
        with pytest.raises(Refused, match="the Spark session was stopped") as refused:
            driver.ask("await_end", name=name)
        assert refused.value.error == "JOB_FAILED"
        assert "start it again in a new session" in refused.value.message
    stuck = {"penstock-sink-narrow", "penstock-sink-stuck"}  # the former only now and then
    wait_for("the end of its threads", lambda: stuck.issuperset(driver.ask("threads")))
