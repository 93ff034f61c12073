"""Power cuts in the level `process`: they take the newest records, and nothing else.

Appends of this level sync nothing, so a power cut leaves whatever the kernel happened to have
written. Four rules keep the loss at the end of the log, and harmless there:

1. The write-ahead log is folded into the index in order, with syncs, as in the level `synced`. What
   is left of the index is therefore a prefix of its transactions.
2. Bodies are written back before a fold and before a trim. `written_back` says how far that has
   come. So no trim outlives the records that it was made for.
3. Positions are shown to nobody before they are reserved on disk, many at a time.
4. The first writer that opens the log after the machine was started anew (the bell knows the boot)
   looks at the bodies that were not written back. The log ends before the first append of which
   one did not survive. A note, a record under `POWER_CUT_TAG`, takes the place behind all reserved
   positions.

So no position is ever used twice, the tail never falls, and whoever has read what is lost now
stands between the last record that survived and the note, which says so.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from penstock.errors import LogDamaged
from penstock.json_codec import parse, spaced_json
from penstock.log.contract import READ_LIMIT_MAX, Log
from penstock.log.files import Files, named_errors
from penstock.log.index import Index
from penstock.log.record import START, Entry, Position, Record, RecordKind
from penstock.log.segments import SegmentReader
from penstock.names import check_name, show_path

POWER_CUT_TAG = "log/power_cut"
_PRODUCER = "penstock"
_BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")
_NO_BOOT = bytes(16)
_ROWS = 1_024


def boot_id() -> bytes:
    """Another number each time the machine is started; zeros where the system does not tell."""
    try:
        return UUID(_BOOT_FILE.read_text(encoding="ascii").strip()).bytes
    except (OSError, ValueError):
        return _NO_BOOT


@dataclass(frozen=True, slots=True)
class PowerCut:
    """Positions in (`after`, `upto`] may have been used and are lost; none is used again."""

    after: Position
    upto: Position

    def entry(self) -> Entry:
        body = spaced_json({"lost_after": self.after, "lost_upto": self.upto})
        return Entry(RecordKind.CONTROL, (POWER_CUT_TAG,), _PRODUCER, 0, self.upto + 1, body)


def decode_power_cut(body: bytes | memoryview) -> PowerCut | None:
    """Read a note back; None if it is none of ours."""
    try:
        facts: Any = parse(body)
        return PowerCut(Position(int(facts["lost_after"])), Position(int(facts["lost_upto"])))
    except (ValueError, KeyError, TypeError):
        return None


def power_cuts(log: Log) -> list[PowerCut]:
    """Every power cut that may have taken records of a log, in order."""
    notes: Sequence[Record] = log.read((POWER_CUT_TAG,), START, READ_LIMIT_MAX)
    return [cut for note in notes if (cut := decode_power_cut(note.body)) is not None]


def write_back(
    index: Index, turn: AbstractContextManager[object], folder: Path, files: Files
) -> None:
    """Put the bodies of all records so far on disk, and note that in the index.

    `turn` is held while the index is used, and not during the syncs.
    """
    with turn:
        tail = index.tail()
        unwritten = index.unwritten_segments()
    with named_errors(f"syncing segments in {show_path(folder)}"):
        for segment in unwritten:
            with suppress(FileNotFoundError):  # trimmed since
                _sync(folder / f"{check_name(segment.name, 'segment')}.seg", files)
        if unwritten:
            files.sync_folder(folder)
    with turn:
        index.note_written_back(tail, unwritten)


def _sync(path: Path, files: Files) -> None:
    fd = files.open(path, os.O_RDONLY)
    try:
        files.sync(fd)
    finally:
        files.close(fd)


def last_whole(index: Index, reader: SegmentReader) -> Position:
    """The last record before the first append of which a body did not survive, or the newest."""
    tail = index.tail()
    reached = written_back = index.on_disk().written_back
    while rows := index.bodies_within(reached, tail, _ROWS):
        for row in rows:
            assert row.offset is not None
            name = check_name(row.segment or "", "segment")
            try:
                reader.body(name, row.offset, row.length, row.checksum)
            except LogDamaged:
                if index.lost(row.position) is None:  # else a repair has seen to it
                    return max(written_back, index.before_append_of(row))
        reached = rows[-1].position
    return tail


def go_on_after(index: Index, last: Position, shown: Position, changes: int, now_us: int) -> None:
    """End the log after its last whole record, and go on behind every position ever shown."""
    upto = max(index.on_disk().reserved, shown, index.tail())
    note = PowerCut(last, Position(upto)).entry()
    index.end_after(last, note, changes, now_us)
