"""How far event time had come at each row, replayed from what the engine committed.

Which rows are late depends on how the input was cut into batches, so it cannot be told from the
input alone. The markers say it: rows of a source belong to the marker whose offset passes them, and
the watermark of a reader is the least of its producers' as of their last markers. Where idle
producers were left behind the exact moment is unknown, and a row gets a range.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from penstock.sim.data import Feed
from penstock.sim.oracle import Judgement

NONE_US = -(2**63)
END_US = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Mark:
    """What matters here of one marker."""

    vertex: str
    position: int
    offset: int
    consumed: int
    watermark_us: int
    ended: bool


def judge_at_source(rows: Feed, marks: list[Mark], delay_us: int) -> dict[int, Judgement]:
    """The rows of a vertex that reads a source and keeps the windows itself."""
    judged = {}
    greatest_us = NONE_US
    for index, row in enumerate(rows):
        epoch = _epoch_of(marks, index)
        before = marks[epoch - 1].watermark_us if epoch else NONE_US
        known = greatest_us - delay_us if greatest_us > NONE_US else NONE_US
        judged[row.rid] = Judgement(before, max(before, min(known, marks[epoch].watermark_us)))
        if row.ts is not None:
            greatest_us = max(greatest_us, row.ts)
    return judged


def judge_after_exchange(
    sources: dict[str, Feed], marks: dict[str, list[Mark]], readers: list[str], idles: bool
) -> dict[int, Judgement]:
    """The rows of vertices that keep windows behind an exchange with these producers."""
    order = sorted((mark for name in sources for mark in marks[name]), key=lambda m: m.position)
    before = _watermarks_before(order, set(sources))
    furthest = _furthest_before(order)
    judged = {}
    for name, rows in sources.items():
        for index, row in enumerate(rows):
            position = marks[name][_epoch_of(marks[name], index)].position
            if not idles:
                judged[row.rid] = Judgement(before[position], before[position])
                continue
            spans = [_span(marks[reader], position) for reader in readers]
            least = max(before[position], min(span[0] for span in spans))
            most = max(span[1] for span in spans)
            judged[row.rid] = Judgement(least, max(least, min(most, furthest[position])))
    return judged


def _epoch_of(marks: list[Mark], index: int) -> int:
    """Which marker of a source's vertex covers the row at an offset."""
    return bisect_right([mark.offset for mark in marks], index)


def _watermarks_before(order: list[Mark], producers: set[str]) -> dict[int, int]:
    """By marker position: a reader's watermark when it takes the rows of that marker."""
    heard = dict.fromkeys(producers, NONE_US)
    ended: set[str] = set()
    current, found = NONE_US, {}
    for mark in order:
        found[mark.position] = current
        heard[mark.vertex] = max(heard[mark.vertex], mark.watermark_us)
        if mark.ended:
            ended.add(mark.vertex)
        open_ones = [heard[name] for name in producers - ended]
        current = max(current, min(open_ones) if open_ones else END_US)
    return found


def _furthest_before(order: list[Mark]) -> dict[int, int]:
    """By marker position: the furthest that any producer had come before it."""
    furthest, found = NONE_US, {}
    for mark in order:
        found[mark.position] = furthest
        if mark.watermark_us < END_US:
            furthest = max(furthest, mark.watermark_us)
    return found


def _span(marks: list[Mark], position: int) -> tuple[int, int]:
    """The watermarks of a reader before and after the epoch in which it took a marker's rows."""
    before = NONE_US
    for mark in marks:
        if mark.consumed >= position:
            return before, mark.watermark_us
        before = mark.watermark_us
    return before, END_US
