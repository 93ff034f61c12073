"""Lengths of time as people write them: '10 seconds', '1 minute', '500 ms'."""

from __future__ import annotations

import re

from penstock.errors import PlanError

MICROSECONDS: dict[str, int] = {
    "us": 1, "microsecond": 1, "ms": 1_000, "millisecond": 1_000, "s": 1_000_000,
    "second": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000, "day": 86_400_000_000,
    "week": 604_800_000_000,
}  # fmt: skip
_TEXT = re.compile(r"\s*(\d{1,18})\s*([a-z]+?)s?\s*")
_SHOWN = ("day", "hour", "minute", "second", "ms", "us")


def parse_duration(text: str | int) -> int:
    """Microseconds; a number is taken as microseconds already."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    match = _TEXT.fullmatch(text.lower()) if isinstance(text, str) else None
    unit = match.group(2) if match else ""
    if match is None or (unit not in MICROSECONDS and unit + "s" not in MICROSECONDS):
        raise PlanError(
            f"{text!r:.80} is not a length of time: write it like '10 seconds' or '500 ms'; "
            "months and years differ in length and are not possible",
            duration=str(text)[:80],
        )
    return int(match.group(1)) * MICROSECONDS.get(unit, MICROSECONDS.get(unit + "s", 1))


def show_duration(length_us: int) -> str:
    """The length in the largest unit, up to days, that is whole."""
    if length_us == 0:
        return "0 seconds"
    unit = next(unit for unit in _SHOWN if length_us % MICROSECONDS[unit] == 0)
    count = length_us // MICROSECONDS[unit]
    plural = "s" if len(unit) > 2 and count != 1 else ""
    return f"{count} {unit}{plural}"
