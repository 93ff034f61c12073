"""Sorted and cut results against Python's own sort; limits of streams through restarts."""

from __future__ import annotations

import math
import random
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import StateError
from penstock.expressions.types import Field, Schema, arrow_schema, parse_type
from penstock.json_codec import canonical_json, parse
from penstock.operators.chain import Chain
from penstock.operators.ordering import levels, sorted_places
from penstock.operators.specs import (
    WEIGHT_COLUMN,
    WEIGHT_FIELD,
    LimitSpec,
    Order,
    SortSpec,
    SortStep,
    column_of,
    spec_from_json,
)
from tests.operators.chains import linear

ROWS: Schema = (
    Field("k", parse_type("string")), Field("n", parse_type("bigint")),
    Field("x", parse_type("double")), WEIGHT_FIELD,
)  # fmt: skip
K, N, X = (column_of(field) for field in ROWS[:3])
STEPS = (
    SortStep((Order(X, descending=True, nulls_first=False), Order(K), Order(N))),
    SortStep(offset=2),
    SortStep(limit=5),
    SortStep((Order(N, nulls_first=False), Order(K), Order(X))),
)
Row = tuple[Any, ...]


def _batch(rows: list[Row], weights: list[int]) -> pa.RecordBatch:
    columns = [list(each) for each in zip(*rows, strict=True)] if rows else [[], [], []]
    arrays = [
        pa.array(values, kind)
        for values, kind in zip([*columns, weights], arrow_schema(ROWS).types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(ROWS))


def _value(value: Any) -> Any:
    is_nan = isinstance(value, float) and math.isnan(value)
    return is_nan, 0 if is_nan else value


def _expected(rows: list[Row]) -> list[Row]:
    """Sorts one column after the other, the weightiest last."""

    def by(found: list[Row], at: int, descending: bool, nulls_first: bool) -> list[Row]:
        there = [row for row in found if row[at] is not None]
        nulls = [row for row in found if row[at] is None]
        there.sort(key=lambda row: _value(row[at]), reverse=descending)
        return nulls + there if nulls_first else there + nulls

    found = by(by(by(rows, 1, False, True), 0, False, True), 2, True, False)
    found = found[2:][:5]
    return by(by(by(found, 2, False, True), 0, False, True), 1, False, False)


def _rows(batches: tuple[pa.RecordBatch, ...]) -> list[Row]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def _restarted(chain: Chain, specs: list[Any]) -> Chain:
    """A chain that has what a checkpoint of this one has."""
    fresh = linear(specs, ROWS, None)
    for name, state in chain.states.items():
        picture = state.begin_snapshot()
        while not picture.copy_some():
            pass
        fresh.states[name].restore(picture.batches())
    fresh.restore_progress(parse(canonical_json(chain.progress())))
    return fresh


@pytest.mark.parametrize("seed", range(12))
def test_each_commit_shows_what_python_sorts(seed: int) -> None:
    rng = random.Random(seed)
    specs = [SortSpec(STEPS)]
    chain, there = linear(specs, ROWS, None), list[Row]()
    values = (None, 0.0, 1.5, -2.0, math.inf, -math.inf, math.nan)
    for _ in range(15):
        gone = [there.pop(rng.randrange(len(there))) for _ in range(rng.randrange(len(there) + 1))]
        come = [
            (rng.choice((None, "", "a", "ä", "b")), rng.choice((None, 1, 2)), rng.choice(values))
            for _ in range(rng.randrange(1, 8))
        ]
        there += come
        chain.process(_batch(gone + come, [-1] * len(gone) + [1] * len(come)))
        assert chain.owes_whole_result()
        assert repr(_rows(chain.on_commit())) == repr(_expected(there))
        for state in chain.states.values():
            state.take_changes()
        assert not chain.owes_whole_result()
        assert not chain.on_commit()
        if rng.random() < 0.3:
            chain = _restarted(chain, specs)


def test_a_row_that_was_never_there_cannot_go() -> None:
    chain = linear([SortSpec((SortStep((Order(N),)),))], ROWS, None)
    with pytest.raises(StateError, match="do not fit together"):
        chain.process(_batch([("a", 1, 0.0)], [-1]))


def test_nested_values_are_in_the_order_of_their_parts() -> None:
    lists = pa.array([[2], [1, 5], [], [1], None, [None, 9], [1, None]], pa.list_(pa.int64()))
    found = lists.take(pa.array(sorted_places(levels(lists), len(lists)))).to_pylist()
    assert found == [None, [], [None, 9], [1], [1, None], [1, 5], [2]]
    kind = pa.struct([("a", pa.int64()), ("b", pa.string())])
    rows = [{"a": 1, "b": "y"}, None, {"a": None, "b": "z"}, {"a": 1, "b": "x"}]
    structs = pa.array(rows, kind)
    down = sorted_places(levels(structs, descending=True, nulls_first=False), len(rows))
    assert [rows[at] for at in down] == [rows[0], rows[3], rows[2], rows[1]]


@pytest.mark.parametrize("limit", [0, 1, 7, 100])
def test_the_first_rows_pass_once_through_restarts(limit: int) -> None:
    specs = [LimitSpec(limit)]
    chain, passed = linear(specs, ROWS, None), list[Row]()
    rows: list[Row] = [("r", number, 0.0) for number in range(30)]
    for first in range(0, len(rows), 4):
        some = rows[first : first + 4]
        passed += _rows(chain.process(_batch(some, [1] * len(some))).batches)
        chain = _restarted(chain, specs)
    assert [row[:3] for row in passed] == rows[:limit]


def test_they_travel_as_json() -> None:
    for spec in (SortSpec(STEPS), LimitSpec(3)):
        assert spec_from_json(parse(canonical_json(spec.to_json()))) == spec
    assert WEIGHT_COLUMN not in {field.name for field in SortSpec(STEPS).output_schema(ROWS)}
