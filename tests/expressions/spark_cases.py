"""Edge-case rows and (SQL text, tree) pairs that mean the same, to be judged by Spark."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from penstock.expressions.tree import Expression, call, cast, column, literal, try_cast
from penstock.expressions.types import Field, arrow_schema, parse_type

ZONES = ("UTC", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe")


@dataclass(frozen=True)
class Case:
    """One expression, twice. The reference in plain Python is only `close`
    where the machine's own library computes the last bits of a double."""

    sql: str
    tree: Expression
    close: bool = False


@dataclass(frozen=True)
class Rows:
    """Rows to evaluate on, and the cases that read their columns."""

    name: str
    batch: pa.RecordBatch
    cases: tuple[Case, ...]


def batch_of(types: dict[str, str], columns: dict[str, Sequence[Any]]) -> pa.RecordBatch:
    schema = arrow_schema(tuple(Field(name, parse_type(text)) for name, text in types.items()))
    arrays = [pa.array(list(columns[f.name]), f.type) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def paired(values: Sequence[Any], others: Sequence[Any] | None = None) -> dict[str, list[Any]]:
    pairs = list(itertools.product(values, values if others is None else others))
    return {"a": [a for a, _ in pairs], "b": [b for _, b in pairs]}


BINARY = {
    "add": "a + b",
    "subtract": "a - b",
    "multiply": "a * b",
    "remainder": "a % b",
    "pmod": "pmod(a, b)",
    "eq": "a = b",
    "ne": "a <> b",
    "lt": "a < b",
    "le": "a <= b",
    "gt": "a > b",
    "ge": "a >= b",
    "eq_null_safe": "a <=> b",
    "greatest": "greatest(a, b)",
    "least": "least(a, b)",
    "coalesce": "coalesce(a, b)",
    "nullif": "nullif(a, b)",
    "in": "a IN (b)",
}
ORDERED = (
    "eq", "ne", "lt", "le", "gt", "ge", "eq_null_safe", "greatest", "least", "coalesce", "nullif",
    "in",
)  # fmt: skip


def binary_cases(type_a: str, type_b: str, functions: Sequence[str]) -> list[Case]:
    a, b = column("a", type_a), column("b", type_b)
    return [Case(BINARY[name], call(name, a, b)) for name in functions]


def unary_cases(text: str) -> list[Case]:
    a = column("a", text)
    cases = [
        Case("-a", call("negate", a)),
        Case("abs(a)", call("abs", a)),
        Case("a IS NULL", call("is_null", a)),
        Case("a IS NOT NULL", call("is_not_null", a)),
    ]
    if text != "float" and parse_type(text).precision < 18:  # rounding needs one more digit
        cases += [
            Case(f"round(a, {scale})", call("round", a, scale=scale)) for scale in (0, 1, 2, -1, -2)
        ]
    return cases


def cast_cases(source: str, targets: Sequence[str], zone: str | None = None) -> list[Case]:
    a = column("a", source)
    cases = []
    for target in targets:
        cases.append(Case(f"CAST(a AS {target})", cast(a, target, time_zone=zone)))
        cases.append(Case(f"try_cast(a AS {target})", try_cast(a, target, time_zone=zone)))
    return cases


NUMBERS = (
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(18,0)",
    "decimal(9,2)", "decimal(5,5)", "decimal(18,6)",
)  # fmt: skip


def integer_rows() -> list[Rows]:
    groups = []
    for kind, bits in (("tinyint", 8), ("smallint", 16), ("int", 32), ("bigint", 64)):
        low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        root = 1 << (bits // 2)
        values = [None, low, low + 1, -root, -7, -1, 0, 1, 2, 5, 7, root - 1, high - 1, high]
        cases = binary_cases(kind, kind, list(BINARY))
        a, b = column("a", kind), column("b", kind)
        cases.append(Case("a div b", call("int_divide", a, b)))
        groups.append(
            Rows(f"{kind} pairs", batch_of({"a": kind, "b": kind}, paired(values)), tuple(cases))
        )
        singles = [*values, 15, 25, 35, -15, -25, -35, 45, 55, 95, 99, 100, 115, -115]
        cases = unary_cases(kind) + cast_cases(
            kind, [t for t in (*NUMBERS, "string", "timestamp") if t != kind]
        )
        if kind == "bigint":
            cases += [
                Case("floor(a)", call("floor", a)),
                Case("ceil(a)", call("ceil", a)),
                Case("timestamp_micros(a)", call("timestamp_micros", a)),
                Case("timestamp_millis(a)", call("timestamp_millis", a)),
                Case("timestamp_seconds(a)", call("timestamp_seconds", a)),
                Case("round(a, -18)", call("round", a, scale=-18)),
            ]
        groups.append(Rows(kind, batch_of({"a": kind}, {"a": singles}), tuple(cases)))
    return groups


def float_rows() -> list[Rows]:
    special = [None, 0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -7.25, math.inf, -math.inf, math.nan]
    doubles = [*special, 1e308, -1e308, 5e-324, 1e-300, 3.0, 1e16]
    double = column("a", "double"), column("b", "double")
    cases = binary_cases("double", "double", list(BINARY))
    cases += [
        Case("a / b", call("divide", *double)),
        Case("pow(a, b)", call("pow", *double), close=True),
    ]
    groups = [
        Rows(
            "double pairs", batch_of({"a": "double", "b": "double"}, paired(doubles)), tuple(cases)
        )
    ]
    singles = [
        *doubles, 2.675, 1.005, 0.125, 0.375, 1.5, -1.5, -2.5, 127.9, 128.0, -128.9, -129.0,
        32767.5, 2147483647.5, -2147483648.9, 2147483648.0, 9.223372036854775807e18,
        -9.223372036854775808e18, 9.3e18, 1e10, 1e7, 9999999.0, 0.001, 0.0001, 1.0e-5, 123456.789,
        -123456.785, 1e15, 1e17, 99999.999994, 0.999995, 0.9999949, 1234567890123.4567, 0.1, 0.2,
        1 / 3, 1e22, 1.7976931348623157e308, 4.35, 0.285, 1.15, 1e-6, 0.000015,
        999999999999999.9, 99999999999.9999999, 12345678.9,
    ]  # fmt: skip
    a = double[0]
    cases = unary_cases("double")
    cases += cast_cases("double", [t for t in (*NUMBERS, "string", "timestamp") if t != "double"])
    cases += [
        Case("isnan(a)", call("is_nan", a)),
        Case("floor(a)", call("floor", a)),
        Case("ceil(a)", call("ceil", a)),
        Case("sqrt(a)", call("sqrt", a)),
        Case("exp(a)", call("exp", a), close=True),
        Case("ln(a)", call("ln", a), close=True),
        Case("a IN (1.0D, double('NaN'), 0.0D)", call(
            "in", a, literal(1.0, "double"), literal(math.nan, "double"), literal(0.0, "double"))),
        Case("round(a, 5)", call("round", a, scale=5)),
        Case("round(a, 15)", call("round", a, scale=15)),
        Case("round(a, -10)", call("round", a, scale=-10)),
    ]  # fmt: skip
    groups.append(Rows("double", batch_of({"a": "double"}, {"a": singles}), tuple(cases)))
    floats = [*special, 3.4028234663852886e38, 1.401298464324817e-45, 16777216.0, 0.1]
    cases = binary_cases("float", "float", list(BINARY))
    groups.append(
        Rows("float pairs", batch_of({"a": "float", "b": "float"}, paired(floats)), tuple(cases))
    )
    more = [
        *floats,
        127.9,
        128.0,
        2147483647.0,
        9.3e18,
        -9.223372036854775808e18,
        2.675,
        1.5,
        2.5,
        0.45,
    ]
    f = column("a", "float")
    cases = unary_cases("float")
    cases += [
        Case("isnan(a)", call("is_nan", f)),
        *(Case(f"round(a, {s})", call("round", f, scale=s)) for s in (0, 1, 2, -1)),
        *cast_cases("float", ["boolean", "tinyint", "smallint", "int", "bigint", "double"]),
    ]
    groups.append(Rows("float", batch_of({"a": "float"}, {"a": more}), tuple(cases)))
    return groups


def decimal_rows() -> list[Rows]:
    groups = []
    pairs = [
        ("decimal(5,2)", "decimal(5,2)"),
        ("decimal(8,2)", "decimal(9,4)"),
        ("decimal(7,0)", "decimal(3,3)"),
        ("decimal(17,3)", "decimal(17,3)"),
        ("decimal(4,4)", "decimal(4,1)"),
    ]
    for left, right in pairs:
        columns = paired(_decimals(left), _decimals(right))
        a, b = column("a", left), column("b", right)
        wanted = ["add", "subtract", "remainder", "pmod"]
        if left != "decimal(17,3)":
            wanted.append("multiply")
        cases = binary_cases(left, right, wanted)
        if left not in ("decimal(17,3)", "decimal(8,2)"):
            cases.append(Case("a / b", call("divide", a, b)))
        cases.append(Case("a div b", call("int_divide", a, b)))
        if left == right:
            cases += binary_cases(left, right, ORDERED)
        groups.append(
            Rows(f"{left} {right}", batch_of({"a": left, "b": right}, columns), tuple(cases))
        )
    targets = (*NUMBERS, "string")
    for kind in (
        "decimal(18,0)",
        "decimal(18,18)",
        "decimal(9,2)",
        "decimal(17,7)",
        "decimal(1,0)",
    ):
        a = column("a", kind)
        cases = unary_cases(kind)
        cases += cast_cases(kind, [t for t in targets if t != kind])
        cases += [Case("floor(a)", call("floor", a)), Case("ceil(a)", call("ceil", a))]
        groups.append(Rows(kind, batch_of({"a": kind}, {"a": _decimals(kind)}), tuple(cases)))
    return groups


def _decimals(text: str) -> list[Decimal | None]:
    kind = parse_type(text)
    top = 10**kind.precision - 1
    unscaled = {
        0, 1, -1, 2, 3, 5, -5, 15, 25, -25, 50, 99, 100, 149, 150, 151, -150, 250, 12345, top, -top,
        top - 1, top // 2, top // 3, 5 * 10 ** (kind.precision - 1), 123456789012,
    }  # fmt: skip
    values = [Decimal(u).scaleb(-kind.scale) for u in sorted(unscaled) if abs(u) <= top]
    return [None, *values]


TEXTS = [
    None, "", " ", "a", "abc", "ABC", " abc ", "\tabc\n", "aXbXc", "XX", "a,b,,c,", ",",
    "a1b22c333",
    "straße", "ÀÉÎ", "İstanbul", "ΑΣ", "日本語", "a日b本c", "😀x😀", "e\u0301", "50%", "a_b", "a%b",
    "back\\slash", "line\nbreak", "line\r", "x" * 40, "abcabcabc", "Ab", "\u00a0nbsp", "ﬃ",
]  # fmt: skip


def string_rows() -> list[Rows]:
    a, b = column("a", "string"), column("b", "string")
    parts = [None, "", "a", "abc", "X", "日", "😀", "bc", "c", "straße", "b"]
    cases = binary_cases("string", "string", ORDERED)
    cases += [
        Case("startswith(a, b)", call("starts_with", a, b)),
        Case("endswith(a, b)", call("ends_with", a, b)),
        Case("contains(a, b)", call("contains", a, b)),
        Case("concat(a, b, a)", call("concat", a, b, a)),
        Case("concat_ws('-', a, b)", call("concat_ws", a, b, separator="-")),
        Case("replace(a, b, 'zz')", call("replace", a, b, literal("zz", "string"))),
        Case("replace(a, b, b)", call("replace", a, b, b)),
        Case("lpad(a, 5, b)", call("lpad", a, literal(5, "int"), b)),
        Case("rpad(a, 5, b)", call("rpad", a, literal(5, "int"), b)),
    ]
    both = {"a": "string", "b": "string"}
    groups = [Rows("string pairs", batch_of(both, paired(TEXTS, parts)), tuple(cases))]
    groups.append(Rows("string", batch_of({"a": "string"}, {"a": TEXTS}), tuple(_text_cases(a))))
    positions = [None, -(1 << 31), -41, -5, -3, -1, 0, 1, 2, 3, 7, (1 << 31) - 1]
    texts = [None, "", "abc", "a日b本c", "😀x😀"]
    rows = list(itertools.product(texts, positions, positions))
    columns = {"a": [r[0] for r in rows], "p": [r[1] for r in rows], "n": [r[2] for r in rows]}
    p, n = column("p", "int"), column("n", "int")
    groups.append(
        Rows(
            "substring",
            batch_of({"a": "string", "p": "int", "n": "int"}, columns),
            (
                Case("substring(a, p, n)", call("substring", a, p, n)),
                Case("substring(a, 2, 2)", call(
                    "substring", a, literal(2, "int"), literal(2, "int"))),
                Case("lpad(a, CASE WHEN n < 100 THEN n END, '日-')", call(
                    "lpad", a, call("case", call("lt", n, literal(100, "int")), n),
                    literal("日-", "string"))),
                Case("rpad(a, CASE WHEN n < 100 THEN n END, '日-')", call(
                    "rpad", a, call("case", call("lt", n, literal(100, "int")), n),
                    literal("日-", "string"))),
            ),
        )
    )  # fmt: skip
    return groups


def _sql(text: str) -> str:
    return (
        "'"
        + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
        + "'"
    )


def _text_cases(a: Expression) -> list[Case]:
    cases = [
        Case("length(a)", call("length", a)),
        Case("upper(a)", call("upper", a)),
        Case("lower(a)", call("lower", a)),
        Case("trim(a)", call("trim", a)),
        Case("ltrim(a)", call("ltrim", a)),
        Case("rtrim(a)", call("rtrim", a)),
        Case("CAST(a AS binary)", cast(a, "binary")),
        Case("length(CAST(a AS binary))", call("length", cast(a, "binary"))),
        Case("CAST(CAST(a AS binary) AS string)", cast(cast(a, "binary"), "string")),
        Case("a IN ('abc', 'XX', NULL)", call(
            "in", a, literal("abc", "string"), literal("XX", "string"), literal(None, "string"))),
        Case("a IN ('abc', 'XX')", call(
            "in", a, literal("abc", "string"), literal("XX", "string"))),
        Case("startswith(a, 'a')", call("starts_with", a, literal("a", "string"))),
        Case("endswith(a, 'c')", call("ends_with", a, literal("c", "string"))),
        Case("contains(a, 'bc')", call("contains", a, literal("bc", "string"))),
        Case("replace(a, 'b', '')", call(
            "replace", a, literal("b", "string"), literal("", "string"))),
        Case("replace(a, '', 'z')", call(
            "replace", a, literal("", "string"), literal("z", "string"))),
        Case("array(a, 'x')", call("array", a, literal("x", "string"))),
        Case("named_struct('k', a, 'n', 1)", call(
            "struct", a, literal(1, "int"), names=["k", "n"])),
        Case("named_struct('k', a, 'n', 1).k", call("get_field", call(
            "struct", a, literal(1, "int"), names=["k", "n"]), name="k")),
    ]  # fmt: skip
    for pattern in ("a%", "%c", "_b_", "%", "", "a\\%b", "a\\_b", "%\n%", "__", "50\\%", "%\\\\%"):
        cases.append(Case(f"a LIKE {_sql(pattern)}", call("like", a, pattern=pattern)))
    cases.append(Case("a LIKE 'a/_b' ESCAPE '/'", call("like", a, pattern="a/_b", escape="/")))
    for pattern in ("a", "^a", "c$", "^[a-c]+$", "a.*c", "\\d+", "[0-9]{2,3}", "(a|X)b?", "\\s",
    "k$",
                    "[^a-z]", "^.$", "x{40}", "\\\\", "break|line$", "a+?b", "\\.", "\\W",
                    "\\S\\s"):  # fmt: skip
        cases.append(Case(f"a RLIKE {_sql(pattern)}", call("rlike", a, pattern=pattern)))
    for pattern in (",", "X", "[0-9]+", "b|X", "\\s", "\\\\", "日", "[,X]", ",+", "a.", "\\W"):
        split = call("split", a, pattern=pattern)
        cases.append(Case(f"split(a, {_sql(pattern)})", split))
        cases.append(Case(f"size(split(a, {_sql(pattern)}))", call("size", split)))
        item = call("get_item", split, literal(1, "int"))
        cases.append(Case(f"split(a, {_sql(pattern)})[1]", item))
    return cases


NUMBER_TEXTS = [
    None, "", " ", "0", "-0", "+0", "1", " 42 ", "\t7\n", "007", "+5", "-5", "--5", "5-", "1.5",
    "1.",
    ".5", ".", "-.5", "1e3", "1E+3", "1e-3", "1e400", "-1e400", "1e-400", "1e", "e1", "127", "128",
    "-128", "-129", "32768", "2147483648", "-2147483648", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
    "00000000000000000000000000000012", "99999999999999999999999999", "NaN", "nan", "inf", "-inf",
    "Infinity", "-Infinity", "+infinity", "INF", "infinit", "1d", "1f", "1D", "1.5F", "0x1p3",
    "0x10",
    "1_000", "1,000", "١٢", "true", "TRUE", " t ", "f", "yes", "no", "y", "n", "Y", "1 ", "2", "on",
    "0.005", "0.015", "12.345", "12.355", "-12.345", "999999.995", "9999999.994", "9999999.995",
    "99999999999999999.5", "0.000005", "0.0000049", "1.0000005", "123456789012.1234565", "1e17",
    "1e18", "0e99", "0.1e1", "3.4028236e38", "3.4028235e38", "1.17549435E-38", "16777217", "0.1",
    "abc", "\u00a05", "5\x00", "\x7f5", "null", "1 2", "+", "-", "1e5d", "9.999999999999999e22",
    "0x1p2000", "-0x1p2000", "0x1p-2000", "0.00000000000000000000000000125e25", "1٢.٥", "1.5e-7d",
    "12345678901234567890e-5", "0000000000000000000001.5", "-9223372036854775807.5", "1e+-5",
]  # fmt: skip
DATE_TEXTS = [
    None, "", "2020", "2020-1", "2020-01", "2020-1-2", "2020-01-02", " 2020-01-02 ", "2020-02-29",
    "2021-02-29", "2020-13-01", "2020-00-01", "2020-01-00", "2020-01-32", "2020-01-02T",
    "2020-01-02 x",
    "2020-01-02T10:11:12", "2020-01-02 10:11:12.123456789", "2020-01-02x", "20200102", "0001-01-01",
    "0000-01-01", "-0001-01-01", "+2020-01-01", "9999-12-31", "12345-01-01", "999999-01-01",
    "1234567-01-01", "12345678-01-01", "1969-12-31", "1900-01-01", "1582-10-10", "abc", "202-01-01",
    "2020-01-01-", "2020--01", "2020-001-01", "2020-01-01 1", "2020-01-01 1:2", "2020-01-01 1:2:3",
    "2020-01-01 01:02:03.", "2020-01-01 01:02:03.1", "2020-01-01 01:02:03.000001",
    "2020-01-01 24:00:00", "2020-01-01 23:60:00", "2020-01-01 23:59:60",
    "2020-01-01 23:59:59.999999",
    "2020-01-01 01:02:03Z", "2020-01-01 01:02:03 Z", "2020-01-01 01:02:03+01:00",
    "2020-01-01T01:02:03.5-08:30", "2020-01-01 01:02:03+1", "2020-01-01 01:02:03+1:30",
    "2020-01-01 01:02:03+0130", "2020-01-01 01:02:03 UTC", "2020-01-01 01:02:03UTC+1",
    "2020-01-01 01:02:03 GMT+01:00", "2020-07-01 01:02:03 Europe/Paris",
    "2020-01-01 01:02:03 Nowhere/X",
    "2020-01-01 01:02:03+19:00", "2020-01-01 01:02Z", "2020-03-08 02:30:00", "2020-11-01 01:30:00",
    "2020-10-04 02:15:00", "2020-04-05 01:45:00", "1883-11-18 12:03:00", "1800-01-01 00:00:00",
    "2050-07-01 12:00:00", "2500-07-01 12:00:00", "1941-10-01 00:00:00",
    "294247-01-10 04:00:54.775807",
    "294247-01-10 04:00:54.775808", "290000-01-01", "-290000-01-01", "2020-01-01 001:02:03",
    "2020-01-01  01:02:03", "2020-01-01T 01:02:03", "2020-01-01 01:02:03.1234567Z",
    "2020-1-1T1:2:3.4Z",
    "2020-01-01 01:02:03-00:00", "2020-01-01 01:02:03+00:60", "2020-01-01 01:02:03z",
]  # fmt: skip


def text_to_value_rows() -> list[Rows]:
    targets = (*NUMBERS, "decimal(7,5)")
    return [
        Rows(
            "numbers in text",
            batch_of({"a": "string"}, {"a": NUMBER_TEXTS}),
            tuple(cast_cases("string", targets)),
        ),
        Rows(
            "dates in text",
            batch_of({"a": "string"}, {"a": DATE_TEXTS}),
            tuple(cast_cases("string", ["date", "timestamp_ntz"])),
        ),
    ]


def boolean_rows() -> list[Rows]:
    values = [None, True, False]
    a, b = column("a", "boolean"), column("b", "boolean")
    cases = binary_cases("boolean", "boolean", ORDERED)
    cases += [
        Case("a AND b", call("and", a, b)),
        Case("a OR b", call("or", a, b)),
        Case("NOT a", call("not", a)),
        Case("if(a, b, NOT b)", call("if", a, b, call("not", b))),
        Case("CASE WHEN a THEN 1 WHEN b THEN 2 END", call(
            "case", a, literal(1, "int"), b, literal(2, "int"))),
        Case("CASE WHEN a THEN 1 WHEN b THEN 2 ELSE 3 END", call(
            "case", a, literal(1, "int"), b, literal(2, "int"), literal(3, "int"))),
        *cast_cases("boolean", [t for t in (*NUMBERS, "string") if t != "boolean"]),
    ]  # fmt: skip
    return [
        Rows("boolean", batch_of({"a": "boolean", "b": "boolean"}, paired(values)), tuple(cases))
    ]


def lazy_rows() -> list[Rows]:
    """What must not fail: the side that is not taken, and what stands behind a null."""
    a, b = column("a", "int"), column("b", "int")
    zero, one = literal(0, "int"), literal(1, "int")
    ratio = call("int_divide", a, b)
    text = {"a": "int", "b": "int", "s": "string"}
    columns = paired([None, 0, 1, 7, (1 << 31) - 1])
    columns["s"] = (["x", "12", None, "99999999999", "-3"] * 5)[: len(columns["a"])]
    s = column("s", "string")
    as_int = cast(s, "int")
    big = literal(0, "bigint")
    cases = (
        Case("b <> 0 AND a div b > 0", call("and", call("ne", b, zero), call("gt", ratio, big))),
        Case("b = 0 OR a div b > 0", call("or", call("eq", b, zero), call("gt", ratio, big))),
        Case("a div b > 0 AND b <> 0", call("and", call("gt", ratio, big), call("ne", b, zero))),
        Case("if(b = 0, 0L, a div b)", call("if", call("eq", b, zero), big, ratio)),
        Case("if(b = 0, a div b, 0L)", call("if", call("eq", b, zero), ratio, big)),
        Case("CASE WHEN a = 1 THEN 0L WHEN b <> 0 THEN a div b END", call(
            "case", call("eq", a, one), big, call("ne", b, zero), ratio)),
        Case("coalesce(a, CAST(s AS int))", call("coalesce", a, as_int)),
        Case("a + CAST(s AS int)", call("add", a, as_int)),
        Case("CAST(s AS int) + a", call("add", as_int, a)),
        Case("CAST(s AS int) div b", call("int_divide", as_int, b)),
        Case("a % CAST(s AS int)", call("remainder", a, as_int)),
        Case("a = CAST(s AS int)", call("eq", a, as_int)),
        Case("a <=> CAST(s AS int)", call("eq_null_safe", a, as_int)),
        Case("greatest(a, CAST(s AS int))", call("greatest", a, as_int)),
        Case("a IN (1, CAST(s AS int))", call("in", a, one, as_int)),
        Case("nullif(a, CAST(s AS int))", call("nullif", a, as_int)),
        Case("concat(s, CAST(a + 1 AS string))", call("concat", s, cast(call("add", a, one),
        "string"))),
        Case("substring(s, a + 1, 1)", call("substring", s, call("add", a, one), one)),
        Case("array(a, b)[a]", call("get_item", call("array", a, b), a)),
        Case("size(array(a, b))", call("size", call("array", a, b))),
    )  # fmt: skip
    return [Rows("lazy", batch_of(text, columns), cases)]


def instants() -> list[int | None]:
    seconds = [
        0, -1, 1, 86399, 86400, -86400, 1577836800, 1583650800, 1583652600, 1583654400, 1604208600,
        1604212200, 1586012400, 1586009700, 1601737200, 1601735400, 951782400, -2208988800,
        -2717650800, -2717640000, -5364662400, -30610224000, -62135596800, -62167219200,
        -99999999999,
        2540246400, 16725225600, 253402300799, 253402300800, 4102444800, 32503680000, -890000000,
    ]  # fmt: skip
    micros: list[int | None] = [None, -1, 999999, -999999, 1577836799999999, 123456789]
    return (
        micros
        + [second * 1_000_000 for second in seconds]
        + [second * 1_000_000 + 123456 for second in seconds[:20]]
    )


def time_rows(zone: str) -> list[Rows]:
    """Cases that depend on the session's time zone."""
    a = column("a", "timestamp")
    cases = [
        Case(f"{sql}(a)", call(name, a, time_zone=zone))
        for name, sql in (
            ("year", "year"), ("month", "month"), ("day", "day"), ("day_of_week", "dayofweek"),
            ("hour", "hour"), ("minute", "minute"), ("second", "second"),
        )
    ]  # fmt: skip
    for unit in ("year", "quarter", "month", "week", "day", "hour", "minute", "second",
                 "millisecond", "microsecond"):  # fmt: skip
        cases.append(
            Case(f"date_trunc('{unit}', a)", call("date_trunc", a, unit=unit, time_zone=zone))
        )
    for name in ("unix_seconds", "unix_millis", "unix_micros"):
        cases.append(Case(f"{name}(a)", call(name, a)))
    targets = ["tinyint", "smallint", "int", "bigint", "double", "string", "date", "timestamp_ntz"]
    cases += cast_cases("timestamp", targets, zone)
    groups = [Rows("timestamp", batch_of({"a": "timestamp"}, {"a": instants()}), tuple(cases))]
    ntz = column("a", "timestamp_ntz")
    cases = cast_cases("timestamp_ntz", ["timestamp", "string", "date"], zone)
    cases += [Case("hour(a)", call("hour", ntz)), Case("year(a)", call("year", ntz))]
    groups.append(Rows("ntz", batch_of({"a": "timestamp_ntz"}, {"a": instants()}), tuple(cases)))
    days = [None, 0, -1, 1, 59, 60, 18322, 18569, 18357, 18539, -25567, -135140, -719162, -719528,
            -800000, 2932896, 2932897, 3000000, 29000]  # fmt: skip
    date = column("a", "date")
    cases = cast_cases("date", ["timestamp", "timestamp_ntz", "string"], zone)
    cases += [
        *(Case(f"{sql}(a)", call(name, date)) for name, sql in (
            ("year", "year"), ("month", "month"), ("day", "day"), ("day_of_week", "dayofweek"))),
        Case("date_add(a, b)", call("date_add", date, column("b", "int"))),
    ]  # fmt: skip
    columns = paired(days, [None, 0, -1, 31, 100000])
    groups.append(Rows("date", batch_of({"a": "date", "b": "int"}, columns), tuple(cases)))
    groups.append(
        Rows(
            "times in text",
            batch_of({"a": "string"}, {"a": DATE_TEXTS}),
            tuple(cast_cases("string", ["timestamp"], zone)),
        )
    )
    return groups


def all_rows() -> list[Rows]:
    """Everything that does not depend on the session's time zone."""
    return [
        *integer_rows(),
        *float_rows(),
        *decimal_rows(),
        *string_rows(),
        *text_to_value_rows(),
        *boolean_rows(),
        *lazy_rows(),
    ]
