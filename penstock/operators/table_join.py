"""Joins with tables: a stream meets their rows of that moment, and two of them follow each other.

The rows of a table come and go. Those of a stream are not kept: each meets what the table holds
when it comes, and changes of the table say nothing of rows that came before. Of two tables the
result is a table, too: when a row comes or goes, so do its pairs, and rows that match nothing any
more, or something at last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.arrays import Mask, Numbers
from penstock.errors import RowError
from penstock.kernels.columns import plain_rows
from penstock.operators.contract import Batches, Prepared, Tools
from penstock.operators.front import Fusion
from penstock.operators.join import TwoSided
from penstock.operators.shown import runs_of, weighed, weights_of
from penstock.operators.specs import LEFT, JoinSpec
from penstock.operators.table import found_again, taken_back
from penstock.state.row_store import Keys

Weighted = tuple[pa.RecordBatch, int]

_NO_ROWS: Numbers = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class _Met:
    """Rows of one side, and the pairs that they make with rows of the table on the other."""

    rows: pa.RecordBatch
    ats: Numbers
    others: Numbers

    def part(self, begin: int, end: int) -> _Met:
        """Some rows in a row, if pairs are in the order of theirs."""
        first, behind = np.searchsorted(self.ats, (begin, end))
        rows = self.rows.slice(begin, end - begin)
        return _Met(rows, self.ats[first:behind] - begin, self.others[first:behind])

    def only(self, chosen: Mask) -> _Met:
        kept, places = chosen[self.ats], np.cumsum(chosen) - 1
        rows = self.rows.filter(pa.array(chosen))
        return _Met(rows, places[self.ats[kept]], self.others[kept])


class TableJoin(TwoSided):
    """Keeps the rows that each table has."""

    def __init__(self, name: str, spec: JoinSpec, fusions: Sequence[Fusion], tools: Tools) -> None:
        super().__init__(name, spec, fusions, tools)
        both = zip(self._stores, spec.tables, strict=True)
        self.states = {store.name: store for store, is_table in both if is_table}
        # Only between tables: rows of one that meets a stream are looked at when that one's come.
        has_condition = spec.match.condition is not None or bool(spec.decided)
        self._may_fail = all(spec.tables) and has_condition

    # --- rows -------------------------------------------------------------------------------------

    def prepare(
        self, port: int, batch: pa.RecordBatch, watermark_us: int | None, collect_bad: bool
    ) -> Prepared:
        rows = plain_rows(batch, self._schemas[port])
        bad: dict[int, RowError] = {}
        if not self._spec.tables[port]:
            return Prepared(self._met(port, rows, None, collect_bad, bad), bad=bad)
        weights = weights_of(batch)
        if not all(self._spec.tables):
            return Prepared((_Met(rows, _NO_ROWS, _NO_ROWS), weights))
        return Prepared((self._met(port, rows, weights, collect_bad, bad), weights), bad=bad)

    def _met(
        self,
        port: int,
        rows: pa.RecordBatch,
        weights: Numbers | None,
        collect_bad: bool,
        bad: dict[int, RowError],
    ) -> _Met:
        """Rows and their pairs. One that goes fails only where it failed when it came."""
        store, keys = self._stores[1 - port], self._pairs.keys(port, rows)
        comes = np.ones(rows.num_rows, np.bool_) if weights is None else weights > 0
        coming, going = (Keys(keys.words, keys.linked & some) for some in (comes, ~comes))
        found = list(self._pairs.find(port, rows, coming, store, collect_bad, bad))
        if not comes.all():
            found += self._pairs.find(port, rows, going, store, True, {})
        ats = np.concatenate([_NO_ROWS, *(ats for ats, _ in found)])
        others = np.concatenate([_NO_ROWS, *(others for _, others in found)])
        order = np.argsort(ats, kind="stable")
        return _Met(rows, ats[order], others[order])

    def process(self, port: int, prepared: Prepared) -> Batches:
        if isinstance(prepared.rows, _Met):
            return tuple(self._meeting(port, prepared.rows))
        met, weights = prepared.rows
        emitted: list[Weighted] = []
        for begin, end, weight in runs_of(weights):
            emitted += self._change(port, met.part(begin, end), weight)
        found = [(batch, weight) for batch, weight in emitted if batch.num_rows]
        if self._spec.changes:
            return tuple(weighed(batch, weight) for batch, weight in found)
        return tuple(batch for batch, weight in found if weight > 0)

    def _meeting(self, port: int, met: _Met) -> Iterator[pa.RecordBatch]:
        """What rows of a stream give with what the table holds."""
        matched = np.zeros(met.rows.num_rows, np.bool_)
        matched[met.ats] = True
        if not self._spec.shows_right:
            chosen = met.rows.filter(pa.array(matched if self._spec.how == "semi" else ~matched))
            if chosen.num_rows:
                yield self._made(chosen.columns)
            return
        if met.ats.size:
            yield self._paired(port, met.rows, met.ats, met.others)
        if self._spec.waits_for(port) and not matched.all():
            yield self._alone(port, met.rows.filter(pa.array(~matched)))

    def _following(self, port: int, run: _Met, weight: int) -> Iterator[Weighted]:
        """What comes and goes with rows of one of two tables."""
        other = 1 - port
        rows, ats, others = run.rows, run.ats, run.others
        matched = np.zeros(rows.num_rows, np.bool_)
        matched[ats] = True
        turned = self._turned(port, others, weight)
        if self._spec.shows_right:
            yield self._paired(port, rows, ats, others), weight
            if self._spec.waits_for(port):
                yield self._alone(port, rows.filter(pa.array(~matched))), weight
            if self._spec.waits_for(other):
                yield self._alone(other, turned), -weight
            return
        is_semi = self._spec.how == "semi"
        if port == LEFT:
            chosen = rows.filter(pa.array(matched if is_semi else ~matched))
            yield self._made(chosen.columns), weight
        else:
            yield self._made(turned.columns), weight if is_semi else -weight

    def _turned(self, port: int, others: Numbers, weight: int) -> pa.RecordBatch:
        """Of the rows that others match those that matched nothing before, or match nothing now."""
        other = 1 - port
        met, counts = np.unique(others, return_counts=True)
        rows = self._stores[other].take(met)
        matches = np.zeros(met.size, np.int64)
        for ats, _ in self._pairs.find(
            other, rows, self._pairs.keys(other, rows), self._stores[port], False, {}
        ):
            matches += np.bincount(ats, minlength=met.size)
        turned = matches == (0 if weight > 0 else counts)
        return rows.filter(pa.array(turned))

    # --- tables -----------------------------------------------------------------------------------

    def _change(self, port: int, run: _Met, weight: int) -> list[Weighted]:
        """Rows of a table come, or go; those that can match nothing are not kept."""
        store = self._stores[port]
        gone = _NO_ROWS
        if weight < 0:
            run, gone = self._going(port, run)
        emitted = list(self._following(port, run, weight)) if all(self._spec.tables) else []
        if weight > 0:
            _, rows, keys = self._linked(port, run.rows)
            store.insert(rows, keys)
        elif gone.size:
            store.delete(gone)
        return emitted

    def _going(self, port: int, run: _Met) -> tuple[_Met, Numbers]:
        """Of rows that go those that had come, and where they are kept; others failed then."""
        store = self._stores[port]
        linked, rows, keys = self._linked(port, run.rows)
        if not self._may_fail:
            return run, taken_back(store, rows, keys)
        ats, gone = found_again(store, rows, keys)
        if ats.size == rows.num_rows:
            return run, gone
        came = ~linked
        came[np.flatnonzero(linked)[ats]] = True
        return run.only(came), gone

    def _linked(self, port: int, rows: pa.RecordBatch) -> tuple[Mask, pa.RecordBatch, Keys]:
        """Which rows can match something, and these with their keys."""
        keys = self._pairs.keys(port, rows)
        linked = keys.linked
        if linked.all():
            return linked, rows, keys
        kept = Keys(keys.words[linked], linked[linked])
        return linked, rows.filter(pa.array(linked)), kept
