"""The demo's driver and judge: what a user would write, and the same query as a Spark batch."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.api.progress import RowCount
from penstock.api.session import attach
from penstock.api.writer import writeStream
from penstock.connectors.nexmark import BASE_MS

STATUS_S = 0.25
ROWS_SHOWN = 10


def hot_items(bids: DataFrame) -> DataFrame:
    """Bids per auction in windows of 10 seconds, every 2 seconds."""
    windowed = bids.groupBy(F.window("dateTime", "10 seconds", "2 seconds"), "auction")
    return windowed.count()


def session(cores: int) -> SparkSession:
    spark: SparkSession = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("penstock demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def run(args: argparse.Namespace) -> int:
    """Run the query and tell the watching process how it goes."""
    spark = session(8)
    attached = attach(spark, args.log)
    attached.log.compare_and_set("demo/base_us", 0, b"%d" % (BASE_MS * 1000))
    bids = (
        spark.readStream.format("nexmark")
        .option("kind", "bids")
        .option("rate", args.rate)
        .option("events", args.events)
        .load()
    )
    query = (
        writeStream(hot_items(bids.withWatermark("dateTime", "1 second")))
        .queryName("hot")
        .option("parallelism", 2)
        .toStream("hot")
        .start()
    )
    program = query.request.program
    readers = {v.name for v in program.vertices if program.stage_of(v).source is not None}
    rows_in, new_rows, noted_s = 0, RowCount("rows_in"), time.monotonic()
    while query.isActive:
        query.awaitTermination(STATUS_S)
        status = {name: facts for name, facts in query.job.vertex_status().items() if facts}
        sources = {name: facts for name, facts in status.items() if name in readers}
        new = sum(new_rows.take(sources).values())
        rows_in += new
        now_s = time.monotonic()
        _tell(
            type="status",
            rows_in=rows_in,
            rows_rate=new / max(now_s - noted_s, 1e-3),
            recoveries=len(query.job.recoveries()),
            slots={
                str(number): {"pid": pid, "vertices": list(vertices)}
                for number, (pid, _, vertices) in query.job.slot_processes().items()
            },
        )
        noted_s = now_s
    if (error := query.exception()) is not None:
        raise error
    _tell(type="ended")
    return 0


def judge(args: argparse.Namespace) -> int:
    """Compare the committed rows with a batch over the same events, as multisets."""
    spark = session(4)
    attach(spark, args.log, create=False)
    events = (
        spark.read.format("nexmark")
        .option("kind", "bids")
        .option("rate", args.rate)
        .option("events", args.events)
        .load()
    )
    expected = hot_items(events).cache()
    found = spark.read.format("penstock").option("stream", "hot").load()
    found = found.select(*expected.columns).cache()
    missing, extra = expected.exceptAll(found), found.exceptAll(expected)
    sample = [f"missing {row}" for row in missing.take(ROWS_SHOWN)]
    sample += [f"extra   {row}" for row in extra.take(ROWS_SHOWN)]
    _tell(rows=found.count(), missing=missing.count(), extra=extra.count(), sample=sample)
    return 0


def _tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m penstock.cli.hot_items_driver")
    parser.add_argument("part", choices=("run", "judge"))
    parser.add_argument("log", type=Path)
    parser.add_argument("--rate", type=int, required=True)
    parser.add_argument("--events", type=int, required=True)
    args = parser.parse_args()
    return run(args) if args.part == "run" else judge(args)


if __name__ == "__main__":
    sys.exit(main())
