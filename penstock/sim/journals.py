"""Answers that depend on who came first, told again in plain Python by what each vertex took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from penstock.sim.graph_checks import WEIGHT
from penstock.sim.more_shapes import DELAYS_US, LIMIT_ROWS, SESSION_GAP_US
from penstock.sim.outcome import Outcome, OutputRow, Taking
from penstock.sim.shapes import LATE
from penstock.sim.violation import Violation, check_equal

Values = tuple[Any, ...]


def check_journal(outcome: Outcome) -> None:
    """What comes out is what the vertices that decide make of what they took."""
    shape = outcome.scenario.shape.name
    stage = outcome.aggregate_stages()[-1]
    late: list[int] = []
    expected: list[Values] = []
    for takings in outcome.takings(stage):
        if shape == "first_rows":
            rows = [row for taking in takings for row in taking.rows]
            expected += [tuple(row.values()) for row in rows[:LIMIT_ROWS]]
        elif shape == "met_table":
            expected += _met(takings)
        elif shape == "within_watermark":
            expected += _first_of_each(takings, late)
        elif shape == "ties":
            expected += _places(takings, late)
        else:
            expected += _sessions(takings, late)
    found = [tuple(row.values()) for row in outcome.out]
    check_equal(Counter(found), Counter(expected), "rows")
    if shape == "first_rows" and found != expected:
        raise Violation(f"first rows: in the order {found}, it should be {expected}")
    counted = sum(outcome.last_facts[name]["late_rows"] for name in outcome.vertices_of(stage))
    if counted != len(late):
        raise Violation(f"late: {counted} rows counted, {len(late)} are")
    if outcome.scenario.shape.late_stream:
        side = Counter(row["rid"] for row in outcome.reading(LATE)[0])
        check_equal(side, Counter(late), "late rows")


def _met(takings: list[Taking]) -> Iterator[Values]:
    """Each row of the stream with the row that its key has in the table at that moment."""
    table: Counter[Values] = Counter()
    for row in (row for taking in takings for row in taking.rows):
        if WEIGHT in row:
            table[row["r_k"], row["r_rid"], row["r_v"]] += row[WEIGHT]
            continue
        found = [key for key in +table if key[0] is not None and key[0] == row["k"]]
        for _, rid, v in found or [(None, None, None)]:
            yield row["rid"], row["k"], row["g"], rid if v is None else v


def _first_of_each(takings: list[Taking], late: list[int]) -> Iterator[Values]:
    """The first row of a key; it is forgotten when its time is over."""
    seen: dict[Values, int | None] = {}
    for taking in takings:
        for row in taking.rows:
            if row["ts"] is not None and row["ts"] <= taking.before_us:
                late.append(row["rid"])
                continue
            key = (row["k"], row["g"])
            over = seen.get(key)
            if key not in seen or (over is not None and over <= taking.before_us):
                seen[key] = None if row["ts"] is None else row["ts"] + DELAYS_US[0]
                yield tuple(row.values())


def _places(takings: list[Taking], late: list[int]) -> Iterator[Values]:
    """The rows of each window that is over by `g`, equal ones as they came."""
    waiting: dict[int, list[OutputRow]] = {}
    for taking in takings:
        for row in taking.rows:
            if row["at"] <= taking.before_us:
                late.append(row["rid"])
            else:
                waiting.setdefault(row["at"], []).append(row)
        for at in [at for at in waiting if at <= taking.after_us]:
            rows = sorted(waiting.pop(at), key=lambda row: (row["g"] is not None, row["g"]))
            for place, row in enumerate(rows, 1):
                yield row["rid"], row["g"], at, place


def _sessions(takings: list[Taking], late: list[int]) -> Iterator[Values]:
    """Sessions of each key, which rows may join until event time has passed their end."""
    open_ones: list[tuple[Any, int, int, list[OutputRow]]] = []  # key, begin, end, rows
    for taking in takings:
        for row in taking.rows:
            if row["ts"] is None:
                continue
            begin, end, members = row["ts"], row["ts"] + SESSION_GAP_US, [row]
            if end <= taking.before_us:
                late.append(row["rid"])
                continue
            touched = [s for s in open_ones if s[0] == row["k"] and begin <= s[2] and s[1] <= end]
            for _, other_begin, other_end, others in touched:
                begin, end = min(begin, other_begin), max(end, other_end)
                members = [*others, *members]
            open_ones = [each for each in open_ones if each not in touched]
            open_ones.append((row["k"], begin, end, members))
        for key, _, end, members in open_ones:
            if end <= taking.after_us:
                values = [row["v"] for row in members if row["v"] is not None]
                rid = max(row["rid"] for row in members)
                yield rid, key, len(members), sum(values) if values else None, end
        open_ones = [each for each in open_ones if each[2] > taking.after_us]
