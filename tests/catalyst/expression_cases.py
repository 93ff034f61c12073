"""Expressions in Spark's SQL, each with the text that our plan shows for it."""

from __future__ import annotations

from tests.catalyst.decimal_cases import DECIMAL_CASES
from tests.catalyst.interval_cases import INTERVAL_CASES
from tests.catalyst.nested_cases import NESTED_CASES
from tests.catalyst.text_cases import TEXT_CASES
from tests.catalyst.time_cases import TIME_CASES

COLUMNS = (
    "a bigint, b bigint, i int, s smallint, t tinyint, f float, x double, d decimal(8,2), "
    "e decimal(6,3), p boolean, q boolean, u string, num string, at string, day date, "
    "ts timestamp, ntz timestamp_ntz, bytes binary, xs array<int>, st struct<n:int,w:string>, "
    "big decimal(38,10), wide decimal(22,4), ys array<int>, us array<string>, "
    "xss array<array<int>>, pts array<struct<n:int,w:string>>, m map<string,int>, js string, "
    "gap interval day to second, gap2 interval day to second"
)

# (SQL, text of our expression, whether the last bits of a double may differ)
Case = tuple[str, str]


def _case(sql: str, text: str | None = None) -> Case:
    return sql, text if text is not None else sql


CASES: tuple[Case, ...] = (
    # arithmetic
    _case("a + b", "(a + b)"),
    _case("a - 1", "(a - 1L)"),
    _case("i * s", "(i * CAST(s AS int))"),
    _case("x * 2", "(x * CAST(2.0 AS DOUBLE))"),
    _case("a / b", "(CAST(a AS double) / CAST(b AS double))"),
    _case("a div b", "(a div b)"),
    _case("a % b", "(a % b)"),
    _case("pmod(a, 7)", "pmod(a, 7L)"),
    _case("-i", "(- i)"),
    _case("abs(i - 3)", "abs((i - 3))"),
    _case("d + e", "(d + e)"),
    _case("d * e", "(d * e)"),
    _case("d * 2", "(d * 2)"),
    _case("d - 1.5", "(d - 1.5)"),
    _case("e / 3", "(e / 3)"),
    _case("e % 2", "(e % 2)"),
    _case("d + s", "(d + CAST(s AS decimal(5,0)))"),
    # comparison
    _case("a = b", "(a = b)"),
    _case("a <> b", "(NOT (a = b))"),
    _case("a <=> b", "(a <=> b)"),
    _case("x < 2", "(x < CAST(2.0 AS DOUBLE))"),
    _case("u >= 'b'", "(u >= 'b')"),
    _case("day > date'2020-06-01'", "(day > DATE '2020-06-01')"),
    _case("ts <= timestamp'2020-06-01'", "(ts <= TIMESTAMP '2020-06-01 00:00:00Z')"),
    _case("i between 1 and 4", "((i >= 1) AND (i <= 4))"),
    _case("a in (1, 2, 3)", "(a IN (1L, 2L, 3L))"),
    _case("a in (1, null)", "(a IN (1L, NULL))"),
    _case("u in ('b', 'a', 'x y')", "(u IN ('b', 'a', 'x y'))"),
    _case(
        "i in (12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2)",
        "(i IN (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12))",
    ),
    _case(
        "u in ('k', 'j', 'i', 'h', 'g', 'f', 'e', 'd', 'c', 'b', 'a')",
        "(u IN ('a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k'))",
    ),
    _case("greatest(a, b, 2)", "greatest(a, b, 2L)"),
    _case("least(x, 0)", "least(x, CAST(0.0 AS DOUBLE))"),
    # logic, nulls, branches
    _case("p and q", "(p AND q)"),
    _case("p or not q", "(p OR (NOT q))"),
    _case("u is null", "(u IS NULL)"),
    _case("u is not null", "(u IS NOT NULL)"),
    _case("isnan(x)"),
    _case("nanvl(x, 1)", "if(isnan(x), CAST(1.0 AS DOUBLE), x)"),
    _case("coalesce(a, b, 0)", "coalesce(a, b, 0L)"),
    _case("nvl(u, 'none')", "coalesce(u, 'none')"),
    _case("nullif(a, 3)", "if((a = 3L), NULL, a)"),
    _case("if(p, a, b)", "if(p, a, b)"),
    _case(
        "case when i > 3 then 'big' when i > 0 then 'small' end",
        "CASE WHEN (i > 3) THEN 'big' WHEN (i > 0) THEN 'small' END",
    ),
    _case("case i when 1 then 2 else 3 end", "CASE WHEN (i = 1) THEN 2 ELSE 3 END"),
    # casts
    _case("cast(a as int)", "CAST(a AS int)"),
    _case("cast(num as int)", "CAST(num AS int)"),
    _case("try_cast(u as int)", "TRY_CAST(u AS int)"),
    _case("cast(x as string)", "CAST(x AS string)"),
    _case("cast(i as decimal(12,2))", "CAST(i AS decimal(12,2))"),
    _case("cast(d as double)", "CAST(d AS double)"),
    _case("cast(at as timestamp)", "CAST(at AS timestamp)"),
    _case("cast(ts as string)", "CAST(ts AS string)"),
    _case("cast(ts as date)", "CAST(ts AS date)"),
    _case("cast(ntz as timestamp)", "CAST(ntz AS timestamp)"),
    _case("cast(bytes as string)", "CAST(bytes AS string)"),
    _case("cast(p as int)", "CAST(p AS int)"),
    # strings
    _case("length(u)"),
    _case("length(bytes)"),
    _case("substring(u, 2, 3)"),
    _case("left(u, 2)", "substring(u, 1, 2)"),
    _case("concat(u, '-', num)", "concat(u, '-', num)"),
    _case("concat_ws('/', u, num)"),
    _case("upper(u)"),
    _case("lower(u)"),
    _case("trim(u)"),
    _case("ltrim(u)"),
    _case("rtrim(u)"),
    _case("replace(u, 'b', 'BB')"),
    _case("lpad(u, 5, '*')"),
    _case("rpad(u, 5, '*')"),
    _case("startswith(u, 'a')"),
    _case("endswith(u, 'c')"),
    _case("contains(u, 'b')"),
    _case("u like 'a%'", "startswith(u, 'a')"),
    _case("u like 'a_c'", "(u LIKE 'a_c')"),
    _case("u like 'a!_%_' escape '!'", "(u LIKE 'a!_%_')"),
    _case("u rlike '^a.*[0-9]$'", "(u RLIKE '^a.*[0-9]$')"),
    _case("split(u, ' ')", "split(u, ' ', -1)"),
    # mathematics
    _case("floor(x)"),
    _case("ceil(d)"),
    _case("round(x, 1)"),
    _case("round(d)", "round(d, 0)"),
    _case("sqrt(abs(x))"),
    _case("exp(x)"),
    _case("ln(abs(x))"),
    _case("log(abs(x))", "ln(abs(x))"),
    _case("pow(x, 2)", "pow(x, CAST(2.0 AS DOUBLE))"),
    # dates and times
    _case("year(ts)", "year(CAST(ts AS date))"),
    _case("month(day)"),
    _case("day(day)"),
    _case("dayofweek(day)"),
    _case("weekday(day)", "((dayofweek(day) + 5) % 7)"),
    _case("hour(ts)"),
    _case("minute(ntz)"),
    _case("second(ts)"),
    _case("date_trunc('HOUR', ts)", "date_trunc('hour', ts)"),
    _case("date_trunc('MM', ts)", "date_trunc('month', ts)"),
    _case("date_add(day, 3)"),
    _case("date_sub(day, 3)", "date_add(day, -3)"),
    _case("ts + interval 90 seconds", "timestamp_micros((unix_micros(ts) + 90000000L))"),
    _case("ts - interval 5 hours", "timestamp_micros((unix_micros(ts) + -18000000000L))"),
    _case("unix_timestamp(ts)", "(unix_micros(ts) div 1000000L)"),
    _case("to_unix_timestamp(ts)", "(unix_micros(ts) div 1000000L)"),
    _case("unix_seconds(ts)"),
    _case("unix_millis(ts)"),
    _case("unix_micros(ts)"),
    _case("timestamp_seconds(a)"),
    _case("timestamp_millis(a)"),
    _case("timestamp_micros(a)"),
    # nested values
    _case("named_struct('n', i, 'w', u)", "struct(i, u)"),
    _case("st.w"),
    _case("array(i, 7)", "array(i, 7)"),
    _case("array(1, 2)", "array(1, 2)"),
    _case("xs[0]"),
    _case("element_at(xs, 1)", "element_at(xs, 1)"),
    _case("get(xs, i)", "if(((i >= 0) AND (i < size(xs))), xs[i], NULL)"),
    _case("size(xs)"),
    _case("map(1, 'one', -3, cast(null as string), 7, '')[i]", "lookup(i)"),
    _case("map('a', 1L, '', 2L)[u]", "lookup(u)"),
    # constants
    _case("true"),
    _case("cast(1 as tinyint)", "1Y"),
    _case("12345678901", "12345678901L"),
    _case("1.50", "1.50"),
    _case("2.5D", "CAST(2.5 AS DOUBLE)"),
    _case("cast('NaN' as double)", "CAST('nan' AS DOUBLE)"),
    _case("cast(-0.1 as float)", "CAST(-0.10000000149011612 AS FLOAT)"),
    _case("'it''s'", "'it\\'s'"),
    _case("X'0AFF'", "X'0AFF'"),
    _case("date'2024-02-29'", "DATE '2024-02-29'"),
    _case("timestamp'2024-02-29 12:00:00'", "TIMESTAMP '2024-02-29 12:00:00Z'"),
    _case("timestamp_ntz'2024-02-29 12:00:00'", "TIMESTAMP_NTZ '2024-02-29 12:00:00'"),
    _case("named_struct('k', 1, 'l', 'x')", "struct(1, 'x')"),
    _case("cast(null as bigint)", "NULL"),
    *TIME_CASES,
    *INTERVAL_CASES,
    *TEXT_CASES,
    *NESTED_CASES,
    *DECIMAL_CASES,
)  # fmt: skip

# What depends on the session's time zone.
ZONED: tuple[str, ...] = (
    "hour(ts)",
    "year(ts)",
    "cast(ts as string)",
    "cast(ts as date)",
    "cast(at as timestamp)",
    "cast(ntz as timestamp)",
    "date_trunc('DAY', ts)",
    "dayofweek(ts)",
    "unix_timestamp(ts)",
    "ts + interval 5 hours",
    "ts + interval 2 days",
    "ts + interval 1 month",
    "timestampadd(HOUR, t, ts)",
    "timestampdiff(MONTH, ts, ts2)",
    "months_between(ts, ts2)",
    "date_format(ts, 'yyyy-MM-dd HH:mm:ss.SSS')",
    "to_timestamp(at, 'yyyy-MM-dd')",
    "from_unixtime(a)",
    "make_timestamp(2020, 3, abs(t % 31) + 1, 2, 30, 15.5)",
    "ts - ts2",
    "ts + gap / 1000000",
    "ts - gap / 1000000",
)
