"""Task slots of a Spark master: how many there are, how many are left, and where slots report."""

from __future__ import annotations

import re
from typing import Any

from penstock.api.session import started_queries
from penstock.errors import TooFewSlots

_LOCAL = re.compile(r"local(?:\[\s*(\d+|\*)\s*(?:,\s*(?:\d+|\*)\s*)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")


def check_task_slots(spark: Any, needed: int) -> None:
    """Raise TooFewSlots where it is plain that a query would wait for ever.

    The masters of clusters may still get more executors; there the job waits for a while.
    """
    context = spark.sparkContext
    total = task_slots_of(context.master, context)
    if total is None:
        return
    running = [query for query in started_queries(context) if query.isActive]
    taken = sum(query.job.task_slots for query in running)
    if total - taken >= needed:
        return
    held = ""
    if taken:
        held = f", {taken} of them held by {', '.join(query.name for query in running)}"
    raise TooFewSlots(
        f"this query takes {needed} task slots for as long as it runs, {context.master} has "
        f"{total}{held}: use {_larger(context.master, needed + taken + 2)}, or set standbySlots "
        "to 0" + (", or stop a query" if taken else ""),
        needed=needed,
        available=total - taken,
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
