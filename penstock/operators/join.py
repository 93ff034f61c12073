"""Joins of two streams: each side's rows wait in a row store for those of the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import Mask, Numbers, true_rows, validity_of, values_of
from penstock.errors import RowError
from penstock.expressions.evaluate import evaluate
from penstock.expressions.tree import Expression, columns_of
from penstock.expressions.types import BIGINT, Field, Schema, arrow_schema
from penstock.kernels.block import Block, BlockSpec
from penstock.kernels.columns import plain, plain_rows
from penstock.kernels.hashing import column_words, hash_columns
from penstock.loops import Hashes
from penstock.operators.contract import ROWS_AT_ONCE_MAX, Batches, Operator, Prepared, Tools
from penstock.operators.front import Fusion, failures
from penstock.operators.spark_step import SparkStep
from penstock.operators.specs import (
    LEFT,
    RIGHT,
    JoinMatch,
    JoinSide,
    JoinSpec,
    SparkColumn,
    SparkSpec,
    column_of,
    inputs_of,
    without_weight,
)
from penstock.operators.timed import TimedOperator
from penstock.state.row_store import NEVER, Keys, RowKind, RowStore

_PAIR = "__pair"
_PAIR_FIELD = Field(_PAIR, BIGINT, False)
_EXACT_DIGITS_MAX = 18  # of decimals: of longer ones a word is only the lower half

_NO_ROWS: Numbers = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class _Arrived:
    """Rows of one side that are not late, and the pairs that they make with rows of the other."""

    rows: pa.RecordBatch
    keys: Keys
    until: Numbers | None  # when each can match nothing more; None: never
    ats: Numbers  # of each pair the place in `rows`,
    others: Numbers  # and the row in the other side's store


class TwoSided(Operator):
    """Has a store for the rows of each side, and makes rows of those that belong together."""

    def __init__(self, name: str, spec: JoinSpec, fusions: Sequence[Fusion], tools: Tools) -> None:
        self._spec = spec
        schemas = [without_weight(fusion.schema) for fusion in fusions]
        self._schemas = [arrow_schema(schema) for schema in schemas]
        self._output = arrow_schema(without_weight(spec.output_schema(*schemas)))
        self._pairs = Pairs(spec.match, schemas, tools, spec.decided)
        self._stores = [
            RowStore(
                f"{name}_{side}",
                RowKind(self._schemas[number], *self._pairs.readers(number)),
                bytes_max=tools.state_bytes_max,
            )
            for number, side in ((LEFT, "left"), (RIGHT, "right"))
        ]

    def blocks(self) -> Sequence[Block]:
        return self._pairs.blocks

    def _paired(
        self, port: int, rows: pa.RecordBatch, ats: Numbers, others: Numbers
    ) -> pa.RecordBatch:
        """Rows of one side, each beside one of the other."""
        own, theirs = rows.take(pa.array(ats)), self._stores[1 - port].take(others)
        left, right = (own, theirs) if port == LEFT else (theirs, own)
        return self._made([*left.columns, *right.columns])

    def _alone(self, port: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of one side that match nothing."""
        if not self._spec.shows_right:
            return self._made(rows.columns)
        nulls = [pa.nulls(rows.num_rows, field.type) for field in self._schemas[1 - port]]
        both = [*rows.columns, *nulls] if port == LEFT else [*nulls, *rows.columns]
        return self._made(both)

    def _made(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(list(columns), schema=self._output)


class Join(TwoSided, TimedOperator):
    """Keeps the rows of both sides until event time says that they can match nothing more."""

    def __init__(self, name: str, spec: JoinSpec, fusions: Sequence[Fusion], tools: Tools) -> None:
        super().__init__(name, spec, fusions, tools)
        self.behind_us = spec.behind_us
        self.states = {store.name: store for store in self._stores}

    # --- rows -------------------------------------------------------------------------------------

    def is_late(
        self, port: int, batch: pa.RecordBatch, watermark_us: int | None
    ) -> pa.BooleanArray | None:
        side = self._spec.side(port)
        newest = self._newest(watermark_us)
        if side.time is None or newest is None:
            return None
        behind = pc.less if side.is_instant else pc.less_equal
        # A row without a time is late for no watermark.
        return pc.fill_null(behind(_times(side.time, batch), newest), False)

    def prepare(
        self, port: int, batch: pa.RecordBatch, watermark_us: int | None, collect_bad: bool
    ) -> Prepared:
        side, batch = self._spec.side(port), plain_rows(batch, self._schemas[port])
        keys = self._pairs.keys(port, batch)
        bad: dict[int, RowError] = {}
        found = list(self._pairs.find(port, batch, keys, self._stores[1 - port], collect_bad, bad))
        ats = np.concatenate([_NO_ROWS, *(ats for ats, _ in found)])
        others = np.concatenate([_NO_ROWS, *(rows for _, rows in found)])
        return Prepared(_Arrived(batch, keys, _until(side, batch), ats, others), bad=bad)

    def process(self, port: int, prepared: Prepared) -> Batches:
        arrived: _Arrived = prepared.rows
        matched = np.zeros(arrived.rows.num_rows, np.bool_)
        matched[arrived.ats] = True
        emitted = list(self._matches(port, arrived, matched))
        emitted += self._store(port, arrived, matched)
        return tuple(emitted)

    def _matches(self, port: int, arrived: _Arrived, matched: Mask) -> Iterator[pa.RecordBatch]:
        """What the pairs give, and what they do to the rows of the other side."""
        other = self._stores[1 - port]
        if self._spec.shows_right:
            for first in range(0, arrived.ats.size, ROWS_AT_ONCE_MAX):
                its = slice(first, first + ROWS_AT_ONCE_MAX)
                yield self._paired(port, arrived.rows, arrived.ats[its], arrived.others[its])
            if self._spec.waits_for(1 - port):
                other.mark(np.unique(arrived.others))
            return
        is_semi = self._spec.how == "semi"
        if port == LEFT:
            if is_semi and matched.any():
                yield self._made(arrived.rows.filter(pa.array(matched)).columns)
            return
        rows = np.unique(arrived.others)
        if rows.size:
            for first in range(0, rows.size if is_semi else 0, ROWS_AT_ONCE_MAX):
                yield self._made(other.take(rows[first : first + ROWS_AT_ONCE_MAX]).columns)
            other.delete(rows)

    def _store(self, port: int, arrived: _Arrived, matched: Mask) -> Iterator[pa.RecordBatch]:
        """Keep what can still match, or is owed to the result; give out what is owed already."""
        waits = self._spec.waits_for(port)
        keep = np.ones(matched.size, np.bool_) if waits else arrived.keys.linked.copy()
        if port == LEFT and not self._spec.shows_right:
            keep &= ~matched
        if arrived.until is not None and self._watermark_us is not None:
            over = arrived.until <= self._watermark_us
            if waits and (keep & over & ~matched).any():
                yield self._alone(port, arrived.rows.filter(pa.array(keep & over & ~matched)))
            keep &= ~over
        if keep.all():
            rows, keys, until = arrived.rows, arrived.keys, arrived.until
        else:
            rows = arrived.rows.filter(pa.array(keep))
            keys = Keys(arrived.keys.words[keep], arrived.keys.linked[keep])
            until = None if arrived.until is None else arrived.until[keep]
            matched = matched[keep]
        self._stores[port].insert(rows, keys, until, matched if waits else None)

    # --- time -------------------------------------------------------------------------------------

    def _advance(self, before_us: int | None, watermark_us: int) -> Batches:
        emitted: list[pa.RecordBatch] = []
        for port, store in enumerate(self._stores):
            if not self._spec.side(port).limits:
                continue
            if self._spec.waits_for(port):
                rows = store.expired(watermark_us)
                rows = rows[~store.is_marked(rows)]
                for first in range(0, rows.size, ROWS_AT_ONCE_MAX):
                    some = store.take(rows[first : first + ROWS_AT_ONCE_MAX])
                    emitted.append(self._alone(port, some))
            store.evict(watermark_us)
        return tuple(emitted)


class Pairs:
    """Finds the rows of two sides that belong together."""

    def __init__(
        self,
        match: JoinMatch,
        schemas: Sequence[Schema],
        tools: Tools,
        decided: tuple[SparkColumn, ...] = (),
    ) -> None:
        self._match = match
        self._null_safe = any(key.null_safe for key in match.keys)
        # A word stands for these keys, but other values may have the same one.
        self._inexact = [key for key in match.keys if not _is_exact(key.left)]
        self.blocks: list[Block] = []
        self._tests: list[_Test] = []
        if match.condition is not None:
            read, columns = _read([match.condition], schemas)
            pair = column_of(_PAIR_FIELD)
            block = Block(BlockSpec(columns, (match.condition,), ((_PAIR, pair),)), tools.cache)
            self.blocks.append(block)
            self._tests.append(_Test(block, read, arrow_schema(columns)))
        if decided:  # of pairs that hold so far: what Spark sees costs most
            read, columns = _read(inputs_of(decided), schemas)
            step = SparkStep(SparkSpec(decided), columns, tools.spark)
            flags = tuple(each.result.name for each in decided)
            self._tests.append(_Test(step, read, arrow_schema(columns), flags))

    def readers(self, side: int) -> tuple[Any, Any]:
        """What gives the keys of a side's rows, and their hashes."""
        names = self._match.key_names(side)

        def hashes(rows: pa.RecordBatch) -> Hashes:
            return hash_columns([rows.column(name) for name in names], rows.num_rows)

        return lambda rows: self.keys(side, rows), hashes

    def keys(self, side: int, rows: pa.RecordBatch) -> Keys:
        columns = [rows.column(name) for name in self._match.key_names(side)]
        words: Numbers = np.zeros((rows.num_rows, len(columns) + self._null_safe), np.int64)
        linked = np.ones(rows.num_rows, np.bool_)
        for at, (key, column) in enumerate(zip(self._match.keys, columns, strict=True)):
            words[:, at] = column_words(column)
            if column.null_count:
                there = validity_of(column)
                if key.null_safe:
                    words[:, -1] |= np.where(there, 0, 1 << at)
                else:
                    linked &= there
        return Keys(words, linked)

    def find(
        self,
        side: int,
        rows: pa.RecordBatch,
        keys: Keys,
        others: RowStore,
        collect_bad: bool,
        bad: dict[int, RowError],
    ) -> Iterator[tuple[Numbers, Numbers]]:
        """The pairs of these rows with those of the other side: places, and rows of the store.

        A row whose condition fails is noted as bad, or raises.
        """
        for candidates in others.matches(keys):
            ats, found = candidates
            same = self._same(side, rows, ats, others, found)
            if same is not None:
                ats, found = ats[same], found[same]
            for test in self._tests if ats.size else ():
                passed = test.passed(side, rows, ats, others, found, collect_bad, bad)
                ats, found = ats[passed], found[passed]
            yield ats, found

    def _same(
        self, side: int, rows: pa.RecordBatch, ats: Numbers, others: RowStore, found: Numbers
    ) -> Mask | None:
        """Which candidates have the same keys, not only the same words; None: all."""
        if not self._inexact:
            return None
        same = np.ones(ats.size, np.bool_)
        for key in self._inexact:
            (name,) = (column.name for column in columns_of(key.of(side)))
            (theirs,) = (column.name for column in columns_of(key.of(1 - side)))
            own = rows.column(name).take(pa.array(ats))
            equal = pc.equal(own, others.take(found, [theirs]).column(0))
            same &= values_of(pc.fill_null(equal, True))  # nulls have words of their own
        return same


@dataclass(frozen=True, slots=True)
class _Test:
    """A step that pairs must pass: those pass that come out of it, with all its flags true."""

    step: Block | SparkStep
    read: Sequence[Sequence[str]]  # of each side
    columns: pa.Schema
    flags: tuple[str, ...] = ()

    def passed(
        self,
        side: int,
        rows: pa.RecordBatch,
        ats: Numbers,
        others: RowStore,
        found: Numbers,
        collect_bad: bool,
        bad: dict[int, RowError],
    ) -> Numbers:
        """The places of the pairs that pass."""
        own = rows.select(self.read[side]).take(pa.array(ats)).columns if self.read[side] else []
        their_names = self.read[1 - side]
        theirs = others.take(found, their_names).columns if their_names else []
        both = [*own, *theirs] if side == LEFT else [*theirs, *own]
        pairs = pa.RecordBatch.from_arrays(
            [*both, pa.array(np.arange(ats.size))], schema=self.columns
        )
        try:
            made = self.step.run(pairs, collect_bad)
        except RowError as error:
            row = error.details.get("row")
            if not isinstance(row, int):
                raise
            raise RowError(error.message, **(error.details | {"row": int(ats[row])})) from error
        for pair, problem in failures(self.step, pairs, made.bad_rows).items():
            bad.setdefault(int(ats[pair]), problem)
        holds = np.ones(made.batch.num_rows, np.bool_)
        for flag in self.flags:
            holds &= true_rows(made.batch.column(flag))
        passed: Numbers = made.batch.column(_PAIR).to_numpy()
        return passed[holds] if self.flags else passed


def _read(
    expressions: Sequence[Expression], schemas: Sequence[Schema]
) -> tuple[list[list[str]], Schema]:
    """What these read of each side; and the columns of pairs for them, with the pair's number."""
    read = {column.name for each in expressions for column in columns_of(each)}
    columns = [field for schema in schemas for field in schema if field.name in read]
    names = [[field.name for field in schema if field.name in read] for schema in schemas]
    return names, (*columns, _PAIR_FIELD)


# --- times ----------------------------------------------------------------------------------------


def _times(time: Expression, rows: pa.RecordBatch) -> pa.Array:
    return plain(evaluate(time, rows)).cast(pa.int64())


def _until(side: JoinSide, rows: pa.RecordBatch) -> Numbers | None:
    """When rows can match nothing more, None if never; at once where a time is missing."""
    if not side.limits:
        return None
    until: Numbers = np.full(rows.num_rows, NEVER - 1)
    for limit in side.limits:
        times = _times(limit.time, rows)
        its = values_of(times)
        moved = its + limit.plus_us
        moved[(moved < its) if limit.plus_us > 0 else (moved > its)] = (
            NEVER - 1 if limit.plus_us > 0 else -NEVER
        )
        moved[~validity_of(times)] = -NEVER
        np.minimum(until, moved, out=until)
    return until


def _is_exact(key: Expression) -> bool:
    """Whether equal words are equal values."""
    kind = key.type
    if kind.is_decimal:
        return kind.precision <= _EXACT_DIGITS_MAX
    return kind.kind not in ("string", "binary")
