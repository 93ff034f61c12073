"""The step that Spark computes, with a Python function in Spark's place."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import ExpressionError, RowError
from penstock.expressions.tree import Column, call, literal
from penstock.expressions.types import BIGINT, STRING, Field
from penstock.json_codec import canonical_json, parse
from penstock.operators.specs import FilterSpec, SparkColumn, SparkSpec, spec_from_json
from penstock.testing.spark import StandInSpark
from tests.operators.chains import linear

SCHEMA = (Field("n", BIGINT), Field("text", STRING))
N, TEXT = Column("n", BIGINT, True), Column("text", STRING, True)
SPEC = SparkSpec(
    (
        SparkColumn(Field("rest", BIGINT), (N,), "rest(n)", "rest"),
        SparkColumn(Field("both", STRING), (TEXT, N), "both(text, n)", "both"),
    )
)
SPARK = StandInSpark({"rest": lambda n: 100 // n, "both": lambda text, n: f"{text}{n}"})
ROWS = pa.record_batch({"n": [1, 0, 3, 0], "text": ["a", "b", None, "d"]})


def test_columns_are_added_behind_the_others() -> None:
    chain = linear((SPEC,), SCHEMA, None, spark=SPARK)
    (made,) = chain.process(ROWS.filter(pa.array([True, False, True, False]))).batches
    assert made.to_pylist() == [
        {"n": 1, "text": "a", "rest": 100, "both": "a1"},
        {"n": 3, "text": None, "rest": 33, "both": "None3"},
    ]
    assert chain.explain() == [("rest(n)", "spark"), ("both(text, n)", "spark")]


def test_a_row_that_fails_is_named_as_it_came() -> None:
    """Behind a filter: what is rejected are the rows of the input."""
    keeps = FilterSpec(call("is_not_null", TEXT))
    ends = FilterSpec(call("gt", Column("rest", BIGINT, True), literal(0, BIGINT)))
    chain = linear((keeps, SPEC, ends), SCHEMA, None, spark=SPARK)
    with pytest.raises(RowError, match=r"division .* in rest\(n\)"):
        chain.process(ROWS)
    output = chain.process(ROWS, on_bad_row="reject")
    assert output.rejected is not None
    assert output.rejected.column("text").to_pylist() == ["b", "d"]
    assert "division" in output.rejected.column("error")[0].as_py()
    assert [row["n"] for batch in output.batches for row in batch.to_pylist()] == [1]


def test_without_spark_it_says_where_it_belongs() -> None:
    with pytest.raises(ExpressionError, match="only the driver that planned the query"):
        linear((SPEC,), SCHEMA, None).process(ROWS)


def test_the_spec_travels_as_what_identifies_it_and_nothing_else() -> None:
    stored = parse(canonical_json(SPEC))
    assert spec_from_json(stored) == SPEC
    assert set(stored["columns"][0]) == {"result", "inputs", "text", "digest"}


def test_spark_takes_columns_only() -> None:
    odd = SparkSpec((SparkColumn(Field("x", BIGINT), (literal(1, BIGINT),), "x", "x"),))
    with pytest.raises(ExpressionError, match="Spark takes columns"):
        odd.output_schema(SCHEMA)
