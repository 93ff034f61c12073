"""A loop made runnable: compiled per variant once it is needed, with its scratch memory reused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.arrays import Numbers, Vector, validity_of
from penstock.expressions.tree import Call, Expression
from penstock.expressions.writers import table_shape
from penstock.kernels import loop_stand_ins
from penstock.kernels.accumulators import ACCUMULATORS
from penstock.kernels.cache import KernelCache
from penstock.kernels.columns import combined, dtype_of, raw_values, read_only
from penstock.kernels.hashing import GOLDEN
from penstock.kernels.loop import (
    BLOCK_ROWS,
    GROUPS,
    KEPT,
    LATE,
    LATEST,
    META_SIZE,
    NO_TIME_US,
    PANE_MULTIPLIER,
    ROW_FAILED,
    STATUS,
    SUM_OVERFLOWED,
    TABLE_FULL,
    LoopGrouping,
    LoopSource,
    LoopSpec,
    write_loop,
)
from penstock.kernels.results import LoopGroups, LoopRows

GROUPS_FIRST = 1024
_SLOTS_PER_GROUP = 4
_NO_ROWS: Numbers = np.empty(0, np.int64)


class KernelFallback(UserWarning):
    """A kernel could not be compiled; the same work is done by Arrow and NumPy, more slowly."""


@dataclass(frozen=True, slots=True)
class _Variant:
    source: LoopSource
    kernel: Callable[..., int]
    tables: dict[str, list[Any]]


def _table_arrays(calls: tuple[Expression, ...]) -> dict[str, list[Any]]:
    """The arrays of each lookup, by the role of the parameter that takes them."""
    arrays: dict[str, list[Any]] = {
        "table_values": [], "table_first": [], "table_keys": [], "table_valid": [],
    }  # fmt: skip
    for call in calls:
        assert isinstance(call, Call)
        for role, value in _one_table(call).items():
            arrays[role].append(value)
    return arrays


def _one_table(call: Call) -> dict[str, Any]:
    pairs = call.option("table")
    shape = table_shape(call)
    keys = np.array([key for key, _ in pairs], np.int64)
    present = np.array([value is not None for _, value in pairs], np.bool_)
    numbers = np.array([0 if value is None else value for _, value in pairs], dtype_of(call.type))
    order = np.argsort(keys, kind="stable")
    first = int(keys.min()) if keys.size else 0
    if shape.dense:
        values = np.zeros(int(keys.max()) - first + 1, numbers.dtype)
        valid = np.zeros(values.size, np.bool_)
        values[keys - first], valid[keys - first] = numbers, present
    else:
        keys, values, valid = keys[order], numbers[order], present[order]
    for array in (keys, values, valid):
        array.flags.writeable = False
    return {
        "table_values": values, "table_first": first, "table_keys": keys, "table_valid": valid,
    }  # fmt: skip


class _GroupTable:
    """Scratch memory of a grouping loop: groups in order of appearance and a table to find them."""

    def __init__(self, grouping: LoopGrouping) -> None:
        self._grouping = grouping
        self.capacity = GROUPS_FIRST
        self._allocate()

    def _allocate(self) -> None:
        count = self.capacity
        keys, accumulators = self._grouping.keys, self._grouping.accumulators
        self.word = [np.empty(count, np.int64) for _ in keys]
        self.nulls = np.zeros(count, np.int64)
        self.pane = np.zeros(count, np.int64)
        self.hash = np.empty(count, np.uint32)
        self.slot = np.empty(count, np.int32)
        self.rows = np.empty(count, np.int64)
        self.accumulator = [
            np.empty(count, ACCUMULATORS[name].dtype(argument)) for name, argument in accumulators
        ]
        self.valid = [np.zeros(count, np.bool_) for _ in accumulators]
        self.table = np.full(count * _SLOTS_PER_GROUP, -1, np.int32)

    @property
    def shift(self) -> np.uint64:
        """A hash's top bits are its slot."""
        return np.uint64(64 - (self.table.size.bit_length() - 1))

    def reserve(self, groups: int) -> None:
        """Make room for so many groups while there are none."""
        if self.capacity < groups:
            self.capacity = 1 << (groups - 1).bit_length()
            self._allocate()

    def grow(self, groups: int) -> None:
        """Four times the room; the groups so far keep their numbers."""
        before = self._columns()
        self.capacity *= 4
        self._allocate()
        for old, new in zip(before, self._columns(), strict=True):
            new[:groups] = old[:groups]
        self._enter(self._slots_of(groups))

    def _columns(self) -> list[Vector]:
        fixed: list[Vector] = [self.nulls, self.pane, self.hash, self.rows]
        return [*self.word, *fixed, *self.accumulator, *self.valid]

    def _slots_of(self, groups: int) -> Numbers:
        """The slot that the compiled loop looks at first for each group."""
        mixed = np.zeros(groups, np.uint64)
        if self._grouping.time is not None:
            mixed = self.pane[:groups].view(np.uint64) * np.uint64(PANE_MULTIPLIER)
        for index, word in enumerate(self.word):
            if index:
                mixed ^= mixed >> np.uint64(32)
            mixed = (mixed ^ word[:groups].view(np.uint64)) * np.uint64(GOLDEN)
        if not self.word:
            mixed *= np.uint64(GOLDEN)
        return (mixed >> self.shift).astype(np.int64)

    def _enter(self, slots: Numbers) -> None:
        mask = self.table.size - 1
        waiting = np.arange(len(slots))
        while waiting.size:
            # Of the groups that want one empty slot the first gets it; the others step on.
            wanted = slots[waiting]
            free = self.table[wanted] < 0
            places, winners = np.unique(wanted[free], return_index=True)
            chosen = waiting[free][winners]
            self.table[places] = chosen
            self.slot[chosen] = places
            waiting = waiting[~np.isin(waiting, chosen)]
            slots[waiting] = (slots[waiting] + 1) & mask

    def clear(self, groups: int) -> None:
        self.table[self.slot[:groups]] = -1


