"""The Spark session that a benchmark runs both engines on, one after the other."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession


@contextmanager
def local_session(name: str, threads: int) -> Iterator[SparkSession]:
    """A quiet session with so many task slots; stopped at the end.

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
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()
