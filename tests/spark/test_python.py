"""Queries with Python functions: every kind against Spark's own result, in slots of real Spark."""

from __future__ import annotations

import datetime
import os
import signal
import threading
import uuid
import zoneinfo
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import penstock
from penstock.api.session import Attached
from penstock.catalyst.session import plans_of
from penstock.errors import JobFailed, UnsupportedPlan
from penstock.expressions.types import schema_from_arrow
from penstock.runtime.queries import stored_query
from penstock.runtime.streams import StreamReader, StreamWriter, create_stream
from tests.spark import python_cases
from tests.spark.waiting import wait_for
from tests.spark_session import own_session
from tests.thoroughness import some

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

END_S = 100


@pytest.fixture(scope="module")
def attached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attached]:
    with own_session(
        {
            "spark.sql.session.timeZone": "America/New_York",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "40",
        }
    ) as session:
        found = penstock.attach(session, tmp_path_factory.mktemp("python") / "log")
        create_stream(found.log, "rows", schema_from_arrow(python_cases.ROWS.schema))
        writer = StreamWriter(found.log, "rows", "writer")
        for batch in python_cases.ROWS.to_batches(max_chunksize=70):
            writer.write(batch)
        writer.write(None, ended=True)
        yield found


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("penstock").option("stream", "rows").load()


def run(
    attached: Attached, name: str, df: DataFrame, mode: str = "append", **options: Any
) -> pa.Table:
    writer = penstock.writeStream(df).queryName(name).outputMode(mode).options(**options)
    assert writer.toStream(f"{name}_out").start().awaitTermination(END_S)
    return StreamReader(attached.log, f"{name}_out").read_all()


