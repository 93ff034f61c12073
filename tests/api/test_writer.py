"""What `penstock.writeStream(df)` refuses before anything runs, and what `explain` says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.api.places import Place
from penstock.api.session import Attached
from penstock.api.sinks import StreamChoice
from penstock.api.task_slots import SlotWish, grant_standbys, task_slots_of
from penstock.errors import (
    InvalidConfig,
    InvalidName,
    InvalidOption,
    ProgramIncompatible,
    QueryMismatch,
    QueryNotFound,
    StreamConflict,
    StreamNotFound,
    TooFewSlots,
    UnsupportedPlan,
)
from penstock.expressions.types import schema_from_arrow
from penstock.log import open_log
from penstock.plan.optimizer import plan_program
from penstock.runtime.queries import StoredQuery, stored_names, stored_query
from penstock.runtime.streams import create_stream
from penstock.testing.plans import query, scan_source
from tests.spark_session import activated, own_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.api.writer import DataStreamWriter

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

BID_COLUMNS = "auction bigint, price bigint"


@pytest.fixture(scope="module")
def attached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attached]:
    """A session of its own, and a log with a stream and a stored query."""
    import pyarrow as pa  # noqa: PLC0415

    with own_session() as session:
        found = penstock.attach(session, tmp_path_factory.mktemp("writer") / "log")
        create_stream(found.log, "numbers", schema_from_arrow(pa.schema([("n", pa.int64())])))
        bids = scan_source("nexmark", BID_COLUMNS, None, kind="bids")
        program = plan_program(query("old", bids.to_stream("old_rows")))
        stored = StoredQuery("an-id", "old", program, "old_rows", str(found.path / "place"))
        found.log.put("query/old", stored.encode())
        yield found


@pytest.fixture
def spark(attached: Attached) -> SparkSession:
    """Active: Spark looks for formats in the active session."""
    return activated(attached.spark)


@pytest.fixture
def bids(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("nexmark").option("events", 1_000).load()


@pytest.fixture
def numbers(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("penstock").option("stream", "numbers").load()


# --- words ----------------------------------------------------------------------------------------


def words() -> dict[str, tuple[str, Callable[[DataStreamWriter], Any]]]:
    """By name: what the error must say, and the call."""
    return {
        "mode": ("known: append, update, complete", lambda w: w.outputMode("retract")),
        "option": (
            "possible are checkpointLocation, queryId",
            lambda w: w.option("batchSize", 1).toStream("x").start(),
        ),
        "number": (
            "option 'slots' is 'many'; it is",
            lambda w: w.option("slots", "many"),
        ),
        "no slot": ("a whole number from 1 on", lambda w: w.option("slots", 0)),
        "misspelt": (
            r"did you mean slots\?",
            lambda w: w.option("slot", 1).format("noop").start(),
        ),
        "time": ("'soon' is not a length of time", lambda w: w.trigger(processingTime="soon")),
        "address": (
            "folders of this machine",
            lambda w: w.format("sqlite").option("path", "s3://bucket/x").start(),
        ),
        "format": ("known: penstock, parquet", lambda w: w.format("kafka").start()),
        "triggers": ("exactly one", lambda w: w.trigger(processingTime="1 s", availableNow=True)),
        "foreach": ("`process` .* is not callable", lambda w: w.foreach("print")),
        "foreachBatch": ("needs a function", lambda w: w.foreachBatch("print")),
        "partitionBy": (
            "is for files and tables",
            lambda w: w.partitionBy("auction").toStream("x").start(),
        ),
        "both": ("use one of them", lambda w: w.partitionBy("a").clusterBy("a").toTable("bids")),
        "whole tables": ("complete mode", lambda w: w.outputMode("complete").toTable("bids")),
        "no stream": (r"toStream\('name'\)", lambda w: w.start()),
        "no path": (r"start\('path'\)", lambda w: w.format("parquet").start()),
        "no view": ("needs a queryName", lambda w: w.format("memory").start()),
        "two sinks": ("one sink", lambda w: w.toStream("a").foreachBatch(print).start()),
    }


@pytest.mark.parametrize("name", sorted(words()))
def test_a_word_that_does_not_fit_is_refused(bids: DataFrame, name: str) -> None:
    expected, say = words()[name]
    with pytest.raises(InvalidOption, match=expected):
        say(penstock.writeStream(bids))


def test_unsafe_is_refused_where_the_log_syncs(attached: Attached, bids: DataFrame) -> None:
    writer = penstock.writeStream(bids).option("guarantee", "unsafe").queryName("bare")
    with pytest.raises(InvalidOption, match="durability='process', or choose unmarked"):
        writer.toStream("bare").start()
    assert stored_query(attached.log, "bare") is None
    with pytest.raises(InvalidConfig, match="exactly-once, unmarked, unsafe"):
        penstock.writeStream(bids).option("guarantee", "none").toStream("bare").start()


def test_names_are_checked(bids: DataFrame) -> None:
    with pytest.raises(InvalidName):
        penstock.writeStream(bids).queryName("../x").toStream("x").start()
    with pytest.raises(InvalidName):
        penstock.writeStream(bids).toStream("a b")


def test_a_batch_or_a_session_without_a_log_is_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidOption, match=r"build it from spark.readStream"):
        penstock.writeStream(spark.range(3))
    rows = spark.newSession().readStream.format("rate").load()
    with pytest.raises(InvalidOption, match=r"call penstock\.attach"):
        penstock.writeStream(rows).toStream("x").start()


# --- what leaves no trace -------------------------------------------------------------------------


def _both(df: DataFrame) -> DataFrame:
    return df.filter("price > 1").union(df.filter("price < 1"))


def refused_plans() -> dict[str, tuple[str, Callable[[DataFrame], Any]]]:
    from pyspark.sql import functions as F  # noqa: PLC0415

    return {
        "input_file_block_start()": (
            "computed once for each row here: use one of these",
            lambda df: df.select(F.input_file_block_start().alias("x")),
        ),
        "observe() on two ways": (
            "each row would count twice",
            lambda df: _both(df.observe("seen", F.count(F.lit(1)).alias("rows"))),
        ),
    }


@pytest.mark.parametrize("name", sorted(refused_plans()))
def test_a_plan_that_is_not_run_here_is_refused_at_start(
    attached: Attached, bids: DataFrame, name: str
) -> None:
    """The error names the expression, says what to do and that Structured Streaming can run it."""
    expected, change = refused_plans()[name]
    with pytest.raises(UnsupportedPlan) as caught:
        penstock.writeStream(change(bids)).queryName("refused").toStream("refused").start()
    assert expected in caught.value.message
    assert "Structured Streaming can run it" in caught.value.message
    assert stored_query(attached.log, "refused") is None
    assert attached.log.get("stream/refused") is None


def test_too_few_task_slots_are_told_before_anything_is_stored(
    attached: Attached, bids: DataFrame
) -> None:
    writer = penstock.writeStream(bids).queryName("wide").toStream("wide")
    with pytest.raises(
        TooFewSlots, match=r"takes 6 task slots .*; local\[4\] has 4: use"
    ) as caught:
        writer.option("parallelism", 6).start()
    assert "use local[7] or more (threads, not cores), or set slots to 4" in caught.value.message
    assert stored_query(attached.log, "wide") is None


class Master:
    """All that is asked of a context whose master is on this machine."""

    def __init__(self, master: str) -> None:
        self.master = master


def grants() -> dict[str, tuple[int, SlotWish, int | str]]:
    """By name: how many threads, what is wished for, and what is granted or said."""
    return {
        "room": (4, SlotWish(1, 1, False, False), 1),
        "room for a sink": (4, SlotWish(1, 1, False, True), 1),
        "just": (3, SlotWish(1, 1, False, True), 1),
        "no standby": (2, SlotWish(1, 1, False, True), 0),
        "alone": (1, SlotWish(1, 1, False, False), 0),
        "asked for": (2, SlotWish(1, 1, True, False), 1),
        "no room for a sink": (1, SlotWish(1, 0, True, True), "and 1 must be left for the Spark"),
        "standbys": (2, SlotWish(1, 1, True, True), r"local\[3\] .*, or set standbySlots to 0$"),
        "nothing to advise": (1, SlotWish(1, 0, True, True), r"use local\[2\] or more \([^)]*\)$"),
    }


@pytest.mark.parametrize("name", sorted(grants()))
def test_standbys_are_granted_where_there_is_room(name: str) -> None:
    """A query that nobody could feed is refused, with what would be enough."""
    threads, wish, expected = grants()[name]
    context = Master(f"local[{threads}]")
    if isinstance(expected, int):
        assert grant_standbys(context, wish) == expected
        return
    with pytest.raises(TooFewSlots, match=expected) as caught:
        grant_standbys(context, wish)
    enough = Master(f"local[{caught.value.details['enough']}]")
    assert grant_standbys(enough, wish) == wish.standbys


def test_task_slots_of_masters(spark: SparkSession) -> None:
    context = spark.sparkContext
    assert task_slots_of("local", context) == 1
    assert task_slots_of("local[5]", context) == 5
    assert task_slots_of("local[5, 3]", context) == 5
    assert (task_slots_of("local[*]", context) or 0) >= 1
    assert task_slots_of("local-cluster[2,3,1024]", context) == 6
    assert task_slots_of("spark://host:7077", context) is None
    assert task_slots_of("yarn", context) is None


def test_a_stream_of_other_columns_is_not_written_to(attached: Attached, bids: DataFrame) -> None:
    writer = penstock.writeStream(bids).queryName("clash").toStream("numbers")
    with pytest.raises(StreamConflict, match=r"numbers is there already .*choose another name"):
        writer.option("standbySlots", 0).start()
    assert stored_query(attached.log, "clash") is None


def test_an_unknown_stream_is_told_when_it_is_loaded(spark: SparkSession) -> None:
    from pyspark.errors import AnalysisException  # noqa: PLC0415

    with pytest.raises(AnalysisException, match=r"known: numbers\. Correct the name") as caught:
        spark.readStream.format("penstock").option("stream", "nmbers").load()
    assert "StreamNotFound" in str(caught.value)


def test_a_stream_that_another_log_has_is_not_looked_for_here(
    attached: Attached, numbers: DataFrame, spark: SparkSession, tmp_path: Path
) -> None:
    """The `path` of a source must be the attached log's; the DataFrame of another one is found."""
    import pyarrow as pa  # noqa: PLC0415

    with open_log(tmp_path / "far", create=True) as far:
        create_stream(far, "distant", schema_from_arrow(pa.schema([("n", pa.int64())])))
    reader = spark.readStream.format("penstock").option("path", str(tmp_path / "far"))
    distant = reader.option("stream", "distant").load()
    with pytest.raises(InvalidOption, match=r"attach the session to .*far"):
        penstock.writeStream(distant).toStream("near").start()
    near = spark.readStream.format("penstock").option("path", f"file:{attached.path}")
    penstock.writeStream(near.option("stream", "numbers").load()).toStream("near").explain()
    penstock.attach(spark, tmp_path / "far")
    try:
        with pytest.raises(StreamNotFound, match=r"'numbers' .*known: distant"):
            penstock.writeStream(numbers).toStream("near").start()
    finally:
        penstock.attach(spark, attached.path)


