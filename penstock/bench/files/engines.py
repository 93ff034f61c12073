"""The engines: each one's run over the files of a query, in a process of its own.

A run has turns on one session: the first after the process began, and the next one, which finds
what the first left behind (compiled code, or a Java process that knows its hot methods).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.json as pjson
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from penstock.api.session import Attached, attach
from penstock.api.writer import writeStream
from penstock.bench.crew import Crew, wait_until
from penstock.bench.files.queries import QUERIES, TUMBLING, FileQuery
from penstock.bench.footprint import FamilyCpu
from penstock.bench.sessions import local_session, wait_compiled
from penstock.runtime.streams import StreamReader

SLOTS = 2
POLL_S = 0.005
START_TIMEOUT = "10 minutes"  # beside other programs compiling takes its time
TURNS = 2

# What a competent user sets for Spark; sessions.py sets as many shuffle partitions as cores.
SPARK_SETTINGS = {
    "spark.driver.memory": "4g",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


@dataclass(frozen=True)
class Place:
    """Where a query's files are, and where a run may write; both exist."""

    input: Path
    scratch: Path


@dataclass(frozen=True)
class Turn:
    """One execution, from `start()` until everything is in the sink."""

    seconds: float
    cpu_s: float  # of all processes of the engine
    first_row_s: float | None  # until somebody could read a row of the result


# --- Penstock -------------------------------------------------------------------------------------


def run_penstock(start_s: float, name: str, place: Place, is_first: bool) -> dict[str, list[Turn]]:
    """The query, and after `sliding` its twin.

    `is_first`: as the first start after an installation, which finds no compiled code at all; not
    even of the package's own functions, which Numba keeps beside them otherwise.
    """
    del start_s
    kernels = place.scratch / "kernels" if is_first else None
    if is_first:
        os.environ["NUMBA_CACHE_DIR"] = str(place.scratch / "numba")
    queries = [QUERIES[name], TUMBLING] if name == "sliding" else [QUERIES[name]]
    done: dict[str, list[Turn]] = {}
    with session() as spark:
        attached = attach(spark, place.scratch / "log", kernels=kernels)
        for query in queries:
            turns = done[query.name] = []
            for turn in range(TURNS):
                turns.append(_penstock_turn(attached, query, place, turn))
                wait_compiled(kernels)
        attached.log.close()
    return done


def _penstock_turn(attached: Attached, query: FileQuery, place: Place, turn: int) -> Turn:
    name = f"{query.name}_{turn}"
    rows = query.stream(attached.spark, str(place.input))
    writer = writeStream(rows).outputMode(query.output).queryName(name)
    writer = writer.options(parallelism=SLOTS, slots=SLOTS, standbySlots=0)
    writer = writer.options(startTimeout=START_TIMEOUT).trigger(availableNow=True)
    result = result_folder(place, query.name, turn)
    if query.output == "append":
        writer = writer.format("parquet").option("path", str(result))
        has_rows = _has_files(result)
    else:
        writer = writer.toStream(name)
        has_rows = _has_committed(attached, name)
    with _timed(has_rows) as timed:
        writer.start().awaitTermination()
    if query.output == "update":
        result.mkdir()
        pq.write_table(StreamReader(attached.log, name).read_all(), result / "rows.parquet")
    return timed.turn


def _has_files(folder: Path) -> Callable[[], bool]:
    return lambda: (
        folder.is_dir()
        and any(entry.endswith(".parquet") and entry[0] not in "._" for entry in os.listdir(folder))
    )


def _has_committed(attached: Attached, stream: str) -> Callable[[], bool]:
    def look() -> bool:
        if attached.log.get(f"stream/{stream}") is None:
            return False
        return next(StreamReader(attached.log, stream).read(), None) is not None

    return look


# --- Spark ----------------------------------------------------------------------------------------


def run_spark(start_s: float, name: str, place: Place) -> dict[str, list[Turn]]:
    """Structured Streaming: everything that is there in one micro-batch."""
    del start_s
    query = QUERIES[name]
    with session() as spark:
        return {name: [_spark_turn(spark, query, place, turn) for turn in range(TURNS)]}


def _spark_turn(spark: SparkSession, query: FileQuery, place: Place, turn: int) -> Turn:
    name = f"{query.name}_{turn}"
    writer = query.stream(spark, str(place.input)).writeStream.outputMode(query.output)
    writer = writer.option("checkpointLocation", str(place.scratch / f"checkpoint-{turn}"))
    writer = writer.trigger(availableNow=True).queryName(name)
    result = result_folder(place, query.name, turn)
    if query.output == "append":  # the file sink has no other mode
        writer = writer.format("parquet").option("path", str(result))
        has_rows = _has_spark_files(result / "_spark_metadata")
    else:
        writer = writer.format("memory")
        has_rows = _has_progress(spark)
    with _timed(has_rows) as timed:
        writer.start().awaitTermination()
    if query.output == "update":
        spark.table(name).write.parquet(str(result))
    return timed.turn


