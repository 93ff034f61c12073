"""The one rule for names, applied wherever a name enters: from a caller or back from a disk."""

from __future__ import annotations

import re

from penstock.errors import InvalidName

_PART = re.compile(r"[A-Za-z0-9_]{1,64}")
TAG_PARTS_MAX = 6


def check_name(name: str, what: str = "name") -> str:
    """Return `name` if it is one part of the allowed alphabet; raise InvalidName if not."""
    if not isinstance(name, str) or _PART.fullmatch(name) is None:
        raise InvalidName(
            f"{what} {name!r} is not allowed: use 1 to 64 of the characters A-Z a-z 0-9 _",
            name=str(name)[:200],
            what=what,
        )
    return name


def check_path(path: str, what: str = "tag") -> str:
    """Return `path` if it is one to six names joined by '/', as tags and metadata keys are."""
    parts = path.split("/") if isinstance(path, str) else []
    if not 1 <= len(parts) <= TAG_PARTS_MAX or any(_PART.fullmatch(part) is None for part in parts):
        raise InvalidName(
            f"{what} {path!r} is not allowed: use 1 to {TAG_PARTS_MAX} parts joined by '/', "
            "each of 1 to 64 of the characters A-Z a-z 0-9 _",
            name=str(path)[:200],
            what=what,
        )
    return path
