"""From one slot to two: the same query with parallelism 1 and 2, by turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.bench.report import median, rounded, say
from penstock.bench.scabbard.engines import Way
from penstock.bench.scabbard.runs import run_measured, warm
from penstock.bench.scabbard.setting import Setting

QUERIES_SHOWN = ("ysb", "cm1", "sm")
SLOTS = (1, 2)
TIMES_MIN = 1.7


def measure(setting: Setting) -> dict[str, Any]:
    """Rows a second with each number of slots, by query, replayed and persisted."""
    args, found = setting.args, {}
    for query in setting.queries(QUERIES_SHOWN):
        folder = setting.scratch(f"scaling-{query.name}")
        given = setting.given(query, folder)
        figures: dict[str, float] = {}
        for kind, replayable in (("", True), ("persisted_", False)):
            ways = {slots: Way(replayable=replayable, slots=slots) for slots in SLOTS}
            warm(setting.spark, query, given, ways[SLOTS[-1]], folder / f"{kind}warm")
            rates: dict[int, list[float]] = {slots: [] for slots in SLOTS}
            for turn in range(args.repeats):
                for slots, way in ways.items():
                    log = folder / f"{kind}{slots}-{turn}"
                    run = run_measured(setting.spark, query, given, way, log, args.seconds)
                    rates[slots].append(run.rows_per_s)
                    say(f"{query.name}: {kind}{slots} slots {run.rows_per_s:,.0f} rows/s")
            for slots in SLOTS:
                figures[f"{kind}rows_per_s_{slots}"] = rounded(median(rates[slots]))
            one, two = (rates[slots] for slots in SLOTS)
            times = median([b / a for a, b in zip(one, two, strict=True)])
            figures[f"{kind}times"] = rounded(times)
        found[query.name] = figures
    return found


def goals(found: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield whether a query gains enough from the second slot."""
    for query, figures in found.items():
        yield f"{query}_scales_{TIMES_MIN}_times", figures["times"] >= TIMES_MIN
        yield f"{query}_persisted_scales_{TIMES_MIN}_times", figures["persisted_times"] >= TIMES_MIN
