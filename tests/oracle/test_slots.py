"""The same through Spark's own tasks: attached session, compiled loops, log on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.api.session import Attached, attach
from penstock.api.writer import writeStream
from penstock.expressions.types import schema_from_arrow
from penstock.runtime.streams import StreamReader, StreamWriter, create_stream
from tests.oracle.events import event_rows
from tests.oracle.queries import MARK, queries
from tests.oracle.verdict import as_mode, differences, plain, static_frame
from tests.spark_session import shared_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PIECES = 6
END_S = 120


@pytest.fixture(scope="module")
def rows() -> pa.RecordBatch:
    return event_rows(7)


@pytest.fixture(scope="module")
def attached(tmp_path_factory: pytest.TempPathFactory, rows: pa.RecordBatch) -> Iterator[Attached]:
    """A session of its own, over a log with one stream that has ended."""
    session = shared_session().newSession()
    found = attach(session, tmp_path_factory.mktemp("oracle") / "log", durability="process")
    create_stream(found.log, "events", schema_from_arrow(rows.schema))
    writer = StreamWriter(found.log, "events", "writer")
    size = rows.num_rows // PIECES
    for number in range(PIECES):
        writer.write(rows.slice(number * size, size))
    writer.write(None, ended=True)
    yield found
    found.log.close()


def test_a_session_is_attached_while_another_one_is_active(
    attached: Attached, tmp_path: Path
) -> None:
    """Spark looks for the names of data sources among those of the active session."""
    attached.spark.range(1).count()
    other = attached.spark.newSession()
    assert attach(other, tmp_path / "log", durability="process").path != attached.path


# One of each mode, over one and over two slots. Late rows depend on what is committed together
# where there is an exchange: with one slot every delivery is judged by itself.
@pytest.mark.parametrize(
    ("name", "slots"),
    [
        ("computed keys and results", 2),
        pytest.param("sliding", 1, marks=pytest.mark.slow),
        pytest.param("tumbling, complete", 2, marks=pytest.mark.slow),
    ],
)
def test_slots_give_what_spark_gives(
    attached: Attached, rows: pa.RecordBatch, name: str, slots: int
) -> None:
    judged = queries()[name]
    query = f"judged_{name[:7].strip(',')}"
    frame = attached.spark.readStream.format("penstock").option("stream", "events").load()
    started = (
        writeStream(judged.define(frame))
        .outputMode(judged.mode)
        .queryName(query)
        .options(parallelism=slots, slots=slots, standbySlots=0)
        .option("stepRowsMax", rows.num_rows // PIECES)  # a step takes one write, and judges it
        .toStream(query)
        .start()
    )
    try:
        assert started.awaitTermination(END_S)
        assert started.exception() is None
    finally:
        started.stop()
    theirs = plain(judged.define(_standing(attached, rows, name)).toArrow())
    found = plain(StreamReader(attached.log, query).read_all())
    assert not differences(as_mode(found, judged.mode, judged.keys, len(theirs)), theirs)


def _standing(attached: Attached, rows: pa.RecordBatch, name: str) -> DataFrame:
    table = pa.Table.from_batches([rows])
    lateness = queries()[name].lateness
    if lateness is not None:
        size = rows.num_rows // PIECES
        rounds = [[rows.slice(number * size, size)] for number in range(PIECES)]
        marks = lateness.marks_us(rounds)
        table = table.append_column(MARK, pa.array(marks, pa.int64()))
    return static_frame(attached.spark, table)
