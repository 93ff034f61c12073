"""A control connection between a driver and a slot, as slow as the world wants it.

It keeps the contract of `runtime.control.Channel`: messages are JSON and come in order, what was
sent before an end is closed still arrives, and then the other end learns that it is closed.
"""

from __future__ import annotations

import json
from collections import deque

from penstock.runtime.control import Message


class End:
    """One end of a connection."""

    def __init__(self) -> None:
        self.other: End = self  # until it is connected
        self._arrived: deque[str | None] = deque()
        self._is_closed = False

    def send(self, message: Message) -> None:
        """Send a message; raises OSError if this end, or the other one, is closed."""
        if self._is_closed or self.other._is_closed:
            raise BrokenPipeError("the other end is gone")
        self.other._arrived.append(json.dumps(message))

    def has_news(self) -> bool:
        """Whether `receive` would return at once."""
        return bool(self._arrived) or self._is_closed

    def receive(self) -> Message | None:
        """The next message; None when the other end, or this one, is closed."""
        if self._is_closed or not self._arrived or self._arrived[0] is None:
            return None
        message: Message = json.loads(str(self._arrived.popleft()))
        return message

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.other._arrived.append(None)

    def lose(self) -> None:
        """This end is told that the connection is gone, though the other one knows nothing."""
        self._arrived.append(None)


def connection() -> tuple[End, End]:
    """The two ends of a new connection."""
    first, second = End(), End()
    first.other, second.other = second, first
    return first, second
