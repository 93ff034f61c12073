"""Rows of programs without our client: plain lines and Arrow streams, from bare sockets."""

from __future__ import annotations

import json
import resource
import socket
import struct
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.connectors import producer_wire as wire
from penstock.connectors.plain_rows import LINES_BYTES_MAX
from penstock.connectors.producers import ProducersSource
from penstock.errors import MalformedInput
from tests.connectors.listening import PATIENCE_S, SCHEMA, Listening, rows


class Program:
    """A connection with its answers, read beside the gate's."""

    def __init__(self, gate: Listening, form: str = "csv", name: str = "till", **said: Any) -> None:
        self.socket = socket.create_connection((wire.HOST, gate.port), PATIENCE_S)
        token = gate.token_file.read_text().strip()
        hello = {"penstock": "rows", "format": form, "name": name, "token": token} | said
        self.socket.sendall(json.dumps(hello).encode() + b"\n")
        self.answers: list[dict[str, Any]] = []
        self.is_over = False
        self._at, self._name = gate, name
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        gate.until(lambda: bool(self.answers), commit=True)

    def _listen(self) -> None:
        with suppress(OSError), self.socket.makefile("rb") as lines:
            for line in lines:
                self.answers.append(json.loads(line))
        self.is_over = True

    @property
    def offset(self) -> int:
        return int(self.answers[-1]["offset"])

    def finish(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self._thread.join()
        if (listens := self._at.source._gate) is not None:  # the next one of this name may come
            known = listens._connections
            self._at.until(lambda: self._name not in known or known[self._name].has_said_all)


def csv(first: int, last: int) -> bytes:
    return b"".join(b"%d,t%d\n" % (n, n) for n in range(first, last + 1))


def test_lines_and_batches_are_acknowledged_by_their_number(gate: Listening) -> None:
    numbers = list(range(1, 5))
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, SCHEMA) as out:
        out.write_batch(rows(1, 2))
        out.write_batch(rows())
        out.write_batch(rows(3, 4))
    objects = b"".join(b'{"n": %d, "text": "t%d"}\n' % (n, n) for n in numbers)
    sent = {"csv": csv(1, 4), "json": objects, "arrow": stream.getvalue().to_pybytes()}
    for form, content in sent.items():
        gate.numbers.clear()
        program = Program(gate, form, name=form)
        assert program.answers == [{"type": "welcome", "offset": 0}]
        for at in range(0, len(content), 7):
            program.socket.sendall(content[at : at + 7])
        gate.until(lambda: len(gate.numbers) == 4)
        assert gate.numbers == numbers
        assert program.answers == [{"type": "welcome", "offset": 0}], "nothing is committed"
        program.finish()
        gate.until(lambda: program.is_over, commit=True)  # noqa: B023
        assert program.answers[-1] == {"type": "acknowledged", "offset": 4}
        program.close()
    assert gate.committed == dict.fromkeys(sent, 4)


def test_who_sends_all_again_is_counted_once(gate: Listening) -> None:
    program = Program(gate, after=0)
    program.socket.sendall(csv(1, 3))
    gate.until(lambda: gate.numbers == [1, 2, 3], commit=True)
    program.socket.sendall(csv(4, 5) + b"6,t")  # half a line is none
    gate.until(lambda: gate.numbers == [1, 2, 3, 4, 5])
    program.close()
    gate.crash()
    assert gate.numbers == [1, 2, 3]
    again = Program(gate, after=0)
    assert again.answers == [{"type": "welcome", "offset": 3}]
    again.socket.sendall(csv(1, 8))
    gate.until(lambda: len(gate.numbers) == 8, commit=True)
    again.close()
    from_there = Program(gate, after=6)
    from_there.socket.sendall(csv(7, 9))
    gate.until(lambda: len(gate.numbers) == 9, commit=True)
    from_there.close()
    assert gate.numbers == list(range(1, 10))
    gap = Program(gate, after=10)
    gate.until(lambda: gap.is_over)
    assert "rows 10 to 10 never came" in gap.answers[-1]["reason"]
    gap.close()


def test_who_does_not_count_loses_nothing_while_the_query_lives(gate: Listening) -> None:
    """Also what waits when the connection ends; the next one goes on behind it."""
    program = Program(gate)
    program.socket.sendall(csv(1, 2))
    assert gate.source._gate is not None
    intake = gate.source._gate._intake
    gate.until(lambda: intake.accepted("till") == 2)
    program.socket.sendall(csv(3, 4))
    while intake.accepted("till") < 4:
        pass  # not read: it waits in the gate
    program.close()
    again = Program(gate)
    assert gate.numbers == [1, 2, 3, 4]
    assert again.answers == [{"type": "welcome", "offset": 4}]
    again.socket.sendall(csv(5, 5))
    gate.until(lambda: gate.committed == {"till": 5}, commit=True)
    again.close()


