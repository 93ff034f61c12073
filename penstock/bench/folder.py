"""The benchmark of a folder: many small files drained, a query that rests beside them, a new file.

Draining is compared with Structured Streaming over the same files. A query at rest has read all
there is: what is told of it is the processor time and memory that it takes all the same, and how
long after a file has come its rows can be read. Each engine has processes of its own.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from penstock.api.session import attach
from penstock.api.writer import DataStreamWriter, writeStream
from penstock.bench.arguments import seconds, whole
from penstock.bench.arrivals import RowsDiffer
from penstock.bench.crew import ENGINE_S_MAX, Crew
from penstock.bench.footprint import FamilyCpu, Memory, command, memory
from penstock.bench.report import Report, machine_facts, median, say
from penstock.bench.sessions import local_session
from penstock.kernels.background import is_compiling
from penstock.kernels.private_folder import private_kernels_folder
from penstock.log.committed import CommittedReader
from penstock.log.contract import Log
from penstock.log.punit import decode_record
from penstock.runtime.streams import describe_stream

TITLE = "a folder: many small files, a query at rest beside them, and a new file"
SLOTS = 2
SCHEMA = "id BIGINT, value BIGINT"
FILE_ROWS = 10
FEW = 10
NEW = 1 << 40  # the first number of a file that comes later
CALM_S = 3.0  # after the last row, before a query counts as being at rest
APART_S = 0.3  # between two new files
SEEN_S_MAX = 30.0
COMPILE_S_MAX = 60.0
TURNS = 2

IDLE_PERCENT_MAX = 2
SEEN_MS_MAX = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, default, meaning in (
        ("--files", 20_000, "small files in the folder"),
        ("--arrivals", 20, "new files of each kind"),
    ):
        parser.add_argument(
            name, type=whole, default=default, metavar="N", help=f"{meaning} (default {default})"
        )
    parser.add_argument(
        "--seconds",
        type=seconds,
        default=15.0,
        metavar="S",
        help="for how long a query rests (default 15)",
    )
    parser.add_argument(
        "--against", choices=("spark", "none"), default="spark", help="what to compare with"
    )
    parser.add_argument(
        "--dir", type=Path, default=Path(), help="a folder on the disk to use (default .)"
    )


def measure(args: argparse.Namespace) -> Report:
    """Drain the files with each engine, then let a query rest beside few and beside many."""
    report = Report(TITLE, facts=machine_facts())
    report.facts["files"] = args.files
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=args.dir) as name:
        work = Path(name).absolute()
        few, many = write_files(work / "few", FEW), write_files(work / "many", args.files)
        _add_drains(report, "", "Penstock", _run(drain_with_penstock, many, work / "penstock"))
        if args.against == "spark":
            _add_drains(report, "spark_", "Spark", _run(drain_with_spark, many, work / "spark"))
        rests = {
            "few": _run(rest, few, work / "few-log", args.seconds, args.arrivals),
            "many": _run(rest, many, work / "many-log", args.seconds, args.arrivals),
        }
    for size, found in rests.items():
        _add_rest(report, size, found)
    _add_memory(report, rests["many"])
    judge(report)
    return report


def write_files(folder: Path, files: int) -> Path:
    """Write small files of JSON lines, each row numbered."""
    folder.mkdir()
    for number in range(files):
        first = number * FILE_ROWS
        (folder / f"{number:06}.json").write_text(_lines(range(first, first + FILE_ROWS)))
    return folder


def _lines(numbers: range) -> str:
    return "".join(f'{{"id": {number}, "value": {number % 7}}}\n' for number in numbers)


def _run(task: Callable[..., Any], *arguments: object) -> Any:
    say(f"{task.__name__.replace('_', ' ')}: {arguments[0]}")
    with Crew(1, answer_s_max=ENGINE_S_MAX) as crew:
        (answer,) = crew.run([(task, *arguments)])
    return answer


def _query(spark: SparkSession, folder: Path) -> DataFrame:
    rows = spark.readStream.format("json").schema(SCHEMA).load(str(folder))
    return rows.where("value < 7").select("id")


# --- draining -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drain:
    """One start, until every row is in a Parquet file."""

    seconds: float
    cpu_s: float  # of all processes


def drain_with_penstock(start_s: float, folder: Path, scratch: Path) -> list[Drain]:
    """First and second start."""
    del start_s
    with local_session("folder", SLOTS) as spark:
        attached = attach(spark, scratch / "log")
        try:
            return [
                _drained(
                    _own(spark, folder, f"drain_{turn}", standbys=0).trigger(availableNow=True),
                    folder,
                    scratch / f"result-{turn}",
                )
                for turn in range(TURNS)
            ]
        finally:
            attached.log.close()


def drain_with_spark(start_s: float, folder: Path, scratch: Path) -> list[Drain]:
    """First and second start; all files are one micro-batch, its cheapest way."""
    del start_s
    with local_session("folder", SLOTS) as spark:
        return [
            _drained(
                _query(spark, folder)
                .writeStream.option("checkpointLocation", str(scratch / f"checkpoint-{turn}"))
                .trigger(availableNow=True),
                folder,
                scratch / f"result-{turn}",
            )
            for turn in range(TURNS)
        ]


def _own(spark: SparkSession, folder: Path, name: str, standbys: int) -> DataStreamWriter:
    writer = writeStream(_query(spark, folder)).queryName(name)
    return writer.options(parallelism=SLOTS, slots=SLOTS, standbySlots=standbys)


def _drained(writer: Any, folder: Path, result: Path) -> Drain:
    """What a query takes to write all rows to Parquet files."""
    cpu, start_s = FamilyCpu(os.getpid()), time.perf_counter()
    writer.format("parquet").option("path", str(result)).start().awaitTermination()
    took = Drain(time.perf_counter() - start_s, cpu.used_s())
    found = np.sort(pq.read_table(result, columns=["id"])["id"].to_numpy())
    if not np.array_equal(found, np.arange(len(os.listdir(folder)) * FILE_ROWS)):
        raise RowsDiffer(f"{len(found)} rows were written, which are not those of the files")
    return took


# --- resting --------------------------------------------------------------------------------------


@dataclass
class Rest:
    """What a query takes while there is nothing to do, and when it sees that there is."""

    percent: float  # of a core: the driver and the slots
    java_percent: float  # what Spark's Java process takes beyond what it takes without the query
    seen_ms: dict[str, list[float]] = field(default_factory=dict)  # by how the file came
    memory: dict[str, list[Memory]] = field(default_factory=dict)  # of slots, and of the driver


def rest(start_s: float, folder: Path, scratch: Path, idle_s: float, arrivals: int) -> Rest:
    """Read a folder, rest for a while, then see new files come."""
    del start_s
    scratch.mkdir()
    with local_session("folder", SLOTS + 2) as spark:
        attached = attach(spark, scratch / "log")
        query = _own(spark, folder, "rest", standbys=1).toStream("rest").start()
        try:
            query.processAllAvailable()
            found = Rest(*_percents(idle_s))
            slots = [memory(pid) for pid, _, _ in query.job.slot_processes().values()]
            found.memory = {"slot": slots, "driver": [memory(os.getpid())]}
            follower = _Follower(attached.log, "rest")
            for number in range(arrivals):
                for way, put in (("renamed", _rename), ("written", _write)):
                    time.sleep(APART_S)
                    name = f"new-{way}-{number:06}.json"
                    first = NEW + follower.rows
                    put_s = put(scratch, folder / name, _lines(range(first, first + 1)))
                    seen_s = follower.wait_for(first)
                    found.seen_ms.setdefault(way, []).append((seen_s - put_s) * 1e3)
        finally:
            query.stop()
            attached.log.close()
        found.java_percent -= _percents(idle_s)[1]
    return found


def _percents(idle_s: float) -> tuple[float, float]:
    """How much of a core the Python processes and the Java process of this family take."""
    end_s = time.monotonic() + COMPILE_S_MAX
    while is_compiling(private_kernels_folder()) and time.monotonic() < end_s:
        time.sleep(CALM_S)
    time.sleep(CALM_S)
    cpu, start_s = FamilyCpu(os.getpid()), time.perf_counter()
    time.sleep(idle_s)
    percent = 100 / (time.perf_counter() - start_s)
    java_s = cpu.used_s(lambda pid: command(pid) == "java")
    return (cpu.used_s() - java_s) * percent, java_s * percent


def _rename(scratch: Path, file: Path, content: str) -> float:
    """Put a finished file into the folder; return when."""
    finished = scratch / file.name
    finished.write_text(content)
    put_s = time.perf_counter()
    finished.rename(file)
    return put_s


def _write(scratch: Path, file: Path, content: str) -> float:
    """Write a file where it is read; return when it was whole."""
    with file.open("w") as lines:
        lines.write(content)
        put_s = time.perf_counter()
    return put_s


class _Follower:
    """Reads a stream as its rows are committed."""

    def __init__(self, log: Log, stream: str) -> None:
        self._log = log
        self._reader = CommittedReader(log, describe_stream(log, stream).tags)
        self._newest = -1
        self.rows = 0
        self._read()

    def wait_for(self, number: int) -> float:
        """Wait for the row with a number, the largest so far; return when it could be read."""
        end_s = time.perf_counter() + SEEN_S_MAX
        while (now_s := time.perf_counter()) < end_s:
            tail = self._log.tail()
            self._read()
            if self._newest >= number:
                return now_s
            self._log.wait(tail, 0.1)
        raise RowsDiffer(f"a new file was not seen for {SEEN_S_MAX} s")

    def _read(self) -> None:
        while (release := self._reader.take()) is not None:
            for record in release.records:
                numbers = decode_record(record).column("id").to_numpy()
                self.rows += len(numbers)
                self._newest = max(self._newest, int(numbers.max()))


# --- the report -----------------------------------------------------------------------------------


def _add_drains(report: Report, prefix: str, who: str, drains: list[Drain]) -> None:
    for start, kind, drain in zip(("first", "second"), ("cold_", ""), drains, strict=True):
        what = f"{who}: all files, {start} start"
        report.add(f"{prefix}{kind}drain_s", drain.seconds, what, 1)
        report.add(f"{prefix}{kind}drain_cpu_s", drain.cpu_s, f"{what}, of all processes", 1)


def _add_rest(report: Report, size: str, found: Rest) -> None:
    report.add(f"idle_percent_{size}", found.percent, f"of a core, {size} files read", 1)
    what = "the same of Spark's Java process, beyond what it takes without the query"
    report.add(f"idle_java_percent_{size}", found.java_percent, what, 1)
    for way, seen_ms in found.seen_ms.items():
        what = f"until a {way} file's row is committed, {size} files"
        report.add(f"{way}_ms_{size}", median(seen_ms), f"{what}: median", len(seen_ms))
        report.add(f"{way}_ms_max_{size}", max(seen_ms), f"{what}: the longest", len(seen_ms))


def _add_memory(report: Report, found: Rest) -> None:
    for who, each in found.memory.items():
        most = max(each, key=lambda one: one.resident_mb)
        report.add(f"{who}_mb", most.resident_mb, f"resident memory of the {who}", len(each))
        report.add(
            f"{who}_divided_mb",
            most.divided_mb,
            "the same, with what processes share divided among them",
            len(each),
        )


def judge(report: Report) -> None:
    """Set the goals that this run can speak about."""
    value = report.value
    if "spark_drain_s" in report.figures:
        report.reach["drains_faster_than_structured_streaming"] = value("drain_s") < value(
            "spark_drain_s"
        )
    for size in ("few", "many"):
        report.reach[f"idle_under_2_percent_{size}"] = (
            value(f"idle_percent_{size}") < IDLE_PERCENT_MAX
        )
        report.reach[f"seen_within_100_ms_{size}"] = all(
            value(f"{way}_ms_max_{size}") <= SEEN_MS_MAX for way in ("renamed", "written")
        )
