"""Cutting a stream that people named: between epochs, and behind every query that reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.cli.main import main
from penstock.errors import InvalidArgument, InvalidName, StreamNotFound
from penstock.expressions.types import BIGINT, Field
from penstock.log import LocalLog, open_log, punit, take_over
from penstock.log.record import Fence, Position, RecordKind
from penstock.plan.optimizer import plan_program
from penstock.runtime.outputs import Outputs
from penstock.runtime.queries import StoredQuery
from penstock.runtime.retention import (
    LOOK_S,
    Cut,
    Retainer,
    Retention,
    cut,
    plan_cut,
    retain,
    set_retention,
)
from penstock.runtime.streams import StreamReader, StreamWriter, create_stream
from penstock.stages.program import sink_stream
from penstock.testing.clock import ManualClock
from penstock.testing.plans import query, scan_stream
from penstock.testing.single_process import SingleProcess
from tests.runtime.laboratory import UNSYNCED, Laboratory

SCHEMA = pa.schema([pa.field("x", pa.int64(), False)])


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LocalLog]:
    with open_log(tmp_path / "log", create=True, config=UNSYNCED) as log:
        create_stream(log, "numbers", (Field("x", BIGINT, False),))
        yield log


def publish(log: LocalLog, *numbers: int) -> list[Position]:
    """An epoch for each number; return the positions of their markers."""
    writer = StreamWriter(log, "numbers", "p")
    return [writer.write(pa.record_batch([[n]], schema=SCHEMA)) for n in numbers]


def left(log: LocalLog) -> list[int]:
    values: list[int] = StreamReader(log, "numbers").read_all().column("x").to_pylist()
    return values


def test_epochs_that_end_before_a_position_go(log: LocalLog) -> None:
    marks = publish(log, *range(6))
    planned = plan_cut(log, "numbers", before=marks[3])
    assert planned == Cut("numbers", Position(marks[3] - 2), 3, None, marks[2])  # its row stays
    assert left(log) == list(range(6))
    cut(log, planned)
    assert left(log) == [3, 4, 5]
    cut(log, plan_cut(log, "numbers", before=marks[1]))  # a border that is behind: nothing to do
    assert left(log) == [3, 4, 5]
    cut(log, plan_cut(log, "numbers", before=Position(log.tail() + 100)))
    assert left(log) == []
    publish(log, 7)
    assert left(log) == [7]


def test_rows_whose_epoch_has_not_ended_stay(log: LocalLog) -> None:
    """A row from before the cut that a marker behind it will commit must not be lost."""
    slow = Outputs(log, Fence("slow", take_over(log, "slow")), punit.Codec.NONE)
    publish(log, 1)
    slow.add(RecordKind.DATA, "S/numbers/0", pa.record_batch([[100]], schema=SCHEMA))
    slow.append_early()
    publish(log, 2, 3)
    cut(log, plan_cut(log, "numbers", before=Position(log.tail() + 1)))
    assert left(log) == [2, 3]  # they stand behind it
    slow.commit(("T/slow", "S/numbers/m"), b"{}")
    assert sorted(left(log)) == [2, 3, 100]


def test_an_epoch_goes_whole_or_stays_whole(log: LocalLog) -> None:
    """Also where a row that must stay stands between the rows of another producer's epoch."""
    slow, quick = (
        Outputs(log, Fence(name, take_over(log, name)), punit.Codec.NONE)
        for name in ("slow", "quick")
    )
    publish(log, 1)
    for outputs, number in ((quick, 10), (slow, 100), (quick, 11)):
        outputs.add(RecordKind.DATA, "S/numbers/0", pa.record_batch([[number]], schema=SCHEMA))
        outputs.append_early()
    quick.commit(("T/quick", "S/numbers/m"), b"{}")
    planned = plan_cut(log, "numbers")
    assert planned.epochs == 1
    cut(log, planned)
    assert left(log) == [10, 11]


def test_a_time_is_that_of_the_markers(log: LocalLog) -> None:
    marks = publish(log, 1, 2, 3)
    times = {
        record.position: record.time_us for record in log.read(["S/numbers/m"], Position(0), 9)
    }
    planned = plan_cut(log, "numbers", before_us=times[marks[1]])
    assert planned.upto < marks[1]
    cut(log, planned)
    assert left(log)[-2:] == [2, 3]
    cut(log, plan_cut(log, "numbers", before_us=times[marks[2]] + 1))
    assert left(log) == []


def copying(lab: Laboratory) -> SingleProcess:
    rows = scan_stream("numbers", "x bigint not null")
    program = plan_program(query("copy", rows.to_stream("copies")))
    with open_log(lab.folder) as log:
        log.put("query/copy", StoredQuery("id", "copy", program, "copies", None).encode())
    return lab.open(program)


def test_what_a_stored_query_has_not_read_stays(lab: Laboratory) -> None:
    with open_log(lab.folder, create=True, config=UNSYNCED) as log:
        create_stream(log, "numbers", (Field("x", BIGINT, False),))
        publish(log, 1, 2)
        with copying(lab) as process:
            early = plan_cut(log, "numbers", before=log.tail())
            assert (early.upto, early.held_back_by) == (0, "copy")
            process.run_available()
        publish(log, 3, 4)
        planned = plan_cut(log, "numbers", before=Position(log.tail() + 1))
        assert planned.held_back_by == "copy"
        cut(log, planned)
        assert left(log) == [3, 4]
        with copying(lab) as process:
            process.run_available()
        assert plan_cut(log, "numbers", before=log.tail()).held_back_by is None
    assert [row["x"] for row in lab.rows("copies")] == [1, 2, 3, 4]


