"""The processes of the torture test: writers, readers and a trimmer of one log.

Each keeps a side file of what it knows, a line per fact, written after the fact. Any of them may be
killed at any moment and is then started again; what it goes on with, it finds in the log and, where
a real program would ask its own records, in its side file.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from penstock.config import LogConfig
from penstock.errors import Fenced, LogBusy, OutcomeUnknown, Trimmed
from penstock.log import open_log
from penstock.log.contract import Log, take_over
from penstock.log.record import START, Entry, Fence, Position, Record, RecordKind

EXIT_FENCED = 42
VERTICES = ("w0", "w1", "w2")
STOP_WRITING = "stop-writing"
STOP_READING = "stop-reading"
SIZES = (0, 20, 300, 300, 1_500, 3_000, 20_000, 60_000)  # below and above `inline_bytes_max`
CONFIG = LogConfig(
    segment_bytes_max=256 << 10, inline_bytes_max=1 << 10, wal_bytes_max=1 << 20
)  # rolls and folds many times in a short run
SCRATCH_NUMBER = 2**64 - 1
# vertex, instance, sequence, number in the vertex's stream, length of the filler
HEADER = struct.Struct("<16sQQQQ")


class SideFile:
    """Facts of one process, a line each; a line that a kill cut short is not a fact."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        whole = sum(len(line) + 1 for line in self.lines(path))
        os.ftruncate(self._fd, whole)

    @staticmethod
    def lines(path: Path) -> list[str]:
        return path.read_text("ascii").split("\n")[:-1] if path.exists() else []

    def add(self, *lines: str) -> None:
        os.write(self._fd, "".join(f"{line}\n" for line in lines).encode("ascii"))


def run_role(role: Callable[..., None], side: Path, name: str, *arguments: object) -> None:
    """Run a role; leave what it died of where the test looks for it."""
    try:
        role(side, name, *arguments)
    except Exception:
        (side / f"error-{name}").write_text(traceback.format_exc())
        sys.exit(1)


def write(side: Path, name: str, folder: Path, vertex: str, before: str | None, seed: int) -> None:
    """Take a vertex over and continue its numbered stream until told to stop, or fenced."""
    facts = SideFile(side / f"writer-{name}")
    pause = side / f"pause-{name}"
    with open_log(folder, config=CONFIG) as log:
        instance = take_over(log, vertex)
        facts.add(f"took {vertex} {instance} {log.tail()}")
        if before is not None:
            retry_last(log, SideFile.lines(side / f"writer-{before}"), facts, vertex, seed)
        number = next_number(log, vertex)
        sequence = 0
        pace = random.Random(f"{seed} {name}")
        while not (side / STOP_WRITING).exists():
            if pause.exists():
                pause.unlink()
                os.kill(os.getpid(), signal.SIGSTOP)  # here: between two appends
            entries = entries_of(seed, vertex, instance, sequence, number)
            facts.add(f"try {instance} {sequence} {number}")
            try:
                positions = append(log, entries, Fence(vertex, instance))
            except Fenced:
                facts.add(f"fenced {vertex} {instance}")
                sys.exit(EXIT_FENCED)
            acknowledge(facts, entries, positions)
            sequence += len(entries)
            number += sum(number_of(entry) != SCRATCH_NUMBER for entry in entries)
            if pace.random() < 0.7:
                time.sleep(pace.random() * 0.01)


def append(log: Log, entries: list[Entry], fence: Fence) -> tuple[Position, ...]:
    """Append, and as long as the outcome is unknown repeat it."""
    while True:
        try:
            return log.append(entries, fence)
        except (OutcomeUnknown, LogBusy):
            continue


