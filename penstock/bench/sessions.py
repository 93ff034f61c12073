"""The Spark session that a benchmark runs on, and what the machine was like before it."""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.bench.report import Report, machine_facts
from penstock.kernels.background import is_compiling
from penstock.kernels.private_folder import private_kernels_folder

COMPILE_S_MAX = 300.0
POLL_S = 0.005


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


def wait_compiled(kernels: Path | None) -> None:
    """Wait for the compiler that a first turn has started: the next one finds what it makes."""
    folder = kernels or private_kernels_folder()
    end_s = time.monotonic() + COMPILE_S_MAX
    while is_compiling(folder) and time.monotonic() < end_s:
        time.sleep(POLL_S)
