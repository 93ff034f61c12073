"""Markers in streams that people named: only those that tell their readers something."""

from __future__ import annotations

import pyarrow as pa

from penstock.log import LocalLog, open_log
from penstock.log.committed import CommittedReader
from penstock.log.record import START, RecordKind
from penstock.runtime.announcing import SIGN_OF_LIFE_S, Announcing
from penstock.runtime.markers import Marker, decode_marker
from penstock.runtime.sources import SourceBuilder
from penstock.runtime.streams import StreamWriter, create_stream
from penstock.stages.settings import Settings
from penstock.testing.clock import ManualClock
from penstock.testing.plans import (
    col,
    count,
    parse_schema,
    query,
    scan_source,
    scan_stream,
    window,
)
from tests.connectors.arrow_source import ArrowSource
from tests.runtime.laboratory import SECOND_US, UNSYNCED, Laboratory

ROWS = 2_000
TIME = pa.timestamp("us", tz="UTC")
MANY_COMMITS = Settings(
    step_rows_max=10, commit_interval_ms=0, dead_letter_stream="dead", late_stream="late"
)


def source() -> dict[str, SourceBuilder]:
    times = pa.table({"ts": pa.array([row * SECOND_US // 100 for row in range(ROWS)], TIME)})
    return {"times": lambda r: ArrowSource(times.select(r.schema.names).cast(r.schema))}


def test_a_query_of_many_commits_and_few_rows_leaves_few_markers(lab: Laboratory) -> None:
    """Two windows close, and 200 commits are made: the rest of them is nobody's business."""
    clock = ManualClock()
    windows = (
        scan_source("times", "ts timestamp")
        .with_watermark("ts", SECOND_US)
        .group_by(window=window("ts", 10 * SECOND_US))
        .agg(count().alias("n"))
    )
    tested = query("q", windows.to_stream("out"), settings=MANY_COMMITS)
    with lab.open(tested, source(), clock=clock) as process:
        process.run()
        (statistics,) = process.statistics().vertices.values()
        assert statistics.commits >= ROWS // 10
        assert process.read("out").num_rows == 2
        log = process.log
        kept = {tag: log.read([tag], START, 10_000) for tag in ("S/out/m", "S/dead/m", "S/late/m")}
    assert len(kept["S/out/m"]) <= 4  # the first, two with rows, and the end
    assert len(kept["S/dead/m"]) == len(kept["S/late/m"]) == 1  # the first


def marker(epoch: int, watermark_us: int = 0, **facts: bool) -> Marker:
    return Marker("q.s0.0", 1, epoch, watermark_us=watermark_us, **facts)


def chosen(
    announcing: Announcing, each: Marker, *written: str, now_s: float = 0.0, is_forced: bool = False
) -> set[str]:
    tags = announcing.tags(each, written, now_s, is_forced)
    announcing.note(each, tags, now_s)
    assert tags[0] == "T/q.s0.0"
    return set(tags[1:])


def test_what_is_news_to_whom() -> None:
    named = {"S/out/m": ("S/out/0", "S/out/1"), "S/late/m": ("S/late/0",)}
    announcing = Announcing(("T/q.s0.0",), named, ("S/out/m",))
    assert chosen(announcing, marker(1)) == {"S/out/m", "S/late/m"}  # the first: all
    assert chosen(announcing, marker(2)) == set()
    assert chosen(announcing, marker(3), "S/late/0") == {"S/late/m"}
    assert chosen(announcing, marker(4), "S/out/1") == {"S/out/m"}
    assert chosen(announcing, marker(5, 10)) == set()
    assert announcing.withheld_until_s(marker(5, 10)) == SIGN_OF_LIFE_S
    assert chosen(announcing, marker(6, 10), is_forced=True) == {"S/out/m"}
    assert announcing.withheld_until_s(marker(6, 10)) is None
    assert chosen(announcing, marker(7, 10, caught_up=True)) == {"S/out/m"}
    assert chosen(announcing, marker(8, 10, caught_up=True), now_s=SIGN_OF_LIFE_S) == {"S/out/m"}
    assert chosen(announcing, marker(9, 10, caught_up=True, ended=True), now_s=1.0) == {"S/out/m"}


def test_a_stream_without_readers_of_time_gets_rows_and_first_words_only() -> None:
    announcing = Announcing(("T/q.s0.0",), {"S/q.out/m": ("S/q.out/0",)}, ())
    assert chosen(announcing, marker(1)) == {"S/q.out/m"}
    assert chosen(announcing, marker(2, 10, ended=True), now_s=100.0, is_forced=True) == set()
    assert announcing.withheld_until_s(marker(2, 10)) is None


def test_a_watermark_that_was_withheld_is_told_without_more_input(lab: Laboratory) -> None:
    """The rows are filtered away; a reader of the result hears of time all the same."""
    clock = ManualClock()
    none = scan_stream("times", "ts timestamp").filter(col("ts").is_null())
    with open_log(lab.folder, create=True, config=UNSYNCED) as log:
        create_stream(log, "times", parse_schema("ts timestamp"))
        writer = StreamWriter(log, "times", "teller")
        with lab.open(query("q", none.to_stream("out")), clock=clock) as process:
            for number in range(4):
                writer.write(None, watermark_us=number)
                process.host.step()
                clock.advance(0.01)
            assert told(log) == 0  # with the first marker, and nothing since
            (vertex,) = process.statistics().vertices
            due_s = process.host.vertex(vertex).commit_due_in_s()
            assert due_s is not None
            assert 0 < due_s <= SIGN_OF_LIFE_S
            clock.advance(SIGN_OF_LIFE_S)
            process.host.step()
            assert told(log) == 3
            process.host.step()  # sees its own marker go by
            assert process.host.vertex(vertex).is_drained()
            writer.write(None, watermark_us=4)
            process.run_available()  # does not wait
            assert told(log) == 4


def told(log: LocalLog) -> int:
    """The watermark that a reader of the result knows."""
    last = log.last("S/out/m")
    assert last is not None
    return decode_marker(last).watermark_us


def test_the_first_marker_of_an_instance_drops_what_a_dead_one_left_everywhere(
    lab: Laboratory,
) -> None:
    """Also in a stream where the instance itself has nothing to say."""
    copied = scan_stream("times", "ts timestamp")
    settings = Settings(dead_letter_stream="dead", early_append_bytes_max=1)
    with open_log(lab.folder, create=True, config=UNSYNCED) as log:
        create_stream(log, "times", parse_schema("ts timestamp"))
        writer = StreamWriter(log, "times", "teller")
        with lab.open(query("q", copied.to_stream("out"), settings=settings)) as process:
            writer.write(None, watermark_us=1)
            process.run_available()
            (vertex,) = process.statistics().vertices
            parts = process.host.vertex(vertex)._parts
            rejected = pa.record_batch({"text": ["left behind"]})
            parts.outputs.add(RecordKind.DATA, "S/dead/0", rejected)
            parts.outputs.append_early()
            process.abandon()
        reader = CommittedReader(log, ("S/dead/0", "S/dead/m"))
        assert reader.take() is not None  # the first marker
        assert reader.take() is None
        assert reader.resume < log.tail()
        with lab.open(query("q", copied.to_stream("out"), settings=settings)) as process:
            writer.write(None, watermark_us=2)
            process.run_available()
        release = reader.take()
        assert release is not None
        assert release.records == ()
        assert reader.resume == log.tail()
