"""A source that cannot be read again: what is in the log counts once, through crashes, and a slow
disk lets who sends wait."""

from __future__ import annotations

import itertools
import random
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.config import LogConfig
from penstock.connectors import producer_wire as wire
from penstock.connectors.producer import Producer
from penstock.connectors.producer_gate import Gate
from penstock.log.files import Files
from penstock.plan.explain import explain
from penstock.plan.optimizer import plan_program
from penstock.stages.settings import Settings
from penstock.testing.plans import count, query, scan_source
from tests.runtime.laboratory import Laboratory

PATIENCE_S = 30.0
LINES = 120  # to each who connects


class Sender:
    """Sends numbered lines to one connection after the other, and no line twice."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.sent = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                with suppress(OSError), connection:
                    numbers = range(self.sent, self.sent + LINES)
                    self.sent += LINES
                    connection.sendall(b"".join(b"%d\n" % number for number in numbers))
                    connection.recv(1)  # until the other side has closed

    def close(self) -> None:
        self._server.close()


def test_lines_of_a_socket_count_once_or_not_at_all(lab: Laboratory) -> None:
    rng = random.Random(5)
    sender = Sender()
    lines = scan_source("socket", "value string", partitions=1, host="127.0.0.1", port=sender.port)
    counts = lines.group_by("value").agg(count().alias("n"), mode="update")
    tested = query(
        "heard", lines.to_stream("lines"), counts.to_stream("counts"), parallelism=2,
        settings=Settings(step_rows_max=30, commit_interval_ms=0, available_now=True),
    )  # fmt: skip
    program = plan_program(tested)
    (ingress,) = (stage for stage in program.stages if stage.source is not None)
    assert not ingress.specs
    assert f"rows count once they are in {ingress.written[0]}" in explain(program)
    for _ in range(5):
        process = lab.open(tested)
        steps = itertools.count()
        stop_at = rng.randrange(60)
        process.run(until=lambda steps=steps, stop_at=stop_at: next(steps) >= stop_at)
        process.abandon()
    with lab.open(tested) as process:
        wanted = process.read("lines").num_rows + LINES
        until_s = time.monotonic() + PATIENCE_S
        while process.read("lines").num_rows < wanted:
            assert time.monotonic() < until_s
            process.run_available()
    sender.close()
    found = [int(row["value"]) for row in lab.rows("lines")]
    assert len(found) >= LINES
    assert len(set(found)) == len(found)
    assert Counter({int(row["value"]): row["n"] for row in lab.rows("counts")}) == Counter(found)


def test_a_disk_that_hangs_lets_producers_wait_and_nothing_grows(
    lab: Laboratory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bodies are on their way to the disk, which does not answer; then it does."""
    answers, asked = threading.Event(), threading.Event()
    answers.set()
    sync = Files.sync

    def held(files: Files, fd: int) -> None:
        asked.set()
        assert answers.wait(PATIENCE_S)
        sync(files, fd)

    gates: list[Gate] = []
    listen = Gate.__init__

    def noted(gate: Gate, *given: object) -> None:
        listen(gate, *given)  # type: ignore[arg-type]
        gates.append(gate)

    monkeypatch.setattr(Files, "sync", held)
    monkeypatch.setattr(Gate, "__init__", noted)
    with socket.create_server((wire.HOST, 0)) as free:
        port = free.getsockname()[1]
    token, buffer_bytes, kept_bytes_max = tmp_path / "token", 16 << 20, 1 << 20
    sent = scan_source(
        "producers", "n bigint, pad string", partitions=1, port=port, token_file=str(token),
        buffer_bytes=buffer_bytes, columns=[["n", "bigint"], ["pad", "string"]],
    )  # fmt: skip
    tested = query(
        "sent", sent.to_stream("kept"), settings=Settings(early_append_bytes_max=1 << 20)
    )
    units, pad = 300, "x" * 100_000
    is_over = threading.Event()
    handed_over = [0]

    def produce() -> None:
        with Producer("till", port, token_file=token, kept_bytes_max=kept_bytes_max) as producer:
            for n in range(1, units + 1):
                producer.send(pa.record_batch({"n": [n], "pad": [pad]}), n)
                handed_over[0] = n
        is_over.set()

    with lab.open(tested, log_config=LogConfig(inline_bytes_max=1_000)) as process:
        thread = threading.Thread(target=produce)
        stepping = threading.Thread(target=lambda: process.run(until=is_over.is_set))
        stepping.start()
        thread.start()
        while handed_over[0] < 10:
            time.sleep(0.001)
        asked.clear()
        answers.clear()
        assert asked.wait(PATIENCE_S)
        before = -1
        while before != handed_over[0]:
            before = handed_over[0]
            time.sleep(0.3)
        assert before < units, "the producer waits"
        assert gates[0].queued_bytes <= buffer_bytes
        answers.set()
        thread.join()
        stepping.join()
        assert process.read("kept").column("n").to_pylist() == list(range(1, units + 1))
