"""What was last emitted of groups that have changed since, so that it can be taken back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import Mask, Vector, storage, validity_of, values_of
from penstock.expressions.types import arrow_type
from penstock.kernels.columns import plain
from penstock.loops import Words
from penstock.operators.specs import WEIGHT_COLUMN, WEIGHT_FIELD
from penstock.state.columns import (
    PANE_LOWEST,
    PANE_NAME,
    MergeRule,
    StateSchema,
    ValueColumn,
    to_words,
)
from penstock.state.keyed import KeyedState

_WAS = "was"


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows of a state that went and that came; a group that is as it was is in neither."""

    gone: pa.RecordBatch
    come: pa.RecordBatch


class Shown:
    """The rows of a state as they were at the last commit, of the groups touched since.

    All that was changed is emitted at each commit, so a marker always finds this empty: it is
    never saved. Of each row the first value columns count, which are what is shown of it.
    """

    def __init__(self, state: KeyedState, values: int) -> None:
        self._state = state
        self._values = values
        kept = [ValueColumn(v.name, v.type, MergeRule.FIRST) for v in state.schema.values[:values]]
        was = ValueColumn(_WAS, pa.bool_(), MergeRule.FIRST)
        schema = StateSchema(state.schema.keys, (*kept, was))
        self._before = KeyedState(state.name, schema, bytes_max=state.bytes_max)

    def note(self, keys: Sequence[pa.Array], panes: Words) -> None:
        """These groups are about to change."""
        values, found = self._state.get(keys, panes)
        self._before.add(keys, panes, [*values[: self._values], pa.array(found)])

    def forget(self) -> None:
        self._before.clear()

    @property
    def is_empty(self) -> bool:
        return not len(self._before)

    def touched(self, pane_upto: int | None = None) -> pa.RecordBatch:
        """The groups that were touched, of panes up to one: keys, pane, and what they were."""
        if pane_upto is None:
            return self._before.scan()
        return self._before.rows(PANE_LOWEST, pane_upto)

    def take(self, pane_upto: int | None = None) -> Changes:
        """What has become of the groups that were touched, of panes up to one."""
        touched = self.touched(pane_upto)
        keys = touched.columns[: len(self._state.schema.keys)]
        panes = touched.column(PANE_NAME)
        now, there = self._state.get(keys, panes.to_numpy())
        now = now[: self._values]
        before = touched.columns[len(keys) + 1 :]
        was = before.pop().to_numpy(zero_copy_only=False)
        same = was & there
        for one, other in zip(before, now, strict=True):
            same &= same_values(one, other)
        names = touched.schema.names[:-1]
        gone = pa.RecordBatch.from_arrays([*keys, panes, *before], names=names)
        come = pa.RecordBatch.from_arrays([*keys, panes, *now], names=names)
        if pane_upto is None:
            self._before.clear()
        else:
            self._before.drop_panes(pane_upto)
            self._before.discard_changes()
        return Changes(gone.filter(pa.array(was & ~same)), come.filter(pa.array(there & ~same)))


def same_values(one: pa.Array, other: pa.Array) -> Mask:
    """Where two columns have the same value, bit by bit, or none."""
    valid, also = validity_of(one), validity_of(other)
    if pa.types.is_struct(one.type):
        equal = np.ones(len(one), np.bool_)
        for field, its_other in zip(one.flatten(), other.flatten(), strict=True):
            equal &= same_values(field, its_other)
    elif pa.types.is_nested(one.type):
        equal = _same_elements(one, other)
    elif storage(one.type) is not None:
        equal = to_words(one, False) == to_words(other, False)
    else:
        equal = np.asarray(pc.fill_null(pc.equal(one, other), True))
    same: Mask = (valid == also) & (equal | ~valid)
    return same


def _same_elements(one: pa.Array, other: pa.Array) -> Mask:
    """Where arrays or maps are as long as each other, and each element is the same."""
    lengths, others = (np.diff(column.offsets.to_numpy()) for column in (one, other))
    equal: Mask = (lengths == others) & validity_of(one) & validity_of(other)
    chosen = pa.array(equal)
    same = same_values(*(_elements(column.filter(chosen)) for column in (one, other)))
    ats = np.repeat(np.flatnonzero(equal), lengths[equal])
    equal[ats[~same]] = False
    return equal


def _elements(column: pa.Array) -> pa.Array:
    """All elements of arrays or maps of which none is null; Arrow's `flatten` takes no maps."""
    begin, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return column.values.slice(begin, end - begin)


def runs_of(weights: Vector) -> Iterator[tuple[int, int, int]]:
    """Rows in a row that all come, or all go: the first, the one behind the last, their weight."""
    edges = [0, *(np.flatnonzero(np.diff(weights)) + 1).tolist(), weights.size]
    for begin, end in pairwise(edges) if weights.size else ():
        yield begin, end, int(weights[begin])


def weights_of(batch: pa.RecordBatch) -> Vector:
    """Of rows that come and go."""
    return values_of(plain(batch.column(WEIGHT_COLUMN)))


def weighed(rows: pa.RecordBatch, weight: int) -> pa.RecordBatch:
    """The rows with a weight, the same for all."""
    weights = pa.array(np.full(rows.num_rows, weight, np.int8), arrow_type(WEIGHT_FIELD.type))
    return rows.append_column(pa.field(WEIGHT_COLUMN, weights.type, nullable=False), weights)
