"""Rows, groups and windows cost no Python: a batch eight times as large runs the same lines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.expressions.tree import Expression, call, cast, column, literal
from penstock.expressions.types import Field, Schema, arrow_schema, parse_type
from penstock.kernels.cache import KernelCache
from penstock.kernels.columns import arrow_column
from penstock.kernels.hashing import hash_columns
from penstock.operators.chain import Chain
from penstock.operators.specs import (
    AggregateCall,
    AggregateSpec,
    FilterSpec,
    GenerateSpec,
    OperatorSpec,
    ProjectSpec,
    WatermarkSpec,
    WindowSpec,
)

ROWS = 400
TIMES = 8
# Tables that grow run some lines each time they double. A loop over rows, groups or windows runs
# more: of each there are 400, and 3,200 in the larger batch.
LINES_MORE_MAX = 4_000
SECOND_US = 1_000_000

SCHEMA: Schema = tuple(
    Field(name, parse_type(kind))
    for name, kind in (
        ("time", "timestamp"),
        ("user", "string"),
        ("id", "bigint"),
        ("price", "double"),
        ("amount", "decimal(8,2)"),
        ("items", "array<string>"),
    )
)
time, user, id_, price, amount, items = (column(field.name, field.type) for field in SCHEMA)
AGGREGATES = (
    AggregateCall("count", None, "n"),
    AggregateCall("sum", id_, "total"),
    AggregateCall("avg", id_, "mean"),
    AggregateCall("min", price, "least"),
    AggregateCall("max", price, "most"),
    AggregateCall("avg", price, "price"),
    AggregateCall("sum", amount, "amounts"),
    AggregateCall("avg", amount, "amount"),
)
COUNTS = AGGREGATES[:3]
KEYS: dict[str, tuple[tuple[str, Expression], ...]] = {
    "none": (),
    "text": (("user", user),),
    "number": (("id", id_),),
    "both": (("user", user), ("half", cast(price, "int"))),
    "computed": (("name", call("concat", call("upper", user), literal("-x", "string"))),),
}
WINDOWS = {
    "none": None,
    "tumbling": (1, 1),
    "hopping": (60, 1),
    "uneven": (5, 2),
    "wide": (4_000, 40),
}


def batch_of(rows: int, first_second: int) -> pa.RecordBatch:
    """One row per second and user, all different; a tenth of the texts and prices is null."""
    seconds = first_second + np.arange(rows)
    names = np.char.add("user-", (seconds % rows).astype(str))
    some = np.arange(rows) % 10 == 0
    lists = pa.ListArray.from_arrays(np.arange(0, 2 * rows + 1, 2), pa.array(np.repeat(names, 2)))
    columns = [
        pa.array(seconds * SECOND_US).cast(pa.timestamp("us", "UTC")),
        pa.array(names, mask=some),
        pa.array(seconds % rows),
        pa.array(seconds / 4, mask=some),
        arrow_column(seconds % 1000, None, SCHEMA[4].type),
        lists,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(SCHEMA))


class Lines:
    """Counts the lines of Python that run within it."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Lines:
        sys.settrace(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _see(self, _frame: FrameType, event: str, _arg: Any) -> Any:
        self.count += event == "line"
        return self._see


def lines_of(work: Callable[[int], None]) -> list[int]:
    """The lines of a batch, and of one that is larger, once everything is loaded and compiled."""
    work(ROWS)
    found = []
    for rows in (ROWS, ROWS * TIMES):
        with Lines() as lines:
            work(rows)
        found.append(lines.count)
    return found


def run(specs: tuple[OperatorSpec, ...], cache: KernelCache | None, keep_late: bool) -> Any:
    """All that a vertex does with the batches between some markers, and a recovery."""

    def work(rows: int) -> None:
        chain = Chain(specs, SCHEMA, cache, want_late=keep_late)
        chain.process(batch_of(rows, 0))
        chain.on_commit()
        changes = {name: state.take_changes() for name, state in chain.states.items()}
        output = chain.process(batch_of(rows, rows // 2))
        if output.max_event_time_us is not None and chain.states:
            chain.on_watermark(output.max_event_time_us - rows // 4 * SECOND_US)
            chain.process(batch_of(rows, rows // 2))  # now three quarters of it are late
            chain.on_watermark(output.max_event_time_us)
        chain.on_commit()
        for name, state in chain.states.items():
            _recover(state, changes[name])

    return work


def _recover(state: Any, changes: pa.RecordBatch | None) -> None:
    state.take_changes()
    snapshot = state.begin_snapshot()
    while not snapshot.copy_some():
        pass
    state.restore(list(snapshot.batches()))
    if changes is not None:
        state.apply_changes(changes)


def merged(spec: AggregateSpec, cache: KernelCache | None) -> Any:
    """The two chains on the sides of an exchange."""

    def work(rows: int) -> None:
        partial = Chain((WatermarkSpec("time", 0), spec.partial), SCHEMA, cache)
        final = Chain((replace(spec, merge_partials=True),), spec.partial.schema, cache)
        for first in (0, rows // 2):
            for batch in partial.process(batch_of(rows, first)).batches:
                hash_columns(batch.columns[: len(spec.keys)], batch.num_rows)
                final.process(batch)
            final.on_watermark(first * SECOND_US)
            final.on_commit()
            for state in final.states.values():
                state.take_changes()

    return work


def aggregate(keys: str, window: str, mode: str, calls: tuple[AggregateCall, ...]) -> AggregateSpec:
    shape = WINDOWS[window]
    spec = None if shape is None else WindowSpec(time, *(side * SECOND_US for side in shape))
    return AggregateSpec(KEYS[keys], spec, calls, mode, is_watermarked=spec is not None)


SHAPES = [
    *(("text", window, "append") for window in WINDOWS if window != "none"),
    *(("both", window, "update") for window in WINDOWS),
    ("text", "hopping", "complete"),
    ("none", "hopping", "append"),
    ("number", "hopping", "append"),
    ("computed", "none", "complete"),
]


@pytest.mark.parametrize(("keys", "window", "mode"), SHAPES)
def test_aggregates(keys: str, window: str, mode: str) -> None:
    calls = COUNTS if window == "wide" else AGGREGATES
    spec = aggregate(keys, window, mode, calls)
    once, larger = lines_of(run((WatermarkSpec("time", 0), spec), None, keep_late=True))
    assert larger <= once + LINES_MORE_MAX


@pytest.mark.parametrize("keys", ["none", "both"])
def test_partials_and_their_merge(keys: str) -> None:
    once, larger = lines_of(merged(aggregate(keys, "tumbling", "update", AGGREGATES), None))
    assert larger <= once + LINES_MORE_MAX


def test_compiled_kernels(tmp_path: Path) -> None:
    kernels = KernelCache(tmp_path)
    spec = aggregate("both", "hopping", "append", COUNTS)
    once, larger = lines_of(run((WatermarkSpec("time", 0), spec), kernels, keep_late=True))
    assert larger <= once + LINES_MORE_MAX
    once, larger = lines_of(merged(spec, kernels))
    assert larger <= once + LINES_MORE_MAX


STATELESS: dict[str, tuple[OperatorSpec, ...]] = {
    "project": (
        FilterSpec(call("gt", price, literal(3.0, "double"))),
        FilterSpec(call("like", user, pattern="user-%", escape="\\")),
        ProjectSpec(
            (
                ("upper", call("upper", user)),
                ("part", call("substring", user, literal(2, "int"), literal(3, "int"))),
                ("words", call("split", user, pattern="-")),
                ("number", cast(call("replace", user, literal("user-", "string"),
                                     literal("", "string")), "bigint")),
                ("shown", cast(amount, "string")),
                ("when", cast(time, "string", time_zone="Europe/Paris")),
                ("day", cast(time, "date", time_zone="UTC")),
            )
        ),
    ),
    "explode": (GenerateSpec(items, "item"), FilterSpec(call("is_not_null", user))),
    "explode outer": (GenerateSpec(call("split", user, pattern="-"), "item", True, "at"),),
}  # fmt: skip


@pytest.mark.parametrize("name", STATELESS)
def test_stateless(name: str) -> None:
    once, larger = lines_of(run(STATELESS[name], None, keep_late=False))
    assert larger <= once + LINES_MORE_MAX
