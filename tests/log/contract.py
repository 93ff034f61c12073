"""The tests that every log backend passes: `penstock/log/contract.py`, sentence by sentence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.config import KIB, MIB, LogConfig
from penstock.errors import (
    Fenced,
    InvalidArgument,
    InvalidName,
    LogClosed,
    RecordTooLarge,
    SequenceConflict,
    StreamError,
    Trimmed,
)
from penstock.log.contract import (
    APPEND_ENTRIES_MAX,
    METADATA_BYTES_MAX,
    READ_LIMIT_MAX,
    TAGS_PER_RECORD_MAX,
    Log,
    instance_key,
    take_over,
)
from penstock.log.record import START, Append, Body, Entry, Fence, Position, Record, RecordKind
from penstock.testing.memory_log import MemoryLog, MemoryStore

BACKENDS = ("memory", "local-synced", "local-process")
PATIENCE_S = 30.0  # how long a test waits for what must come; passing tests never use it up
SEGMENT = 256 * KIB  # small, so that bodies of these tests fill several
LIMITS = LogConfig(
    segment_bytes_max=SEGMENT,
    inline_bytes_max=1 * KIB,  # bodies of these tests fall on both sides
    body_bytes_max=2 * MIB,
    append_bytes_max=3 * MIB,
)


class LogFactory:
    """Opens handles on one log, each as another process would, and closes them at the end."""

    def __init__(self, backend: str, folder: Path) -> None:
        self.backend = backend
        self.config = LIMITS
        self._opener = _opener(backend, folder, self.config)
        self._opened: list[Log] = []

    def open(self) -> Log:
        log = self._opener()
        self._opened.append(log)
        return log

    def close(self) -> None:
        while self._opened:
            self._opened.pop().close()


def _opener(backend: str, folder: Path, config: LogConfig) -> Callable[[], Log]:
    if backend == "memory":
        store = MemoryStore(config)
        return lambda: MemoryLog(store)
    local = pytest.importorskip("penstock.log.local")
    level = replace(config, durability=backend.removeprefix("local-"))
    return lambda: local.open_log(folder / "log", create=True, config=level)


def entry(
    sequence: int,
    tags: tuple[str, ...] = ("S/a/0",),
    body: Body = b"rows",
    *,
    producer: str = "writer",
    instance: int = 1,
    kind: RecordKind = RecordKind.DATA,
) -> Entry:
    return Entry(kind, tags, producer, instance, sequence, body)


def everything(log: Log, *tags: str) -> list[Record]:
    return log.read(tags or ("S/a/0",), START, READ_LIMIT_MAX)


def positions(records: list[Record]) -> list[int]:
    return [record.position for record in records]


def bodies(records: list[Record]) -> list[bytes]:
    return [bytes(record.body) for record in records]


def fill(log: Log, tags_by_position: list[tuple[str, ...]]) -> None:
    """Append one record per item, so that item i is at position i + 1."""
    for index, tags in enumerate(tags_by_position):
        assert log.append([entry(index, tags, b"body %d" % (index + 1))]) == (index + 1,)


def in_threads(*actions: Callable[[], object]) -> None:
    """Run the actions at once and raise the first error of any of them."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(actions))

    def run(action: Callable[[], object]) -> None:
        try:
            barrier.wait(PATIENCE_S)
            action()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(action,), daemon=True) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


BAD_PARTS = (
    "",
    "x" * 65,
    "a\n",
    "\na",
    "a b",
    "a-b",
    ".b",
    "a.",
    "a..b",
    "a.b.c.d",
    ".",
    "..",
    "a\x00",
    "\x00",
    "é",
    "а",  # Cyrillic
    "ａ",  # full width
    "１",  # a digit to str.isdigit
    "٣",
    "ß",
    "a\u200b",
    "a\\b",
    "a'b",
    'a"b',
    "%",
    "*",
    "\ud800",
)
BAD_PATHS = (
    *BAD_PARTS,
    "/",
    "/a",
    "a/",
    "a//b",
    "a/../b",
    "a/b\n",
    "a/" + "x" * 65,
    "a/b/c/d/e/f/g",
)
BAD_NAMES = (*BAD_PARTS, "a/b")
BAD_ENTRIES = {
    "no tag": entry(0, ()),
    "a tag twice": entry(0, ("a", "a")),
    "a tag twice, apart": entry(0, ("a", "b", "a")),
    "tags in a list": entry(0, ["a"]),  # type: ignore[arg-type]
    "tags as a string": entry(0, "a"),  # type: ignore[arg-type]
    "a list as a tag": entry(0, (["a"],)),  # type: ignore[arg-type]
    "sequence below zero": entry(-1),
    "sequence beyond 63 bits": entry(2**63),
    "sequence a bool": entry(True),
    "sequence a float": entry(1.0),  # type: ignore[arg-type]
    "instance below zero": entry(0, instance=-1),
    "instance beyond 63 bits": entry(0, instance=2**63),
    "no instance": entry(0, instance=None),  # type: ignore[arg-type]
    "kind a bare number": entry(0, kind=1),  # type: ignore[arg-type]
    "body a string": entry(0, body="text"),
    "no body": entry(0, body=None),
    "body a list": entry(0, body=[1]),
    "body with holes": entry(0, body=memoryview(b"abcd")[::2]),
    "no entry at all": ("a", "tuple"),
}


