"""Options of a data source: names without regard to case, values checked where they are read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from urllib.parse import unquote, urlparse
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from penstock.errors import InvalidOption

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Options:
    """What the user wrote behind `.option(...)`, for one data source."""

    def __init__(self, format_name: str, given: Mapping[str, str]) -> None:
        self._format = format_name
        self._given = {name.lower(): value for name, value in given.items()}

    def check_names(self, doing: str, known: Iterable[str]) -> None:
        """Refuse options that mean nothing here: a misspelt one would change the answer."""
        allowed = {name.lower(): name for name in known}
        unknown = sorted(set(self._given) - set(allowed))
        if unknown:
            raise self._refused(
                unknown[0],
                f"is not one for {doing}; possible are {', '.join(sorted(allowed.values()))}",
            )

    def has(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str, default: str | None = None) -> str | None:
        return self._given.get(name.lower(), default)

    def needed(self, name: str, example: str) -> str:
        value = self.text(name)
        if not value:
            raise self._refused(name, f'is missing: add .option("{name}", "{example}")')
        return value

    def integer(self, name: str, least: int, most: int = 2**63 - 1) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not is_integer(value) or not least <= int(value) <= most:
            raise self._refused(name, f"is {value!r}; it is a whole number from {least} to {most}")
        return int(value)

    def number(self, name: str) -> float | None:
        value = self.text(name)
        try:
            return None if value is None else float(value)
        except ValueError:
            raise self._refused(name, f"is {value!r}; it is a number") from None

    def flag(self, name: str) -> bool:
        value = (self.text(name) or "false").strip().lower()
        if value not in ("true", "false"):
            raise self._refused(name, f"is {value!r}; it is true or false")
        return value == "true"

    def choice(self, name: str, possible: Iterable[str], default: str) -> str:
        value = (self.text(name) or default).strip().lower()
        if value not in possible:
            raise self._refused(name, f"is {value!r}; possible are {', '.join(possible)}")
        return value

    def folder(self, name: str, default: str | None) -> str:
        """An absolute path, since tasks run in other folders; a `file:` address is one too."""
        value = self.text(name) or default
        if not value:
            raise self._refused(name, 'is missing: add .option("path", "path/to/log")')
        if value.startswith("file:"):
            value = unquote(urlparse(value).path)
        elif re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", value):
            raise self._refused(name, f"is {value!r}; a log is a folder of the local machine")
        return str(Path(value).expanduser().absolute())

    def instant_us(self, name: str, zone_name: str = "timeZone") -> int:
        """A moment, in microseconds since 1970; without a zone of its own it is in `zone_name`."""
        value = self.needed(name, "2030-01-31 12:00:00")
        try:
            moment = datetime.fromisoformat(value.strip())
        except ValueError:
            raise self._refused(
                name, f"is {value!r}; it is a position or a time like 2030-01-31 12:00:00.5"
            ) from None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=self.zone(zone_name))
        span = moment - _EPOCH
        return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds

    def zone(self, name: str) -> tzinfo:
        value = self.text(name)
        if value is None:
            return UTC
        try:
            return ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise self._refused(name, f"is {value!r}, which is no time zone") from None

    def refused(self, name: str, reason: str) -> InvalidOption:
        """The error for an option whose value is wrong for a reason only its user knows."""
        return self._refused(name, reason)

    def _refused(self, name: str, reason: str) -> InvalidOption:
        return InvalidOption(
            f"format {self._format!r}: option {name!r} {reason}",
            option=name,
            value=str(self.text(name))[:200],
        )


def is_integer(text: str) -> bool:
    return _INTEGER.fullmatch(text.strip()) is not None
