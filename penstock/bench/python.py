"""The benchmark of Python functions: what they cost per row, and how long a row is on its way.

The same DataFrame runs on Penstock and on Structured Streaming. Throughput: over the same files,
from `start()` to the end, each engine twice before it counts; with the processor time that all
processes took, which says more on a machine that does other things too. What a start costs is
measured apart: the same over the first thousand rows. Latency: over the same events at a rate, as
`bench latency` takes it. Functions over groups count per key, of ten thousand.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from penstock.api.session import attach
from penstock.api.writer import writeStream
from penstock.bench import arguments
from penstock.bench.arrivals import RowsDiffer, journeys_of_counts, journeys_of_rows
from penstock.bench.footprint import FamilyCpu
from penstock.bench.latency import Measured, Run
from penstock.bench.report import QueriesReport, machine_facts, rounded, say
from penstock.bench.sessions import local_session, wait_compiled

TITLE = "Python functions beside Structured Streaming"
KEYS = 10_000
THREADS = 8
SLOTS = 2
FILES = 4
ROWS = 1_000_000
ROWS_MAX = 1_000_000_000
FEW_ROWS = 1_000  # a run over these is all starting and ending
RATE = 10_000
STEP_ROWS_MAX = 1 << 20  # a call for each key of a step, as Spark has one for each key of a batch
# Over which files; the last two count. What is measured first in a session starts slowly once more
# after its first run: Java has compiled little by then.
TURNS = ("rows", "few", "few", "rows")
TURN_S_MAX = 900
TIMES_MIN: Mapping[str, int] = {"scalar": 3, "grouped": 10, "latency": 10}
STATE_STORE = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}


@dataclass(frozen=True)
class PythonQuery:
    """A query with a function; its rows are (seq) or (auction, count)."""

    rows: Callable[[DataFrame], DataFrame]
    kind: str  # of goal
    meaning: str

    @property
    def counts(self) -> bool:
        return self.kind == "grouped"

    def measured(self) -> Measured:
        """The same for `bench latency`."""
        columns = ("auction", "count") if self.counts else ("seq",)
        journeys = journeys_of_counts if self.counts else journeys_of_rows
        vertices = SLOTS if self.counts else 1  # as many as the session has shuffle partitions
        return Measured(
            "bids",
            "seq,auction",
            self.over,
            "append",
            columns,
            journeys,
            vertices,
            0,
            0,
            self.meaning,
        )

    def over(self, bids: DataFrame) -> DataFrame:
        return self.rows(bids.selectExpr("seq", f"auction % {KEYS} AS auction"))


def _pandas(bids: DataFrame) -> DataFrame:
    import pandas as pd  # noqa: PLC0415 (pickled with the function)
    from pyspark.sql.pandas.functions import pandas_udf  # noqa: PLC0415

    def mixed(auction):  # type: ignore[no-untyped-def]
        return auction * 31 % 1_009

    mixed.__annotations__ = {"auction": pd.Series, "return": pd.Series}
    function: Any = pandas_udf
    return bids.withColumn("mixed", function(mixed, "bigint")("auction"))


def _pickled(bids: DataFrame) -> DataFrame:
    from pyspark.sql.functions import udf  # noqa: PLC0415

    mixed = udf(lambda auction: auction * 31 % 1_009, "bigint", useArrow=False)
    return bids.withColumn("mixed", mixed("auction"))


def _arrow(bids: DataFrame) -> DataFrame:
    def mixed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            auction = batch.column("auction").to_numpy()
            yield batch.append_column("mixed", pa.array(auction * 31 % 1_009))

    return bids.mapInArrow(mixed, "seq bigint, auction bigint, mixed bigint")


def _state(bids: DataFrame) -> DataFrame:
    def count(key: Any, frames: Any, state: Any) -> Any:
        import pandas as pd  # noqa: PLC0415

        total = sum(map(len, frames)) + (state.get[0] if state.exists else 0)
        state.update((total,))
        yield pd.DataFrame({"auction": [key[0]], "count": [total]})

    return bids.groupBy("auction").applyInPandasWithState(
        count, "auction bigint, count bigint", "n bigint", "append", "NoTimeout"
    )


def _processor(bids: DataFrame) -> DataFrame:
    from pyspark.sql import Row  # noqa: PLC0415
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor  # noqa: PLC0415

    class Counting(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.count = handle.getValueState("count", "n bigint")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            (before,) = self.count.get() or (0,)
            total = before + sum(1 for _ in rows)
            self.count.update((total,))
            yield Row(auction=key[0], count=total)

    return bids.groupBy("auction").transformWithState(
        Counting(), "auction bigint, count bigint", "append", "None"
    )


QUERIES: Mapping[str, PythonQuery] = {
    "pandas_udf": PythonQuery(_pandas, "scalar", "a pandas_udf of a column"),
    "udf": PythonQuery(_pickled, "scalar", "a pickled udf of a column"),
    "mapInArrow": PythonQuery(_arrow, "scalar", "batches of Arrow"),
    "applyInPandasWithState": PythonQuery(_state, "grouped", "counts per key, in frames"),
    "transformWithState": PythonQuery(_processor, "grouped", "counts per key, in rows"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--queries", type=_chosen, default=list(QUERIES), help=f"of {','.join(QUERIES)}"
    )
    parser.add_argument("--rows", type=_rows, default=ROWS, help=f"of the files (default {ROWS})")
    parser.add_argument(
        "--rate", type=arguments.whole, default=RATE, help=f"events/s (default {RATE})"
    )
    parser.add_argument(
        "--measure", choices=("all", "throughput", "latency"), default="all", help="(default all)"
    )
    arguments.add_comparison(parser, seconds_default=10.0, warmup_default=5.0)


def _rows(text: str) -> int:
    value = int(text)
    if not FEW_ROWS < value <= ROWS_MAX:
        raise argparse.ArgumentTypeError(
            f"{text} is not a number from {FEW_ROWS + 1:,} to {ROWS_MAX:,}"
        )
    return value


def _chosen(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in QUERIES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: known are {', '.join(QUERIES)}")
    return names


def measure(args: argparse.Namespace) -> QueriesReport:
    """Measure query by query on one session, and report."""
    report = QueriesReport(TITLE, {**machine_facts(), "rows": args.rows, "rate": args.rate})
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=args.dir) as name:
        work = Path(name).absolute()
        write_rows(work / "rows", args.rows)
        write_rows(work / "few", FEW_ROWS)
        with local_session("python", THREADS, STATE_STORE) as spark:
            for query in args.queries:
                report.queries[query] = figures_of(spark, query, args, work)
    report.judge(goals)
    return report


def figures_of(
    spark: SparkSession, name: str, args: argparse.Namespace, work: Path
) -> dict[str, float]:
    query, figures = QUERIES[name], dict[str, float]()
    with_spark = args.against == "spark" and _runs_on_spark(name)
    if args.measure != "latency":
        say(f"{name}: Penstock over {args.rows:,} rows")
        _add_turns(figures, "", args.rows, *_own_turns(spark, query, name, work))
        if with_spark:
            say(f"{name}: Structured Streaming over {args.rows:,} rows")
            _add_turns(figures, "spark_", args.rows, *_spark_turns(spark, query, name, work))
    if args.measure != "throughput":
        run = Run(query.measured(), args.rate, args.warmup, args.seconds)
        if query.counts:
            run.bids = replace(run.bids, auction=run.bids.auction % KEYS)
        say(f"{name}: Penstock at {args.rate:,} rows/s")
        attached = attach(spark, work / f"log_{name}_latency")
        _add_latency(figures, "", run.on_penstock(attached, f"{name}_latency").ms)
        attached.log.close()
        if with_spark:
            say(f"{name}: Structured Streaming at {args.rate:,} rows/s")
            _add_latency(
                figures, "spark_", run.on_spark(spark, work / f"spark_{name}_latency")[0].ms
            )
    return figures


def _add_turns(figures: dict[str, float], whose: str, rows: int, few: Turn, turn: Turn) -> None:
    figures[f"{whose}rows_per_s"] = rounded(rows / turn.seconds)
    figures[f"{whose}start_s"] = rounded(few.seconds)
    figures[f"{whose}cpu_s"] = rounded(turn.cpu_s)
    figures[f"{whose}start_cpu_s"] = rounded(few.cpu_s)


def _add_latency(figures: dict[str, float], whose: str, ms: Any) -> None:
    for key, share in (("p50_ms", 0.5), ("p99_ms", 0.99)):
        figures[f"{whose}{key}"] = rounded(float(np.quantile(ms, share)))


def _runs_on_spark(name: str) -> bool:
    """Spark's own processors talk to its JVM by protobuf, which may not be there."""
    if name != "transformWithState" or (find_spec("google") and find_spec("google.protobuf")):
        return True
    say(f"{name}: not on Structured Streaming, which needs it: pip install protobuf")
    return False