class LogContract:
    """One class, so that a backend's tests are a subclass and a fixture."""

    # Order

    def test_an_empty_log_has_nothing(self, log: Log) -> None:
        assert log.tail() == START
        assert everything(log) == []
        assert log.last("S/a/0") is None
        assert log.trimmed("S/a/0") == START
        assert log.get("a") is None
        assert log.keys() == []

    def test_positions_are_dense_from_one_across_producers_and_handles(
        self, log: Log, other: Log
    ) -> None:
        assert log.append([entry(0), entry(1, ("S/b/0",))]) == (1, 2)
        assert other.append([entry(0, producer="second")]) == (3,)
        assert log.append([entry(2), entry(0, producer="third"), entry(3)]) == (4, 5, 6)
        assert log.tail() == other.tail() == 6
        assert positions(everything(other, "S/a/0", "S/b/0")) == [1, 2, 3, 4, 5, 6]

    def test_a_record_comes_back_as_it_was_appended(self, log: Log, other: Log) -> None:
        tags = ("T/v", "S/b/1", "C/v", "x")
        appended = [
            entry(7 + kind, tags, b"%d" % kind, producer="v_1", instance=3, kind=kind)
            for kind in RecordKind
        ]
        log.append(appended)
        for record, original in zip(everything(other, "C/v"), appended, strict=True):
            assert type(record.kind) is RecordKind
            assert (record.kind, record.tags) == (original.kind, tags)
            assert (record.producer, record.instance) == ("v_1", 3)
            assert record.sequence == original.sequence
            assert type(record.body) is memoryview
            assert record.body.readonly
            assert bytes(record.body) == original.body
            assert type(record.time_us) is int

    def test_extreme_numbers_are_kept(self, log: Log) -> None:
        most = 2**63 - 1
        log.append([entry(0, instance=0), entry(most, instance=most)])
        found = [(record.instance, record.sequence) for record in everything(log)]
        assert found == [(0, 0), (most, most)]

    def test_an_append_is_all_or_nothing_to_readers(self, log: Log, other: Log) -> None:
        groups = 20
        partial: list[int] = []

        def write() -> None:
            for group in range(groups):
                log.append([entry(group * 5 + part) for part in range(5)])

        def read() -> None:
            while (tail := other.tail()) < groups * 5:
                if tail % 5 or len(everything(other)) % 5:
                    partial.append(tail)
                other.wait(tail, 0.05)

        in_threads(write, read)
        assert partial == []
        assert positions(everything(other)) == list(range(1, groups * 5 + 1))

    def test_a_refused_append_leaves_no_trace(self, log: Log) -> None:
        log.append([entry(0)])
        with pytest.raises(InvalidName):
            log.append([entry(1), entry(2, ("bad tag",))])
        assert log.tail() == 1
        assert log.append([entry(1, ("S/b/0",))]) == (2,)

    # Reading

    def test_several_tags_are_merged_in_position_order_each_record_once(self, log: Log) -> None:
        fill(log, [("a", "b"), ("b",), ("c",), ("a",), ("c", "b", "a"), ("d",), ("b", "d")])
        assert positions(everything(log, "a", "b")) == [1, 2, 4, 5, 7]
        assert positions(everything(log, "b", "a", "a")) == [1, 2, 4, 5, 7]
        assert positions(everything(log, "c", "d", "unknown")) == [3, 5, 6, 7]
        assert positions(log.read({"a", "b", "c", "d"}, START, 100)) == [1, 2, 3, 4, 5, 6, 7]
        assert everything(log, "unknown") == []

    def test_after_is_exclusive_and_limit_bounds_the_merged_result(self, log: Log) -> None:
        fill(log, [("a", "b"), ("b",), ("a",), ("a", "b"), ("b",)])
        assert positions(log.read(["a"], Position(1), 10)) == [3, 4]
        assert positions(log.read(["a", "b"], Position(0), 3)) == [1, 2, 3]
        assert positions(log.read(["a", "b"], Position(3), 1)) == [4]
        assert log.read(["a"], Position(4), 10) == []
        assert log.read(["a"], Position(2**63 - 1), 10) == []

    def test_every_page_size_gives_the_same_walk(self, log: Log) -> None:
        fill(log, [("a",) if index % 3 else ("a", "b", "c") for index in range(12)])
        for limit in (1, 2, 3, 5, 12, 13):
            walked: list[int] = []
            cursor = START
            while page := log.read(["c", "a", "b"], cursor, limit):
                assert len(page) <= limit
                walked += positions(page)
                cursor = page[-1].position
            assert walked == list(range(1, 13))

    def test_heads_are_the_records_without_their_bodies(self, log: Log) -> None:
        for number, size in enumerate((0, 10, 3 * KIB), start=1):
            tags = ("a",) if number % 2 else ("a", "b")
            log.append([Entry(RecordKind.DATA, tags, "p", 1, number, bytes(size))])
        log.trim("a", Position(1))
        for limit in (1, 2, 100):
            after = START
            while records := log.read(["a", "b"], after, limit):
                assert log.heads(["a", "b"], after, limit) == [
                    (each.position, each.kind, each.producer, each.time_us, each.body.nbytes)
                    for each in records
                ]
                after = records[-1].position
            assert log.heads(["a", "b"], after, limit) == []

    def test_a_tag_is_not_its_prefix(self, log: Log) -> None:
        fill(log, [("S/a",), ("S/a/0",), ("S",), ("S/ab",), ("s/a",)])
        assert positions(everything(log, "S/a")) == [2 - 1]
        assert positions(everything(log, "S")) == [3]
        assert positions(everything(log, "s/a")) == [5]

    def test_last_is_the_newest_with_the_tag(self, log: Log, other: Log) -> None:
        fill(log, [("a",), ("a", "b"), ("b",), ("c",)])
        found = other.last("a")
        assert found is not None
        assert (found.position, bytes(found.body)) == (2, b"body 2")
        assert [record and record.position for record in map(log.last, "abcd")] == [2, 3, 4, None]

    @pytest.mark.parametrize("limit", [0, -1, READ_LIMIT_MAX + 1, True, 1.0, None, "1"])
    def test_a_limit_out_of_range_is_refused(self, log: Log, limit: int) -> None:
        with pytest.raises(InvalidArgument):
            log.read(["a"], START, limit)

    @pytest.mark.parametrize("after", [-1, 2**63, 1.5, None, "0"])
    def test_a_position_out_of_range_is_refused(self, log: Log, after: Position) -> None:
        for call in (
            lambda: log.read(["a"], after, 1),
            lambda: log.wait(after, 0.0),
            lambda: log.trim("a", after),
        ):
            with pytest.raises(InvalidArgument):
                call()

    @pytest.mark.parametrize("tags", [(), [], set(), "a", b"a"])
    def test_a_read_needs_a_collection_of_tags(self, log: Log, tags: tuple[str, ...]) -> None:
        with pytest.raises(InvalidArgument):
            log.read(tags, START, 1)

    def test_a_read_of_too_many_tags_is_refused_and_of_the_most_works(self, log: Log) -> None:
        tags = [f"t/{index}" for index in range(TAGS_PER_RECORD_MAX + 1)]
        log.append([entry(0, ("t/0",)), entry(1, (tags[TAGS_PER_RECORD_MAX - 1], "t/1"))])
        assert positions(log.read(tags[:-1], START, 10)) == [1, 2]
        with pytest.raises(RecordTooLarge):
            log.read(tags, START, 10)

    # Waiting

    def test_wait_returns_at_once_when_there_is_something_newer(self, log: Log) -> None:
        log.append([entry(0), entry(1)])
        assert log.wait(START, PATIENCE_S) == 2
        assert log.wait(Position(1), PATIENCE_S) == 2

    def test_wait_gives_up_when_the_time_is_over(self, log: Log) -> None:
        log.append([entry(0)])
        assert log.wait(Position(1), 0.0) == 1
        assert log.wait(Position(1), -1.0) == 1
        assert log.wait(Position(1), 0.02) == 1
        assert log.wait(Position(9), 0.02) == 1

    def test_wait_refuses_what_is_no_time(self, log: Log) -> None:
        for timeout_s in (float("nan"), None, "1"):
            with pytest.raises(InvalidArgument):
                log.wait(START, timeout_s)  # type: ignore[arg-type]

    def test_wait_wakes_on_an_append_of_the_same_and_of_another_handle(
        self, log: Log, other: Log
    ) -> None:
        seen: list[int] = []
        for round_number, writer in enumerate((log, other)):
            tail = log.tail()
            ready = threading.Event()

            def wait_for_more(tail: Position = tail, ready: threading.Event = ready) -> None:
                ready.set()
                seen.append(log.wait(tail, PATIENCE_S))

            def write(
                writer: Log = writer, sequence: int = round_number, go: threading.Event = ready
            ) -> None:
                assert go.wait(PATIENCE_S)
                writer.append([entry(sequence)])

            in_threads(wait_for_more, write)
        assert seen == [1, 2]

    def test_wake_ends_a_wait_although_nothing_came(self, log: Log, other: Log) -> None:
        is_over = threading.Event()

        def wait() -> None:
            assert log.wait(START, PATIENCE_S) == START
            is_over.set()

        def wake() -> None:
            while not is_over.wait(0.001):  # again: it may not have slept yet
                log.wake()

        began_s = time.monotonic()
        in_threads(wait, wake)
        assert time.monotonic() - began_s < PATIENCE_S
        assert other.wait(START, 0.0) == START

    def test_readers_that_only_wait_miss_nothing(self, log: Log, other: Log) -> None:
        total = 40
        seen: list[int] = []

        def follow() -> None:
            cursor = START
            while cursor < total:
                assert other.wait(cursor, PATIENCE_S) > cursor
                page = other.read(["S/a/0"], cursor, 7)
                seen.extend(positions(page))
                cursor = page[-1].position

        in_threads(follow, lambda: [log.append([entry(index)]) for index in range(total)])
        assert seen == list(range(1, total + 1))

    # Trimming

    def test_a_record_lives_until_its_last_tag_is_trimmed(self, log: Log, other: Log) -> None:
        fill(log, [("a",), ("a", "b"), ("b",), ("a", "b", "c")])
        log.trim("a", Position(4))
        assert everything(other, "a") == []
        assert other.last("a") is None
        assert positions(everything(other, "b")) == [2, 3, 4]
        assert positions(everything(other, "a", "b")) == [2, 3, 4]
        log.trim("b", Position(2))
        assert positions(everything(other, "b", "c")) == [3, 4]
        log.trim("b", Position(4))
        assert positions(everything(other, "a", "b", "c")) == [4]
        assert everything(other, "c")[0].tags == ("a", "b", "c")  # a record never changes
        log.trim("c", Position(4))
        assert everything(other, "a", "b", "c") == []

    def test_trim_is_inclusive_and_never_goes_back(self, log: Log, other: Log) -> None:
        fill(log, [("a",)] * 5)
        log.trim("a", Position(3))
        assert positions(everything(log, "a")) == [4, 5]
        log.trim("a", Position(1))
        log.trim("a", START)
        assert other.trimmed("a") == 3
        assert positions(everything(other, "a")) == [4, 5]
        assert other.trimmed("b") == START

    def test_a_trimmed_log_keeps_its_tail_and_reuses_no_position(
        self, log: Log, other: Log
    ) -> None:
        fill(log, [("a",), ("b",), ("a",)])
        log.trim("a", Position(3))
        log.trim("b", Position(3))
        assert log.tail() == other.tail() == 3
        assert other.wait(Position(2), 0.0) == 3
        assert other.append([entry(0, ("a",), producer="second")]) == (4,)
        assert positions(everything(log, "a", "b")) == [4]

    def test_a_fenced_instance_trims_nothing(self, log: Log, other: Log) -> None:
        first = take_over(log, "v")
        fill(log, [("a",)] * 3)
        log.trim("a", Position(1), Fence("v", first))
        second = take_over(other, "v")
        for upto in (START, Position(2)):
            with pytest.raises(Fenced, match="nor trim"):
                log.trim("a", upto, Fence("v", first))
        assert other.trimmed("a") == 1
        assert positions(everything(other, "a")) == [2, 3]
        assert log.statistics().fenced == 2
        other.trim("a", Position(2), Fence("v", second))
        assert positions(everything(log, "a")) == [3]

    def test_a_trim_beyond_the_tail_does_not_reach_later_records(self, log: Log) -> None:
        fill(log, [("a",), ("b",)])
        log.trim("a", Position(1_000))
        log.trim("never", Position(1_000))
        assert log.trimmed("a") == log.trimmed("never") == 2
        assert log.append([entry(9, ("a", "never"))]) == (3,)
        assert positions(everything(log, "a")) == positions(everything(log, "never")) == [3]

    def test_a_short_page_is_the_end_also_while_others_trim(self, log: Log, other: Log) -> None:
        """Pages far smaller than the log, bodies in many segments, trims in between."""
        total, trimmed = 300, 200
        fill(log, [("a",)] * total)
        for index in range(total, 2 * total):
            log.append([entry(index, ("a",), b"x" * 2 * KIB)])
        seen: list[int] = []

        def walk() -> None:
            cursor = START
            page: list[Record] = []
            while not cursor or len(page) == 3:
                page = other.read(["a"], cursor, 3)
                seen.extend(positions(page))
                cursor = page[-1].position if page else cursor

        def trim() -> None:
            for upto in range(1, total + trimmed + 1, 50):
                log.trim("a", Position(upto))

        in_threads(walk, trim)
        assert seen == sorted(seen)
        assert seen[-1] == 2 * total
        assert set(seen) >= set(range(total + trimmed, 2 * total + 1))

    def test_a_reader_can_ask_for_nothing_to_be_missing(self, log: Log, other: Log) -> None:
        fill(log, [("a",), ("b",), ("a", "b"), ("a",), ("c",)])

        def read(tags: tuple[str, ...], after: int, untrimmed_after: int) -> list[int]:
            come_to = Position(untrimmed_after)
            return positions(other.read(tags, Position(after), 9, untrimmed_after=come_to))

        assert read(("a", "b"), 0, 0) == [1, 2, 3, 4]
        log.trim("a", Position(3))
        assert read(("b",), 0, 0) == [2, 3]
        assert read(("a", "b"), 3, 3) == [4]
        assert read(("a", "b"), 0, 3) == [2, 3, 4]
        for after in (0, 2):
            with pytest.raises(Trimmed) as caught:
                read(("b", "a"), after, after)
            assert caught.value.details == {"tag": "a", "after": after, "upto": 3}
        assert positions(other.read(("b", "a"), START, 9)) == [2, 3, 4]
        with pytest.raises(InvalidArgument):
            read(("a",), 3, -1)

    # Metadata

    def test_put_sets_and_counts_versions(self, log: Log, other: Log) -> None:
        assert log.put("routing/q", b"one") == 1
        assert other.put("routing/q", b"") == 2
        found = log.get("routing/q")
        assert found is not None
        assert (found.value, found.version) == (b"", 2)
        assert type(found.value) is bytes
        assert log.tail() == START

    def test_compare_and_set_needs_the_current_version(self, log: Log, other: Log) -> None:
        assert not log.compare_and_set("k", 1, b"x")
        assert log.get("k") is None
        assert log.compare_and_set("k", 0, b"one")
        assert not other.compare_and_set("k", 0, b"two")
        assert other.compare_and_set("k", 1, b"two")
        assert not log.compare_and_set("k", 1, b"three")
        assert not log.compare_and_set("k", 3, b"three")
        assert log.put("k", b"three") == 3
        assert log.compare_and_set("k", 3, b"four")
        found = other.get("k")
        assert found is not None
        assert (found.value, found.version) == (b"four", 4)

    def test_keys_are_sorted_and_found_below_whole_parts(self, log: Log, other: Log) -> None:
        for key in ("b", "a/b/c", "a", "a/bc", "a/b", "a/b_c/d", "A", "a_b"):
            log.put(key, b"")
        assert other.keys() == sorted(
            ("b", "a/b/c", "a", "a/bc", "a/b", "a/b_c/d", "A", "a_b"), key=str.encode
        )
        assert other.keys("a/b") == ["a/b", "a/b/c"]
        assert other.keys("a") == ["a", "a/b", "a/b/c", "a/b_c/d", "a/bc"]
        assert other.keys("none") == []

    def test_one_of_many_compare_and_sets_wins(self, log: Log, log_factory: LogFactory) -> None:
        handles = [log_factory.open() for _ in range(4)]
        won: list[int] = []

        def increment(handle: Log) -> None:
            for _ in range(5):
                won.append(take_over(handle, "v"))

        in_threads(*[lambda handle=handle: increment(handle) for handle in handles])
        assert sorted(won) == list(range(1, 21))
        found = log.get(instance_key("v"))
        assert found is not None
        assert (found.value, found.version) == (b"20", 20)

    @pytest.mark.parametrize("version", [-1, 2**63, 1.0, None])
    def test_a_version_out_of_range_is_refused(self, log: Log, version: int) -> None:
        with pytest.raises(InvalidArgument):
            log.compare_and_set("k", version, b"")
        assert log.get("k") is None

    @pytest.mark.parametrize("value", ["text", None, 5, memoryview(b"x")])
    def test_a_metadata_value_is_bytes(self, log: Log, value: bytes) -> None:
        for call in (lambda: log.put("k", value), lambda: log.compare_and_set("k", 0, value)):
            with pytest.raises(InvalidArgument):
                call()
        assert log.get("k") is None

    # Fencing

    def test_only_the_newest_instance_appends(self, log: Log, other: Log) -> None:
        first = take_over(log, "v")
        assert log.append([entry(0, instance=first)], Fence("v", first)) == (1,)
        second = take_over(other, "v")
        assert (first, second) == (1, 2)
        with pytest.raises(Fenced) as caught:
            log.append([entry(1, instance=first), entry(2, instance=first)], Fence("v", first))
        assert caught.value.details["vertex"] == "v"
        assert log.tail() == 1
        assert positions(everything(log)) == [1]
        assert other.append([entry(0, instance=second)], Fence("v", second)) == (2,)

    def test_what_was_fenced_left_no_sequence_behind(self, log: Log) -> None:
        first = take_over(log, "v")
        take_over(log, "v")
        with pytest.raises(Fenced):
            log.append([entry(5)], Fence("v", first))
        assert log.append([entry(4)]) == (1,)

    def test_a_fence_for_an_unregistered_vertex_holds(self, log: Log) -> None:
        for instance in (0, 1):
            with pytest.raises(Fenced):
                log.append([entry(0)], Fence("nobody", instance))
        assert log.tail() == START

    def test_a_fence_newer_than_the_registered_instance_holds(self, log: Log) -> None:
        take_over(log, "v")
        for instance in (0, 2, 10):
            with pytest.raises(Fenced):
                log.append([entry(0)], Fence("v", instance))
        assert log.append([entry(0)], Fence("v", 1)) == (1,)

    def test_fences_of_other_vertices_do_not_matter(self, log: Log) -> None:
        take_over(log, "v")
        take_over(log, "w")
        take_over(log, "w")
        assert log.append([entry(0, producer="w")], Fence("v", 1)) == (1,)
        assert log.append([entry(1, producer="w")]) == (2,)

    def test_of_many_appends_each_has_its_own_outcome(self, log: Log, other: Log) -> None:
        fences = [Fence("v", take_over(log, "v")), Fence("w", take_over(log, "w"))]
        old = Fence("v", 0)
        other.append([entry(0, producer="known")])
        outcomes = log.append_each(
            [
                Append([entry(0, ("a",)), entry(1, ("b",), body=bytes(3 * KIB))], fences[0]),
                Append([entry(0, producer="late")], old),
                Append([entry(0, producer="known")], old),
                Append([entry(0, ("x",), producer="known")]),
                Append([entry(0, producer="w", body=bytes(5 * KIB))], fences[1]),
                Append([entry(0, ("a",)), entry(1, ("b",), body=bytes(3 * KIB))], fences[0]),
                Append([entry(2, ("a",))], fences[0]),
            ]
        )
        kinds = [each if isinstance(each, tuple) else type(each) for each in outcomes]
        assert kinds == [(2, 3), Fenced, (1,), SequenceConflict, (4,), (2, 3), (5,)]
        assert other.tail() == 5
        assert [record.position for record in other.read(["a"], START, 9)] == [2, 5]
        assert log.append([entry(0, producer="late")]) == (6,)
        assert log.append_each([]) == []

    @pytest.mark.parametrize("instance", [-1, 2**63, 1.0, None, "1", True])
    def test_a_fence_is_checked_before_it_is_used(self, log: Log, instance: int) -> None:
        take_over(log, "v")
        with pytest.raises(InvalidArgument):
            log.append([entry(0)], Fence("v", instance))
        assert log.tail() == START

    def test_no_append_of_an_old_instance_follows_a_take_over(
        self, log: Log, log_factory: LogFactory
    ) -> None:
        """Four processes take one vertex from each other: instances never fall along the log."""

        def fight(handle: Log) -> None:
            for _ in range(6):
                instance = take_over(handle, "v")
                try:
                    for sequence in range(3):
                        handle.append([entry(sequence, instance=instance)], Fence("v", instance))
                except Fenced:
                    continue

        handles = [log_factory.open() for _ in range(4)]
        in_threads(*[lambda handle=handle: fight(handle) for handle in handles])
        instances = [record.instance for record in everything(log)]
        assert instances == sorted(instances)
        assert instances[-1] == 24

    # Idempotency

    def test_a_retry_returns_the_first_positions(self, log: Log, other: Log) -> None:
        batch = [entry(0), entry(1, ("S/b/0", "T/v"), b""), entry(2)]
        assert log.append(batch) == (1, 2, 3)
        log.append([entry(0, producer="second")])
        assert log.append(batch) == (1, 2, 3)
        assert other.append(batch) == (1, 2, 3)
        assert other.append(batch[1:2]) == (2,)
        assert log.tail() == 4

    def test_a_retry_may_group_entries_anew(self, log: Log) -> None:
        log.append([entry(0)])
        log.append([entry(0, producer="second")])
        log.append([entry(1), entry(2)])
        assert log.append([entry(0), entry(1)]) == (1, 3)
        assert log.append([entry(2), entry(0, producer="second")]) == (4, 2)
        assert log.tail() == 4

    def test_a_retry_after_a_reopen_returns_the_first_positions(
        self, log: Log, log_factory: LogFactory
    ) -> None:
        log.append([entry(0, body=b"x" * 5_000), entry(1)])
        log.close()
        again = log_factory.open()
        assert again.append([entry(0, body=b"x" * 5_000), entry(1)]) == (1, 2)
        assert again.append([entry(2)]) == (3,)

    def test_a_retry_after_fencing_returns_the_first_positions(self, log: Log) -> None:
        first = take_over(log, "v")
        log.append([entry(0)], Fence("v", first))
        take_over(log, "v")
        assert log.append([entry(0)], Fence("v", first)) == (1,)
        with pytest.raises(Fenced):
            log.append([entry(1)], Fence("v", first))
        assert log.tail() == 1

    def test_instances_and_producers_have_sequences_of_their_own(self, log: Log) -> None:
        assert log.append([entry(5)]) == (1,)
        assert log.append([entry(5, instance=2)]) == (2,)
        assert log.append([entry(5, producer="second")]) == (3,)
        assert log.append([entry(6)]) == (4,)

    def test_sequences_may_leave_gaps_but_never_fill_them(self, log: Log) -> None:
        log.append([entry(3), entry(9)])
        for sequence in (0, 2, 4, 8):
            with pytest.raises(SequenceConflict):
                log.append([entry(sequence)])
        assert log.append([entry(10)]) == (3,)

    def test_a_mix_of_old_and_new_entries_conflicts(self, log: Log) -> None:
        log.append([entry(0), entry(1)])
        for batch in (
            [entry(1), entry(2)],
            [entry(0), entry(1), entry(2)],
            [entry(0), entry(0, producer="second")],
            [entry(0, producer="second"), entry(0)],
        ):
            with pytest.raises(SequenceConflict):
                log.append(batch)
        assert log.tail() == 2
        assert log.append([entry(2), entry(0, producer="second")]) == (3, 4)

    @pytest.mark.parametrize("size", [4, 5_000, 50_000])
    def test_other_content_under_an_old_sequence_conflicts(self, log: Log, size: int) -> None:
        body = b"x" * size
        log.append([entry(0, ("a", "b"), body), entry(1)])
        for changed in (
            entry(0, ("a", "b"), b"y" + body[1:]),
            entry(0, ("a", "b"), body[:-1] + b"y"),
            entry(0, ("a", "b"), body[:-1]),
            entry(0, ("a", "b"), b""),
            entry(0, ("a",), body),
            entry(0, ("a", "b", "c"), body),
            entry(0, ("a", "c"), body),
            entry(0, ("a", "b"), body, kind=RecordKind.MARKER),
        ):
            with pytest.raises(SequenceConflict) as caught:
                log.append([changed])
            assert caught.value.details["sequence"] == 0
        assert log.append([entry(0, ("a", "b"), body)]) == (1,)
        assert log.tail() == 2

    def test_sequences_rise_within_an_append(self, log: Log) -> None:
        for batch in ([entry(0), entry(0)], [entry(1), entry(0)]):
            with pytest.raises(SequenceConflict):
                log.append(batch)
        assert log.tail() == START
        between = [entry(1), entry(0, producer="second"), entry(0, instance=2), entry(2)]
        assert log.append(between) == (1, 2, 3, 4)

    def test_the_retry_of_a_trimmed_append_says_so(self, log: Log, other: Log) -> None:
        log.append([entry(0), entry(1, ("S/a/0", "b"))])
        log.append([entry(2, ("b",))])
        log.trim("S/a/0", Position(2))
        for batch in ([entry(0)], [entry(0), entry(1, ("S/a/0", "b"))]):
            with pytest.raises(Trimmed):
                other.append(batch)
        assert other.append([entry(1, ("S/a/0", "b"))]) == (2,)  # one of its tags is left
        log.trim("b", Position(3))
        with pytest.raises(Trimmed):
            other.append([entry(2, ("b",))])
        with pytest.raises(SequenceConflict):
            other.append([entry(2, ("b",)), entry(3)])
        assert log.append([entry(3)]) == (4,)

    def test_a_producer_is_forgotten_when_nothing_of_it_is_left(self, log: Log, other: Log) -> None:
        for producer in ("gone", "left", "asked_for_by_nobody"):
            log.append([entry(0, ("a",), producer=producer), entry(1, ("b",), producer=producer)])
        log.append([entry(2, ("c",), producer="left")])
        for tag in ("a", "b"):
            other.trim(tag, other.tail())
        other.forget({"gone", "left", "never_there"})
        assert other.append([entry(0, ("a",), producer="gone")]) == (8,)
        for producer in ("left", "asked_for_by_nobody"):
            with pytest.raises(Trimmed):
                other.append([entry(0, ("a",), producer=producer)])
        assert other.append([entry(2, ("c",), producer="left")]) == (7,)

    def test_a_fully_trimmed_producer_goes_on_above_its_highest(self, log: Log) -> None:
        log.append([entry(index) for index in range(5)])
        log.trim("S/a/0", Position(5))
        with pytest.raises(Trimmed):
            log.append([entry(4)])
        assert log.append([entry(5)]) == (6,)
        assert positions(everything(log)) == [6]

    # Bad input

    @pytest.mark.parametrize("name", BAD_PATHS, ids=ascii)
    def test_a_bad_tag_or_key_is_refused(self, log: Log, name: str) -> None:
        calls: list[Callable[[], object]] = [
            lambda: log.append([entry(0, ("a", name))]),
            lambda: log.append([entry(0, (name,))]),
            lambda: log.read(["a", name], START, 1),
            lambda: log.last(name),
            lambda: log.trim(name, START),
            lambda: log.trimmed(name),
            lambda: log.get(name),
            lambda: log.put(name, b""),
            lambda: log.compare_and_set(name, 0, b""),
        ]
        if name:
            calls.append(lambda: log.keys(name))
        for call in calls:
            with pytest.raises(InvalidName):
                call()
        assert (log.tail(), log.keys()) == (START, [])

    @pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
    def test_a_bad_producer_or_vertex_is_refused(self, log: Log, name: str) -> None:
        for call in (
            lambda: log.append([entry(0, producer=name)]),
            lambda: log.append([entry(0)], Fence(name, 1)),
            lambda: take_over(log, name),
        ):
            with pytest.raises(InvalidName):
                call()
        assert (log.tail(), log.keys()) == (START, [])

    def test_names_of_the_greatest_length_are_kept(self, log: Log) -> None:
        tag = "/".join(["x" * 64] * 6)
        log.append([entry(0, (tag,), producer="y" * 64)])
        log.put(tag, b"v")
        assert everything(log, tag)[0].producer == "y" * 64
        assert log.keys() == [tag]

    @pytest.mark.parametrize("what", BAD_ENTRIES)
    def test_an_entry_that_cannot_be_right_is_refused(self, log: Log, what: str) -> None:
        bad = BAD_ENTRIES[what]
        with pytest.raises(InvalidArgument):
            log.append([bad])
        with pytest.raises(InvalidArgument):
            log.append([entry(0, producer="fine"), bad])
        assert log.tail() == START

    @pytest.mark.parametrize("tags", [(1,), (None,), (b"a",)])
    def test_a_tag_that_is_no_string_is_refused(self, log: Log, tags: tuple[str, ...]) -> None:
        with pytest.raises(InvalidName):
            log.append([entry(0, tags)])
        with pytest.raises(InvalidName):
            log.read(tags, START, 1)

    def test_an_append_of_nothing_is_refused(self, log: Log) -> None:
        with pytest.raises(InvalidArgument):
            log.append([])

    def test_the_most_entries_fit_and_one_more_does_not(self, log: Log) -> None:
        batch = [entry(index) for index in range(APPEND_ENTRIES_MAX + 1)]
        with pytest.raises(RecordTooLarge):
            log.append(batch)
        assert log.tail() == START
        assert log.append(batch[:-1]) == tuple(range(1, APPEND_ENTRIES_MAX + 1))
        assert positions(everything(log)) == list(range(1, APPEND_ENTRIES_MAX + 1))

    def test_the_most_tags_fit_and_one_more_does_not(self, log: Log) -> None:
        tags = tuple(f"S/a/{index}" for index in range(TAGS_PER_RECORD_MAX + 1))
        with pytest.raises(RecordTooLarge):
            log.append([entry(0, tags)])
        assert log.tail() == START
        assert log.append([entry(0, tags[:-1])]) == (1,)
        assert log.append([entry(0, tags[:-1])]) == (1,)
        assert everything(log, tags[-2])[0].tags == tags[:-1]

    def test_the_largest_body_fits_and_one_more_byte_does_not(
        self, log: Log, log_factory: LogFactory
    ) -> None:
        body = bytes(log_factory.config.body_bytes_max + 1)
        for too_large in (body, bytearray(body), memoryview(body), pa.py_buffer(body)):
            with pytest.raises(RecordTooLarge):
                log.append([entry(0, body=too_large)])
        with pytest.raises(RecordTooLarge):  # two bodies that only together are too much
            log.append([entry(0, body=body[:-1]), entry(1, body=body[:-1])])
        assert log.tail() == START
        assert log.append([entry(0, body=body[:-1])]) == (1,)
        assert bodies(everything(log)) == [body[:-1]]

    def test_a_metadata_value_beyond_its_bound_is_refused(self, log: Log) -> None:
        too_large = bytes(METADATA_BYTES_MAX + 1)
        for call in (
            lambda: log.put("k", too_large),
            lambda: log.compare_and_set("k", 0, too_large),
        ):
            with pytest.raises(RecordTooLarge):
                call()
        assert log.get("k") is None
        assert log.put("k", too_large[: 1 << 20]) == 1

    # Bodies

    def test_every_kind_of_body_comes_back(self, log: Log, other: Log) -> None:
        numbers = memoryview(bytes(range(24)))
        batch = [
            entry(0, body=b"bytes"),
            entry(1, body=bytearray(b"bytearray")),
            entry(2, body=memoryview(b"memoryview")),
            entry(3, body=pa.py_buffer(b"buffer")),
            entry(4, body=pa.py_buffer(b"a slice")[2:]),
            entry(5, body=numbers.cast("Q")),
            entry(6, body=bytearray()),
            entry(7, body=pa.py_buffer(b"")),
        ]
        expected = [b"bytes", b"bytearray", b"memoryview", b"buffer", b"slice"]
        expected += [bytes(range(24)), b"", b""]
        first = log.append(batch)
        assert bodies(everything(other)) == expected
        assert log.append(batch) == first

    def test_a_body_changed_after_the_append_is_not_changed_in_the_log(self, log: Log) -> None:
        for size in (10, 10_000):
            body = bytearray(size)
            log.append([entry(size, body=body)])
            body[0] = 1
        assert bodies(everything(log)) == [bytes(10), bytes(10_000)]

    @pytest.mark.parametrize("size", [0, 1, 1 * KIB, 1 * KIB + 1, SEGMENT - 1, SEGMENT, 1 * MIB])
    def test_bodies_of_any_size_come_back(self, log: Log, other: Log, size: int) -> None:
        body = (bytes(range(256)) * (size // 256 + 1))[:size]
        log.append([entry(0, body=body), entry(1, body=b"after")])
        log.append([entry(2, body=body[::-1])])
        assert bodies(everything(other)) == [body, b"after", body[::-1]]
        found = other.last("S/a/0")
        assert found is not None
        assert found.body == body[::-1]

    def test_returned_bodies_outlive_trim_and_close(
        self, log: Log, log_factory: LogFactory
    ) -> None:
        expected = [bytes([index]) * (index * 40_000 + 1) for index in range(8)]
        log.append([entry(index, body=body) for index, body in enumerate(expected)])
        reader = log_factory.open()
        records = everything(reader)
        log.trim("S/a/0", Position(8))
        log.append([entry(8, body=bytes(SEGMENT)), entry(9, body=bytes(SEGMENT))])
        reader.close()
        log.close()
        assert bodies(records) == expected

    def test_releasing_a_body_does_not_harm_the_next_reader(self, log: Log) -> None:
        log.append([entry(0, body=b"x"), entry(1, body=b"y" * 10_000)])
        for record in everything(log):
            record.body.release()
        assert bodies(everything(log)) == [b"x", b"y" * 10_000]

    # Handles

    def test_a_closed_handle_refuses_everything_and_harms_no_other(
        self, log: Log, other: Log
    ) -> None:
        log.append([entry(0)])
        log.close()
        log.close()
        for call in (
            lambda: log.append([entry(1)]),
            lambda: log.read(["S/a/0"], START, 1),
            lambda: log.last("S/a/0"),
            log.tail,
            lambda: log.wait(START, 0.0),
            lambda: log.trim("S/a/0", Position(1)),
            lambda: log.trimmed("S/a/0"),
            lambda: log.get("k"),
            lambda: log.put("k", b""),
            lambda: log.compare_and_set("k", 0, b""),
            log.keys,
            log.statistics,
        ):
            with pytest.raises(LogClosed):
                call()
        assert positions(everything(other)) == [1]
        assert other.append([entry(1)]) == (2,)
        assert other.get("k") is None

    def test_a_handle_closes_at_the_end_of_its_block(self, log_factory: LogFactory) -> None:
        with log_factory.open() as log:
            log.append([entry(0)])
        with pytest.raises(LogClosed):
            log.tail()

    def test_a_new_handle_finds_everything(self, log: Log, log_factory: LogFactory) -> None:
        fill(log, [("a",), ("a", "b"), ("b",)])
        log.put("k", b"v")
        take_over(log, "v")
        log.trim("a", Position(1))
        log.close()
        again = log_factory.open()
        assert again.tail() == 3
        assert positions(everything(again, "a", "b")) == [2, 3]
        assert again.trimmed("a") == 1
        assert again.keys() == ["instance/v", "k"]
        assert take_over(again, "v") == 2

    def test_many_writers_at_once_leave_no_gap_and_keep_their_own_order(
        self, log: Log, log_factory: LogFactory
    ) -> None:
        writers, rounds = 4, 15
        acknowledged: dict[Position, tuple[str, int]] = {}

        def write(number: int, handle: Log) -> None:
            for index in range(rounds):
                batch = [
                    entry(index * 3 + part, (f"S/a/{part}", "all"), producer=f"w{number}")
                    for part in range(1 + index % 3)
                ]
                for position, item in zip(handle.append(batch), batch, strict=True):
                    acknowledged[position] = (item.producer, item.sequence)

        # Two threads share each handle: a handle serves many threads, a log many handles.
        handles = [log_factory.open() for _ in range(writers // 2)]
        in_threads(
            *[
                lambda number=number: write(number, handles[number // 2])
                for number in range(writers)
            ]
        )
        records = everything(log, "all")
        assert positions(records) == list(range(1, log.tail() + 1))
        assert {record.position: (record.producer, record.sequence) for record in records} == (
            acknowledged
        )
        for number in range(writers):
            own = [record.sequence for record in records if record.producer == f"w{number}"]
            assert own == sorted(set(own))
            assert len(own) == rounds * 2
        substreams = [everything(log, f"S/a/{part}") for part in range(3)]
        assert sum(map(len, substreams)) == len(records)

    def test_the_same_append_from_many_threads_happens_once(
        self, log: Log, log_factory: LogFactory
    ) -> None:
        handles = [log_factory.open() for _ in range(4)]
        results: list[tuple[Position, ...]] = []
        batch = [entry(0), entry(1, body=b"x" * 5_000)]
        in_threads(
            *[lambda handle=handle: results.append(handle.append(batch)) for handle in handles]
        )
        assert results == [(1, 2)] * 4
        assert log.tail() == 2

    def test_statistics_count_what_this_handle_did(self, log: Log, other: Log) -> None:
        take_over(log, "v")
        log.append([entry(0, body=b"12345"), entry(1, body=b"")], Fence("v", 1))
        log.append([entry(2, body=b"x" * 5_000)])
        log.append([entry(2, body=b"x" * 5_000)])  # a retry adds no record
        with pytest.raises(Fenced):
            log.append([entry(3)], Fence("v", 7))
        with pytest.raises(StreamError):
            log.append([])
        other.read(["S/a/0"], START, 2)
        other.read(["S/a/0"], Position(2), 2)
        own, theirs = log.statistics(), other.statistics()
        assert (own.appends, own.records_appended, own.bytes_appended) == (3, 3, 5_005)
        assert (own.records_read, own.bytes_read, own.fenced) == (0, 0, 1)
        assert (theirs.records_read, theirs.bytes_read) == (3, 5_005)
        assert (theirs.appends, theirs.records_appended, theirs.bytes_appended) == (0, 0, 0)
        assert theirs.fenced == 0
        assert theirs.syncs == 0