class BlockLoop:
    """Runs one LoopSpec over batches: compiled, or by Arrow and NumPy until and unless it is."""

    def __init__(self, spec: LoopSpec, cache: KernelCache | None) -> None:
        self.spec = spec
        self._cache = cache
        self._columns = spec.columns
        self._sources: dict[bool, LoopSource] = {}
        self._variants: dict[bool, _Variant | None] = {}
        self._selected = np.empty(BLOCK_ROWS, np.uint32)
        self._groups = None if spec.grouping is None else _GroupTable(spec.grouping)

    def ask_for_kernel(self) -> None:
        """Load the variant for columns without nulls, or have it compiled, before it is needed."""
        self._variant(nulls=False)

    @property
    def is_compiled(self) -> bool:
        """Whether the variant for columns without nulls runs compiled."""
        return self._variants.get(False) is not None

    def _variant(self, nulls: bool) -> _Variant | None:
        if self._cache is None:
            return None
        if nulls not in self._variants:
            self._compile(self._cache, nulls)
        return self._variants.get(nulls)  # none yet: this batch is Arrow's

    def _compile(self, cache: KernelCache, nulls: bool) -> None:
        if nulls not in self._sources:
            self._sources[nulls] = write_loop(self.spec, nulls)
        source = self._sources[nulls]
        try:
            kernel = cache.get(source.text)
        except Exception as error:  # whatever Numba or the disk raises, the work can still be done
            name = cache.name_of(source.text)
            described = "; ".join(str(expression) for expression in self.spec.expressions)
            warnings.warn(
                f"kernel {name} in {cache.folder} ({described:.500}) could not be compiled and "
                f"runs on Arrow and NumPy instead: {type(error).__name__}: {error!s:.500}",
                KernelFallback,
                stacklevel=2,
            )
            self._variants[nulls] = None
            return
        if kernel is not None:
            self._variants[nulls] = _Variant(source, kernel, _table_arrays(source.tables))

    # --- running ----------------------------------------------------------------------------------

    def project(self, batch: pa.RecordBatch, stop_at_failure: bool = True) -> LoopRows:
        """Filter and project a batch."""
        columns = self._arrays(batch)
        nulls = any(column.null_count for column in columns)
        variant = self._variant(nulls)
        if variant is None:
            return loop_stand_ins.project_rows(self.spec, batch)
        count = batch.num_rows
        arguments: dict[str, Any] = {
            "stop": count,
            "kept_rows": np.empty(count, np.int64),
            "output": [np.empty(count, dtype_of(e.type)) for e in self.spec.outputs],
            "output_valid": [np.empty(count, np.bool_) for _ in self.spec.outputs],
        }
        meta = _new_meta()
        failed = self._run(variant, columns, nulls, arguments, meta, stop_at_failure)
        kept = int(meta[KEPT])
        outputs = [
            (values[:kept], arguments["output_valid"][index][:kept] if nullable else None)
            for index, (values, nullable) in enumerate(
                zip(arguments["output"], variant.source.output_nullable, strict=True)
            )
        ]
        return LoopRows(arguments["kept_rows"][:kept], outputs, _latest(meta), failed)

    def group(
        self,
        batch: pa.RecordBatch,
        key_words: dict[int, NDArray[np.uint64]],
        closed_pane: int,
        want_late: bool = False,
        stop_at_failure: bool = True,
        alone: bool = False,
    ) -> LoopGroups:
        """Filter a batch and aggregate it by key and pane; `key_words` are those of coded keys.

        With `alone` no row is looked for among the groups: each is one of its own.
        """
        columns = self._arrays(batch)
        nulls = any(column.null_count for column in columns)
        variant = self._variant(nulls)
        if variant is None:
            return loop_stand_ins.group_rows(
                self.spec, batch, key_words, closed_pane, want_late, alone
            )
        assert self._groups is not None
        if alone:
            self._groups.reserve(batch.num_rows)
        late_rows = np.empty(batch.num_rows, np.int64) if want_late else _NO_ROWS
        arguments = {
            "stop": batch.num_rows,
            "closed_pane": closed_pane,
            "late_rows": late_rows,
            "key_words": key_words,
            "alone": alone,
        }
        meta = _new_meta()
        try:
            failed = self._run(variant, columns, nulls, arguments, meta, stop_at_failure)
            overflow = failed.pop() if meta[STATUS] == SUM_OVERFLOWED else None
            return self._collect(variant, meta, want_late, late_rows, failed, overflow)
        finally:
            self._groups.clear(int(meta[GROUPS]))

    def _collect(
        self,
        variant: _Variant,
        meta: Numbers,
        want_late: bool,
        late_rows: Numbers,
        failed: list[int],
        overflow: int | None,
    ) -> LoopGroups:
        table, grouping, count = self._groups, self.spec.grouping, int(meta[GROUPS])
        assert table is not None
        assert grouping is not None
        words = np.empty((count, len(table.word)), np.int64)
        for index, word in enumerate(table.word):
            words[:, index] = word[:count]
        rows = table.rows[:count].copy()
        values = [
            rows if function == "rows" else table.accumulator[index][:count].copy()
            for index, (function, _) in enumerate(grouping.accumulators)
        ]
        validity = [
            table.valid[index][:count].copy() if nullable else None
            for index, nullable in enumerate(variant.source.accumulator_nullable)
        ]
        tracked = any(parameter.role == "group_nulls" for parameter in variant.source.parameters)
        return LoopGroups(
            words=words,
            null_words=table.nulls[:count].copy() if tracked else np.zeros(count, np.int64),
            panes=table.pane[:count].copy()
            if grouping.time is not None
            else np.zeros(count, np.int64),
            hashes=table.hash[:count].copy(),
            rows=rows,
            values=values,
            validity=validity,
            late_count=int(meta[LATE]),
            late_rows=late_rows[: int(meta[LATE])] if want_late else None,
            latest_us=_latest(meta),
            failed=failed,
            overflow_row=overflow,
        )

    def _arrays(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [combined(batch.column(column.name)) for column in self._columns]

    def _run(
        self,
        variant: _Variant,
        columns: list[pa.Array],
        nulls: bool,
        arguments: dict[str, Any],
        meta: Numbers,
        stop_at_failure: bool,
    ) -> list[int]:
        """Call the kernel until all rows are done; return the rows that failed."""
        arguments["column"] = [
            raw_values(array) for array, column in zip(columns, self._columns, strict=True)
        ]
        if nulls:
            arguments["validity"] = [read_only(validity_of(array)) for array in columns]
        arguments.update(variant.tables)
        arguments.update(selected=self._selected, meta=meta)
        row, failed = 0, []
        stop = arguments["stop"]
        while True:
            arguments["start"] = row
            row = variant.kernel(*self._bound(variant, arguments))
            status = int(meta[STATUS])
            if status == TABLE_FULL:
                assert self._groups is not None
                self._groups.grow(int(meta[GROUPS]))
            elif status in (ROW_FAILED, SUM_OVERFLOWED):
                failed.append(row)
                row += 1
                if stop_at_failure or status == SUM_OVERFLOWED:
                    return failed
            else:
                assert row == stop
                return failed

    def _bound(self, variant: _Variant, arguments: dict[str, Any]) -> list[Any]:
        if self._groups is not None:
            table = self._groups
            arguments.update(
                group_word=table.word, group_nulls=table.nulls, group_pane=table.pane,
                group_hash=table.hash, group_slot=table.slot, group_rows=table.rows,
                table=table.table, accumulator=table.accumulator, accumulator_valid=table.valid,
                # What is not looked for all goes to two slots, which stay in the cache.
                shift=np.uint64(63) if arguments["alone"] else table.shift,
            )  # fmt: skip
        bound = []
        for parameter in variant.source.parameters:
            argument = arguments[parameter.role]
            is_many = isinstance(argument, list | dict)
            bound.append(argument[parameter.index] if is_many else argument)
        return bound


def _new_meta() -> Numbers:
    meta = np.zeros(META_SIZE, np.int64)
    meta[LATEST] = NO_TIME_US
    return meta


def _latest(meta: Numbers) -> int | None:
    return None if meta[LATEST] == NO_TIME_US else int(meta[LATEST])
