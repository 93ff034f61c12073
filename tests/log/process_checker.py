"""The judge of the torture test: compares a log, its raw files and what each process noted.

    python -m tests.log.process_checker LOG SIDE

It knows the log through `open_log().read` alone. A second time it reads the same records past the
log: the index with Python's own sqlite3, on a copy made before the log is opened here, and the
segments frame by frame from the bytes. Prints one JSON object; exit code 1 if anything is wrong.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import struct
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from penstock.log import open_log

BODY_HEADER = struct.Struct("<16sQQQQ")
SCRATCH_NUMBER = 2**64 - 1
FRAME = struct.Struct("<IHHQQ40x")
FRAME_MAGIC = 0x4D524650
HEAD_BYTES = 64
FINDINGS_MAX = 20


@dataclass(frozen=True)
class Seen:
    """A record as somebody saw it."""

    position: int
    producer: str
    instance: int
    sequence: int
    digest: str

    @property
    def key(self) -> tuple[str, int, int]:
        return self.producer, self.instance, self.sequence


@dataclass
class Raw:
    """What the files hold, read without the log."""

    records: dict[int, Seen] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    tags: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    trims: dict[str, int] = field(default_factory=dict)
    inline: int = 0
    in_segments: int = 0


def check(folder: Path, side: Path) -> dict[str, object]:
    """Check everything; the findings are under `findings`, at most some of each kind."""
    findings: list[str] = []
    raw = read_raw(folder, findings)
    trimmed = notes(side, "trimmer-*", findings)
    read_back = read_through_log(folder, sorted(raw.tags))
    findings += compare("the log and its raw files", read_back, raw.records)
    findings += compare("a trimmer and the log", raw.records, trimmed, subset=True)
    everything = trimmed | raw.records
    findings += list(check_positions(everything))
    findings += list(check_producers(everything))
    findings += list(check_streams(raw))
    findings += list(check_chains(raw))
    acks, took, retries = writers(side)
    findings += list(check_acks(everything, acks))
    findings += list(check_fences(everything, took))
    readers = sorted(side.glob("reader-*"))
    for path in readers:
        findings += list(check_reader(path, raw))
    return {
        "records": len(raw.records),
        "trimmed": len(everything) - len(raw.records),
        "inline": raw.inline,
        "in_segments": raw.in_segments,
        "acknowledged": len(acks),
        "instances": len(took),
        "retries": dict(retries),
        "readers": len(readers),
        "findings": findings[:FINDINGS_MAX],
        "findings_total": len(findings),
    }


def read_raw(folder: Path, findings: list[str]) -> Raw:
    raw = Raw()
    frames = {path.stem: dict(read_frames(path)) for path in (folder / "segments").glob("*.seg")}
    with tempfile.TemporaryDirectory() as name:
        for path in folder.glob("index.db*"):
            if not path.name.endswith("-shm"):
                shutil.copy(path, Path(name) / path.name)
        index = sqlite3.connect(Path(name) / "index.db")
        try:
            read_index(index, frames, raw, findings)
        finally:
            index.close()
    return raw


def read_index(
    index: sqlite3.Connection,
    frames: dict[str, dict[int, bytes]],
    raw: Raw,
    findings: list[str],
) -> None:
    (state,) = index.execute("PRAGMA integrity_check").fetchone()
    if state != "ok":
        findings.append(f"SQLite finds the index damaged: {state}")
    rows = index.execute(
        "SELECT r.position, r.producer, r.instance, r.sequence, r.length, r.checksum, r.body, "
        "s.name, r.offset FROM record r LEFT JOIN segment s ON s.id = r.segment "
        "WHERE r.tags_live > 0 ORDER BY r.position"
    )
    for position, producer, instance, sequence, length, checksum, inline, name, offset in rows:
        raw.inline += name is None
        raw.in_segments += name is not None
        body = inline if name is None else frames.get(name, {}).get(offset)
        if body is None or len(body) != length or xxhash.xxh3_64_intdigest(body) >> 1 != checksum:
            findings.append(f"position {position}: its bytes are not where the index says")
            continue
        raw.records[position] = Seen(
            position, producer, instance, sequence, hashlib.sha1(body).hexdigest()
        )
        raw.numbers[position] = check_body(raw.records[position], body, findings)
    for tag, position, previous in index.execute("SELECT * FROM tag ORDER BY tag, position"):
        raw.tags.setdefault(tag, []).append((position, previous))
    raw.trims = dict(index.execute("SELECT tag, upto FROM trim").fetchall())


def read_frames(path: Path) -> Iterator[tuple[int, bytes]]:
    """The frames of a segment up to the first that is not whole: what a killed writer left."""
    content = path.read_bytes()
    offset = HEAD_BYTES
    assert not content or content[:8] == b"PNSTSEGM"
    while offset + HEAD_BYTES <= len(content):
        magic, _, _, length, checksum = FRAME.unpack_from(content, offset)
        body = content[offset + HEAD_BYTES : offset + HEAD_BYTES + length]
        whole = len(body) == length and xxhash.xxh3_64_intdigest(body) >> 1 == checksum
        if magic != FRAME_MAGIC or not whole:
            return
        yield offset, body
        offset += HEAD_BYTES + length + -length % 64


def check_body(record: Seen, body: bytes, findings: list[str]) -> int:
    """A body says whose it is, and the rest of it follows from that."""
    header = body[: BODY_HEADER.size]
    vertex, instance, sequence, number, length = BODY_HEADER.unpack(header)
    named = (vertex.rstrip(b"\0").decode(), instance, sequence) == record.key
    if not named or body[BODY_HEADER.size :] != hashlib.shake_128(header).digest(length):
        findings.append(f"position {record.position}: another record's body")
    return int(number)


def read_through_log(folder: Path, tags: list[str]) -> dict[int, Seen]:
    found: dict[int, Seen] = {}
    after = 0
    with open_log(folder) as log:
        while tags and (records := log.read(tags, after, 512)):  # type: ignore[arg-type]
            for record in records:
                found[record.position] = Seen(
                    record.position,
                    record.producer,
                    record.instance,
                    record.sequence,
                    hashlib.sha1(record.body).hexdigest(),
                )
            after = records[-1].position
    return found


def parse(words: Iterable[str]) -> Iterator[Seen]:
    for word in words:
        position, producer, instance, sequence, digest = word.split(":")
        yield Seen(int(position), producer, int(instance), int(sequence), digest)


def whole_lines(path: Path) -> list[str]:
    return path.read_text("ascii").split("\n")[:-1]


def notes(side: Path, pattern: str, findings: list[str]) -> dict[int, Seen]:
    noted: dict[int, Seen] = {}
    for path in sorted(side.glob(pattern)):
        for seen in parse(whole_lines(path)):
            if noted.setdefault(seen.position, seen) != seen:
                findings.append(f"{path.name} saw two records at position {seen.position}")
    return noted


def writers(side: Path) -> tuple[list[Seen], list[tuple[str, int, int]], Counter[str]]:
    """What writers noted: answers, take-overs (vertex, instance, tail), and retries' outcomes."""
    acks: list[Seen] = []
    took: list[tuple[str, int, int]] = []
    retries: Counter[str] = Counter()
    for path in sorted(side.glob("writer-*")):
        for line in whole_lines(path):
            word, *rest = line.split()
            if word == "ack":
                acks += parse(rest)
            elif word == "took":
                took.append((rest[0], int(rest[1]), int(rest[2])))
            elif word == "retried":
                retries[rest[0]] += 1
    return acks, took, retries


