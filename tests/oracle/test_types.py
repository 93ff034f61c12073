"""Columns of types that Arrow does not know, or that compare otherwise than their bytes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.api.session_sinks import frame_of
from penstock.catalyst.translate import translate
from penstock.errors import UnsupportedPlan
from tests.catalyst.conftest import stream
from tests.oracle.engine import Manner, run_rows
from tests.oracle.feeding import cut_into_rounds
from tests.oracle.verdict import Row, as_mode, differences, static_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

COLUMNS = "id bigint, name string, m int, n int"
SCHEMA = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("m", pa.int32()), ("n", pa.int32())]
)
NAMES = (None, "", "ab", "AB", "aB", "Ä", "ä", "A ", "a", "STRASSE", "straße")
MONTHS = (None, 0, 1, -1, 11, 12, 25, -2_147_483_648, 2_147_483_647)
Define = Callable[["DataFrame"], "DataFrame"]

_YM = "make_ym_interval(0, m) AS y"
_LCASE = "collate(name, 'UTF8_LCASE') AS c"
# Sums of these have room; what they are divided by is not always a divisor.
_SMALL = "make_ym_interval(0, m % 1000) AS y"


def _of(*columns: str) -> Define:
    return lambda rows: rows.selectExpr(*columns)


def _grouped(columns: tuple[str, ...], by: str, *results: str) -> Define:
    from pyspark.sql import functions as F  # noqa: PLC0415

    def define(rows: DataFrame) -> DataFrame:
        return rows.selectExpr(*columns).groupBy(by).agg(*map(F.expr, results))

    return define


# By name: its mode, and the query. What a collation says is equal is judged as its lower case.
CASES: dict[str, tuple[str, Define]] = {
    "void columns": (
        "append",
        _of("id", "null AS v", "struct(null AS v, m) AS s", "array(null, null) AS a"),
    ),
    "a map to void": ("append", _of("id", "map('k', null) AS v", "array() AS a")),
    "void of conditions": ("append", _of("id", "if(m > 3, null, null) AS v", "v IS NULL AS is")),
    "groups by void": (
        "complete",
        lambda rows: rows.selectExpr("null AS v", "n").groupBy("v", "n").count(),
    ),
    "groups by nothing but void": (
        "complete",
        lambda rows: rows.selectExpr("null AS v").groupBy("v").count(),
    ),
    "aggregates of void": (
        "complete",
        _grouped(
            ("null AS v", "n"), "n", "max(v) AS x", "first(v) AS f", "count(v) AS c",
            "collect_list(v) AS l", "approx_count_distinct(v) AS d", "count(1) AS r",
        ),
    ),
    "distinct rows with void": (
        "append", lambda rows: rows.selectExpr("null AS v", "n").distinct()
    ),
    "months": (
        "append",
        _of(
            "id", _YM, "interval '7' year AS year", "interval '7' month AS month",
            "struct(make_ym_interval(0, m) AS y) AS s", "array(interval '3' month, null) AS a",
        ),
    ),
    "arithmetic of months": (
        "append",
        lambda rows: rows.selectExpr("id", "m", _SMALL)
        .where("y > interval '-11' month OR y IS NULL")
        .selectExpr(
            "id", "y + interval '1' month AS sum", "-y AS less", "y * 3 AS times", "y / 7 AS part",
            "date'2024-02-29' + y AS day", "timestamp_ntz'2024-02-29 01:00:00' - y AS time",
            "extract(MONTH FROM y) AS month", "y = interval '1' month AS is", "string(y) AS text",
            "greatest(y, interval '5' month) AS most", "coalesce(y, interval '5' month) AS known",
        ),
    ),
    "groups by months": ("complete", _grouped((_YM, "id"), "y", "count(1) AS c", "max(id) AS x")),
    "updates by months": ("update", _grouped((_YM, "id"), "y", "count(1) AS c")),
    "groups by months in a struct": (
        "complete",
        lambda rows: rows.selectExpr(f"struct({_YM}, null AS v) AS s").groupBy("s").count(),
    ),
    "distinct months": ("append", lambda rows: rows.selectExpr(_YM).distinct()),
    "aggregates of months": (
        "complete",
        _grouped(
            (_SMALL, "n", "id"), "n", "min(y) AS least", "max(y) AS most", "sum(y) AS total",
            "avg(y) AS mean", "count(y) AS c", "count(DISTINCT y) AS d", "median(y) AS mid",
            "percentile_disc(0.3) WITHIN GROUP (ORDER BY y) AS some",
            "percentile_approx(y, 0.7) AS about", "max_by(y, id) AS last", "max_by(id, y) AS of",
            "sort_array(collect_set(y)) AS all", "approx_count_distinct(y) AS near",
        ),
    ),
    "percentiles of days": (
        "complete",
        _grouped(
            ("make_dt_interval(0, m % 1000) AS y", "n"), "n", "string(median(y)) AS mid",
            "string(percentile_approx(y, 0.7)) AS about",
        ),
    ),
    "texts with a collation": (
        "append",
        _of(
            "id", _LCASE, "array(collate(name, 'UNICODE_CI')) AS a", "c = 'ab' AS is",
            "c < 'b' AS less", "upper(c) AS up", "struct(collate(name, 'UNICODE_AI') AS x) AS s",
            "coalesce(c, 'none') AS known", "c IN ('AB', 'a') AS among", "hash(c) AS h",
            "array_distinct(array(c, upper(c))) AS d", "c LIKE 'a%' AS like",
        ),
    ),
    "groups by a collation": ("complete", _grouped((_LCASE, "id"), "c", "count(1) AS n")),
    "updates by a collation": ("update", _grouped((_LCASE, "id"), "c", "count(1) AS n")),
    "groups by Unicode": (
        "complete",
        _grouped(("collate(name, 'UNICODE_CI_AI') AS c", "id"), "c", "max(id) AS n"),
    ),
    "groups by trimmed texts": (
        "complete", _grouped(("collate(name, 'UTF8_LCASE_RTRIM') AS c", "id"), "c", "max(id) AS n")
    ),
    "distinct by a collation": ("append", lambda rows: rows.selectExpr(_LCASE).distinct()),
    "duplicates by a collation": (
        "append",
        lambda rows: rows.selectExpr(_LCASE, "n").dropDuplicates(["c", "n"]),
    ),
    "aggregates by a collation": (
        "complete",
        _grouped(
            (_LCASE, "n"), "n", "min(c) AS least", "max(c) AS most", "count(c) AS c",
            "count(DISTINCT c) AS d", "approx_count_distinct(c) AS near",
        ),
    ),
    "order by a collation": (
        "complete",
        lambda rows: rows.selectExpr(_LCASE, "id").groupBy("c").count().orderBy("c").limit(4),
    ),
    "static rows by a collation": (
        "append",
        lambda rows: rows.selectExpr(_LCASE, "id").join(
            rows.sparkSession.sql("SELECT * FROM VALUES ('Ab', 1), ('Ä', 2), ('a', 3) AS t(k, v)"),
            on=_same_name(),
        ),
    ),
}  # fmt: skip


def _same_name() -> Any:
    from pyspark.sql import functions as F  # noqa: PLC0415

    return F.expr("c = collate(k, 'UTF8_LCASE')")


def _rows(seed: int) -> pa.RecordBatch:
    rng = random.Random(seed)
    columns = [
        list(range(120)),
        [rng.choice(NAMES) for _ in range(120)],
        [rng.choice(MONTHS) for _ in range(120)],
        [rng.randrange(3) for _ in range(120)],
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)],
        schema=SCHEMA,
    )


def _shown(frame: DataFrame, folded: set[str], is_trimmed: bool) -> list[Row]:
    """All as texts; of those that are equal, of which a group shows one, what they have in common.

    Where a maximum replaces a longer one, Spark leaves zeros behind it.
    """
    rtrim = "rtrim" if is_trimmed else ""
    columns = [
        f"{rtrim}(lower(replace(`{name}`, char(0), '')))" if name in folded else f"string(`{name}`)"
        for name in frame.columns
    ]
    return [tuple(row) for row in frame.selectExpr(*columns).collect()]


def _folded(name: str, frame: DataFrame) -> set[str]:
    """Columns with one of several texts that are equal, however they are written."""
    if "collation" not in name and "Unicode" not in name and "trimmed" not in name:
        return set()
    return {each.name for each in frame.schema if "collate" in each.dataType.simpleString()}


@pytest.mark.parametrize("name", CASES)
def test_spark_has_the_same_columns(spark: SparkSession, tmp_path: Path, name: str) -> None:
    mode, define = CASES[name]
    rng = random.Random(name)
    rows = _rows(rng.randrange(1 << 30))
    translated = translate(define(stream(spark, COLUMNS)), output_mode=mode, query="typed")
    outcome = run_rows(translated, cut_into_rounds(rows, rng), tmp_path, Manner.drawn(rng))
    ours = frame_of(spark, outcome.rows)
    theirs = define(static_frame(spark, pa.Table.from_batches([rows])))
    assert ours.schema.simpleString() == theirs.schema.simpleString()
    folded = _folded(name, theirs) if name != "texts with a collation" else set()
    found, expected = (_shown(each, folded, "trimmed" in name) for each in (ours, theirs))
    assert expected
    found = as_mode(found, mode, 1, len(expected))
    assert not differences(found, expected)
    if "order" in name:
        assert found == expected


@pytest.mark.parametrize(
    ("define", "words"),
    [
        (_grouped((_LCASE, "n"), "n", "mode(c) AS x"), "mode of string collate UTF8_LCASE"),
        (_grouped((_LCASE, "n"), "n", "listagg(c) AS x"), "listagg"),
        (lambda rows: rows.selectExpr(f"struct({_LCASE}) AS s").groupBy("s").count(), "collation"),
    ],
)
def test_what_would_go_by_bytes_is_refused(spark: SparkSession, define: Define, words: str) -> None:
    with pytest.raises(UnsupportedPlan, match=words):
        translate(define(stream(spark, COLUMNS)), output_mode="complete", query="typed")