def test_a_shell_is_enough(gate: Listening, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(csv(1, 2_000))
    script = (
        f"exec 3<>/dev/tcp/{wire.HOST}/{gate.port}; "
        f'echo \'{{"penstock":"rows","format":"csv","name":"till","after":0,"token":"\'$(cat '
        f'"{gate.token_file}")\'"}}\' >&3; cat "{tmp_path}/rows.csv" >&3; '
        'while read -r line <&3; do case "$line" in *2000*) exit 0; esac; done; exit 1'
    )
    for _ in range(2):
        with subprocess.Popen(["bash", "-c", script]) as shell:
            gate.until(lambda: shell.poll() is not None, commit=True)
        assert shell.returncode == 0
    assert gate.numbers == list(range(1, 2_001))


@pytest.mark.parametrize(
    ("form", "sent", "reason"),
    [
        ("csv", csv(1, 2) + b"x,t\n", "does not fit the columns"),
        ("csv", b"1\n", "does not fit the columns"),
        ("csv", b"1," + b"x" * LINES_BYTES_MAX, "a line of more than"),
        ("json", b'{"m": 1}\n', "does not fit the columns"),
        ("arrow", b"GET / HTTP/1.1\r\n\r\n", "no Arrow IPC stream"),
        ("arrow", struct.pack("<iI", -1, (1 << 32) - 1), "no Arrow IPC stream"),
        ("arrow", struct.pack("<iI", -1, 64) + b"\xff" * 64, "no message of an Arrow IPC stream"),
        ("arrow", struct.pack("<iI", -1, 64) + bytes(64), "does not fit the columns"),
    ],
)
def test_garbage_is_refused_and_ends_its_connection_alone(
    gate: Listening, form: str, sent: bytes, reason: str
) -> None:
    with gate.producer("other") as other:
        program = Program(gate, form)
        with suppress(OSError):
            program.socket.sendall(sent)
            program.finish()
        gate.until(lambda: program.is_over)
        if reason != "does not fit the columns" or form != "arrow":
            assert reason in program.answers[-1]["reason"]
        program.close()
        assert gate.numbers == []
        other.send(rows(7), 1)
        gate.until(lambda: gate.numbers == [7], commit=True)
    assert gate.committed == {"other": 1}


@pytest.mark.parametrize("cut_at", [0, 4, 8, 100, 300, -30])
def test_an_arrow_stream_that_breaks_off_leaves_whole_batches(gate: Listening, cut_at: int) -> None:
    batch = wire.encode_rows(rows(1, 2, 3)).to_pybytes()
    program = Program(gate, "arrow")
    program.socket.sendall(batch[:cut_at])
    program.finish()
    gate.until(lambda: program.is_over, commit=True)
    program.close()
    assert gate.numbers == []
    again = Program(gate, "arrow", after=0)
    again.socket.sendall(batch)
    gate.until(lambda: gate.numbers == [1, 2, 3], commit=True)
    again.close()


@pytest.mark.parametrize(
    "said",
    [
        {"token": "0" * 64},
        {"token": None},
        {"format": "xml"},
        {"name": "no name"},
        {"name": 3},
        {"after": -1},
        {"after": 1.5},
        {"after": True},
    ],
)
def test_who_says_something_else_is_refused(gate: Listening, said: dict[str, Any]) -> None:
    program = Program(gate, **said)
    assert program.answers[0]["type"] == "refused"
    program.close()


def test_a_program_that_is_too_fast_waits(tmp_path: Path) -> None:
    gate = Listening(tmp_path, buffer_bytes=1 << 20)
    program = Program(gate)
    content = b"".join(b"%d,%s\n" % (n, b"x" * 1_000) for n in range(1, 20_001))
    sender = threading.Thread(target=program.socket.sendall, args=(content,))
    sender.start()
    assert gate.source._gate is not None
    waiting = gate.source._gate
    before = -1
    while before != waiting.queued_bytes or not before:
        before = waiting.queued_bytes
        sender.join(0.2)
    assert sender.is_alive()
    assert waiting.queued_bytes <= 1 << 21, "no more than a piece above its bound"
    gate.until(lambda: len(gate.numbers) == 20_000, commit=True)
    sender.join()
    assert gate.numbers == list(range(1, 20_001))
    program.close()
    gate.source.close()


def test_what_decodes_to_much_more_is_refused_before_it_is_there(tmp_path: Path) -> None:
    """Objects that say nothing have a value in each of a hundred columns."""
    columns = pa.schema([pa.field(f"c{number}", pa.int64()) for number in range(100)])
    source = ProducersSource(columns, columns, 1, str(tmp_path / "token"))
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(MalformedInput, match="send fewer"):
        source._decode(wire.FORMATS["json"], pa.py_buffer(b"{}\n" * (1 << 20)))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 64 << 10
    one = source._decode(wire.FORMATS["json"], pa.py_buffer(b"{}\n"))
    assert one.num_rows == 1
