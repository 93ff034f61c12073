"""Options: declared once, found whatever their case, and refused with what would be possible."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from typing import Any

import pytest

from penstock.errors import InvalidOption, StreamError, UnsupportedPlan
from penstock.expressions.durations import parse_duration
from penstock.options import (
    Option,
    Options,
    choice,
    flag,
    format_refusal,
    is_elsewhere,
    local_path,
    moment,
    names,
    number,
    since_1970_us,
    time_zone,
    whole,
)

SLOTS = Option("slots", whole(1), None, "slots_max")
PACED = Option("isPaced", flag, True, "paced")
DECLARED: tuple[Option[Any], ...] = (SLOTS, PACED, Option("rate", number, None))


def options(**given: str) -> Options:
    return Options("a test", DECLARED, given)


def test_an_option_is_found_whatever_its_case() -> None:
    found = options(SLOTS="3", ispaced="False")
    assert (found[SLOTS], found[PACED]) == (3, False)
    assert (SLOTS in found, SLOTS in options()) == (True, False)
    assert found.values == {"slots": 3, "isPaced": False}


def test_what_was_not_given_has_its_default() -> None:
    assert (options()[SLOTS], options()[PACED]) == (None, True)


def test_the_last_word_counts() -> None:
    found = options(slots="3")
    found.add("Slots", "4")
    assert found[SLOTS] == 4


def test_arguments_are_what_is_not_the_default() -> None:
    assert options(slots="3", isPaced="true", rate="1").arguments() == {"slots_max": 3}


def test_an_unknown_option_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InvalidOption) as caught:
        options(slot="3")
    assert caught.value.message == (
        "option 'slot' is not one for a test (did you mean slots?); "
        "possible are slots, isPaced, rate"
    )
    assert caught.value.details == {"option": "slot", "value": "3"}
    with pytest.raises(InvalidOption, match="not one for a test; possible"):
        options(xyz="3")


def test_a_wrong_value_is_refused_with_what_is_possible() -> None:
    with pytest.raises(InvalidOption) as caught:
        options(Slots="many")
    assert caught.value.message == "option 'slots' is 'many'; it is a whole number from 1 on"
    assert caught.value.details == {"option": "slots", "value": "many"}


def test_errors_are_as_the_place_wants_them() -> None:
    with pytest.raises(InvalidOption, match=r"^format 'x': option 'rate' is 'fast'; it is"):
        Options("a test", DECLARED, {"rate": "fast"}, format_refusal("x"))

    def refuse(message: str, option: str, given: str) -> StreamError:
        return UnsupportedPlan(f"{option}={given}: {message}")

    with pytest.raises(UnsupportedPlan, match=r"^rate=fast: option 'rate' is"):
        Options("a test", DECLARED, {"rate": "fast"}, refuse)


def test_what_is_needed_and_missing() -> None:
    assert options(slots="3").needed(SLOTS, "2") == 3
    with pytest.raises(InvalidOption, match=r"'slots' is missing: add \.option"):
        options().needed(SLOTS, "2")


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (whole(), " -7 ", -7),
        (whole(0, 5), "+5", 5),
        (number, "1e3", 1000.0),
        (flag, " TRUE ", True),
        (choice("none", "lz4"), " LZ4", "lz4"),
        (names, "a, b.c", ("a", "b.c")),
        (time_zone, "UTC", time_zone("UTC")),
        (local_path, "file:/a%20b", "/a b"),
        (local_path, "a:b/c", "a:b/c"),
        (parse_duration, "2 seconds", 2_000_000),
    ],
)
def test_readers(read: Callable[[str], Any], text: str, value: Any) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (whole(), "1.5", "it is a whole number$"),
        (whole(1, 5), "6", "from 1 to 5"),
        (whole(0), "-1", "from 0 on"),
        (whole(0), "9" * 19, "from 0 on"),
        (whole(), "9" * 5_000, "a whole number"),
        (number, "", "it is a number"),
        (flag, "si", "true or false"),
        (choice("none", "lz4"), "rar", "possible are none, lz4"),
        (moment, "noon", "a time like"),
        (time_zone, "Mars", "a time zone such as"),
        (time_zone, "../x", "a time zone such as"),
        (local_path, "hdfs://host/log", "a folder of the local machine"),
        (parse_duration, "soon", "not a length of time"),
    ],
)
def test_texts_that_do_not_fit(read: Callable[[str], Any], text: str, message: str) -> None:
    declared: Option[Any] = Option("it", read, None)
    with pytest.raises(InvalidOption, match=message):
        Options("a test", (declared,), {"it": text})


def test_addresses() -> None:
    assert is_elsewhere("s3://bucket/x")
    assert not any(is_elsewhere(text) for text in ("/a", "a/b", "file:/a", "file:///a"))


def test_moments_with_and_without_a_zone() -> None:
    tokyo = time_zone("Asia/Tokyo")
    assert since_1970_us(moment("1970-01-01T00:00:01Z"), tokyo) == 1_000_000
    assert since_1970_us(moment("1970-01-01 09:00:01"), tokyo) == 1_000_000
    assert since_1970_us(moment("1969-12-31 23:59:59.999999"), UTC) == -1
