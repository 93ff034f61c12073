"""Which paths below a folder count: patterns of paths, hidden names, folders that are partitions.

The rules are those of Spark and of the globs of Hadoop. A pattern names the places where files are
looked for, in each of which the names of folders such as `day=2024-01-01` are values of columns.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

from penstock.errors import InvalidArgument, SourceError
from penstock.names import show_path

_WILD = re.compile(r"[*?\[\]{}\\]")
_ESCAPED = re.compile("%([0-9a-fA-F]{2})")
_PATTERNS_MAX = 1_000


def is_pattern(path: str) -> bool:
    """Whether Spark takes a path for a pattern."""
    return _WILD.search(path) is not None


def split_pattern(path: str) -> tuple[str, str]:
    """Cut an absolute pattern into the folder that it surely is in, and the pattern below that."""
    parts = path.split("/")
    first = next(place for place, part in enumerate(parts) if is_pattern(part))
    return "/".join(parts[:first]) or "/", "/".join(parts[first:])


@lru_cache(256)
def name_pattern(text: str) -> re.Pattern[str]:
    """Return what matches the names that a pattern of one name means."""
    written: list[str] = []
    is_set, groups, place = False, 0, 0
    while place < len(text):
        char = text[place]
        place += 1
        if char == "\\":
            if place == len(text):
                raise _bad_pattern(text, "it ends with a backslash")
            written.append(re.escape(text[place]))
            place += 1
        elif is_set:
            is_first = written[-1] == "["
            is_set = char != "]"
            negates = is_first and char in "!^"
            written.append("^" if negates else char if char in "]-" else re.escape(char))
        elif char == "[":
            is_set = True
            written.append(char)
        elif char == "{":
            groups += 1
            written.append("(?:")
        elif char == "}" and groups:
            groups -= 1
            written.append(")")
        elif char == "," and groups:
            written.append("|")
        else:
            written.append({"*": ".*", "?": "."}.get(char) or re.escape(char))
    if is_set or groups:
        raise _bad_pattern(text, f"a {'[' if is_set else '{'} is not closed")
    try:
        return re.compile("".join(written), re.DOTALL)
    except re.error as error:
        raise _bad_pattern(text, str(error)) from error


def _bad_pattern(text: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"{text!r} is no pattern of names: {why}", pattern=text)


def _alternatives(pattern: str) -> list[str]:
    """Return the patterns that one with groups across folders, such as `{a/b,c}`, stands for."""
    place, open_at, commas = 0, -1, list[int]()
    depth = 0
    while place < len(pattern):
        char = pattern[place]
        if char == "\\":
            place += 1
        elif char == "{":
            depth += 1
            if depth == 1:
                open_at, commas = place, []
        elif char == "," and depth == 1:
            commas.append(place)
        elif char == "}" and depth:
            depth -= 1
            if depth == 0 and "/" in pattern[open_at:place]:
                ends = [open_at, *commas, place]
                before, after = pattern[:open_at], pattern[place + 1 :]
                return [
                    whole
                    for begin, end in pairwise(ends)
                    for whole in _alternatives(before + pattern[begin + 1 : end] + after)
                ]
        place += 1
    return [pattern]


def is_hidden(name: str) -> bool:
    """Whether a file or folder is passed over, by its name."""
    if name.startswith("_"):
        return "=" not in name
    return name.startswith(".") or name.endswith("._COPYING_")


def unescaped(text: str) -> str:
    """Return a name or value as it was before it became a part of a path."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


