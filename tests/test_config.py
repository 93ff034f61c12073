"""Settings are checked when they are built, and the error names the setting and its bounds."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from penstock.config import GIB, KIB, MIB, LogConfig
from penstock.errors import InvalidConfig


def test_the_defaults_are_durable_and_in_range() -> None:
    config = LogConfig()
    assert config.durability == "synced"
    assert config.inline_bytes_max <= config.body_bytes_max <= config.append_bytes_max


def test_a_config_does_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        LogConfig().durability = "process"  # type: ignore[misc]


@pytest.mark.parametrize(
    "settings",
    [
        {"durability": "process"},
        {"segment_bytes_max": 4 * KIB},
        {"inline_bytes_max": 0},
        {"inline_bytes_max": 100, "body_bytes_max": 100, "append_bytes_max": 100},
        {"append_bytes_max": 4 * GIB},
    ],
)
def test_values_at_their_bounds_are_taken(settings: dict[str, Any]) -> None:
    config = LogConfig(**settings)
    assert {name: getattr(config, name) for name in settings} == settings


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("durability", "fsync"),
        ("durability", None),
        ("segment_bytes_max", 4 * KIB - 1),
        ("segment_bytes_max", 4 * GIB + 1),
        ("inline_bytes_max", -1),
        ("inline_bytes_max", MIB + 1),
        ("body_bytes_max", 0),
        ("append_bytes_max", 0),
        ("append_bytes_max", 1.5),
        ("append_bytes_max", True),
        ("append_bytes_max", "256"),
        ("wal_bytes_max", 0),
        ("punit_raw_bytes_max", 0),
        ("punit_raw_bytes_max", None),
    ],
)
def test_a_value_out_of_range_is_named(setting: str, value: object) -> None:
    with pytest.raises(InvalidConfig, match=setting) as caught:
        LogConfig(**{setting: value})  # type: ignore[arg-type]
    assert caught.value.details["setting"] == setting
    assert caught.value.details["value"] == str(value)


@pytest.mark.parametrize(
    ("setting", "settings"),
    [
        ("body_bytes_max", {"body_bytes_max": 2 * MIB, "append_bytes_max": MIB}),
        ("inline_bytes_max", {"inline_bytes_max": 2 * KIB, "body_bytes_max": KIB}),
    ],
)
def test_a_body_fits_into_what_holds_it(setting: str, settings: dict[str, int]) -> None:
    with pytest.raises(InvalidConfig, match=setting):
        LogConfig(**settings)  # type: ignore[arg-type]