def test_a_name_that_would_have_to_be_cut_is_asked_for() -> None:
    assert StreamChoice("s" * 61).query_name() == "to_" + "s" * 61
    with pytest.raises(InvalidName, match=r"\.queryName"):
        StreamChoice("s" * 62).query_name()


# --- which query ----------------------------------------------------------------------------------


def test_a_query_is_known_by_its_location_or_id(attached: Attached, bids: DataFrame) -> None:
    place = f"file:{attached.path}/place"
    for key, value in (("checkpointLocation", place), ("queryId", "an-id")):
        writer = penstock.writeStream(bids).toStream("old_rows").option(key, value)
        assert writer._results(Place(attached), writer._sinks())[0] == "old"
        with pytest.raises(QueryMismatch, match=f"{key} .*belongs to query 'old', not to 'new'"):
            writer.queryName("new").start()
    both = penstock.writeStream(bids).toStream("x").queryName("old")
    with pytest.raises(QueryMismatch, match=r"belongs to checkpointLocation .*place"):
        both.option("checkpointLocation", "elsewhere").option("standbySlots", 0).start()
    with pytest.raises(QueryNotFound, match=r"known: an-id \(old\).*Leave queryId out"):
        penstock.writeStream(bids).toStream("x").option("queryId", "none").start()
    assert "new" not in stored_names(attached.log)


