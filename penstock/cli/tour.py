"""`penstock tour`: a tour of the shared log that checks everything it shows."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from penstock.errors import Fenced, SequenceConflict, StreamError
from penstock.log import open_log
from penstock.log.contract import Log, take_over
from penstock.log.fsck import fsck
from penstock.log.record import START, Entry, Fence, Position, Record, RecordKind
from penstock.log.survey import summarise

# New processes, not forked ones: what they know, they have read from the log.
PROCESSES = multiprocessing.get_context("spawn")
ANSWER_S_MAX = 60.0
ORDERS_PER_WRITER = 100
ACKNOWLEDGED_BEFORE_KILL = 100
TAGS = ("orders", "hot/0", "hot/1", "changes/count", "payments", "clicks", "readings")


def add_parser(subparsers: Any) -> None:
    """Add `penstock tour` to the command line."""
    parser = subparsers.add_parser("tour", help="a guided tour that checks what it shows")
    parser.add_argument(
        "--keep", metavar="DIR", type=Path, help="make the log in DIR and keep it afterwards"
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Give the tour in a temporary folder, or in one that stays."""
    if args.keep is not None:
        return give_tour(args.keep)
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        return give_tour(Path(folder) / "log")


def give_tour(path: Path) -> int:
    """Show each stop on one log; return 1 if anything shown was not as promised."""
    tour = Tour()
    with open_log(path, create=True) as log:
        for stop in STOPS:
            tour.open_stop(stop)
            stop(log, path, tour)
    return tour.close()


class Tour:
    """What is printed, and how many checks held."""

    def __init__(self) -> None:
        self.stops = 0
        self.passed = 0
        self.failed = 0

    def open_stop(self, stop: Stop) -> None:
        """Print a stop's title and what it is about: its docstring."""
        title, _, text = (stop.__doc__ or "").partition("\n")
        self.stops += 1
        print(f"\n{self.stops}. {title}")
        print(textwrap.indent(textwrap.dedent(text).strip("\n"), "   "), flush=True)
        print()

    def show(self, what: str, value: object) -> None:
        """Print one fact."""
        print(f"     {what:<44} {value}", flush=True)

    def check(self, what: str, holds: bool) -> None:
        """Print and count one promise."""
        self.passed += holds
        self.failed += not holds
        print(f"     {what:<44} {'yes' if holds else 'NO: THIS IS A BUG'}", flush=True)

    def close(self) -> int:
        """Print the sum; return the exit code."""
        total = self.passed + self.failed
        print(f"\n{self.passed} of {total} checks held.", flush=True)
        return 1 if self.failed else 0


Stop = Callable[[Log, Path, Tour], None]


# ---- the processes of the tour ----


@contextmanager
def process(work: Callable[..., None], *args: object) -> Iterator[tuple[int, Connection]]:
    """Run `work(connection, *args)` in a new process; yield its id and our end of the pipe."""
    ours, theirs = PROCESSES.Pipe()
    child = PROCESSES.Process(target=work, args=(theirs, *args), daemon=True)
    child.start()
    theirs.close()
    assert child.pid is not None
    try:
        yield child.pid, ours
    finally:
        ours.close()
        child.kill()
        child.join(ANSWER_S_MAX)


def answers(connection: Connection) -> Iterator[Any]:
    """Yield what the process says until it ends; end the tour if it falls silent."""
    while True:
        if not connection.poll(ANSWER_S_MAX):
            raise TimeoutError(f"a process of the tour said nothing for {ANSWER_S_MAX:g} s")
        try:
            yield connection.recv()
        except (EOFError, ConnectionResetError):
            return


def wait_until_frozen(pid: int) -> None:
    """Return when a process of ours has stopped itself; end the tour if it never does."""
    deadline_s = time.monotonic() + ANSWER_S_MAX
    while os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"a process of the tour did not freeze in {ANSWER_S_MAX:g} s")
        time.sleep(0.005)


def order(producer: str, instance: int, sequence: int, tags: tuple[str, ...]) -> Entry:
    """Return an entry that says which order it is."""
    body = json.dumps({"order": f"{producer}-{sequence}"}).encode()
    return Entry(RecordKind.DATA, tags, producer, instance, sequence, body)


def write_orders(connection: Connection, path: Path, producer: str, count: int) -> None:
    """Append some orders, as fast as the disk allows."""
    with open_log(path) as log:
        instance = take_over(log, producer)
        connection.send("ready")
        connection.recv()
        for sequence in range(1, count + 1):
            entry = order(producer, instance, sequence, ("orders", f"orders/{producer}"))
            log.append([entry], Fence(producer, instance))


