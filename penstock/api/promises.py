"""What holds on the way from a query's output stream to its sink, said without loading Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.kernels.support import numba_supported
from penstock.log.local import LocalLog
from penstock.plan.explain import explain
from penstock.runtime.static_sides import describe_sides
from penstock.stages.program import Program

_FILE = "exactly once: a row is in one file, which appears whole or not at all"
_FILES = f"{_FILE}; the files of a batch appear one after the other"
# By the kind of a sink, which is the first word of its text.
PROMISES = {
    "parquet": _FILE,
    **dict.fromkeys(("csv", "json", "text", "orc"), _FILES),
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
    "spark": (
        "fed by Structured Streaming from the query's output stream, where every row is exactly "
        "once: from there on with the sink's own guarantee. After a crash the newest batch comes "
        "again, with the same number and the same rows"
    ),
    "foreachBatch": (
        "at least once, with a stable number: after a crash the newest batch may come again, with "
        "the same number and the same rows; a function that skips batches it has seen is exactly "
        "once"
    ),
}


_FED = (
    "brought into stream {stream} by Structured Streaming: exactly once, as far as the source "
    "gives the same rows again for the same offsets, which Structured Streaming asks of all"
)


def explain_with_ends(
    program: Program, log: LocalLog, sinks: Iterable[str | None], fed: Mapping[str, str]
) -> str:
    """Stages, state, what is kept and what is promised; `sinks` are their texts, as stored.

    `fed` are the sources that Spark reads for the query, by the streams that it brings them into.
    """
    text = explain(
        program,
        lambda expression, _schema: "numba" if numba_supported(expression) else "arrow",
        log.durability,
        describe_sides(log, program),
    )
    for stream, source in fed.items():
        text += f"\nSource {source}\n  {_FED.format(stream=stream)}\n"
    for sink in sinks:
        promise = _promise(sink)
        text += "" if promise is None else f"\nSink {sink}\n  {promise}\n"
    return text


def _promise(sink: str | None) -> str | None:
    """What is said of a sink by its text, in which partitions are the folders of a path."""
    if sink is None:
        return None
    kind, _, place = sink.partition(" ")
    return _FILES if kind == "parquet" and place.endswith("=") else PROMISES.get(kind)
