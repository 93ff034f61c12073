"""Producers in processes of their own, and a query in a real session: nothing lost or doubled."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.connectors import producer_wire as wire
from penstock.connectors.producer import Producer
from penstock.errors import ProducerRefused
from penstock.log import open_log
from penstock.runtime.streams import StreamReader
from tests.spark.producer_process import DROPPED
from tests.spark.rig import ROOT, DriverProcess, kill
from tests.spark.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ROWS = 3_000
PLAIN = "plain"  # has no client of ours
GROWN_KIB_MAX = 20 << 10


@pytest.fixture
def port() -> int:
    with socket.create_server((wire.HOST, 0)) as free:
        found: int = free.getsockname()[1]
    return found


@pytest.fixture
def sender(tmp_path: Path, port: int) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts programs that send numbers."""
    begun: list[subprocess.Popen[str]] = []

    def begin(name: str, rows: int = ROWS, padding: int = 0) -> subprocess.Popen[str]:
        arguments = (str(port), str(tmp_path / "token"), name, str(rows))
        program = ("tests.spark.producer_process", *arguments, str(padding))
        if name == PLAIN:
            program = ("tests.spark.plain_process", *arguments)
        process = subprocess.Popen(
            [sys.executable, "-m", *program],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        begun.append(process)
        return process

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def wait_done(process: subprocess.Popen[str]) -> int:
    """Wait until all is acknowledged, dropped rows too; return by how many KiB it has grown."""
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return int(said.split()[-1])


def check_counts(log: Path, stream: str, *totals: int) -> None:
    """Every number that the filter leaves was counted, as often as producers have sent it."""
    with open_log(log, read_only=True) as opened:
        table = StreamReader(opened, stream).read_all()
    found = dict(zip(table.column("n").to_pylist(), table.column("count").to_pylist(), strict=True))
    wanted: dict[int, int] = {}
    for total in totals:
        for n in range(total - DROPPED):
            if n % 3:
                wanted[n] = wanted.get(n, 0) + 1
    assert found == wanted


def test_a_slot_dies_and_one_stands_still(
    driver: DriverProcess,
    sender: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    port: int,
) -> None:
    """A producer waits with what it has to send, in bounded memory; each row counts once."""
    driver.ask("listen", name="sent", port=port, token=str(tmp_path / "token"), slots=2)
    assert driver.ask("wait_running", name="sent")
    first, second = sender("till"), sender("safe", 1_200, padding=30_000)
    assert first.stdout is not None
    assert first.stdout.readline() == "begun\n"
    driver.wait_commits("sent")
    stopped = driver.working_pids("sent")
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(0.5)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    driver.wait_standby("sent")
    victim = driver.working_pids("sent")[0]
    kill(victim)
    driver.wait_recovered("sent", victim)
    wait_done(first)
    assert wait_done(second) < GROWN_KIB_MAX, "36 MB were sent"
    driver.ask("process_all", name="sent")
    check_counts(driver.log, "sent", ROWS, 1_200)
    driver.ask("stop", name="sent")


def connected(producer: Producer) -> tuple[socket.socket, int | None]:
    """Its connection, once it was heard that the one before is gone."""
    while True:
        try:
            return producer._connect()
        except wire.Garbage as refused:
            if "is connected" not in str(refused):
                raise


def test_bad_input_is_refused_and_the_query_goes_on(
    driver: DriverProcess,
    sender: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    port: int,
) -> None:
    token, other = tmp_path / "token", tmp_path / "other"
    driver.ask("listen", name="heard", port=port, token=str(token), standbySlots=0)
    assert driver.ask("wait_running", name="heard")
    good = sender("till")
    assert good.stdout is not None
    assert good.stdout.readline() == "begun\n"
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(5_000)):
        with socket.create_connection((wire.HOST, port), 30) as connection:
            connection.sendall(garbage)
    wire.read_token(other, create=True)
    with pytest.raises(ProducerRefused, match="another token"):
        Producer("thief", port, token_file=other)
    misfit = Producer("misfit", port, token_file=token)
    misfit.send(pa.record_batch({"n": ["one"], "k": [1], "pad": [""]}), 1)
    with pytest.raises(ProducerRefused, match="does not fit the columns"):
        misfit.flush(60)
    with pytest.raises(ProducerRefused):
        misfit.close()
    with pytest.raises(ProducerRefused, match="a producer till is connected"):
        Producer("till", port, token_file=token, patience_s=0.2)
    half = Producer("half", port, token_file=token)
    half.close()
    connection, offset = connected(half)
    assert offset is None
    unit = wire.encode_rows(pa.record_batch({"n": [1], "k": [1], "pad": [""]})).to_pybytes()
    connection.sendall(wire.frame(wire.UNIT, unit, 1, wire.FORMATS["arrow"]) + unit[:-8])
    connection.close()
    good.kill()  # vanishes
    good.wait()
    wait_done(sender("till"))
    driver.ask("process_all", name="heard")
    check_counts(driver.log, "heard", ROWS)
    assert driver.ask("is_over", name="heard") == {"over": False, "error": None}
    driver.ask("stop", name="heard")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_drivers_slots_and_producers_are_killed(
    new_driver: Callable[[str], DriverProcess],
    sender: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    port: int,
) -> None:
    rng = random.Random(7)
    token = str(tmp_path / "token")

    def listening() -> DriverProcess:
        begun = new_driver("local[4]").wait_ready()
        begun.ask("listen", name="sent", port=port, token=token)
        assert begun.ask("wait_running", name="sent")
        return begun

    driver = listening()
    living = {name: sender(name, 6_000) for name in ("east", "west", PLAIN)}
    for victim in ("driver", "east", PLAIN, "slot", "driver", "west", PLAIN, "east"):
        time.sleep(rng.uniform(0.1, 0.5))
        if victim == "driver":
            driver.kill()
            driver = listening()
        elif victim == "slot":
            pid = driver.working_pids("sent")[0]
            kill(pid)
            driver.wait_recovered("sent", pid)
        else:
            living[victim].kill()
            living[victim].wait()
            living[victim] = sender(victim, 6_000)
    for process in living.values():
        wait_done(process)
    driver.ask("process_all", name="sent")
    wait_for("all rows", lambda: driver.ask("progress", name="sent"))
    check_counts(driver.log, "sent", 6_000, 6_000, 6_000)
