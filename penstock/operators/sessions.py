"""Sessions: rows of a key that follow each other within their gaps, grouped as they come in.

The newest session of a key has the row of its key and the pane `NEWEST`, each older one the pane of
its begin; a row names the begin of the session before its own. Sessions of a key lie apart, so from
the newest one back they end earlier and earlier: whoever looks for those that new rows touch stops
at the first that ends too early. What the watermark has ended is gone, and found as nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.arrays import Mask, Numbers, values_of
from penstock.errors import StateOverflow, StateTooLarge
from penstock.expressions.types import arrow_type
from penstock.kernels.block import PANE_NONE, Partials
from penstock.kernels.columns import plain
from penstock.kernels.hashing import hash_columns
from penstock.operators.aggregate import Grouped
from penstock.operators.contract import Batches, Prepared, Tools
from penstock.operators.front import Fusion
from penstock.operators.groups import SESSION_COLUMNS, key_columns, partials_batch
from penstock.operators.row_groups import GroupRows
from penstock.operators.specs import BEGIN_COLUMN, PANE_COLUMN, AggregateSpec, SessionSpec
from penstock.state.columns import MergeRule, StateSchema, ValueColumn
from penstock.state.keyed import KeyedState

NEWEST = PANE_NONE
_NONE = -(1 << 63)  # no session before


class Sessions(Grouped):
    """Groups by keys and sessions: each is over when the watermark has passed its end."""

    def __init__(
        self, name: str, spec: AggregateSpec, fusions: Sequence[Fusion], tools: Tools
    ) -> None:
        super().__init__(name, spec, fusions, tools)
        first = ValueColumn("first", pa.int64(), MergeRule.FIRST)
        self._numbering = KeyedState("keys", StateSchema(key_columns(spec), (first,)))

    # --- input ------------------------------------------------------------------------------------

    def _closed_pane(self, watermark_us: int) -> int:
        return watermark_us  # the pane of a partial is the end of its rows

    def process(self, port: int, prepared: Prepared) -> Batches:
        batch = rows = prepared.rows
        if isinstance(rows, GroupRows):
            batch = rows.batch(self.spec.partial)
            self._place += rows.places
        elif isinstance(rows, Partials):
            batch = partials_batch(rows, self.spec.partial)
        if batch.num_rows:
            self._join(batch)
            if isinstance(rows, GroupRows):
                self._collect(rows)
        return ()

    def _collect(self, rows: GroupRows) -> None:
        """Keep what rows bring beside their accumulators under the begin of each."""
        *keys, begin = rows.keys
        begins: Numbers = values_of(plain(begin)).astype(np.int64)
        self._items.merge(keys, begins, hash_columns(keys, begins.size), rows.items)

    def _join(self, batch: pa.RecordBatch) -> None:
        """Put rows into the sessions that they touch, of which they may make one."""
        keys = list(batch.columns[: len(self.spec.keys)])
        begins: Numbers = values_of(plain(batch.column(BEGIN_COLUMN))).astype(np.int64)
        ends: Numbers = batch.column(PANE_COLUMN).to_numpy()
        owners, firsts = self._numbered(keys, batch.num_rows)
        keys = [key.take(pa.array(firsts)) for key in keys]
        earliest = np.full(firsts.size, np.iinfo(np.int64).max)
        np.minimum.at(earliest, owners, begins)
        known = self._touched(keys, earliest)
        # After the keys come the pane and the number of rows.
        values = list(map(plain, batch.columns[len(self.spec.partial.grouped_by) + 2 :]))
        self._write(keys, _Pieces.joined(known, owners, begins, ends, values), known.last_before)

    def _numbered(self, keys: Sequence[pa.Array], count: int) -> tuple[Numbers, Numbers]:
        """The number of each row's key among those of a batch, and the first row of each key."""
        if not keys:
            return np.zeros(count, np.int64), np.zeros(1, np.int64)
        self._numbering.clear()
        self._numbering.add(keys, None, [pa.array(np.arange(count))])
        (first,), _ = self._numbering.get(keys)
        firsts, owners = np.unique(first.to_numpy(), return_inverse=True)
        return owners, firsts

    def _touched(self, keys: Sequence[pa.Array], earliest: Numbers) -> _Known:
        """The sessions of keys that rows from these times on may touch, and each key's newest."""
        known = _Known(np.full(earliest.size, _NONE))
        owners = np.arange(earliest.size)
        panes = np.full(earliest.size, NEWEST)
        while owners.size:
            columns, found = self.state.get([key.take(pa.array(owners)) for key in keys], panes)
            *_, begin, end, before = columns
            ends = _numbers(end)
            # The newest one is wanted in any case: it may have to make room for a newer one.
            wanted = found & ((panes == NEWEST) | (ends >= earliest[owners]))
            befores = _numbers(before)
            known.last_before[owners[wanted]] = befores[wanted]
            chosen = pa.array(wanted)
            known.add(
                owners[wanted], panes[wanted], _numbers(begin)[wanted], ends[wanted],
                befores[wanted], [column.filter(chosen) for column in columns[:-3]],
            )  # fmt: skip
            further = wanted & (befores != _NONE) & (ends >= earliest[owners])
            owners, panes = owners[further], befores[further]
        return known

    def _write(self, keys: Sequence[pa.Array], pieces: _Pieces, last_before: Numbers) -> None:
        sessions = pieces.sessions(last_before)
        stays = pieces.stays(sessions)
        removed = pa.array(np.flatnonzero((pieces.panes != _NEW) & ~stays))
        moved = pa.array(np.flatnonzero(~stays))
        hashes = hash_columns(keys, last_before.size)
        all_keys = [key.take(pa.array(pieces.owners)) for key in keys]
        gone = [key.take(removed) for key in all_keys]
        gone_panes = pieces.panes[removed.to_numpy()]
        if gone_panes.size:
            self.state.delete(gone, gone_panes)
        befores = sessions.befores[sessions.of_piece]
        columns = [
            *pieces.values,
            pa.array(pieces.begins),
            pa.array(pieces.ends),
            pa.array(befores, mask=befores == _NONE),
        ]
        rows = moved.to_numpy()
        try:
            self.state.merge(
                [key.take(moved) for key in all_keys],
                sessions.panes[sessions.of_piece][rows],
                [column.take(moved) for column in columns],
                hashes[pieces.owners][rows],
            )
        except (StateOverflow, StateTooLarge):
            self._put_back(gone, gone_panes, pieces, removed, hashes)
            raise

    def _put_back(
        self,
        keys: Sequence[pa.Array],
        panes: Numbers,
        pieces: _Pieces,
        removed: pa.Array,
        hashes: NDArray[np.uint32],
    ) -> None:
        """Nothing has happened."""
        rows = removed.to_numpy()
        befores = pieces.befores[rows]
        columns = [column.take(removed) for column in pieces.values]
        columns += [pa.array(pieces.begins[rows]), pa.array(pieces.ends[rows])]
        columns.append(pa.array(befores, mask=befores == _NONE))
        self.state.put(keys, panes, columns, hashes[pieces.owners][rows])

    # --- output -----------------------------------------------------------------------------------

    def _advance(self, before_us: int | None, watermark_us: int) -> Batches:
        """Emit the sessions that are over, and forget them."""
        if not self.spec.forgets:
            return ()
        ended = self.state.rows_upto("end", watermark_us)
        batches = self._emitted(ended)
        if batches:
            self._items.forget(ended)
            self.state.delete_upto("end", watermark_us)
        return batches

    def on_commit(self) -> Batches:
        if self.spec.mode != "complete" or not self.state.has_changes:
            return ()
        return self._emitted(self.state.scan())

    def _window_column(self, rows: pa.RecordBatch) -> pa.Array:
        assert isinstance(self.spec.window, SessionSpec)
        return session_column(self.spec.window, rows)


