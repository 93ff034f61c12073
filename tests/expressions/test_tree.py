"""The tree: typed building, what is refused, printing, JSON as a closed table."""

from __future__ import annotations

import datetime
import math
import pickle
from decimal import Decimal
from typing import Any

import pytest

from penstock.errors import ExpressionError
from penstock.expressions.tree import (
    Call,
    Literal,
    call,
    cast,
    column,
    columns_of,
    from_json,
    literal,
    transform,
    walk,
)
from penstock.expressions.types import parse_type

A, B = column("a", "int"), column("b", "int", nullable=False)
D, S, T = column("d", "double"), column("s", "string"), column("t", "timestamp")


@pytest.mark.parametrize(
    ("function", "left", "right", "result"),
    [
        ("add", "decimal(5,2)", "decimal(7,4)", "decimal(8,4)"),
        ("subtract", "decimal(17,0)", "decimal(17,0)", "decimal(18,0)"),
        ("multiply", "decimal(9,2)", "decimal(8,3)", "decimal(18,5)"),
        ("divide", "decimal(5,2)", "decimal(5,2)", "decimal(13,8)"),
        ("divide", "decimal(4,0)", "decimal(2,0)", "decimal(10,6)"),
        ("remainder", "decimal(9,2)", "decimal(5,4)", "decimal(5,4)"),
        ("int_divide", "decimal(9,2)", "decimal(5,4)", "bigint"),
        ("add", "tinyint", "tinyint", "tinyint"),
        ("eq", "string", "string", "boolean"),
    ],
)
def test_result_types(function: str, left: str, right: str, result: str) -> None:
    assert str(call(function, column("a", left), column("b", right)).type) == result


@pytest.mark.parametrize(
    ("function", "left", "right", "result"),
    [
        ("add", "decimal(18,0)", "decimal(18,0)", "decimal(19,0)"),
        ("add", "decimal(38,10)", "decimal(38,2)", "decimal(38,6)"),
        ("multiply", "decimal(38,10)", "decimal(38,10)", "decimal(38,6)"),
        ("multiply", "decimal(20,4)", "decimal(20,4)", "decimal(38,6)"),
        ("divide", "decimal(10,2)", "decimal(10,2)", "decimal(23,13)"),
        ("divide", "decimal(38,10)", "decimal(8,2)", "decimal(38,8)"),
    ],
)
def test_more_than_38_digits_cost_those_behind_the_point(
    function: str, left: str, right: str, result: str
) -> None:
    assert str(call(function, column("a", left), column("b", right)).type) == result


@pytest.mark.parametrize("function", ["remainder", "pmod", "int_divide"])
def test_remainders_of_more_than_18_digits_are_refused_by_name(function: str) -> None:
    with pytest.raises(ExpressionError, match=rf"{function}.* needs 20 digits"):
        call(function, column("a", "decimal(18,0)"), column("b", "decimal(2,2)"))


