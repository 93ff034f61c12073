"""Waiting for conditions, never for time alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 90.0
T = TypeVar("T")


def wait_for(what: str, condition: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """Return the condition's value as soon as it is true; fail with its name if it never is."""
    deadline_s = time.monotonic() + patience_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline_s:
            raise AssertionError(f"waited {patience_s:g} s in vain for: {what}")
        time.sleep(0.02)
