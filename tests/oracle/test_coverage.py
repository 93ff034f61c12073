"""Nothing that the front end takes goes unjudged: what no case reaches is named here.

The other tests of this folder compare the same cases; here they are only read, so that it does not
matter which of them ran.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest

from penstock.catalyst.expressions import EXPRESSION_KINDS
from penstock.catalyst.plans import NODE_KINDS
from penstock.catalyst.translate import Translated
from penstock.errors import ExpressionError
from penstock.expressions.functions import FUNCTIONS
from penstock.expressions.tree import Call, Expression, column
from penstock.expressions.tree import walk as walk_expression
from penstock.expressions.types import DataType
from penstock.operators.aggregate_functions import AGGREGATES
from penstock.operators.specs import (
    MODES,
    AggregateCall,
    AggregateSpec,
    FilterSpec,
    GenerateSpec,
    ObserveSpec,
    OperatorSpec,
    PartialAggregateSpec,
    ProjectSpec,
    PythonGroupsSpec,
    PythonRowsSpec,
    PythonSpec,
    SessionSpec,
    SparkSpec,
    TableSpec,
    WindowSpec,
    is_key_type,
)
from penstock.plan.nodes import Exchange, Relation, StreamRef, spec_of, walk
from penstock.plan.place_exchanges import place_exchanges
from penstock.plan.query import Query, Write
from tests.catalyst.conftest import stream
from tests.catalyst.expression_cases import CASES, COLUMNS
from tests.oracle.edges import EDGE_SCHEMA, PAIRS
from tests.oracle.planned import Planned
from tests.oracle.queries import queries
from tests.oracle.test_sources import COLUMNS as FILE_COLUMNS
from tests.spark.group_cases import GROUP_NODES
from tests.spark.python_cases import PYTHON_NODES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

# A function for programs that are not written in PySpark, which says it in another way.
NOT_IN_PYSPARK = {"nullif"}
OF_MONTHS = {"interval_months", "interval_of_months"}  # which test_types.py judges
# What other tests judge: what is observed (tests/api/test_observed.py), rows of tables
# (test_tables.py), what Spark computes itself, and functions in Python (tests/spark/test_python.py
# and test_python_groups.py).
JUDGED_ELSEWHERE = {
    ObserveSpec, PythonGroupsSpec, PythonRowsSpec, PythonSpec, SparkSpec, TableSpec,
}  # fmt: skip


class Reached:
    """Every case, as the front end reads it."""

    def __init__(self, spark: SparkSession, planned: Planned, folder: Path) -> None:
        self.translated = [planned.query(spark, name) for name in queries()]
        selected = [f"{sql} AS c{index}" for index, (sql, *_) in enumerate(CASES)]
        self.translated.append(planned.read(stream(spark, COLUMNS).selectExpr(*selected)))
        for name, columns in FILE_COLUMNS.items():
            reader = spark.readStream.format(name).schema(columns)
            self.translated.append(planned.read(reader.load(str(folder))))
        self.expression_kinds = frozenset(planned.expression_kinds)
        self.node_kinds = frozenset(planned.node_kinds)
        self.specs = [spec_of(node) for each in self.translated for node in walk(each.relation)]

    def expressions(self) -> Iterable[Expression]:
        for spec in self.specs:
            if isinstance(spec, ProjectSpec):
                yield from (tree for _, tree in spec.columns)
            elif isinstance(spec, FilterSpec):
                yield spec.condition
            elif isinstance(spec, GenerateSpec):
                yield spec.expression
            elif isinstance(spec, AggregateSpec):
                yield from (key for _, key in spec.keys)
                yield from (call.argument for call in spec.aggregates if call.argument is not None)
                if spec.window is not None:
                    yield spec.window.event_time

    def aggregates(self) -> list[AggregateSpec]:
        return [spec for spec in self.specs if isinstance(spec, AggregateSpec)]


@pytest.fixture(scope="module")
def reached(
    spark: SparkSession, planned: Planned, tmp_path_factory: pytest.TempPathFactory
) -> Reached:
    return Reached(spark, planned, tmp_path_factory.mktemp("files"))


def test_every_expression_of_spark_that_is_read(reached: Reached) -> None:
    static = {"ScalarSubquery"}  # of rows that do not stream: test_shapes.py
    assert EXPRESSION_KINDS - reached.expression_kinds == static


def test_every_node_of_spark_that_is_read(reached: Reached) -> None:
    tables = {"CollectMetrics"}  # which as_table writes: test_tables.py
    assert NODE_KINDS - reached.node_kinds == PYTHON_NODES | GROUP_NODES | tables


def test_every_function_of_ours(reached: Reached) -> None:
    found = {
        part.function
        for tree in reached.expressions()
        for part in walk_expression(tree)
        if isinstance(part, Call)
    }
    assert set(FUNCTIONS) - found == NOT_IN_PYSPARK | OF_MONTHS


def test_every_node_of_ours(reached: Reached) -> None:
    nodes = [node for each in reached.translated for node in _planned(each)]
    assert set(get_args(Relation)) - {type(node) for node in nodes} == set()
    found = {type(spec_of(node)) for node in nodes}
    assert set(get_args(OperatorSpec)) - found == JUDGED_ELSEWHERE


def _planned(translated: Translated) -> list[Relation]:
    """The nodes of a query that runs in three parts."""
    query = Query(translated.query, (Write(translated.relation, StreamRef("out")),), 3)
    return [node for write in place_exchanges(query).writes for node in walk(write.child)]


def test_every_way_to_explode(reached: Reached) -> None:
    ways = {
        (spec.outer, spec.position is not None)
        for spec in reached.specs
        if isinstance(spec, GenerateSpec)
    }
    assert ways == {(outer, position) for outer in (False, True) for position in (False, True)}


def test_every_window_in_every_output_mode(reached: Reached) -> None:
    found = {(spec.mode, _shape(spec.window)) for spec in reached.aggregates()}
    endless = {("append", "none")}  # refused: a group without a window never ends
    shapes = ("none", "tumbling", "sliding", "uneven")
    assert {(mode, shape) for mode in MODES for shape in shapes} - found == endless


def _shape(window: WindowSpec | SessionSpec | None) -> str:
    if window is None:
        return "none"
    if isinstance(window, SessionSpec):
        return "session"
    if window.size_us == window.slide_us:
        return "tumbling"
    return "uneven" if window.size_us % window.slide_us else "sliding"


def test_every_aggregate_of_every_type(reached: Reached) -> None:
    found = {
        (call.function, call.argument.type.kind)
        for spec in reached.aggregates()
        for call in spec.aggregates
        if call.argument is not None
    }
    assert _possible_aggregates() - found == set()


@cache
def _possible_aggregates() -> frozenset[tuple[str, str]]:
    possible = set()
    kinds = [kind for kind in _types() if kind.kind != "map"]  # the events have none
    for function in AGGREGATES:
        for kind in kinds:
            try:
                call = AggregateCall(function, column("x", kind), "x")
            except ExpressionError:
                continue
            # What keeps rows or values has queries by name.
            if call.row.collects == "none" and all(each.in_loop for each in call.accumulators):
                possible.add((function, kind.kind))
    return frozenset(possible)


def _types() -> set[DataType]:
    return {field.type for field in EDGE_SCHEMA}


def test_keys_of_every_type(reached: Reached) -> None:
    found = {key.type.kind for spec in reached.aggregates() for _, key in spec.keys}
    assert {kind.kind for kind in _types() if is_key_type(kind)} - found == set()


def test_the_matrix_has_every_type_that_is_not_nested() -> None:
    nested = {"array", "struct", "map"}
    kinds: set[Any] = {kind.kind for kind in _types()} - nested
    assert kinds == {text.partition("(")[0] for text in PAIRS}


def test_partials_are_exchanged(reached: Reached) -> None:
    """Both ways to an aggregate: as partials, and as rows where another aggregate made them."""
    exchanged = [
        type(spec_of(node.child))
        for each in reached.translated
        for node in _planned(each)
        if isinstance(node, Exchange)
    ]
    assert PartialAggregateSpec in exchanged
    assert {kind for kind in exchanged if kind is not PartialAggregateSpec}