def _has_spark_files(commits: Path) -> Callable[[], bool]:
    """Whether a batch that is committed has a file: only then do readers of the folder see it."""

    def look() -> bool:
        if not commits.is_dir():
            return False
        batches = [entry for entry in os.listdir(commits) if entry.isdecimal()]
        return any(b"path" in (commits / batch).read_bytes() for batch in batches)

    return look


def _has_progress(spark: SparkSession) -> Callable[[], bool]:
    """Whether a micro-batch is over; its rows are in the memory sink a moment before."""
    return lambda: any(query.lastProgress is not None for query in spark.streams.active)


def run_batch(start_s: float, name: str, place: Place) -> dict[str, list[Turn]]:
    """A plain Spark job over the same files, whose result is the one that others must have."""
    del start_s
    query = QUERIES[name]
    with session() as spark:
        turns = []
        for turn in range(TURNS):
            rows: DataFrame = query.batch(spark, str(place.input))
            with _timed(None) as timed:
                rows.write.parquet(str(result_folder(place, name, turn)))
            turns.append(timed.turn)
        return {name: turns}


@contextmanager
def session() -> Iterator[SparkSession]:
    """A session that has run a job: what follows is not to pay for its first steps."""
    with local_session("files", SLOTS, SPARK_SETTINGS) as spark:
        spark.range(1000).selectExpr("sum(id)").collect()
        yield spark


# --- reading alone --------------------------------------------------------------------------------


def read_seconds(query: FileQuery, place: Place) -> float:
    """How long as many processes as there are slots take to read the needed columns, no more."""
    files = sorted(path for path in place.input.iterdir() if path.name.startswith("part-"))
    with Crew(SLOTS) as crew:
        crew.run([(_loaded,)] * SLOTS)  # with this module and all that it imports
        shares = [(read_files, query.name, files[slot::SLOTS]) for slot in range(SLOTS)]
        return float(max(crew.run(shares)))


def _loaded(start_s: float) -> None:
    del start_s


def read_files(start_s: float, name: str, files: list[Path]) -> float:
    """Read some files with pyarrow and one thread; how long it took after the start."""
    query = QUERIES[name]
    wait_until(start_s)
    for file in files:
        _READERS[query.format](query, file)
    return time.perf_counter() - start_s


def _read_parquet(query: FileQuery, file: Path) -> None:
    with pq.ParquetFile(file) as parquet:
        for group in range(parquet.num_row_groups):
            parquet.read_row_group(group, columns=list(query.columns), use_threads=False)


def _read_json(query: FileQuery, file: Path) -> None:
    types = {"device": pa.string(), "value": pa.int64(), "event_time": pa.timestamp("us")}
    schema = pa.schema([(name, types[name]) for name in query.columns])
    how = pjson.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    pjson.read_json(file, pjson.ReadOptions(use_threads=False), how)


def _read_text(query: FileQuery, file: Path) -> None:
    columns = pcsv.ReadOptions(use_threads=False, column_names=list(query.columns))
    lines = pcsv.ParseOptions(delimiter="\x01", quote_char=False)
    pcsv.read_csv(file, columns, lines)


_READERS = {"parquet": _read_parquet, "json": _read_json, "text": _read_text}


# --- a turn ---------------------------------------------------------------------------------------


def result_folder(place: Place, query: str, turn: int) -> Path:
    """Where the result of a turn is afterwards, as Parquet files."""
    return place.scratch / f"{query}-{turn}"


class _Timed:
    """Set when the block is over."""

    turn: Turn


@contextmanager
def _timed(has_rows: Callable[[], bool] | None) -> Iterator[_Timed]:
    """Time a block, and look every few milliseconds whether there is a row already."""
    timed, over = _Timed(), threading.Event()
    seen_s: list[float] = []

    def watch() -> None:
        while has_rows is not None and not over.wait(POLL_S):
            if has_rows():
                seen_s.append(time.perf_counter())
                return

    cpu = FamilyCpu(os.getpid())
    start_s = time.perf_counter()
    watcher = threading.Thread(target=watch, name="first-row", daemon=True)
    watcher.start()
    try:
        yield timed
        end_s = time.perf_counter()
    finally:
        over.set()
        watcher.join()
    first_s = (seen_s[0] if seen_s else end_s) - start_s
    timed.turn = Turn(end_s - start_s, cpu.used_s(), None if has_rows is None else first_s)
