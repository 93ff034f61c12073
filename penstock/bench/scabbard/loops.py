"""Each query as a loop written by hand, which knows its keys and their number: the limit.

Groups are whole numbers, sums of panes lie in a ring, and what a second leaves behind is subtracted
when it ends. Two threads take a row each in turn; nobody merges what they find. Each writes as many
bytes as Penstock persists of such rows, and syncs them as often as that commits.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numba
import numpy as np
from numpy.typing import NDArray

from penstock.bench.scabbard.samples import SECOND_US, Made

THREADS = 2
COMMIT_S = 0.1
_PIECE = 1 << 20  # bytes of a write
_OUT = 1 << 16  # rows of the result that are kept
_ALL, _SLOW, _ABOVE, _MOST, _SEGMENTS = range(5)  # which rows of a window are results
SEGMENT_FEET = 5_280
_DIRECTIONS, _ROAD = 2, 100  # segments of a highway

Columns = tuple[NDArray[Any], ...]
Prepare = Callable[[Made, NDArray[np.int64]], tuple[Columns, int]]  # with the number of groups


@dataclass(frozen=True)
class Loop:
    """What a row is to a query: its group (-1: none) and its value, from columns as prepared."""

    prepare: Prepare
    row: Callable[..., tuple[int, float]]
    panes: int
    shows: int = _ALL
    pane_us: int = SECOND_US


@numba.njit(nogil=True)
def _show(
    shows: int,
    pane: int,
    active: NDArray[np.int32],
    size: int,
    counts: NDArray[np.int64],
    sums: NDArray[np.float64],
    out: NDArray[np.float64],
    written: int,
) -> int:
    """Write the rows of the window that ends; return how many there are by now."""
    whole = 0.0
    rows = most = 0
    for at in range(size):
        group = active[at]
        whole += sums[group]
        rows += counts[group]
        most = max(most, counts[group])
    if shows == _SEGMENTS:
        seen = np.zeros(_DIRECTIONS * _ROAD, np.int64)
        for at in range(size):
            seen[active[at] % seen.size] += 1
        for segment in range(seen.size):
            if seen[segment]:
                place = written % _OUT
                out[place, 0], out[place, 1], out[place, 2] = pane, segment, seen[segment]
                written += 1
        return written
    for at in range(size):
        group = active[at]
        if shows == _SLOW and sums[group] >= 40 * counts[group]:
            continue
        if shows == _ABOVE and sums[group] * rows <= whole * counts[group]:
            continue
        if shows == _MOST and counts[group] != most:
            continue
        place = written % _OUT
        out[place, 0], out[place, 1], out[place, 2] = pane, group, sums[group] / counts[group]
        written += 1
    return written


def _compiled(row: Callable[..., tuple[int, float]]) -> Callable[..., None]:
    part = numba.njit(row, inline="always")

    @numba.njit(nogil=True)
    def run(
        times_us: NDArray[np.int64],
        later_us: int,
        columns: Columns,
        pane_us: int,
        shows: int,
        marks: NDArray[np.int64],  # the pane, active groups, rows written
        active: NDArray[np.int32],
        ring_counts: NDArray[np.int64],
        ring_sums: NDArray[np.float64],
        counts: NDArray[np.int64],
        sums: NDArray[np.float64],
        out: NDArray[np.float64],
    ) -> None:
        pane, size, written = marks[0], marks[1], marks[2]
        panes = ring_counts.shape[0]
        at = pane % panes
        end_us = (pane + 1) * pane_us - later_us
        for index in range(times_us.size):
            while times_us[index] >= end_us:
                written = _show(shows, pane, active, size, counts, sums, out, written)
                pane += 1
                end_us += pane_us
                at = pane % panes
                kept = 0
                for place in range(size):
                    group = active[place]
                    counts[group] -= ring_counts[at, group]
                    sums[group] -= ring_sums[at, group]
                    ring_counts[at, group] = 0
                    ring_sums[at, group] = 0.0
                    if counts[group]:
                        active[kept] = group
                        kept += 1
                size = kept
            group, value = part(columns, index)
            if group >= 0:
                if counts[group] == 0:
                    active[size] = group
                    size += 1
                counts[group] += 1
                sums[group] += value
                ring_counts[at, group] += 1
                ring_sums[at, group] += value
        marks[0], marks[1], marks[2] = pane, size, written

    return run


def loop_rows_per_s(
    name: str,
    made: Made,
    campaigns: NDArray[np.int64],
    seconds: float,
    folder: Path,
    bytes_per_row: float,
) -> float:
    """How many rows of a sample in cycles the loop of a query takes, in two threads."""
    loop = LOOPS[name]
    run = _compiled(loop.row)
    columns, groups = loop.prepare(made, campaigns)
    done = [0] * THREADS
    until_s = [0.0]
    begin = threading.Barrier(THREADS + 1)

    def work(number: int, file: BinaryIO) -> None:
        times_us = np.tile(made.times_us, THREADS)
        times_us[made.times_us.size :] += made.period_us
        times_us = np.ascontiguousarray(times_us[number::THREADS])
        own = tuple(np.ascontiguousarray(_dealt(each, made, number)) for each in columns)
        ring_counts = np.zeros((loop.panes, groups), np.int64)
        ring_sums = np.zeros((loop.panes, groups))
        state = (ring_counts, ring_sums, np.zeros(groups, np.int64), np.zeros(groups))
        marks = np.array([times_us[0] // loop.pane_us, 0, 0])
        active, out = np.zeros(groups, np.int32), np.zeros((_OUT, 3))
        period_us, cycle = made.period_us * THREADS, 0
        piece, owed, synced_s = bytes(_PIECE), 0.0, time.perf_counter()
        while True:
            later_us = cycle * period_us
            run(times_us, later_us, own, loop.pane_us, loop.shows, marks, active, *state, out)
            owed += times_us.size * bytes_per_row
            if owed >= _PIECE:
                file.write(piece)
                owed -= _PIECE
            now_s = time.perf_counter()
            if owed and now_s >= synced_s + COMMIT_S:
                os.fdatasync(file.fileno())
                synced_s = now_s
            if cycle == 0:
                begin.wait()  # compiled, and the first cycle is not counted
                begin.wait()
            else:
                done[number] += times_us.size
            cycle += 1
            if now_s >= until_s[0] > 0:
                return

    with ExitStack() as stack:
        threads = []
        for number in range(THREADS):
            file = stack.enter_context((folder / f"loop-{number}").open("wb", buffering=0))
            threads.append(threading.Thread(target=work, args=(number, file)))
        for thread in threads:
            thread.start()
        begin.wait()
        start_s = time.perf_counter()
        until_s[0] = start_s + seconds
        begin.wait()
        for thread in threads:
            thread.join()
        return sum(done) / (time.perf_counter() - start_s)


def _dealt(values: NDArray[Any], made: Made, number: int) -> NDArray[Any]:
    """What a thread gets of a column; tables, which are no column, it gets whole."""
    if values.size != made.times_us.size:
        return values
    return np.tile(values, THREADS)[number::THREADS]


# --- the queries ----------------------------------------------------------------------------------


def _only(*names: str) -> Prepare:
    return lambda made, _: (tuple(made.columns[name] for name in names), 1)


def _first(columns: Any, row: Any) -> Any:
    return 0, columns[0][row]


def _all_three(columns: Any, row: Any) -> Any:
    return 0, columns[0][row] + columns[1][row] + columns[2][row]


def _grouped(columns: Any, row: Any) -> Any:
    return columns[0][row], columns[1][row]


def _counted(columns: Any, row: Any) -> Any:
    return columns[0][row], 0.0


def _failed(columns: Any, row: Any) -> Any:
    if columns[0][row] != 3:
        return -1, 0.0
    return np.searchsorted(columns[3], columns[1][row]), columns[2][row]


def _plug(columns: Any, row: Any) -> Any:
    return (columns[0][row] * 14 + columns[1][row]) * 14 + columns[2][row], columns[3][row]


def _segment(columns: Any, row: Any) -> Any:
    return columns[0][row] * 100 + columns[1][row] // 5_280, columns[2][row]


def _vehicle(columns: Any, row: Any) -> Any:
    return (columns[0][row] * 2 + columns[1][row]) * 100 + columns[2][row] // 5_280, 0.0


def _view(columns: Any, row: Any) -> Any:
    if columns[0][row] != 0:
        return -1, 0.0
    return columns[2][columns[1][row]], 0.0


def _jobs(made: Made, _: NDArray[np.int64]) -> tuple[Columns, int]:
    jobs = np.unique(made.columns["jobId"])
    return (*(made.columns[each] for each in ("eventType", "jobId", "cpu")), jobs), jobs.size


def _ads(made: Made, campaigns: NDArray[np.int64]) -> tuple[Columns, int]:
    numbers = made.columns["ad_id"].view(">u8")[1::2].astype(np.int64)
    known, of_ads = np.unique(campaigns, return_inverse=True)
    return (made.columns["event_type"], numbers, of_ads), known.size


def _groups(count: int, *names: str) -> Prepare:
    return lambda made, _: (tuple(made.columns[name] for name in names), count)


def _auctions(made: Made, _: NDArray[np.int64]) -> tuple[Columns, int]:
    return (made.columns["id"],), int(made.columns["id"].max()) + 1


_PLUGS = _groups(10 * 14 * 14, "house", "household", "plug", "value")
_VEHICLES = _groups(1_499 * _DIRECTIONS * _ROAD, "vehicle", "direction", "position")
LOOPS: Mapping[str, Loop] = {
    "cm1": Loop(_groups(4, "category", "cpu"), _grouped, 60),
    "cm2": Loop(_jobs, _failed, 60),
    "sg1": Loop(_only("value"), _first, 3_600),
    "sg2": Loop(_PLUGS, _plug, 128),
    "sg3": Loop(_PLUGS, _plug, 128, _ABOVE),
    "lrb1": Loop(
        _groups(_DIRECTIONS * _ROAD, "direction", "position", "speed"), _segment, 300, _SLOW
    ),
    "lrb2": Loop(_VEHICLES, _vehicle, 30),
    "lrb3": Loop(_VEHICLES, _vehicle, 30, _SEGMENTS),
    "ysb": Loop(_ads, _view, 1, pane_us=10 * SECOND_US),
    "nq": Loop(_auctions, _counted, 60, _MOST),
    "sm": Loop(_only("mf01", "mf02", "mf03"), _all_three, 60),
}
