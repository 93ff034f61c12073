"""What each kind of sink promises, and the explanation of a query with its sink."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.kernels.support import numba_supported
from penstock.plan.explain import explain
from penstock.stages.program import Program

FOREACH_BATCH = "foreachBatch"
# A query's own output stream is exactly once; this is what holds on the way from there to the sink.
SINK_GUARANTEES: Mapping[str, str] = {
    "parquet": "exactly once: rows are in one file, which appears whole or not at all",
    "console": "at least once: the newest epoch is printed again after a crash",
    "memory": "exactly once within a run; the view is built anew from the stream at each start",
    FOREACH_BATCH: (
        "at least once, with a stable epoch: after a crash the newest epoch may come again, with "
        "the same number and the same rows; a function that skips epochs it has seen is exactly "
        "once"
    ),
}


def explain_with_sink(program: Program, durability: str, sink: str | None) -> str:
    """Stages, state, what is kept and what is promised; `sink` is its kind and where it is."""
    text = explain(
        program,
        lambda expression, _schema: "numba" if numba_supported(expression) else "arrow",
        durability,
    )
    promise = SINK_GUARANTEES.get(sink.split(" ", 1)[0]) if sink is not None else None
    return text if promise is None else f"{text}\nSink {sink}\n  {promise}\n"
