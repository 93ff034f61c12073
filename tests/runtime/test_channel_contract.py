"""What both kinds of control connections promise: the one of sockets and the simulated one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import TypeAlias

import pytest

from penstock.runtime.control import Channel
from penstock.sim.connection import End, connection

Ends: TypeAlias = tuple[Channel, Channel] | tuple[End, End]


@pytest.fixture(params=["sockets", "simulated"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    if request.param == "simulated":
        yield connection()
        return
    first, second = socket.socketpair()
    channels = Channel(first), Channel(second)
    yield channels
    for channel in channels:
        channel.close()


def test_messages_come_in_order_and_as_json(ends: Ends) -> None:
    one, other = ends
    one.send({"type": "assign", "vertices": (("v", 1),)})
    one.send({"type": "stop"})
    assert other.receive() == {"type": "assign", "vertices": [["v", 1]]}
    assert other.receive() == {"type": "stop"}


def test_both_ends_send(ends: Ends) -> None:
    one, other = ends
    one.send({"type": "a"})
    other.send({"type": "b"})
    assert (one.receive(), other.receive()) == ({"type": "b"}, {"type": "a"})


def test_what_was_sent_before_the_end_still_comes(ends: Ends) -> None:
    one, other = ends
    one.send({"type": "last"})
    one.close()
    assert other.receive() == {"type": "last"}
    assert other.receive() is None
    assert other.receive() is None


def test_nothing_is_sent_to_an_end_that_is_closed(ends: Ends) -> None:
    one, other = ends
    other.close()
    with pytest.raises(OSError):  # noqa: PT011 (which one depends on how far the news is)
        one.send({"type": "a"})
    with pytest.raises(OSError):  # noqa: PT011
        other.send({"type": "a"})
    assert one.receive() is None
    assert other.receive() is None


def test_what_cannot_be_json_is_not_sent(ends: Ends) -> None:
    one, _ = ends
    with pytest.raises(TypeError):
        one.send({"type": "a", "value": object()})
