"""What each query must answer, from the rows alone: sums of each second, in whole numbers.

Nothing here looks at a query's DataFrame or at the order of rows. Fractions of two are exact: a
float is a whole number of `GRAIN`ths, so sums, averages and comparisons of them have no error.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

SECOND_US = 1_000_000
GRAIN = 1 << 34
TOLERANCE = 1e-9  # of what is added up in doubles, beside the exact value
_SUM_MAX = 1 << 62

Key = tuple[int, ...]  # the start of a window in seconds, then the group
Answer = dict[Key, tuple[Any, ...]]


@dataclass(frozen=True)
class Rows:
    """All rows of a run."""

    times_us: NDArray[np.int64]
    columns: Mapping[str, NDArray[Any]]
    campaigns: NDArray[np.int64]  # of each ad

    def where(self, chosen: NDArray[np.bool_]) -> Rows:
        columns = {name: values[chosen] for name, values in self.columns.items()}
        return Rows(self.times_us[chosen], columns, self.campaigns)


def expand(
    times_us: NDArray[np.int64],
    columns: Mapping[str, NDArray[Any]],
    period_us: int,
    rows: int,
    campaigns: NDArray[np.int64],
) -> Rows:
    """The first rows of a sample in cycles."""
    cycle, row = np.divmod(np.arange(rows), times_us.size)
    every = {name: values[row] for name, values in columns.items()}
    return Rows(times_us[row] + cycle * period_us, every, campaigns)


def _exact(values: NDArray[Any]) -> NDArray[np.int64]:
    """Values as whole numbers of GRAINths, or as they are."""
    if values.dtype.kind != "f":
        return values.astype(np.int64)
    grains = values.astype(np.float64) * GRAIN
    assert np.all(grains == np.rint(grains)), "a value is no fraction of two"
    return grains.astype(np.int64)


@dataclass(frozen=True)
class _Sums:
    """Of one group: its windows' starts, and in each the number of rows and sums."""

    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    sums: tuple[NDArray[np.int64], ...]


def _windows(
    rows: Rows, size_s: int, slide_s: int, by: Iterable[NDArray[Any]], *summed: NDArray[Any]
) -> Iterator[tuple[Key, _Sums]]:
    """Each group, with the windows in which it has rows."""
    pane = rows.times_us // (slide_s * SECOND_US)
    keys = [each.astype(np.int64) for each in by]
    exact = [_exact(each) for each in summed]
    assert all(float(np.abs(each).sum(dtype=np.float64)) < _SUM_MAX for each in exact)
    order = np.lexsort([pane, *reversed(keys)])
    stacked = np.stack([*keys, pane])[:, order]
    is_new = np.ones(order.size, bool)
    is_new[1:] = np.any(stacked[:-1, 1:] != stacked[:-1, :-1], axis=0) if keys else False
    begins = np.flatnonzero(is_new) if order.size else np.empty(0, np.int64)
    panes = size_s // slide_s
    for begin, end in zip(begins, [*begins[1:], order.size], strict=True):
        of_group, of_rows = stacked[-1, begin:end], order[begin:end]
        low = int(of_group[0]) - panes + 1
        length = int(of_group[-1]) - low + 1
        counts = _sliding(of_group - low, None, length, panes)
        sums = tuple(_sliding(of_group - low, each[of_rows], length, panes) for each in exact)
        has_rows = counts > 0
        starts = (low + np.flatnonzero(has_rows)) * slide_s
        key = tuple(int(each[begin]) for each in stacked[:-1])
        yield key, _Sums(starts, counts[has_rows], tuple(each[has_rows] for each in sums))


def _sliding(
    place: NDArray[np.int64], values: NDArray[np.int64] | None, length: int, panes: int
) -> NDArray[np.int64]:
    """The sum over `panes` places from each one on."""
    dense = np.zeros(length + panes, np.int64)
    np.add.at(dense, place, 1 if values is None else values)
    before = np.concatenate([[0], np.cumsum(dense)])
    found: NDArray[np.int64] = before[panes : panes + length] - before[:length]
    return found


def _ratio(total: int, count: int, values: NDArray[Any]) -> Fraction:
    return Fraction(int(total), int(count) * (GRAIN if values.dtype.kind == "f" else 1))


def _averages(rows: Rows, size_s: int, names: tuple[str, ...], by: tuple[str, ...] = ()) -> Answer:
    """The averages of some columns by others, every second."""
    values = [rows.columns[name] for name in names]
    groups = _windows(rows, size_s, 1, [rows.columns[name] for name in by], *values)
    return {
        (int(start), *key): tuple(
            _ratio(total, found.counts[at], each)
            for total, each in zip((s[at] for s in found.sums), values, strict=True)
        )
        for key, found in groups
        for at, start in enumerate(found.starts)
    }


