"""Runs the contract suite on every backend; conftest.py lists them."""

from __future__ import annotations

from tests.log.contract import LogContract


class TestLogContract(LogContract):
    """The tests are inherited, the backend comes from the `log_factory` fixture."""
