"""A StreamWriter whose writes fail: a repeated one publishes its rows once, never half of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from penstock.errors import (
    AlreadyWritten,
    DiskFull,
    Fenced,
    InvalidArgument,
    LogBusy,
    LogError,
    OutcomeUnknown,
    PUnitError,
    RecordTooLarge,
)
from penstock.expressions.types import BIGINT, STRING, Field
from penstock.log.contract import UNKNOWN_RETRIES
from penstock.log.record import Entry, Fence, Position, Record, Versioned
from penstock.runtime import outputs
from penstock.runtime.outputs import ROW_BYTES_MAX
from penstock.runtime.streams import StreamReader, StreamWriter, create_stream
from penstock.runtime.trimming import TRIM_COMMITS
from penstock.testing.memory_log import MemoryLog

SCHEMA = (Field("n", BIGINT, False), Field("text", STRING))
T = TypeVar("T")
BEGINNING = [  # the calls of a retry before it appends, and whether they change anything
    ("get", LogBusy, False),
    ("compare_and_set", LogBusy, False),
    ("compare_and_set", OutcomeUnknown, False),
    ("compare_and_set", OutcomeUnknown, True),
    ("last", LogBusy, False),
]


class FailingLog(MemoryLog):
    """One kind of call fails from one call on, for some calls: `with_effect` says if in vain."""

    def __init__(self) -> None:
        super().__init__()
        self.call = ""
        self.error: type[LogError] = LogError
        self.calls_until_error = self.errors_left = 0
        self.with_effect = False

    def fail(
        self,
        error: type[LogError],
        call: str = "append",
        *,
        after: int = 0,
        times: int = 1,
        with_effect: bool = False,
    ) -> None:
        self.call, self.error = call, error
        self.calls_until_error, self.errors_left = after, times
        self.with_effect = with_effect

    def append(self, entries: Sequence[Entry], fence: Fence | None = None) -> tuple[Position, ...]:
        return self._perhaps("append", lambda: MemoryLog.append(self, entries, fence))

    def last(self, tag: str) -> Record | None:
        return self._perhaps("last", lambda: MemoryLog.last(self, tag))

    def trim(self, tag: str, upto: Position, fence: Fence | None = None) -> None:
        return self._perhaps("trim", lambda: MemoryLog.trim(self, tag, upto, fence))

    def get(self, key: str) -> Versioned | None:
        return self._perhaps("get", lambda: MemoryLog.get(self, key))

    def compare_and_set(self, key: str, version: int, value: bytes) -> bool:
        return self._perhaps(
            "compare_and_set", lambda: MemoryLog.compare_and_set(self, key, version, value)
        )

    def _perhaps(self, call: str, do: Callable[[], T]) -> T:
        if call != self.call or not self.errors_left:
            return do()
        if self.calls_until_error:
            self.calls_until_error -= 1
            return do()
        self.errors_left -= 1
        if self.with_effect:
            do()
        raise self.error("the log has failed for the test")


@pytest.fixture
def log() -> FailingLog:
    log = FailingLog()
    create_stream(log, "in", SCHEMA)
    return log


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row is a unit of its own, and two are an append; the last one has the marker too."""
    monkeypatch.setattr(outputs, "UNIT_BYTES_MAX", 1)
    monkeypatch.setattr(outputs, "APPEND_ENTRIES_MAX", 3)


def rows(*numbers: int, text: str = "some text") -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64()), "text": [text] * len(numbers)})


def published(log: MemoryLog) -> list[int]:
    numbers: list[int] = StreamReader(log, "in").read_all().column("n").to_pylist()
    return numbers


@pytest.mark.parametrize("error", [DiskFull, LogBusy])
def test_the_retry_that_the_error_asks_for_publishes_once(
    log: FailingLog, error: type[LogError]
) -> None:
    writer = StreamWriter(log, "in", "shop")
    log.fail(error)
    with pytest.raises(error):
        writer.write(rows(1, 2, 3), offset=3)
    assert (writer.offset, published(log)) == (None, [])
    writer.write(rows(1, 2, 3), offset=3)
    assert (writer.offset, published(log)) == (3, [1, 2, 3])


@pytest.mark.parametrize("after", range(5))
def test_what_went_out_early_is_not_committed_by_the_next_write(
    log: FailingLog, small_units: None, after: int
) -> None:
    writer = StreamWriter(log, "in", "shop")
    log.fail(DiskFull, after=after)
    with pytest.raises(DiskFull):
        writer.write(rows(*range(10)), offset=10)
    assert log.tail() == 2 * after
    writer.write(rows(100), offset=100)
    assert (writer.offset, published(log)) == (100, [100])
    writer.write(rows(*range(10)), offset=10)
    assert published(log) == [100, *range(10)]


@pytest.mark.parametrize("with_effect", [False, True])
@pytest.mark.parametrize("after", range(7))
def test_an_outcome_that_stays_unknown_is_found_out_by_the_next_write(
    log: FailingLog, small_units: None, after: int, with_effect: bool
) -> None:
    """Blindly repeating never doubles; whoever reopens goes on after `offset`."""
    writer = StreamWriter(log, "in", "shop")
    log.fail(OutcomeUnknown, after=after, times=UNKNOWN_RETRIES + 1, with_effect=with_effect)
    expected: list[int] = []
    for first, last in pairwise(range(0, 25, 8)):
        for _ in range(5):
            try:
                writer.write(rows(*range(first, last)), offset=last)
                break
            except OutcomeUnknown:
                continue
            except AlreadyWritten:
                with pytest.raises(AlreadyWritten, match="do not repeat it"):
                    writer.write(rows(*range(first, last)), offset=last)
                writer = StreamWriter(log, "in", "shop")
                assert writer.offset == last
                break
        expected += range(first, last)
        assert (writer.offset, published(log)) == (last, expected)
    assert not log.errors_left