# --- throughput -----------------------------------------------------------------------------------


class Turn(NamedTuple):
    """One run over all rows, from `start()` until everything is in the sink."""

    seconds: float
    cpu_s: float  # of all processes of both engines: one of them is idle


def write_rows(folder: Path, rows: int) -> None:
    """Files with so many rows in all, of keys without order."""
    folder.mkdir()
    for number, seq in enumerate(np.array_split(np.arange(rows), FILES)):
        auction = seq * 7_919 % (KEYS * 3)
        pq.write_table(pa.table({"seq": seq, "auction": auction}), folder / f"{number}.parquet")


def _own_turns(spark: SparkSession, query: PythonQuery, name: str, work: Path) -> list[Turn]:
    attached = attach(spark, work / f"log_{name}")
    turns = []
    try:
        for turn, rows in enumerate(TURNS):
            called, result = f"{name}_{turn}", work / f"own_{name}_{turn}"
            writer = writeStream(query.over(_stream(spark, work / rows))).queryName(called)
            writer = writer.options(parallelism=SLOTS, slots=SLOTS, standbySlots=0)
            writer = writer.options(stepRowsMax=STEP_ROWS_MAX)
            turns.append(_timed(writer.format("parquet").option("path", str(result))))
            _check(query, result, work / rows)
            wait_compiled(None)
    finally:
        attached.log.close()
    return turns[-2:]


