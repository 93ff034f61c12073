"""Broken joins: their states, what leaves them, and by whose time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from penstock.operators.contract import Batches
from penstock.operators.join import Join
from penstock.sim.mutants.mutant import Mutant
from penstock.sim.scenario import Scenario
from penstock.sim.swaps import swapped
from penstock.state.row_store import RowStore


def _forget_evictions() -> AbstractContextManager[None]:
    evict = RowStore.evict

    def silent(self: RowStore, upto: int) -> int:
        count = evict(self, upto)
        self._evicted_upto = None
        return count

    return swapped((RowStore, "evict", silent))


def _forget_marks() -> AbstractContextManager[None]:
    mark = RowStore.mark

    def silent(self: RowStore, rows: Any) -> None:
        mark(self, rows)
        self._marks.clear()

    return swapped((RowStore, "mark", silent))


def _drop_rows_alone() -> AbstractContextManager[None]:
    on_watermark = Join.on_watermark

    def silent(self: Join, watermark_us: int, of_ports_us: Sequence[int]) -> Batches:
        on_watermark(self, watermark_us, of_ports_us)
        return ()

    return swapped((Join, "on_watermark", silent))


def _emit_marked_rows() -> AbstractContextManager[None]:
    return swapped((RowStore, "is_marked", lambda self, rows: rows < 0))


def _evict_by_the_furthest() -> AbstractContextManager[None]:
    on_watermark = Join.on_watermark

    def hasty(self: Join, watermark_us: int, of_ports_us: Sequence[int]) -> Batches:
        return on_watermark(self, max(of_ports_us), of_ports_us)

    return swapped((Join, "on_watermark", hasty))


def _reuse_ids() -> AbstractContextManager[None]:
    """Rows that come after a recovery get the numbers of rows that are there."""
    put = RowStore._put

    def shifted(self: RowStore, described: Any, only: Any) -> None:
        put(self, described, only)
        if self._used:
            self._ids[self._used - 1] -= 1

    return swapped((RowStore, "_put", shifted))


def _joins(scenario: Scenario) -> bool:
    return scenario.shape.answer == "joined"


JOINS: tuple[Mutant, ...] = (
    Mutant("evictions_not_said", "a row store forgets rows and says so in no change", 21,
           _forget_evictions, _joins),
    Mutant("marks_not_said", "that a row has matched is in no change", 21, _forget_marks, _joins),
    Mutant("rows_alone_dropped", "an outer join forgets rows that matched nothing", 21,
           _drop_rows_alone, _joins),
    Mutant("matched_rows_alone", "an outer join emits rows that have matched, too", 21,
           _emit_marked_rows, _joins),
    Mutant("join_by_the_furthest", "a join goes by the port that is furthest", 21,
           _evict_by_the_furthest, _joins),
    Mutant("ids_again", "after a recovery rows get numbers that are taken", 21,
           _reuse_ids, _joins),
)  # fmt: skip
