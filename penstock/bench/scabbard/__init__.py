"""The benchmark of windows: eleven queries over six streams, judged by an oracle, in three ways,
beside other engines; and what the paper measures of its parts, each by itself.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from penstock.bench import arguments
from penstock.bench.report import QueriesReport, machine_facts, say
from penstock.bench.scabbard import (
    checkpointing,
    compared,
    persistence,
    phases,
    reduction,
    restart,
    scaling,
)
from penstock.bench.scabbard.flink import HOW_TO_GET, check_flink
from penstock.bench.scabbard.queries import QUERIES
from penstock.bench.scabbard.setting import Setting

TITLE = "queries of windows over replayed samples, judged by an oracle, in three ways and beside"
AGAINST = ("spark", "loop", "flink")
AGAINST_DEFAULT = ("spark", "loop")


class Part(NamedTuple):
    """One measurement: figures by name, and the goals that they reach."""

    meaning: str
    measure: Callable[[Setting], dict[str, Any]]
    goals: Callable[[Mapping[str, Any]], Iterator[tuple[str, bool]]]


PARTS: Mapping[str, Part] = MappingProxyType(
    {
        "queries": Part("every query beside other engines", compared.measure, compared.goals),
        "reduction": Part("less data (Fig. 11)", reduction.measure, reduction.goals),
        "persistence": Part("persisting alone (Fig. 8)", persistence.measure, persistence.goals),
        "phases": Part("codecs follow the data (Fig. 12)", phases.measure, phases.goals),
        "checkpoints": Part("checkpoints (Table 4)", checkpointing.measure, checkpointing.goals),
        "scaling": Part("one slot and two", scaling.measure, scaling.goals),
        # Last: it has the machine for itself, without the session of the others.
        "restart": Part("all processes killed (Fig. 10)", restart.measure, restart.goals),
    }
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--measure",
        type=_parts,
        default=["queries"],
        metavar="PARTS",
        help="comma separated, or all: "
        + "; ".join(f"{name}: {part.meaning}" for name, part in PARTS.items())
        + " (default queries)",
    )
    parser.add_argument(
        "--queries",
        type=_queries,
        default=[],
        help=f"names, comma separated (default: those that a part shows, of {', '.join(QUERIES)})",
    )
    parser.add_argument(
        "--seconds",
        type=arguments.seconds,
        default=3.0,
        metavar="S",
        help="measured time of each way of a query (default 3)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the samples (default 1)")
    parser.add_argument(
        "--verify",
        action="store_true",
        help=f"compare {compared.CHECKED_CYCLES} cycles with the oracle, replayed and persisted",
    )
    parser.add_argument(
        "--repeats", type=arguments.whole, default=1, help="turns, medians are told (default 1)"
    )
    parser.add_argument(
        "--against",
        type=_against,
        default=list(AGAINST_DEFAULT),
        metavar="WHAT",
        help=f"what to compare with, comma separated, of {', '.join(AGAINST)} (default "
        f"{','.join(AGAINST_DEFAULT)}), or none",
    )
    parser.add_argument(
        "--flink-python",
        type=Path,
        metavar="PATH",
        help=f"the python of an environment with Flink, for --against flink. {HOW_TO_GET}",
    )
    parser.add_argument(
        "--codec", default="adaptive", help="of what is stored (default adaptive, by column)"
    )
    parser.add_argument(
        "--interval",
        type=arguments.seconds,
        default=phases.INTERVAL_S,
        metavar="S",
        help="of phases: between two decisions on codecs (default 4)",
    )
    parser.add_argument(
        "--dir", type=Path, default=Path(), help="a folder on the disk to use (default .)"
    )


def _parts(text: str) -> list[str]:
    return list(PARTS) if text == "all" else _known(text, PARTS)


def _queries(text: str) -> list[str]:
    return _known(text, QUERIES)


def _against(text: str) -> list[str]:
    return [] if text == "none" else _known(text, AGAINST)


def _known(text: str, known: Mapping[str, Any] | tuple[str, ...]) -> list[str]:
    names = text.lower().split(",")
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"there is no {name!r}; known: {', '.join(known)}")
    return names


@dataclass
class ScabbardReport(QueriesReport):
    """Figures of queries, and of the other parts by their names."""

    parts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def as_json(self) -> str:
        told = {"queries": self.queries} if self.queries else {}
        return json.dumps({**told, **self.parts, "reach": self.reach, **self.facts})

    def as_table(self) -> str:
        tables = [super().as_table()] if self.queries else []
        for name, found in self.parts.items():
            flat = {query: _plain(figures) for query, figures in found.items()}
            tables.append(QueriesReport(f"{name}: {PARTS[name].meaning}", {}, flat).as_table())
        return "\n\n".join(tables)


def _plain(figures: Any) -> dict[str, Any]:
    """Figures without what only a plot can show, one level deep."""
    told: dict[str, Any] = {}
    for key, value in figures.items() if isinstance(figures, Mapping) else ():
        if isinstance(value, Mapping):
            told |= {f"{key} {name}": each for name, each in _plain(value).items()}
        elif isinstance(value, bool | int | float):
            told[key] = value
    return told


def measure(args: argparse.Namespace) -> ScabbardReport:
    """Run the parts that were asked for, and report."""
    if "flink" in args.against and "queries" in args.measure:
        check_flink(args.flink_python)
    report = ScabbardReport(TITLE, machine_facts())
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=args.dir) as name,
        closing(Setting(args, Path(name).absolute())) as setting,
    ):
        for part in sorted(args.measure, key=list(PARTS).index):
            say(f"{part}: {PARTS[part].meaning}")
            if part == "restart":
                setting.close()
            found = PARTS[part].measure(setting)
            if part == "queries":
                report.queries = found
            else:
                report.parts[part] = found
            report.reach |= PARTS[part].goals(found)
    report.facts |= {"seconds": args.seconds, "seed": args.seed, "repeats": args.repeats}
    return report
