"""Deduplication: the first row of each key, over a keyed state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.expressions.types import arrow_type
from penstock.kernels.columns import plain
from penstock.kernels.hashing import hash_columns
from penstock.operators.contract import Batches, Prepared, Tools
from penstock.operators.front import Fusion
from penstock.operators.specs import DeduplicateSpec
from penstock.operators.timed import TimedOperator
from penstock.state.columns import KeyColumn, MergeRule, StateSchema, ValueColumn
from penstock.state.keyed import KeyedState

PANE_US = 1_000_000  # keys are forgotten by the second; what is late is judged exactly
_NEVER = 1 << 62  # the pane, and the time, of keys that no watermark passes
_EXPIRES = "expires_us"


class Deduplicate(TimedOperator):
    """Keeps every key that it has seen, until event time has passed it."""

    def __init__(
        self, name: str, spec: DeduplicateSpec, fusions: Sequence[Fusion], tools: Tools
    ) -> None:
        self._spec = spec
        self._state = KeyedState(name, state_schema(spec), bytes_max=tools.state_bytes_max)
        self.states = {name: self._state}

    def is_late(
        self, port: int, batch: pa.RecordBatch, watermark_us: int | None
    ) -> pa.BooleanArray | None:
        newest = self._newest(watermark_us)
        if self._spec.time is None or newest is None:
            return None
        behind = pc.less if self._spec.is_instant else pc.less_equal
        # A row without a time is late for no watermark.
        return pc.fill_null(behind(self._times(batch), newest), False)

    def prepare(
        self, port: int, batch: pa.RecordBatch, watermark_us: int | None, collect_bad: bool
    ) -> Prepared:
        return Prepared(batch)

    def process(self, port: int, prepared: Prepared) -> Batches:
        batch: pa.RecordBatch = prepared.rows
        keys = [batch.column(name) for name in self._spec.key_names]
        hashes = hash_columns(keys, batch.num_rows)
        within_us = self._spec.within_us
        panes = np.zeros(batch.num_rows, np.int64)
        if within_us is None and self._spec.forgets:
            panes = self._panes(batch)
        expiries = []
        if within_us is not None:
            expiries = [pc.add(self._times(batch), within_us)]
            self._forget(keys, batch.num_rows)
        made = self._state.add(keys, panes, expiries, hashes)
        return (batch.filter(pa.array(made)),) if made.any() else ()

    def _advance(self, before_us: int | None, watermark_us: int) -> Batches:
        pane = self._last_over(watermark_us)
        if self._spec.forgets and (before_us is None or pane > self._last_over(before_us)):
            if self._spec.within_us is None:
                self._state.drop_panes(pane)
            else:
                self._state.delete_upto(_EXPIRES, watermark_us)
        return ()

    def _last_over(self, watermark_us: int) -> int:
        """The last pane all of whose rows would be late."""
        late_upto_us = watermark_us - self._spec.is_instant
        return min((late_upto_us + 1) // PANE_US - 1, _NEVER - 1)

    def _forget(self, keys: Sequence[pa.Array], count: int) -> None:
        """Of these keys those whose time is over: the rest is forgotten by the second."""
        if self._watermark_us is not None:
            (expiries,), _ = self._state.get(keys, np.zeros(count, np.int64))
            over = pc.fill_null(pc.less_equal(expiries, self._watermark_us), False)
            if pc.any(over).as_py():
                self._state.delete([key.filter(over) for key in keys])

    def _panes(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        times = self._times(batch)
        panes = pc.fill_null(times, 0).to_numpy() // PANE_US
        return np.where(times.is_null().to_numpy(zero_copy_only=False), _NEVER, panes)

    def _times(self, batch: pa.RecordBatch) -> pa.Array:
        return plain(batch.column(self._spec.time_name)).cast(pa.int64())


def state_schema(spec: DeduplicateSpec) -> StateSchema:
    """Keys k0, k1, …; and when a key is forgotten, where that follows from its first row."""
    keys = (KeyColumn(f"k{at}", arrow_type(key.type)) for at, key in enumerate(spec.keys))
    expiry = ValueColumn(_EXPIRES, pa.int64(), MergeRule.FIRST)
    return StateSchema(tuple(keys), () if spec.within_us is None else (expiry,))
