"""Queries with Python functions of every kind, and the rows that they read.

PySpark reads the annotations of functions, so they are no texts here.
"""

import datetime
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame

COUNT = 200
_DAY = datetime.date(2024, 2, 20)


def _column(kind: pa.DataType, values: list[object], every: int) -> pa.Array:
    """The values again and again, one in so many null."""
    made = [None if n % every == every - 1 else values[n % len(values)] for n in range(COUNT)]
    return pa.array(made, kind)


ROWS = pa.table(
    {
        "n": pa.array(range(COUNT), pa.int64()),
        "i": _column(pa.int32(), [3, -7, 0, 2**31 - 1, -(2**31)], 11),
        "x": _column(pa.float64(), [0.5, float("nan"), -0.0, 1e300, float("inf")], 13),
        "s": _column(pa.string(), ["a", "", "ä€😀", "long " * 20], 7),
        "b": _column(pa.binary(), [b"\x00\xff", b"", b"abc"], 9),
        "t": pa.array(range(0, COUNT * 10**11, 10**11), pa.timestamp("us", "UTC")),
        "p": _column(pa.timestamp("us"), [datetime.datetime(2024, 3, 10, 2, 30, 0, 17)], 10),
        "day": _column(pa.date32(), [_DAY + datetime.timedelta(n) for n in range(17)], 8),
        "d": _column(pa.decimal128(12, 3), [Decimal("12.340"), Decimal("-0.001")], 6),
        "flag": _column(pa.bool_(), [True, False], 5),
        "xs": _column(pa.list_(pa.int64()), [[1, None, 3], [], [2]], 12),
        "st": _column(
            pa.struct([("k", pa.int32()), ("v", pa.string())]),
            [{"k": 1, "v": "one"}, {"k": None, "v": ""}],
            14,
        ),
        "m": _column(pa.map_(pa.string(), pa.int64()), [{"p": 1}, {}, {"q": None, "r": 2}], 15),
    }
)


@dataclass(frozen=True)
class Case:
    """What is asked of the rows, and in which mode."""

    define: Callable[[DataFrame], DataFrame]
    mode: str = "append"


TYPES = {
    "n": "bigint", "i": "int", "x": "double", "s": "string", "b": "binary", "t": "timestamp",
    "p": "timestamp_ntz", "day": "date", "d": "decimal(12,3)", "flag": "boolean",
    "xs": "array<bigint>", "st": "struct<k: int, v: string>", "m": "map<string, bigint>",
}  # fmt: skip
PYTHON_NODES = {
    "ArrowEvalPython", "ArrowEvalPythonUDTF", "BatchEvalPython", "BatchEvalPythonUDTF",
    "MapInArrow", "MapInPandas",
}  # fmt: skip
NAMES = (
    "identity_pickled",
    "identity_arrow",
    "groups",
    "pandas",
    "mixed",
    "map_arrow",
    "tables",
    "odd",
)
MORE_NAMES = (
    "described_pickled", "described_arrow", "chained", "keywords", "filters", "windows",
    "pandas_iterator", "pandas_struct", "arrow", "arrow_iterator", "branches", "map_pandas",
    "tables_pickled", "table_argument", "static_join", "behind_state", "unions", "odd_arrow",
    "arrow_table", "stream_join", "regrouped",
)  # fmt: skip