@dataclass(frozen=True)
class FolderPaths:
    """The files that count below a folder.

    - below: the pattern of the places, empty for the folder itself; one may also be a file;
    - name: the pattern of the names of files;
    - recursive: files of all folders below count, and their names mean nothing;
    - partitions: the columns that folders stand for, in their order;
    - base: the folder in which partitions begin; None: the place.
    """

    folder: str
    below: str = ""
    name: str = "*"
    recursive: bool = False
    partitions: tuple[str, ...] = ()
    base: str | None = None
    case_sensitive: bool = False

    def enters(self, folder: str) -> bool:
        """Whether files in a folder, or further below it, may count."""
        parts = tuple(folder.split("/"))
        return any(
            _matches(place, parts) and all(self._leads_on(name) for name in parts[len(place) :])
            for place in self._places
        )

    def counts(self, file: str) -> bool:
        """Whether a file does; SourceError if it is in partitions that the query does not know."""
        *folders, name = parts = tuple(file.split("/"))
        if is_hidden(name) or self._name.fullmatch(name) is None:
            return False
        place = self._place_of(parts)
        if place is None or any(map(is_hidden, folders[place:])):
            return False
        if self.recursive or not (folders[place:] or self.partitions):
            return True
        found = self._partition(file)
        columns = [column for column, _ in found]
        if not found or self._plain(columns) == self._plain(self.partitions):
            return bool(found)
        here = " and ".join(columns)
        known = f"by {' and '.join(self.partitions)}" if self.partitions else "not in partitions"
        shown = show_path(file)
        raise SourceError(
            f"{shown} is in a partition by {here}, but the files of {show_path(self.folder)} were "
            f"{known} when the query was made: move it, or make the query anew from what is there",
            file=shown,
        )

    def partition(self, file: str) -> tuple[str, ...]:
        """Return the texts that a file's folders have for the partition columns."""
        return tuple(text for _, text in self._partition(file)) if self.partitions else ()

    @cached_property
    def _places(self) -> tuple[tuple[re.Pattern[str], ...], ...]:
        if not self.below:
            return ((),)
        patterns = _alternatives(self.below)
        if len(patterns) > _PATTERNS_MAX:
            raise _bad_pattern(self.below, f"it stands for more than {_PATTERNS_MAX}")
        return tuple(
            tuple(name_pattern(part) for part in pattern.split("/") if part) for pattern in patterns
        )

    @cached_property
    def _name(self) -> re.Pattern[str]:
        return name_pattern(self.name)

    def _leads_on(self, name: str) -> bool:
        is_wanted = self.recursive or bool(self.partitions) or "=" in name
        return is_wanted and not is_hidden(name)

    def _place_of(self, parts: Sequence[str]) -> int | None:
        """How many of a file's names are those of the place that it is in; None: it is in none."""
        found = [
            len(place)
            for place in self._places
            if len(place) <= len(parts) and _matches(place, parts)
        ]
        return min(*found, len(parts) - 1) if found else None

    def _partition(self, file: str) -> list[tuple[str, str]]:
        """The columns and texts of a file's folders, from the last upwards, up to the base."""
        parts = file.split("/")
        folders = [*_names(self.folder), *parts[:-1]]
        if self.base is None:
            begin = len(_names(self.folder)) + (self._place_of(parts) or 0)
        else:
            base = _names(self.base)
            begin = len(base)
            if folders[:begin] != base:
                shown = show_path(file)
                raise SourceError(
                    f"{shown} is not below the base path {show_path(self.base)}: correct basePath",
                    file=shown,
                )
        found: list[tuple[str, str]] = []
        for name in reversed(folders[begin:]):
            column, sign, text = name.partition("=")
            if not sign:
                if found:
                    break
                continue
            if not column or not text:
                shown = show_path(file)
                raise SourceError(
                    f"{shown} is in a folder {show_path(name)}, which has no "
                    f"{'value' if column else 'column'}: rename it",
                    file=shown,
                )
            found.append((unescaped(column), text))
        return found[::-1]

    def _plain(self, columns: Sequence[str]) -> list[str]:
        return [column if self.case_sensitive else column.lower() for column in columns]


def _matches(place: Sequence[re.Pattern[str]], parts: Sequence[str]) -> bool:
    """Whether names lead to a place, or into it."""
    return all(
        pattern.fullmatch(part) is not None for pattern, part in zip(place, parts, strict=False)
    )


def _names(path: str) -> list[str]:
    return [name for name in os.fspath(path).split("/") if name]
