"""The benchmark of the Parquet sink: a query that only copies, with and without it.

The query reads Parquet files and keeps every row. It writes them to the sink, and for comparison to
a stream of the log alone, which is all that a query does before its sink comes in. Two processes
that read and write the same rows with pyarrow, and nothing else, are the floor.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from penstock.api.session import Attached, attach
from penstock.api.writer import writeStream
from penstock.bench.arguments import whole
from penstock.bench.arrivals import RowsDiffer
from penstock.bench.crew import ENGINE_S_MAX, Crew, wait_until
from penstock.bench.footprint import FamilyCpu, cpu_s
from penstock.bench.report import Report, machine_facts, median, say
from penstock.bench.sessions import local_session

TITLE = "the Parquet sink: a query that only copies, with it and without"
SLOTS = 2
FILES = 8
ROW_GROUP_ROWS = 1 << 20
SAMPLE_S = 0.05
THREAD_PERCENT_MAX = 50

_NAMES = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rows", type=_rows, default=5_000_000, metavar="N", help="of the files (default 5000000)"
    )
    parser.add_argument(
        "--repeats", type=whole, default=3, metavar="N", help="copies of each kind (default 3)"
    )
    parser.add_argument(
        "--against", choices=("spark", "none"), default="spark", help="what to compare with"
    )
    parser.add_argument(
        "--dir", type=Path, default=Path(), help="a folder on the disk to use (default .)"
    )


def _rows(text: str) -> int:
    value = int(text)
    if not FILES <= value <= 1_000_000_000:
        raise argparse.ArgumentTypeError(f"{text} is not a number from {FILES} to 1,000,000,000")
    return value


def measure(args: argparse.Namespace) -> Report:
    """Copy both kinds of rows in every way, and report."""
    report = Report(TITLE, facts=machine_facts())
    report.facts["rows"] = args.rows
    for kind in KINDS:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=args.dir) as name:
            work = Path(name).absolute()
            rows = write_rows(work / "rows", kind, args.rows)
            say(f"{kind}: Penstock")
            with Crew(1, answer_s_max=ENGINE_S_MAX) as crew:
                (copies,) = crew.run([(copy_with_penstock, kind, rows, work, args.repeats)])
            say(f"{kind}: pyarrow")
            floor_s = [bare_seconds(rows, work) for _ in range(args.repeats)]
            spark_s: list[float] = []
            if args.against == "spark":
                say(f"{kind}: Structured Streaming")
                with Crew(1, answer_s_max=ENGINE_S_MAX) as crew:
                    (spark_s,) = crew.run([(copy_with_spark, kind, rows, work, args.repeats)])
        _add(report, kind, args.rows, copies, floor_s, spark_s)
    return report


# --- the rows -------------------------------------------------------------------------------------


def _numbers(first: int, count: int) -> dict[str, pa.Array]:
    number = np.arange(first, first + count)
    return {
        "id": pa.array(number),
        "sensor": pa.array((number * 7_919 % 1_000).astype(np.int32)),
        "value": pa.array(number * 31 % 10_007 / 4),
        "at": pa.array(number * 100, pa.timestamp("us", "UTC")),
    }


def _strings(first: int, count: int) -> dict[str, pa.Array]:
    number = np.arange(first, first + count)
    user = pa.array(number * 7_919 % _NAMES).cast(pa.string())
    place = pa.array(number % 300).cast(pa.string())
    return {
        "id": pa.array(number),
        "user": pc.binary_join_element_wise("user", user, "-"),
        "page": pc.binary_join_element_wise("https://shop.example", place, user, "/"),
    }


@dataclass(frozen=True)
class _Kind:
    schema: str
    columns: Callable[[int, int], dict[str, pa.Array]]


KINDS: Mapping[str, _Kind] = {
    "numbers": _Kind("id BIGINT, sensor INT, value DOUBLE, at TIMESTAMP", _numbers),
    "strings": _Kind("id BIGINT, user STRING, page STRING", _strings),
}


def write_rows(folder: Path, kind: str, rows: int) -> Path:
    """Write the files of a kind; each row is a function of its number."""
    folder.mkdir()
    edges = [rows * number // FILES for number in range(FILES + 1)]
    for number, (first, end) in enumerate(pairwise(edges)):
        table = pa.table(KINDS[kind].columns(first, end - first))
        file = folder / f"part-{number:04}.parquet"
        pq.write_table(table, file, row_group_size=ROW_GROUP_ROWS)
    return folder


def _query(spark: SparkSession, kind: str, rows: Path) -> DataFrame:
    return spark.readStream.format("parquet").schema(KINDS[kind].schema).load(str(rows))


def _check(result: Path, rows: Path) -> None:
    """Raise unless each row was copied once."""
    found = np.sort(pq.read_table(result, columns=["id"])["id"].to_numpy())
    wanted = sum(pq.read_metadata(file).num_rows for file in rows.iterdir())
    if not np.array_equal(found, np.arange(wanted)):
        raise RowsDiffer(f"{len(found)} rows were written for {wanted}")


# --- the engines ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Copy:
    """One run, from `start()` until every row is where it is to be."""

    seconds: float
    driver_cpu_s: float
    thread_cpu_s: float  # of the one thread that carries every batch to the sink
    cpu_s: float  # of all processes


def copy_with_penstock(
    start_s: float, kind: str, rows: Path, work: Path, repeats: int
) -> dict[str, list[Copy]]:
    """Copies to the sink and to a stream, by turns; the first of each is not counted."""
    del start_s
    copies: dict[str, list[Copy]] = {"sink": [], "stream": []}
    with local_session("sink", SLOTS) as spark:
        attached = attach(spark, work / "log")
        for turn in range(repeats + 1):
            for way, done in copies.items():
                done.append(_own_copy(attached, kind, rows, work, f"{way}_{turn}"))
        attached.log.close()
    return {way: done[1:] for way, done in copies.items()}


def _own_copy(attached: Attached, kind: str, rows: Path, work: Path, name: str) -> Copy:
    writer = writeStream(_query(attached.spark, kind, rows)).queryName(name)
    writer = writer.options(parallelism=SLOTS, slots=SLOTS, standbySlots=0)
    result = work / name
    if name.startswith("sink"):
        writer = writer.format("parquet").option("path", str(result))
    else:
        writer = writer.toStream(name)
    own = [os.getpid()]
    cpu, driver_s, start_s = FamilyCpu(own[0]), cpu_s(own), time.perf_counter()
    running, thread_s = writer.trigger(availableNow=True).start(), 0.0
    while not running.awaitTermination(SAMPLE_S):
        thread_s = max(thread_s, _carrier_cpu_s())
    copy = Copy(time.perf_counter() - start_s, cpu_s(own) - driver_s, thread_s, cpu.used_s())
    if name.startswith("sink"):
        _check(result, rows)
    return copy


def _carrier_cpu_s() -> float:
    """Processor time of the sink's own thread, which is the first of its name."""
    for thread in threading.enumerate():
        if thread.name.startswith("penstock-sink-"):
            with suppress(FileNotFoundError, ProcessLookupError):
                times = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text("ascii")
                return int(times.split()[0]) / 1e9
    return 0.0