def _spark_turns(spark: SparkSession, query: PythonQuery, name: str, work: Path) -> list[Turn]:
    turns = []
    for turn, rows in enumerate(TURNS):
        result, checkpoint = (work / f"{what}_{name}_{turn}" for what in ("spark", "checkpoint"))
        writer = query.over(_stream(spark, work / rows)).writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(checkpoint))
        turns.append(_timed(writer.option("path", str(result))))
        _check(query, result, work / rows)
    return turns[-2:]


def _stream(spark: SparkSession, rows: Path) -> DataFrame:
    return spark.readStream.schema("seq BIGINT, auction BIGINT").parquet(str(rows))


def _timed(writer: Any) -> Turn:
    cpu, start_s = FamilyCpu(os.getpid()), time.perf_counter()
    running = writer.trigger(availableNow=True).start()
    try:
        is_over = running.awaitTermination(TURN_S_MAX)
        taken = Turn(time.perf_counter() - start_s, cpu.used_s())
    finally:
        running.stop()
    if not is_over:
        raise TimeoutError(f"not through in {TURN_S_MAX} s")
    return taken


def _check(query: PythonQuery, result: Path, rows: Path) -> None:
    """Raise unless each row is there once, as the function gives it, or was counted once."""
    wanted, found = pq.read_table(rows), pq.read_table(result)
    keys = wanted["auction"].to_numpy() % KEYS
    if query.counts:
        last = found.group_by("auction").aggregate([("count", "max")]).sort_by("auction")
        each, counts = np.unique(keys, return_counts=True)
        expected = pa.table({"auction": each, "count_max": counts})
        if last.select(expected.column_names) != expected:
            total = pc.sum(last["count_max"])
            raise RowsDiffer(f"the counts add up to {total} rows of {wanted.num_rows}")
        return
    expected = pa.table({"seq": wanted["seq"], "auction": keys, "mixed": keys * 31 % 1_009})
    if found.sort_by("seq") != expected.sort_by("seq"):
        raise RowsDiffer(f"{found.num_rows} rows were written for {wanted.num_rows}, or others")


# --- goals ----------------------------------------------------------------------------------------


def goals(name: str, figures: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    if "spark_rows_per_s" in figures:
        times = TIMES_MIN[QUERIES[name].kind]
        reached = figures["rows_per_s"] >= times * figures["spark_rows_per_s"]
        yield f"{times}_times_spark", reached
    for key in ("p50", "p99"):
        if f"spark_{key}_ms" in figures:
            times = TIMES_MIN["latency"]
            reached = figures[f"{key}_ms"] * times <= figures[f"spark_{key}_ms"]
            yield f"{key}_{times}_times_below_spark", reached
