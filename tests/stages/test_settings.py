"""Settings are checked when built; errors name the setting and its bounds."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from penstock.errors import InvalidConfig, InvalidName
from penstock.json_codec import canonical_json, parse, read_as
from penstock.stages.settings import Settings


def test_defaults() -> None:
    settings = Settings()
    assert settings.commit_interval_ms == 20
    assert settings.late_stream is None
    node = parse(canonical_json(settings))
    # Also what has its default: a later one must not change a stored program.
    assert set(node) == {field.name for field in fields(Settings)}
    assert read_as(Settings, node, "settings") == settings


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("commit_interval_ms", -1), ("commit_interval_ms", True), ("commit_interval_ms", 1.5),
        ("commit_interval_ms", "20"), ("commit_interval_ms", 10**10), ("step_rows_max", 0),
        ("early_append_bytes_max", 0), ("checkpoint_interval_commits", 0), ("idle_timeout_ms", 0),
        ("idle_timeout_ms", "1 s"), ("state_bytes_max", 1), ("codec", "gzip"), ("codec", None),
    ],
)  # fmt: skip
def test_out_of_range(setting: str, value: Any) -> None:
    with pytest.raises(InvalidConfig, match=f"{setting} is ") as error:
        Settings(**{setting: value})
    assert error.value.details["setting"] == setting


def test_streams_are_names_and_two_different_ones() -> None:
    with pytest.raises(InvalidName, match="late_stream"):
        Settings(late_stream="a/b")
    with pytest.raises(InvalidName, match="dead_letter_stream"):
        Settings(dead_letter_stream="")
    with pytest.raises(InvalidConfig, match="name two streams"):
        Settings(late_stream="a", dead_letter_stream="a")
    assert Settings(late_stream="a", dead_letter_stream="b").late_stream == "a"
