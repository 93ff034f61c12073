"""Files in partitions, written by Spark, and files of slots, while drivers are killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.connectors.hidden_files import named_file
from penstock.log import open_log
from penstock.log.record import Position, RecordKind
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


PARTS, ROWS = 8, 300_000
OF_SLOTS = """
import penstock
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.readStream.schema("n BIGINT, t STRING").parquet("in")
writer = penstock.writeStream(rows.where("n % 3 > 0")).format("parquet").queryName("copied")
writer = writer.option("checkpointLocation", "place").option("undeliveredBytesMax", 4000000)
writer.trigger(availableNow=True).start("out").awaitTermination()
"""


def published(folder: Path) -> list[Path]:
    return list((folder / "out").glob("*.parquet"))


def _is_more_published(folder: Path, than: int) -> bool:
    return len(published(folder)) > than


def test_files_that_slots_write_have_each_row_once_when_driver_and_slots_are_killed(
    tmp_path: Path,
) -> None:
    """Rows by the megabyte, so each commit is a file of its vertex; slots die with their driver."""
    (tmp_path / "in").mkdir()
    for part in range(PARTS):
        numbers = range(part * ROWS, (part + 1) * ROWS)
        texts = [f"{n:040d}" for n in numbers]
        pq.write_table(pa.table({"n": numbers, "t": texts}), tmp_path / "in" / f"{part}.parquet")
    (tmp_path / "program.py").write_text(OF_SLOTS)
    command = [sys.executable, "-m", "penstock", "run", "program.py"]
    for is_last in (False, False, True):
        before = len(published(tmp_path))
        with (tmp_path / "errors").open("w") as errors:
            process = subprocess.Popen(command, cwd=tmp_path, stderr=errors)
        try:
            if is_last:
                assert process.wait(240) == 0, (tmp_path / "errors").read_text()
            else:
                wait_for("files", partial(_is_more_published, tmp_path, before), patience_s=240)
                process.kill()
                assert process.wait(120) == -signal.SIGKILL
        finally:
            process.kill()
        found = Counter(n for file in published(tmp_path) for n in _column(file))
        assert set(found.values()) == {1}
    assert sorted(found) == [n for n in range(PARTS * ROWS) if n % 3]
    assert _named(tmp_path / "place") > 0
    assert list((tmp_path / "out").glob(".*.tmp")) == []


def _column(file: Path) -> list[int]:
    return list(pq.read_table(file, columns=["n"]).column("n").to_pylist())


def _named(folder: Path) -> int:
    """How many files of slots the log still names."""
    with open_log(folder, read_only=True) as log:
        records = log.read(["S/copied.out/0"], Position(0), 10_000)
    return sum(r.kind is RecordKind.DATA and named_file(r.body) is not None for r in records)
