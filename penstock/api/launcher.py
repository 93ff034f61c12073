"""Slots as Spark tasks: one Spark job per slot, in the user's own session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import InheritableThread
from pyspark.sql import SparkSession

from penstock.runtime.slot import SlotOrder

_RESULT_SCHEMA = "slot bigint, steps bigint"


class SparkLauncher:
    """Starts each slot as the only task of a Spark job of its own, under two tags.

    One is the query run's, one the slot's. The session is used as it is. Cancelling goes by tag, so
    no other job is touched.
    """

    def __init__(self, spark: SparkSession, tag: str, description: str) -> None:
        self._spark = spark
        self._tag = tag
        self._description = description

    def launch(self, order: SlotOrder, on_end: Callable[[int, str | None], None]) -> None:
        thread: threading.Thread = InheritableThread(
            target=self._run, args=(order, on_end), name=f"penstock-slot-{order.slot}", daemon=True
        )
        thread.start()

    def cancel_slot(self, slot: int) -> None:
        self._cancel(self._slot_tag(slot))

    def cancel(self) -> None:
        self._cancel(self._tag)

    def ended(self) -> str | None:
        context = self._spark.sparkContext
        if context._jsc is None:
            return "the Spark session was stopped"
        try:
            stopped = bool(context._jsc.sc().isStopped())
        except (Py4JError, OSError):
            return "the Java process of the Spark session is gone"
        return "the Spark session was stopped" if stopped else None

    def _slot_tag(self, slot: int) -> str:
        return f"{self._tag}-slot-{slot}"

    def _cancel(self, tag: str) -> None:
        if self.ended() is None:  # else the user has stopped the session already
            self._spark.sparkContext.cancelJobsWithTag(tag)

    def _run(self, order: SlotOrder, on_end: Callable[[int, str | None], None]) -> None:
        context = self._spark.sparkContext
        error: str | None = None
        try:
            context.addJobTag(self._tag)
            context.addJobTag(self._slot_tag(order.slot))
            context.setLocalProperty("spark.job.description", f"{self._description} {order.slot}")
            rows = self._spark.range(0, 1, 1, 1)
            rows.mapInArrow(slot_task(order), _RESULT_SCHEMA).collect()
        except Exception as failure:  # py4j raises many kinds; all mean that the task is over
            error = str(failure)
        on_end(order.slot, error)


def slot_task(order: SlotOrder) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that Spark ships: small, because the executor has the package."""
    facts = asdict(order)

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        from penstock.runtime.slot import SlotOrder, run_slot  # noqa: PLC0415 - on the executor

        for _ in batches:
            pass
        done = run_slot(SlotOrder(**facts))
        yield pa.RecordBatch.from_pydict({"slot": [facts["slot"]], "steps": [done["steps"]]})

    return task