def compare(
    who: str, first: dict[int, Seen], second: dict[int, Seen], *, subset: bool = False
) -> list[str]:
    """The positions at which two views differ; with `subset`, only where both have one."""
    positions = first.keys() & second.keys() if subset else first.keys() | second.keys()
    return [
        f"{who} differ at position {position}: {first.get(position)} and {second.get(position)}"
        for position in sorted(positions)
        if first.get(position) != second.get(position)
    ]


def check_positions(everything: dict[int, Seen]) -> Iterator[str]:
    for expected, position in enumerate(sorted(everything), 1):
        if expected != position:
            yield f"there is no record at position {expected}"
            return


def check_producers(everything: dict[int, Seen]) -> Iterator[str]:
    """Sequences of an instance are dense in position order, and instances of a vertex only rise."""
    next_sequence: dict[tuple[str, int], int] = defaultdict(int)
    newest: dict[str, int] = defaultdict(int)
    for _, seen in sorted(everything.items()):
        writer = (seen.producer, seen.instance)
        if seen.sequence != next_sequence[writer]:
            yield f"{writer} at position {seen.position}: sequence {seen.sequence} is out of order"
        next_sequence[writer] = seen.sequence + 1
        if seen.instance < newest[seen.producer]:
            yield f"position {seen.position}: instance {seen.instance} after a newer one"
        newest[seen.producer] = max(newest[seen.producer], seen.instance)


def check_streams(raw: Raw) -> Iterator[str]:
    """A vertex's numbers are 0, 1, 2 … across all its instances: nothing lost, nothing doubled."""
    for tag, rows in raw.tags.items():
        if tag.startswith("stream/"):
            numbers = [raw.numbers.get(position) for position, _ in rows]
            if numbers != list(range(len(rows))):
                wrong = next(i for i, number in enumerate(numbers) if i != number)
                yield f"{tag}: number {numbers[wrong]} where {wrong} was expected"


def check_chains(raw: Raw) -> Iterator[str]:
    for tag, rows in raw.tags.items():
        before: int | None = None
        for position, previous in rows:
            trimmed = before is None and previous <= raw.trims.get(tag, 0)
            if previous != before and not trimmed:
                yield f"{tag}: position {position} follows {previous} instead of {before}"
            before = position


def check_acks(everything: dict[int, Seen], acks: list[Seen]) -> Iterator[str]:
    positions: dict[tuple[str, int, int], int] = {}
    for ack in acks:
        if everything.get(ack.position) != ack:
            yield f"acknowledged but not there: {ack}"
        if positions.setdefault(ack.key, ack.position) != ack.position:
            yield f"acknowledged at two positions: {ack} and {positions[ack.key]}"


def check_fences(everything: dict[int, Seen], took: list[tuple[str, int, int]]) -> Iterator[str]:
    for vertex, instance, tail in took:
        for seen in everything.values():
            if seen.producer == vertex and seen.instance < instance and seen.position > tail:
                yield f"{seen} was appended after instance {instance} took over at {tail}"


def check_reader(path: Path, raw: Raw) -> Iterator[str]:
    """A reader saw every record of the streams once, in order."""
    expected = [
        raw.records[position]
        for position in sorted(raw.records)
        if raw.numbers[position] != SCRATCH_NUMBER
    ]
    seen = list(parse(whole_lines(path)))
    for wanted, got in zip(expected, seen, strict=False):
        if wanted != got:
            yield f"{path.name} saw {got} where {wanted} was expected"
            return
    if len(seen) != len(expected):
        yield f"{path.name} saw {len(seen)} records of {len(expected)}"


def main() -> int:
    verdict = check(Path(sys.argv[1]), Path(sys.argv[2]))
    print(json.dumps(verdict))
    return 1 if verdict["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
