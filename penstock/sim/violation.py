"""How a broken promise is told."""

from __future__ import annotations

from collections import Counter
from typing import Any


class Violation(Exception):
    """The engine has broken a promise; the text says which."""


def check_equal(found: Counter[Any], expected: Counter[Any], what: str) -> None:
    """What there is must be what there should be, each as often."""
    if found != expected:
        lost = sorted(map(str, (expected - found).elements()))[:3]
        added = sorted(map(str, (found - expected).elements()))[:3]
        raise Violation(f"{what}: lost {lost}, too many {added}")
