"""Slots as Spark tasks: one Spark job per slot, in the user's own session."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from py4j.protocol import Py4JError
from pyspark import InheritableThread, SparkContext
from pyspark.sql import SparkSession

from penstock.catalyst.evaluator import DriverSpark
from penstock.catalyst.python_functions import PythonBundle
from penstock.kernels.background import expect_wishes, wish_for_others
from penstock.kernels.private_folder import private_kernels_folder
from penstock.operators.python_functions import PythonCodes
from penstock.runtime.assembly import ask_for_kernels
from penstock.runtime.slot import SlotOrder, run_slot
from penstock.stages.program import Program

END_S = 5.0  # how long tasks that were told to end are waited for
END_LATE_S = 20.0  # and how long nobody interferes with them, before they are cancelled
POLL_S = 0.1  # between two questions to Spark about tasks that are told to end
PREPARED_MAX = 3  # processes: two slots and a standby; more would only cost memory

logger = logging.getLogger(__name__)

_PREPARED: weakref.WeakSet[SparkContext] = weakref.WeakSet()


class _ThreadLauncher(ABC):
    """Starts slots, each from a thread of its own."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def launch(self, order: SlotOrder, on_end: Callable[[int, str | None], None]) -> None:
        def run() -> None:
            error: str | None = None
            try:
                error = self._run(order)
            except Exception as failure:  # of many kinds; all mean that the slot is over
                logger.debug("slot %d ends", order.slot, exc_info=True)
                error = str(failure)
            on_end(order.slot, error)

        thread: threading.Thread = InheritableThread(
            target=run, name=f"penstock-slot-{order.slot}", daemon=True
        )
        self._threads = [*(each for each in self._threads if each.is_alive()), thread]
        thread.start()

    @abstractmethod
    def _run(self, order: SlotOrder) -> str | None:
        """Run a slot to its end; why it failed, if that is known."""


class SparkLauncher(_ThreadLauncher):
    """Starts each slot as the only task of a Spark job of its own, under two tags.

    One is the query run's, one the slot's. The session is used as it is. Cancelling goes by tag, so
    no other job is touched.
    """

    def __init__(
        self, spark: SparkSession, tag: str, description: str, python: PythonBundle | None = None
    ) -> None:
        super().__init__()
        self._python = python or PythonBundle()
        self._spark = spark
        self._tag = tag
        self._description = description

    def cancel_slot(self, slot: int) -> None:
        self._cancel(self._slot_tag(slot))

    def cancel(self) -> None:
        """Cancel what does not end by itself: Spark warns of each task that is cancelled.

        A task that is only starting finds nobody to connect to, and ends; that may take longer than
        anybody wants to wait.
        """
        if self._have_ended(END_S):
            self._cancel(self._tag)  # those that Spark has not begun with
        else:
            threading.Thread(target=self._end_late, name="penstock-slots-end", daemon=True).start()

    def _end_late(self) -> None:
        self._have_ended(END_LATE_S)
        self._cancel(self._tag)

    def _have_ended(self, patience_s: float) -> bool:
        """Wait until no slot is being run; whether so."""
        deadline_s = time.monotonic() + patience_s
        while self._are_alive(POLL_S) and self._active_tasks():
            if time.monotonic() > deadline_s:
                return False
        return True

    def _are_alive(self, wait_s: float = 0.0) -> bool:
        """Whether a slot has not ended, nor does so for a while.

        That most end at once is heard from their threads: to ask Spark takes calls for each slot.
        """
        end_s = time.monotonic() + wait_s
        for thread in self._threads:
            if thread.is_alive():  # one that could not be started cannot be joined
                thread.join(max(0.0, end_s - time.monotonic()))
        return any(thread.is_alive() for thread in self._threads)

    def ended(self) -> str | None:
        context = self._spark.sparkContext
        if context._jsc is None:
            return "the Spark session was stopped"
        try:
            stopped = bool(context._jsc.sc().isStopped())
        except (Py4JError, OSError):
            return "the Java process of the Spark session is gone"
        return "the Spark session was stopped" if stopped else None

    def _active_tasks(self) -> int:
        """How many slots are being run; those that wait for a task slot are not."""
        if self.ended() is not None or not self._are_alive():
            return 0
        context = self._spark.sparkContext
        try:
            jobs = context._jsc.sc().statusTracker().getJobIdsForTag(self._tag)
            tracker = context.statusTracker()
            infos = [info for job in jobs if (info := tracker.getJobInfo(job)) is not None]
            stages = [tracker.getStageInfo(stage) for info in infos for stage in info.stageIds]
        except (Py4JError, OSError, AttributeError):
            return 0  # the session was stopped meanwhile
        return sum(stage.numActiveTasks for stage in stages if stage is not None)

    def _slot_tag(self, slot: int) -> str:
        return f"{self._tag}-slot-{slot}"

    def _cancel(self, tag: str) -> None:
        if self._are_alive() and self.ended() is None:  # else the user has stopped the session
            self._spark.sparkContext.cancelJobsWithTag(tag)

    def _run(self, order: SlotOrder) -> str | None:
        context = self._spark.sparkContext
        context.addJobTag(self._tag)
        context.addJobTag(self._slot_tag(order.slot))
        context.setLocalProperty("spark.job.description", f"{self._description} {order.slot}")
        error: str | None
        (error,) = context.parallelize([0], 1).mapPartitions(self._task(order)).collect()
        return error

    def _task(self, order: SlotOrder) -> Callable[[Iterable[int]], Iterator[str | None]]:
        registry = self._spark.sparkContext._pickled_broadcast_vars
        broadcasts = [_Sent(each, registry) for each in self._python.variables.values()]
        return slot_task(order, self._python.codes, broadcasts)


