"""Time zones as vectorised tables: UTC microseconds to local ones and back, as Java does it."""

from __future__ import annotations

import re
import zoneinfo
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import numpy as np

from penstock.arrays import Mask, Numbers
from penstock.errors import ExpressionError

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US
_CYCLE_US = 146_097 * DAY_US  # 400 years: the calendar, weekdays included, repeats
_OFFSET = re.compile(r"([+-])(\d{2}):(\d{2})")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Looking every few days finds every change of offset: the tz database has none closer than that.
_SCAN_FROM = datetime(1830, 1, 1, tzinfo=UTC)  # local mean time before
_SCAN_RULES_FROM = datetime(2100, 1, 1, tzinfo=UTC)  # two yearly rules at most from here on
_SCAN_UPTO = datetime(2510, 1, 1, tzinfo=UTC)
_SCAN_STEP = timedelta(days=3)
_SCAN_RULES_STEP = timedelta(days=20)
_FOLD_FROM_US = int((datetime(2105, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds()) * SECOND_US
_HOURS_OFFSET_MAX = 18
_MINUTES_OFFSET_MAX = 59


@dataclass(frozen=True, slots=True, eq=False)
class Zone:
    """The offsets of one zone: `offsets_us[i]` holds from transition i - 1 up to transition i."""

    name: str
    transitions_us: Numbers
    offsets_us: Numbers

    def offsets_at(self, utc_us: Numbers) -> Numbers:
        """Offset from UTC at each instant."""
        if self.transitions_us.size == 0:
            return np.full(utc_us.shape, self.offsets_us[0])
        folded = np.where(
            utc_us >= _FOLD_FROM_US,
            (utc_us - _FOLD_FROM_US) % _CYCLE_US + _FOLD_FROM_US,
            utc_us,
        )
        return self.offsets_us[np.searchsorted(self.transitions_us, folded, side="right")]

    def to_local(self, utc_us: Numbers) -> Numbers:
        """What a clock on the wall shows at each instant."""
        return utc_us + self.offsets_at(utc_us)

    def wall_times(self, utc_us: Numbers) -> tuple[Numbers, Numbers]:
        """The same as days since 1970-01-01 and microseconds of the day, which have room for what
        is more than a timestamp can be."""
        of_day = utc_us % DAY_US + self.offsets_at(utc_us)
        return utc_us // DAY_US + of_day // DAY_US, of_day % DAY_US

    def wall_offsets(self, local_s: Numbers) -> Numbers:
        """The offset that turns each wall time, in whole seconds, into an instant.

        Of two (clocks go back) the earlier instant is meant; a time that never happens (clocks go
        forward) is moved on by the length of the gap.
        """
        before, after, holds = self._around(local_s)
        return np.where(holds, before, after)

    def _around(self, local_s: Numbers) -> tuple[Numbers, Numbers, Mask]:
        """The offsets a day before and after each wall time, and whether the first one applies."""
        local_us = folded(local_s)
        before = self.offsets_at(local_us - DAY_US)
        after = self.offsets_at(local_us + DAY_US)
        before_holds = self.offsets_at(local_us - before) == before
        after_holds = self.offsets_at(local_us - after) == after
        return before, after, before_holds | ~after_holds

    def to_utc(self, local_us: Numbers) -> Numbers:
        """The instant of each wall time, as `wall_offsets` decides."""
        return local_us - self.wall_offsets(local_us // SECOND_US)

    def day_start_offsets(self, local_days: Numbers) -> Numbers:
        """The offset that turns midnight of each day into its first instant: where midnight falls
        into a gap, that is the end of the gap, however long before midnight it began."""
        local_s = local_days * (DAY_US // SECOND_US)
        offsets = self.wall_offsets(local_s)
        local_us = folded(local_s)
        utc_us = local_us - offsets
        gap = self.to_local(utc_us) != local_us
        if gap.any():
            last = np.searchsorted(self.transitions_us, utc_us[gap], side="right") - 1
            offsets[gap] = local_us[gap] - self.transitions_us[last]
        return offsets


def folded(local_s: Numbers) -> Numbers:
    """Microseconds with the same offsets, brought into the range of the table."""
    far = local_s >= _FOLD_FROM_US // SECOND_US
    cycle_s, from_s = _CYCLE_US // SECOND_US, _FOLD_FROM_US // SECOND_US
    near_s = np.where(far, (local_s - from_s) % cycle_s + from_s, local_s)
    return np.maximum(near_s, -cycle_s) * SECOND_US


def check_zone(name: Any) -> str:
    """Return the name if it is a region such as Asia/Kolkata or an offset such as +05:30."""
    load_zone(name)
    return str(name)


@lru_cache(maxsize=64)
def load_zone(name: str) -> Zone:
    """The table of one zone; an ExpressionError for a name that is neither region nor offset."""
    empty = np.empty(0, dtype=np.int64)
    offset = _OFFSET.fullmatch(name) if isinstance(name, str) else None
    if offset is not None:
        sign, hours, minutes = offset.groups()
        if int(hours) <= _HOURS_OFFSET_MAX and int(minutes) <= _MINUTES_OFFSET_MAX:
            seconds = (int(hours) * 3600 + int(minutes) * 60) * (-1 if sign == "-" else 1)
            return Zone(name, empty, np.array([seconds * SECOND_US], dtype=np.int64))
    try:
        region = zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
        raise ExpressionError(
            f"{name!r:.100} is not a time zone: use a region such as America/New_York, "
            "or an offset such as +05:30",
            time_zone=str(name)[:100],
        ) from error
    return _scan(name, region)


def _scan(name: str, region: zoneinfo.ZoneInfo) -> Zone:
    """Find every change of offset by looking often and then halving down to the second."""
    transitions: list[int] = []
    offsets = [_offset_us(region, _SCAN_FROM)]
    at = _SCAN_FROM
    while at < _SCAN_UPTO:
        upto = at + (_SCAN_STEP if at < _SCAN_RULES_FROM else _SCAN_RULES_STEP)
        offset_us = _offset_us(region, upto)
        if offset_us != offsets[-1]:
            transitions.append(_first_second_of(region, at, upto, offset_us))
            offsets.append(offset_us)
        at = upto
    return Zone(name, np.array(transitions, dtype=np.int64), np.array(offsets, dtype=np.int64))


def _offset_us(region: zoneinfo.ZoneInfo, instant: datetime) -> int:
    offset = instant.astimezone(region).utcoffset()
    assert offset is not None
    return offset // timedelta(microseconds=1)


def _first_second_of(
    region: zoneinfo.ZoneInfo, low: datetime, high: datetime, offset_us: int
) -> int:
    low_s, high_s = (int((instant - _EPOCH).total_seconds()) for instant in (low, high))
    while high_s - low_s > 1:
        middle_s = (low_s + high_s) // 2
        if _offset_us(region, _EPOCH + timedelta(seconds=middle_s)) == offset_us:
            high_s = middle_s
        else:
            low_s = middle_s
    return high_s * SECOND_US
