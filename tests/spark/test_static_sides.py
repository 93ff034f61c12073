"""Joins with static rows on Spark: what is stored counts, through kills, until a refresh."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.api.session import Attached
from penstock.errors import InvalidArgument, StaticSideTooLarge
from penstock.expressions.types import schema_from_arrow
from penstock.runtime.queries import stored_query
from penstock.runtime.streams import StreamReader, StreamWriter, create_stream
from tests.spark.waiting import wait_for
from tests.spark_session import own_session

if TYPE_CHECKING:
    from penstock.api.query import StreamingQuery
    from penstock.api.writer import DataStreamWriter

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

NUMBERS = pa.schema([pa.field("n", pa.int64(), nullable=False)])


class Joined:
    """A stream of numbers, joined with a folder of Parquet files that somebody rewrites."""

    def __init__(self, attached: Attached, folder: Path) -> None:
        self.log = attached.log
        self.spark = attached.spark
        self._folder = folder
        self.rows = 0
        create_stream(self.log, "numbers", schema_from_arrow(NUMBERS))
        self._writer = StreamWriter(self.log, "numbers", "test")

    def rewrite(self, word: str) -> None:
        """Other rows in other files: those of before are gone."""
        self._folder.mkdir(exist_ok=True)
        for old in self._folder.iterdir():
            old.unlink()
        table = pa.table({"digit": range(9), "word": [word] * 9})
        pq.write_table(table, self._folder / f"{word}.parquet")

    def feed(self, rows: int = 20) -> None:
        values = range(self.rows, self.rows + rows)
        self.rows += rows
        self._writer.write(pa.RecordBatch.from_pydict({"n": values}, NUMBERS))

    def writer(self, **options: object) -> DataStreamWriter:
        rows = self.spark.readStream.format("penstock").option("stream", "numbers").load()
        static = self.spark.read.parquet(str(self._folder))
        joined = rows.selectExpr("n", "n % 10 as digit").join(static, "digit", "left")
        found = penstock.writeStream(joined.select("n", "word")).queryName("joined")
        return found.toStream("met").options(**options)

    def met(self) -> dict[str | None, int]:
        """How many rows have met which word."""
        words = StreamReader(self.log, "met").read_all().column("word").to_pylist()
        return {word: words.count(word) for word in set(words)}

    def has_all(self) -> bool:
        return sum(self.met().values()) == self.rows


@pytest.fixture
def joined(tmp_path: Path) -> Iterator[Joined]:
    with own_session() as session:
        yield Joined(penstock.attach(session, tmp_path / "log"), tmp_path / "static")
        for query in penstock.queries():
            query.stop()


def _kill_slots(query: StreamingQuery) -> None:
    """kill -9 of every process that runs vertices; others take over."""
    found = wait_for(
        "slots with vertices",
        lambda: [pid for pid, _, vertices in query.job.slot_processes().values() if vertices],
    )
    for process in found:
        os.kill(process, signal.SIGKILL)


def test_the_stored_rows_count_until_a_refresh(
    joined: Joined, capsys: pytest.CaptureFixture[str]
) -> None:
    joined.rewrite("first")
    query = joined.writer().start()
    joined.feed()
    query.processAllAvailable()
    joined.rewrite("second")
    joined.feed()
    query.processAllAvailable()
    assert joined.met() == {"first": 36, None: 4}
    query.stop()
    query = joined.writer().start()  # a restart alone changes nothing
    joined.feed()
    query.processAllAvailable()
    assert joined.met() == {"first": 54, None: 6}
    (number,) = query.refresh().values()
    assert number == 2
    joined.feed()
    query.processAllAvailable()
    assert joined.met() == {"first": 54, "second": 18, None: 8}
    query.explain()
    assert "version 2: 9 rows" in capsys.readouterr().out
    query.stop()
    with pytest.raises(InvalidArgument, match="refreshStatic"):
        query.refresh()
    joined.rewrite("third")
    query = joined.writer(refreshStatic=True).start()
    joined.feed()
    query.processAllAvailable()
    assert joined.met() == {"first": 54, "second": 18, "third": 18, None: 10}


def test_a_side_that_is_too_large_leaves_nothing(joined: Joined, tmp_path: Path) -> None:
    joined.rewrite("large")
    with pytest.raises(StaticSideTooLarge, match="staticBytesMax"):
        joined.writer(staticBytesMax=20).start()
    assert stored_query(joined.log, "joined") is None


def test_a_query_without_static_rows_has_nothing_to_refresh(joined: Joined) -> None:
    rows = joined.spark.readStream.format("penstock").option("stream", "numbers").load()
    query = penstock.writeStream(rows).queryName("plain").toStream("plain_rows").start()
    with pytest.raises(InvalidArgument, match="nothing to refresh"):
        query.refresh()


@pytest.mark.slow
def test_slots_that_are_killed_go_on_with_the_version_of_their_markers(joined: Joined) -> None:
    joined.rewrite("first")
    query = joined.writer().start()
    joined.feed()
    query.processAllAvailable()
    joined.rewrite("second")
    for _ in range(3):
        _kill_slots(query)
        joined.feed()
        wait_for("all rows after a kill", joined.has_all)
    assert set(joined.met()) == {"first", None}
    query.refresh()
    _kill_slots(query)
    joined.feed()
    wait_for("all rows after the refresh", joined.has_all)
    assert joined.met() == {"first": 72, "second": 18, None: 10}
