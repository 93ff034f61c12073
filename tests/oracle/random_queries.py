"""Random queries in plain PySpark: a seed composes one, over streams as over rows that stand.

Nothing in them depends on the order of rows, and no row is late: what Spark's batch gives is what a
stream must have given once its input has ended.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    _Known = tuple[tuple[str, ...], tuple[Callable[[Column], Column], ...]]

DELAY_S = 60  # above the disorder of the events: nothing is late
STREAMS = ("first", "second")
STATIC = "static"

_NUMBERS = ("bigint", "int", "smallint", "tinyint")
_KEYS = ("bigint", "int", "string", "boolean", "date", "decimal(8,2)")
_KEPT = {
    "auction": "bigint", "price": "bigint", "url": "string", "fee": "decimal(8,2)",
    "tags": "array<string>", "flag": "boolean", "tiny": "tinyint", "n": "int", "ratio": "double",
    "day": "date", "at": "timestamp", "st": "struct<n:int,w:string>",
}  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """A DataFrame on its way, and what the steps behind it may rely on."""

    frame: DataFrame
    time: str | None  # the column, a timestamp, that the watermark speaks of
    unique: str | None  # one that no two rows share
    window: str | None = None  # the column with the window of a group

    def of_type(self, *types: str) -> list[str]:
        return [name for name, kind in self.frame.dtypes if kind in types]


@dataclass(frozen=True)
class Composed:
    """A query; in update and complete mode its first `keys` columns are those of a group.

    Of a group the last row counts, in complete mode as well: each vertex sends its own groups when
    they change. A group of groups `may_vanish` when these change, which no row says.
    """

    frame: DataFrame
    mode: str
    keys: int
    may_vanish: bool = False


def compose(seed: int, frames: Mapping[str, DataFrame], more: bool = False) -> Composed:
    """The query of a seed over these frames, which have the columns of the events.

    With `more` other aggregates stand beside those of the seed; without it a seed stays the same.
    """
    return _Composer(random.Random(seed), frames, random.Random(-seed) if more else None).query()


class _Composer:
    def __init__(
        self, rng: random.Random, frames: Mapping[str, DataFrame], more: random.Random | None
    ) -> None:
        self._rng = rng
        self._more = more
        self._frames = frames
        self._names = (f"c{number}" for number in count())
        self._uses: Iterator[str] = (f"u{number}" for number in count())

    def query(self) -> Composed:
        rng = self._rng
        rows = self._rows(rng.choice((1, 2, 2, 3)))
        end = rng.choice((self._as_they_are, self._windows, self._windows, self._groups))
        return end(rows)

    # --- ends ---

    def _as_they_are(self, rows: Rows) -> Composed:
        return Composed(rows.frame, "append", 0)

    def _windows(self, rows: Rows) -> Composed:
        """Groups by windows, and maybe groups of these, and maybe the first ones of each window."""
        if rows.time is None:
            return self._groups(rows)
        rows = self._windowed(rows)
        more = self._rng.choice(("", "", "again", "wider", "best", "groups"))
        if more == "again":
            keys = rows.of_type(*_KEYS)
            by = self._rng.sample(keys, self._rng.randrange(min(2, len(keys)) + 1))
            grouped = rows.frame.groupBy("window", *by)
            return Composed(grouped.agg(*self._aggregates(rows)), "append", 0)
        if more == "wider":
            wider = F.window(F.window_time("window"), "50 seconds").alias("wider")
            return Composed(rows.frame.groupBy(wider).agg(*self._aggregates(rows)), "append", 0)
        if more == "best":
            return self._best(rows)
        if more == "groups":
            return self._groups(rows)
        return Composed(rows.frame, "append", 0)

    def _best(self, rows: Rows) -> Composed:
        columns = [name for name, kind in rows.frame.dtypes if name != "window"]
        if rows.window != "window" or not columns:
            return Composed(rows.frame, "append", 0)
        order = Window.partitionBy("window").orderBy(*columns)
        function = self._rng.choice((F.rank, F.dense_rank))
        ranked = rows.frame.withColumn("place", function().over(order))
        return Composed(ranked.filter(f"place <= {self._rng.randrange(1, 4)}"), "append", 0)

    def _groups(self, rows: Rows) -> Composed:
        """Groups without an end, in update or complete mode; and maybe groups of these."""
        rng = self._rng
        keys = self._keys(rows, 2)
        frame = rows.frame.groupBy(*keys).agg(*self._aggregates(rows))
        width, is_twice = len(keys), rng.random() < 0.3
        if is_twice and keys:  # one group of no rows is there in a batch, and not in a stream
            inner = replace(rows, frame=frame)
            again = self._keys(inner, 1)
            frame, width = frame.groupBy(*again).agg(*self._aggregates(inner)), len(again)
        mode = rng.choice(("update", "complete")) if width else "complete"
        may_vanish = is_twice or rows.window is not None
        if mode == "complete" and rng.random() < 0.3:
            frame = frame.orderBy(*frame.columns).limit(rng.randrange(1, 9))
            width, may_vanish = 0, False  # one vertex sorts, and sends all that there is
        return Composed(frame, mode, width, may_vanish)

    # --- rows ---

    def _rows(self, depth: int) -> Rows:
        rows = self._source(self._rng.choice(STREAMS))
        for _ in range(depth):
            rows = self._rng.choice(_STEPS)(self, rows)
        return rows

    def _source(self, name: str, is_static: bool = False) -> Rows:
        """Some columns of a stream, under names of their own."""
        rng, use = self._rng, next(self._uses)
        kept = rng.sample(sorted(_KEPT), rng.randrange(3, 7))
        frame = self._frames[name].select(
            *(F.col(column).alias(f"{use}_{column}") for column in ("id", "ts", *kept))
        )
        # Rows without a time are in no window, and keep an outer join's nulls apart from their own.
        frame = frame.filter(F.col(f"{use}_ts").isNotNull())
        if is_static:
            return Rows(frame, None, None)
        frame = frame.withWatermark(f"{use}_ts", f"{DELAY_S} seconds")
        return Rows(frame, f"{use}_ts", f"{use}_id")

    def _filtered(self, rows: Rows) -> Rows:
        return replace(rows, frame=rows.frame.filter(self._condition(rows)))

    def _projected(self, rows: Rows) -> Rows:
        return replace(rows, frame=rows.frame.withColumn(next(self._names), self._value(rows)))

    def _exploded(self, rows: Rows) -> Rows:
        arrays = rows.of_type("array<string>")
        if not arrays:
            return rows
        made = self._rng.choice((F.explode, F.explode_outer))(self._rng.choice(arrays))
        return replace(
            rows, frame=rows.frame.select("*", made.alias(next(self._names))), unique=None
        )

    def _united(self, rows: Rows) -> Rows:
        """The rows of a filter beside those of another."""
        one, other = self._condition(rows), self._condition(rows)
        frame = rows.frame.filter(one).unionByName(rows.frame.filter(other))
        return replace(rows, frame=frame, unique=None)

    def _distinct(self, rows: Rows) -> Rows:
        """Whole keys only: which row of a key is the first depends on the order."""
        keys = self._keys(rows, 2)
        if rows.time is not None:
            keys.append(rows.time)
        if not keys:
            return rows
        frame = rows.frame.select(*keys).dropDuplicates()
        return Rows(frame, rows.time, None, rows.window if rows.window in keys else None)

    def _joined(self, rows: Rows) -> Rows:
        """With another stream, or the same one, within a range of time or a window."""
        rng = self._rng
        other = self._source(rng.choice(STREAMS))
        if rng.random() < 0.4:
            other = rng.choice((_Composer._filtered, _Composer._projected))(self, other)
        if rows.time is None:
            return self._looked_up(rows)
        mine, theirs = rows.time, str(other.time)
        frame, against = rows.frame, other.frame
        if rng.random() < 0.2:
            size, names = f"{rng.choice((5, 20))} seconds", [next(self._names) for _ in range(2)]
            frame = frame.withColumn(names[0], F.window(mine, size))
            against = against.withColumn(names[1], F.window(theirs, size))
            near = F.col(names[0]) == F.col(names[1])
        else:
            low, high = sorted((rng.randrange(-30, 30), rng.randrange(-30, 30)))
            first, last = (f"{mine} + INTERVAL '{bound}' SECOND" for bound in (low, high))
            near = F.expr(f"{theirs} BETWEEN {first} AND {last}")
        condition = near & self._equal(rows, other)
        if rng.random() < 0.2 and rows.unique and other.unique:
            condition &= F.col(rows.unique) != F.col(other.unique)
        how = rng.choice(("inner", "inner", "left", "right", "full", "left_semi", "left_anti"))
        frame = frame.join(against, condition, how)
        if how in ("left_semi", "left_anti"):
            return replace(rows, frame=frame)
        # Behind an outer join the nullable side has rows without a time.
        time = {"inner": mine, "left": mine, "right": theirs}.get(how)
        return Rows(frame, time, None)

    def _looked_up(self, rows: Rows) -> Rows:
        """With rows that stand."""
        other = self._source(STATIC, is_static=True)
        how = self._rng.choice(("inner", "left", "left_semi", "left_anti"))
        frame = rows.frame.join(other.frame, self._equal(rows, other), how)
        kept = how in ("left_semi", "left_anti")
        return replace(rows, frame=frame, unique=rows.unique if kept else None)

    def _equal(self, rows: Rows, other: Rows) -> Column:
        """A pair of keys of one type; a constant pair if there is none."""
        pairs = [(a, b) for kind in _KEYS for a in rows.of_type(kind) for b in other.of_type(kind)]
        if not pairs:
            return F.lit(1) == F.lit(1)
        a, b = self._rng.choice(pairs)
        if self._rng.random() < 0.2:
            return F.col(a).eqNullSafe(F.col(b))
        return F.col(a) == F.col(b)

    # --- groups ---

    def _windowed(self, rows: Rows) -> Rows:
        rng = self._rng
        assert rows.time is not None
        window: Column = rng.choice(
            (
                F.window(rows.time, "10 seconds"),
                F.window(rows.time, "30 seconds", "10 seconds"),
                F.window(rows.time, "7 seconds", "7 seconds", "3 seconds"),
                F.session_window(rows.time, "5 seconds"),
            )
        )
        grouped = rows.frame.groupBy(window.alias("window"), *self._keys(rows, 2))
        frame = grouped.agg(*self._aggregates(rows))
        return Rows(frame, None, None, "window")

    def _keys(self, rows: Rows, most: int) -> list[str]:
        able = [name for name in rows.of_type(*_KEYS) if name != rows.unique]
        return self._rng.sample(able, self._rng.randrange(min(most, len(able)) + 1))

    def _aggregates(self, rows: Rows) -> list[Column]:
        made = [F.count("*").alias(next(self._names))]
        for _ in range(self._rng.randrange(3)):
            made += self._aggregate(rows, self._rng, _AGGREGATES)
        if self._more is not None:
            for _ in range(2):
                made += self._aggregate(rows, self._more, _MORE_AGGREGATES)
        return made

    def _aggregate(self, rows: Rows, rng: random.Random, known: Sequence[_Known]) -> list[Column]:
        """One of these, if there is a column that it takes."""
        kinds, functions = rng.choice(known)
        able = rows.of_type(*kinds)
        if not able:
            return []
        return [rng.choice(functions)(F.col(rng.choice(able))).alias(next(self._names))]

    # --- expressions, none of which fails ---

    def _condition(self, rows: Rows) -> Column:
        return self._expression(rows, _CONDITIONS)

    def _value(self, rows: Rows) -> Column:
        return self._expression(rows, _VALUES)

    def _expression(self, rows: Rows, forms: Sequence[tuple[str, ...]]) -> Column:
        """A form whose places, one of each type that it names, are filled with columns."""
        able = []
        for text, *kinds in forms:
            if all(rows.of_type(*kind.split("|")) for kind in kinds):
                able.append((text, kinds))
        text, kinds = self._rng.choice(able)
        given = [self._rng.choice(rows.of_type(*kind.split("|"))) for kind in kinds]
        return F.expr(text.format(*given))


_Step = Callable[[_Composer, Rows], Rows]
_STEPS: tuple[_Step, ...] = (
    _Composer._filtered,
    _Composer._projected,
    _Composer._exploded,
    _Composer._united,
    _Composer._distinct,
    _Composer._joined,
    _Composer._joined,
    _Composer._joined,
    _Composer._looked_up,
)

_CONDITIONS: tuple[tuple[str, ...], ...] = (
    ("true",),
    ("{0} > 0", "bigint|int|tinyint"),
    ("{0} is not null", "bigint|int|string|double"),
    ("{0} <=> {1}", "string", "string"),
    ("{0} or {0} is null", "boolean"),
    ("{0} in (1, 2, 3, null)", "bigint"),
    ("length({0}) < 4", "string"),
    ("{0} like '%b%'", "string"),
    ("isnan({0}) or {0} < 100", "double"),
    ("size({0}) > 0", "array<string>"),
    ("{0} > 100.5", "decimal(8,2)"),
    ("year({0}) > 2000", "date"),
    ("{0}.n = 1", "struct<n:int,w:string>"),
)
_VALUES: tuple[tuple[str, ...], ...] = (
    ("1",),
    ("coalesce({0}, 7)", "bigint|int"),
    ("try_add({0}, 1L)", "bigint|int"),
    ("upper({0})", "string"),
    ("concat_ws('-', {0}, {1})", "string", "string"),
    ("case when {0} > 0 then 'plus' when {0} < 0 then 'minus' end", "bigint|int|tinyint"),
    ("if({0}, 1, 2)", "boolean"),
    ("{0} is null", "bigint|string|decimal(8,2)"),
    ("date_add({0}, 3)", "date"),
    ("date_trunc('HOUR', {0})", "timestamp"),
    ("{0}.w", "struct<n:int,w:string>"),
    ("element_at({0}, 1)", "array<string>"),
    ("cast({0} as string)", "bigint|int|decimal(8,2)|date"),
    ("abs({0})", "double"),
    ("transform({0}, x -> upper(x))", "array<string>"),
    ("md5({0})", "string"),
    ("pmod({0}, 3)", "bigint|int"),
    ("cast({0} as decimal(38,4))", "decimal(8,2)"),
)
_NESTED = ("struct<n:int,w:string>", "array<string>")
_MORE_AGGREGATES: tuple[_Known, ...] = (
    ((*_KEYS, *_NESTED, "double"), (F.approx_count_distinct,)),
    ((*_KEYS, *_NESTED), (lambda each: F.approx_count_distinct(each, 0.2),)),
    (
        ("decimal(8,2)",),
        (
            lambda each: F.sum(each.cast("decimal(30,4)")),
            lambda each: F.avg(each.cast("decimal(38,6)")),
            lambda each: F.try_sum(each.cast("decimal(18,2)")),
            lambda each: F.max(each.cast("decimal(25,3)")),
        ),
    ),
    (_NESTED, (F.min, F.max, F.count_distinct, lambda each: F.size(F.collect_list(each)))),
    (_NESTED, (lambda each: F.size(F.collect_set(each)), lambda each: F.mode(each, True))),
    ((*_KEYS, "double"), (lambda each: F.mode(each, True), lambda each: F.max_by(each, each))),
    (_NUMBERS[1:], (F.try_sum, F.try_avg, lambda each: F.percentile_approx(each, [0.1, 0.9]))),
    (_NUMBERS, (lambda each: F.regr_count(each, each), lambda each: F.regr_slope(each, F.lit(1)))),
)
_AGGREGATES: tuple[_Known, ...] = (
    (_NUMBERS[1:], (F.sum, F.avg)),
    (("decimal(8,2)",), (F.sum, F.avg)),
    ((*_KEYS, "double", "timestamp", *_NUMBERS), (F.min, F.max)),
    ((*_KEYS, "double"), (F.count, F.count_distinct)),
    (_NUMBERS, (F.bit_and, F.bit_or, F.bit_xor)),
    (("boolean",), (F.bool_and, F.bool_or, F.count_if)),
    ((*_KEYS,), (lambda each: F.sort_array(F.collect_set(each)),)),
    ((*_KEYS,), (lambda each: F.sort_array(F.collect_list(each)),)),
    (_NUMBERS, (F.median, lambda each: F.percentile(each, 0.25))),
)
