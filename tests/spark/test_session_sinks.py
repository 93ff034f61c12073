"""Files, tables and functions as sinks, beside Spark's own over the same rows."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException, StreamingQueryException
from pyspark.sql import functions as F

import penstock
from penstock.api import files_sink
from penstock.api.files_sink import FilesSink, Layout
from penstock.connectors.contract import BatchRows
from penstock.errors import JobFailed, LogReadOnly, NotALog, QueryMismatch
from penstock.log import punit
from tests.spark_session import own_session
from tests.thoroughness import some

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from penstock.api.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

COLUMNS = "n int, k string, d date, t timestamp, p decimal(10,2), x double, b boolean"
ROWS = """
    SELECT CAST(id AS INT) AS n,
           CASE id % 5 WHEN 0 THEN NULL WHEN 1 THEN 'a b' WHEN 2 THEN 'a/b=%c' WHEN 3 THEN 'é"\\n,'
                ELSE 'plain' END AS k,
           date_add(DATE'2024-02-28', CAST(id % 3 AS INT)) AS d,
           CASE WHEN id % 4 = 0 THEN NULL ELSE TIMESTAMP'2024-02-29 23:59:59.123456' END AS t,
           CAST(id / 3 AS DECIMAL(10, 2)) AS p, id / 7 AS x, id % 2 = 0 AS b
    FROM range(40)
"""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Not attached to a log: queries keep theirs in their own places."""
    with own_session() as session:
        yield session


@pytest.fixture(scope="module")
def source(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("rows") / "in")
    spark.sql(ROWS).repartition(3).write.parquet(folder)
    return folder


@pytest.fixture
def rows(spark: SparkSession, source: str) -> DataFrame:
    return spark.readStream.schema(COLUMNS).parquet(source)


def drained(writer: Any, start: Callable[[Any], Any] = lambda w: w.start()) -> Any:
    query = start(writer.trigger(availableNow=True))
    assert query.awaitTermination(120) is True
    return query


def in_order(frame: DataFrame) -> list[Row]:
    return sorted(frame.collect(), key=str)


def test_slots_end_while_a_function_still_gets_the_last_rows(
    spark: SparkSession, rows: DataFrame
) -> None:
    """With availableNow nothing more will come: their places are free for others by then."""
    found: list[Row] = []
    is_over: list[bool] = []

    def late(batch: DataFrame, number: int) -> None:
        (query,) = penstock.queries()
        is_over.append(query.job.wait_over(60))
        found.extend(batch.collect())

    query = drained(penstock.writeStream(rows.select("n")).foreachBatch(late))
    assert is_over == [True] * len(is_over) != []
    assert sorted(row.n for row in found) == list(range(40))
    assert query.exception() is None


LAYOUTS: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "parquet": ("parquet", [], {}),
    "parquet, packed": ("parquet", [], {"compression": "zstd"}),
    "parquet by text": ("parquet", ["k"], {}),
    "parquet by time": ("parquet", ["t", "d"], {}),
    "orc by number": ("orc", ["b", "p"], {}),
    "json": ("json", [], {}),
    "json by day": ("json", ["d"], {"compression": "gzip", "timestampFormat": "yyyy-MM-dd HH:mm"}),
    "csv": ("csv", [], {"header": True, "nullValue": "-"}),
    "csv by text": ("csv", ["k"], {"sep": "|", "quoteAll": True}),
    "text by number": ("text", ["n"], {}),
}


@pytest.mark.parametrize("name", some([*LAYOUTS], every=5))
def test_spark_reads_back_what_it_would_have_written_itself(
    spark: SparkSession, rows: DataFrame, tmp_path: Path, name: str
) -> None:
    kind, partition_by, options = LAYOUTS[name]
    if kind == "text":
        rows = rows.selectExpr("coalesce(k, '') AS k", "n").where("k NOT LIKE '%\n%'")
    for engine, writer in (("spark", rows.writeStream), ("ours", penstock.writeStream(rows))):
        asked: Any = writer
        query = drained(
            asked.format(kind)
            .partitionBy(*partition_by)
            .options(path=tmp_path / engine, checkpointLocation=tmp_path / f"{engine}.log")
            .options(**options)
        )
        assert query.exception() is None
    read = spark.read.format(kind).options(**options)
    theirs, ours = (read.load(str(tmp_path / each)) for each in ("spark", "ours"))
    assert ours.schema == theirs.schema
    assert in_order(ours) == in_order(theirs)
    assert ours.count() > 30
    folders = {
        engine: {str(f.parent.relative_to(tmp_path / engine)) for f in files_in(tmp_path / engine)}
        for engine in ("spark", "ours")
    }
    assert folders["ours"] == folders["spark"]


