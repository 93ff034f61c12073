"""When a query commits and when it ends: PySpark's triggers, as far as each has a meaning here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.api.spark_errors import IllegalOption, WrongValue, check_text, check_true, refuse
from penstock.errors import PlanError
from penstock.expressions.durations import parse_duration


@dataclass(frozen=True, slots=True)
class Timing:
    """What a trigger comes to."""

    interval_ms: int | None = None  # one commit, and one batch, per interval of the wall clock
    drains: bool = False  # everything that is there, then the end

    @property
    def is_set(self) -> bool:
        return self != Timing()


def timing_of(given: dict[str, Any]) -> Timing:
    """Read the one argument of `trigger` that was given; the others are None.

    `once` is what `availableNow` is: all rows that are there, in as many batches as that takes.
    Without a trigger rows are processed as they come, which is what `continuous` and `realTime` ask
    for. Their intervals say how often Spark notes its progress; here every commit does.
    """
    asked = {name: value for name, value in given.items() if value is not None}
    if len(asked) != 1:
        refuse(WrongValue, "ONLY_ALLOW_SINGLE_TRIGGER", "A trigger has exactly one argument.")
    ((name, value),) = asked.items()
    if name in ("once", "availableNow"):
        check_true(value, name)
        return Timing(drains=True)
    interval_ms = _interval_ms(name, check_text(value, name))
    return Timing(interval_ms if name == "processingTime" else None)


def _interval_ms(name: str, text: str) -> int | None:
    """An interval; Spark's "0 seconds" means none."""
    try:
        length_us = parse_duration(text.strip())
        if length_us % 1_000:
            raise ValueError("it is a whole number of milliseconds")
    except (ValueError, PlanError) as error:
        raise IllegalOption(
            f"trigger({name}={text!r:.200}) is not possible: {error}", value=text[:200]
        ) from error
    return length_us // 1_000 or None
