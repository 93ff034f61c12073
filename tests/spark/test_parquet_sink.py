"""The Parquet sink between writing a file and naming it: what a plain reader sees when it dies."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.connectors.contract import BatchRows
from penstock.connectors.folder_sink import FolderSink
from penstock.errors import QueryMismatch, SinkError
from penstock.log import punit
from tests.spark_session import shared_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
DYING = """
import os, signal, sys
import pyarrow as pa
from tests.spark.test_parquet_sink import opened, publish

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

sink = opened(sys.argv[1])
publish(sink, 10, 1, 2)
publish(sink, 11, 3)
setattr(os, sys.argv[2], die)
publish(sink, 12, 4, 5)
"""
SCHEMA = pa.schema([("n", pa.int64())])


def opened(folder: object, query_id: str = "id-1") -> FolderSink:
    return FolderSink(str(folder), "q", query_id)


def publish(sink: FolderSink, epoch: int, *numbers: int) -> None:
    body = punit.encode(pa.record_batch([numbers], schema=SCHEMA))
    sink.publish(epoch, sink.stage(epoch, BatchRows((body,), SCHEMA)))


def values(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(row.n for row in spark.read.parquet(str(folder)).collect())


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("moment", "seen"),
    [("fsync", [1, 2, 3]), ("link", [1, 2, 3]), ("unlink", [1, 2, 3, 4, 5])],
)
def test_a_driver_that_is_killed_leaves_whole_files_only(
    tmp_path: Path, moment: str, seen: list[int]
) -> None:
    """Killed before the file is synced, before it has its name, before the other name is gone."""
    folder = tmp_path / "out"
    died = subprocess.run([sys.executable, "-c", DYING, folder, moment], cwd=ROOT, check=False)
    assert died.returncode == -signal.SIGKILL
    left = [path for path in folder.iterdir() if path.name.endswith(".tmp")]
    assert len(left) == 1
    spark = shared_session()
    assert values(spark, folder) == seen
    again = opened(folder)
    assert again.last_epoch() == (12 if len(seen) == 5 else 11)
    publish(again, 12, 4, 5)
    publish(again, 13, 6)
    publish(again, 13, 6)  # once more changes nothing
    assert values(spark, folder) == [1, 2, 3, 4, 5, 6]
    assert not left[0].exists()


def test_a_folder_of_another_query_is_refused(tmp_path: Path) -> None:
    first = opened(tmp_path)
    publish(first, 10, 1)
    with pytest.raises(QueryMismatch, match=r"id id-1, this one is id-2\): choose another folder"):
        opened(tmp_path, "id-2")
    FolderSink(tmp_path, "other", "id-3")  # beside it


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SinkError, match="file"):
        opened(tmp_path / "file")
