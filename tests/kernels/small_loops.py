"""A module with a loop, as the package has them, that is compiled in a moment."""

from __future__ import annotations

from penstock.loops import Words, loop


@loop
def add_up(numbers: Words) -> int:
    total = 0
    for number in numbers:
        total += number
    return total
