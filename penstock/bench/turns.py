"""One run of a query to its end, timed: what benchmarks of both engines count."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.bench.sessions import wait_compiled

TURN_S_MAX = 900


@dataclass(frozen=True)
class Turn:
    """One run of a query: how long from `start()` to its end, and what it wrote."""

    seconds: float
    rows: pa.Table | None = None


def timed_turn(writer: Any) -> Turn:
    """Start a query, of either engine, and wait for its end."""
    start_s = time.perf_counter()
    running = writer.start()
    try:
        is_over = running.awaitTermination(TURN_S_MAX)
    finally:
        running.stop()
    seconds = time.perf_counter() - start_s
    if not is_over:
        raise TimeoutError(f"not through in {TURN_S_MAX} s")
    wait_compiled(None)
    return Turn(seconds)
