"""Operators that go by event time: the watermark that they were told last, and what it ends."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from penstock.operators.contract import Batches, Operator


class TimedOperator(Operator):
    """Acts where event time has come further; a marker holds how far that is."""

    _watermark_us: int | None = None

    def on_watermark(self, watermark_us: int, of_ports_us: Sequence[int]) -> Batches:
        before = self._watermark_us
        if before is not None and watermark_us <= before:
            return ()
        self._watermark_us = watermark_us
        return self._advance(before, watermark_us)

    @abstractmethod
    def _advance(self, before_us: int | None, watermark_us: int) -> Batches:
        """Emit what event time finishes from the watermark before, if there was one, to this."""

    def _newest(self, watermark_us: int | None) -> int | None:
        """By which rows are late: this watermark, or the last one if that is newer."""
        known = [mark for mark in (watermark_us, self._watermark_us) if mark is not None]
        return max(known, default=None)

    def progress(self) -> Any:
        return self._watermark_us

    def restore_progress(self, progress: Any) -> None:
        self._watermark_us = progress