class _Sent:
    """A broadcast variable that functions refer to: pickled, it goes along with the task."""

    def __init__(self, jvm_broadcast: Any, registry: Any) -> None:
        self._jbroadcast = jvm_broadcast
        self._registry = registry

    def __reduce__(self) -> tuple[Any, ...]:
        self._registry.add(self)
        return int, (int(self._jbroadcast.id()),)


class DriverLauncher(_ThreadLauncher):
    """Starts the slot of what only the driver can host: a thread here, which Spark computes for."""

    def __init__(self, spark: DriverSpark) -> None:
        super().__init__()
        self._spark = spark

    def cancel_slot(self, slot: int) -> None:
        """A thread cannot be ended: one that is stuck is fenced when it comes back."""

    def cancel(self) -> None:
        """Their connections are closed, so they end by themselves."""
        deadline_s = time.monotonic() + END_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads):
            self._spark.close()

    def ended(self) -> str | None:
        return None

    def _run(self, order: SlotOrder) -> None:
        run_slot(order, self._spark)


def slot_task(
    order: SlotOrder, codes: PythonCodes | None = None, broadcasts: Sequence[Any] = ()
) -> Callable[[Iterable[int]], Iterator[str | None]]:
    """The function that Spark ships: small, because the executor has the package.

    With it goes the code of the query's Python functions, and the variables that they refer to. It
    runs over an RDD: a DataFrame would be planned and compiled by Spark first, to no use.
    """
    facts = asdict(order)
    functions = {digest: asdict(code) for digest, code in (codes or {}).items()}

    def task(rows: Iterable[int]) -> Iterator[str | None]:
        from penstock.errors import StreamError  # noqa: PLC0415 - on the executor
        from penstock.operators.python_functions import PythonCode  # noqa: PLC0415 - likewise
        from penstock.runtime.slot import SlotOrder, run_slot  # noqa: PLC0415 - on the executor

        _ = broadcasts  # they are there while the task is
        for _ in rows:
            pass
        try:
            codes = {digest: PythonCode(**code) for digest, code in functions.items()}
            run_slot(SlotOrder(**facts), codes=codes)
        except StreamError as error:  # told to the job; raised, Spark would print it as a bug
            yield f"[{error.error_class}] {error.message}"
        else:
            yield None

    return task


def prepare_slots(context: SparkContext, kernels: str | None) -> None:
    """Have Spark's Python processes load what slots need, before anybody asks for slots.

    Spark keeps processes for a while after their task, and gives them to the next one. Only on this
    machine: elsewhere nobody knows where slots will be.
    """
    if context in _PREPARED or not has_slots_here(context):
        return
    _PREPARED.add(context)
    count = min(PREPARED_MAX, context.defaultParallelism)

    def task(rows: Iterable[int]) -> Iterable[int]:
        import penstock.runtime.slot  # noqa: F401, PLC0415 - on the executor
        from penstock.kernels.cache import prepare_process  # noqa: PLC0415 - likewise

        prepare_process()
        return rows

    def run() -> None:
        try:
            expect_wishes(kernels or private_kernels_folder())
            context.setLocalProperty("spark.job.description", "penstock: Python for slots")
            context.parallelize(range(count), count).mapPartitions(task).collect()
        except Exception:  # of many kinds; a slot will do without, or say what is missing
            logger.debug("slots could not be prepared", exc_info=True)

    threading.Thread(target=run, name="penstock-prepare", daemon=True).start()


def prepare_kernels(context: SparkContext, kernels: str | None, program: Program) -> None:
    """Have compiled what a program needs while its slots are only starting."""
    if has_slots_here(context):
        with suppress(OSError):  # slots do without, or say what is wrong with the folder
            folder = kernels or private_kernels_folder()
            wish_for_others(folder, lambda missing: ask_for_kernels(program, missing))


def has_slots_here(context: SparkContext) -> bool:
    """Whether slots run on this machine, and find what is compiled here."""
    master = str(context.master)
    return master.startswith("local") and not master.startswith("local-")
