"""Producers and the gate: what is taken, acknowledged, sent again, refused, and what waits."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.connectors import producer_wire as wire
from penstock.connectors.producer import Producer
from penstock.errors import InvalidArgument, InvalidOffset, ProducerRefused
from tests.connectors.listening import PATIENCE_S, Listening, rows


def test_rows_are_acknowledged_when_they_are_committed(gate: Listening) -> None:
    producer = gate.producer()
    assert producer.offset is None
    producer.send(rows(1, 2), 2)
    producer.send_csv(b"3,t3\n4,\n", 4)
    producer.send_json(b'{"n": 5, "text": "t5"}\n', 5)
    gate.until(lambda: len(gate.numbers) == 5)
    assert gate.numbers == [1, 2, 3, 4, 5]
    assert not producer.flush(timeout_s=0.05)
    assert producer.offset is None
    gate.commit()
    assert producer.flush(PATIENCE_S)
    assert producer.offset == 5
    producer.close()
    with gate.producer() as again:
        assert again.offset == 5


def test_what_was_not_committed_is_sent_again_to_who_follows(gate: Listening) -> None:
    producer = gate.producer()
    producer.send(rows(1), 1)
    gate.until(lambda: gate.numbers == [1], commit=True)
    producer.send(rows(2), 2)
    producer.send(rows(3), 3)
    gate.until(lambda: gate.numbers == [1, 2, 3])
    gate.crash()
    assert gate.numbers == [1]
    gate.until(lambda: gate.numbers == [1, 2, 3])
    gate.commit()
    assert producer.flush(PATIENCE_S)
    producer.close()


def test_a_producer_that_comes_again_goes_on_behind_all_that_counts(gate: Listening) -> None:
    """Also with units that are cut in another way than in its first life."""
    producer = gate.producer()
    producer.send(rows(1), 1)
    producer.send(rows(2), 2)
    gate.until(lambda: gate.numbers == [1, 2])
    producer._end()  # it is gone, and knows of no acknowledgement
    later: list[Producer] = []
    threading.Thread(
        target=lambda: later.append(Producer("till", gate.port, token_file=gate.token_file))
    ).start()
    time.sleep(0.1)
    assert not later, "what was taken is neither committed nor forgotten yet"
    gate.until(lambda: bool(later), commit=True)
    assert later[0].offset == 2
    later[0].send(rows(3, 4), 4)
    gate.until(lambda: gate.numbers == [1, 2, 3, 4], commit=True)
    later[0].close()


def test_offsets_must_rise_and_a_name_is_used_once(gate: Listening) -> None:
    producer = gate.producer()
    producer.send(rows(1), 7)
    for wrong in (7, 3, 0, -1, 1.5):
        with pytest.raises(InvalidArgument):
            producer.send(rows(2), wrong)  # type: ignore[arg-type]
    with pytest.raises(ProducerRefused, match="a producer till is connected"):
        gate.producer(patience_s=0.2)
    other = gate.producer("other")
    other.send(rows(2), 1)
    gate.until(lambda: sorted(gate.numbers) == [1, 2], commit=True)
    assert gate.committed == {"till": 7, "other": 1}
    producer.close()
    other.close()


def test_a_unit_that_does_not_fit_is_refused_whole(gate: Listening) -> None:
    for wrong in (b"1,t1\nx,t2\n", b"1\n"):
        producer = gate.producer()
        producer.send_csv(wrong, 1)
        with pytest.raises(ProducerRefused, match="does not fit the columns"):
            producer.flush(PATIENCE_S)
        with suppress(ProducerRefused):
            producer.close()
    for batch in (pa.record_batch({"n": [1]}), pa.record_batch({"n": ["1"], "text": ["t"]})):
        producer = gate.producer()
        producer.send(batch, 1)
        with pytest.raises(ProducerRefused, match="does not fit"):
            producer.flush(PATIENCE_S)
        producer._thread.join()  # and is left as it is: nothing of it stays open
        assert producer._wake_in.fileno() == producer._wake_out.fileno() == -1
    assert gate.read() == 0


def test_garbage_ends_its_connection_and_nothing_else(gate: Listening) -> None:
    producer = gate.producer()
    http = b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"
    for sent in (http, b"\x00" * 100, b"{}\n", b"x" * 10_000):
        with (
            suppress(OSError),
            socket.create_connection((wire.HOST, gate.port), PATIENCE_S) as connection,
        ):
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4_096):
                pass
    producer.send(rows(1), 1)
    gate.until(lambda: gate.numbers == [1], commit=True)
    producer.close()


@pytest.mark.parametrize(
    "head",
    [
        struct.pack("<BBHIQQ", 1, 1, 0, (1 << 32) - 1, 1, 0),  # 4 GiB: nothing is allocated
        struct.pack("<BBHIQQ", 1, 9, 0, 1, 1, 0),
        struct.pack("<BBHIQQ", 9, 1, 0, 1, 1, 0),
        wire.frame(wire.UNIT, b"1,t\n", 1, 2)[:-1] + b"\x00" + b"1,t\n",  # a wrong checksum
        wire.frame(wire.UNIT, b"1,t\n", 1, 2) + b"1,",  # half a unit, then nothing
    ],
)
def test_a_producer_that_breaks_off_or_lies_leaves_nothing(gate: Listening, head: bytes) -> None:
    producer = gate.producer()
    producer.send_csv(b"1,t1\n", 1)
    gate.until(lambda: gate.numbers == [1], commit=True)
    connection, _ = _taken_over(producer, gate)
    connection.sendall(head)
    connection.shutdown(socket.SHUT_WR)
    with suppress(OSError):
        while connection.recv(4_096):
            pass
    connection.close()
    again = gate.producer()
    assert again.offset == 1
    again.send(rows(2), 2)
    gate.until(lambda: gate.numbers == [1, 2], commit=True)
    again.close()


def _taken_over(producer: Producer, gate: Listening) -> tuple[socket.socket, int | None]:
    """A bare connection under the name of a producer that is gone."""
    producer.close()
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return producer._connect()
        except (OSError, wire.Garbage):
            assert time.monotonic() < until_s


def test_who_has_another_token_is_refused_at_once(gate: Listening, tmp_path: Path) -> None:
    other = tmp_path / "other"
    wire.read_token(other, create=True)
    with pytest.raises(ProducerRefused, match="another token"):
        Producer("till", gate.port, token_file=other)
    other.chmod(0o644)
    with pytest.raises(InvalidArgument, match="others may read it"):
        Producer("till", gate.port, token_file=other)


def test_a_producer_that_is_too_fast_waits(tmp_path: Path) -> None:
    """Nothing is buffered without bound, on either side, while nobody reads or commits."""
    gate = Listening(tmp_path, buffer_bytes=1 << 20)
    unit = b"1,%s\n" % (b"x" * 100_000)
    producer = gate.producer(kept_bytes_max=2 << 20)
    sent = [0]

    def send() -> None:
        for number in range(1, 101):
            producer.send_csv(unit, number)
            sent[0] = number

    thread = threading.Thread(target=send)
    thread.start()
    before = -1
    while before != sent[0]:
        before = sent[0]
        time.sleep(0.3)
    assert 10 <= sent[0] < 30, "about as many as are kept: 2 MiB"
    assert gate.source._gate is not None
    assert gate.source._gate.queued_bytes <= 1 << 20
    gate.until(lambda: len(gate.numbers) == 100, commit=True)
    thread.join()
    producer.close()
    gate.source.close()


def test_an_offset_of_something_else_is_refused(gate: Listening) -> None:
    for wrong in (3, {"till": "x"}, {"till": -1}, [1], {"other": 5}):
        with pytest.raises(InvalidOffset):
            gate.source.read(wrong, 10)
