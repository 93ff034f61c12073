"""Queries with several results: what the others are, and that all show the same input rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from penstock.sim.data import Row
from penstock.sim.oracle import rows_of
from penstock.sim.outcome import Outcome
from penstock.sim.shapes import BESIDE, TALLY

Rule = Callable[[Row], bool]


def is_beside(row: Row) -> bool:
    return row.g is not None and row.g > 0


def is_answer(row: Row) -> bool:
    return row.v is not None and row.v > 0


def wrong_beside(outcome: Outcome) -> str | None:
    """What is wrong with the results beside the answer; None: nothing.

    Up to each marker of a vertex both of its results hold just the rows that the marker says it has
    read: so a reader of both sees the same beginning of the input, wherever it stops.
    """
    for stream, rule in ((outcome.scenario.output, is_answer), (BESIDE, is_beside)):
        if (wrong := _wrong_prefix(outcome, stream, rule)) is not None:
            return wrong
    expected = Counter((row.rid, row.g) for row in outcome.rows if is_beside(row))
    found = Counter((row["rid"], row["g"]) for row in outcome.reading(BESIDE)[0])
    if found != expected:
        return f"{BESIDE}: lost {expected - found}, too many {found - expected}"
    tally = {row["k"]: row["n"] for row in outcome.reading(TALLY)[0]}
    if tally != Counter(row.k for row in outcome.rows):
        return f"{TALLY}: {tally}"
    return None


def _wrong_prefix(outcome: Outcome, stream: str, rule: Rule) -> str | None:
    releases, _ = outcome.releases(stream)
    for name, rows in outcome.scenario.fed.items():
        own = [each for each in releases if each.marker.producer == name]
        shown: list[Any] = []
        for mark in outcome.marks[name]:
            while own and own[0].marker.position <= mark.position:
                shown += (row["rid"] for record in own.pop(0).records for row in rows_of(record))
            wanted = [row.rid for row in rows[: mark.offset] if rule(row)]
            if sorted(shown) != sorted(wanted):
                return f"{stream}: up to {mark.position} {name} shows {shown} instead of {wanted}"
    return None
