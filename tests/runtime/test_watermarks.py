"""The watermark of an input, by what its producers say: pure, in time that the test makes."""

from __future__ import annotations

import pytest

from penstock.runtime.event_time import Silence, Watermarks
from penstock.runtime.markers import WATERMARK_END, WATERMARK_NONE, Said

RUN = 7
PARTS = ("q.s0.0", "q.s0.1")


def watermarks(*expected: str, known: dict[str, Said] | None = None, run: int = RUN) -> Watermarks:
    return Watermarks(expected, known or {}, WATERMARK_NONE, None, run)


def test_the_least_decides_and_who_has_ended_does_not() -> None:
    tested = watermarks(*PARTS)
    tested.hear(PARTS[0], Said(100))
    assert tested.watermark_us == WATERMARK_NONE
    tested.hear(PARTS[1], Said(40))
    assert tested.watermark_us == 40
    tested.hear(PARTS[1], Said(60, ended=True))
    assert tested.watermark_us == 100
    tested.hear(PARTS[0], Said(100, ended=True))
    assert tested.ended
    assert tested.watermark_us == WATERMARK_END


@pytest.mark.parametrize("first", [0, 1])
def test_parts_of_a_stage_that_have_no_more_for_now_count_as_one(first: int) -> None:
    tested = watermarks(*PARTS)
    said = (Said(100, caught_up_run=RUN), Said(WATERMARK_NONE, caught_up_run=RUN))
    tested.hear(PARTS[first], said[first])
    assert not tested.caught_up
    assert tested.watermark_us == WATERMARK_NONE
    tested.hear(PARTS[1 - first], said[1 - first])
    assert tested.caught_up
    assert tested.watermark_us == 100


def test_a_part_that_has_more_again_is_waited_for_and_time_never_falls() -> None:
    tested = watermarks(*PARTS)
    for part in PARTS:
        tested.hear(part, Said(50, caught_up_run=RUN))
    tested.hear(PARTS[1], Said(55))  # the other one has nothing: it is not waited for
    assert tested.watermark_us == 55
    tested.hear(PARTS[0], Said(52))
    assert tested.watermark_us == 55
    tested.hear(PARTS[1], Said(90))
    assert tested.watermark_us == 55
    tested.hear(PARTS[0], Said(70))
    assert tested.watermark_us == 70


def test_of_two_stages_the_slower_decides_also_if_both_have_no_more() -> None:
    tested = watermarks(*PARTS, "q.s1.0")
    tested.hear("q.s1.0", Said(30, caught_up_run=RUN))
    for part in PARTS:
        tested.hear(part, Said(80, caught_up_run=RUN))
    assert tested.watermark_us == 30


def test_what_was_said_outlives_a_restart_but_not_the_run() -> None:
    before = watermarks(*PARTS)
    for part in PARTS:
        before.hear(part, Said(50, caught_up_run=RUN))
    assert watermarks(*PARTS, known=before.known()).caught_up
    later = watermarks(*PARTS, known=before.known(), run=RUN + 1)
    assert not later.caught_up
    later.hear(PARTS[0], Said(90, caught_up_run=RUN + 1))
    assert later.watermark_us == 50


def test_who_is_not_of_this_query_never_counts_as_caught_up() -> None:
    """The run numbers of another query are its own."""
    tested = Watermarks((), {}, WATERMARK_NONE, None, RUN, lambda: PARTS)
    tested.hear(PARTS[0], Said(90, caught_up_run=RUN))
    assert tested.watermark_us == WATERMARK_NONE


def test_an_input_ends_when_all_have_who_are_expected_by_then() -> None:
    writers = [PARTS[0]]
    tested = Watermarks((), {}, WATERMARK_NONE, None, RUN, lambda: tuple(writers))
    writers.append(PARTS[1])  # the query that writes the stream was started anew, with one more
    tested.hear(PARTS[0], Said(5, ended=True))
    assert not tested.ended
    tested.hear(PARTS[1], Said(5, ended=True))
    assert tested.ended


def test_silence_counts_by_looks_not_by_the_clock_alone() -> None:
    silence = Silence(100)
    silence.go_on(("p",), 0.0)
    for now_ms in (10_000.0, 20_000.0, 30_000.0):
        silence.go_on(("p",), now_ms)
        assert not silence.is_over("p")
    silence.go_on(("p",), 40_000.0)
    assert silence.is_over("p")
    silence.end("p")
    assert not silence.is_over("p")
    silence.go_on(("p",), 40_010.0)
    assert not silence.is_over("p")