def session_column(session: SessionSpec, rows: pa.RecordBatch) -> pa.Array:
    """The sessions of rows of the state, as structs of start and end."""
    fields = list(arrow_type(session.type))
    begin, end, _ = SESSION_COLUMNS
    return pa.StructArray.from_arrays(
        [rows.column(begin.name).cast(fields[0].type), rows.column(end.name).cast(fields[1].type)],
        fields=fields,
    )


def _numbers(column: pa.Array) -> Numbers:
    numbers: Numbers = column.fill_null(_NONE).to_numpy()
    return numbers


# --- pieces of sessions ---------------------------------------------------------------------------

_NEW = PANE_NONE + 1  # the pane of what has no row yet; no session begins so early


class _Known:
    """Sessions that the state has, round by round from the newest ones back."""

    def __init__(self, last_before: Numbers) -> None:
        self.last_before = last_before  # by key: the begin of the first session that is not here
        self.numbers: list[tuple[Numbers, ...]] = []  # owners, panes, begins, ends, befores
        self.values: list[list[pa.Array]] = []

    def add(
        self,
        owners: Numbers,
        panes: Numbers,
        begins: Numbers,
        ends: Numbers,
        befores: Numbers,
        values: list[pa.Array],
    ) -> None:
        if owners.size:
            self.numbers.append((owners, panes, begins, ends, befores))
            self.values.append(values)


