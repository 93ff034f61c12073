"""The control port: proofs in both directions, strangers, crowds, and errors that pass."""

from __future__ import annotations

import json
import logging
import os
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ControlError
from penstock.log import open_log
from penstock.runtime import control
from penstock.runtime.control import Channel, ControlServer, Message, connect
from penstock.runtime.job import Job
from penstock.runtime.slot import SlotOrder, run_slot
from tests.runtime.laboratory import UNSYNCED
from tests.stages.programs import small

WAIT_S = 20.0
FACTS = {"slot": 3, "pid": 17, "machine": "here"}


@dataclass
class Port:
    """A server, and what came of its connections."""

    slots: list[Message] = field(default_factory=list)
    gone: list[ControlError] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    server: ControlServer = field(init=False)

    def __post_init__(self) -> None:
        self.server = ControlServer("127.0.0.1", self._on_slot, self._on_gone)

    def _on_slot(self, facts: Message, channel: Channel) -> None:
        with self.changed:
            self.slots.append(facts)
            self.changed.notify_all()
        for message in channel.messages():
            channel.send({**message, "type": "echo"})

    def _on_gone(self, error: ControlError) -> None:
        with self.changed:
            self.gone.append(error)
            self.changed.notify_all()

    def wait(self, what: Any) -> None:
        with self.changed:
            assert self.changed.wait_for(what, WAIT_S)

    def stranger(self) -> socket.socket:
        return socket.create_connection(self.server.address, WAIT_S)

    def check_slot(self) -> None:
        """A slot of ours gets in, and both ends hear each other."""
        channel = connect(self.server.address, self.server.token, FACTS)
        try:
            channel.send({"type": "alive", "n": 1})
            assert channel.receive() == {"type": "echo", "n": 1}
        finally:
            channel.close()


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[Port]:
    """A port; no thread behind it may end with an exception."""
    raised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    made = Port()
    yield made
    made.server.close()
    assert raised == []


def is_closed(stranger: socket.socket) -> bool:
    """Wait for the other end to close; whether it did."""
    try:
        while stranger.recv(1 << 16):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def test_a_slot_with_the_token_gets_in_and_says_who_it_is(port: Port) -> None:
    port.check_slot()
    assert {key: port.slots[0][key] for key in FACTS} == FACTS


def test_the_token_itself_never_travels(port: Port) -> None:
    """A relay between slot and job sees everything, and the token is not in it."""
    relay = socket.create_server(("127.0.0.1", 0))
    seen: list[bytes] = []

    def pass_on() -> None:
        near, _ = relay.accept()
        far = port.stranger()
        ends = {near: far, far: near}
        threads = [
            threading.Thread(target=copy, args=(source, ends[source])) for source in (near, far)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        near.close()
        far.close()

    def copy(source: socket.socket, target: socket.socket) -> None:
        while piece := source.recv(1 << 16):
            seen.append(piece)
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)

    passing = threading.Thread(target=pass_on)
    passing.start()
    channel = connect(relay.getsockname(), port.server.token, FACTS)
    port.wait(lambda: port.slots)
    channel.close()
    passing.join(WAIT_S)
    relay.close()
    everything = b"".join(seen)
    assert b"proof" in everything
    assert port.server.token.encode() not in everything


def test_a_slot_with_another_token_is_refused_and_refuses(port: Port) -> None:
    with pytest.raises(ControlError, match="is not the job of this slot"):
        connect(port.server.address, "another", FACTS)
    assert port.slots == []


@pytest.mark.parametrize("reflects", [True, False])
def test_whoever_cannot_prove_it_is_refused(port: Port, reflects: bool) -> None:
    """Also with the job's own proof, sent back: a proof is good for one role."""
    stranger = Channel(port.stranger())
    stranger.send({"type": "hello", "nonce": "00" * 32})
    challenge = stranger.receive()
    assert challenge is not None
    proof = challenge["proof"] if reflects else "00" * 32
    stranger.send({"type": "proof", "proof": proof, **FACTS})
    assert stranger.receive() is None
    assert port.slots == []
    stranger.close()