def cases() -> dict[str, Case]:
    from pyspark.sql import functions as F  # noqa: PLC0415
    from pyspark.sql.functions import arrow_udf, pandas_udf, udf, udtf  # noqa: PLC0415

    def same(use_arrow: bool) -> Callable[[DataFrame], DataFrame]:
        return lambda df: df.select(
            *[udf(lambda v: v, kind, useArrow=use_arrow)(name).alias(name)
              for name, kind in TYPES.items()]
        )  # fmt: skip

    def described(use_arrow: bool) -> Callable[[DataFrame], DataFrame]:
        describe = udf(lambda v: f"{type(v).__name__} {v!r}", "string", useArrow=use_arrow)
        return lambda df: df.select("n", *[describe(name).alias(f"{name}_") for name in TYPES])

    odd_values = [
        None, True, 3, -300, 2**31, -(2**40), 2**63, 2.5, 1e20, "x", [1, None, 2.0],
        Decimal("2.345"),
    ]  # fmt: skip
    nested_values = [
        None,
        b"ab",
        [1, "a", 2],
        (3, None),
        {"a": 1, "b": 2.5},
        {"a": "z"},
        "é",
        b"\xff",
    ]
    plain_kinds = (
        "tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "decimal(10,2)",
        "string",
    )  # fmt: skip
    nested_kinds = (
        "binary",
        "array<int>",
        "array<double>",
        "map<string,int>",
        "map<string,double>",
    )

    def odd(df: DataFrame) -> DataFrame:
        asked = [(odd_values, kind) for kind in plain_kinds]
        asked += [(nested_values, kind) for kind in nested_kinds]
        functions = [
            udf(lambda n, values=values: values[n % len(values)], kind, useArrow=False)
            for values, kind in asked
        ]
        return df.select("n", *[f("n").alias(f"c{at}") for at, f in enumerate(functions)])

    numbers = udf(lambda n: [n, n / 2, None][n % 3], "double")
    add = udf(lambda v, by=1: None if v is None else v + by, "bigint")
    double = udf(lambda v: None if v is None else v * 2, "bigint", useArrow=False)
    length = udf(lambda s: None if s is None else len(s), "int")
    letter = udf(lambda n: "abc"[n % 3], "string", useArrow=False)

    @pandas_udf("double")
    def mean(a: pd.Series, b: pd.Series) -> pd.Series:
        return (a + b) / 2

    @pandas_udf("bigint")
    def counted(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for batch in batches:
            yield batch + 1

    @pandas_udf("k bigint, v string")
    def pair(n: pd.Series, st: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"k": n * 10, "v": st["v"]})

    @pandas_udf("timestamp")
    def later(t: pd.Series) -> pd.Series:
        return t + pd.Timedelta(hours=1)

    @arrow_udf("bigint")
    def tenfold(n: pa.Array) -> pa.Array:
        return pa.compute.multiply(n, 10)

    @arrow_udf("string")
    def zone(t: pa.Array) -> pa.Array:
        return pa.array([str(t.type)] * len(t))

    @arrow_udf("bigint")
    def each(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for batch in batches:
            yield pa.compute.negate(batch)

    def some(batches):  # type: ignore[no-untyped-def]
        for batch in batches:
            yield batch.filter(pa.compute.equal(pa.compute.bit_wise_and(batch["n"], 1), 0)).select(
                ["s", "n", "t"]
            )

    def twice(batches):  # type: ignore[no-untyped-def]
        for frame in batches:
            yield pd.concat([frame, frame])[["n", "s", "t", "xs"]]

    class Letters:
        def eval(self, n: int, s: str | None):  # type: ignore[no-untyped-def]
            yield from enumerate((s or "")[: n % 4])

    class Rows:
        def eval(self, row):  # type: ignore[no-untyped-def]
            if row["n"] % 3 == 0:
                yield row["n"], row["s"]

    def tables(use_arrow: bool) -> Callable[[DataFrame], DataFrame]:
        function = udtf(Letters, returnType="at int, letter string", useArrow=use_arrow)

        def define(df: DataFrame) -> DataFrame:
            df.sparkSession.udtf.register("letters", function)
            df.createOrReplaceTempView("given")
            return df.sparkSession.sql(
                "select n, at, letter from given, lateral letters(n + 0, s) where at <> 1"
            )

        return define

    def table_argument(df: DataFrame) -> DataFrame:
        df.sparkSession.udtf.register("some_rows", udtf(Rows, returnType="n bigint, s string"))
        df.createOrReplaceTempView("given")
        return df.sparkSession.sql("select * from some_rows(TABLE(select n, s from given))")

    class Selected:
        def eval(self, rows: pa.RecordBatch) -> Iterator[pa.Table]:
            kept = rows.filter(pa.compute.greater(rows["n"], 150))
            yield pa.table({"m": kept["n"], "text": kept["s"]})

    def arrow_table(df: DataFrame) -> DataFrame:
        function = F.arrow_udtf(Selected, returnType="m bigint, text string")
        df.sparkSession.udtf.register("selected", function)
        df.createOrReplaceTempView("given")
        return df.sparkSession.sql("select * from selected(TABLE(select n, s from given))")

    def stream_join(df: DataFrame) -> DataFrame:
        other = df.select(F.col("n").alias("o"), F.col("s").alias("text"))
        same = (add("n") == other["o"]) & (length("s") < length("text"))
        return df.join(other, same).select("n", "o", "text")

    def static_join(df: DataFrame) -> DataFrame:
        other = df.sparkSession.range(4).withColumnRenamed("id", "key")
        return df.join(other, udf(lambda n: n % 7, "bigint")("n") == other["key"]).select(
            "n", "key"
        )

    window = F.window("t", "20 days")
    return {
        "identity_pickled": Case(same(False)),
        "identity_arrow": Case(same(True)),
        "described_pickled": Case(described(False)),
        "described_arrow": Case(described(True)),
        "chained": Case(
            lambda df: df.select(add(add("n")).alias("a"), double(double(add("n"))).alias("b"))
        ),
        "keywords": Case(
            lambda df: df.select(
                add(by=F.col("n"), v=F.lit(5)).alias("a"), add("n", by="n").alias("b")
            )
        ),
        "filters": Case(
            lambda df: df.where(length("s") > 1).where(double("n") % 3 == 0).select("n", "s")
        ),
        "groups": Case(
            lambda df: df.groupBy(letter("n").alias("k")).agg(
                F.sum(double("n")).alias("total"), add(F.count("s")).alias("texts")
            ),
            "update",
        ),
        "windows": Case(
            lambda df: (
                df.withColumn("k", letter("n"))
                .withWatermark("t", "1 day")
                .groupBy(window, "k")
                .agg(F.sum("n").alias("total"))
                .select(F.col("window.start").alias("start"), "k", add("total").alias("more"))
            )
        ),
        "pandas": Case(lambda df: df.select("n", mean("x", "n").alias("y"), later("t").alias("t"))),
        "pandas_iterator": Case(lambda df: df.select(counted("n").alias("y"), "s")),
        "pandas_struct": Case(lambda df: df.select("n", pair("n", "st").alias("y"))),
        "arrow": Case(lambda df: df.select(tenfold("n").alias("y"), zone("t").alias("zone"))),
        "arrow_iterator": Case(lambda df: df.select(each("n").alias("y"))),
        "branches": Case(
            lambda df: df.select("n", F.when(F.col("n") > 9, add("n")).otherwise(0).alias("y"))
        ),
        "mixed": Case(
            lambda df: df.select(
                double(tenfold(add("n"))).alias("a"),
                mean(F.col("n") * 0.5, "x").alias("b"),
                "s",
                double(F.expr("xpath_long(concat('<a>', n, '</a>'), 'a')")).alias("c"),
            )
        ),
        "map_arrow": Case(
            lambda df: df.mapInArrow(some, "s string, n bigint, t timestamp").where("n > 10")
        ),
        "map_pandas": Case(
            lambda df: df.select("n", "s", "t", "xs").mapInPandas(
                twice, "n bigint, s string, t timestamp, xs array<bigint>"
            )
        ),
        "tables": Case(tables(True)),
        "tables_pickled": Case(tables(False)),
        "table_argument": Case(table_argument),
        "static_join": Case(static_join),
        "arrow_table": Case(arrow_table),
        "stream_join": Case(stream_join),
        "regrouped": Case(
            lambda df: (
                df.groupBy("s")
                .agg(F.count("n").alias("c"))
                .select(length("s").alias("k"), double("c").alias("c"))
                .groupBy("k")
                .agg(F.sum("c").alias("total"))
            ),
            "update",
        ),
        "behind_state": Case(
            lambda df: df.dropDuplicates(["s"]).select(length("s").alias("y"), F.upper("s"))
        ),
        "odd": Case(odd),
        "odd_arrow": Case(lambda df: df.select(numbers("n").alias("y"))),
        "unions": Case(
            lambda df: df.select("n").union(df.select(double("n"))).select(add("n").alias("y"))
        ),
    }


def every_kind(df: DataFrame) -> DataFrame:
    """Each row once through a function of every kind that Spark has over streams."""
    from pyspark.sql.functions import arrow_udf, pandas_udf, udf, udtf  # noqa: PLC0415

    @pandas_udf("bigint")
    def scalar(n: pd.Series) -> pd.Series:
        return n + 1

    @pandas_udf("bigint")
    def iterated(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        return (batch + 1 for batch in batches)

    @arrow_udf("bigint")
    def arrow(n: pa.Array) -> pa.Array:
        return pa.compute.add(n, 1)

    @arrow_udf("bigint")
    def arrow_iterated(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return (pa.compute.add(batch, 1) for batch in batches)

    class Same:
        def eval(self, y: int):  # type: ignore[no-untyped-def]
            yield (y + 1,)

    for name, use_arrow in (("same", False), ("same_arrow", True)):
        function = udtf(Same, returnType="z bigint", useArrow=use_arrow)
        df.sparkSession.udtf.register(name, function)
    pickled = udf(lambda n: n + 1, "bigint", useArrow=False)
    optimised = udf(lambda n: n + 1, "bigint", useArrow=True)
    columns = "n bigint, y bigint"
    rows = df.mapInArrow(lambda batches: batches, "n bigint")
    rows = rows.mapInPandas(lambda frames: frames, "n bigint")
    for column in (pickled, scalar, optimised, iterated, arrow, arrow_iterated):
        rows = rows.select("n", column("y" if "y" in rows.columns else "n").alias("y"))
    rows = rows.groupBy("n").applyInPandas(lambda frame: frame.assign(y=frame["y"] + 1), columns)
    rows = rows.groupBy("n").applyInArrow(lambda table: table, columns)
    rows.createOrReplaceTempView("through")
    return df.sparkSession.sql(
        "select n, b.z as y from through, lateral same(y) as a, lateral same_arrow(a.z) as b"
    )


def of_table(table: object) -> Callable[[pd.Series], pd.Series]:
    """A function that looks numbers up in a broadcast variable."""

    def looked_up(n: pd.Series) -> pd.Series:
        return n.map(table.value.get)  # type: ignore[attr-defined]

    return looked_up


def inverse_function() -> Callable[[pd.Series], pd.Series]:
    """A function that fails for a batch with a number that ends in 07 or 57."""

    def inverse(n: pd.Series) -> pd.Series:
        if (n % 50 == 7).any():
            raise ZeroDivisionError("a seven")
        return 1.0 / (n + 1)

    return inverse