@dataclass(frozen=True, slots=True)
class _Sessions:
    """Of all keys in turn, from the oldest to the newest."""

    of_piece: Numbers  # which one each piece belongs to
    firsts: NDArray[np.bool_]  # whether a piece is the first of its own
    panes: Numbers
    befores: Numbers


def beginnings(owners: Numbers, begins: Numbers, ends: Numbers) -> tuple[Mask, Mask]:
    """Of pieces by owner, then begin: which are the first of an owner, and which of a session."""
    count = owners.size
    of_owner = np.ones(count, np.bool_)
    of_owner[1:] = owners[1:] != owners[:-1]
    # The latest end so far, of each key by itself: ends as ranks, which leave room for the key.
    by_end = np.argsort(ends, kind="stable")
    ranks = np.empty(count, np.int64)
    ranks[by_end] = np.arange(count)
    numbers = np.cumsum(of_owner) - 1
    latest = np.maximum.accumulate(numbers * count + ranks) % max(count, 1)
    of_session = of_owner.copy()
    of_session[1:] |= begins[1:] > ends[by_end][latest][:-1]
    return of_owner, of_session


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Sessions of the state and new rows, by key, then begin: what belongs together is adjacent."""

    owners: Numbers
    panes: Numbers
    begins: Numbers
    ends: Numbers
    befores: Numbers
    values: list[pa.Array]

    @classmethod
    def joined(
        cls,
        known: _Known,
        owners: Numbers,
        begins: Numbers,
        ends: Numbers,
        values: Sequence[pa.Array],
    ) -> _Pieces:
        none = np.full(owners.size, _NONE)
        fresh = (owners, np.full(owners.size, _NEW), begins, ends, none)
        together = [np.concatenate(part) for part in zip(*known.numbers, fresh, strict=True)]
        columns = [pa.concat_arrays(part) for part in zip(*known.values, values, strict=True)]
        order = np.lexsort((together[2], together[0]))
        taken = pa.array(order)
        owners, panes, begins, ends, befores = (part[order] for part in together)
        return cls(owners, panes, begins, ends, befores, [each.take(taken) for each in columns])

    def sessions(self, last_before: Numbers) -> _Sessions:
        """Which pieces are one session, where each has its row, and which one it follows."""
        new_owner, firsts = beginnings(self.owners, self.begins, self.ends)
        of_piece = np.cumsum(firsts) - 1
        owners, begins = self.owners[firsts], self.begins[firsts]
        newest = np.ones(owners.size, np.bool_)
        newest[:-1] = owners[1:] != owners[:-1]
        befores = np.empty(owners.size, np.int64)
        befores[1:] = begins[:-1]
        oldest = new_owner[firsts]
        befores[oldest] = last_before[owners[oldest]]
        return _Sessions(of_piece, firsts, np.where(newest, NEWEST, begins), befores)

    def stays(self, sessions: _Sessions) -> NDArray[np.bool_]:
        """Which pieces are rows that need not move: they begin their session and have its place."""
        same_pane = self.panes == sessions.panes[sessions.of_piece]
        same_before = self.befores == sessions.befores[sessions.of_piece]
        kept: NDArray[np.bool_] = sessions.firsts & same_pane & same_before & (self.panes != _NEW)
        return kept