def test_a_writer_that_failed_does_not_push_out_the_one_that_followed_it(log: FailingLog) -> None:
    writer = StreamWriter(log, "in", "shop")
    log.fail(DiskFull)
    with pytest.raises(DiskFull):
        writer.write(rows(1))
    heir = StreamWriter(log, "in", "shop")
    for _ in range(2):
        with pytest.raises(Fenced):
            writer.write(rows(1))
    heir.write(rows(2))
    assert published(log) == [2]


@pytest.mark.parametrize(("call", "error", "with_effect"), BEGINNING)
@pytest.mark.parametrize("committed", [False, True])
def test_a_retry_that_fails_while_it_begins_again_may_be_repeated_too(
    log: FailingLog, call: str, error: type[LogError], with_effect: bool, committed: bool
) -> None:
    writer = StreamWriter(log, "in", "shop")
    log.fail(OutcomeUnknown, times=UNKNOWN_RETRIES + 1, with_effect=committed)
    with pytest.raises(OutcomeUnknown):
        writer.write(rows(1), offset=1)
    log.fail(error, call, times=2, with_effect=with_effect)
    failed = 0
    while True:
        try:
            writer.write(rows(1), offset=1)
            assert not committed
            break
        except error:
            failed += 1
        except AlreadyWritten:
            assert committed
            log.errors_left = 0
            writer = StreamWriter(log, "in", "shop")
            break
    assert failed == (1 if with_effect else 2)  # what is registered is not registered again
    log.errors_left = 0
    assert (writer.offset, published(log)) == (1, [1])
    writer.write(rows(2), offset=2)
    assert (writer.offset, published(log)) == (2, [1, 2])


@pytest.mark.parametrize(("call", "error", "with_effect"), BEGINNING)
def test_a_retry_that_failed_takes_nothing_from_the_one_that_followed(
    log: FailingLog, call: str, error: type[LogError], with_effect: bool
) -> None:
    """Also if its number was never registered, and the follower's is the next one there is."""
    writer = StreamWriter(log, "in", "shop")
    log.fail(DiskFull)
    with pytest.raises(DiskFull):
        writer.write(rows(1))
    log.fail(error, call, with_effect=with_effect)
    with pytest.raises(error):
        writer.write(rows(1))
    heir = StreamWriter(log, "in", "shop")
    with pytest.raises(Fenced):
        writer.write(rows(1))
    heir.write(rows(2))
    assert published(log) == [2]


def test_a_write_is_done_though_old_markers_could_not_be_let_go(log: FailingLog) -> None:
    writer = StreamWriter(log, "in", "shop")
    log.fail(LogBusy, "trim")
    for number in range(TRIM_COMMITS):
        writer.write(rows(number))
    assert not log.errors_left
    assert published(log) == list(range(TRIM_COMMITS))


def test_half_a_batch_that_cannot_be_encoded_is_never_published(
    log: FailingLog, small_units: None
) -> None:
    writer = StreamWriter(log, "in", "shop")
    good = pa.array(["ok"] * 8)
    offsets = pa.py_buffer(b"".join(at.to_bytes(4, "little") for at in range(9)))
    not_text = pa.Array.from_buffers(pa.string(), 8, [None, offsets, pa.py_buffer(b"\xff" * 8)])
    text = pa.concat_arrays([good, not_text])
    with pytest.raises(PUnitError, match="UTF8"):
        writer.write(pa.record_batch({"n": list(range(16)), "text": text}), offset=16)
    assert log.tail() > 0  # some of it went out before
    writer.write(rows(100), offset=100)
    assert (writer.offset, published(log)) == (100, [100])


@pytest.mark.parametrize("offset", [object(), float("nan"), {1, 2}, b"bytes"])
def test_an_offset_that_cannot_be_kept_is_refused_before_anything_is_written(
    log: FailingLog, offset: Any
) -> None:
    writer = StreamWriter(log, "in", "shop")
    with pytest.raises(InvalidArgument, match="does not fit JSON"):
        writer.write(rows(1), offset=offset)
    assert log.tail() == 0
    writer.write(rows(1), offset=[1])
    assert (writer.offset, published(log)) == ([1], [1])


def test_a_row_beyond_the_bound_is_refused_with_its_size_and_one_within_is_written(
    log: FailingLog,
) -> None:
    writer = StreamWriter(log, "in", "shop")
    with pytest.raises(RecordTooLarge, match=f"bound of {ROW_BYTES_MAX:,}") as caught:
        writer.write(rows(1, text="z" * (70 << 20)))
    assert 70 << 20 <= caught.value.details["bytes"] < 71 << 20
    assert log.tail() == 0
    writer.write(rows(2, text="z" * (63 << 20)))
    assert published(log) == [2]


def test_large_rows_next_to_each_other_are_cut_apart(log: FailingLog) -> None:
    """The average of a batch says nothing about its largest rows."""
    large = ["x" * (20 << 20)] * 4
    batch = pa.record_batch({"n": list(range(1_004)), "text": [""] * 1_000 + large})
    StreamWriter(log, "in", "shop").write(batch)
    assert published(log) == list(range(1_004))
