"""The memory bound of one state: asked before anything grows, so that a refusal changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import StateTooLarge


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """Refuses growth that would take a state beyond `bytes_max`.

    It is told what is in use, and knows nobody to ask: whoever holds it could not be in its hands
    without a cycle of references, and a state is to be freed the moment that nobody has it.
    """

    state: str
    bytes_max: int

    def grant(self, bytes_more: int, bytes_used: int) -> None:
        """Return if the state may grow by so much; raise `StateTooLarge` if not."""
        if bytes_used + bytes_more > self.bytes_max:
            raise StateTooLarge(
                f"state {self.state!r} holds {bytes_used} bytes and needs {bytes_more} more, "
                f"beyond its bound of {self.bytes_max}; nothing was changed",
                state=self.state,
                bytes_used=bytes_used,
                bytes_more=bytes_more,
                bytes_max=self.bytes_max,
            )
