"""Checksums on every page of the index: SQLite's own checksum VFS, found and registered.

A row's seal tells that a row is not the one that was written; it cannot tell that a row is no
longer found, because a key, a pointer or a count in a page has rotted. The checksum of a page can.
SQLite computes it when a page is folded into the index file and verifies it when the page is read
back; pages that still lie in the write-ahead log have that log's own checksums.
"""

from __future__ import annotations

from functools import lru_cache

import apsw

try:
    from apsw import sqlite_extra
except ImportError:  # an apsw that is older than its extras
    sqlite_extra = None  # type: ignore[assignment]

PAGE_SEAL_BYTES = 8  # the room at a page's end that the checksum takes; fixed by SQLite
_EXTENSION = "cksumvfs"
_VFS = "cksmvfs"


@lru_cache(maxsize=1)
def page_seal_vfs() -> str | None:
    """The name of the VFS that seals pages, or None where SQLite was built without it."""
    if sqlite_extra is None or sqlite_extra.has(_EXTENSION) is None:
        return None
    connection = apsw.Connection(":memory:")
    try:
        sqlite_extra.load(connection, _EXTENSION)  # stays after the connection is closed
    except apsw.Error:
        return None
    finally:
        connection.close()
    return _VFS if _VFS in apsw.vfs_names() else None
