"""Windows and aggregates in plain Python: shares no code with the engine, only its definitions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from operator import xor
from typing import Any

import pytest

Row = dict[str, Any]  # time, key, value (int or None), price (float or None), word


def aggregated(rows: list[Row]) -> tuple[Any, ...]:
    """count(*), count(value), sum(value), avg(value), min(value), max(value), sum(price),
    and what is kept."""
    values = [row["value"] for row in rows if row["value"] is not None]
    prices = [row["price"] for row in rows if row["price"] is not None]
    average = float(Fraction(sum(values)) / len(values)) if values else None
    return (
        len(rows),
        len(values),
        sum(values) if values else None,
        average,
        min(values, default=None),
        max(values, default=None),
        sum(prices) if prices else None,
        *kept(rows),
    )


def kept(rows: list[Row]) -> tuple[Any, ...]:
    """first(value), last(value ignoring nulls), min(word), max(word), min_by(upper(word), word),
    bit_xor(value), var_pop(price), skewness(price)."""
    values = [row["value"] for row in rows if row["value"] is not None]
    prices = [row["price"] for row in rows if row["price"] is not None]
    words = [row["word"] for row in rows if row.get("word") is not None]
    return (
        rows[0]["value"],
        values[-1] if values else None,
        min(words, default=None),
        max(words, default=None),
        min(words).upper() if words else None,
        reduce(xor, values) if values else None,
        _moment(prices, lambda n, m2, _: m2 / n),
        _moment(prices, lambda n, m2, m3: math.sqrt(n) * m3 / m2**1.5 if m2 else None),
        *items(rows),
    )


def items(rows: list[Row]) -> tuple[Any, ...]:
    """count(distinct value), sum(distinct value), collect_list(word), collect_set(value) in order,
    percentile(price, (0.25, 0.5)), percentile_approx(value, 0.5), mode(word)."""
    values = sorted(row["value"] for row in rows if row["value"] is not None)
    prices = sorted(row["price"] for row in rows if row["price"] is not None)
    words = [row["word"] for row in rows if row.get("word") is not None]
    often = Counter(words)
    return (
        len(set(values)),
        sum(set(values)) if values else None,
        words,
        sorted(set(values)),
        [_between(prices, Fraction(1, 4)), _between(prices, Fraction(1, 2))] if prices else None,
        values[max(math.ceil(len(values) / 2) - 1, 0)] if values else None,
        min(often, key=lambda word: (-often[word], word.encode())) if often else None,
    )


def _between(values: list[float], fraction: Fraction) -> float:
    low, rest = divmod((len(values) - 1) * fraction, 1)
    near = Fraction(values[int(low)])
    far = Fraction(values[min(int(low) + 1, len(values) - 1)])
    return float((1 - rest) * near + rest * far)


def _moment(values: list[float], formula: Callable[..., float | None]) -> Any:
    """Of the number of values and their second and third moment, exactly; then rounded."""
    if not values:
        return None
    exact = [Fraction(value) for value in values]
    mean = sum(exact) / len(exact)
    powers = [float(sum((value - mean) ** power for value in exact)) for power in (2, 3)]
    found = formula(len(values), *powers)
    return None if found is None else pytest.approx(found, rel=1e-9, abs=1e-12)


@dataclass
class WindowOracle:
    """Every row is put into every window that covers its time and is still open."""

    size: int
    slide: int
    start: int = 0
    watermark: int | None = None
    late: int = 0
    windows: dict[tuple[int, Any], list[Row]] = field(default_factory=dict)
    changed: set[tuple[int, Any]] = field(default_factory=set)

    def covering(self, time: int) -> list[int]:
        first = (time - self.start) // self.slide * self.slide + self.start
        return [begin for begin in range(first, time - self.size, -self.slide) if begin <= time]

    def take(self, rows: list[Row], watermark: int | None = None) -> None:
        marks = [mark for mark in (watermark, self.watermark) if mark is not None]
        for row in rows:
            if row["time"] is None:
                continue
            covering = self.covering(row["time"])
            open_ = [b for b in covering if not marks or b + self.size > max(marks)]
            self.late += not open_
            for begin in open_:
                self.windows.setdefault((begin, row["key"]), []).append(row)
                self.changed.add((begin, row["key"]))

    def _sorted(self, names: set[tuple[int, Any]]) -> list[tuple[int, Any]]:
        return sorted(names, key=lambda name: (name[0], name[1] is not None, name[1] or ""))

    def close(self, watermark: int) -> list[tuple[Any, ...]]:
        """The windows that the watermark ends: (start, end, key, aggregates…), in order."""
        self.watermark = watermark
        ended = {name for name in self.windows if name[0] + self.size <= watermark}
        result = [
            (name[0], name[0] + self.size, name[1], *aggregated(self.windows[name]))
            for name in self._sorted(ended)
        ]
        for name in ended:
            del self.windows[name]
        return result

    def updates(self) -> list[tuple[Any, ...]]:
        """The windows that are open and changed since the last call."""
        names = self._sorted({name for name in self.changed if name in self.windows})
        self.changed = set()
        return [
            (begin, begin + self.size, key, *aggregated(self.windows[begin, key]))
            for begin, key in names
        ]
