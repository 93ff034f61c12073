"""Rows, groups and windows cost no Python: a larger batch runs the same lines.

Tables that grow run some lines each time they double, and large results come in pieces. So twice as
many rows may cost lines, but from 1,600 rows to 3,200 hardly more than from 200 to 400.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.expressions.evaluate import evaluate_rows
from penstock.expressions.tree import Expression, call, cast, column, columns_of, literal
from penstock.expressions.types import Field, Schema, arrow_schema, arrow_type, parse_type
from penstock.expressions.vectors import Vector, arrow_column
from penstock.kernels.cache import KernelCache
from penstock.kernels.hashing import hash_columns
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
from tests.expressions.test_functions import casts, expressions
from tests.operators.chains import linear

ROWS = 200
TIMES = 8
LINES_MORE_MAX = 700  # a loop over rows, groups or windows runs 1,400 more, if it has one line
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


def lines_of(work: Callable[[int], object], rows: int) -> int:
    with Lines() as lines:
        work(rows)
    return lines.count


def more_lines(work: Callable[[int], object]) -> int:
    """How much more doubling a large batch costs than doubling a small one."""
    sizes = (ROWS, 2 * ROWS, TIMES * ROWS, 2 * TIMES * ROWS)
    work(2 * ROWS)  # everything is compiled, and nearly everything loaded
    # What only a size of its own loads is loaded by the second time.
    once, twice, many, twice_many = (min(lines_of(work, rows) for _ in range(2)) for rows in sizes)
    return (twice_many - many) - (twice - once)


def run(specs: tuple[OperatorSpec, ...], cache: KernelCache | None, keep_late: bool) -> Any:
    """All that a vertex does with the batches between some markers, and a recovery."""

    def work(rows: int) -> None:
        chain = linear(specs, SCHEMA, cache, want_late=keep_late)
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
        partial = linear((WatermarkSpec("time", 0), spec.partial), SCHEMA, cache)
        final = linear((replace(spec, merge_partials=True),), spec.partial.schema, cache)
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
    ("both", "none", "update"),
    ("both", "wide", "update"),
    ("text", "uneven", "complete"),
    ("none", "hopping", "append"),
    ("computed", "none", "complete"),
    *(
        pytest.param(*shape, marks=pytest.mark.slow)
        for shape in (
            ("number", "hopping", "append"),
            ("both", "tumbling", "update"),
            ("both", "hopping", "update"),
            ("both", "uneven", "update"),
        )
    ),
]


@pytest.mark.parametrize(("keys", "window", "mode"), SHAPES)
def test_aggregates(keys: str, window: str, mode: str) -> None:
    calls = COUNTS if window == "wide" else AGGREGATES
    spec = aggregate(keys, window, mode, calls)
    assert more_lines(run((WatermarkSpec("time", 0), spec), None, keep_late=True)) <= LINES_MORE_MAX


@pytest.mark.parametrize("keys", ["none", "both"])
def test_partials_and_their_merge(keys: str) -> None:
    assert (
        more_lines(merged(aggregate(keys, "tumbling", "update", AGGREGATES), None))
        <= LINES_MORE_MAX
    )


def test_compiled_kernels(tmp_path: Path) -> None:
    kernels = KernelCache(tmp_path)
    spec = aggregate("both", "hopping", "append", COUNTS)
    assert (
        more_lines(run((WatermarkSpec("time", 0), spec), kernels, keep_late=True)) <= LINES_MORE_MAX
    )
    assert more_lines(merged(spec, kernels)) <= LINES_MORE_MAX


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
    "split": (
        GenerateSpec(call("split", user, pattern="-"), "item"),
        AggregateSpec((("item", column("item", "string")),), None, COUNTS[:1], "complete"),
    ),
    "explode outer": (GenerateSpec(call("split", user, pattern="-"), "item", True, "at"),),
}  # fmt: skip


@pytest.mark.parametrize("name", STATELESS)
def test_stateless(name: str) -> None:
    assert more_lines(run(STATELESS[name], None, keep_late=False)) <= LINES_MORE_MAX


def text_of(rows: Vector, *forms: str) -> pa.Array:
    """Texts with their row's number in them, in these forms by turns."""
    numbers = pa.array(rows).cast(pa.string())
    chosen = pa.array(forms).take(pa.array(rows % len(forms)))
    before, after = (pc.list_element(pc.split_pattern(chosen, "#"), part) for part in (0, 1))
    return pc.binary_join_element_wise(before, numbers, after, "")


def column_of(kind: str, rows: Vector) -> pa.Array:
    """Different values as far as the type has them, ties among them; every tenth is null."""
    if kind == "number text":
        forms = ("#", "-#.5", "+#.125e-2", " #.", ".#E3", "#00000000000000000000", "x#", "\0#")
        values = text_of(rows, *forms)
    elif kind == "time text":
        times = pa.array(rows * 86_399_000_001).cast(pa.timestamp("us"))
        values = pc.binary_join_element_wise(times.cast(pa.string()), "Z", "")
    elif kind == "string":
        values = text_of(rows, "a#,b", "É#é", "ß,#\0x", " # ")
    elif kind == "boolean":
        values = pa.array(rows % 2 == 0)
    elif kind.startswith("decimal"):
        values = arrow_column(rows % 10_000 * 12_345, None, parse_type(kind))
    elif kind in ("double", "float"):
        values = pa.array(rows * 0.125 * 10.0 ** (rows % 9 - 4)).cast(arrow_type(parse_type(kind)))
    elif kind in ("date", "timestamp", "timestamp_ntz"):
        values = pa.array(rows * (7 if kind == "date" else 3_599_999_999))
        values = values.cast(pa.int32()) if kind == "date" else values
        values = values.cast(arrow_type(parse_type(kind)))
    else:
        values = pa.array(rows % 100).cast(arrow_type(parse_type(kind)))
    return pc.if_else(pa.array(rows % 10 != 0), values, pa.scalar(None, values.type))


EXPRESSIONS = [*(("string", tree) for tree in expressions()), *casts()]


@pytest.mark.parametrize("group", range(8))
def test_expressions(group: int) -> None:
    """All functions and casts, as they are compared with the reference; rows that fail as well."""
    for texts, tree in EXPRESSIONS[group::8]:
        fields = {found.name: str(found.type) for found in columns_of(tree)}
        kinds = {name: texts if kind == "string" else kind for name, kind in fields.items()}
        batches = {
            rows: pa.record_batch({n: column_of(k, np.arange(rows)) for n, k in kinds.items()})
            for rows in (ROWS, TIMES * ROWS)
        }
        work = partial(_evaluate, tree, batches)
        sizes = (ROWS, TIMES * ROWS)
        _, _, once, larger = (lines_of(work, rows) for rows in sizes * 2)
        assert larger <= once + 20, f"{tree} of {texts}: {once} lines, then {larger}"


def _evaluate(tree: Expression, batches: dict[int, pa.RecordBatch], rows: int) -> None:
    evaluate_rows([tree], batches[rows])


def test_a_loop_over_rows_is_seen() -> None:
    def work(rows: int) -> list[int]:
        return [row + 1 for row in range(rows)]

    assert more_lines(work) > LINES_MORE_MAX
    assert more_lines(np.arange) <= LINES_MORE_MAX
