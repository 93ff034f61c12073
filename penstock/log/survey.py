"""What a log holds, counted: the questions that people ask and the protocol never does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from penstock.config import Durability
from penstock.log.bell import Bell
from penstock.log.files import Files, named_errors
from penstock.log.index import check_identity, connect, sqlite_error
from penstock.log.local import (
    ASIDE_FOLDER,
    BELL_FILE,
    FORMAT_VERSION,
    INDEX_FILE,
    SEGMENTS_FOLDER,
    read_identity,
)
from penstock.names import show_path

# One step per tag instead of one per row: each asks for the first tag after the last one.
_TAGS = (
    "WITH RECURSIVE each(tag) AS (SELECT min(tag) FROM tag UNION ALL "
    "SELECT (SELECT min(tag) FROM tag WHERE tag > each.tag) FROM each WHERE tag IS NOT NULL) "
    "SELECT tag FROM each WHERE tag IS NOT NULL"
)


@dataclass(frozen=True, slots=True)
class LogSummary:
    """What `penstock log info` shows."""

    path: str
    id: str
    format_version: int
    durability: Durability
    created_us: int
    records: int
    tail: int  # the newest committed position
    visible_tail: int  # the newest position that readers see
    tags: int
    tags_trimmed: int
    trimmed_upto_max: int
    metadata_keys: int
    lost: int
    segments: int
    bytes: dict[str, int]  # on disk, by kind of file
    sqlite_version: str


@dataclass(frozen=True, slots=True)
class TagSummary:
    """One line of `penstock log ls`."""

    tag: str
    records: int
    first: int
    last: int
    last_time_us: int | None
    trimmed: int


def summarise(path: Path) -> LogSummary:
    """Count what is in a log, without changing anything."""
    folder = path.absolute()
    identity = read_identity(folder)
    with _index(folder) as ask, named_errors(f"reading {show_path(folder)}"):
        ((records, tail, keys, lost, segments),) = ask(
            "SELECT (SELECT count(*) FROM record), (SELECT max(position) FROM record), "
            "(SELECT count(*) FROM metadata), (SELECT count(*) FROM lost), "
            "(SELECT count(*) FROM segment)"
        )
        ((trimmed, upto),) = ask("SELECT count(*), max(upto) FROM trim")
        return LogSummary(
            path=str(folder),
            id=identity.log_id.hex(),
            format_version=FORMAT_VERSION,
            durability=identity.durability,
            created_us=identity.created_us,
            records=records,
            tail=tail or 0,
            visible_tail=_visible_tail(folder, tail or 0),
            tags=len(ask(_TAGS)),
            tags_trimmed=trimmed,
            trimmed_upto_max=upto or 0,
            metadata_keys=keys,
            lost=lost,
            segments=segments,
            bytes=_bytes_by_kind(folder),
            sqlite_version=apsw.sqlite_lib_version(),
        )


def list_tags(path: Path) -> list[TagSummary]:
    """Every tag that has a record, in order of name."""
    folder = path.absolute()
    read_identity(folder)
    with _index(folder) as ask:
        rows = ask(
            "SELECT t.tag, t.n, t.low, t.high, r.time_us, coalesce(m.upto, 0) FROM "
            "(SELECT tag, count(*) n, min(position) low, max(position) high FROM tag GROUP BY tag) "
            "t LEFT JOIN record r ON r.position = t.high LEFT JOIN trim m ON m.tag = t.tag "
            "ORDER BY t.tag"
        )
    return [TagSummary(*row) for row in rows]


def tag_names(path: Path) -> list[str]:
    """The names of all tags that have a record; the cost is per tag, not per record."""
    folder = path.absolute()
    with _index(folder) as ask:
        return [row[0] for row in ask(_TAGS)]


def position_before_newest(path: Path, tags: Sequence[str], count: int) -> int:
    """The position after which there are `count` records that carry one of the tags, or fewer."""
    newest: set[int] = set()
    with _index(path.absolute()) as ask:
        query = "SELECT position FROM tag WHERE tag = ? ORDER BY position DESC LIMIT ?"
        for tag in tags:
            newest.update(row[0] for row in ask(query, (tag, count)))
    chosen = sorted(newest)[-count:] if count else []
    return chosen[0] - 1 if chosen else max(newest, default=0)


@contextmanager
def _index(folder: Path) -> Iterator[Any]:
    path = folder / INDEX_FILE
    identity = read_identity(folder)
    try:
        connection = connect(path, None, read_only=True)
        try:
            check_identity(connection, path, identity.log_id)
            yield lambda query, values=(): connection.execute(query, values).fetchall()
        finally:
            connection.close()
    except apsw.Error as error:
        raise sqlite_error(error, path, "reading") from error


def _visible_tail(folder: Path, tail: int) -> int:
    bell = Bell(folder / BELL_FILE, Files(), read_only=True)
    try:
        return int(bell.tail()) if bell.wait_until_sound() else tail
    finally:
        bell.close()


def _bytes_by_kind(folder: Path) -> dict[str, int]:
    """What the log takes on disk; files that vanish meanwhile count nothing."""
    kinds = {
        "index": folder.glob(INDEX_FILE),
        "write_ahead_log": folder.glob(f"{INDEX_FILE}-wal"),
        "segments": (folder / SEGMENTS_FOLDER).glob("*"),
        "aside": (folder / ASIDE_FOLDER).glob("*/*"),
    }
    return {kind: sum(_disk_bytes(path) for path in paths) for kind, paths in kinds.items()}


def _disk_bytes(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0
