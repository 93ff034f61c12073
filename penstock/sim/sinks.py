"""A sink outside the log of a run, and how it is fed: by the real runner, in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import apsw
import pyarrow as pa

from penstock.api.sink_runner import SinkRunner
from penstock.connectors.contract import BatchRows, Sink
from penstock.connectors.sqlite_sink import RowChanges, SqliteSink
from penstock.errors import SinkError, StreamError
from penstock.log.contract import Log
from penstock.operators.specs import WEIGHT_COLUMN
from penstock.runtime.host import PASSING
from penstock.runtime.streams import describe_stream
from penstock.sim.actor import Actor
from penstock.sim.oracle import plain_value
from penstock.sim.schedule import Schedule

Rows = tuple[tuple[Any, ...], ...]
UPSERTS_TABLE, UPSERTS_KEY = "result", ("k",)


@dataclass
class Outside:
    """What is outside the log, and outlives whoever feeds it."""

    keeps_record: bool  # of the epochs it has, as files that are named by them do
    replaces: bool  # each batch is the whole result
    delivered: list[tuple[int, Rows]] = field(default_factory=list)
    fails: bool = False
    folder: TemporaryDirectory[str] | None = None  # of a database that holds the rows

    @property
    def database(self) -> str:
        assert self.folder is not None
        return f"{self.folder.name}/rows.db"

    def stored_rows(self) -> Rows:
        """What the database has."""
        connection = apsw.Connection(self.database)
        rows = connection.execute(f"SELECT * FROM {UPSERTS_TABLE}").fetchall()
        connection.close()
        return tuple(rows)

    def last_epoch(self) -> int | None:
        return max((epoch for epoch, _ in self.delivered), default=None)


def plain_rows(rows: pa.Table) -> Rows:
    lines = rows.to_pylist()
    return tuple(tuple(plain_value(value) for value in line.values()) for line in lines)


class Hand(Sink):
    """Hands batches over for one driver, who may die or be held up before and after."""

    bytes_max: ClassVar[int] = 2_000
    ahead = 2

    def __init__(self, outside: Outside, driver: Actor, schedule: Schedule) -> None:
        self._outside = outside
        self._driver = driver
        self._schedule = schedule

    def publish(self, epoch: int, staged: pa.Table) -> None:
        self._driver.at("deliver")
        if self._outside.fails and self._schedule.rng.random() < 0.3:
            self._schedule.faults["sink fails"] += 1
            raise SinkError("simulated")
        if self._outside.keeps_record and any(e == epoch for e, _ in self._outside.delivered):
            self._schedule.sometimes["sink has an epoch already"] += 1
            return
        self._outside.delivered.append((epoch, plain_rows(staged)))
        self._driver.at("delivered")

    def last_epoch(self) -> int | None:
        return self._outside.last_epoch() if self._outside.keeps_record else None


@dataclass(frozen=True)
class _Staged:
    """Rows as they are, and as the table takes them."""

    rows: pa.Table
    values: RowChanges

    @property
    def num_rows(self) -> int:
        return int(self.rows.num_rows)


class Upserts(Sink):
    """The real sink that keeps the current rows in SQLite, where its driver may die in between."""

    bytes_max: ClassVar[int] = 2_000
    ahead = 2

    def __init__(
        self, outside: Outside, driver: Actor, schedule: Schedule, query: str, schema: pa.Schema
    ) -> None:
        self._outside = outside
        self._driver = driver
        self._schedule = schedule
        self._sink = SqliteSink(
            outside.database, UPSERTS_TABLE, query, query, schema,
            key=UPSERTS_KEY, weight=WEIGHT_COLUMN, busy_s=0,
        )  # fmt: skip
        vars(self._sink)["_apply"] = self._watched(self._sink._apply)

    def _watched(self, apply: Callable[[RowChanges], None]) -> Callable[[RowChanges], None]:
        """Between the rows and the end of their transaction it may fail, or somebody may die."""

        def watched(staged: RowChanges) -> None:
            apply(staged)
            self._driver.at("rows written")
            if self._outside.fails and self._schedule.rng.random() < 0.3:
                self._schedule.faults["sink fails"] += 1
                raise SinkError("simulated")

        return watched

    def stage(self, epoch: int, rows: BatchRows) -> _Staged:
        return _Staged(rows.table(), self._sink.stage(epoch, rows))

    def publish(self, epoch: int, staged: _Staged) -> None:
        self._driver.at("deliver")
        before = self._sink.last_epoch() or 0
        self._sink.publish(epoch, staged.values)
        if epoch > before and staged.num_rows:
            self._outside.delivered.append((epoch, plain_rows(staged.rows)))
        self._driver.at("delivered")

    def last_epoch(self) -> int | None:
        return self._sink.last_epoch()

    def close(self) -> None:
        self._sink.close()


class Feeder:
    """Feeds a sink for one driver; the world is its thread."""

    def __init__(
        self,
        log: Log,
        query: str,
        stream: str,
        outside: Outside,
        hand: Sink,
        schedule: Schedule,
        run: int,
    ) -> None:
        facts = describe_stream(log, stream)
        self._runner = SinkRunner(
            log, query, facts.tags, facts.schema, hand,
            run=run, replaces=outside.replaces, clock=schedule.clock,
        )  # fmt: skip
        self._has_begun = False
        self.is_over = False
        self.error: StreamError | None = None

    def turn(self) -> None:
        """One turn of the sink's thread; its errors are kept for the driver."""
        try:
            if not self._has_begun:
                self._has_begun = True
                self._runner.begin()
            elif self._runner.turn() is None:
                self.is_over = True
        except PASSING as error:
            self._begin_again(error)
        except StreamError as error:
            self.error, self.is_over = error, True

    def _begin_again(self, error: StreamError) -> None:
        """What the sink's thread does after an error that passes; the pause is the world's."""
        try:
            self._runner.pause_after_s(error)
            self._has_begun = False
        except StreamError as too_often:
            self.error, self.is_over = too_often, True

    def stop(self) -> None:
        self._runner.stop()
