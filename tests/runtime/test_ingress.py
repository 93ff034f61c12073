"""A source that cannot be read again: what is in the log counts once, through crashes."""

from __future__ import annotations

import itertools
import random
import socket
import threading
import time
from collections import Counter
from contextlib import suppress

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
