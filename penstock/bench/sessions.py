"""The Spark session that a benchmark runs on, and what the machine was like before it."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from penstock.bench.report import Report, machine_facts


@contextmanager
def local_session(
    name: str, threads: int, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A quiet session with so many task slots and further settings; stopped at the end.

    Two shuffle partitions: what is measured has two vertices where Spark has its shuffle, and the
    default of 200 would make every micro-batch slower.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark: SparkSession = (
        SparkSession.builder.master(f"local[{threads}]")
        .appName(f"penstock bench {name}")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config(map=dict(settings or {}))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


def measured_on(
    name: str, threads: int, compare: Callable[[SparkSession, Namespace], Report], args: Namespace
) -> Report:
    """Compare on a session of its own, and note the machine's load before."""
    machine = machine_facts()
    with local_session(name, threads) as spark:
        report = compare(spark, args)
    report.facts = machine | report.facts
    return report