def test_a_checkpoint_of_structured_streaming_is_not_taken_for_ours(
    bids: DataFrame, tmp_path: Path
) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id": "x"}')
    writer = penstock.writeStream(bids).toStream("x").option("checkpointLocation", str(tmp_path))
    with pytest.raises(QueryMismatch, match=r"not touched: .* start it here with another"):
        writer.start()


def test_a_changed_query_is_compared_with_the_stored_one(
    attached: Attached, bids: DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    first = penstock.writeStream(bids.select("auction", "price"))
    first.queryName("kept").toStream("kept_rows")
    program = first._planned(attached, *first._results(Place(attached), first._sinks())).program
    attached.log.put("query/kept", StoredQuery("k", "kept", program, "kept_rows", None).encode())
    first.explain()
    assert "query kept: unchanged" in capsys.readouterr().out
    cheaper = penstock.writeStream(bids.where("price < 9").select("auction", "price"))
    cheaper.queryName("kept").toStream("kept_rows").explain()
    shown = capsys.readouterr().out
    assert "query kept: goes on with changes" in shown
    assert "rebuilt" in shown
    wider = penstock.writeStream(bids).queryName("kept").toStream("kept_rows")
    wider.explain()
    shown = capsys.readouterr().out
    assert "cannot go on from what is stored" in shown
    assert "refused" in shown
    with pytest.raises(ProgramIncompatible, match="Start it under a new name"):
        wider.option("standbySlots", 0).start()
    assert stored_query(attached.log, "kept").program == program


def test_another_sink_is_refused(attached: Attached, bids: DataFrame, tmp_path: Path) -> None:
    """It would get what comes from now on, and look like the whole."""
    writer = penstock.writeStream(bids).queryName("moved").option("standbySlots", 0)
    writer.format("parquet").option("path", f"file:{tmp_path}/a")
    planned = writer._planned(attached, *writer._results(Place(attached), writer._sinks()))
    stored = StoredQuery("m", "moved", planned.program, "moved.out", None, f"parquet {tmp_path}/a")
    attached.log.put("query/moved", stored.encode())
    with pytest.raises(ProgramIncompatible, match=r"it was parquet .*/a and is parquet .*/b"):
        writer.start(str(tmp_path / "b"))
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("format", "columns", "refusal"),
    [
        (
            "csv",
            ["array(price) AS tags", "price"],
            "the csv sink cannot hold column 'tags', which is array",
        ),
        ("text", ["url", "price"], "the text sink takes one column, a text, and .* have 2: url"),
        ("text", ["price"], "the text sink cannot hold column 'price', which is bigint"),
    ],
)
def test_rows_that_files_cannot_hold_are_refused_at_start_as_by_spark(
    bids: DataFrame, tmp_path: Path, format: str, columns: list[str], refusal: str
) -> None:
    from pyspark.errors import AnalysisException, StreamingQueryException  # noqa: PLC0415

    rows = bids.selectExpr(*columns)
    writer = penstock.writeStream(rows).queryName("unfit").option("standbySlots", 0)
    with pytest.raises(AnalysisException, match=refusal):
        writer.format(format).start(str(tmp_path / "out"))
    folder = tmp_path / "read"
    folder.mkdir()
    static = bids.sparkSession.createDataFrame([], bids.schema)
    static.write.mode("overwrite").parquet(str(folder))
    read = bids.sparkSession.readStream.schema(bids.schema).parquet(str(folder))
    read = read.selectExpr(*columns)
    spark = read.writeStream.format(format).option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises((AnalysisException, StreamingQueryException)):
        spark.trigger(availableNow=True).start(str(tmp_path / "spark")).awaitTermination()


