"""The column language: types that constants take, operators, and what it refuses."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal

import pytest

from penstock.errors import ExpressionError, PlanError, UnknownColumn
from penstock.expressions.durations import parse_duration, show_duration
from penstock.testing.columns import apply, col, lit
from penstock.testing.plans import Draft, count, parse_schema, scan_stream, window

SCHEMA = parse_schema(
    "i int, b bigint, s smallint, d double, f float, m decimal(8,2), t string, ts timestamp, "
    "day date, flag boolean, w struct<start:timestamp,end:timestamp>, a array<bigint>"
)


@pytest.mark.parametrize(
    ("expression", "text", "kind"),
    [
        (col("b") * 2 > lit(3), "((b * 2L) > 3L)", "boolean"),
        (2 - col("i"), "(2 - i)", "int"),
        (col("s") % 3, "(s % 3S)", "smallint"),
        (col("d") + 1, "(d + CAST(1.0 AS DOUBLE))", "double"),
        (col("f") * 0.5, "(f * CAST(0.5 AS FLOAT))", "float"),
        (1 / col("b"), "(CAST(1.0 AS DOUBLE) / CAST(b AS double))", "double"),
        (col("m") * 2, "(m * 2)", "decimal(10,2)"),
        (col("m") + Decimal("0.125"), "(m + 0.125)", "decimal(10,3)"),
        (col("m") > 3, "(m > 3.00)", "boolean"),
        (-col("i"), "(- i)", "int"),
        ((col("t") == "x") & ~col("flag"), "((t = 'x') AND (NOT flag))", "boolean"),
        ((col("t") != "x") | col("flag"), "((NOT (t = 'x')) OR flag)", "boolean"),
        (~(col("t") == "x"), "(NOT (t = 'x'))", "boolean"),
        (col("i").is_in(1, 2), "(i IN (1, 2))", "boolean"),
        (col("t").is_null(), "(t IS NULL)", "boolean"),
        (col("t").is_not_null(), "(t IS NOT NULL)", "boolean"),
        (col("i").cast("bigint"), "CAST(i AS bigint)", "bigint"),
        (col("w")["end"], "w.end", "timestamp"),
        (col("a")[0], "a[0]", "bigint"),
        (apply("if", col("flag"), col("b"), None), "if(flag, b, NULL)", "bigint"),
        (apply("coalesce", col("b"), 0), "coalesce(b, 0L)", "bigint"),
        (apply("substring", col("t"), 1, 3), "substring(t, 1, 3)", "string"),
        (col("day") < datetime.date(2020, 1, 2), "(day < DATE '2020-01-02')", "boolean"),
        (lit(1 << 40), "1099511627776L", "bigint"),
        (lit(5, "tinyint"), "5Y", "tinyint"),
    ],
)  # fmt: skip
def test_resolved(expression: object, text: str, kind: str) -> None:
    resolved = expression.resolve(SCHEMA, "test")  # type: ignore[attr-defined]
    assert (str(resolved), str(resolved.type)) == (text, kind)


def test_timestamps_compare_with_aware_times() -> None:
    moment = datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC)
    resolved = (col("ts") >= moment).resolve(SCHEMA, "test")
    assert str(resolved) == "(ts >= TIMESTAMP '2020-01-02 00:00:00Z')"


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ExpressionError):
        (col("i") + col("b")).resolve(SCHEMA, "test")
    with pytest.raises(ExpressionError, match="no truth value"):
        bool(col("i") > 3)
    with pytest.raises(ExpressionError, match="no function"):
        apply("frobnicate", col("i")).resolve(SCHEMA, "test")
    with pytest.raises(ExpressionError, match="give its type"):
        lit(None).resolve(SCHEMA, "test")
    with pytest.raises(ExpressionError, match="give its type"):
        lit(object()).resolve(SCHEMA, "test")
    with pytest.raises(ExpressionError, match="not a value of type smallint"):
        (col("s") + 40_000).resolve(SCHEMA, "test")
    with pytest.raises(UnknownColumn, match="test: there is no column 'z'"):
        (col("z") > 3).resolve(SCHEMA, "test")


@pytest.mark.parametrize(
    ("text", "length_us", "shown"),
    [
        ("10 seconds", 10_000_000, "10 seconds"),
        ("1 minute", 60_000_000, "1 minute"),
        ("90 seconds", 90_000_000, "90 seconds"),
        ("500 ms", 500_000, "500 ms"),
        ("7us", 7, "7 us"),
        ("5 hours", 18_000_000_000, "5 hours"),
        ("36 hours", 129_600_000_000, "36 hours"),
        ("24 hours", 86_400_000_000, "1 day"),
        ("2 Days", 172_800_000_000, "2 days"),
        ("1 week", 604_800_000_000, "7 days"),
        ("999999999999 days", 999_999_999_999 * 86_400_000_000, "999999999999 days"),
        ("0 seconds", 0, "0 seconds"),
        (1_500, 1_500, "1500 us"),
    ],
)
def test_durations(text: str | int, length_us: int, shown: str) -> None:
    assert parse_duration(text) == length_us
    assert show_duration(length_us) == shown
    assert parse_duration(shown) == length_us


@pytest.mark.parametrize(
    "made",
    [
        lambda rows: rows.with_watermark("ts", "999999999999 days"),
        lambda rows: rows.group_by(window=window("ts", "999999999999 days")).agg(count()),
    ],
)
def test_a_length_beyond_the_bound_is_told_as_it_was_written(
    made: Callable[[Draft], Draft],
) -> None:
    with pytest.raises(PlanError, match=r"\b999999999999 days") as caught:
        made(scan_stream("s", "ts timestamp"))
    assert "at most 13000000 days" in caught.value.message


@pytest.mark.parametrize("text", ["", "ten seconds", "1 month", "1.5 s", "-1 s", None, True])
def test_bad_durations(text: object) -> None:
    with pytest.raises(PlanError, match="not a length of time"):
        parse_duration(text)  # type: ignore[arg-type]