def write_until_stopped(
    connection: Connection, path: Path, producer: str, tag: str, freeze_after: int | None = None
) -> None:
    """Append orders for ever; tell of each one after the log has acknowledged it.

    With `freeze_after` the process stops itself (SIGSTOP) between that append and the next one.
    """
    with open_log(path) as log:
        instance = take_over(log, producer)
        sequence = 0
        while True:
            sequence += 1
            try:
                entry = order(producer, instance, sequence, (tag,))
                (position,) = log.append([entry], Fence(producer, instance))
            except Fenced as error:
                connection.send(str(error))
                return
            connection.send((sequence, position))
            if sequence == freeze_after:
                os.kill(os.getpid(), signal.SIGSTOP)


def read_all(log: Log, tag: str, after: Position = START) -> list[Record]:
    """Return every record of a tag."""
    records: list[Record] = []
    while page := log.read([tag], after, limit=1_000):
        records += page
        after = page[-1].position
    return records


# ---- the stops ----


def two_writers(log: Log, path: Path, tour: Tour) -> None:
    """Two processes write, and everyone reads one order

    Each process appends 100 records to the same folder at the same time. There is no
    server between them. Every record is on disk before its append returns.
    """
    writers = ("web", "phone")
    with (
        process(write_orders, path, writers[0], ORDERS_PER_WRITER) as (_, web),
        process(write_orders, path, writers[1], ORDERS_PER_WRITER) as (_, phone),
    ):
        for connection in (web, phone):
            next(answers(connection))  # both are up: now they write at the same time
        for connection in (web, phone):
            connection.send("go")
        for connection in (web, phone):
            list(answers(connection))
    records = read_all(log, "orders")
    positions = [record.position for record in records]
    producers = [record.producer for record in records]
    turns = sum(one != other for one, other in pairwise(producers))
    tour.show("records under the tag 'orders'", len(records))
    tour.show("times the order switches between writers", turns)
    tour.check("all records are there", len(records) == 2 * ORDERS_PER_WRITER)
    tour.check(
        "positions are dense: no gap, no double",
        positions == list(range(positions[0], positions[0] + len(positions))),
    )
    for producer in writers:
        own = [record.sequence for record in read_all(log, f"orders/{producer}")]
        tour.check(
            f"'orders/{producer}' has its own, in order",
            own == list(range(1, ORDERS_PER_WRITER + 1)),
        )


def many_tags(log: Log, path: Path, tour: Tour) -> None:
    """One append reaches many streams, all of them or none

    A step of a stream job writes output for two readers, a change of its state and the
    marker that commits all three. It is one append: no reader can see a part of it.
    """
    instance = take_over(log, "count")
    step = [
        Entry(RecordKind.DATA, ("hot/0",), "count", instance, 1, b"auction 7: 12 bids"),
        Entry(RecordKind.DATA, ("hot/1",), "count", instance, 2, b"auction 9: 31 bids"),
        Entry(RecordKind.CHANGE, ("changes/count",), "count", instance, 3, b"7=12, 9=31"),
        Entry(RecordKind.MARKER, ("hot/0", "hot/1", "task/count"), "count", instance, 4, b"done"),
    ]
    positions = log.append(step, Fence("count", instance))
    for entry, position in zip(step, positions, strict=True):
        tour.show(f"{entry.kind.name} at position {position}", ", ".join(entry.tags))
    first, last = positions[0], positions[-1]
    tour.check("the positions are consecutive", positions == tuple(range(first, last + 1)))
    newest = [log.last(tag) for tag in ("hot/0", "hot/1", "task/count")]
    tour.check(
        "one marker ends all three streams",
        all(record is not None and record.position == last for record in newest),
    )
    merged = log.read(["hot/0", "hot/1"], Position(first - 1), limit=10)
    tour.check(
        "reading both, the marker comes once",
        [r.position for r in merged] == [first, first + 1, last],
    )