def test_a_slot_tells_an_impostor_nothing_and_does_nothing_for_it(tmp_path: Path) -> None:
    """The port of a job that ended is somebody else's by now."""
    impostor = socket.create_server(("127.0.0.1", 0))
    heard: list[Message | None] = []

    def pretend() -> None:
        connection, _ = impostor.accept()
        channel = Channel(connection)
        heard.append(channel.receive())
        channel.send({"type": "challenge", "nonce": "11" * 32, "proof": "22" * 32})
        channel.send({"type": "assign", "vertices": [["v", 1]]})
        heard.append(channel.receive())
        channel.close()

    thread = threading.Thread(target=pretend)
    thread.start()
    host, number = impostor.getsockname()
    order = SlotOrder(
        host=host,
        port=number,
        token="the true one",
        slot=0,
        program=small().to_json(),
        log=str(tmp_path / "log"),
        kernels=str(tmp_path / "kernels"),
    )
    with pytest.raises(ControlError, match="does not know the token"):
        run_slot(order)
    thread.join(WAIT_S)
    impostor.close()
    assert heard[0] is not None
    assert heard[0].keys() == {"type", "nonce"}
    assert heard[1] is None
    assert list(tmp_path.iterdir()) == []
    assert order.token not in repr(order)


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe\x00\n",
        b"[]\n",
        b"{}\n",
        b"\n",
        b'{"type":1}\n',
        b'{"type":"hello"}\n',
        b'{"type":"hello","nonce":null}\n',
        b'{"type":"hello","nonce":"\\ud800"}\n',
        b'{"type":"hello","nonce":"' + "\u0664".encode() * 64 + b'"}\n',
        b'{"type":"hello","nonce":""}\n',
        b"[" * 4_000 + b"\n",
        b'{"a":' * 800 + b"\n",
        b'{"type":"hello","nonce":' + b"1" * 4_050 + b"}\n",
        b"A" * 200_000,
    ],
    ids=range(14),
)
def test_garbage_closes_its_own_connection_and_nothing_else(port: Port, line: bytes) -> None:
    stranger = port.stranger()
    with suppress(ConnectionError):  # closed while it was still talking
        stranger.sendall(line)
    assert is_closed(stranger)
    stranger.close()
    port.check_slot()


def test_garbage_in_place_of_a_proof(port: Port) -> None:
    for proof in ("\ud800", None, "\u0664" * 64, "ab", 10**30, [[[]]]):
        stranger = port.stranger()
        stranger.sendall(b'{"type":"hello","nonce":"' + b"00" * 32 + b'"}\n')
        assert stranger.recv(1 << 16)
        stranger.sendall(json.dumps({"type": "proof", "proof": proof}).encode() + b"\n")
        assert is_closed(stranger)
        stranger.close()
    port.check_slot()


def test_a_slow_talker_has_as_long_as_a_silent_one(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "HELLO_TIMEOUT_S", 0.3)
    stranger = port.stranger()
    stranger.settimeout(0.02)  # one byte, then this pause
    for _ in range(round(WAIT_S / 0.02)):
        try:
            stranger.sendall(b" ")
            if stranger.recv(1) == b"":
                break
        except TimeoutError:
            continue
        except ConnectionError:
            break
    else:
        raise AssertionError("it was never closed")
    stranger.close()


def test_in_a_crowd_of_strangers_the_oldest_goes(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "UNPROVEN_MAX", 4)
    monkeypatch.setattr(control, "HELLO_TIMEOUT_S", 600.0)
    crowd = [port.stranger() for _ in range(20)]
    for stranger in crowd[:16]:
        assert is_closed(stranger)
    port.check_slot()
    for stranger in crowd:
        stranger.close()


def test_a_process_without_free_descriptors_accepts_again_later(
    port: Port, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, control.__name__)
    waiting = [socket.socket() for _ in range(3)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        for client in waiting:
            client.connect(port.server.address)
        refused = threading.Event()
        while not refused.wait(0.01):
            if any("was not accepted" in record.getMessage() for record in caplog.records):
                refused.set()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for client in waiting:
        client.settimeout(WAIT_S)
        client.sendall(b'{"type":"hello","nonce":"' + b"00" * 32 + b'"}\n')
        assert b"challenge" in client.recv(1 << 16)
        client.close()
    port.check_slot()


def test_a_thread_that_cannot_be_started_costs_one_connection(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    failures = iter([RuntimeError("can't start new thread")])

    def start_or_not(thread: threading.Thread) -> None:
        if thread.name == "penstock-slot-control" and (error := next(failures, None)) is not None:
            raise error
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_not)
    stranger = port.stranger()
    assert is_closed(stranger)
    stranger.close()
    port.check_slot()


def test_a_port_that_is_gone_says_so(port: Port) -> None:
    port.server._listener.shutdown(socket.SHUT_RDWR)
    port.wait(lambda: port.gone)
    assert f"{port.server.address[1]} is gone" in port.gone[0].message


class NoSlots:
    """A cluster that is busy with others."""

    def launch(self, order: SlotOrder, on_end: Any) -> None:
        return None

    def cancel_slot(self, slot: int) -> None:
        return None

    def cancel(self) -> None:
        return None

    def ended(self) -> str | None:
        return None


def test_a_query_without_its_port_ends(tmp_path: Path) -> None:
    with open_log(tmp_path / "log", create=True, config=UNSYNCED) as log:
        job = Job(small(), log, NoSlots(), host="127.0.0.1", slots=1, standbys=0)
        job.start()
        job._server._listener.shutdown(socket.SHUT_RDWR)
        assert job.wait_over(WAIT_S)
        assert isinstance(job.error, ControlError)
        job.stop()  # harmless
