"""The oracle itself, against hand-made histories and definitions."""

from __future__ import annotations

import json

import pytest

from penstock.sim.checks import RETENTION, check_cuts, check_fences, check_markers
from penstock.sim.history import Registration, Seen, Trim
from penstock.sim.oracle import Reading, Summary, last_window_end, summarise, window_starts
from penstock.sim.readers import Life, check_lives
from penstock.sim.violation import Violation


def _seen(position: int, kind: str, instance: int, producer: str = "v", **facts: object) -> Seen:
    marker = {
        "vertex": producer, "instance": instance, "epoch": 1, "watermark_us": 0, "consumed": 0,
        "resume": 0, "late_rows": 0, "rejected_rows": 0, "ended": True, "offset": 1,
        "timeless": False,
    }  # fmt: skip
    body = json.dumps(marker | facts).encode() if kind == "MARKER" else b"rows"
    return Seen(position, kind, ("S/x/0",), producer, instance, position, body)


def test_a_marker_commits_its_own_instance_and_passes_the_dead_one_by() -> None:
    history = [
        _seen(1, "DATA", 1),
        _seen(2, "DATA", 2),
        _seen(3, "DATA", 1, producer="w"),
        _seen(4, "MARKER", 2),
    ]
    reading = Reading(history, ["S/x/0"])
    (committed,) = reading.more()
    assert [record.position for record in committed.records] == [2]
    assert reading.orphans == 1
    history.append(_seen(5, "MARKER", 1, producer="w"))
    (committed,) = reading.more()
    assert [record.position for record in committed.records] == [3]


@pytest.mark.parametrize(("size", "slide"), [(6, 6), (6, 2), (5, 1)])
def test_windows_hold_what_their_definition_says(size: int, slide: int) -> None:
    for at in range(100, 140):
        expected = [s for s in range(0, 200, slide) if s <= at < s + size]
        assert list(window_starts(at, size, slide)) == expected
        assert last_window_end(at, size, slide) == expected[-1] + size


def test_nulls_are_not_added_up() -> None:
    assert summarise([(1, None), (4, 3), (2, -5)]) == Summary(n=3, c=2, s=-2, lo=-5, top=4)
    assert summarise([(1, None)]) == Summary(n=1, c=0, s=None, lo=None, top=1)


def test_an_append_after_the_successor_took_over_is_found() -> None:
    registrations = [Registration("v", 1, 0), Registration("v", 2, 5)]
    check_fences([_seen(5, "DATA", 1), _seen(6, "DATA", 2)], registrations)
    with pytest.raises(Violation, match="came after its successor"):
        check_fences([_seen(6, "DATA", 1)], registrations)
    with pytest.raises(Violation, match="reused"):
        check_fences([], [Registration("v", 1, 0), Registration("v", 1, 3)])


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({"epoch": 3}, "does not follow"),
        ({"epoch": 1}, "does not follow"),
        ({"watermark_us": -1}, "watermark_us fell"),
        ({"offset": 0}, "offset fell"),
        ({"ended": False}, "ended fell"),
        ({"vertex": "w"}, "says it is of w"),
    ],
)
def test_a_marker_that_goes_back_is_found(facts: dict[str, object], found: str) -> None:
    first = _seen(1, "MARKER", 1)
    check_markers([first, _seen(2, "MARKER", 1, epoch=2)], ["v"])
    with pytest.raises(Violation, match=found):
        check_markers([first, _seen(2, "MARKER", 1, **({"epoch": 2} | facts))], ["v"])


RELEASES = [(2, [{"x": 1}]), (4, [{"x": 2}]), (5, []), (7, [{"x": 3}])]


def _life(after: int, upto: int, *values: int, was_cut: bool = False) -> Life:
    return Life(after, [{"x": value} for value in values], upto, was_cut)


@pytest.mark.parametrize(
    ("lives", "is_kept", "found"),
    [
        ([_life(0, 7, 1, 3)], True, "saw 2 rows"),
        ([_life(0, 7, 1, 3, 2)], True, "another order"),
        ([_life(0, 4, 1, 2)], True, "rows follow"),
        ([_life(0, 2, 1, was_cut=True), _life(4, 7, 3)], True, "nothing was cut"),
        ([_life(0, 2, 1), _life(2, 7, 3)], False, "saw 1 rows"),
    ],
)
def test_a_hole_in_what_a_reader_got_is_found(lives: list[Life], is_kept: bool, found: str) -> None:
    check_lives("s", [_life(0, 7, 1, 2, 3)], RELEASES, is_kept=True)
    check_lives("s", [_life(0, 2, 1), _life(4, 7, 3)], RELEASES, is_kept=False)
    with pytest.raises(Violation, match=found):
        check_lives("s", lives, RELEASES, is_kept=is_kept)


def test_a_cut_through_an_epoch_is_found() -> None:
    rows = [Seen(at, "DATA", ("S/s/0",), "v", 1, at, b"") for at in (1, 2)]
    marker = _seen(3, "MARKER", 1)._replace(tags=("S/s/m",))
    releases = list(Reading([*rows, marker], ["S/s/0", "S/s/m"]).more())
    whole = [Trim("S/s/0", 3, 9, RETENTION, 0), Trim("S/s/m", 3, 9, RETENTION, 0)]
    check_cuts(whole, "s", releases)
    with pytest.raises(Violation, match="a part"):
        check_cuts([Trim("S/s/0", 1, 9, RETENTION, 0)], "s", releases)
    with pytest.raises(Violation, match="a part"):
        check_cuts(whole[1:], "s", releases)
