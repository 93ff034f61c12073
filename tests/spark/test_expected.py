"""The judge itself is judged: against NEXMark events one by one, in plain Python."""

from __future__ import annotations

from collections import Counter

from tests.connectors.nexmark_reference import Reference
from tests.spark.expected import SIZE_US, SLIDE_US, bids, running_counts, window_counts
from tests.spark.verifier import judge_counts, judge_windows

EVENTS, RATE = 1_500, 100.0


def reference_bids() -> list[tuple[int, int]]:
    reference = Reference(0, rate=RATE)
    events = (reference.event(number) for number in range(EVENTS))
    return [
        (row["auction"], round(row["dateTime"].timestamp() * 1e6))
        for kind, row in events
        if kind == 2
    ]


def test_bids_and_counts_are_the_reference_s() -> None:
    rows = reference_bids()
    auctions, times_us = bids(EVENTS, RATE)
    assert list(zip(auctions.tolist(), times_us.tolist(), strict=True)) == rows
    assert running_counts(EVENTS, RATE) == Counter(auction for auction, _ in rows)
    windows = Counter(
        (time_us // SLIDE_US * SLIDE_US - back, auction)
        for auction, time_us in rows
        for back in range(0, SIZE_US, SLIDE_US)
    )
    assert window_counts(EVENTS, RATE) == Counter((*key, n) for key, n in windows.items())


def test_the_judge_finds_what_is_lost_and_what_is_doubled() -> None:
    right = [{"auction": a, "count": n} for a, n in running_counts(EVENTS, RATE).items()]
    assert _faults(judge_counts(right, EVENTS, RATE)) == (0, 0)
    assert _faults(judge_counts(right[1:], EVENTS, RATE)) == (1, 0)
    more = [*right, {"auction": right[0]["auction"], "count": right[0]["count"] + 1}]
    assert _faults(judge_counts(more, EVENTS, RATE)) == (0, 1)
    fallen = [{"auction": right[0]["auction"], "count": right[0]["count"] + 1}, *right]
    assert _faults(judge_counts(fallen, EVENTS, RATE)) == (0, 1)
    assert judge_windows([], EVENTS, RATE)["lost"] == len(window_counts(EVENTS, RATE))


def _faults(verdict: dict[str, int]) -> tuple[int, int]:
    return verdict["lost"], verdict["extra"]
