"""Time zones as tables, compared with the time zone database asked one instant at a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ExpressionError
from penstock.expressions.zones import load_zone
from tests.thoroughness import examples

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECONDS = st.integers(-62135500000, 253402200000)
ZONES = [
    "UTC", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Europe/Dublin",
    "Africa/Casablanca", "Pacific/Apia", "America/Toronto", "Antarctica/Troll", "Asia/Gaza",
]  # fmt: skip


@pytest.mark.parametrize("name", ZONES)
def test_offsets_equal_the_database_at_every_instant(name: str) -> None:
    region, zone = ZoneInfo(name), load_zone(name)

    @settings(max_examples=examples(20))
    @given(st.lists(SECONDS, min_size=1, max_size=50))
    def check(seconds: list[int]) -> None:
        around = [*zone.transitions_us[::97].tolist(), *(second * 10**6 for second in seconds)]
        micros = np.array([m + step for m in around for step in (-1, 0, 1)], dtype=np.int64)
        inside = micros[(micros > -62135500000 * 10**6) & (micros < 253402200000 * 10**6)]
        wanted = [
            (EPOCH + timedelta(microseconds=int(m))).astimezone(region).utcoffset() for m in inside
        ]
        assert [timedelta(microseconds=int(o)) for o in zone.offsets_at(inside)] == wanted

    check()


@pytest.mark.parametrize("name", ZONES)
def test_wall_times_become_instants_as_the_database_says(name: str) -> None:
    region, zone = ZoneInfo(name), load_zone(name)
    changes_s = (zone.transitions_us[-900:] + zone.offsets_us[:-1][-900:]) // 10**6
    seconds = np.concatenate([changes_s + shift for shift in (-5400, -1, 0, 1, 1800, 5400)])
    offsets = zone.wall_offsets(seconds)
    for second, offset in zip(seconds.tolist(), offsets.tolist(), strict=True):
        local = datetime(1970, 1, 1) + timedelta(seconds=second)
        assert local.replace(tzinfo=region).utcoffset() == timedelta(microseconds=offset)


def test_the_first_instant_of_a_day_whose_midnight_never_was() -> None:
    """Toronto went from 23:30 to 00:30 on 30 March 1919: the 31st began at 00:30."""
    zone = load_zone("America/Toronto")
    days = np.array([(datetime(1919, 3, 31) - datetime(1970, 1, 1)).days])
    start = days * 86_400_000_000 - zone.day_start_offsets(days)
    assert zone.to_local(start).tolist() == (days * 86_400_000_000 + 1_800_000_000).tolist()
    assert (zone.to_local(start - 1) // 86_400_000_000).tolist() == (days - 1).tolist()


def test_the_calendar_repeats_far_beyond_any_table() -> None:
    zone = load_zone("America/New_York")
    july = np.array([4_118_000_000_000_000], dtype=np.int64)
    cycle = 146_097 * 86_400_000_000
    assert zone.offsets_at(july + 500 * cycle).tolist() == zone.offsets_at(july).tolist()


def test_fixed_offsets() -> None:
    zero = np.array([0], dtype=np.int64)
    assert load_zone("-08:30").to_local(zero).tolist() == [-30_600_000_000]


@pytest.mark.parametrize("name", ["", "Nowhere", "/etc/passwd", "+19:00", "+01:75", "+1", None, 3])
def test_names_that_are_not_zones(name: object) -> None:
    with pytest.raises(ExpressionError, match="not a time zone"):
        load_zone(name)  # type: ignore[arg-type]
