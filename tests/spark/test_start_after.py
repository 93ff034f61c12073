"""A query moves here from Structured Streaming: it begins behind the files that were read there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.connectors.spark_checkpoint import files_read
from penstock.errors import QueryMismatch
from tests.spark_session import own_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FILES = 12  # a file for each batch: Spark puts its notes of the first ten together


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with own_session() as session:
        yield session


def put(folder: Path, first: int, end: int) -> None:
    """A file for each number; their names hold what an address must escape."""
    for n in range(first, end):
        draft = folder / f".{n}"
        draft.write_text(f'{{"n": {n}}}\n', "utf-8")
        draft.rename(folder / f"n {n:03} %ü.json")


def numbers(spark: SparkSession, folder: Path) -> DataFrame:
    read = spark.readStream.schema("n bigint").option("maxFilesPerTrigger", 1)
    return read.json(str(folder))


def found(spark: SparkSession, *folders: Path) -> list[int]:
    return sorted(row.n for folder in folders for row in spark.read.json(str(folder)).collect())


@pytest.fixture(scope="module")
def old(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a query of Structured Streaming left: its input, result and checkpoint."""
    place = tmp_path_factory.mktemp("old")
    (place / "in").mkdir()
    put(place / "in", 0, FILES)
    to = numbers(spark, place / "in").writeStream.format("json").trigger(availableNow=True)
    query = to.option("checkpointLocation", str(place / "cp")).start(str(place / "out"))
    query.awaitTermination()
    assert (place / "cp" / "sources" / "0" / "9.compact").exists()
    return place


def here(spark: SparkSession, old: Path, place: Path, **options: Any) -> Any:
    to = penstock.writeStream(numbers(spark, old / "in")).option("standbySlots", 0)
    to = to.option("checkpointLocation", str(place / "cp")).options(**options)
    return to.trigger(availableNow=True).format("json").option("path", str(place / "out"))


def test_no_row_is_lost_or_doubled_between_the_two(
    spark: SparkSession, old: Path, tmp_path: Path
) -> None:
    before = {path: path.read_bytes() for path in (old / "cp").rglob("*") if path.is_file()}
    put(old / "in", FILES, FILES + 3)
    here(spark, old, tmp_path, startAfter=old / "cp").start().awaitTermination()
    assert found(spark, old / "out", tmp_path / "out") == list(range(FILES + 3))
    put(old / "in", FILES + 3, FILES + 5)
    # Later starts go on by the log; the option may stay, and the old checkpoint be gone.
    shutil.copytree(old / "cp", tmp_path / "gone")
    here(spark, old, tmp_path, startAfter=tmp_path / "nowhere").start().awaitTermination()
    assert found(spark, old / "out", tmp_path / "out") == list(range(FILES + 5))
    assert {path: path.read_bytes() for path in before} == before


def test_what_cannot_be_gone_on_from_is_refused(
    spark: SparkSession, old: Path, tmp_path: Path
) -> None:
    with pytest.raises(QueryMismatch, match=r'\.option\("startAfter"'):
        here(spark, old, old).start()
    copy = tmp_path / "copy"
    shutil.copytree(old / "cp", copy)
    (copy / "commits" / str(FILES - 1)).unlink()
    with pytest.raises(QueryMismatch, match=f"batch {FILES - 1} was begun there and is not"):
        here(spark, old, tmp_path, startAfter=copy).start()
    # Found by the source, and in no batch: it is not read yet.
    (copy / "offsets" / str(FILES - 1)).unlink()
    (read,) = files_read(copy)
    assert len(read) == FILES - 1
    assert all(Path(path).exists() for path in read)
    with pytest.raises(QueryMismatch, match="holds no batch"):
        here(spark, old, tmp_path, startAfter=tmp_path).start()
    (tmp_path / "in").mkdir()
    elsewhere = numbers(spark, tmp_path / "in")
    to = penstock.writeStream(elsewhere).option("checkpointLocation", str(tmp_path / "cp"))
    with pytest.raises(QueryMismatch, match=r"the files of no source of its query are all in"):
        to.option("startAfter", str(old / "cp")).format("noop").start()
    rate = penstock.writeStream(spark.readStream.format("rate").load())
    rate = rate.option("checkpointLocation", str(tmp_path / "cp"))
    with pytest.raises(QueryMismatch, match="only folders of files can go on from it"):
        rate.option("startAfter", str(old / "cp")).format("noop").start()
    assert not (tmp_path / "cp").exists()
