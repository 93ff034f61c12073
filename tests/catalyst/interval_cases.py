"""Intervals in Spark's SQL, each with the text that our plan shows for it."""

from __future__ import annotations

# (Spark's SQL, the text that our plan shows for it)
INTERVAL_CASES: tuple[tuple[str, str], ...] = (
    (
        "day + make_ym_interval(t, s)",
        "add_months(day, CAST(((CAST(CAST(t AS int) AS bigint) * 12L) + "
        "CAST(CAST(s AS int) AS bigint)) AS int))",
    ),
    (
        "day - make_ym_interval(1, i % 99)",
        "add_months(day, (- CAST(((1L * 12L) + CAST((i % 99) AS bigint)) AS int)))",
    ),
    ("day + interval '1' month * t", "add_months(day, CAST((1L * CAST(t AS bigint)) AS int))"),
    (
        "ts + interval '1-2' year to month * (a % 40)",
        "(ts + CAST((14L * (a % 40L)) AS int) months)",
    ),
    (
        "ntz - make_ym_interval(0, t)",
        "(ntz + (- CAST(((0L * 12L) + CAST(CAST(t AS int) AS bigint)) AS int)) months)",
    ),
    (
        "day + make_ym_interval(i, i)",
        "add_months(day, CAST(((CAST(i AS bigint) * 12L) + CAST(i AS bigint)) AS int))",
    ),
    ("gap", "gap"),
    ("gap + gap2", "interval((micros(gap) + micros(gap2)))"),
    ("gap - gap2", "interval((micros(gap) - micros(gap2)))"),
    (
        "gap + cast(gap as interval day)",
        "interval((micros(gap) + (micros(gap) - (micros(gap) % 86400000000L))))",
    ),
    (
        "cast(gap as interval day) + interval '3' hour",
        "interval((((micros(gap) - (micros(gap) % 86400000000L)) - ((micros(gap) - "
        "(micros(gap) % 86400000000L)) % 3600000000L)) + 10800000000L))",
    ),
    ("-gap", "interval((- micros(gap)))"),
    ("abs(gap)", "interval(abs(micros(gap)))"),
    ("try_add(gap, gap2)", "try(interval((micros(gap) + micros(gap2))))"),
    ("gap * i", "interval((micros(gap) * CAST(i AS bigint)))"),
    ("gap * t", "interval((micros(gap) * CAST(t AS bigint)))"),
    ("gap * x", "interval((micros(gap) * x))"),
    ("gap * f", "interval((micros(gap) * CAST(f AS double)))"),
    ("gap * d", "interval((micros(gap) * d))"),
    ("gap * big", "interval((micros(gap) * big))"),
    (
        "cast(gap as interval day) * 2",
        "interval(((micros(gap) - (micros(gap) % 86400000000L)) * 2L))",
    ),
    ("gap / i", "interval((micros(gap) / CAST(i AS bigint)))"),
    ("gap / a", "interval((micros(gap) / a))"),
    ("gap / x", "interval((micros(gap) / x))"),
    ("gap / f", "interval((micros(gap) / CAST(f AS double)))"),
    ("gap / d", "interval((micros(gap) / d))"),
    ("gap / big", "interval((micros(gap) / big))"),
    (
        "cast(gap as interval day) / 7",
        "interval(((micros(gap) - (micros(gap) % 86400000000L)) / 7L))",
    ),
    ("gap div gap2", "(micros(gap) div micros(gap2))"),
    ("gap = gap2", "(gap = gap2)"),
    (
        "gap < cast(gap as interval day)",
        "(gap < interval((micros(gap) - (micros(gap) % 86400000000L))))",
    ),
    ("gap > interval '1 02:03:04.5' day to second", "(gap > INTERVAL '93784500 ms')"),
    (
        "gap in (interval '5' second, interval '2' day)",
        "(gap IN (INTERVAL '5 seconds', INTERVAL '2 days'))",
    ),
    (
        "gap between interval '-1' hour and interval '1' hour",
        "((gap >= INTERVAL '-1 hours') AND (gap <= INTERVAL '1 hour'))",
    ),
    ("greatest(gap, gap2)", "greatest(gap, gap2)"),
    ("coalesce(gap, interval '0' second)", "coalesce(gap, INTERVAL '0 seconds')"),
    ("if(p, gap, gap2)", "if(p, gap, gap2)"),
    ("ts - timestamp_micros(a)", "interval((unix_micros(ts) - unix_micros(timestamp_micros(a))))"),
    (
        "ntz - timestamp_ntz'2020-01-01'",
        "interval((unix_micros(ntz) - unix_micros(TIMESTAMP_NTZ '2020-01-01 00:00:00')))",
    ),
    (
        "ts - timestamp'2020-03-08 01:30:00'",
        "interval((unix_micros(ts) - unix_micros(TIMESTAMP '2020-03-08 01:30:00Z')))",
    ),
    (
        "day - date'2020-01-01'",
        "interval(((CAST(unix_date(day) AS bigint) - CAST(unix_date(DATE '2020-01-01') AS "
        "bigint)) * 86400000000L))",
    ),
    ("ts + gap", "timestamp_micros((unix_micros(ts) + micros(gap)))"),
    ("ts - gap", "timestamp_micros((unix_micros(ts) + (- micros(gap))))"),
    ("ntz + gap", "(ntz + micros(gap) microseconds)"),
    (
        "ts + cast(gap as interval day)",
        "timestamp_micros((unix_micros(ts) + (micros(gap) - (micros(gap) % 86400000000L))))",
    ),
    (
        "day + cast(gap as interval day)",
        "date_add(day, CAST(((micros(gap) - (micros(gap) % 86400000000L)) div 86400000000L) "
        "AS int))",
    ),
    ("day + gap", "timestamp_micros((unix_micros(CAST(day AS timestamp)) + micros(gap)))"),
    ("extract(day from gap)", "CAST((micros(gap) div 86400000000L) AS int)"),
    ("extract(hour from gap)", "CAST(((micros(gap) % 86400000000L) div 3600000000L) AS tinyint)"),
    ("extract(minute from gap)", "CAST(((micros(gap) % 3600000000L) div 60000000L) AS tinyint)"),
    (
        "extract(second from gap)",
        "CAST((CAST((micros(gap) % 60000000L) AS decimal(8,0)) * 0.000001) AS decimal(8,6))",
    ),
    (
        "extract(day from cast(gap as interval day))",
        "CAST(((micros(gap) - (micros(gap) % 86400000000L)) div 86400000000L) AS int)",
    ),
    (
        "make_dt_interval(t, i, s, d)",
        "interval((((CAST((CAST(d AS decimal(18,6)) * 1000000) AS bigint) + (CAST(CAST(t AS "
        "int) AS bigint) * 86400000000L)) + (CAST(i AS bigint) * 3600000000L)) + "
        "(CAST(CAST(s AS int) AS bigint) * 60000000L)))",
    ),
    (
        "make_dt_interval(i, i)",
        "interval((((0L + (CAST(i AS bigint) * 86400000000L)) + (CAST(i AS bigint) * "
        "3600000000L)) + (0L * 60000000L)))",
    ),
    ("cast(gap as string)", "CAST(gap AS string)"),
    (
        "cast(cast(gap as interval day) as string)",
        "CAST(interval((micros(gap) - (micros(gap) % 86400000000L))) AS string)",
    ),
    ("cast(gap as int)", "CAST((micros(gap) div 1000000L) AS int)"),
    ("cast(gap as bigint)", "CAST((micros(gap) div 1000000L) AS bigint)"),
    (
        "cast(cast(gap as interval day) as int)",
        "CAST(((micros(gap) - (micros(gap) % 86400000000L)) div 86400000000L) AS int)",
    ),
    (
        "cast(cast(gap as interval day) as smallint)",
        "CAST(((micros(gap) - (micros(gap) % 86400000000L)) div 86400000000L) AS smallint)",
    ),
    (
        "try_cast(cast(gap as interval day) as tinyint)",
        "TRY_CAST(((micros(gap) - (micros(gap) % 86400000000L)) div 86400000000L) AS tinyint)",
    ),
    ("cast(i as interval day)", "interval((CAST(i AS bigint) * 86400000000L))"),
    ("cast(a as interval hour)", "interval((a * 3600000000L))"),
    ("try_cast(a as interval minute)", "interval(try((a * 60000000L)))"),
    ("cast(s as interval second)", "interval((CAST(s AS bigint) * 1000000L))"),
    ("cast(gap as interval day)", "interval((micros(gap) - (micros(gap) % 86400000000L)))"),
    ("cast(gap as interval hour to minute)", "interval((micros(gap) - (micros(gap) % 60000000L)))"),
    (
        "cast(cast(gap as interval day) as interval day to second)",
        "interval((micros(gap) - (micros(gap) % 86400000000L)))",
    ),
    (
        "cast(cast(gap as interval day to hour) as string)",
        "CAST(interval((micros(gap) - (micros(gap) % 3600000000L))) AS string)",
    ),
    (
        "cast(cast(gap as interval day to minute) as string)",
        "CAST(interval((micros(gap) - (micros(gap) % 60000000L))) AS string)",
    ),
    (
        "cast(cast(gap as interval hour) as string)",
        "CAST(interval((micros(gap) - (micros(gap) % 3600000000L))) AS string)",
    ),
    (
        "cast(cast(gap as interval hour to minute) as string)",
        "CAST(interval((micros(gap) - (micros(gap) % 60000000L))) AS string)",
    ),
    (
        "cast(cast(gap as interval hour to second) as string)",
        "CAST(interval(micros(gap)) AS string)",
    ),
    (
        "cast(cast(gap as interval minute) as string)",
        "CAST(interval((micros(gap) - (micros(gap) % 60000000L))) AS string)",
    ),
    (
        "cast(cast(gap as interval minute to second) as string)",
        "CAST(interval(micros(gap)) AS string)",
    ),
    ("cast(cast(gap as interval second) as string)", "CAST(interval(micros(gap)) AS string)"),
)
