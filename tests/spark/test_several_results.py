"""Several results of one query on a real Spark session: killed slots, sinks, later results."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

import penstock
from penstock.api.session import Attached
from penstock.errors import StreamConflict
from penstock.expressions.types import schema_from_arrow
from penstock.log import punit
from penstock.log.committed import CommittedReader
from penstock.runtime.backlog import sink_progress
from penstock.runtime.streams import StreamReader, StreamWriter, create_stream, describe_stream
from penstock.stages.program import is_of_sink
from tests.spark.waiting import wait_for
from tests.spark_session import own_session
from tests.thoroughness import some

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.api.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

NUMBERS = pa.schema([pa.field("n", pa.int64(), nullable=False)])
PIECE = 50


@pytest.fixture(scope="module")
def attached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attached]:
    with own_session() as session:
        found = penstock.attach(session, tmp_path_factory.mktemp("several") / "log")
        create_stream(found.log, "numbers", schema_from_arrow(NUMBERS))
        yield found


@pytest.fixture(scope="module")
def publish(attached: Attached) -> Callable[[int], None]:
    """Append so many more pieces of numbers to the stream, each in an epoch of its own."""
    writer = StreamWriter(attached.log, "numbers", "test")
    written = [0]

    def more(pieces: int) -> None:
        for _ in range(pieces):
            values = range(written[0], written[0] + PIECE)
            written[0] += PIECE
            writer.write(pa.RecordBatch.from_pydict({"n": values}, NUMBERS))

    return more


@pytest.fixture
def numbers(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("penstock").option("stream", "numbers").load()


def seen(attached: Attached, stream: str) -> list[tuple[int, int]]:
    """The numbers of a stream, each with the position of the marker that committed it."""
    reader = CommittedReader(attached.log, describe_stream(attached.log, stream).tags)
    found: list[tuple[int, int]] = []
    while (release := reader.take()) is not None:
        for record in release.records:
            values = punit.decode_record(record).column("n").to_pylist()
            found.extend((release.marker.position, value) for value in values)
    return found


def check_same_prefix(attached: Attached, steps: dict[str, int]) -> int:
    """Up to each marker there is one prefix of the numbers that all streams show; how many markers.

    Of each stream the multiples of its step are there, so the prefix ends between the last one and
    the next.
    """
    rows = {stream: seen(attached, stream) for stream in steps}
    marks = sorted({position for found in rows.values() for position, _ in found})
    for mark in marks:
        least, most = 0, 1 << 62
        for stream, step in steps.items():
            there = [value for position, value in rows[stream] if position <= mark]
            assert there == list(range(0, step * len(there), step)), (stream, mark)
            least = max(least, there[-1] + 1 if there else 0)
            most = min(most, step * len(there))
        assert least <= most, f"up to {mark} the streams show other numbers"
    return len(marks)


def kill_a_slot(query: StreamingQuery) -> None:
    before = len(query.job.recoveries())

    def working() -> list[int]:
        """Who runs the stage that has several outputs."""
        found = query.job.slot_processes().values()
        first = query.request.program.vertices[0].name
        return [pid for pid, _, vertices in found if first in vertices]

    wait_for("a working slot", working)
    os.kill(working()[0], signal.SIGKILL)
    wait_for(
        "the recovery",
        lambda: len([r for r in query.job.recoveries() if r.started_s]) > before,
    )


def test_slots_are_killed_and_results_stay_one_prefix_of_the_input(
    attached: Attached, spark: SparkSession, numbers: DataFrame, publish: Callable[[int], None]
) -> None:
    counts = numbers.groupBy((numbers.n % 7).alias("k")).count()
    query = (
        penstock.writeStreams(
            penstock.writeStream(numbers.where("n % 2 = 0")).toStream("evens"),
            penstock.writeStream(numbers.where("n % 3 = 0")).toStream("thirds"),
            penstock.writeStream(counts).outputMode("update").toStream("sevenths"),
        )
        .queryName("several")
        .options(parallelism=2, standbySlots=0, commitInterval="0 ms")
        .start()
    )
    try:
        first, *_ = query.request.program.stages
        assert {"evens", "thirds"} < set(first.written)
        for _ in range(2):
            publish(15)
            query.processAllAvailable()  # what waits together is shown by one marker
            publish(15)
            kill_a_slot(query)
        publish(5)
        query.processAllAvailable()
    finally:
        query.stop()
    stored = spark.read.format("penstock").option("stream", "numbers").load()
    for stream, step in (("evens", 2), ("thirds", 3)):
        by_spark = sorted(row.n for row in stored.where(f"n % {step} = 0").collect())
        assert sorted(value for _, value in seen(attached, stream)) == by_spark
    by_spark = dict(stored.groupBy((stored.n % 7).alias("k")).count().collect())
    rows = StreamReader(attached.log, "sevenths").read_all().to_pylist()
    assert {row["k"]: row["count"] for row in rows} == by_spark
    assert check_same_prefix(attached, {"evens": 2, "thirds": 3}) > 3


def test_one_query_feeds_several_sinks_and_gains_and_loses_one(
    attached: Attached,
    spark: SparkSession,
    numbers: DataFrame,
    publish: Callable[[int], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two folders and a stream; then another folder is added, and one is gone in the end."""

    def files(name: str, rows: DataFrame) -> Any:
        return penstock.writeStream(rows).format("parquet").option("path", str(tmp_path / name))

    def run(*writers: Any) -> StreamingQuery:
        together = penstock.writeStreams(*writers).queryName("sinks").option("standbySlots", 0)
        query = together.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return query

    def there(name: str) -> list[int]:
        return sorted(pq.read_table(tmp_path / name).column("n").to_pylist())

    def all_numbers() -> list[int]:
        return sorted(StreamReader(attached.log, "numbers").read_all().column("n").to_pylist())

    publish(3)
    small, large = numbers.where("n < 40"), numbers.where("n >= 40")
    streamed = penstock.writeStream(numbers).toStream("all_of_them")
    query = run(files("small", small), streamed, files("large", large))
    (stage,) = query.request.program.stages
    fed = [name for name in stage.written if is_of_sink(name)]
    assert len(fed) == 2
    query.explain()
    told = capsys.readouterr().out
    assert told.count("exactly once: a row is in one file") == 2
    assert "commits them with one marker" in told
    assert [*there("small"), *there("large")] == all_numbers()

    publish(2)
    query = run(
        files("odd", numbers.where("n % 2 = 1")),
        files("large", large),
        penstock.writeStream(numbers).toStream("all_of_them"),
        files("small", small),
    )
    assert [*there("small"), *there("large")] == all_numbers()
    assert there("odd") == [n for n in all_numbers() if n % 2]

    publish(2)
    run(files("odd", numbers.where("n % 2 = 1")), files("large", large))
    assert there("large") == [n for n in all_numbers() if n >= 40]
    assert there("odd") == [n for n in all_numbers() if n % 2]
    progress = [sink_progress(attached.log, name) for name in ("sinks", fed[1])]
    assert all(each is not None for each in progress)
    with pytest.raises(StreamConflict, match="holds rows"):
        run(files("large", large), files("small", small))


