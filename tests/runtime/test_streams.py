"""Streams for writers and readers outside a query: atomic writes, progress, and reading on."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.errors import (
    Fenced,
    ProducerEnded,
    SchemaMismatch,
    StreamConflict,
    StreamNotFound,
    Trimmed,
)
from penstock.log import LocalLog, open_log, punit, take_over
from penstock.log.record import Fence, Position, RecordKind
from penstock.plan.optimizer import plan_program
from penstock.runtime.markers import Marker
from penstock.runtime.outputs import Outputs
from penstock.runtime.retention import cut, plan_cut
from penstock.runtime.streams import (
    StreamReader,
    StreamWriter,
    check_new_results,
    create_stream,
    describe_stream,
    register_streams,
)
from penstock.stages.program import Program
from penstock.stages.settings import Settings
from penstock.testing.memory_log import MemoryLog
from penstock.testing.plans import count, parse_schema, query, scan_stream, window
from tests.runtime.laboratory import UNSYNCED, Laboratory, plain

ORDERS = parse_schema("item string, amount bigint not null")


def batch(*rows: tuple[str | None, int]) -> pa.RecordBatch:
    return pa.record_batch({"item": [row[0] for row in rows], "amount": [row[1] for row in rows]})


@pytest.fixture
def log(lab: Laboratory) -> LocalLog:
    return open_log(lab.folder, create=True, config=UNSYNCED)


def test_a_description_is_made_once_and_read_back(log: LocalLog) -> None:
    made = create_stream(log, "orders", ORDERS)
    assert made == describe_stream(log, "orders")
    assert made.schema == ORDERS
    assert made.tags == ("S/orders/0", "S/orders/m")
    assert create_stream(log, "orders", ORDERS, substreams=2) == made  # the first one stands
    with pytest.raises(StreamConflict, match="other int"):
        create_stream(log, "orders", parse_schema("other int"))
    log.close()


def test_a_damaged_description_is_named(log: LocalLog) -> None:
    log.put("stream/orders", json.dumps({"columns": 3}).encode())
    with pytest.raises(StreamNotFound, match="fsck"):
        describe_stream(log, "orders")
    log.close()


def test_a_writer_goes_on_where_its_committed_rows_end(log: LocalLog) -> None:
    create_stream(log, "orders", ORDERS)
    items = [(f"item {number}", number) for number in range(10)]
    first = StreamWriter(log, "orders", "shop")
    assert first.offset is None
    first.write(batch(*items[:4]), offset=4)
    second = StreamWriter(log, "orders", "shop")
    assert second.offset == 4
    with pytest.raises(Fenced):
        first.write(batch(*items[4:]), offset=10)
    second.write(batch(*items[second.offset :]), offset=10)
    assert [row["amount"] for row in plain(StreamReader(log, "orders").read_all())] == list(
        range(10)
    )
    log.close()


def test_a_write_without_an_offset_leaves_the_last_one(log: LocalLog) -> None:
    create_stream(log, "orders", ORDERS)
    writer = StreamWriter(log, "orders", "shop")
    writer.write(batch(("a", 1)), offset={"file": 3})
    writer.write(batch(("b", 2)))
    writer.write(None, watermark_us=5)
    assert writer.offset == {"file": 3}
    assert StreamWriter(log, "orders", "shop").offset == {"file": 3}
    log.close()


def test_a_reader_takes_up_where_it_left_and_sees_nothing_twice(log: LocalLog) -> None:
    create_stream(log, "orders", ORDERS)
    writer = StreamWriter(log, "orders", "shop")
    writer.write(batch(("a", 1)))
    reader = StreamReader(log, "orders")
    assert reader.read_all().num_rows == 1
    assert reader.read_all().num_rows == 0
    writer.write(batch(("b", 2), (None, 3)))
    later = StreamReader(log, "orders", after=reader.position)
    assert plain(later.read_all()) == plain(reader.read_all())
    assert later.position == reader.position
    log.close()


def test_rows_of_other_columns_are_not_written(log: LocalLog) -> None:
    create_stream(log, "orders", ORDERS)
    writer = StreamWriter(log, "orders", "shop")
    tail = log.tail()
    with pytest.raises(SchemaMismatch, match="amount"):
        writer.write(pa.record_batch({"item": ["a"], "amount": ["many"]}))
    for misspelt in ({"itme": ["a"], "amount": [1]}, {"itme": pa.array([], pa.string())}):
        with pytest.raises(SchemaMismatch, match="no column itme; its columns are item, amount"):
            writer.write(pa.record_batch(misspelt))
    assert log.tail() == tail
    log.close()


def test_a_query_over_streams_takes_rows_in_the_logs_order(lab: Laboratory, log: LocalLog) -> None:
    """Two writers by turns; what the query emits after each turn holds exactly their rows."""
    create_stream(log, "orders", ORDERS)
    writers = [StreamWriter(log, "orders", name) for name in ("shop", "phone")]
    counted = scan_stream("orders", ORDERS).group_by("item").agg(count().alias("n"), mode="update")
    tested = query("orders_per_item", counted.to_stream("out"), settings=Settings())
    totals: Counter[str | None] = Counter()
    with lab.open(tested) as process:
        for turn in range(8):
            item = None if turn == 5 else f"item {turn % 3}"
            writers[turn % 2].write(batch((item, turn), ("always", turn)))
            totals[item] += 1
            totals["always"] += 1
            process.run_available()
            assert {row["item"]: row["n"] for row in plain(process.read("out"))} == totals
        for writer in writers:
            writer.write(None, ended=True)
        process.run()  # ends because both writers have
    log.close()


def test_a_producer_that_has_ended_writes_no_more() -> None:
    log = MemoryLog()
    for stream in ("orders", "returns"):
        create_stream(log, stream, ORDERS)
    writer = StreamWriter(log, "orders", "shop")
    writer.write(batch(("a", 1)), offset=1, ended=True)
    for opens in (False, True):
        again = StreamWriter(log, "orders", "shop") if opens else writer
        for rows, ended in ((batch(("b", 2)), False), (batch(("b", 2)), True), (None, False)):
            with pytest.raises(ProducerEnded, match="another producer name"):
                again.write(rows, ended=ended)
            assert again.offset == 1
        again.write(None, offset=1, ended=True)  # once more, perhaps after a crash
    StreamWriter(log, "orders", "phone").write(batch(("c", 3)))
    StreamWriter(log, "returns", "shop").write(batch(("d", 4)))
    assert [row["item"] for row in plain(StreamReader(log, "orders").read_all())] == ["a", "c"]
    assert [row["item"] for row in plain(StreamReader(log, "returns").read_all())] == ["d"]


DEAD = "dead_letter_stream"
LATE = "late_stream"


def windowed(name: str, output: str, **sides: str) -> Program:
    times = scan_stream("times", "at timestamp").with_watermark("at", "1 second")
    counted = times.group_by(window=window("at", "1 second")).agg(count().alias("n"))
    return plan_program(query(name, counted.to_stream(output), settings=Settings(**sides)))


def described(log: MemoryLog) -> dict[str, bytes]:
    return {key: found.value for key in log.keys("stream") if (found := log.get(key))}


@pytest.mark.parametrize(
    ("output", "sides"),
    [
        ("orders", {}),
        ("counts", {LATE: "orders"}),
        ("counts", {DEAD: "orders"}),
        ("counts", {LATE: "moments"}),  # the same columns, but rows of their own
        ("bad", {}),
        ("counts", {LATE: "bad"}),
        ("counts", {DEAD: "old"}),
        ("old", {}),
    ],
)
def test_a_stream_that_is_there_for_something_else_is_refused_and_left_as_it_is(
    output: str, sides: dict[str, str]
) -> None:
    log = MemoryLog()
    create_stream(log, "orders", ORDERS)
    create_stream(log, "times", parse_schema("at timestamp"))
    create_stream(log, "moments", parse_schema("at timestamp"))
    register_streams(log, windowed("other", "others", late_stream="old", dead_letter_stream="bad"))
    before = described(log)
    with pytest.raises(StreamConflict, match="is there already for") as refused:
        register_streams(log, windowed("q", output, **sides))
    assert refused.value.details["stream"] in (output, *sides.values())
    assert described(log) == before


def test_a_stream_is_shared_by_those_who_mean_the_same_and_keeps_its_description() -> None:
    log = MemoryLog()
    create_stream(log, "times", parse_schema("at timestamp"))
    first = windowed("first", "counts", late_stream="late", dead_letter_stream="bad")
    register_streams(log, first)
    before = {name: describe_stream(log, name) for name in ("counts", "late", "bad")}
    again = windowed("second", "counts", late_stream="late", dead_letter_stream="bad")
    register_streams(log, again)
    versions = {key: log.get(key) for key in log.keys("stream")}
    register_streams(log, again)
    assert {key: log.get(key) for key in log.keys("stream")} == versions
    for name, facts in before.items():  # but its readers wait for the vertices of both
        vertices = {each.query: tuple(v.name for v in each.vertices) for each in (first, again)}
        assert describe_stream(log, name) == replace(facts, writers=vertices)


def test_a_query_does_not_make_its_result_of_what_held_its_late_rows() -> None:
    log = MemoryLog()
    create_stream(log, "times", parse_schema("at timestamp"))
    register_streams(log, windowed("q", "counts", late_stream="late"))
    with pytest.raises(StreamConflict, match="for late rows"):
        register_streams(log, windowed("q", "late"))
    with pytest.raises(StreamConflict, match="would write dead letters"):
        register_streams(log, windowed("q", "counts", dead_letter_stream="late"))


def test_a_query_with_late_rows_is_started_again() -> None:
    """The stream of its late rows holds some already, and is no result that came back."""
    log = MemoryLog()
    create_stream(log, "times", parse_schema("at timestamp"))
    program = windowed("q", "counts", late_stream="late", dead_letter_stream="bad")
    register_streams(log, program)
    check_new_results(log, program, program)
    register_streams(log, program)


# --- final rows, updates and whole results --------------------------------------------------------

MODES = ("append", "update", "complete")
HOLDS = {"append": "final rows", "update": "updates", "complete": "whole results"}


def in_mode(mode: str, name: str, output: str = "counts", **sides: str) -> Program:
    times = scan_stream("times", "at timestamp").with_watermark("at", "1 second")
    grouped = times.group_by(window=window("at", "1 second"))
    counted = grouped.agg(count().alias("n"), mode=mode)  # type: ignore[arg-type]
    return plan_program(query(name, counted.to_stream(output), settings=Settings(**sides)))


def log_with_times() -> MemoryLog:
    log = MemoryLog()
    create_stream(log, "times", parse_schema("at timestamp"))
    return log


def forget_the_mode(log: MemoryLog, stream: str) -> None:
    """Make a description what it was before streams said what their rows are."""
    found = log.get(f"stream/{stream}")
    assert found is not None
    facts = json.loads(found.value)
    facts.pop("mode", None)
    log.put(f"stream/{stream}", json.dumps(facts).encode())


@pytest.mark.parametrize("later", MODES)
@pytest.mark.parametrize("first", MODES)
@pytest.mark.parametrize("name", ["first", "second"])
def test_a_stream_holds_rows_of_one_kind(first: str, later: str, name: str) -> None:
    log = log_with_times()
    register_streams(log, in_mode(first, "first"))
    assert describe_stream(log, "counts").mode == first
    if first == later:
        register_streams(log, in_mode(later, name))
        assert describe_stream(log, "counts").mode == first
        return
    before = described(log)
    with pytest.raises(StreamConflict, match=f"stream counts holds {HOLDS[first]}") as refused:
        register_streams(log, in_mode(later, name))
    assert f"query {name} would write {HOLDS[later]}" in refused.value.message
    assert "write to another stream" in refused.value.message
    assert described(log) == before


@pytest.mark.parametrize("mode", MODES)
def test_who_publishes_writes_final_rows(mode: str) -> None:
    log = log_with_times()
    register_streams(log, in_mode(mode, "q"))
    if mode == "append":
        StreamWriter(log, "counts", "shop")
        return
    tail, keys = log.tail(), log.keys()
    with pytest.raises(StreamConflict, match=f"stream counts holds {HOLDS[mode]}") as refused:
        StreamWriter(log, "counts", "shop")
    assert "producer shop would write final rows" in refused.value.message
    assert (log.tail(), log.keys()) == (tail, keys)


@pytest.mark.parametrize("mode", MODES)
def test_who_writes_first_to_a_new_stream_says_what_it_holds(mode: str) -> None:
    """One may be made beforehand, to have so many substreams, for any kind of rows."""
    log = log_with_times()
    for name in ("counts", "published"):
        create_stream(log, name, in_mode(mode, "q").stream("counts").schema)
        assert describe_stream(log, name).mode is None
    register_streams(log, in_mode(mode, "q"))
    assert describe_stream(log, "counts").mode == mode
    StreamWriter(log, "published", "shop")
    assert describe_stream(log, "published").mode == "append"
    if mode != "append":
        with pytest.raises(StreamConflict, match="published holds final rows"):
            register_streams(log, in_mode(mode, "other", "published"))


@pytest.mark.parametrize("mode", ["append", "update"])
def test_late_rows_and_dead_letters_are_final_in_every_mode(mode: str) -> None:
    log = log_with_times()
    register_streams(log, in_mode(mode, "q", late_stream="late", dead_letter_stream="bad"))
    assert {describe_stream(log, name).mode for name in ("late", "bad")} == {"append"}
    assert describe_stream(log, "counts").mode == mode


def test_a_description_of_an_older_log_says_it_when_its_query_starts_again() -> None:
    """Until then nobody is refused who was not before, and nobody else says what it holds."""
    log = log_with_times()
    register_streams(log, in_mode("update", "q"))
    forget_the_mode(log, "counts")
    assert describe_stream(log, "counts").mode is None
    StreamWriter(log, "counts", "shop")
    register_streams(log, in_mode("update", "other"))
    register_streams(log, in_mode("append", "another"))
    assert describe_stream(log, "counts").mode is None
    register_streams(log, in_mode("update", "q"))
    assert describe_stream(log, "counts").mode == "update"
    with pytest.raises(StreamConflict, match="holds updates"):
        register_streams(log, in_mode("append", "another"))


def test_what_was_published_to_a_stream_of_an_older_log_is_final() -> None:
    log = log_with_times()
    create_stream(log, "counts", in_mode("append", "q").stream("counts").schema)
    StreamWriter(log, "counts", "shop").write(None)
    forget_the_mode(log, "counts")
    with pytest.raises(StreamConflict, match="holds final rows"):
        register_streams(log, in_mode("update", "q"))
    register_streams(log, in_mode("append", "q"))
    assert describe_stream(log, "counts").mode == "append"


def test_a_kind_that_there_is_not_is_a_damaged_description(log: LocalLog) -> None:
    create_stream(log, "orders", ORDERS)
    found = log.get("stream/orders")
    assert found is not None
    log.put("stream/orders", json.dumps(json.loads(found.value) | {"mode": "some"}).encode())
    with pytest.raises(StreamNotFound, match="its mode is 'some'"):
        describe_stream(log, "orders")
    log.close()


# --- readers --------------------------------------------------------------------------------------


def test_a_reader_that_goes_on_gets_what_was_committed_late(log: LocalLog) -> None:
    """Rows may stand before the position that a reader has come to, and be committed after it."""
    create_stream(log, "orders", ORDERS)
    slow = Outputs(log, Fence("slow", take_over(log, "slow")), punit.Codec.NONE)
    slow.add(RecordKind.DATA, "S/orders/0", batch(("early", 1)))
    slow.append_early()
    StreamWriter(log, "orders", "shop").write(batch(("a", 2)))
    first = StreamReader(log, "orders")
    assert [row["amount"] for row in plain(first.read_all())] == [2]
    slow.commit(("S/orders/m",), Marker("slow", 1, 1).encode())
    for later in (
        StreamReader(log, "orders", after=first.position),
        StreamReader(log, "orders", after=first.position, resume=first.resume),
    ):
        assert [row["amount"] for row in plain(later.read_all())] == [1]
    log.close()


def test_a_reader_is_told_how_much_was_trimmed_before_it_read_it(log: LocalLog) -> None:
    create_stream(log, "orders", ORDERS)
    writer = StreamWriter(log, "orders", "shop")
    marks = [writer.write(batch(("a", number))) for number in range(6)]
    cut(log, plan_cut(log, "orders", before=Position(marks[3] + 1)))
    assert [row["amount"] for row in plain(StreamReader(log, "orders").read_all())] == [4, 5]
    kept = StreamReader(log, "orders", after=marks[3])
    assert [row["amount"] for row in plain(kept.read_all())] == [4, 5]
    missed = f"{marks[3] - marks[1]} positions of stream orders, {marks[1] + 1} to {marks[3]}, were"
    for resume in (None, marks[1]):
        reader = StreamReader(log, "orders", after=marks[1], resume=resume)
        with pytest.raises(Trimmed, match=missed):
            reader.read_all()
    log.close()


def test_a_reader_goes_on_behind_a_cut_that_took_nothing_but_what_it_has_read(
    log: LocalLog,
) -> None:
    """Markers without rows that it has not seen are cut too, and it misses nothing."""
    create_stream(log, "orders", ORDERS)
    writer = StreamWriter(log, "orders", "shop")
    writer.write(batch(("a", 1)))
    reader = StreamReader(log, "orders")
    assert [row["amount"] for row in plain(reader.read_all())] == [1]
    for number in range(3):
        writer.write(None, offset=number)
    cut(log, plan_cut(log, "orders"))
    later = StreamReader(log, "orders", after=reader.position, resume=reader.resume)
    writer.write(batch(("a", 2)))
    for each in (reader, later):
        assert [row["amount"] for row in plain(each.read_all())] == [2]
    log.close()


def test_a_query_whose_input_was_trimmed_stops_and_says_what_is_missing(
    lab: Laboratory, log: LocalLog
) -> None:
    """`penstock log trim` never does that to a stored query; a trim by tag can."""
    create_stream(log, "orders", ORDERS)
    writer = StreamWriter(log, "orders", "shop")
    writer.write(batch(("a", 0)))
    copied = query("copies", scan_stream("orders", ORDERS).to_stream("out"))
    with lab.open(copied) as process:
        process.run_available()
    marks = [writer.write(batch(("a", number))) for number in range(1, 5)]
    for tag in ("S/orders/0", "S/orders/m"):
        log.trim(tag, marks[2])
    with lab.open(copied) as process, pytest.raises(Trimmed, match="of stream orders") as caught:
        process.run_available()
    assert caught.value.details["upto"] == marks[2]
    assert "under another name" in caught.value.message
    fresh = query("fresh", scan_stream("orders", ORDERS).to_stream("rest"))
    with lab.open(fresh) as process:
        process.run_available()
        assert [row["amount"] for row in plain(process.read("rest"))] == [4]
    log.close()