SINKS = {
    "parquet": "exactly once: a row is in one file, which appears whole or not at all\n",
    "partitions": "or not at all; the files of a batch appear one after the other",
    "console": "at least once: the newest epoch is printed again",
    "memory": "exactly once within a run",
    "foreachBatch": "a function that skips batches it has seen is exactly once",
    "stream": "exactly once: rows count when a marker covers them",
}


@pytest.mark.parametrize("sink", sorted(SINKS))
def test_explain_shows_the_guarantee_of_the_sink_and_makes_nothing(
    attached: Attached,
    bids: DataFrame,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    sink: str,
) -> None:
    writer = penstock.writeStream(bids).queryName("shown")
    if sink == "foreachBatch":
        writer.foreachBatch(lambda frame, epoch: None)
    elif sink == "stream":
        writer.toStream("shown")
    elif sink == "partitions":
        writer.partitionBy("auction").option("path", str(tmp_path / "out"))
    else:
        writer.format(sink).option("path", str(tmp_path / "out"))
    writer.explain()
    assert SINKS[sink] in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    assert stored_query(attached.log, "shown") is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda w: [], "at least one"),
        (lambda w: [w()], "toStream"),
        (lambda w: [w().format("parquet"), w().format("console")], "needs a folder"),
        (lambda w: [w().toStream("a"), w().toStream("a")], "same sink: stream a"),
        (lambda w: [w().format("console"), w().format("console")], "same sink: console"),
        (lambda w: [sqlite(w(), "x"), sqlite(w(), "y")], "same sink: sqlite"),
        (lambda w: [w().foreachBatch(print), w().foreachBatch(repr)], "same sink: foreachBatch"),
        (lambda w: [w().toStream("a"), w().toStream("b").queryName("q")], "queryName of one"),
        (lambda w: [w().toStream("a").trigger(availableNow=True)], "trigger of one"),
        (lambda w: [w().toStream("a").option("slots", 1)], "option slots of one"),
    ],
)
def test_results_that_do_not_fit_into_one_query(
    bids: DataFrame, wrong: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        penstock.writeStreams(*wrong(lambda: penstock.writeStream(bids))).queryName("q").explain()


def sqlite(writer: DataStreamWriter, key: str) -> DataStreamWriter:
    return (
        writer.format("sqlite").option("path", "/tmp/a.db").option("table", "t").option("key", key)
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda both: both.outputMode("update"), "outputMode would be for one"),
        (lambda both: both.option("path", "/tmp/x"), "option path would be for one"),
        (lambda both: both.toStream("c"), "a sink would be for one"),
    ],
)
def test_what_one_result_has_is_not_set_for_all(
    attached: Attached, bids: DataFrame, wrong: Callable[[Any], Any], message: str
) -> None:
    writers = [penstock.writeStream(bids).toStream(name) for name in "ab"]
    with pytest.raises(InvalidOption, match=message):
        wrong(penstock.writeStreams(*writers)).explain()
