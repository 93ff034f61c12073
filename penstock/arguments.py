"""Arguments of public calls, checked where they enter: wrong ones are named, and nothing runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from penstock.errors import InvalidArgument

INTEGER_MAX = (1 << 63) - 1


def check_type(value: Any, kinds: type | tuple[type, ...], what: str, expected: str) -> None:
    """Raise InvalidArgument unless the value is of one of the kinds; True and False are no numbers.

    `what` names the argument, `expected` says what it should be.
    """
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    if isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool)):
        return
    raise InvalidArgument(
        f"{what} is {type(value).__name__}, and should be {expected}",
        argument=what,
        type=type(value).__name__,
    )


def check_folder(path: Any, what: str) -> Path:
    """The absolute path of a folder that was given as a text or a path."""
    check_type(path, (str, os.PathLike), what, "a path")
    given = os.fspath(path)
    check_type(given, str, what, "a path")
    if not given or "\0" in given:
        raise InvalidArgument(f"{what} is {given!r:.80}, which is no path", argument=what)
    return Path(given).absolute()


def check_choice(value: Any, what: str, *possible: str) -> None:
    """Raise InvalidArgument unless the value is one of some words."""
    if value not in possible:
        known = ", ".join(possible)
        raise InvalidArgument(f"{what} is {value!r:.80}; possible are {known}", argument=what)


def check_integer(value: Any, what: str, least: int, most: int = INTEGER_MAX) -> None:
    """Raise InvalidArgument unless the value is a whole number within bounds."""
    check_type(value, int, what, "a whole number")
    if not least <= value <= most:
        raise InvalidArgument(
            f"{what} is {value}; it is a whole number from {least:,} to {most:,}", argument=what
        )