@pytest.mark.parametrize(
    ("function", "args", "options", "message"),
    [
        ("frobnicate", (A,), {}, "no function"),
        ("add", (A,), {}, "takes 2 arguments"),
        ("add", (A, B, A), {}, "takes 2 arguments"),
        ("add", (A, D), {}, "one type"),
        ("add", (S, S), {}, "numbers"),
        ("divide", (A, B), {}, "double"),
        ("eq", (A, S), {}, "one type"),
        ("eq", (call("array", A), call("array", A)), {}, "not nested"),
        ("and", (A, B), {}, "boolean"),
        ("if", (A, A, B), {}, "boolean conditions"),
        ("case", (call("is_null", A), A, B, A), {}, "boolean conditions"),
        ("coalesce", (A, S), {}, "one type"),
        ("add", (A, B), {"time_zone": "UTC"}, "no option"),
        ("cast", (A,), {}, "needs the option"),
        ("cast", (A,), {"to": "integr"}, "no type"),
        ("cast", (A,), {"to": "date"}, "not supported"),
        ("cast", (T,), {"to": "date"}, "time_zone"),
        ("cast", (T,), {"to": "date", "time_zone": "Mars/Base"}, "not a time zone"),
        ("cast", (T,), {"to": "date", "time_zone": "../etc/passwd"}, "not a time zone"),
        ("cast", (T,), {"to": "date", "time_zone": 5}, "not a time zone"),
        ("cast", (call("array", A),), {"to": "string"}, "not supported"),
        ("hour", (T,), {}, "time_zone"),
        ("hour", (column("x", "date"),), {}, "timestamp"),
        ("date_trunc", (T,), {"unit": "fortnight", "time_zone": "UTC"}, "unit of time"),
        ("like", (S,), {"pattern": "a\\b"}, "must stand before"),
        ("like", (S,), {"pattern": "a\\"}, "must stand before"),
        ("like", (S,), {"pattern": "a", "escape": "ab"}, "escape"),
        ("split", (S,), {"pattern": ",", "limit": 2}, "limit"),
        ("round", (D,), {"scale": 40}, "digits"),
        ("round", (D,), {"scale": True}, "digits"),
        ("struct", (A, B), {"names": ["x"]}, "distinct names"),
        ("struct", (A, B), {"names": ["x", "x"]}, "distinct names"),
        ("get_field", (call("struct", A, names=["x"]),), {"name": "y"}, "no field"),
        ("get_item", (call("array", A), S), {}, "array, int"),
        ("lookup", (A,), {"table": [[1, "x"], [1, "y"]], "value_type": "string"}, "distinct"),
        ("lookup", (A,), {"table": [["1", "x"]], "value_type": "string"}, "pairs"),
        ("lookup", (A,), {"table": [[1, 2]], "value_type": "string"}, "pairs"),
        ("lookup", (A,), {"table": [[1, [2]]], "value_type": "array<int>"}, "table of"),
        ("lookup", (A,), {"table": 7, "value_type": "int"}, "pairs"),
        ("sqrt", (A,), {}, "double"),
        ("substring", (S, A, column("n", "bigint")), {}, "string, int, int"),
    ],
)
def test_what_does_not_fit_is_refused(
    function: str, args: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ExpressionError, match=message):
        call(function, *args, **options)


def test_nullability_follows_the_arguments() -> None:
    assert not call("add", B, B).nullable
    assert call("add", A, B).nullable
    assert not call("is_null", A).nullable
    assert not call("coalesce", A, B).nullable
    assert not call("if", call("is_null", A), B, B).nullable
    assert call("case", call("is_null", A), B).nullable
    assert call("try_cast", B, to="tinyint").nullable
    assert not call("eq_null_safe", A, A).nullable


def test_options_that_do_not_matter_do_not_tell_calls_apart() -> None:
    assert cast(A, "bigint", time_zone="UTC") == cast(A, "bigint", time_zone="Asia/Kolkata")
    assert call("split", S, pattern=",") == call("split", S, pattern=",", limit=-1)
    assert cast(T, "date", time_zone="UTC") != cast(T, "date", time_zone="Asia/Kolkata")


def test_literals_are_told_apart_by_their_bits() -> None:
    assert literal(0.0, "double") != literal(-0.0, "double")
    nan = literal(math.nan, "double")
    assert nan == pickle.loads(pickle.dumps(nan))
    assert hash(nan) == hash(literal(float("nan"), "double"))
    assert literal(1, "int") != literal(1, "bigint")


@pytest.mark.parametrize(
    ("value", "kind", "plain"),
    [
        (datetime.date(1969, 12, 31), "date", -1),
        (datetime.datetime(1970, 1, 1, 0, 0, 1), "timestamp_ntz", 1_000_000),
        (datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC), "timestamp", 0),
        (5, "decimal(5,2)", Decimal("5.00")),
        (Decimal("1.5"), "decimal(5,2)", Decimal("1.50")),
        (0.1, "float", 0.10000000149011612),
        (1e300, "float", math.inf),
        ([1, None], "array<int>", (1, None)),
        (b"x", "binary", b"x"),
    ],
)
def test_literals_take_their_plain_form(value: Any, kind: str, plain: Any) -> None:
    made = literal(value, kind)
    assert made.value == plain
    assert from_json(made.to_json()) == made


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (128, "tinyint"), (True, "int"), ("1", "int"), (1.5, "int"), (1, "boolean"), (1, "string"),
        (Decimal("1.234"), "decimal(5,2)"), (Decimal("NaN"), "decimal(5,2)"), (1000,
        "decimal(4,2)"),
        (datetime.datetime(2020, 1, 1), "timestamp"), (datetime.datetime(2020, 1, 1), "date"),
        (1 << 63, "bigint"), (["x"], "array<int>"), ({}, "struct<a:int>"), ("x", "binary"),
    ],
)  # fmt: skip
def test_literals_of_another_type_are_refused(value: Any, kind: str) -> None:
    with pytest.raises(ExpressionError, match="not a value of type"):
        literal(value, kind)


