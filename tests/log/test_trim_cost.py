"""What a trim costs depends on what it trims, not on what the log holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config import LogConfig
from penstock.log import open_log
from penstock.log.local import LocalLog
from penstock.log.record import Entry, Position, RecordKind

STEPS = 50  # of SQLite's machine between two counts


def fill(log: LocalLog, first: int, count: int, *tags: str) -> None:
    for start in range(first, first + count, 500):
        stop = min(start + 500, first + count)
        log.append(
            [
                Entry(RecordKind.DATA, tags, "w", 1, sequence, b"row")
                for sequence in range(start, stop)
            ]
        )


def steps_of(log: LocalLog, action: object) -> int:
    """How much SQLite has to do for an action."""
    counted = 0

    def count() -> bool:
        nonlocal counted
        counted += 1
        return False

    connection = log._index._connection
    connection.set_progress_handler(count, STEPS)
    try:
        assert callable(action)
        action()
    finally:
        connection.set_progress_handler(None)
    return counted


@pytest.mark.parametrize("what", ["trim", "retry"])
def test_the_cost_does_not_grow_with_the_log(tmp_path: Path, what: str) -> None:
    costs = []
    for kept in (500, 20_000):
        folder = tmp_path / str(kept)
        with open_log(folder, create=True, config=LogConfig(durability="process")) as log:
            fill(log, 0, kept, "kept")
            fill(log, kept, 100, "trimmed")
            fill(log, kept + 100, 1, "kept")
            tail = Position(log.tail())
            last = Entry(RecordKind.DATA, ("kept",), "w", 1, kept + 100, b"row")
            actions = {
                "trim": lambda log=log, tail=tail: log.trim("trimmed", tail),
                "retry": lambda log=log, last=last: log.append([last]),
            }
            costs.append(steps_of(log, actions[what]))
            assert len(log.read(("trimmed",), Position(0), 1_000)) == (0 if what == "trim" else 100)
            assert log.tail() == tail
    short, long = costs
    assert long <= 1.5 * short + 5, f"{short} and {long} times {STEPS} steps"
