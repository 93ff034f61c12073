"""A source whose rows come once, and the program that keeps and sends them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

import pyarrow as pa

from penstock.connectors.contract import Offset, Source, SourceBatch, check_offset, check_rows_max
from penstock.connectors.producer_intake import Intake, Unit
from penstock.sim.schedule import Schedule

NAME = "sender"
UNIT_ROWS_MAX = 6


class Sender:
    """Keeps rows until it hears that they are committed, and has then no way to send them again.

    It is connected to one who reads, loses the connection now and then, and goes to another one.
    Units are cut in advance: it may send from what it knows itself, whatever it is told.
    """

    def __init__(self, rows: pa.RecordBatch, arrived: Callable[[], int], schedule: Schedule):
        self._rows, self._arrived, self._schedule = rows, arrived, schedule
        ends = [0]
        while ends[-1] < rows.num_rows:
            more = schedule.rng.randint(1, UNIT_ROWS_MAX)
            ends.append(min(rows.num_rows, ends[-1] + more))
        self._ends = ends
        self._known = 0  # up to here it has heard that rows are committed, and has forgotten them
        self._intake: Intake | None = None
        self._next = 0  # the first unit that was not sent over this connection

    def send(self, intake: Intake) -> None:
        """Send some units, to who asks if this is connected to it or turns to it."""
        rng = self._schedule.rng
        is_lost = self._intake is not intake or rng.random() < 0.05
        if is_lost and (rng.random() < 0.5 or not self._connect(intake)):
            return
        while self._next + 1 < len(self._ends) and rng.random() < 0.7:
            first, end = self._ends[self._next : self._next + 2]
            if end > self._arrived():
                return
            self._next += 1
            if intake.accepts(NAME, end):
                intake.put(Unit(NAME, end, self._rows.slice(first, end - first), 1))
            else:
                self._schedule.sometimes["unit sent again and refused"] += 1

    def hear(self, intake: Intake, offset: int) -> None:
        """Acknowledged, if the connection stands."""
        if self._intake is intake and self._schedule.rng.random() < 0.8:
            self._known = max(self._known, offset)

    def _connect(self, intake: Intake) -> bool:
        intake.forget_waiting(NAME)
        self._intake = intake if intake.is_settled(NAME) else None
        if self._intake is None:
            return False
        if self._schedule.rng.random() < 0.5:
            self._known = max(self._known, intake.committed.get(NAME, 0))
        self._next = bisect_right(self._ends, self._known) - 1
        return True


class OnceSource(Source):
    """What a sender has sent; the offset is the number of its rows."""

    replayable = False

    def __init__(self, sender: Sender, rows: int, watermarks: Sequence[int], schema: pa.Schema):
        self.schema = schema
        self._sender, self._total, self._watermarks = sender, rows, watermarks
        self._intake: Intake | None = None

    def initial_offset(self) -> Offset:
        return 0

    def read(self, offset: Offset, rows_max: int) -> SourceBatch:
        first = check_offset(offset, 0, self._total)
        if first >= self._total:
            return SourceBatch(None, first, ended=True)
        if self._intake is None:
            self._intake = Intake({NAME: first} if first else {})
        self._sender.send(self._intake)
        units = self._intake.take(check_rows_max(rows_max))
        if not units:
            return SourceBatch(None, first, idle=True, nothing_yet=not first)
        rows = pa.concat_batches([unit.rows.select(self.schema.names) for unit in units])
        end = units[-1].offset
        bound_us, more = self._watermarks[end], self._intake.has_units
        ended = end >= self._total
        return SourceBatch(rows, end, ended=ended, watermark_us=bound_us, more=more)

    def committed(self, offset: Offset) -> None:
        if self._intake is not None and offset:
            self._intake.commit({NAME: offset})
            self._sender.hear(self._intake, offset)