def _counts(rows: Rows, size_s: int, slide_s: int, by: list[NDArray[Any]]) -> Answer:
    return {
        (int(start), *key): (int(count),)
        for key, found in _windows(rows, size_s, slide_s, by)
        for start, count in zip(found.starts, found.counts, strict=True)
    }


def _cm1(rows: Rows) -> Answer:
    cpu = rows.columns["cpu"]
    return {
        (int(start), *key): (_ratio(total, 1, cpu),)
        for key, found in _windows(rows, 60, 1, [rows.columns["category"]], cpu)
        for start, total in zip(found.starts, found.sums[0], strict=True)
    }


def _cm2(rows: Rows) -> Answer:
    return _averages(rows.where(rows.columns["eventType"] == 3), 60, ("cpu",), ("jobId",))


def _sg1(rows: Rows) -> Answer:
    return _averages(rows, 3_600, ("value",))


def _sg2(rows: Rows) -> Answer:
    return _averages(rows, 128, ("value",), ("plug", "household", "house"))


def _sg3(rows: Rows) -> Answer:
    everywhere = _averages(rows, 128, ("value",))
    return {
        key: (local[0], everywhere[key[:1]][0])
        for key, local in _sg2(rows).items()
        if local[0] > everywhere[key[:1]][0]
    }


def _segments(rows: Rows) -> list[NDArray[Any]]:
    return [
        rows.columns["highway"],
        rows.columns["direction"],
        rows.columns["position"] // 5_280,
    ]


def _lrb1(rows: Rows) -> Answer:
    speed = rows.columns["speed"]
    return {
        (int(start), *key): (_ratio(total, count, speed),)
        for key, found in _windows(rows, 300, 1, _segments(rows), speed)
        for start, count, total in zip(found.starts, found.counts, found.sums[0], strict=True)
        if int(total) < 40 * int(count) * GRAIN
    }


def _lrb2(rows: Rows) -> Answer:
    return _counts(rows, 30, 1, [rows.columns["vehicle"], *_segments(rows)])


def _lrb3(rows: Rows) -> Answer:
    vehicles = Counter((start, *segment) for start, _, *segment in _lrb2(rows))
    return {key: (number,) for key, number in vehicles.items()}


def _ysb(rows: Rows) -> Answer:
    seen = rows.where(rows.columns["event_type"] == 0)
    numbers = seen.columns["ad_id"].view(">u8").reshape(-1, 2)[:, 1].astype(np.int64)
    return _counts(seen, 10, 10, [rows.campaigns[numbers]])


def _nq(rows: Rows) -> Answer:
    counts = _counts(rows, 60, 1, [rows.columns["id"]])
    most: dict[int, int] = defaultdict(int)
    for (start, _), (count,) in counts.items():
        most[start] = max(most[start], count)
    return {key: value for key, value in counts.items() if value[0] == most[key[0]]}


def _sm(rows: Rows) -> Answer:
    return _averages(rows, 60, ("mf01", "mf02", "mf03"))


ANSWERS: Mapping[str, Callable[[Rows], Answer]] = MappingProxyType(
    {
        "cm1": _cm1,
        "cm2": _cm2,
        "sg1": _sg1,
        "sg2": _sg2,
        "sg3": _sg3,
        "lrb1": _lrb1,
        "lrb2": _lrb2,
        "lrb3": _lrb3,
        "ysb": _ysb,
        "nq": _nq,
        "sm": _sm,
    }
)


def difference(name: str, rows: Rows, found: Iterable[tuple[Any, ...]]) -> str | None:
    """Say how an engine's rows (start in seconds, group, values) differ, None if not."""
    return told_apart(ANSWERS[name](rows), found)


def told_apart(expected: Answer, found: Iterable[tuple[Any, ...]]) -> str | None:
    """Say how rows differ from an answer, None if not."""
    seen = list(found)
    width = len(next(iter(expected))) if expected else 0
    by_key = {row[:width]: row[width:] for row in seen}
    if len(by_key) < len(seen):
        twice = next(
            key for key, count in Counter(row[:width] for row in seen).items() if count > 1
        )
        return f"{len(seen) - len(by_key):,} rows are there twice, such as {twice}"
    if missing := expected.keys() - by_key.keys():
        return f"{len(missing):,} of {len(expected):,} rows are missing, such as {min(missing)}"
    if surplus := by_key.keys() - expected.keys():
        return f"{len(surplus):,} rows too many, such as {min(surplus)}"
    for key, values in expected.items():
        for exact, value in zip(values, by_key[key], strict=True):
            if abs(float(exact) - value) > TOLERANCE * max(1.0, abs(float(exact))):
                return f"{key}: {by_key[key]} where there should be {tuple(map(float, values))}"
    return None
