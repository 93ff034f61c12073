"""A program of its own that sends the rows of a sample, in cycles, and notes when it hears of them.

It sends as fast as it is taken from it, or so many rows a second: then each unit has a time when it
is due, whether there is room for it or not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.bench.crew import wait_until
from penstock.connectors.producer import Producer
from penstock.connectors.repeating import RepeatingSource, Sample

UNIT_ROWS = 1 << 16
POLL_S = 0.001
PATIENCE_S = 300.0  # a query that is killed may need as long to be back
KEPT_BYTES_MAX = 512 << 20  # where a rate is to be kept up while the other side is away
WINDOW_BYTES = 32 << 20  # of what is not acknowledged, where there is no rate


class Line(Protocol):
    """Where units go: to a query, or to what it is compared with."""

    @property
    def offset(self) -> int | None: ...

    def send(self, rows: pa.RecordBatch, offset: int) -> None: ...

    def flush(self, timeout_s: float | None = None) -> bool: ...


@dataclass(frozen=True)
class Rows:
    """What is sent: the columns of a sample in a file, in units of so many rows."""

    path: str
    period_us: int
    columns: tuple[str, ...] | None = None
    unit_rows: int = UNIT_ROWS
    first: int = 0  # the number of the first one, where others were sent before
    total: int | None = None  # so many, in whole units

    def units(self) -> Iterator[pa.RecordBatch]:
        """Without end, or until they are that many."""
        (batch,) = pq.read_table(self.path).combine_chunks().to_batches()
        source = RepeatingSource(Sample(batch, "ts", self.period_us), None, self.columns)
        offset: Any = self.first
        while self.total is None or offset < self.first + self.total:
            read = source.read(offset, self.unit_rows)
            offset = read.next_offset
            assert read.batch is not None
            yield read.batch


@dataclass(frozen=True)
class Sent:
    """The rows that were sent up to each unit, and when (since 1970): due, and acknowledged."""

    rows: list[int]
    due_s: list[float]
    acknowledged_s: list[float]

    def rows_per_s(self) -> float:
        """From the first unit's send to the last acknowledgement."""
        return self.rows[-1] / (self.acknowledged_s[-1] - self.due_s[0])

    def latencies_ms(self) -> tuple[float, float]:
        """Median and 95th percentile, from a unit's send to the word that it is safe."""
        late_ms = (np.array(self.acknowledged_s) - np.array(self.due_s)) * 1e3
        p50, p95 = np.percentile(late_ms, [50, 95]).tolist()
        return p50, p95


class _Hearing:
    """Watches what is acknowledged."""

    def __init__(self, line: Line) -> None:
        self.heard: dict[int, float] = {}
        self._line = line
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="hearing", daemon=True)

    def __enter__(self) -> _Hearing:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _listen(self) -> None:
        upto = 0
        while True:
            is_over = self._is_over.is_set()  # before the last look
            newest, now_s = self._line.offset or 0, time.time()
            self.heard.update(dict.fromkeys(range(upto + 1, newest + 1), now_s))
            upto = max(upto, newest)
            if is_over:
                return
            time.sleep(POLL_S)


def send(
    line: Line,
    rows: Rows,
    seconds: float,
    rows_per_s: float | None = None,
    end_file: str | None = None,
) -> Sent:
    """Send for some seconds, or until there is a file, and wait until all is acknowledged; `line`
    has taken nothing yet."""
    sent, due_s = [], []
    with _Hearing(line) as hearing:
        units = rows.units()
        first = next(units)  # which reads the sample: that does not count
        begun_s, begun_at_s = time.perf_counter(), time.time()
        for number, unit in enumerate(chain([first], units), 1):
            at_s = time.perf_counter() - begun_s
            if rows_per_s is not None:
                at_s = number * rows.unit_rows / rows_per_s
                wait_until(begun_s + at_s)
            if at_s >= seconds or (end_file is not None and Path(end_file).exists()):
                break
            due_s.append(begun_at_s + at_s)
            line.send(unit, number)
            sent.append(number * rows.unit_rows)
        line.flush()
    return Sent(sent, due_s, [hearing.heard[number] for number in range(1, len(sent) + 1)])


def send_to_query(
    start_s: float,
    name: str,
    port: int,
    token: str,
    rows: Rows,
    seconds: float,
    rows_per_s: float | None = None,
    end_file: str | None = None,
) -> Sent:
    """A worker's task: send to a query that listens, or will."""
    del start_s
    kept = KEPT_BYTES_MAX if rows_per_s else WINDOW_BYTES
    with Producer(
        name, port, token_file=token, kept_bytes_max=kept, patience_s=PATIENCE_S
    ) as producer:
        return send(producer, rows, seconds, rows_per_s, end_file)


def reader_options(port: int, token: Path) -> Mapping[str, Any]:
    """How a query listens to it."""
    return {"port": port, "tokenFile": str(token)}
