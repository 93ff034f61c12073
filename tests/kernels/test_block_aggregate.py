"""Compiled partial aggregation against its NumPy twin and against plain Python."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import RowError, StateOverflow
from penstock.expressions.tree import Expression, call, cast, column, literal
from penstock.expressions.types import Field, Schema, parse_type
from penstock.kernels.block import PANE_NONE, Block, BlockAggregate, BlockSpec, Partials
from penstock.kernels.cache import KernelCache
from tests.kernels.batches import SEEDED, batches, random_batch
from tests.thoroughness import examples, some

SCHEMA: Schema = tuple(
    Field(name, parse_type(kind))
    for name, kind in (
        ("a", "bigint"), ("i", "int"), ("t", "tinyint"), ("x", "double"), ("f", "float"),
        ("p", "boolean"), ("d", "decimal(8,2)"), ("z", "timestamp"), ("s", "string"),
    )
)  # fmt: skip
a, i, t, x, f, p, d, z, s = (column(field.name, field.type) for field in SCHEMA)
small = call("remainder", i, literal(5, "int"))
campaign = call("lookup", i, table=[(n, n % 3) for n in range(-9, 6)], value_type="int")

CASES: dict[str, tuple[list[Expression], BlockAggregate]] = {
    "windowed": (
        [call("gt", i, literal(-8, "int"))],
        BlockAggregate(
            (campaign,), z, 1_000, 300,
            (("rows", None), ("sum", i), ("min", i), ("max", a), ("count", x), ("sum", x)),
        ),
    ),
    "many_keys": (
        [],
        BlockAggregate(
            (p, x, f, d), None, 0, 0,
            (("sum_high", a), ("sum_low", a), ("min", x), ("max", x), ("min", f), ("max", d),
             ("sum", d), ("max", p), ("min", z)),
        ),
    ),
    "strings": (
        [call("ne", s, literal("b", "string")), call("gt", x, literal(-2.0, "double"))],
        BlockAggregate((s, t), z, 1 << 50, 0, (("rows", None), ("sum", call("length", s)))),
    ),
    "global": ([], BlockAggregate((), z, 1 << 58, 0, (("rows", None), ("sum", t)))),
    "no_columns": ([], BlockAggregate((), None, 0, 0, (("rows", None),))),
    "failing": (
        [call("lt", call("add", i, i), literal(100, "int"))],
        BlockAggregate((cast(a, "int"),), z, 7, 3, (("sum", call("multiply", t, t)),)),
    ),
    "overflow": ([], BlockAggregate((small,), None, 0, 0, (("sum", a), ("rows", None)))),
}  # fmt: skip


def spec_of(name: str) -> BlockSpec:
    filters, aggregate = CASES[name]
    time = None if aggregate.time is None else (z, 0)
    return BlockSpec(SCHEMA, tuple(filters), (), time, aggregate)


@pytest.fixture(scope="module")
def blocks(kernels: KernelCache) -> dict[str, tuple[Block, Block]]:
    return {n: (Block(spec_of(n), kernels), Block(spec_of(n), None)) for n in CASES}


def shown(partials: Partials) -> dict[str, Any]:
    """Everything that must be equal; floats by their bits but for NaN and the sign of zero."""
    values = []
    for array, valid in zip(partials.values, partials.validity, strict=True):
        present = np.ones(len(array), np.bool_) if valid is None else valid
        plain = np.where(np.isnan(array), np.nan, array + 0.0) if array.dtype.kind == "f" else array
        words = np.ascontiguousarray(plain).view(np.int64)
        values.append([int(w) if ok else None for w, ok in zip(words, present, strict=True)])
    dictionaries = [None if d is None else d.to_pylist() for d in partials.dictionaries]
    late = None if partials.late_mask is None else partials.late_mask.tolist()
    return {
        "words": partials.words.tolist(),
        "nulls": partials.null_words.tolist(),
        "panes": partials.panes.tolist(),
        "hashes": partials.hashes.tolist(),
        "rows": partials.rows.tolist(),
        "values": values,
        "dictionaries": dictionaries,
        "late": (partials.late_rows, late),
        "time": partials.max_event_time_us,
        "bad": partials.bad_rows,
    }


def outcome(block: Block, batch: pa.RecordBatch, closed: int, alone: bool) -> Any:
    try:
        return shown(block.aggregate(batch, closed, True, collect_bad=True, alone=alone))
    except StateOverflow as error:
        return error.details["row"]


@pytest.mark.parametrize("name", some(sorted(CASES), every=3))
@settings(SEEDED, max_examples=examples(25))
@given(
    batch=batches(SCHEMA, rows_max=60),
    closed=st.sampled_from([PANE_NONE, -1, 0, 1 << 40]),
    alone=st.booleans(),
)
def test_compiled_and_twin_agree(
    blocks: dict[str, tuple[Block, Block]],
    name: str,
    batch: pa.RecordBatch,
    closed: int,
    alone: bool,
) -> None:
    compiled, twin = blocks[name]
    assert outcome(compiled, batch, closed, alone) == outcome(twin, batch, closed, alone)


@pytest.mark.slow
def test_all_cases_are_compiled(blocks: dict[str, tuple[Block, Block]]) -> None:
    for compiled, _ in blocks.values():
        compiled.ask_for_kernels()
    assert [name for name, (compiled, _) in blocks.items() if not compiled.is_compiled] == []


def by_hand(batch: pa.RecordBatch, closed: int) -> tuple[dict[Any, dict[str, Any]], int]:
    """The `windowed` case in plain Python."""
    table = {n: n % 3 for n in range(-9, 6)}
    groups: dict[Any, dict[str, Any]] = {}
    late = 0
    times = batch.column("z").cast(pa.int64()).to_pylist()
    for index, row in enumerate(batch.drop_columns(["z"]).to_pylist()):
        if row["i"] is None or row["i"] <= -8 or times[index] is None:
            continue
        pane = (times[index] - 300) // 1000
        if pane <= closed:
            late += 1
            continue
        group = groups.setdefault((table.get(row["i"]), pane), {"rows": 0, "sum": 0, "count": 0})
        group["rows"] += 1
        group["sum"] += row["i"]
        group["min"] = min(group.get("min", row["i"]), row["i"])
        if row["a"] is not None:
            group["max"] = max(group.get("max", row["a"]), row["a"])
        group["count"] += row["x"] is not None
    return groups, late


@settings(SEEDED, max_examples=examples(40))
@given(batch=batches(SCHEMA, rows_max=60), closed=st.sampled_from([PANE_NONE, 0]))
def test_windowed_case_against_plain_python(
    blocks: dict[str, tuple[Block, Block]], batch: pa.RecordBatch, closed: int
) -> None:
    partials = blocks["windowed"][0].aggregate(batch, closed)
    expected, late = by_hand(batch, closed)
    assert partials.late_rows == late
    keys = [
        (None if null else int(word), int(pane))
        for word, null, pane in zip(
            partials.words[:, 0], partials.null_words, partials.panes, strict=True
        )
    ]
    assert keys == list(expected), "groups come in the order of their first row"
    for index, group in enumerate(expected.values()):
        row = {
            name: (None if ok is not None and not ok[index] else int(array[index]))
            for name, array, ok in zip(
                ("rows", "sum", "min", "max", "count"), partials.values, partials.validity,
                strict=False,
            )
        }  # fmt: skip
        assert row == {"max": None, **group}


def test_more_groups_than_the_table_has_room_for(kernels: KernelCache) -> None:
    """The table grows in the middle of a batch, more than once, and forgets it all afterwards."""
    spec = BlockSpec(SCHEMA, (), (), None, BlockAggregate((a,), z, 1000, 0, (("sum", i),)))
    compiled, twin = Block(spec, kernels), Block(spec, None)
    random = Random(5)
    count = 40_000
    columns = {
        "a": pa.array([random.randrange(15_000) for _ in range(count)], pa.int64()),
        "i": pa.array(range(count), pa.int32()),
        "z": pa.array([random.randrange(3000) for _ in range(count)], pa.int64()).cast(
            pa.timestamp("us", "UTC")
        ),
    }
    batch = pa.RecordBatch.from_pydict(columns)
    first = shown(compiled.aggregate(batch))
    assert len(first["rows"]) > 20_000
    assert first == shown(twin.aggregate(batch))
    assert shown(compiled.aggregate(batch)) == first
    alone = compiled.aggregate(batch, alone=True)
    assert alone.rows.tolist() == [1] * count
    assert alone.words[:, 0].tolist() == batch.column("a").to_pylist()
    assert shown(compiled.aggregate(batch)) == first
    assert shown(compiled.aggregate(batch.slice(0, 10))) == shown(
        twin.aggregate(batch.slice(0, 10))
    )


def test_batch_boundaries_do_not_change_sums(blocks: dict[str, tuple[Block, Block]]) -> None:
    whole = random_batch(Random(1), SCHEMA, 300, 0.1)

    def totals(pieces: list[pa.RecordBatch]) -> dict[Any, int]:
        found: dict[Any, int] = {}
        for piece in pieces:
            part = blocks["windowed"][0].aggregate(piece)
            for index in range(len(part.rows)):
                key = (
                    int(part.words[index, 0]),
                    int(part.null_words[index]),
                    int(part.panes[index]),
                )
                found[key] = found.get(key, 0) + int(part.values[1][index])
        return found

    expected = totals([whole])
    for seed in range(5):
        cuts = sorted(Random(seed).sample(range(1, 300), 7))
        pieces = [whole.slice(lo, hi - lo) for lo, hi in zip([0, *cuts], [*cuts, 300], strict=True)]
        assert totals(pieces) == expected


def test_a_failing_row_is_named_and_leaves_the_block_usable(
    blocks: dict[str, tuple[Block, Block]],
) -> None:
    batch = random_batch(Random(3), SCHEMA, 50)
    compiled, twin = blocks["failing"]
    bad = compiled.aggregate(batch, collect_bad=True).bad_rows
    assert bad
    with pytest.raises(RowError) as caught:
        compiled.aggregate(batch)
    assert caught.value.details["row"] == bad[0]
    good = batch.take(pa.array([row for row in range(50) if row not in bad]))
    assert shown(compiled.aggregate(good)) == shown(twin.aggregate(good))
