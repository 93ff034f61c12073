"""What checkpoints cost (Table 4): no rows are persisted, and one is begun about every second.

The overhead is against the same query that begins none within its run. Turns alternate, so that
what else the machine does falls on both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.bench.report import median, rounded, say
from penstock.bench.scabbard.engines import Way
from penstock.bench.scabbard.runs import run_measured, warm
from penstock.bench.scabbard.setting import Setting

NEVER = 1 << 30  # commits; what remains is one after ten seconds, so runs are shorter
SECONDS_MAX = 6.0
WAYS = {"with": Way(), "without": Way(checkpoint_commits=NEVER)}


def measure(setting: Setting) -> dict[str, Any]:
    """State, time and overhead, by query."""
    args, found = setting.args, {}
    seconds = min(args.seconds, SECONDS_MAX)
    for query in setting.queries():
        folder = setting.scratch(f"checkpoints-{query.name}")
        given = setting.given(query, folder)
        warm(setting.spark, query, given, WAYS["with"], folder / "warm")
        runs: dict[str, list[Any]] = {name: [] for name in WAYS}
        for turn in range(args.repeats):
            for name, way in WAYS.items():
                log = folder / f"{name}-{turn}"
                runs[name].append(run_measured(setting.spark, query, given, way, log, seconds))
                say(f"{query.name}: {name} checkpoints {runs[name][-1].rows_per_s:,.0f} rows/s")
        found[query.name] = figures(runs)
    return found


def figures(runs: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Of runs with and without checkpoints, by turns."""
    told: dict[str, Any] = {
        "rows_per_s": rounded(median([run.rows_per_s for run in runs["with"]])),
        "without_rows_per_s": rounded(median([run.rows_per_s for run in runs["without"]])),
    }
    pairs = zip(runs["with"], runs["without"], strict=True)
    told["overhead"] = rounded(1 - median([a.rows_per_s / b.rows_per_s for a, b in pairs]))
    for key in ("checkpoint_mb", "checkpoint_ms"):
        if known := [value for run in runs["with"] if (value := getattr(run, key)) is not None]:
            told[key] = rounded(median(known))
    return told


def goals(found: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """There is none: what fault tolerance costs in all is a goal of the queries."""
    del found
    return iter(())
