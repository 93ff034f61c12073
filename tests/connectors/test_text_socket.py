"""Lines through a connection: cut as Spark cuts them, however they arrive, and never twice."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from penstock.connectors import text_socket
from penstock.connectors.text_socket import SocketSource
from penstock.errors import InvalidOffset, SourceError
from penstock.testing.clock import ManualClock

PATIENCE_S = 20.0


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def opened(server: socket.socket, offset: int = 0) -> tuple[SocketSource, socket.socket]:
    source = SocketSource("127.0.0.1", server.getsockname()[1], ManualClock(now_us=1_234_567))
    assert source.read(offset, 10).idle
    connection, _ = server.accept()
    return source, connection


def taken(source: SocketSource, offset: int, lines: int, rows_max: int = 100) -> list[str]:
    """The next lines; that they come at all takes the time that it takes."""
    found: list[str] = []
    until_s = time.monotonic() + PATIENCE_S
    while len(found) < lines and time.monotonic() < until_s:
        read = source.read(offset + len(found), rows_max)
        if read.batch is not None:
            found += read.batch.column("value").to_pylist()
            assert read.batch.num_rows <= rows_max
            assert set(read.batch.column("timestamp").cast("int64").to_pylist()) == {1_234_000}
    return found


def test_lines_are_cut_at_every_kind_of_end(server: socket.socket) -> None:
    source, connection = opened(server)
    with connection:
        connection.sendall(b"a\nb\r\n\rc\xff\xc3\xa4\n")
        assert taken(source, 0, 4) == ["a", "b", "", "c\ufffdä"]
        connection.sendall(b"half")
        assert source.read(4, 10).idle
        connection.sendall(b"\r")
        assert source.read(4, 10).idle  # a newline may follow, which belongs to it
        connection.sendall(b"\nlast")
        assert taken(source, 4, 1) == ["half"]
    assert taken(source, 5, 1) == ["last"]  # it is complete, as nothing can follow
    assert source.read(6, 10).idle
    source.close()


def test_no_more_lines_than_asked_for(server: socket.socket) -> None:
    source, connection = opened(server, 40)
    with connection:
        connection.sendall(b"".join(b"%d\n" % number for number in range(30_000)))
        assert taken(source, 40, 30_000, rows_max=700) == [str(n) for n in range(30_000)]
    source.close()


def test_there_is_no_going_back(server: socket.socket) -> None:
    source, connection = opened(server)
    with connection:
        connection.sendall(b"a\n")
        assert taken(source, 0, 1) == ["a"]
        with pytest.raises(InvalidOffset, match="cannot be read again"):
            source.read(0, 10)
    source.close()


def test_a_line_without_end_is_told(server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_socket, "LINE_BYTES_MAX", 1_000)
    source, connection = opened(server)
    with connection:
        connection.sendall(b"x" * 2_000)
        with pytest.raises(SourceError, match="a line of more than"):
            taken(source, 0, 1)
    source.close()


def test_nobody_who_sends_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(SourceError, match=f"cannot connect to 127.0.0.1 port {port}"):
        SocketSource("127.0.0.1", port, ManualClock()).read(0, 1)
