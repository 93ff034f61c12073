"""A gate on a free port, read and committed by hand, for tests of who sends rows to it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from penstock.connectors import producer_wire as wire
from penstock.connectors.producer import Producer
from penstock.connectors.producers import ProducersSource

SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("text", pa.string())])
PATIENCE_S = 30.0


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": numbers, "text": [f"t{n}" for n in numbers]}, schema=SCHEMA)


class Listening:
    """A source on a free port, and what was read of it."""

    def __init__(self, folder: Path, buffer_bytes: int = 64 << 20) -> None:
        self.token_file = folder / "token"
        with socket.create_server((wire.HOST, 0)) as free:
            self.port = free.getsockname()[1]
        self.buffer_bytes = buffer_bytes
        self.numbers: list[int] = []
        self.offset: dict[str, int] = {}  # read
        self.committed: dict[str, int] = {}
        self.begin()

    def begin(self) -> None:
        """Go on from what is committed, as an instance does that follows another."""
        self.source = ProducersSource(
            SCHEMA, SCHEMA, self.port, str(self.token_file), self.buffer_bytes
        )
        self.offset = dict(self.committed)
        self.numbers_committed = len(self.numbers)
        self.read()

    def read(self, rows_max: int = 1_000) -> int:
        answer = self.source.read(self.offset, rows_max)
        self.offset = answer.next_offset
        if answer.batch is not None:
            self.numbers += answer.batch.column("n").to_pylist()
        return answer.rows

    def commit(self) -> None:
        self.committed = dict(self.offset)
        self.numbers_committed = len(self.numbers)
        self.source.committed(self.committed)

    def crash(self) -> None:
        self.source.close()
        del self.numbers[self.numbers_committed :]
        self.begin()

    def until(self, is_so: Callable[[], bool], *, commit: bool = False) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < until_s
            self.read()
            if commit:
                self.commit()
            time.sleep(0.001)

    def producer(self, name: str = "till", **options: float) -> Producer:
        """Made beside this thread's reading, which a waiting producer needs."""
        made: list[Producer | Exception] = []

        def make() -> None:
            try:
                made.append(
                    Producer(name, self.port, token_file=self.token_file, **options)  # type: ignore[arg-type]
                )
            except Exception as error:
                made.append(error)

        threading.Thread(target=make).start()
        self.until(lambda: bool(made))
        if isinstance(made[0], Exception):
            raise made[0]
        return made[0]
