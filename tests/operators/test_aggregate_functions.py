"""The tables of aggregates and of accumulators are whole, and fit each other."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import ExpressionError
from penstock.expressions.tree import column
from penstock.expressions.types import arrow_type
from penstock.kernels.accumulators import ACCUMULATORS, AccumulatorFunction
from penstock.operators.aggregate_functions import AGGREGATES
from penstock.operators.item_results import Items
from penstock.operators.specs import AggregateCall, accumulators_of

TYPES = [
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(8,2)", "date",
    "timestamp", "timestamp_ntz", "string", "binary", "array<int>", "decimal(18,2)",
    "decimal(38,6)", "struct<a:int,b:string>", "map<int,string>",
]  # fmt: skip


def test_every_row_stands_under_its_name() -> None:
    assert all(row.name == name for name, row in AGGREGATES.items())
    assert all(row.name == name for name, row in ACCUMULATORS.items())
    assert len({(row.catalyst, row.fails) for row in AGGREGATES.values()}) == len(AGGREGATES)


def test_every_accumulator_is_of_some_aggregate_and_the_other_way_round() -> None:
    kept = {
        accumulator.function
        for name in AGGREGATES
        for kind in TYPES
        for call in calls(name, kind)
        for accumulator in accumulators_of((call,))
    }
    assert kept | {"rows"} == set(ACCUMULATORS)


def calls(name: str, kind: str) -> list[AggregateCall]:
    """The aggregate of a column of this type, if it takes one."""
    has_second = AGGREGATES[name].second in ("order", "pair")
    second = column("z", kind) if has_second else None
    try:
        return [AggregateCall(name, column("x", kind), "y", second, options=OPTIONS.get(name, ()))]
    except ExpressionError:
        return []


def test_what_an_accumulator_reads_comes_behind_it() -> None:
    """A state merges column after column, so what is read is not merged yet."""
    asked = [call for name in AGGREGATES for kind in TYPES for call in calls(name, kind)]
    found = accumulators_of((*asked, *reversed(asked)))
    assert len(found) == len(set(found))
    for at, accumulator in enumerate(found):
        assert all(found.index(other) > at for other in accumulator.reads)


OPTIONS = {
    "percentile": (True, False, 0.5),
    "percentile_disc": (True, True, 0.5),
    "listagg": (", ", True, False),
    "percentile_approx": (True, 100, 0.5),
    "approx_count_distinct": (9, 400.0, 0),
}


def gathered(aggregate: AggregateCall) -> pa.Array:
    """The column of an aggregate of items, of two groups that have none."""
    assert aggregate.row.gather is not None
    assert aggregate.collection is not None
    collection = aggregate.collection
    keys = [pa.array([], arrow_type(kind)) for kind in collection.keys]
    values = [pa.array([], arrow_type(collection.value))]
    items = Items(np.empty(0, np.int64), 2, keys, values)
    column = aggregate.row.gather(items, aggregate.options, aggregate.type)
    assert len(column) == 2
    return column


@pytest.mark.parametrize("name", AGGREGATES)
@pytest.mark.parametrize("kind", TYPES)
def test_an_aggregate_of_no_groups_has_its_type(name: str, kind: str) -> None:
    for aggregate in calls(name, kind):
        if aggregate.collection is not None:
            assert gathered(aggregate).type == arrow_type(aggregate.type)
            continue
        accumulators = aggregate.accumulators
        empty = [arrow_type(accumulator.type) for accumulator in accumulators]
        result = aggregate.finish(accumulators, [pa.array([], each) for each in empty])
        assert result.type == arrow_type(aggregate.type)


@pytest.mark.parametrize(
    "row", [row for row in ACCUMULATORS.values() if row.fold], ids=lambda row: row.name
)
def test_an_accumulator_begins_with_what_any_value_replaces(row: AccumulatorFunction) -> None:
    """What the loop begins with and what NumPy begins with are one number."""
    for argument in (column("x", "bigint"), column("x", "double")):
        first = np.full(1, row.first(argument), row.dtype(argument))
        seven = np.full(1, 7, first.dtype)
        assert row.fold is not None
        with np.errstate(all="ignore"):
            row.fold(first, np.zeros(1, np.int64), seven)
        assert first[0] == {"sum_high": 0, "count": 1, "rows": 1}.get(row.name, 7)