def copy_with_spark(start_s: float, kind: str, rows: Path, work: Path, repeats: int) -> list[float]:
    """Seconds of each run; all files are one micro-batch, its cheapest way."""
    del start_s
    taken = []
    with local_session("sink", SLOTS) as spark:
        for turn in range(repeats + 1):
            result = work / f"spark-{turn}"
            writer = _query(spark, kind, rows).writeStream.format("parquet")
            writer = writer.option("checkpointLocation", str(work / f"checkpoint-{turn}"))
            start_s = time.perf_counter()
            writer.trigger(availableNow=True).start(str(result)).awaitTermination()
            taken.append(time.perf_counter() - start_s)
            _check(result, rows)
    return taken[1:]


def bare_seconds(rows: Path, work: Path) -> float:
    """How long as many processes as there are slots take to read and write, and no more."""
    files = sorted(rows.iterdir())
    with Crew(SLOTS) as crew:
        shares = [(copy_files, files[slot::SLOTS], work) for slot in range(SLOTS)]
        return float(max(crew.run(shares)))


def copy_files(start_s: float, files: list[Path], work: Path) -> float:
    """Copy some files with pyarrow and one thread; how long it took after the start."""
    wait_until(start_s)
    for file in files:
        with pq.ParquetFile(file) as read, open(work / f"bare-{file.name}", "wb") as place:
            with pq.ParquetWriter(place, read.schema_arrow) as written:
                for group in range(read.num_row_groups):
                    written.write_table(read.read_row_group(group, use_threads=False))
            os.fsync(place.fileno())
    return time.perf_counter() - start_s


# --- the report -----------------------------------------------------------------------------------


def _add(
    report: Report,
    kind: str,
    rows: int,
    copies: dict[str, list[Copy]],
    floor_s: list[float],
    spark_s: list[float],
) -> None:
    def rate(key: str, taken_s: list[float], meaning: str) -> None:
        report.add(f"{kind}_{key}", rows / median(taken_s), f"rows/s, {meaning}", len(taken_s))

    sink, stream = copies["sink"], copies["stream"]
    rate("rows_per_s", [each.seconds for each in sink], "to the sink")
    rate("stream_rows_per_s", [each.seconds for each in stream], "to a stream of the log")
    rate("bare_rows_per_s", floor_s, "two processes with pyarrow")
    if spark_s:
        rate("spark_rows_per_s", spark_s, "Structured Streaming")
    driver = median([each.driver_cpu_s / each.seconds for each in sink])
    report.add(f"{kind}_driver_cores", driver, "cores that the driver takes", len(sink))
    thread = median([100 * each.thread_cpu_s / each.seconds for each in sink])
    what = "of a core: the one thread that carries every batch to the sink"
    report.add(f"{kind}_thread_percent", thread, what, len(sink))
    for way, done in copies.items():
        cpu_us = median([each.cpu_s * 1e6 / rows for each in done])
        report.add(f"{kind}_{way}_cpu_us_per_row", cpu_us, f"of all processes, {way}", len(done))
    report.reach[f"{kind}_no_thread_holds_the_sink_up"] = (
        report.value(f"{kind}_thread_percent") <= THREAD_PERCENT_MAX
    )
