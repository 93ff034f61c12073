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

from penstock.catalyst.aggregates import FUNCTIONS as AGGREGATES
from penstock.catalyst.expressions import EXPRESSION_KINDS
from penstock.catalyst.plans import NODE_KINDS
from penstock.catalyst.translate import Translated
from penstock.errors import ExpressionError
from penstock.expressions.functions import FUNCTIONS
from penstock.expressions.tree import Call, Expression, column
from penstock.expressions.tree import walk as walk_expression
from penstock.expressions.types import DataType
from penstock.operators.specs import KEY_KINDS_REFUSED, MODES, AggregateCall
from penstock.plan.nodes import (
    Aggregate,
    Exchange,
    Filter,
    Generate,
    PartialAggregate,
    Project,
    Relation,
    StreamRef,
    walk,
)
from penstock.plan.place_exchanges import place_exchanges
from penstock.plan.query import Query, Write
from tests.catalyst.conftest import stream
from tests.catalyst.expression_cases import CASES, COLUMNS
from tests.oracle.edges import EDGE_SCHEMA, PAIRS
from tests.oracle.planned import Planned
from tests.oracle.queries import queries
from tests.oracle.test_sources import COLUMNS as FILE_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

# A function for programs that are not written in PySpark, which says it in another way.
NOT_IN_PYSPARK = {"nullif"}


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
        self.nodes = [node for each in self.translated for node in walk(each.relation)]

    def expressions(self) -> Iterable[Expression]:
        for node in self.nodes:
            if isinstance(node, Project):
                yield from (tree for _, tree in node.columns)
            elif isinstance(node, Filter):
                yield node.condition
            elif isinstance(node, Generate):
                yield node.expression
            elif isinstance(node, Aggregate):
                yield from (key for _, key in node.keys)
                yield from (call.argument for call in node.aggregates if call.argument is not None)
                if node.window is not None:
                    yield node.window.time

    def aggregates(self) -> list[Aggregate]:
        return [node for node in self.nodes if isinstance(node, Aggregate)]


@pytest.fixture(scope="module")
def reached(
    spark: SparkSession, planned: Planned, tmp_path_factory: pytest.TempPathFactory
) -> Reached:
    return Reached(spark, planned, tmp_path_factory.mktemp("files"))


def test_every_expression_of_spark_that_is_read(reached: Reached) -> None:
    assert EXPRESSION_KINDS - reached.expression_kinds == set()


def test_every_node_of_spark_that_is_read(reached: Reached) -> None:
    assert NODE_KINDS - reached.node_kinds == set()


def test_every_function_of_ours(reached: Reached) -> None:
    found = {
        part.function
        for tree in reached.expressions()
        for part in walk_expression(tree)
        if isinstance(part, Call)
    }
    assert set(FUNCTIONS) - found == NOT_IN_PYSPARK


def test_every_node_of_ours(reached: Reached) -> None:
    found = {type(node) for each in reached.translated for node in _planned(each)}
    assert set(get_args(Relation)) - found == set()


def _planned(translated: Translated) -> list[Relation]:
    """The nodes of a query that runs in three parts."""
    query = Query(translated.query, (Write(translated.relation, StreamRef("out")),), 3)
    return [node for write in place_exchanges(query).writes for node in walk(write.child)]


def test_every_way_to_explode(reached: Reached) -> None:
    ways = {
        (node.outer, node.position is not None)
        for node in reached.nodes
        if isinstance(node, Generate)
    }
    assert ways == {(outer, position) for outer in (False, True) for position in (False, True)}


def test_every_window_in_every_output_mode(reached: Reached) -> None:
    found = {(node.mode, _shape(node)) for node in reached.aggregates()}
    endless = {("append", "none")}  # refused: a group without a window never ends
    shapes = ("none", "tumbling", "sliding", "uneven")
    assert {(mode, shape) for mode in MODES for shape in shapes} - found == endless


def _shape(node: Aggregate) -> str:
    if node.window is None:
        return "none"
    if node.window.size_us == node.window.slide_us:
        return "tumbling"
    return "uneven" if node.window.size_us % node.window.slide_us else "sliding"


def test_every_aggregate_of_every_type(reached: Reached) -> None:
    found = {
        (call.function, call.argument.type.kind)
        for node in reached.aggregates()
        for call in node.aggregates
        if call.argument is not None
    }
    assert _possible_aggregates() - found == set()


@cache
def _possible_aggregates() -> frozenset[tuple[str, str]]:
    possible = set()
    for function in AGGREGATES.values():
        for kind in _types():
            try:
                AggregateCall(function, column("x", kind), "x")
            except ExpressionError:
                continue
            possible.add((function, kind.kind))
    return frozenset(possible)


def _types() -> set[DataType]:
    return {field.type for field in EDGE_SCHEMA}


def test_keys_of_every_type(reached: Reached) -> None:
    found = {key.type.kind for node in reached.aggregates() for _, key in node.keys}
    assert {kind.kind for kind in _types()} - KEY_KINDS_REFUSED - found == set()


def test_the_matrix_has_every_type_that_is_not_nested() -> None:
    nested = {"array", "struct", "map"}
    kinds: set[Any] = {kind.kind for kind in _types()} - nested
    assert kinds == {text.partition("(")[0] for text in PAIRS}


def test_partials_are_exchanged(reached: Reached) -> None:
    """Both ways to an aggregate: as partials, and as rows where another aggregate made them."""
    exchanged = [
        type(node.child)
        for each in reached.translated
        for node in _planned(each)
        if isinstance(node, Exchange)
    ]
    assert PartialAggregate in exchanged
    assert {kind for kind in exchanged if kind is not PartialAggregate}
