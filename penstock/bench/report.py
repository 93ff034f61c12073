"""What a benchmark hands back: figures under stable keys, what each means, and goals reached."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


def machine_facts() -> dict[str, object]:
    """On what a benchmark runs, and what else was going on there when it began."""
    return {"cores": os.cpu_count(), "load_before": round(os.getloadavg()[0], 2)}


def say(text: str) -> None:
    """Tell how far a benchmark is, beside its results."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number and what it says; `samples` is how many readings stand behind it."""

    value: float
    meaning: str
    samples: int


@dataclass(slots=True)
class Report:
    """The figures of one run in the order they are shown, and which goals they reach."""

    title: str
    figures: dict[str, Figure] = field(default_factory=dict)
    reach: dict[str, bool] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)

    def add(self, key: str, value: float, meaning: str, samples: int) -> None:
        self.figures[key] = Figure(rounded(value), meaning, samples)

    def value(self, key: str) -> float:
        return self.figures[key].value

    def as_json(self) -> str:
        """Return the report as one line."""
        content: dict[str, object] = {key: figure.value for key, figure in self.figures.items()}
        content["samples"] = {key: figure.samples for key, figure in self.figures.items()}
        content["reach"] = self.reach
        return json.dumps(content | self.facts)

    def as_table(self) -> str:
        """Return the report for people."""
        lines = [self.title, ""]
        wide = max(len(key) for key in self.figures)
        for key, figure in self.figures.items():
            count = f"({figure.samples:,} samples)"
            lines.append(f"  {key:<{wide}}  {figure.value:>12,.10g}  {figure.meaning} {count}")
        return "\n".join([*lines, "", *_reached(self.reach)])


@dataclass
class QueriesReport:
    """Figures by query, and which goals they reach."""

    title: str
    facts: dict[str, object]
    queries: dict[str, dict[str, Any]] = field(default_factory=dict)
    reach: dict[str, bool] = field(default_factory=dict)

    def judge(self, goals: Callable[[str, Mapping[str, Any]], Iterator[tuple[str, bool]]]) -> None:
        """Set the goals that this run can speak about."""
        for name, figures in self.queries.items():
            for goal, reached in goals(name, figures):
                self.reach[f"{name}_{goal}"] = reached

    def as_json(self) -> str:
        """Return the report as one line."""
        return json.dumps({"queries": self.queries, "reach": self.reach, **self.facts})

    def as_table(self) -> str:
        """Return the report for people: a line per figure, a column per query."""
        keys = list(dict.fromkeys(key for figures in self.queries.values() for key in figures))
        wide = max(len(key) for key in keys)
        lines = [self.title, "", " " * wide + "".join(f"{name:>14}" for name in self.queries)]
        for key in keys:
            if key not in ("differences", "profile"):
                cells = (_cell(figures.get(key)) for figures in self.queries.values())
                lines.append(f"{key:<{wide}}" + "".join(f"{cell:>14}" for cell in cells))
        return "\n".join([*lines, "", *_reached(self.reach)])


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:,.4g}" if value < 10 else f"{value:,.0f}"


def _reached(reach: Mapping[str, bool]) -> list[str]:
    return [f"  {'reached' if reached else 'MISSED '}  {goal}" for goal, reached in reach.items()]


def rounded(value: float) -> float:
    """A figure as it is told."""
    return round(value, 4 if value < 10 else 1)


def quantile(samples: Sequence[float], share: float) -> float:
    """Return the sample below which `share` of them lie, by the nearest rank."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(samples: Sequence[float]) -> float:
    return float(statistics.median(samples))


def merge(rounds: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    """Put the samples of several rounds together, key by key."""
    merged: dict[str, list[float]] = {}
    for one in rounds:
        for key, samples in one.items():
            merged.setdefault(key, []).extend(samples)
    return merged
