"""Files in partitions, written by Spark, while the driver is killed again and again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.spark.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

PROGRAM = """
import penstock
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.readStream.format("rate").option("rowsPerSecond", 400).load()
parts = rows.selectExpr("value", "value % 5 AS part")
writer = penstock.writeStream(parts).format("json").partitionBy("part")
writer.trigger(processingTime="300 milliseconds").option("checkpointLocation", "place")
writer.start("out").awaitTermination()
"""


def files(folder: Path) -> list[Path]:
    """Those that readers see."""
    return list((folder / "out").glob("part=*/*.json"))


def _has_files(folder: Path, count: int) -> bool:
    return len(files(folder)) >= count


def values(folder: Path) -> Counter[int]:
    lines = (line for file in files(folder) for line in file.read_text("utf-8").splitlines())
    return Counter(json.loads(line)["value"] for line in lines)


def test_no_row_is_lost_or_doubled_when_the_driver_is_killed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "penstock", "run", "program.py"]
    for ending in (signal.SIGKILL, signal.SIGKILL, signal.SIGINT):
        enough = len(files(tmp_path)) + 12
        with (tmp_path / "errors").open("w") as errors:
            process = subprocess.Popen(command, cwd=tmp_path, stderr=errors)
        try:
            # In the middle of publishing: some partitions of a batch have their file.
            wait_for("files", partial(_has_files, tmp_path, enough), patience_s=240)
            process.send_signal(ending)
            code = process.wait(120)
        finally:
            process.kill()
        assert code == (130 if ending == signal.SIGINT else -signal.SIGKILL)
    found = values(tmp_path)
    assert set(found.values()) == {1}
    assert sorted(found) == list(range(len(found)))
    assert list((tmp_path / "out").glob(".*.tmp")) == []