def shown(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def test_the_clock_and_chance_are_asked_once_for_each_row(
    attached: Attached, rows: DataFrame
) -> None:
    from pyspark.sql import functions as F  # noqa: PLC0415

    before = datetime.datetime.now(datetime.UTC)
    df = (
        rows.withColumn("r", F.rand())
        .withColumn("u", F.expr("uuid()"))
        .withColumn("at", F.current_timestamp())
        .where("r >= 0.25")
        .select(
            "n", "r", (F.col("r") * 2).alias("twice"), "u", "at", F.randn().alias("g"),
            F.hash("u").alias("h"), F.expr("hash(u)").alias("again"), F.now().alias("later"),
            F.current_date().alias("day"), F.localtimestamp().alias("wall"),
        )
    )  # fmt: skip
    found = run(attached, "chance", df, parallelism=2)
    after = datetime.datetime.now(datetime.UTC)
    columns = found.to_pydict()
    assert 100 < found.num_rows < 190
    assert all(0.25 <= r < 1 for r in columns["r"])
    assert columns["twice"] == [r * 2 for r in columns["r"]]
    assert columns["h"] == columns["again"]
    assert len(set(columns["u"])) == len(set(columns["g"])) == found.num_rows
    assert all(uuid.UUID(each).version == 4 for each in columns["u"])
    assert all(before <= at <= later <= after for at, later in
               zip(columns["at"], columns["later"], strict=True))  # fmt: skip
    zone = zoneinfo.ZoneInfo("America/New_York")
    assert {before.astimezone(zone).date(), after.astimezone(zone).date()} >= set(columns["day"])
    assert all(before <= wall.replace(tzinfo=zone) <= after for wall in columns["wall"])
    assert run(attached, "chance", df, parallelism=2).equals(found)  # over, and not done again


def test_chance_behind_rows_that_come_and_go_is_refused(rows: DataFrame) -> None:
    from pyspark.sql import functions as F  # noqa: PLC0415

    counts = rows.groupBy("s").count().withColumn("r", F.rand())
    groups = counts.groupBy((F.col("r") > 0.5).alias("half")).count()
    writer = penstock.writeStream(groups).queryName("refused").outputMode("update")
    with pytest.raises(UnsupportedPlan, match=r"rand\(.* is not deterministic and stands on rows"):
        writer.toStream("refused_out").start()


@pytest.mark.parametrize(
    "name",
    [
        *some([*python_cases.NAMES], every=3),
        *(pytest.param(name, marks=pytest.mark.slow) for name in python_cases.MORE_NAMES),
    ],
)
def test_a_query_gives_what_spark_gives(attached: Attached, rows: DataFrame, name: str) -> None:
    case = python_cases.cases()[name]
    found = run(attached, name, case.define(rows), case.mode, parallelism=2)
    static = attached.spark.read.format("penstock").option("stream", "rows").load()
    wanted = case.define(static).toArrow()
    if case.mode != "append":  # the last of each key counts
        newest = {row["k"]: row for row in found.to_pylist()}
        found = pa.Table.from_pylist(list(newest.values()), schema=found.schema)
    assert wanted.num_rows
    assert shown(found) == shown(wanted)


def test_every_node_of_the_plan_is_judged(rows: DataFrame) -> None:
    kinds = set()
    for case in python_cases.cases().values():
        kinds |= {node.kind for node in plans_of(case.define(rows)).optimized.walk()}
    assert kinds >= python_cases.PYTHON_NODES


# --- how code travels -----------------------------------------------------------------------------


def test_code_comes_with_what_it_refers_to(
    attached: Attached, rows: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broadcast variables, modules that were added, and values in reach of the function."""
    from pyspark.sql.functions import pandas_udf, udf  # noqa: PLC0415

    module = tmp_path / "penstock_sent_module.py"
    module.write_text("def tripled(n):\n    return n * 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    context = attached.spark.sparkContext
    context.addPyFile(str(module))
    import penstock_sent_module  # type: ignore[import-not-found]  # noqa: PLC0415

    table = context.broadcast({n: n * 100 for n in range(5)})
    large = list(range(400_000))  # sent as a broadcast variable of its own
    offset = 7

    def looked_up(n):  # type: ignore[no-untyped-def]
        return int(table.value.get(n, -1)) + offset + large[n]

    pandas_looked_up = pandas_udf(python_cases.of_table(table), "bigint")
    df = rows.where("n < 5").select(
        "n",
        udf(looked_up, "bigint", useArrow=False)("n").alias("a"),
        pandas_looked_up("n").alias("b"),
        udf(penstock_sent_module.tripled, "bigint")("n").alias("c"),
    )
    found = run(attached, "sent", df, parallelism=1)
    assert sorted(map(tuple, (row.values() for row in found.to_pylist()))) == [
        (n, n * 100 + 7 + n, n * 100, n * 3) for n in range(5)
    ]
    stored = stored_query(attached.log, "sent")
    assert stored is not None
    assert "looked_up(n)" in stored.program.to_json()
    assert len(stored.program.to_json()) < 10_000  # no code is at rest


def test_a_module_that_executors_lack_is_named(
    rows: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.functions import udf  # noqa: PLC0415

    (tmp_path / "penstock_kept_module.py").write_text("def tripled(n):\n    return n * 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import penstock_kept_module  # type: ignore[import-not-found]  # noqa: PLC0415

    df = rows.select(udf(penstock_kept_module.tripled, "bigint")("n"))
    query = penstock.writeStream(df).queryName("lacking").toStream("lacking_out").start()
    with pytest.raises(JobFailed, match=r"tripled needs module penstock_kept_module.*addPyFile"):
        query.awaitTermination(END_S)


def test_a_changed_function_is_told_and_computes_what_is_new(
    attached: Attached, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    from pyspark.sql.functions import udf  # noqa: PLC0415

    numbers = pa.table({"n": pa.array(range(6), pa.int64())})
    create_stream(attached.log, "more", schema_from_arrow(numbers.schema))
    publish = StreamWriter(attached.log, "more", "writer")
    stream = spark.readStream.format("penstock").option("stream", "more").load()

    def written(factor: int) -> Any:
        scaled = udf(lambda n: n * factor, "bigint")
        return penstock.writeStream(stream.select("n", scaled("n").alias("y"))).queryName("scaled")

    def drained(factor: int) -> None:
        writer = written(factor).toStream("scaled_out").trigger(availableNow=True)
        assert writer.start().awaitTermination(END_S)

    publish.write(numbers.to_batches()[0].slice(0, 3))
    drained(10)
    written(10).toStream("scaled_out").explain()
    assert "query scaled: unchanged" in capsys.readouterr().out
    written(20).toStream("scaled_out").explain()
    shown_text = capsys.readouterr().out
    assert "rebuilt" in shown_text
    assert "[python]" in shown_text
    assert "Python function <lambda>(n) has changed" in shown_text
    publish.write(numbers.to_batches()[0].slice(3))
    drained(20)
    found = StreamReader(attached.log, "scaled_out").read_all().to_pylist()
    assert [row["y"] for row in found] == [0, 10, 20, 60, 80, 100]


# --- rows that fail, slots that die ---------------------------------------------------------------


def test_rows_that_fail_go_to_the_dead_letter_stream(attached: Attached, rows: DataFrame) -> None:
    from pyspark.sql.functions import pandas_udf  # noqa: PLC0415

    df = rows.select("n", pandas_udf(python_cases.inverse_function(), "double")("n").alias("y"))
    found = run(attached, "inverse", df, deadLetterStream="inverse_bad")
    bad = StreamReader(attached.log, "inverse_bad").read_all().to_pylist()
    assert sorted(row["n"] for row in bad) == [7, 57, 107, 157]
    assert all("ZeroDivisionError: a seven" in row["error"] for row in bad)
    assert all('raise ZeroDivisionError("a seven")' in row["error"] for row in bad)
    assert sorted(row["n"] for row in found.to_pylist()) == [
        n for n in range(python_cases.COUNT) if n % 50 != 7
    ]


@pytest.mark.slow
def test_a_killed_slot_loses_and_doubles_no_call(attached: Attached, spark: SparkSession) -> None:
    """Of every kind: a row has one value, though functions give another each time, and is there
    once, though slots are killed.
    """
    from pyspark.sql.functions import udf  # noqa: PLC0415

    rows = pa.table({"n": pa.array(range(2_000), pa.int64())})
    create_stream(attached.log, "killing", schema_from_arrow(rows.schema))
    publish = StreamWriter(attached.log, "killing", "writer")
    stream = spark.readStream.format("penstock").option("stream", "killing").load()
    drawn = udf(lambda: str(uuid.uuid4()), "string").asNondeterministic()
    where = udf(lambda n: os.getpid(), "bigint", useArrow=False)
    through = python_cases.every_kind(stream)
    df = through.select("n", "y", drawn().alias("u"), where("n").alias("pid"))
    writer = penstock.writeStream(df).queryName("killing").option("standbySlots", 1)
    query = writer.toStream("killing_out").start()
    reader = StreamReader(attached.log, "killing_out")
    found: list[dict[str, Any]] = []
    pids: set[int] = set()
    try:
        for start in range(0, rows.num_rows, 500):
            publish.write(rows.slice(start, 500).to_batches()[0])
            if start % 1_000:
                os.kill(found[-1]["pid"], signal.SIGKILL)
            query.processAllAvailable()
            found += [row for batch in reader.read() for row in batch.to_pylist()]
            pids = {row["pid"] for row in found}
    finally:
        query.stop()
    assert [(row["n"], row["y"]) for row in found] == [(n, n + 9) for n in range(2_000)]
    assert len({row["u"] for row in found}) == 2_000
    assert len(pids) > 2
    assert StreamReader(attached.log, "killing_out").read_all().to_pylist() == found


@pytest.mark.slow
def test_a_function_that_hangs_costs_its_slot(
    attached: Attached, rows: DataFrame, tmp_path: Path
) -> None:
    from pyspark.sql.functions import udf  # noqa: PLC0415

    hung = tmp_path / "hung"

    def once(n):  # type: ignore[no-untyped-def]
        if n == 100 and not hung.exists():
            hung.touch()
            threading.Event().wait()
        return n

    df = rows.select(udf(once, "bigint")("n").alias("n"))
    found = run(attached, "hanging", df, stepTimeout="3 seconds")
    assert [row["n"] for row in found.to_pylist()] == list(range(python_cases.COUNT))
    assert hung.exists()


@pytest.mark.slow
def test_a_query_whose_function_hangs_can_be_stopped(
    attached: Attached, rows: DataFrame, tmp_path: Path
) -> None:
    """Its slot is ended; what it had not committed is done at the next start, once."""
    from pyspark.sql.functions import udf  # noqa: PLC0415

    hung, mended = tmp_path / "hung", tmp_path / "mended"

    def waits(n):  # type: ignore[no-untyped-def]
        if n == 100 and not mended.exists():
            hung.touch()
            threading.Event().wait()
        return n

    df = rows.select(udf(waits, "bigint")("n").alias("n"))
    query = penstock.writeStream(df).queryName("held").toStream("held_out").start()
    wait_for("the function", hung.exists)
    query.stop()
    assert not query.isActive
    mended.touch()
    found = run(attached, "held", df)
    assert [row["n"] for row in found.to_pylist()] == list(range(python_cases.COUNT))