@pytest.mark.parametrize(
    ("tree", "shown"),
    [
        (call("add", A, literal(1, "int")), "(a + 1)"),
        (
            call("in", S, literal("it's", "string"), literal(None, "string")),
            "(s IN ('it\\'s', NULL))",
        ),
        (call("case", call("is_null", A), B, A), "CASE WHEN (a IS NULL) THEN b ELSE a END"),
        (cast(T, "date", time_zone="UTC"), "CAST(t AS date)"),
        (call("concat", S, literal("{0}", "string")), "concat(s, '{0}')"),
        (
            call("like", call("concat", literal("{x}", "string")), pattern="%"),
            "(concat('{x}') LIKE '%')",
        ),
        (literal(0, "timestamp"), "TIMESTAMP '1970-01-01 00:00:00Z'"),
        (literal((1 << 63) - 1, "timestamp"), "TIMESTAMP '9223372036854775807Z'"),
        (literal(b"\x01", "binary"), "X'01'"),
    ],
)
def test_printing(tree: Any, shown: str) -> None:
    assert str(tree) == shown


@pytest.mark.parametrize(
    "node",
    [
        None, [], {}, {"column": "a"}, {"column": 1, "type": "int", "nullable": True},
        {"column": "a", "type": "int", "nullable": 1}, {"column": "a", "type": "blob",
        "nullable": True},
        {"literal": 1}, {"literal": "x", "type": "int"}, {"literal": "Infinity", "type": "double"},
        {"literal": "abc", "type": "decimal(5,2)"}, {"literal": "%%%", "type": "binary"},
        {"literal": 1.5, "type": "decimal(5,2)"}, {"call": "nope", "args": []},
        {"call": "not", "args": {}}, {"call": ["not"], "args": []},
        {"call": "not", "args": [], "options": []}, {"call": "not", "args": [],
        "options": {"x": 1}},
        {"call": "not", "args": [], "extra": 1}, {"call": "not", "args": [{"literal": 1,
        "type": "int"}]},
    ],
)  # fmt: skip
def test_json_outside_the_closed_table_is_refused(node: Any) -> None:
    with pytest.raises(ExpressionError):
        from_json(node)


def test_json_nested_too_deep_is_refused_before_python_gives_up() -> None:
    node: dict[str, Any] = {"literal": True, "type": "boolean"}
    for _ in range(5000):
        node = {"call": "not", "args": [node]}
    with pytest.raises(ExpressionError, match="deeper"):
        from_json(node)


def test_walking_and_transforming() -> None:
    tree = call("add", call("multiply", A, B), A)
    assert columns_of(tree) == (A, B)
    assert [type(node).__name__ for node in walk(tree)] == [
        "Call",
        "Call",
        "Column",
        "Column",
        "Column",
    ]
    other = column("c", "int", nullable=False)
    changed = transform(tree, lambda node: other if node == A else node)
    assert changed == call("add", call("multiply", other, B), other)
    assert not changed.nullable  # computed again, not copied
    with pytest.raises(ExpressionError):
        transform(tree, lambda node: S if node == A else node)


def test_a_table_survives_json_and_pickle() -> None:
    tree = call("lookup", A, table=[(1, "x"), (2, None)], value_type="string")
    again = from_json(tree.to_json())
    assert again == tree
    assert hash(again) == hash(tree)
    assert isinstance(pickle.loads(pickle.dumps(tree)), Call)
    assert pickle.loads(pickle.dumps(tree)) == tree
    assert Literal(None, parse_type("int")).nullable
