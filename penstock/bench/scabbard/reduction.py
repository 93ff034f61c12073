"""What less data is worth (Fig. 11): six configurations, from all bytes of all rows to no disk.

`no_opt` persists rows as their source gives them, uncompressed; `push_up` what the query needs of
them; `compression` whole rows, compressed; `lossless` both; `lossy` floats to two digits, too;
`no_disk` the same in a log that never syncs, so that nobody waits for the disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from penstock.bench.report import median, rounded, say
from penstock.bench.scabbard.engines import Way
from penstock.bench.scabbard.runs import run_measured, warm
from penstock.bench.scabbard.setting import Setting

QUERIES_SHOWN = ("cm1", "cm2", "sg1", "ysb", "nq", "sm")
FLOAT_DIGITS = 2
CONFIGURATIONS: Mapping[str, Way] = MappingProxyType(
    {
        "no_opt": Way(replayable=False, codec="none", pushes_up=False),
        "push_up": Way(replayable=False, codec="none"),
        "compression": Way(replayable=False, pushes_up=False),
        "lossless": Way(replayable=False),
        "lossy": Way(replayable=False, float_digits=FLOAT_DIGITS),
        "no_disk": Way(replayable=False, float_digits=FLOAT_DIGITS, syncs=False),
    }
)
# Who is to be as fast as whom, at least: within what readings of the same differ by.
ORDER = (
    ("no_opt", "push_up"),
    ("no_opt", "compression"),
    ("push_up", "lossless"),
    ("compression", "lossless"),
    ("lossless", "lossy"),
    ("lossy", "no_disk"),
)
NOT_SLOWER = 0.9
TIMES_FEWER_MIN = 7


def measure(setting: Setting) -> dict[str, Any]:
    """Rows and persisted bytes of each configuration, by query, the configurations by turns."""
    args, found = setting.args, {}
    for query in setting.queries(QUERIES_SHOWN):
        folder = setting.scratch(f"reduction-{query.name}")
        given = setting.given(query, folder)
        done: dict[str, list[Any]] = {name: [] for name in CONFIGURATIONS}
        for name in ("no_opt", "lossless"):  # whose loops differ
            warm(setting.spark, query, given, CONFIGURATIONS[name], folder / f"warm-{name}")
        for turn in range(args.repeats):
            for name, way in CONFIGURATIONS.items():
                log = folder / f"{name}-{turn}"
                run = run_measured(setting.spark, query, given, way, log, args.seconds)
                done[name].append(run)
                say(f"{query.name}: {name} {run.rows_per_s:,.0f} rows/s, {run.bytes_per_row} B")
        found[query.name] = {
            name: {
                "rows_per_s": rounded(median([run.rows_per_s for run in runs])),
                "bytes_per_row": rounded(median([run.bytes_per_row for run in runs])),
            }
            for name, runs in done.items()
        }
    return found


def goals(found: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield, by query, whether rows come in the order of the figure, and bytes are that fewer."""
    for query, figures in found.items():
        rates = {name: each["rows_per_s"] for name, each in figures.items()}
        in_order = all(rates[more] >= NOT_SLOWER * rates[less] for less, more in ORDER)
        yield f"{query}_configurations_in_order", in_order
        fewer = figures["no_opt"]["bytes_per_row"] / figures["lossless"]["bytes_per_row"]
        yield f"{query}_{TIMES_FEWER_MIN}_times_fewer_bytes", fewer >= TIMES_FEWER_MIN
