"""The stream that feeds a sink outside the log stays small, and the sink exactly once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.api import sinks
from penstock.api.sinks import Delivery, ParquetDelivery, SinkRunner
from penstock.config import LogConfig
from penstock.expressions.types import BIGINT, Field
from penstock.log import LocalLog, open_log
from penstock.log.survey import list_tags
from penstock.runtime.streams import StreamReader, StreamWriter, create_stream, describe_stream

WAIT_S = 30.0
STREAM = "rows"
VERTEX = "writer"
SCHEMA = pa.schema([pa.field("x", pa.int64(), False)])


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalLog:
    monkeypatch.setattr(sinks, "TRIM_COMMITS", 4)
    log = open_log(tmp_path / "log", create=True, config=LogConfig(durability="process"))
    create_stream(log, STREAM, (Field("x", BIGINT, False),))
    return log


class DyingParquet(ParquetDelivery):
    """Dies when a file is there and nobody has noted it yet."""

    epochs_left = 7

    def deliver(self, vertex: str, epoch: int, rows: pa.Table) -> None:
        super().deliver(vertex, epoch, rows)
        self.epochs_left -= 1
        if not self.epochs_left:
            raise ConnectionError("the driver dies here")


def parquet(folder: Path, kind: type[ParquetDelivery] = ParquetDelivery) -> ParquetDelivery:
    return kind(str(folder), "q", "id", [VERTEX])


def publish(log: LocalLog, first: int, epochs: int) -> None:
    """One row an epoch; every third epoch has none."""
    writer = StreamWriter(log, STREAM, VERTEX)
    for number in range(first, first + epochs):
        rows = None if number % 3 == 0 else pa.record_batch([[number]], schema=SCHEMA)
        writer.write(rows)


def deliver(log: LocalLog, delivery: Delivery, *, from_start: bool = False) -> SinkRunner:
    facts = describe_stream(log, STREAM)
    runner = SinkRunner(log, "q", facts.tags, facts.schema, delivery, from_start=from_start)
    runner.start()
    runner.stop(WAIT_S)
    return runner


def kept(log: LocalLog) -> int:
    """How many records are left for the sink to read."""
    return sum(
        each.records for each in list_tags(log.folder) if each.tag.startswith(f"S/{STREAM}/")
    )


def test_a_delivered_stream_is_trimmed_and_each_epoch_is_written_once(
    log: LocalLog, tmp_path: Path
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    left = []
    for life in range(6):
        publish(log, life * 20, 20)
        kind = DyingParquet if life % 2 else ParquetDelivery
        runner = deliver(log, parquet(folder, kind))
        assert (runner.failure is not None) == bool(life % 2)
        left.append(kept(log))
    deliver(log, parquet(folder))
    values = [
        row["x"] for path in folder.glob("*.parquet") for row in pq.read_table(path).to_pylist()
    ]
    assert sorted(values) == [number for number in range(120) if number % 3]
    # A life that ends well leaves less than a trim's worth, however many came before it.
    assert max(left[0::2]) <= 2 * sinks.TRIM_COMMITS
    assert max(left) <= 2 * 20 + 2 * sinks.TRIM_COMMITS
    assert kept(log) <= 2 * sinks.TRIM_COMMITS
    log.close()


class Collected(Delivery):
    """Keeps the numbers that it is given."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def deliver(self, vertex: str, epoch: int, rows: pa.Table) -> None:
        self.numbers += rows.column("x").to_pylist()


def test_a_sink_that_begins_anew_each_time_keeps_its_stream(log: LocalLog) -> None:
    publish(log, 0, 30)
    expected = [number for number in range(30) if number % 3]
    for _ in range(2):
        view = Collected()
        deliver(log, view, from_start=True)
        assert view.numbers == expected
    assert StreamReader(log, STREAM).read_all().column("x").to_pylist() == expected
    log.close()
