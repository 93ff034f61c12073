"""Task slots of a Spark master: how many there are, who takes them, and where slots report.

A query holds its slots for as long as it runs. Whatever else the application does with Spark takes
turns in what is left: the jobs of foreachBatch functions and of the console, and the user's own.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import Any

from penstock.api.registry import queries
from penstock.errors import TooFewSlots

_LOCAL = re.compile(r"local(?:\[\s*(\d+|\*)\s*(?:,\s*(?:\d+|\*)\s*)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")
FOR_JOBS = 1  # task slots that are enough for everything that takes turns

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SlotWish:
    """What a query would like to have."""

    slots: int
    standbys: int
    must_have_standbys: bool  # they were asked for, and not only taken where there is room
    runs_jobs: bool  # its sink does


def grant_standbys(context: Any, wish: SlotWish) -> int:
    """How many standbys a query gets; TooFewSlots where it is plain that something would starve.

    The masters of clusters may still get more executors; there the job waits for a while.
    """
    total = task_slots_of(context.master, context)
    if total is None:
        return wish.standbys
    running = queries()
    free = total - sum(query.job.task_slots for query in running)
    needed = wish.slots + (wish.standbys if wish.must_have_standbys else 0)
    runs_jobs = wish.runs_jobs or any(query.runs_jobs for query in running)
    for_jobs = FOR_JOBS if runs_jobs else 0
    if needed + for_jobs > free:
        names = [query.title for query in running]
        raise _too_few(context.master, wish, needed, total, free, for_jobs, names)
    standbys = (
        wish.standbys if wish.slots + wish.standbys + FOR_JOBS <= free else needed - wish.slots
    )
    if standbys < wish.standbys:
        logger.warning(
            "there is no room for a standby slot in %s: a slot that dies is replaced by a new one, "
            "which takes some seconds longer; use %s to have one",
            context.master,
            _larger(context.master, total - free + wish.slots + wish.standbys + FOR_JOBS),
        )
    if free - wish.slots - standbys < FOR_JOBS:
        logger.warning(
            "this query takes the last task slot of %s: other Spark jobs of the application, such "
            "as count(), wait until a query ends; use %s to have room for them",
            context.master,
            _larger(context.master, total - free + wish.slots + standbys + FOR_JOBS),
        )
    return standbys


def _too_few(
    master: str,
    wish: SlotWish,
    needed: int,
    total: int,
    free: int,
    for_jobs: int,
    running: list[str],
) -> TooFewSlots:
    enough = total - free + needed + FOR_JOBS
    held = f", {total - free} of them held by {', '.join(running)}" if running else ""
    jobs = ""
    if for_jobs:
        jobs = (
            f", and {for_jobs} must be left for the Spark jobs of foreachBatch functions and the "
            "console"
        )
    ways = [f"use {_larger(master, enough)}"]
    if needed > wish.slots and wish.slots + for_jobs <= free:
        ways.append("set standbySlots to 0")
    if wish.slots > 1 and free > for_jobs:
        ways.append(f"set slots to {free - for_jobs} and standbySlots to 0")
    if running:
        ways.append("stop a query")
    return TooFewSlots(
        f"this query takes {needed} task slot{'s' * (needed > 1)} for as long as it runs{jobs}; "
        f"{master} has "
        f"{total}{held}: {', or '.join(ways)}",
        needed=needed + for_jobs,
        available=free,
        enough=enough,
    )


def task_slots_of(master: str, context: Any) -> int | None:
    """How many tasks run at once under a master of this machine; None for every other master."""
    found = _LOCAL.fullmatch(master)
    if found is not None:
        threads = found[1] or "1"
        if threads == "*":
            return int(context._jvm.java.lang.Runtime.getRuntime().availableProcessors())
        return int(threads)
    found = _LOCAL_CLUSTER.fullmatch(master)
    if found is not None:
        per_task = int(context.getConf().get("spark.task.cpus", "1"))
        return int(found[1]) * (int(found[2]) // per_task)
    return None


def control_host(spark: Any) -> str:
    """Where slots find the job: loopback, unless they run on other machines."""
    if spark.sparkContext.master.startswith("local"):
        return "127.0.0.1"
    return str(spark.conf.get("spark.driver.host", "127.0.0.1"))


def _larger(master: str, slots: int) -> str:
    if master.startswith("local-cluster"):
        return f"more executors or cores ({slots} cores together)"
    return f"local[{slots}] or more (threads, not cores)"