def retry_last(log: Log, known: list[str], facts: SideFile, vertex: str, seed: int) -> None:
    """Repeat the last append of a dead writer if it had no answer; its own instance is fenced now.

    If the append had gone through, this returns its first positions; if not, it never will.
    """
    tries = [line.split() for line in known if line.startswith("try ")]
    answered = known and known[-1].split()[0] in ("ack", "fenced")
    if not tries or answered:
        return
    instance, sequence, number = map(int, tries[-1][1:])
    entries = entries_of(seed, vertex, instance, sequence, number)
    try:
        acknowledge(facts, entries, append(log, entries, Fence(vertex, instance)))
        facts.add("retried found")
    except Fenced:
        facts.add("retried absent")
    except Trimmed:
        facts.add("retried trimmed")


def acknowledge(facts: SideFile, entries: list[Entry], positions: tuple[Position, ...]) -> None:
    keys = [
        f"{position}:{entry.producer}:{entry.instance}:{entry.sequence}:{digest(entry.body)}"
        for entry, position in zip(entries, positions, strict=True)
    ]
    facts.add(f"ack {' '.join(keys)}")


def next_number(log: Log, vertex: str) -> int:
    last = log.last(f"stream/{vertex}")
    return 0 if last is None else HEADER.unpack(last.body[: HEADER.size])[3] + 1


def entries_of(seed: int, vertex: str, instance: int, sequence: int, number: int) -> list[Entry]:
    """The entries of one append: the same for the same arguments, so that it can be repeated."""
    chance = random.Random(f"{seed} {vertex} {instance} {sequence}")
    entries = []
    for i in range(chance.choice((1, 1, 1, 2, 4))):
        if chance.random() < 0.25:
            tags: tuple[str, ...] = (f"scratch/{vertex}",)
            own = SCRATCH_NUMBER
        else:
            tags = (f"stream/{vertex}", *(("all",) if chance.random() < 0.5 else ()))
            own, number = number, number + 1
        body = body_of(vertex, instance, sequence + i, own, chance.choice(SIZES))
        kind = chance.choice(list(RecordKind))
        entries.append(Entry(kind, tags, vertex, instance, sequence + i, body))
    return entries


def body_of(vertex: str, instance: int, sequence: int, number: int, size_bytes: int) -> bytes:
    header = HEADER.pack(vertex.encode(), instance, sequence, number, size_bytes)
    return header + hashlib.shake_128(header).digest(size_bytes)


def number_of(entry: Entry) -> int:
    number: int = HEADER.unpack(bytes(entry.body)[: HEADER.size])[3]
    return number


def digest(body: object) -> str:
    return hashlib.sha1(body).hexdigest()  # type: ignore[arg-type]


def line_of(record: Record) -> str:
    return (
        f"{record.position}:{record.producer}:{record.instance}:{record.sequence}:"
        f"{digest(record.body)}"
    )


def read(side: Path, name: str, folder: Path, read_only: bool) -> None:
    """Note every record of all streams in order, from where the side file ends."""
    facts = SideFile(side / f"reader-{name}")
    known = SideFile.lines(side / f"reader-{name}")
    after = Position(int(known[-1].split(":")[0])) if known else START
    tags = ("all", *(f"stream/{vertex}" for vertex in VERTICES))
    with open_log(folder, read_only=read_only) as log:
        while True:
            ending = (side / STOP_READING).exists()
            log.wait(after, 0.0 if ending else 0.1)
            records = log.read(tags, after, 64)
            facts.add(*map(line_of, records))
            if records:
                after = records[-1].position
            elif ending:
                return


def trim(side: Path, name: str, folder: Path) -> None:
    """Note the oldest scratch records, then trim them; and the shared tag, whose records stay."""
    facts = SideFile(side / f"trimmer-{name}")
    with open_log(folder, config=CONFIG) as log:
        while not (side / STOP_READING).exists():
            for vertex in VERTICES:
                tag = f"scratch/{vertex}"
                records = log.read((tag,), START, 256)[:-5]
                if records:
                    facts.add(*map(line_of, records))
                    log.trim(tag, records[-1].position)
            log.trim("all", Position(max(0, log.tail() - 50)))
            time.sleep(0.02)
