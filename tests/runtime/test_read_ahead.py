"""One answer of a source is read ahead: in order, once, and forgotten where it is not wanted."""

from __future__ import annotations

import gc
import threading

import pyarrow as pa
import pytest

from penstock.connectors.contract import Offset, Source, SourceBatch
from penstock.errors import SourceVanished
from penstock.runtime.inputs import SourceInput

ROWS_MAX = 10
SCHEMA = pa.schema([("n", pa.int64())])


class Numbers(Source):
    """Pieces of so many rows; remembers who asked for which."""

    schema = SCHEMA

    def __init__(self, sizes: list[int], reads_ahead: bool = True, fails_at: int = -1) -> None:
        self.reads_ahead = reads_ahead
        self._sizes = sizes
        self._fails_at = fails_at
        self._users = threading.Lock()
        self.asked: list[tuple[Offset, bool]] = []  # and whether the asking thread was another one
        self.is_closed = False

    def initial_offset(self) -> Offset:
        return 0

    def read(self, offset: Offset, rows_max: int) -> SourceBatch:
        assert self._users.acquire(blocking=False), "two threads at once"
        try:
            self.asked.append((offset, threading.current_thread() is not threading.main_thread()))
            if offset == self._fails_at:
                raise SourceVanished("the piece is gone")
            size = min(self._sizes[offset], rows_max)
            batch = pa.record_batch([pa.array([offset] * size, pa.int64())], schema=SCHEMA)
            last = offset + 1 == len(self._sizes)
            return SourceBatch(batch, offset + 1, ended=last, more=not last)
        finally:
            self._users.release()

    def close(self) -> None:
        self.is_closed = True


def threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "penstock-read-ahead"]


def taken(source: Numbers) -> tuple[list[int], SourceInput]:
    """Take in steps of ROWS_MAX, as a vertex does; return the pieces, None left out."""
    found, rows = [], SourceInput(source, None, ["n"])
    for _ in range(20):
        left = ROWS_MAX
        while left > 0 and (delivery := rows.take(left, left < ROWS_MAX)) is not None:
            found += [piece.batch["n"][0].as_py() for piece in delivery.batches]
            left -= delivery.rows
    return found, rows


@pytest.mark.parametrize("reads_ahead", [False, True])
def test_every_piece_comes_once_and_in_order(reads_ahead: bool) -> None:
    sizes = [10, 4, 4, 4, 10, 1, 10]
    source = Numbers(sizes, reads_ahead)
    found, rows = taken(source)
    others = [other for _, other in source.asked]
    rows.close()
    assert source.is_closed
    assert not threads()
    if reads_ahead:
        assert found == list(range(7))  # pieces are not cut to what a step has left
        assert source.asked == [(n, n > 0) for n in range(7)]
    else:
        assert not any(others)


def test_an_error_comes_where_its_rows_would_have_come() -> None:
    source = Numbers([3] * 5, fails_at=2)
    rows = SourceInput(source, None, ["n"])
    assert [rows.take(ROWS_MAX).rows for _ in range(2)] == [3, 3]
    with pytest.raises(SourceVanished):
        rows.take(ROWS_MAX)
    assert rows.position()["offset"] == 2
    rows.close()


def test_what_is_too_much_for_now_waits() -> None:
    source = Numbers([6, 6])
    rows = SourceInput(source, None, ["n"])
    assert rows.take(ROWS_MAX).rows == 6
    assert rows.take(4, is_rest=True) is None
    assert not rows.is_drained()
    assert not rows.has_paused()
    assert rows.position()["offset"] == 1
    (word,) = rows.take(ROWS_MAX).words
    assert word.said.ended
    assert [offset for offset, _ in source.asked] == [0, 1]
    rows.close()


def test_a_step_that_is_shorter_than_the_last_gets_what_was_read_ahead_for_it() -> None:
    rows = SourceInput(Numbers([6, 6, 6]), None, ["n"])
    assert rows.take(ROWS_MAX).rows == 6
    assert rows.take(4, is_rest=True) is None
    assert rows.take(2).rows == 6  # or it would never come
    assert rows.take(2).rows == 2
    rows.close()


def test_a_close_forgets_what_was_read_ahead() -> None:
    source = Numbers([3] * 3)
    rows = SourceInput(source, None, ["n"])
    rows.take(ROWS_MAX)
    assert len(threads()) == 1
    rows.close()
    rows.close()
    assert rows.position()["offset"] == 1
    assert not threads()


def test_the_thread_ends_with_whoever_forgot_to_close() -> None:
    rows = SourceInput(Numbers([3] * 3), None, ["n"])
    rows.take(ROWS_MAX)
    del rows
    gc.collect()
    assert not threads()
