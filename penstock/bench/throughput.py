"""The benchmark of throughput: the Yahoo streaming benchmark on two slots, beside Spark.

Views are kept, the ad's campaign is looked up in a table, and views are counted per campaign in
windows of 10 s. Both engines read the same Parquet files, which were written before. By name,
Penstock reads the generator in its slots instead, and runs for some time: what the engine does
when its source costs next to nothing. All windows are compared with what follows from the rows.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.api.query import StreamingQuery
from penstock.api.session import Attached, attach
from penstock.api.writer import writeStream
from penstock.api.ysb_source import YsbDataSource
from penstock.bench import arguments
from penstock.bench.footprint import FamilyCpu, cpu_s
from penstock.bench.report import Report, median, say
from penstock.bench.sessions import measured_on
from penstock.catalyst.session import active_session
from penstock.connectors.ysb import ADS, RATE, START_US, ysb_source
from penstock.runtime.markers import decode_marker
from penstock.runtime.queries import stored_query
from penstock.runtime.streams import StreamReader
from penstock.stages.program import Program
from penstock.stages.tags import vertex_tag

TITLE = "rows per second of a query on two slots, beside Structured Streaming"
SLOTS = 2
SECONDS = 10.0
WARMUP_S = 3.0
TURNS = 3
PATIENCE_S = 120.0
COMMIT_INTERVAL = "500 milliseconds"  # a micro-batch of Spark takes seconds here
STEP_ROWS = 1 << 20
CAMPAIGNS = 100
CAMPAIGN_ID_END = 1_000_000
WINDOW_S = 10
WINDOW_ROWS = WINDOW_S * RATE
FILES = 8
FILE_ROWS = 4_000_000
COLUMNS = ("ad_id", "event_type", "event_time")
FILE_SCHEMA = "ad_id int, event_type int, event_time timestamp"
TIMES_SPARK_MIN = {"parquet": 5, "generator": 20}


class CountsDiffer(RuntimeError):
    """An engine's windows are not what follows from the rows: its rate means nothing."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--query", choices=("ysb",), default="ysb", help="what runs (default ysb)")
    arguments.add_comparison(parser, seconds_default=SECONDS, warmup_default=WARMUP_S)
    parser.add_argument(
        "--source",
        choices=tuple(TIMES_SPARK_MIN),
        default="parquet",
        help="what Penstock reads: the files that Spark reads too (default), or the generator, "
        "for --seconds after --warmup",
    )
    parser.add_argument(
        "--files", type=int, default=FILES, help=f"of {FILE_ROWS:,} rows (default {FILES})"
    )
    parser.add_argument(
        "--turns", type=int, default=TURNS, help="over the files; the first one warms up"
    )


def measure(args: argparse.Namespace) -> Report:
    """Measure on a session of its own, which has two task slots."""
    return measured_on("throughput", SLOTS, compare, args)


def compare(spark: SparkSession, args: argparse.Namespace) -> Report:
    """Run one engine after the other, compare their windows with what is right, and report."""
    campaigns = campaign_ids(seed=1)
    engines: dict[str, Engine] = {}
    if args.source == "parquet":
        engines["penstock"] = on_penstock_files
    if args.against == "spark":
        engines |= {"stream": on_spark_stream, "batch": on_spark_batch}
    own: Sustained | None = None
    turns: dict[str, list[Turn]] = {how: [] for how in engines}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=args.dir) as name:
        folder = Path(name).absolute()
        with active_session(spark):  # else Spark looks for the name among another one's sources
            spark.dataSource.register(YsbDataSource)
        attached = attach(spark, folder / "log")
        try:
            if args.source == "generator":
                say("Penstock, from the generator")
                own = on_penstock(attached, campaigns, args.warmup, args.seconds)
            if engines:
                say(f"writing {args.files} files of {FILE_ROWS:,} rows")
                write_files(folder / "rows", args.files)
            for turn in range(args.turns):
                for how, engine in engines.items():
                    say(f"files: {how}, turn {turn + 1} of {args.turns}")
                    task = Task(attached, campaigns, folder, args.files * FILE_ROWS, turn)
                    turns[how].append(timed(engine, task))
        finally:
            attached.log.close()
    report = report_of(own, turns)
    report.facts = {
        "query": args.query,
        "source": args.source,
        "slots": SLOTS,
        "file_rows": args.files * FILE_ROWS if engines else 0,
    }
    if own is not None:
        facts = {"rows": own.rows, "windows_checked": own.windows}
        report.facts |= {"seconds": args.seconds, "warmup_s": args.warmup, **facts}
    return report


