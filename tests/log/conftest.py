"""Fixtures of the log's tests: a factory per backend, and two handles of its log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.log.contract")

from penstock.log.contract import Log  # noqa: E402 (rewriting must be asked for before the import)
from tests.log.contract import BACKENDS, LogFactory  # noqa: E402


@pytest.fixture(autouse=True)
def notes_are_frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers' sequences are noted so often that short logs have notes and records since."""
    monkeypatch.setattr("penstock.log.sequences.NOTE_EVERY", 5)


@pytest.fixture(params=BACKENDS)
def log_factory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogFactory]:
    """A new log of each backend in turn."""
    factory = LogFactory(request.param, tmp_path)
    yield factory
    factory.close()


@pytest.fixture
def log(log_factory: LogFactory) -> Log:
    """A handle on the log."""
    return log_factory.open()


@pytest.fixture
def other(log: Log, log_factory: LogFactory) -> Log:
    """Another handle on the same log, as a second process would have."""
    return log_factory.open()
