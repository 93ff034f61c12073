"""The options of a query, beside those of its sink."""

from __future__ import annotations

import os
from typing import Any

from penstock.api.sinks import CHOICES
from penstock.expressions.durations import parse_duration
from penstock.options import Option, flag, is_elsewhere, local_path, whole


def _milliseconds(text: str) -> int:
    return parse_duration(text) // 1_000


def _seconds(text: str) -> float:
    return parse_duration(text) / 1e6


def _location(text: str) -> str:
    """A name for a query: the same for all ways to write a path of this machine."""
    if not text:
        raise ValueError("it is a folder, or any other name for the place of this query")
    return text if is_elsewhere(text) else os.path.abspath(local_path(text))


CHECKPOINT_LOCATION = Option("checkpointLocation", _location, None)
QUERY_ID = Option("queryId", str, None)
PARALLELISM = Option("parallelism", whole(1), 1)
SLOTS = Option("slots", whole(1), None)
STANDBY_SLOTS = Option("standbySlots", whole(0), 1)
START_TIMEOUT = Option("startTimeout", _seconds, None)
STEP_TIMEOUT = Option("stepTimeout", _seconds, None)
START_AFTER = Option("startAfter", _location, None)
REFRESH_STATIC = Option("refreshStatic", flag, False)
STATIC_BYTES_MAX = Option("staticBytesMax", whole(1, 1 << 40), 256 << 20)

WRITER_OPTIONS: tuple[Option[Any], ...] = (
    CHECKPOINT_LOCATION,
    QUERY_ID,
    PARALLELISM,
    SLOTS,
    STANDBY_SLOTS,
    START_TIMEOUT,
    STEP_TIMEOUT,
    START_AFTER,
    REFRESH_STATIC,
    STATIC_BYTES_MAX,
    # What follows has its bounds in `Settings`.
    Option("commitInterval", _milliseconds, None, "commit_interval_ms"),
    Option("guarantee", str, None, "guarantee"),
    Option("lateStream", str, None, "late_stream"),
    Option("deadLetterStream", str, None, "dead_letter_stream"),
    Option("idleTimeout", _milliseconds, None, "idle_timeout_ms"),
    Option("checkpointInterval", whole(), None, "checkpoint_interval_commits"),
    Option("stateBytesMax", whole(1 << 20, 1 << 44), None, "state_bytes_max"),  # bytes
    Option("codec", str, None, "codec"),
    Option("codecInterval", _milliseconds, None, "codec_interval_ms"),
    Option("floatDigits", whole(0, 15), None, "float_digits"),
    Option("pushUp", flag, None, "push_up"),
    Option("stepRowsMax", whole(1, 1 << 24), None, "step_rows_max"),
    Option("undeliveredBytesMax", whole(1, 1 << 44), None, "undelivered_bytes_max"),
    *dict.fromkeys(option for choice in CHOICES for option in choice.options),
)