def campaign_ids(seed: int) -> NDArray[np.int64]:
    """The campaign of each ad: ten ads each, under distinct numbers that say nothing."""
    ids = np.random.default_rng(seed).choice(CAMPAIGN_ID_END, CAMPAIGNS, replace=False)
    return np.repeat(ids, ADS // CAMPAIGNS)


def views(rows: DataFrame, campaign: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """The query; `campaign` adds a column of this name, from `ad_id`."""
    seen = campaign(rows.filter("event_type = 0").select("ad_id", "event_time"))
    timed = seen.select("campaign", "event_time").withWatermark("event_time", "0 seconds")
    return timed.groupBy("campaign", F.window("event_time", f"{WINDOW_S} seconds")).count()


def by_map(campaigns: NDArray[np.int64]) -> Callable[[DataFrame], DataFrame]:
    """Look the campaign up in a constant map."""
    pairs = [F.lit(int(part)) for pair in enumerate(campaigns) for part in pair]
    return lambda rows: rows.withColumn("campaign", F.create_map(*pairs)[F.col("ad_id")])


def by_join(spark: SparkSession, campaigns: NDArray[np.int64]) -> Callable[[DataFrame], DataFrame]:
    """Join with a table that every task has: Spark searches a constant map from its beginning."""
    pairs = [(ad, int(campaign)) for ad, campaign in enumerate(campaigns)]
    table = spark.createDataFrame(pairs, "ad_id int, campaign int")
    return lambda rows: rows.join(F.broadcast(table), "ad_id")


# --- Penstock -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sustained:
    """What the query did in the measured time, and how much of its output was checked."""

    rows_per_s: float
    rows: int
    windows: int
    each_rows_per_s: tuple[float, ...]  # second by second
    cpu_us_per_row: float


def on_penstock(
    attached: Attached, campaigns: NDArray[np.int64], warmup_s: float, seconds: float
) -> Sustained:
    """Run the query without end for some time; count the rows whose windows are committed."""
    rows = attached.spark.readStream.format("ysb").load()
    writer = writeStream(views(rows, by_map(campaigns))).outputMode("append").queryName("ysb")
    writer = writer.options(parallelism=SLOTS, slots=SLOTS, standbySlots=0)
    writer = writer.options(commitInterval=COMMIT_INTERVAL, stepRowsMax=STEP_ROWS)
    query = writer.toStream("views").start()
    try:
        progress = _Progress(attached, query)
        progress.wait_for_rows()
        time.sleep(warmup_s)
        before_s = cpu_s(progress.processes())
        marks = [progress.now()]
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(1.0, left_s))
            marks.append(progress.now())
        used_s = cpu_s(progress.processes()) - before_s
    finally:
        query.stop()
    (first_us, first), (last_us, last) = marks[0], marks[-1]
    table = StreamReader(attached.log, "views").read_all()
    windows = check_table(table, campaigns, last // WINDOW_ROWS)
    each = tuple(
        (b - a) / (b_us - a_us) * 1e6 for (a_us, a), (b_us, b) in pairwise(marks) if b_us > a_us
    )
    rows_done = last - first
    return Sustained(
        rows_done / (last_us - first_us) * 1e6,
        rows_done,
        windows,
        each,
        used_s * 1e6 / max(1, rows_done),
    )


class _Progress:
    """How many rows are in committed windows: what the last stage's markers say about time."""

    def __init__(self, attached: Attached, query: StreamingQuery) -> None:
        self._log = attached.log
        self._query = query
        stored = stored_query(attached.log, query.stored_name)
        assert stored is not None
        self._tags = last_stage_tags(stored.program)

    def wait_for_rows(self) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while self.now()[1] < WINDOW_ROWS:
            if not self._query.isActive:
                raise RuntimeError(f"the query ended: {self._query.exception()}")
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"no window was committed in {PATIENCE_S:g} s")
            time.sleep(0.05)

    def processes(self) -> list[int]:
        """The processes of the slots."""
        return [pid for pid, _, _ in self._query.job.slot_processes().values()]

    def now(self) -> tuple[int, int]:
        """The moment of the slowest vertex's last marker, and the rows that it is done with."""
        found = [(0, 0)]
        for tag in self._tags:
            record = self._log.last(tag)
            if record is None:
                return found[0]
            rows = (decode_marker(record).watermark_us - START_US) * RATE // 1_000_000
            found.append((record.time_us, max(0, rows)))
        return min(found[1:], key=lambda mark: mark[1])


def last_stage_tags(program: Program) -> list[str]:
    """Where the markers of the vertices that write the result are."""
    last = len(program.stages) - 1
    return [vertex_tag(vertex.name) for vertex in program.stage_vertices(last)]


# --- over files -----------------------------------------------------------------------------------


def write_files(folder: Path, files: int) -> None:
    """Write the first rows as Parquet files with what the query reads of them."""
    folder.mkdir()
    source = ysb_source(columns=COLUMNS)
    offset: Any = 0
    for number in range(files):
        with pq.ParquetWriter(folder / f"{number:04d}.parquet", source.schema) as writer:
            end = (number + 1) * FILE_ROWS
            while offset < end:
                read = source.read(offset, min(FILE_ROWS // 4, end - offset))
                writer.write_batch(read.batch)
                offset = read.next_offset


@dataclass(frozen=True)
class Task:
    """One run over all files."""

    attached: Attached
    campaigns: NDArray[np.int64]
    folder: Path
    rows: int
    turn: int

    @property
    def files(self) -> str:
        return str(self.folder / "rows")


@dataclass(frozen=True)
class Turn:
    """What a run did."""

    rows_per_s: float
    cpu_us_per_row: float  # of all processes, Spark's planning included


Engine = Callable[[Task], Callable[[], pa.Table]]  # returns how to get at the result


def timed(engine: Engine, task: Task) -> Turn:
    """Time an engine from `start()` until all windows are committed, and check them."""
    cpu, start_s = FamilyCpu(os.getpid()), time.perf_counter()
    result = engine(task)
    elapsed_s = time.perf_counter() - start_s
    used_s = cpu.used_s()
    is_stream = engine is not on_spark_batch  # whose last window is still open
    check_table(result(), task.campaigns, task.rows // WINDOW_ROWS - is_stream)
    return Turn(task.rows / elapsed_s, used_s * 1e6 / task.rows)


def on_penstock_files(task: Task) -> Callable[[], pa.Table]:
    """The query over all files, into a stream of the log."""
    name = f"views_{task.turn}"
    rows = task.attached.spark.readStream.schema(FILE_SCHEMA).parquet(task.files)
    writer = writeStream(views(rows, by_map(task.campaigns))).outputMode("append")
    writer = writer.options(parallelism=SLOTS, slots=SLOTS, standbySlots=0)
    writer.trigger(availableNow=True).toStream(name).start().awaitTermination()
    return lambda: StreamReader(task.attached.log, name).read_all()


def on_spark_stream(task: Task) -> Callable[[], pa.Table]:
    """One large micro-batch, which costs least per row, into the memory sink."""
    spark, name = task.attached.spark, f"views_{task.turn}"
    rows = spark.readStream.schema(FILE_SCHEMA).parquet(task.files)
    writer = views(rows, by_join(spark, task.campaigns)).writeStream.outputMode("append")
    writer = writer.option("checkpointLocation", str(task.folder / f"checkpoint-{task.turn}"))
    writer = writer.format("memory").queryName(name)
    writer.trigger(availableNow=True).start().awaitTermination()
    return lambda: spark.table(name).toArrow()


def on_spark_batch(task: Task) -> Callable[[], pa.Table]:
    """A plain job."""
    spark = task.attached.spark
    rows = spark.read.schema(FILE_SCHEMA).parquet(task.files)
    table = views(rows, by_join(spark, task.campaigns)).toArrow()
    return lambda: table


# --- the same windows -----------------------------------------------------------------------------


def expected_views(window: int, campaigns: NDArray[np.int64]) -> dict[int, int]:
    """Views per campaign in a window, counted row by row from what the rows are."""
    rows = np.arange(window * WINDOW_ROWS, (window + 1) * WINDOW_ROWS)
    seen = campaigns[rows[rows % 3 == 0] % ADS]
    keys, counts = np.unique(seen, return_counts=True)
    return dict(zip(keys.tolist(), counts.tolist(), strict=True))


def check_table(table: pa.Table, campaigns: NDArray[np.int64], windows_min: int) -> int:
    """Compare all counts of a result, and see that the first windows are all there; say how many.

    Behind them, windows may lack campaigns whose vertex was not as far when the query stopped.
    """
    starts = table["window"].combine_chunks().field("start").cast(pa.int64()).to_numpy()
    window = (starts - START_US) // (WINDOW_S * 1_000_000)
    found = np.column_stack([window, table["campaign"].to_numpy(), table["count"].to_numpy()])
    # Row i repeats every 3,000 rows, so a window is like the third one after it.
    cycle = [sorted(expected_views(number, campaigns).items()) for number in range(3)]
    windows = int(window.max(initial=-1)) + 1
    expected = np.array(
        [(number, *pair) for number in range(windows) for pair in cycle[number % 3]]
    )
    right = expected[np.isin(_names(expected), _names(found))]
    if not np.array_equal(found[np.lexsort((found[:, 1], found[:, 0]))], right):
        raise CountsDiffer(
            f"of {len(found)} counts in {windows} windows {len(found) - len(right)} are wrong"
        )
    per_window = np.bincount(window, minlength=windows)
    whole = int(np.argmax(np.append(per_window < CAMPAIGNS, True)))
    if whole < windows_min:
        raise CountsDiffer(f"{whole} windows are whole, at least {windows_min} were expected")
    return whole


def _names(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for each window and campaign."""
    return counts[:, 0] * CAMPAIGN_ID_END + counts[:, 1]


# --- the report -----------------------------------------------------------------------------------


def report_of(own: Sustained | None, turns: Mapping[str, list[Turn]]) -> Report:
    """The figures; over files those of the best turn, the first one only if there is no other."""
    report = Report(TITLE)
    source = "parquet" if own is None else "generator"
    if own is None:
        best = _best(turns["penstock"])
        rate, cpu_us, count = best.rows_per_s, best.cpu_us_per_row, len(turns["penstock"])
    else:
        rate, cpu_us, count = own.rows_per_s, own.cpu_us_per_row, 1
    report.add("rows_per_s", rate, f"rows in committed windows, from {source}", count)
    if own is not None and own.each_rows_per_s:
        each = own.each_rows_per_s
        report.add("rows_per_s_median", median(each), "the same, second by second", len(each))
    report.add("cpu_us_per_row", cpu_us, "processor time for a row", count)
    if "stream" in turns:
        stream, batch = _best(turns["stream"]), _best(turns["batch"])
        count = len(turns["stream"])
        report.add("spark_rows_per_s", stream.rows_per_s, "Structured Streaming, best turn", count)
        report.add("spark_batch_rows_per_s", batch.rows_per_s, "a batch job, best turn", count)
        report.add("spark_cpu_us_per_row", stream.cpu_us_per_row, "processor time for a row", count)
        times = rate / stream.rows_per_s
        report.add("times_spark", times, "rows per second beside Structured Streaming's", 1)
        report.add("cpu_times_below", stream.cpu_us_per_row / cpu_us, "the same for time used", 1)
        least = TIMES_SPARK_MIN[source]
        report.reach = {f"at_least_{least}_times_spark": times >= least}
    return report


def _best(turns: list[Turn]) -> Turn:
    warm = turns[1:] or turns
    return Turn(max(t.rows_per_s for t in warm), min(t.cpu_us_per_row for t in warm))
