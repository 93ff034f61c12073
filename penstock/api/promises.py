"""What holds on the way from a query's output stream to its sink, said without loading Spark."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.kernels.support import numba_supported
from penstock.log.local import LocalLog
from penstock.plan.explain import explain
from penstock.runtime.static_sides import describe_sides
from penstock.stages.program import Program

_FILES = "exactly once: rows are in one file, which appears whole or not at all"
# By the kind of a sink, which is the first word of its text.
PROMISES = {
    **dict.fromkeys(("parquet", "csv", "json", "text", "orc"), _FILES),
    "sqlite": "exactly once: the epoch is stored in the transaction that changes the rows",
    "table": (
        "exactly once for tables of Parquet, ORC, CSV, JSON or text files in a folder of this "
        "machine, whose files are added by name; at least once, with batches that come again "
        "as they were, for every other format, whose tables Spark appends to"
    ),
    "console": "at least once: the newest epoch is printed again after a crash",
    "memory": "exactly once within a run; the view is built anew from the stream at each start",
    "noop": "none is needed: rows are counted and thrown away",
    "foreach": (
        "at least once, with stable partitions: after a crash the newest batch may come again, "
        "with the same number, partitions and rows; an object that skips those it has seen is "
        "exactly once"
    ),
    "foreachBatch": (
        "at least once, with a stable number: after a crash the newest batch may come again, with "
        "the same number and the same rows; a function that skips batches it has seen is exactly "
        "once"
    ),
}


def explain_with_sinks(program: Program, log: LocalLog, sinks: Iterable[str | None]) -> str:
    """Stages, state, what is kept and what is promised; `sinks` are their texts, as stored."""
    text = explain(
        program,
        lambda expression, _schema: "numba" if numba_supported(expression) else "arrow",
        log.durability,
        describe_sides(log, program),
    )
    for sink in sinks:
        promise = PROMISES.get(sink.split(" ", 1)[0]) if sink is not None else None
        text += "" if promise is None else f"\nSink {sink}\n  {promise}\n"
    return text
