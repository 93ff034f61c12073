"""Options as people write them behind `.option(...)`: each is declared once, and read in one way.

A declared option has a name, which is found whatever its case, a reader that makes a value of its
text, and the value that holds where it was not given. A reader raises ValueError, or an error of
ours, that says what would have been possible.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from difflib import get_close_matches
from typing import Any, Generic, TypeVar
from urllib.parse import unquote, urlparse
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from penstock.arguments import INTEGER_MAX
from penstock.errors import InvalidOption, StreamError

GIVEN_MAX = 200  # characters of a value that an error shows
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_ADDRESS = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+:/")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

T = TypeVar("T")
Refuse = Callable[[str, str, str], StreamError]  # of a message, an option's name and its text


@dataclass(frozen=True, slots=True, eq=False)
class Option(Generic[T]):
    """One option: how its text becomes a value, and which value it has without."""

    name: str
    read: Callable[[str], T]
    default: T
    sets: str | None = None  # the argument that its value is for


class Options:
    """What was given of the options that are declared for one purpose."""

    def __init__(
        self,
        purpose: str,
        declared: Iterable[Option[Any]],
        given: Mapping[str, str] | None = None,
        refuse: Refuse | None = None,
    ) -> None:
        """`purpose` is what the options are for; `refuse` makes an error of a message."""
        self._purpose = purpose
        self._declared = {option.name.lower(): option for option in declared}
        self._refuse = refuse or _invalid
        self._texts: dict[str, str] = {}
        self.values: dict[str, Any] = {}  # of those that were given, by their declared names
        for name, text in (given or {}).items():
            self.add(name, text)

    def add(self, name: str, text: str) -> None:
        """Read one more; one that means nothing here is refused: it may be a misspelt one."""
        option = self._declared.get(name.lower())
        if option is None:
            raise self._refuse(self._unknown(name), name, text[:GIVEN_MAX])
        self._texts[option.name] = text
        try:
            self.values[option.name] = option.read(text)
        except (ValueError, StreamError) as error:
            reason = error.message if isinstance(error, StreamError) else error
            raise self.refusal(option, f"is {text[:GIVEN_MAX]!r}; {reason}") from error

    def knows(self, name: str) -> bool:
        """Whether an option of this name is declared."""
        return name.lower() in self._declared

    def texts(self, options: Iterable[Option[Any]]) -> dict[str, str]:
        """Of these options those that were given, as they were written."""
        found = ((option.name, self._texts.get(option.name)) for option in options)
        return {name: text for name, text in found if text is not None}

    def __getitem__(self, option: Option[T]) -> T:
        value: T = self.values.get(option.name, option.default)
        return value

    def __contains__(self, option: Option[Any]) -> bool:
        """Whether it was given."""
        return option.name in self.values

    def arguments(self) -> dict[str, Any]:
        """The values that are not the default, by the arguments that they set."""
        found = (option for option in self._declared.values() if self[option] != option.default)
        return {option.sets: self[option] for option in found if option.sets is not None}

    def needed(self, option: Option[T | None], example: str) -> T:
        """The value of an option that nothing can be done without."""
        value = self[option]
        if value is None or value == "":
            raise self.refusal(option, f'is missing: add .option("{option.name}", "{example}")')
        return value

    def refusal(self, option: Option[Any], reason: str) -> StreamError:
        """The error for an option whose value is wrong for a reason that only its user knows."""
        given = self._texts.get(option.name, "")[:GIVEN_MAX]
        return self._refuse(f"option {option.name!r} {reason}", option.name, given)

    def _unknown(self, name: str) -> str:
        nearest = get_close_matches(name.lower(), self._declared, 1)
        meant = f" (did you mean {self._declared[nearest[0]].name}?)" if nearest else ""
        known = ", ".join(option.name for option in self._declared.values())
        return f"option {name!r} is not one for {self._purpose}{meant}; possible are {known}"


def _invalid(message: str, option: str, given: str) -> StreamError:
    return InvalidOption(message, option=option, value=given)


def format_refusal(name: str) -> Refuse:
    """How a format of Spark's refuses an option."""
    return lambda message, option, given: _invalid(f"format {name!r}: {message}", option, given)


# --- readers --------------------------------------------------------------------------------------


def whole(least: int | None = None, most: int = INTEGER_MAX) -> Callable[[str], int]:
    """A whole number, within bounds if there are any."""

    def read(text: str) -> int:
        if is_whole(text) and (least is None or int(text) >= least) and int(text) <= most:
            return int(text)
        upto = "on" if most == INTEGER_MAX else f"to {most}"
        bounds = "" if least is None else f" from {least} {upto}"
        raise ValueError(f"it is a whole number{bounds}")

    return read


def is_whole(text: str) -> bool:
    return _INTEGER.fullmatch(text.strip()) is not None


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("it is a number") from None


def flag(text: str) -> bool:
    if (word := text.strip().lower()) not in ("true", "false"):
        raise ValueError("it is true or false")
    return word == "true"


def choice(*possible: str) -> Callable[[str], str]:
    """One of some words, in any case."""

    def read(text: str) -> str:
        if (word := text.strip().lower()) not in possible:
            raise ValueError(f"possible are {', '.join(possible)}")
        return word

    return read


def names(text: str) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(name.strip() for name in text.split(","))


def moment(text: str) -> datetime:
    """A time, with a zone or without."""
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("it is a time like 2030-01-31 12:00:00.5") from None


def time_zone(text: str) -> tzinfo:
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("it is a time zone such as Europe/Paris") from None


def since_1970_us(moment: datetime, zone: tzinfo) -> int:
    """Microseconds up to a moment; `zone` is for one that has none of its own."""
    span = (moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)) - _EPOCH
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


def is_elsewhere(text: str) -> bool:
    """Whether it is an address of anything but a file of this machine."""
    return _ADDRESS.match(text) is not None


def local_path(text: str) -> str:
    """A path of this machine, which may be written as a `file:` address."""
    if is_elsewhere(text):
        raise ValueError("it is a folder of the local machine")
    return unquote(urlparse(text).path) if text.startswith("file:") else text


# --- options that several formats have ------------------------------------------------------------

NUM_PARTITIONS = Option("numPartitions", whole(1, 65_536), None)
MAX_ROWS_PER_TRIGGER = Option("maxRowsPerTrigger", whole(1), None)
TIME_ZONE: Option[tzinfo] = Option("timeZone", time_zone, UTC)
