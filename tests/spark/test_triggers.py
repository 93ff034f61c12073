"""availableNow, processAllAvailable and the sinks that live in the session."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.expressions.types import schema_from_arrow
from penstock.log import open_log
from penstock.runtime.streams import StreamReader, StreamWriter, create_stream
from tests.spark.expected import running_counts
from tests.spark.rig import DriverProcess, verify

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

NUMBERS = pa.schema([pa.field("number", pa.int64(), nullable=False)])


@pytest.mark.slow  # test_in_session.py drains small ones
def test_available_now_drains_and_stops(driver: DriverProcess) -> None:
    events, rate = 100_000, 10_000
    driver.start(
        "drained", "windows", events, rate, paced=False, available_now=True, standbySlots=0
    )
    driver.wait_end("drained")
    verify(driver.log, "drained", "windows", events, rate)


@pytest.mark.slow
def test_process_all_available_returns_when_everything_is_committed(driver: DriverProcess) -> None:
    """Two queries in a row: the second reads what the first commits."""
    with open_log(driver.log) as log:
        create_stream(log, "numbers", schema_from_arrow(NUMBERS))
        numbers = StreamWriter(log, "numbers", "test")
        driver.ask("copy", name="even", stream="numbers", standbySlots=0)
        reader = StreamReader(log, "even")
        for turn in range(5):
            values = range(turn * 1000, (turn + 1) * 1000)
            numbers.write(pa.RecordBatch.from_pydict({"number": values}, NUMBERS), offset=turn)
            driver.ask("process_all", name="even")
            assert reader.read_all()["number"].to_pylist() == list(values[::2])
    driver.ask("stop", name="even")


@pytest.mark.slow
@pytest.mark.parametrize("sink", ["memory", "console"])
def test_sinks_of_the_session(driver: DriverProcess, sink: str) -> None:
    events, rate = 20_000, 10_000
    driver.start(f"to_{sink}", "counts", events, rate, paced=False, sink=sink, standbySlots=0)
    driver.wait_end(f"to_{sink}")
    if sink == "memory":
        rows = driver.ask("rows_of_view", name="to_memory")
        counts = {row["auction"]: row["count"] for row in rows}
        assert counts == running_counts(events, rate)
