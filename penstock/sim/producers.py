"""Programs outside the queries that publish rows to a stream, and what they do about errors."""

from __future__ import annotations

import random

import pyarrow as pa

from penstock.errors import AlreadyWritten, Fenced, StreamError
from penstock.expressions.types import Schema
from penstock.runtime.streams import StreamWriter, create_stream
from penstock.sim.actor import Actor, Point
from penstock.sim.schedule import Schedule

ROWS_MAX = 6  # of one write


class Producer(Actor):
    """One program that publishes the rows of a feed, from wherever the last one came to.

    After an error it repeats the write, or opens the stream again and asks how far its rows go.
    """

    def __init__(
        self,
        name: str,
        stream: str,
        schema: Schema,
        rows: pa.RecordBatch,
        schedule: Schedule,
        point: Point,
    ) -> None:
        super().__init__(name, point)
        self._stream = stream
        self._schema = schema
        self._rows = rows
        self._schedule = schedule
        self._writer: StreamWriter | None = None
        self._end: int | None = None  # of the rows of a write that failed and is to be repeated
        self.may_end = False

    @property
    def _rng(self) -> random.Random:
        return self._schedule.rng

    def turn(self) -> bool:
        """Open the stream, or write some rows; return whether there is more to do."""
        try:
            if self._writer is None:
                create_stream(self.log, self._stream, self._schema)
                self._writer = StreamWriter(self.log, self._stream, self.name)
                self._end = None
                return True
            return self._write(self._writer)
        except (AlreadyWritten, Fenced) as error:
            self._schedule.sometimes[f"producer told {type(error).__name__}"] += 1
            self._writer = None
            return isinstance(error, AlreadyWritten)  # a fenced one stops: another has its name
        except StreamError:
            if self._writer is None or self._rng.random() < 0.4:
                self._writer = None
            else:
                self._schedule.sometimes["producer repeats a write"] += 1
            return True

    def _write(self, writer: StreamWriter) -> bool:
        first = int(writer.offset or 0)
        total = self._rows.num_rows
        if self._end is None:
            self._end = min(total, first + self._rng.randint(0, ROWS_MAX))
        ends = self._end == total and self.may_end
        writer.write(self._rows.slice(first, self._end - first), offset=self._end, ended=ends)
        self._end = None
        return not ends
