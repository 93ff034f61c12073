"""kill -9 at random moments, again and again: the committed output is exactly the oracle's."""

from __future__ import annotations

import multiprocessing
import random
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from penstock.kernels.cache import KernelCache
from penstock.log.fsck import fsck
from tests.runtime.killed import (
    FILES,
    LINES,
    UNIT_ROWS,
    UNITS,
    clean,
    send,
    take_in,
    verify,
    verify_cleaned,
    verify_sent,
    work,
)
from tests.thoroughness import IS_DEEP, some

ANSWER_S_MAX = 60.0
KILLS = 8 if IS_DEEP else 4


def _start(target: Callable[..., None], *args: Any) -> tuple[Any, Connection]:
    """A process forked off a server that has imported everything, so that a life begins at once."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.runtime.killed"])
    ours, theirs = processes.Pipe()
    process = processes.Process(target=target, args=(theirs, *args), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _answer(connection: Connection) -> Any:
    assert connection.poll(ANSWER_S_MAX), "a process fell silent"
    return connection.recv()


def _killed_again_and_again(
    rng: random.Random, least: int, work: Callable[..., None], *args: Any
) -> None:
    """Let processes work and kill them, and then let one come to its end."""
    killed = 0
    ended = False
    for _ in range(KILLS):
        process, connection = _start(work, *args)
        # Some die while they recover, before they can say that they have begun.
        if rng.random() < 0.7:
            assert _answer(connection) == "begun"
        if connection.poll(rng.uniform(0.0, 0.25)):
            with suppress(EOFError):
                ended = connection.recv() == "ended"
        process.kill()
        process.join(ANSWER_S_MAX)
        connection.close()
        if ended:
            break
        killed += 1
    assert killed >= least  # otherwise the query is over too soon to prove anything
    process, connection = _start(work, *args)
    assert _answer(connection) == "begun"
    assert _answer(connection) == "ended"
    process.join(ANSWER_S_MAX)


def _verdict(verify: Callable[..., None], *args: Any) -> Any:
    process, connection = _start(verify, *args)
    answer = _answer(connection)
    process.join(ANSWER_S_MAX)
    return answer


@pytest.mark.parametrize("seed", some((1, 2), every=2))
def test_a_process_killed_at_random_moments_loses_and_repeats_nothing(
    tmp_path: Path, kernels: KernelCache, seed: int
) -> None:
    folder = tmp_path / "log"
    kernels = type(kernels)(kernels.folder)  # has nothing loaded, so that it can travel
    _killed_again_and_again(random.Random(seed), 3, work, folder, kernels)
    bids_match, windows_match, windows = _verdict(verify, folder, kernels)
    assert bids_match
    assert windows_match
    assert windows > 1000
    assert not fsck(folder).findings


@pytest.mark.parametrize("way", some(("delete", "archive"), every=2))
def test_files_go_only_when_their_rows_are_committed(
    tmp_path: Path, kernels: KernelCache, way: str
) -> None:
    folder = tmp_path / "log"
    (tmp_path / "in").mkdir()
    for file in range(FILES):
        numbers = range(file * LINES, (file + 1) * LINES)
        lines = "".join(f'{{"n": {n}, "k": {n % 7}}}\n' for n in numbers)
        (tmp_path / "in" / f"{file}.json").write_text(lines)
    kernels = type(kernels)(kernels.folder)
    _killed_again_and_again(random.Random(way), 2, clean, folder, kernels, way)
    assert _verdict(verify_cleaned, folder, kernels) == (True, FILES * LINES)
    assert not list((tmp_path / "in").iterdir())
    if way == "archive":
        kept = tmp_path / "archive" / str(tmp_path / "in")[1:]
        assert len(list(kept.iterdir())) == FILES


def test_producers_and_who_listens_may_be_killed_at_any_moment(
    tmp_path: Path, kernels: KernelCache
) -> None:
    """Nothing that was sent is lost or counted twice, whoever dies; nor do dropped rows stay."""
    folder = tmp_path / "log"
    kernels = type(kernels)(kernels.folder)
    rng = random.Random(3)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    starts: dict[str, tuple[Any, ...]] = {
        "gate": (take_in, folder, kernels, port),
        "east": (send, folder, port, "east", 0),
        "west": (send, folder, port, "west", 1_000_000),
    }
    living = {name: _start(*args) for name, args in starts.items()}
    for _ in range(2 * KILLS):
        victim = rng.choice(list(living))
        process, connection = living[victim]
        connection.poll(rng.uniform(0.05, 0.3))
        process.kill()
        process.join(ANSWER_S_MAX)
        connection.close()
        living[victim] = _start(*starts[victim])
    for name in ("east", "west"):
        assert _answer(living[name][1]) == "begun"
        assert _answer(living[name][1]) == "ended"
    # Acknowledged rows are in the stream behind the gate; who counts them may still be at it.
    wanted = [
        n for first in (0, 1_000_000) for n in range(first, first + UNITS * UNIT_ROWS) if n % 3
    ]
    living["gate"][1].poll(1.0)
    until_s = time.monotonic() + ANSWER_S_MAX
    while True:
        numbers, times = _verdict(verify_sent, folder, kernels)
        if len(numbers) >= len(wanted) or time.monotonic() > until_s:
            break
    living["gate"][0].kill()
    assert (numbers, times) == (wanted, {1})
