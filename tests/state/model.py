"""The rules of keyed state in plain Python, row by row: what the compiled tables must equal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.state.columns import PANE_LOWEST, KeyColumn, MergeRule, StateSchema, ValueColumn
from penstock.state.keyed import KeyedState
from penstock.state.overlaps import Overlap

Key = tuple[Any, ...]

SCHEMA = StateSchema(
    keys=(KeyColumn("number", pa.int64()), KeyColumn("word", pa.string())),
    values=(
        ValueColumn("count", pa.int64(), MergeRule.COUNT),
        ValueColumn("total", pa.int64(), MergeRule.SUM),
        ValueColumn("weight", pa.float64(), MergeRule.SUM),
        ValueColumn("lowest", pa.float64(), MergeRule.MIN),
        ValueColumn("longest", pa.string(), MergeRule.MAX),
        ValueColumn("opened", pa.string(), MergeRule.FIRST),
        ValueColumn("latest", pa.timestamp("us", tz="UTC"), MergeRule.LAST),
    ),
)


def key_hash(key: Key) -> int:
    """Any function of the key will do: the state never looks inside."""
    text = repr(key).encode()
    return sum((at + 1) * byte * 2654435761 for at, byte in enumerate(text)) % (1 << 32)


def _less(left: Any, right: Any) -> bool:
    if isinstance(left, float) and math.isnan(left):
        return False
    if isinstance(right, float) and math.isnan(right):
        return True
    if isinstance(left, str):
        return left.encode() < right.encode()
    return bool(left < right)


def _merged(rule: MergeRule, old: Any, new: Any, is_first: bool) -> Any:
    if rule is MergeRule.LAST:
        return new
    if rule is MergeRule.FIRST:
        return new if is_first else old
    if is_first and rule is MergeRule.COUNT:
        old = 0
    if new is None or old is None:
        return old if new is None else new
    if rule in (MergeRule.SUM, MergeRule.COUNT):
        return old + new
    if rule is MergeRule.MIN:
        return new if _less(new, old) else old
    return new if _less(old, new) else old


class StateModel:
    """Rows in a dictionary."""

    def __init__(self, schema: StateSchema = SCHEMA) -> None:
        self.schema = schema
        self.rows: dict[tuple[Key, int], list[Any]] = {}

    def merge(self, rows: Sequence[tuple[Key, int, Sequence[Any]]]) -> None:
        rules = [value.rule for value in self.schema.values]
        for key, pane, values in rows:
            old = self.rows.get((key, pane))
            first = old is None
            old = [None] * len(rules) if old is None else old
            self.rows[key, pane] = [
                _merged(rule, was, new, first)
                for rule, was, new in zip(rules, old, values, strict=True)
            ]

    def put(self, rows: Sequence[tuple[Key, int, Sequence[Any]]]) -> None:
        for key, pane, values in rows:
            self.rows[key, pane] = list(values)

    def delete(self, keys: Sequence[tuple[Key, int]]) -> int:
        return sum(self.rows.pop(key, None) is not None for key in keys)

    def take(self, pane_upto: int) -> list[dict[str, Any]]:
        taken = {key: row for key, row in self.rows.items() if key[1] <= pane_upto}
        self.rows = {key: row for key, row in self.rows.items() if key[1] > pane_upto}
        return self.listed(taken)

    def window(self, pane_from: int, pane_to: int) -> list[dict[str, Any]]:
        merged = StateModel(self.schema)
        inside = [key for key in self.rows if pane_from <= key[1] <= pane_to]
        for key, pane in sorted(inside, key=lambda each: each[1]):
            merged.merge([(key, pane_from, self.rows[key, pane])])
        return merged.listed(merged.rows)

    def listed(self, rows: dict[tuple[Key, int], list[Any]] | None = None) -> list[dict[str, Any]]:
        """By pane, then key, nulls first: the order that the state promises."""
        rows = self.rows if rows is None else rows
        return [
            {
                **{column.name: part for column, part in zip(self.schema.keys, key, strict=True)},
                "__pane": pane,
                **{
                    column.name: value
                    for column, value in zip(self.schema.values, rows[key, pane], strict=True)
                },
            }
            for key, pane in sorted(rows, key=_order)
        ]


def _order(row: tuple[Key, int]) -> tuple[Any, ...]:
    key, pane = row
    parts = [(part is not None, part.encode() if isinstance(part, str) else part) for part in key]
    return (pane, *[(known, value if known else 0) for known, value in parts])


def shown(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """A batch as plain rows; timestamps as their microseconds."""
    columns = []
    for column in batch.columns:
        plain = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        columns.append(plain.to_pylist())
    rows = zip(*columns, strict=True) if columns else []
    return [dict(zip(batch.schema.names, row, strict=True)) for row in rows]


def same(left: list[dict[str, Any]], right: list[dict[str, Any]]) -> bool:
    """Equality in which NaN equals NaN and 0.0 does not equal -0.0."""
    return repr(left) == repr(right)


def columns_of(
    schema: StateSchema, rows: Sequence[tuple[Key, int, Sequence[Any]]]
) -> tuple[list[pa.Array], Any, list[pa.Array], Any]:
    """What `merge` and `put` take, from plain rows."""
    keys = [
        pa.array([row[0][at] for row in rows], column.type) for at, column in enumerate(schema.keys)
    ]
    values = [
        pa.array([row[2][at] for row in rows], column.type)
        for at, column in enumerate(schema.values)
    ]
    panes = np.array([row[1] for row in rows], np.int64)
    hashes = np.array([key_hash(row[0]) for row in rows], np.uint32)
    return keys, panes, values, hashes


def restored(state: KeyedState, batches: Sequence[pa.RecordBatch]) -> KeyedState:
    """A new state with the same columns, filled from a snapshot."""
    other = KeyedState(state.name, state.schema)
    other.restore(batches)
    return other


def snapshot_of(state: KeyedState) -> list[pa.RecordBatch]:
    """A complete snapshot of a state that has no pending changes."""
    snapshot = state.begin_snapshot()
    while not snapshot.copy_some(3):
        pass
    return list(snapshot.batches())


def window_of(state: KeyedState, pane_from: int, pane_to: int) -> pa.RecordBatch:
    """The rows of one window of these panes, both included, whose number is its first pane."""
    return windows_of(state, np.array([pane_from]), Overlap(pane_to - pane_from + 1, 1))


def windows_of(
    state: KeyedState, windows: Any, overlap: Overlap, only_changed: bool = False
) -> pa.RecordBatch:
    batches = list(state.window_rows(windows, overlap, only_changed))
    return pa.concat_batches([pa.RecordBatch.from_pylist([], state.schema.row_schema), *batches])


def take_closed(state: KeyedState, pane_upto: int) -> pa.RecordBatch:
    """Remove the rows of all panes up to this one and return them, by pane, then key."""
    closed = state.rows(PANE_LOWEST, pane_upto)
    state.drop_panes(pane_upto)
    return closed
