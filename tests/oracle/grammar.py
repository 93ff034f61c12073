"""Random expressions in Spark's SQL, typed, so that each is one that is run here."""

from __future__ import annotations

import random

DEPTH_MAX = 4

# By type: leaves, then forms whose places are filled with expressions of the named types.
_LEAVES: dict[str, tuple[str, ...]] = {
    "boolean": ("p", "q"),
    "int": ("i", "i2", "cast(t as int)", "cast(s2 as int)", "xs[0]", "st.n"),
    "bigint": ("a", "b", "cast(i as bigint)"),
    "double": ("x", "x2", "cast(f as double)"),
    "decimal": ("d", "d2", "cast(t as decimal(8,2))"),
    "string": ("u", "v", "num", "st.w"),
    "date": ("day", "day2"),
    "timestamp": ("ts", "ts2", "cast(ntz as timestamp)"),
}
# A constant has a place in a form only: Spark computes what is constant before it plans, and fails.
_FORMS: dict[str, tuple[str, ...]] = {
    "boolean": (
        "{boolean} and {boolean}", "{boolean} or {boolean}", "not {boolean}",
        "{int} = {int}", "{int} < {int}", "{bigint} <=> {bigint}", "{bigint} <> {bigint}",
        "{double} <= {double}", "{double} > {double}", "{decimal} >= {decimal}",
        "{string} = {string}", "{string} < {string}", "{date} < {date}",
        "{timestamp} >= {timestamp}", "{int} in (1, {int}, null)", "{string} in ('a', 'abc', '')",
        "{string} is null", "{double} is not null", "isnan({double})", "startswith({string}, 'a')",
        "contains({string}, {string})", "{string} like '%b_'", "{string} rlike '[0-9]+'",
        "if({boolean}, {boolean}, {boolean})", "coalesce({boolean}, {boolean})",
        "{int} between {int} and {int}", "{boolean} = {boolean}",
        "{date} < date'2024-02-29'",
    ),
    "int": (
        "{int} + {int}", "{int} - {int}", "{int} * {int}", "{int} % {int}", "pmod({int}, {int})",
        "-{int}", "abs({int})", "length({string})", "year({date})", "month({timestamp})",
        "dayofweek({date})", "hour({timestamp})", "if({boolean}, {int}, {int})",
        "coalesce({int}, {int})", "greatest({int}, {int}, 5)", "least({int}, {int})",
        "cast({bigint} as int)", "cast({string} as int)", "try_cast({string} as int)",
        "cast({double} as int)", "cast({boolean} as int)", "cast({decimal} as int)",
        "case when {boolean} then {int} when {boolean} then {int} end", "nullif({int}, {int})",
        "size(split({string}, 'b'))", "weekday({date})",
        "{int} + 2147483647",
        "{int} % 7",
        "{int} * -1",
        "coalesce({int}, 0)",
    ),
    "bigint": (
        "{bigint} + {bigint}", "{bigint} - {int}", "{bigint} * {bigint}", "{bigint} div {bigint}",
        "{bigint} % {bigint}", "pmod({bigint}, 7)", "unix_micros({timestamp})",
        "unix_seconds({timestamp})", "floor({double})", "ceil({double})",
        "if({boolean}, {bigint}, {bigint})", "nvl({bigint}, {bigint})", "cast({string} as bigint)",
        "try_cast({double} as bigint)", "abs({bigint})", "{int} div {int}",
        "{bigint} - 9223372036854775807L",
        "{bigint} div 3L",
    ),
    "double": (
        "{double} + {double}", "{double} - {double}", "{double} * {double}", "{double} / {double}",
        "{double} % {double}", "-{double}", "abs({double})", "sqrt({double})", "{int} / {int}",
        "round({double}, 2)", "nanvl({double}, {double})", "cast({bigint} as double)",
        "cast({decimal} as double)", "try_cast({string} as double)",
        "if({boolean}, {double}, {double})", "greatest({double}, {double})",
        "least({double}, {double})", "coalesce({double}, {double})",
        "{double} * -0.0D",
        "if({boolean}, {double}, double('NaN'))",
        "{double} + 0.5D",
    ),
    "decimal": (
        "if({boolean}, {decimal}, {decimal})", "coalesce({decimal}, {decimal})",
        "cast({int} as decimal(8,2))", "try_cast({double} as decimal(8,2))", "abs({decimal})",
        "cast({decimal} * cast(t2 as decimal(3,0)) as decimal(8,2))",
        "cast({decimal} + {decimal} as decimal(8,2))",
        "cast({decimal} % {decimal} as decimal(8,2))",
        "cast(round({decimal}, 1) as decimal(8,2))", "-{decimal}",
        "greatest({decimal}, 1.50)",
    ),
    "string": (
        "upper({string})", "lower({string})", "trim({string})",
        # Not null: behind one, Spark's compiled code computes nothing more, its interpreter does.
        "concat(coalesce({string}, ''), '-', {string})",
        "concat_ws('/', {string}, {string})", "substring({string}, 2, 3)",
        "replace({string}, 'b', {string})", "lpad({string}, 6, '*')", "rpad({string}, 3, 'é')",
        "cast({int} as string)", "cast({bigint} as string)",
        "cast({boolean} as string)", "cast({decimal} as string)", "cast({date} as string)",
        "cast({timestamp} as string)", "if({boolean}, {string}, {string})",
        "coalesce({string}, {string})", "left({string}, 2)", "split({string}, 'b')[0]",
        "case {int} when 1 then {string} else {string} end",
        "concat({string}, '')",
        "coalesce(cast(null as string), {string})",
        "nvl({string}, 'Straße')",
    ),
    "date": (
        "date_add({date}, 40)", "date_sub({date}, 3)", "cast({timestamp} as date)",
        "try_cast({string} as date)", "if({boolean}, {date}, {date})", "coalesce({date}, {date})",
        "least({date}, date'2024-02-29')",
    ),
    "timestamp": (
        "date_trunc('HOUR', {timestamp})", "date_trunc('WEEK', {timestamp})",
        "{timestamp} + interval 90 seconds", "{timestamp} - interval 5 hours",
        "timestamp_millis({int})", "cast({date} as timestamp)", "try_cast(at as timestamp)",
        "if({boolean}, {timestamp}, {timestamp})", "greatest({timestamp}, {timestamp})",
        "least({timestamp}, timestamp'1969-12-31 23:59:59.999999')",
    ),
}  # fmt: skip


def random_expression(rng: random.Random) -> str:
    """One expression of a random type."""
    return _expression(rng, rng.choice(sorted(_FORMS)), DEPTH_MAX)


def _expression(rng: random.Random, kind: str, depth: int) -> str:
    if not depth or rng.random() < 0.15:
        return rng.choice(_LEAVES[kind])
    pieces = rng.choice(_FORMS[kind]).split("{")
    text = pieces[0]
    for piece in pieces[1:]:
        wanted, _, rest = piece.partition("}")
        text += _expression(rng, wanted, depth - 1) + rest
    return f"({text})"
