"""A query between a source and a sink that only Spark knows, while its driver is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.spark.rig import ROOT
from tests.spark.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

ROWS = 400
PROGRAM = """
import sys
import penstock
from pyspark.sql import SparkSession
from tests.spark.ends_formats import register

spark = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
if sys.argv[1] == "numbers":
    rows = spark.readStream.format("numbers").option("upto", "upto").option("step", 20).load()
else:
    rows = spark.readStream.schema("n bigint").option("maxFilesPerTrigger", 1).orc("orc")
writer = penstock.writeStream(rows.select("n")).option("standbySlots", 0)
if sys.argv[2] == "lines":
    writer.format("lines").option("folder", "out")
else:
    writer.format("json").option("path", "out")
writer.option("checkpointLocation", "place").start().awaitTermination()
"""


def found(folder: Path) -> list[int]:
    out = folder / "out"
    texts = [file.read_text("utf-8") for file in out.glob("*.lines")]
    texts += [file.read_text("utf-8") for file in out.glob("[!.]*.json")]
    return sorted(int(line.strip('{}"n:')) for text in texts for line in text.splitlines())


def _has_rows(folder: Path, count: int) -> bool:
    return len(found(folder)) >= count


def _write_orc(folder: Path) -> None:
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import orc  # noqa: PLC0415

    (folder / "orc").mkdir()
    for first in range(0, ROWS, 20):
        table = pa.table({"n": pa.array(range(first, first + 20), pa.int64())})
        orc.write_table(table, folder / "orc" / f"{first:05}.orc")


@pytest.mark.parametrize(
    ("source", "sink"),
    [("orc", "json"), pytest.param("numbers", "lines", marks=pytest.mark.campaign)],
)
def test_no_row_is_lost_or_doubled(source: str, sink: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "out").mkdir()
    (tmp_path / "upto").write_text(str(ROWS))
    if source == "orc":
        _write_orc(tmp_path)
    command = [sys.executable, "-m", "penstock", "run", "program.py", source, sink]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for ending in (signal.SIGKILL, signal.SIGKILL, signal.SIGINT):
        is_last = ending == signal.SIGINT
        enough = ROWS if is_last else len(found(tmp_path)) + 100
        assert enough <= ROWS
        with (tmp_path / "errors").open("a") as errors:
            process = subprocess.Popen(command, cwd=tmp_path, stderr=errors, env=environment)
        try:
            wait_for("rows", partial(_has_rows, tmp_path, enough), patience_s=240)
            process.send_signal(ending)
            process.wait(120)
        finally:
            process.kill()
    assert found(tmp_path) == list(range(ROWS))