def safe_retry(log: Log, path: Path, tour: Tour) -> None:
    """Repeating an append is harmless

    A writer that does not know whether its append arrived repeats it. (producer,
    instance, sequence) names a record for ever: the second call finds the first.
    """
    instance = take_over(log, "payments")
    payment = order("payments", instance, 1, ("payments",))
    first = log.append([payment])
    tail = log.tail()
    second = log.append([payment])
    tour.show("first call / second call", f"{list(first)} / {list(second)}")
    tour.check("both return the same position", first == second)
    tour.check("nothing was added", log.tail() == tail and len(read_all(log, "payments")) == 1)
    forged = Entry(RecordKind.DATA, ("payments",), "payments", instance, 1, b"another amount")
    tour.check(
        "other content under that name is refused",
        raises(SequenceConflict, lambda: log.append([forged])),
    )


def fenced_zombie(log: Log, path: Path, tour: Tour) -> None:
    """A zombie cannot write

    A writer freezes between two appends (SIGSTOP), is taken for dead and replaced. Then
    it wakes up and goes on. Its append is refused, atomically with the instance check.
    """
    with process(write_until_stopped, path, "clicks", "clicks", 10) as (pid, connection):
        wait_until_frozen(pid)
        instance = take_over(log, "clicks")
        tail = log.tail()
        (position,) = log.append(
            [order("clicks", instance, 1, ("clicks",))], Fence("clicks", instance)
        )
        os.kill(pid, signal.SIGCONT)
        refusal = [each for each in answers(connection) if isinstance(each, str)]
    records = read_all(log, "clicks")
    tour.show(
        "records of the first instance", sum(record.instance < instance for record in records)
    )
    tour.show("the new instance wrote at", f"position {position}")
    for line in textwrap.wrap(" ".join(refusal), 70):
        print(f"       | {line}", flush=True)
    tour.check("the zombie was told that it is fenced", len(refusal) == 1)
    tour.check(
        "nothing of it came after the takeover",
        all(record.position <= tail for record in records if record.instance < instance),
    )


def killed_writer(log: Log, path: Path, tour: Tour) -> None:
    """kill -9 loses nothing that was acknowledged

    A writer is killed in the middle of its appends. Each append that had returned must
    be in the log, once and in order. A new instance then goes on after the last one.
    """
    acknowledged: dict[int, int] = {}
    with process(write_until_stopped, path, "meter", "readings") as (pid, connection):
        for sequence, position in answers(connection):
            acknowledged[sequence] = position
            if len(acknowledged) == ACKNOWLEDGED_BEFORE_KILL:
                os.kill(pid, signal.SIGKILL)  # what it still said before is read to the end
    records = read_all(log, "readings")
    stored = {record.sequence: record.position for record in records}
    unheard = len(stored.keys() - acknowledged.keys())
    tour.show("acknowledged before the kill", len(acknowledged))
    tour.show("in the log", f"{len(records)} ({unheard} without an answer)")
    tour.check(
        "every acknowledged record is there",
        all(stored.get(sequence) == position for sequence, position in acknowledged.items()),
    )
    tour.check(
        "each once, and in order",
        [record.sequence for record in records] == list(range(1, len(records) + 1)),
    )
    instance = take_over(log, "meter")
    newest = log.last("readings")
    (position,) = log.append([order("meter", instance, 1, ("readings",))], Fence("meter", instance))
    tour.check(
        "the log goes on after the newest record",
        newest is not None and newest.position < position == log.tail(),
    )


def information(log: Log, path: Path, tour: Tour) -> None:
    """What the log says of itself

    `penstock log info` shows this, `penstock fsck` checks every file while the log is
    in use. A second handle, read-only, then reads every record of the tour; each body
    is verified against its checksum on the way.
    """
    summary = summarise(path)
    tour.show("durability", summary.durability)
    for name in ("records", "tail", "visible_tail", "tags", "segments", "metadata_keys"):
        tour.show(name.replace("_", " "), getattr(summary, name))
    for name, value in asdict(log.statistics()).items():
        tour.show(f"this handle's {name.replace('_', ' ')}", value)
    tour.check("fsck finds no damage", fsck(path).is_clean)
    with open_log(path, read_only=True) as reader:
        records = {record.position for tag in TAGS for record in read_all(reader, tag)}
        tour.check(
            "every position up to the tail can be read",
            sorted(records) == list(range(1, reader.tail() + 1)),
        )


def raises(expected: type[StreamError], call: Callable[[], object]) -> bool:
    """Return whether a call ends in this error."""
    try:
        call()
    except expected:
        return True
    return False


STOPS: tuple[Stop, ...] = (
    two_writers,
    many_tags,
    safe_retry,
    fenced_zombie,
    killed_writer,
    information,
)
