"""A log with something of everything, what was acknowledged in it, and ways to harm its files."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from penstock.config import LogConfig
from penstock.errors import LogError
from penstock.log import open_log
from penstock.log.contract import Log, take_over
from penstock.log.record import START, Entry, Fence, Position, RecordKind

CONFIG = LogConfig(inline_bytes_max=1_024, segment_bytes_max=24 << 10)
RECORDS = 160
LARGE_EVERY = 5
TAGS = ("orders", "orders/0", "orders/1", "all", "rare", "old")
TRIMMED = {"old": Position(40), "orders/0": Position(12)}
KEYS = tuple(f"settings/k{number:02d}" for number in range(30))


@dataclass(frozen=True)
class Content:
    """Everything that can be asked of a log, as plain values that compare."""

    tail: int
    records: dict[str, list[tuple[object, ...]]]
    newest: dict[str, tuple[object, ...] | None]
    trimmed: dict[str, int]
    metadata: dict[str, tuple[int, bytes]]


def entry(number: int) -> Entry:
    """The number-th entry of the sample; every fifth one is too large for the index."""
    tags = ["all", "orders", f"orders/{number % 2}"]
    if number % 50 == 0:
        tags.append("rare")
    if number <= 60:
        tags.append("old")
    size = 1_500 + 37 * number if number % LARGE_EVERY == 0 else 20 + number
    body = bytes((number * 7 + place) % 251 for place in range(size))
    kind = RecordKind.MARKER if number % 10 == 9 else RecordKind.DATA
    return Entry(kind, tuple(tags), f"writer{number % 3}", 1, number, body)


def fill(log: Log, count: int = RECORDS) -> None:
    """Append the sample, singly and in groups, trim a part of it and set metadata."""
    for vertex in ("writer0", "writer1", "writer2"):
        take_over(log, vertex)
    number = 1
    while number <= count:
        group = [entry(n) for n in range(number, min(number + number % 4, count) + 1)]
        log.append(group, Fence(group[0].producer, 1))
        number += len(group)
    for tag, upto in TRIMMED.items():
        log.trim(tag, upto)
    for number, key in enumerate(KEYS):
        log.put(key, b"%d" % number * (number * 3))
    log.put(KEYS[3], b"again")


def content(log: Log) -> Content:
    """Read all of a log by every way there is."""
    records = {tag: [plain(record) for record in read_tag(log, tag)] for tag in TAGS}
    newest = {tag: log.last(tag) for tag in TAGS}
    values = {key: log.get(key) for key in log.keys()}  # noqa: SIM118 (not a dict)
    return Content(
        log.tail(),
        records,
        {tag: plain(record) if record else None for tag, record in newest.items()},
        {tag: log.trimmed(tag) for tag in TAGS},
        {key: (value.version, value.value) for key, value in values.items() if value},
    )


def read_tag(log: Log, tag: str) -> list[object]:
    records: list[object] = []
    after = START
    while page := log.read([tag], after, 50):
        records += page
        after = page[-1].position
    return records


def plain(record: object) -> tuple[object, ...]:
    fields = ("position", "kind", "tags", "producer", "instance", "sequence", "time_us")
    return (*(getattr(record, name) for name in fields), bytes(record.body))  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Sample:
    """A log's files as bytes, to be laid out again for each experiment, and its content."""

    files: dict[str, bytes]
    content: Content

    def lay_out(self, folder: Path) -> Path:
        """Write all files, and nothing else, into the folder."""
        if folder.exists():
            shutil.rmtree(folder)
        (folder / "segments").mkdir(parents=True)
        for name, data in self.files.items():
            (folder / name).write_bytes(data)
        return folder

    def segment(self, number: int = 0) -> str:
        return sorted(name for name in self.files if name.endswith(".seg"))[number]

    def outcome(self, folder: Path, *, read_only: bool) -> LogError | None:
        """Open and read everything: None if all is as acknowledged, or the log's own error.

        Anything else, an error of another kind or a single missing record, fails the test.
        """
        try:
            with open_log(folder, read_only=read_only, config=CONFIG) as log:
                found = content(log)
        except LogError as error:
            return error
        assert found == self.content
        return None


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file of a log but SQLite's shared memory, which holds nothing that lasts."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "index.db-shm"
    }


def make_sample(folder: Path, *, folded: bool) -> Sample:
    """Fill a log; either close it, or take its files while it is open, as a crash leaves them.

    In the second case about half of it has been folded into the index file before.
    """
    log = open_log(folder, create=True, config=CONFIG)
    if not folded:
        fill(log, RECORDS // 2)
        log._index.fold(wait=True)  # as a busy log does by itself when it has grown enough
        for number in range(RECORDS // 2 + 1, RECORDS + 1):
            log.append([entry(number)])
        log.put("settings/last", b"the newest change is not a record")
    else:
        fill(log)
    known = content(log)
    taken = files_of(folder)
    log.close()
    if folded:
        taken = files_of(folder)
    assert ("index.db-wal" in taken) is not folded
    return Sample(taken, known)


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Turn one bit of a file around."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def is_root() -> bool:
    return os.geteuid() == 0
