"""The rules for names, applied wherever a name enters: from a caller or back from a disk.

People name queries, streams and producers. What the engine makes itself is named after its owner,
what it is and its number, joined by dots, which no name of theirs can hold:

    hot.count_by_user_3fa0c1d2.1   vertex 1 of that stage of query hot
    hot.out                        the stream that feeds the sink of query hot
    hot.by_user_77ab01c9           a stream between two stages
    hot.fed_0c1d23fa               the stream of a source that Spark reads for query hot
    <id>.write.3                   who appends partition 3 of a write of Spark's
    <id>.sink                      who appends what a query of Spark's writes

So nobody's stream is taken for one of the engine's, and no producer for a vertex.
"""

from __future__ import annotations

import os
import re

from penstock.errors import InvalidName

NAME_MAX = 64
TAG_PARTS_MAX = 6
PRODUCER_KINDS = ("write", "sink")  # of producers that are no vertices: no stage is called so

_PART = rf"[A-Za-z0-9_]{{1,{NAME_MAX}}}"
_GIVEN = re.compile(_PART)
_OWN = re.compile(rf"{_PART}(?:\.{_PART}){{1,2}}")
_ANY = re.compile(rf"{_PART}(?:\.{_PART}){{0,2}}")
_POSSIBLE = f"1 to {NAME_MAX} of the characters A-Z a-z 0-9 _"


def check_name(name: str, what: str = "name") -> str:
    """Return a name that somebody gave, if it is of the allowed alphabet; InvalidName if not."""
    if not isinstance(name, str) or _GIVEN.fullmatch(name) is None:
        reserved = isinstance(name, str) and _OWN.fullmatch(name) is not None
        why = "; names with dots are those that Penstock makes itself" if reserved else ""
        raise _refused(name, what, _POSSIBLE + why)
    return name


def own_name(owner: str, kind: str, number: int | None = None) -> str:
    """The name of something that the engine makes for an owner, such as a query or a write."""
    name = f"{owner}.{kind}" if number is None else f"{owner}.{kind}.{number}"
    return check_own_name(name, kind)


def check_own_name(name: str, what: str = "name") -> str:
    """Return a name if it is one that `own_name` makes; raise InvalidName if not."""
    if not isinstance(name, str) or _OWN.fullmatch(name) is None:
        raise _refused(name, what, f"two or three parts joined by '.', each of {_POSSIBLE}")
    return name


def check_any_name(name: str, what: str = "name") -> str:
    """Return a name that was given or made, as found on records and in metadata."""
    if not isinstance(name, str) or _ANY.fullmatch(name) is None:
        raise _refused(name, what, f"one to three parts joined by '.', each of {_POSSIBLE}")
    return name


def check_path(path: str, what: str = "tag") -> str:
    """Return `path` if it is one to six names joined by '/', as tags and metadata keys are."""
    parts = path.split("/") if isinstance(path, str) else []
    if not 1 <= len(parts) <= TAG_PARTS_MAX or any(_ANY.fullmatch(part) is None for part in parts):
        raise _refused(
            path,
            what,
            f"1 to {TAG_PARTS_MAX} names joined by '/', each of one to three parts joined by '.', "
            f"each of {_POSSIBLE}",
        )
    return path


def _refused(name: object, what: str, possible: str) -> InvalidName:
    return InvalidName(
        f"{what} {name!r:.200} is not allowed: use {possible}", name=str(name)[:200], what=what
    )


def escape(text: str) -> str:
    """Text from outside as one printable line: what a terminal would obey becomes escapes."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def show_path(path: str | os.PathLike[str]) -> str:
    """A path for a message; a file's name may hold any character."""
    return escape(os.fspath(path))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
