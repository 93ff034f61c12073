"""The memory bound of one state: asked before anything grows, so that a refusal changes nothing."""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import StateTooLarge


class MemoryBound:
    """Refuses growth that would take a state beyond `bytes_max`."""

    def __init__(self, state: str, bytes_max: int, bytes_used: Callable[[], int]) -> None:
        self._state = state
        self._bytes_max = bytes_max
        self._bytes_used = bytes_used

    def spare(self) -> int:
        """Return how many bytes may still be taken."""
        return self._bytes_max - self._bytes_used()

    def grant(self, more_bytes: int) -> None:
        """Return if the state may grow by so much; raise `StateTooLarge` if not."""
        if more_bytes > self.spare():
            used = self._bytes_used()
            raise StateTooLarge(
                f"state {self._state!r} holds {used} bytes and needs {more_bytes} more, beyond its "
                f"bound of {self._bytes_max}; nothing was changed",
                state=self._state,
                bytes_used=used,
                bytes_more=more_bytes,
                bytes_max=self._bytes_max,
            )