def test_what_a_query_made_for_itself_is_not_for_people_to_trim(log: LocalLog) -> None:
    with pytest.raises(InvalidName, match="names with dots are those that Penstock makes itself"):
        plan_cut(log, sink_stream("copy"), before=log.tail())


def test_the_command_line(log: LocalLog, capsys: pytest.CaptureFixture[str]) -> None:
    marks = publish(log, 1, 2, 3)
    words = ["log", "trim", str(log.folder), "numbers"]
    assert main([*words, "--before", str(marks[1]), "--dry-run"]) == 0
    assert "numbers: 1 epochs would be trimmed, up to 2" in capsys.readouterr().out
    assert left(log) == [1, 2, 3]
    assert main([*words, "--keep-hours", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epochs"] == 0
    assert main([*words, "--keep-hours", "0"]) == 0
    assert left(log) == []
    assert main([*words, "--before", "0"]) != 0
    assert "positions begin at 1" in capsys.readouterr().err
    with pytest.raises(StreamNotFound):
        plan_cut(log, "nothing", before=Position(1))


def sizes(log: LocalLog) -> int:
    return sum(r.body.nbytes for r in log.read(["S/numbers/0", "S/numbers/m"], Position(0), 9_999))


def test_a_stream_is_kept_for_ever_until_somebody_says_otherwise(log: LocalLog) -> None:
    publish(log, *range(4))
    assert retain(log, "numbers", 1 << 60) is None
    assert left(log) == [0, 1, 2, 3]
    with pytest.raises(StreamNotFound):
        set_retention(log, "nobody", Retention(until_consumed=True))


def test_by_age_and_by_size_the_oldest_epochs_go(log: LocalLog) -> None:
    marks = publish(log, *range(8))
    times = {r.position: r.time_us for r in log.read(["S/numbers/m"], Position(0), 99)}
    set_retention(log, "numbers", Retention(age_s=60))
    retain(log, "numbers", times[marks[0]] + 1_000_000)
    assert left(log) == list(range(8))
    retain(log, "numbers", times[marks[7]] + 61_000_000)
    assert left(log) == []
    publish(log, *range(8))
    whole = sizes(log)
    set_retention(log, "numbers", Retention(bytes_max=whole // 2))
    retain(log, "numbers", 0)
    assert left(log) == [4, 5, 6, 7]
    set_retention(log, "numbers", Retention(bytes_max=whole))
    retain(log, "numbers", 0)
    assert left(log) == [4, 5, 6, 7]
    set_retention(log, "numbers", Retention(bytes_max=0))
    retain(log, "numbers", 0)
    assert left(log) == []
    for wrong in ("age_s", "bytes_max"):
        with pytest.raises(InvalidArgument, match=f"{wrong} is -1"):
            Retention(**{wrong: -1})


def test_no_body_is_read_for_it_and_looks_are_seldom(log: LocalLog) -> None:
    publish(log, *range(600))
    set_retention(log, "numbers", Retention(bytes_max=sizes(log) // 2, age_s=3_600))
    before = log.statistics().bytes_read
    clock = ManualClock()
    retainer = Retainer(log, ("numbers",), clock)
    retainer()
    few = {record.body.nbytes for record in log.read(["S/numbers/m"], Position(0), 1)}
    assert log.statistics().bytes_read - before < 20 * max(few)
    kept = left(log)
    assert len(kept) in range(290, 310)
    publish(log, *range(600))
    retainer()
    assert len(left(log)) == len(kept) + 600, "it has just looked"
    clock.advance(2 * LOOK_S)
    retainer()
    assert len(left(log)) in range(290, 310)


def test_until_consumed_the_disk_stays_flat_and_a_stopped_reader_holds_it(
    lab: Laboratory, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reader's own trims let go of what it has read; nobody else has to do anything."""
    with open_log(lab.folder, create=True, config=UNSYNCED) as log:
        create_stream(log, "numbers", (Field("x", BIGINT, False),))
        set_retention(log, "numbers", Retention(until_consumed=True))
        publish(log, 0)
        assert retain(log, "numbers", 0) is None  # nobody is registered: nothing is consumed
        rows = scan_stream("numbers", "x bigint not null")
        reads = plan_program(query("copy", rows.to_stream("copies")))
        log.put("query/copy", StoredQuery("id", "copy", reads, "copies", None).encode())
        most = 0
        for _ in range(6):
            publish(log, *range(20))
            with lab.open(reads) as process:
                process.run_available()
            retain(log, "numbers", 0)
            most = max(most, len(left(log)))
        assert most <= 20
        publish(log, *range(100, 130))
        retain(log, "numbers", 0)
        assert left(log)[-30:] == list(range(100, 130))
    assert main(["log", "retain", str(lab.folder), "numbers"]) == 0
    shown = capsys.readouterr().out
    assert "until every query that reads it has them" in shown
    assert "query copy has not read all of it" in shown
    assert main(["log", "retain", str(lab.folder), "numbers", "--hours", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["age_s"] == 7200
    for wrong in (["--hours", "nan"], ["--hours", "-1"], ["--for-ever", "--bytes", "3"]):
        assert main(["log", "retain", str(lab.folder), "numbers", *wrong]) != 0
    assert main(["log", "retain", str(lab.folder), "numbers", "--for-ever"]) == 0
    assert "rows stay for ever" in capsys.readouterr().out