def test_a_result_added_later_has_all_rows_and_the_state_of_the_others_goes_on(
    attached: Attached, spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "rows"
    spark.range(100).coalesce(1).write.parquet(str(folder))
    rows = spark.readStream.schema("id bigint").parquet(str(folder))

    def run(*more: Any) -> StreamingQuery:
        counts = penstock.writeStream(rows.groupBy((rows.id % 3).alias("k")).count())
        first = counts.outputMode("update").toStream("thirds_of_ids")
        query = penstock.writeStreams(first, *more).queryName("later").start()
        query.processAllAvailable()
        query.stop()
        return query

    run()
    spark.range(100, 200).coalesce(1).write.mode("append").parquet(str(folder))
    even = penstock.writeStream(rows.where("id % 2 = 0")).toStream("even_ids")
    query = run(even)
    assert {stage.cohort for stage in query.request.program.stages} == {0, 1}
    found = StreamReader(attached.log, "thirds_of_ids").read_all().to_pylist()
    assert [row["count"] for row in found if row["k"] == 0][-1] == 67
    assert max(row["count"] for row in found[:3]) < 67  # it had state to go on from
    ids = StreamReader(attached.log, "even_ids").read_all().column("id").to_pylist()
    assert sorted(ids) == list(range(0, 200, 2))


def test_a_result_added_after_another_went_has_a_stream_of_its_own(
    attached: Attached, numbers: DataFrame, publish: Callable[[int], None], tmp_path: Path
) -> None:
    """The query remembers sinks that it had, though a start without them came between."""

    def run(*names: str) -> None:
        writers = (
            penstock.writeStream(numbers).format("parquet").option("path", str(tmp_path / name))
            for name in names
        )
        together = penstock.writeStreams(*writers).queryName("in_turn").option("standbySlots", 0)
        assert together.trigger(availableNow=True).start().awaitTermination(120)

    def there(name: str) -> list[int]:
        return sorted(pq.read_table(tmp_path / name).column("n").to_pylist())

    publish(2)
    run("a", "b")
    left = there("a")
    publish(2)
    run("b")
    publish(2)
    run("b", "c")
    publish(1)
    run("d", "c", "b")
    everything = StreamReader(attached.log, "numbers").read_all().column("n").to_pylist()
    for name in ("b", "c", "d"):
        assert there(name) == sorted(everything)
    assert there("a") == left
    for names in (("b", "a"), ("a", "b", "c", "d")):
        with pytest.raises(StreamConflict, match="another place for its sink"):
            run(*names)


@pytest.mark.parametrize("late", some(["late_rows", None], every=2))
@pytest.mark.parametrize("source", some(["stream", "folder"], every=2))
def test_results_with_watermarks_go_one_by_one_and_the_others_keep_their_state(
    attached: Attached, spark: SparkSession, tmp_path: Path, source: str, late: str | None
) -> None:
    """One goes by a watermark of all rows, one by that of some; late rows come in every round."""
    name, folder = f"timed_{source}_{late}", tmp_path / "rows"
    create_stream(attached.log, name, schema_from_arrow(NUMBERS))
    writer = StreamWriter(attached.log, name, "timed")
    if source == "stream":
        rows = spark.readStream.format("penstock").option("stream", name).load()
    else:
        folder.mkdir()
        rows = spark.readStream.schema("n bigint").parquet(str(folder))

    def publish(first: int) -> None:
        """A hundred seconds, and one row that is late in all rounds but the first."""
        batch = pa.RecordBatch.from_pydict({"n": [*range(first, first + 100), 7]}, NUMBERS)
        writer.write(batch)
        if source == "folder":
            pq.write_table(pa.Table.from_batches([batch]), folder / f"{first}.parquet")

    timed = rows.selectExpr("timestamp_seconds(n) AS t", "n % 5 AS k", "n").withWatermark(
        "t", "10 seconds"
    )
    by = [F.window("t", "20 seconds"), "k"]
    frames = {
        "counts": timed.groupBy(*by).count(),
        "sums": timed.groupBy(*by).agg(F.sum("n").alias("s")),
        "some": timed.where("k > 2").groupBy(*by).agg(F.max("n").alias("top")),
    }

    def run(*wanted: str) -> list[str]:
        writers = [penstock.writeStream(frames[w]).toStream(f"{name}_{w}") for w in wanted]
        together = penstock.writeStreams(*writers).queryName(name)
        options: dict[str, Any] = {"parallelism": 2, "standbySlots": 0}
        if late is not None:
            options["lateStream"] = f"{name}_late"
        query = together.options(**options).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return [stage.name for stage in query.request.program.stages]

    publish(0)
    stages = run("some", "counts", "sums")
    publish(100)
    assert set(run("counts", "sums")) < set(stages)  # what was there before
    publish(200)
    assert set(run("sums")) < set(stages)
    found = StreamReader(attached.log, f"{name}_sums").read_all().to_pylist()
    ends = {row["window"]["end"].timestamp() for row in found}
    assert max(ends) == 280
    wanted = {
        (end, k): sum(range(end - 20 + k, end, 5)) for end in range(20, 300, 20) for k in range(5)
    }
    wanted[20, 2] += 7  # of the first round
    assert {(row["window"]["end"].timestamp(), row["k"]): row["s"] for row in found} == wanted
    assert len(found) == len(wanted)
    if late is not None:
        kept = StreamReader(attached.log, f"{name}_late").read_all().column("n").to_pylist()
        assert set(kept) == {7, None}  # who counts does not read the number


def test_a_dead_letter_names_its_result_as_the_query_does(
    attached: Attached, numbers: DataFrame, publish: Callable[[int], None], tmp_path: Path
) -> None:
    publish(2)

    def failing(divisor: str) -> Any:
        return penstock.writeStream(numbers.selectExpr("n", f"1 div ({divisor}) AS x"))

    together = penstock.writeStreams(
        failing("n - 0").format("parquet").option("path", str(tmp_path / "files")),
        failing("n - 1").toStream("named"),
        failing("n * 0 + 1").format("parquet").option("path", str(tmp_path / "others")),
    )
    together = together.queryName("lettered").option("deadLetterStream", "letters")
    assert together.trigger(availableNow=True).start().awaitTermination(120)
    letters = StreamReader(attached.log, "letters").read_all().to_pylist()
    assert sorted((row["n"], row["result"]) for row in letters) == [
        (0, f"parquet {tmp_path / 'files'}"),
        (1, "named"),
    ]
