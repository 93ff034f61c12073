"""Expressions judged by Spark: one query over the rows that we evaluate, and Spark's own word on
each row that we refuse."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.catalyst.translate import Translated, translate
from penstock.expressions.evaluate import evaluate_rows
from penstock.expressions.tree import Expression, call, column, inline, literal
from penstock.expressions.types import INT, schema_from_arrow
from penstock.operators.specs import NamedExpression, ProjectSpec
from penstock.plan.nodes import Relation, Scan, Step, step
from tests.catalyst.conftest import stream
from tests.oracle.engine import Manner, run_rows
from tests.oracle.feeding import cut_into_rounds
from tests.oracle.verdict import plain_column, same_type, static_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Flags = NDArray[np.bool_]
SHOWN_MAX = 40


@dataclass(frozen=True)
class Judge:
    """One set of rows, numbered by their column `row`, and expressions over them.

    In both engines an expression that fails for some rows stands behind a condition on the number
    of the row, because one row that fails would fail the whole batch.
    """

    spark: SparkSession
    batch: pa.RecordBatch
    cases: Sequence[str]

    def compare(self, folder: Path, manner: Manner, refusals_max: int | None) -> list[str]:
        """What differs, as sentences; of the rows that we refuse so many are asked for per case."""
        rng = random.Random(manner.seed)
        translated = self._translated()
        scan, columns = _one_projection(translated.relation)
        trees = [tree for _, tree in columns[1:]]
        refused = [evaluate_rows([tree], self.batch)[1] for tree in trees]
        guarded = [
            (f"c{index}", _guarded(tree, bad))
            for index, (tree, bad) in enumerate(zip(trees, refused, strict=True))
        ]
        relation = step(ProjectSpec((columns[0], *guarded)), scan)
        rounds = cut_into_rounds(self.batch, rng)
        ours = run_rows(replace(translated, relation=relation), rounds, folder, manner).rows
        found = self._values(ours.sort_by("row"), refused)
        return found + self._accepted_by_spark(refused, rng, refusals_max)

    def trees(self) -> list[Expression]:
        """The expressions as the front end reads them."""
        return [tree for _, tree in _one_projection(self._translated().relation)[1][1:]]

    def _translated(self) -> Translated:
        """The query of all expressions, after the number of the row."""
        named = [f"{sql} AS c{index}" for index, sql in enumerate(self.cases)]
        return translate(self._streaming().selectExpr("row", *named), query="judged")

    def _streaming(self) -> DataFrame:
        fields = schema_from_arrow(self.batch.schema)
        return stream(self.spark, ", ".join(f"`{field.name}` {field.type}" for field in fields))

    def _standing(self) -> DataFrame:
        return static_frame(self.spark, pa.Table.from_batches([self.batch]))

    def _values(self, ours: pa.Table, refused: Sequence[Flags]) -> list[str]:
        guarded = (
            sql if not bad.any() else f"CASE WHEN {_row_is_in(~bad)} THEN ({sql}) END"
            for sql, bad in zip(self.cases, refused, strict=True)
        )
        selected = ["row", *(f"{sql} AS c{index}" for index, sql in enumerate(guarded))]
        try:
            theirs = self._standing().selectExpr(*selected).toArrow().sort_by("row")
        except Exception as error:
            refusals = Refusals(self._standing(), self.cases)
            return [f"Spark refuses: {str(error)[:300]}", *self._refused_by_spark(ours, refusals)]
        found = []
        assert ours.num_rows == theirs.num_rows == self.batch.num_rows
        for index, sql in enumerate(self.cases):
            mine, other = ours.column(index + 1), theirs.column(index + 1)
            if not same_type(mine.type, other.type):
                found.append(f"{sql}: type {mine.type}, in Spark {other.type}")
                continue
            pairs = zip(plain_column(mine), plain_column(other), strict=True)
            found += [
                f"{sql} on {self._given(row, sql)}: {a!r}, in Spark {b!r}"
                for row, (a, b) in enumerate(pairs)
                if a != b
            ]
        return found

    def _refused_by_spark(self, ours: pa.Table, refusals: Refusals) -> list[str]:
        """Rows that we evaluate and Spark does not."""
        return [
            f"{sql} on {self._given(row, sql)}: {value!r}, refused by Spark"
            for index, sql in enumerate(self.cases)
            for row, value in enumerate(plain_column(ours.column(index + 1)))
            if value is not None and refusals.message(index, row) is not None
        ][:SHOWN_MAX]

    def _accepted_by_spark(
        self, refused: Sequence[Flags], rng: random.Random, refusals_max: int | None
    ) -> list[str]:
        """Rows that we refuse and Spark does not."""
        asked = {
            index: [int(row) for row in np.flatnonzero(bad)]
            for index, bad in enumerate(refused)
            if bad.any()
        }
        if not asked:
            return []
        refusals = Refusals(self._standing(), self.cases)
        found = []
        for index, rows in asked.items():
            sql = self.cases[index]
            some = rows if refusals_max is None else rng.sample(rows, min(refusals_max, len(rows)))
            found += [
                f"{sql} on {self._given(row, sql)}: refused, not in Spark"
                for row in some
                if refusals.message(index, row) is None
            ]
        return found

    def _given(self, row: int, sql: str) -> dict[str, Any]:
        """The values of the columns that an expression seems to read."""
        return {
            name: plain_column(self.batch.column(name).slice(row, 1))[0]
            for name in self.batch.schema.names
            if name in sql
        }


def _one_projection(relation: Relation) -> tuple[Scan, tuple[NamedExpression, ...]]:
    """Projections over a scan as one: Spark puts what is used twice into one of its own."""
    assert isinstance(relation, Step)
    assert isinstance(relation.spec, ProjectSpec)
    if isinstance(relation.child, Scan):
        return relation.child, relation.spec.columns
    scan, below = _one_projection(relation.child)
    inlined = ((name, inline(tree, dict(below))) for name, tree in relation.spec.columns)
    return scan, tuple(inlined)


def _guarded(tree: Expression, bad: Flags) -> Expression:
    """The expression for the rows that it does not fail on, null for the others."""
    if not bad.any():
        return tree
    numbers = [literal(int(row), INT) for row in np.flatnonzero(~bad)]
    if not numbers:
        return literal(None, tree.type)
    return call("case", call("in", column("row", INT), *numbers), tree)


def _row_is_in(rows: Flags) -> str:
    return f"row IN ({', '.join(map(str, np.flatnonzero(rows)))})" if rows.any() else "false"


class Refusals:
    """Asks Spark's own expressions, bound to the rows, for their values one row at a time."""

    def __init__(self, frame: DataFrame, expressions: Sequence[str]) -> None:
        session: Any = frame.sparkSession
        catalyst = session._jvm.org.apache.spark.sql.catalyst
        replace = getattr(getattr(catalyst.optimizer, "ReplaceExpressions$"), "MODULE$")
        named = [f"{sql} AS c{index}" for index, sql in enumerate(expressions)]
        plan = replace.apply(frame.selectExpr(*named)._jdf.queryExecution().analyzed())
        self._attributes = getattr(catalyst.expressions, "package$AttributeSeq")(
            plan.child().output()
        )
        self._bind = catalyst.expressions.BindReferences.bindReference
        self._columns = plan.projectList()
        self._rows = frame.orderBy("row")._jdf.queryExecution().executedPlan().executeCollect()
        self._bound: dict[int, Any] = {}
        self._frame, self._expressions = frame, expressions

    def message(self, index: int, row: int) -> str | None:
        """Why Spark refuses a row for one of the expressions, None if it does not."""
        if index not in self._bound:
            column = self._columns.apply(index)
            self._bound[index] = self._bind(column, self._attributes, False)
        try:
            self._bound[index].eval(self._rows[row])
        except Exception as error:
            if "INTERNAL_ERROR" not in str(error):
                return str(error)
        else:
            return None
        try:  # an expression that only a whole query can evaluate
            self._frame.where(f"row = {row}").selectExpr(self._expressions[index]).toArrow()
        except Exception as error:
            return str(error)
        return None