def files_in(folder: Path) -> list[Path]:
    """What readers see."""
    found = (path for path in folder.rglob("*") if path.is_file())
    hidden = (".", "_")
    return [p for p in found if not any(x.startswith(hidden) for x in p.relative_to(folder).parts)]


def test_commits_of_many_megabytes_come_whole_into_files_that_spark_writes(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Slots write files for the plain Parquet sink alone; these commits are large enough."""
    texts = spark.range(120_000).selectExpr("id", "id % 3 AS part", "lpad(id, 80, '-') AS text")
    texts.coalesce(1).write.parquet(str(tmp_path / "in"))
    rows = spark.readStream.schema(texts.schema).parquet(str(tmp_path / "in"))
    kinds = {"json": penstock.writeStream(rows).format("json")}
    kinds["parquet"] = penstock.writeStream(rows).format("parquet").partitionBy("part")
    results = [kinds[kind].option("path", str(tmp_path / kind)) for kind in kinds]
    place = str(tmp_path / "place")
    drained(penstock.writeStreams(*results).option("checkpointLocation", place))
    for kind in kinds:
        found = spark.read.schema(texts.schema).format(kind).load(str(tmp_path / kind))
        told, wanted = (
            each.agg(F.count("*"), F.countDistinct("id"), F.sum(F.crc32("text")), F.sum("part"))
            for each in (found, texts)
        )
        assert in_order(told) == in_order(wanted)


def test_a_batch_that_was_broken_off_in_the_middle_is_there_once_in_the_end(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of its files have their names when the driver dies; a zombie comes late with its own."""
    table = spark.sql(ROWS).select("n", "d").toArrow()
    batch = BatchRows(tuple(punit.encode(each) for each in table.to_batches()), table.schema)

    def opened() -> FilesSink:
        sink = FilesSink(tmp_path, "q", "id", spark, Layout("json", partition_by=("d",)))
        assert sink.last_epoch() is None
        return sink

    first = opened()
    staged = first.stage(7, batch)
    left = iter([files_sink.link_file])

    def dies(temporary: str, final: Path) -> None:
        next(left)(temporary, final)  # a second time there is nobody

    monkeypatch.setattr(files_sink, "link_file", dies)
    with pytest.raises((RuntimeError, StopIteration)):
        first.publish(7, staged)
    monkeypatch.undo()
    assert len(files_in(tmp_path)) == 1
    heir, zombie = opened(), opened()
    again, late = heir.stage(7, batch), zombie.stage(7, batch)
    heir.publish(7, again)
    zombie.publish(7, late)
    assert len(files_in(tmp_path)) == 3
    assert sorted(row["n"] for row in spark.read.json(str(tmp_path)).collect()) == list(range(40))
    assert list(tmp_path.glob(".q-*")) == []
    with pytest.raises(QueryMismatch, match="holds files of another query"):
        FilesSink(tmp_path, "q", "another id", spark, Layout("json"))


# --- functions ------------------------------------------------------------------------------------


class Noting:
    """Writes down what is called, in the process where that happens."""

    def __init__(self, folder: Path, *, opens: bool = True, fails: bool = False) -> None:
        self._folder = str(folder)
        self._opens = opens
        self._fails = fails

    def _note(self, *words: object) -> None:
        with open(f"{self._folder}/{os.getpid()}", "a", encoding="utf-8") as file:
            file.write(json.dumps([str(word) for word in words]) + "\n")

    def open(self, partition: int, batch: int) -> bool:
        self._note("open", partition, batch)
        return self._opens

    def process(self, row: Row) -> None:
        self._note("row", row["n"])
        if self._fails:
            raise RuntimeError("this row is not to be had")

    def close(self, error: Exception | None) -> None:
        self._note("close", error)


def noted(folder: Path) -> list[list[str]]:
    lines = (line for path in folder.iterdir() for line in path.read_text("utf-8").splitlines())
    return sorted(json.loads(line) for line in lines)


@pytest.mark.parametrize("opens", some([True, False], every=2))
def test_foreach_keeps_sparks_contract(
    spark: SparkSession, rows: DataFrame, tmp_path: Path, opens: bool
) -> None:
    """Of one batch in one partition Spark's own sink does the same calls."""
    done = {}
    for engine in ("spark", "ours"):
        folder = tmp_path / engine
        folder.mkdir()
        one: Any = rows if engine == "ours" else rows.coalesce(1)
        writer: Any = penstock.writeStream(one) if engine == "ours" else one.writeStream
        drained(writer.foreach(Noting(folder, opens=opens)))
        done[engine] = noted(folder)
    assert done["ours"] == done["spark"]
    assert ["open", "0", "0"] in done["ours"]
    assert len(done["ours"]) == 42 if opens else 2


def test_a_foreach_that_fails_is_closed_with_its_error_and_ends_the_query(
    rows: DataFrame, tmp_path: Path
) -> None:
    query = penstock.writeStream(rows).foreach(Noting(tmp_path, fails=True)).start()
    with pytest.raises(StreamingQueryException, match="RuntimeError: this row is not") as caught:
        query.processAllAvailable()
    assert isinstance(caught.value, JobFailed)
    assert "in process\n    raise RuntimeError" in str(caught.value)
    assert query.exception() is caught.value
    assert ["close", "this row is not to be had"] in noted(tmp_path)


def test_a_function_gets_batches_by_number_and_may_use_the_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.sql(ROWS).write.parquet(str(tmp_path / "in"))
    rows = spark.readStream.schema(COLUMNS).parquet(str(tmp_path / "in"))
    seen: list[tuple[int, int]] = []

    def note(frame: DataFrame, number: int) -> None:
        assert frame.sparkSession is spark
        frame.createOrReplaceTempView("newest")
        counted = spark.sql("SELECT count(*) AS c FROM newest").first()
        assert counted is not None
        seen.append((number, counted["c"]))

    places = {"checkpointLocation": tmp_path / "log"}
    first = drained(penstock.writeStream(rows).foreachBatch(note), lambda w: w.start(**places))
    assert (sum(n for _, n in seen), [b for b, _ in seen]) == (40, list(range(len(seen))))
    batches = len(seen)
    spark.sql(ROWS).write.mode("append").parquet(str(tmp_path / "in"))
    again = drained(penstock.writeStream(rows).foreachBatch(note), lambda w: w.start(**places))
    assert (sum(n for _, n in seen), [b for b, _ in seen]) == (80, list(range(len(seen))))
    assert len(seen) > batches
    assert (again.id, again.runId != first.runId) == (first.id, True)


# --- tables ---------------------------------------------------------------------------------------


@pytest.fixture
def database(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    spark.sql(f"CREATE DATABASE sinks LOCATION '{tmp_path}/tables'")
    yield "sinks"
    spark.sql("DROP DATABASE sinks CASCADE")


def to_table(rows: DataFrame, table: str, place: Path, **how: Any) -> StreamingQuery:
    writer = penstock.writeStream(rows)
    if "clusterBy" in how:
        writer.clusterBy(how.pop("clusterBy"))
    return drained(writer, lambda w: w.toTable(table, checkpointLocation=place, **how))  # type: ignore[no-any-return]


def test_a_table_is_made_and_gets_each_row_once(
    spark: SparkSession, rows: DataFrame, source: str, database: str, tmp_path: Path
) -> None:
    expected = in_order(spark.read.parquet(source).drop("t"))  # of which JSON keeps milliseconds
    ways: dict[str, dict[str, Any]] = {
        "plain": {"format": "parquet"},
        "parts": {"format": "orc", "partitionBy": ["d", "b"]},
        "clustered": {"format": "parquet", "clusterBy": "n"},
        "lines": {"format": "json", "partitionBy": "d"},
    }
    for name, how in ways.items():
        table = f"{database}.{name}"
        to_table(rows, table, tmp_path / name, **dict(how))
        names = [column.split()[0] for column in COLUMNS.split(", ")]
        assert in_order(spark.table(table).select(*names).drop("t")) == expected
        to_table(rows, table, tmp_path / name, **dict(how))  # nothing has come since
        assert spark.table(table).count() == len(expected)
    described = {row["col_name"] for row in spark.sql(f"DESCRIBE {database}.clustered").collect()}
    assert "# Clustering Information" in described


def test_a_table_that_is_there_keeps_its_layout_and_its_columns(
    spark: SparkSession, rows: DataFrame, database: str, tmp_path: Path
) -> None:
    table = f"{database}.there"
    spark.sql(f"CREATE TABLE {table} (n INT, k STRING) USING csv OPTIONS (sep '|', header 'true')")
    spark.sql(f"INSERT INTO {table} VALUES (-1, 'before')")
    to_table(rows.select("n", "k").where("k = 'plain'"), table, tmp_path / "log")
    assert spark.table(table).where("k = 'plain'").count() == 8
    assert spark.table(table).where("k = 'before'").count() == 1
    with pytest.raises(AnalysisException, match="do not fit table"):
        to_table(rows.select("n"), table, tmp_path / "other")
    assert not (tmp_path / "other").exists()


# --- other columns --------------------------------------------------------------------------------

SELECTED = (["k", "n"], ["k", "n", "n * 2 AS twice"], ["upper(k) AS k", "CAST(n AS string) AS n"])


@pytest.mark.parametrize("sink", [pytest.param("json", marks=pytest.mark.slow), "foreachBatch"])
def test_a_start_may_have_other_columns_as_in_spark(
    spark: SparkSession, tmp_path: Path, sink: str
) -> None:
    found: dict[str, list[Any]] = {"spark": [], "ours": []}
    for number, selected in enumerate(SELECTED):
        chosen = numbered(spark, tmp_path / "in", number).selectExpr(*selected)
        for engine, writer in (
            ("spark", chosen.writeStream),
            ("ours", penstock.writeStream(chosen)),
        ):
            asked: Any = writer

            def note(batch: DataFrame, number: int, engine: str = engine) -> None:
                found[engine] += [(batch.dtypes, row) for row in in_order(batch)]

            asked = asked.foreachBatch(note) if sink == "foreachBatch" else asked.format(sink)
            asked = asked.option("checkpointLocation", tmp_path / f"{engine}.log")
            if sink != "foreachBatch":
                asked = asked.option("path", str(tmp_path / engine))
            assert drained(asked).exception() is None
    if sink != "foreachBatch":
        columns = "k string, n string, twice long"
        for engine in found:
            found[engine] = in_order(spark.read.schema(columns).json(str(tmp_path / engine)))
    assert sorted(map(str, found["ours"])) == sorted(map(str, found["spark"]))
    assert len(found["ours"]) == 20 * len(SELECTED)


def numbered(spark: SparkSession, folder: Path, number: int) -> DataFrame:
    """A folder with one file more."""
    more = spark.range(number * 100, number * 100 + 20, 1, 1).selectExpr("id AS n", "hex(id) AS k")
    more.write.mode("append").parquet(str(folder))
    return spark.readStream.schema("n long, k string").parquet(str(folder))


def test_rows_that_wait_when_columns_change_keep_theirs(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = numbered(spark, tmp_path / "in", 0)

    def start(columns: list[str], function: Any) -> Any:
        writer = penstock.writeStream(rows.selectExpr(*columns)).foreachBatch(function)
        writer = writer.option("checkpointLocation", tmp_path / "log").trigger(availableNow=True)
        return writer.start()

    def fails(batch: DataFrame, number: int) -> None:
        raise ConnectionError("there is no table yet")

    for columns, told in (("k", "there is no table yet"), ("n", r"start, .* it had \(k\)")):
        with pytest.raises(StreamingQueryException, match=told):
            start([columns], fails).awaitTermination(120)
    seen: list[Any] = []
    query = start(["n"], lambda batch, number: seen.append((number, batch.columns, batch.count())))
    assert query.awaitTermination(120)
    assert seen == [(0, ["k"], 20)]


# --- places ---------------------------------------------------------------------------------------


def test_a_query_without_a_shared_log_keeps_its_own_at_its_location(
    spark: SparkSession, rows: DataFrame, tmp_path: Path
) -> None:
    def write(name: str) -> StreamingQuery:
        writer = penstock.writeStream(rows).queryName(name).format("parquet")
        options = {"path": tmp_path / "out", "checkpointLocation": tmp_path / "place"}
        return drained(writer.options(**options))  # type: ignore[no-any-return]

    first = write("a name: with blanks")
    count = spark.read.parquet(str(tmp_path / "out")).count()
    assert (tmp_path / "place" / "penstock-log.json").is_file()
    assert first.name == "a name: with blanks"
    assert penstock.query("a name: with blanks") is first
    again = write("another name")
    assert (again.id, again.name) == (first.id, "another name")
    assert spark.read.parquet(str(tmp_path / "out")).count() == count
    again.explain()


def test_a_place_that_cannot_be_used_is_named_and_left_alone(
    rows: DataFrame, tmp_path: Path
) -> None:
    def start(place: Path) -> object:
        return penstock.writeStream(rows).format("noop").start(checkpointLocation=place)

    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(NotALog):
        start(other)
    assert [path.name for path in other.iterdir()] == ["notes.txt"]
    sparks = tmp_path / "sparks"
    (sparks / "offsets").mkdir(parents=True)
    with pytest.raises(QueryMismatch, match="not continued here and not touched"):
        start(sparks)
    with pytest.raises(LogReadOnly, match="a folder that this user can write to"):
        start(other / "notes.txt" / "below")
    if os.geteuid():
        other.chmod(stat.S_IRUSR | stat.S_IXUSR)
        with pytest.raises(LogReadOnly):
            start(other / "below")


def test_a_name_is_taken_while_its_query_runs_and_free_again_afterwards(
    spark: SparkSession, tmp_path: Path
) -> None:
    ticks = spark.readStream.format("rate").load()
    first = penstock.writeStream(ticks).queryName("taken").format("noop").start()
    try:
        with pytest.raises(IllegalArgumentException, match="stop it first"):
            penstock.writeStream(ticks).queryName("taken").format("memory").start()
    finally:
        first.stop()
    second = penstock.writeStream(ticks).queryName("taken").format("memory").start()
    second.stop()
    assert second.id != first.id
    assert not second.folder.exists()  # it was a temporary one
