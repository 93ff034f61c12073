"""Who stands in the way of appends: the processes that hold a lock which every append needs."""

from __future__ import annotations

from pathlib import Path

from penstock.log.local import INDEX_FILE, LOCK_FILE

# Bytes of SQLite's shared memory file that a writer, or a recovery, locks for itself alone.
_INDEX_LOCKS = ("120", "122")


def blockers(folder: Path) -> frozenset[int]:
    """The processes without which nobody can append to a log now; none where nobody can tell.

    They let go within a millisecond, unless they are stopped. Locks that only keep a segment or a
    place in the index for their owner are not among these.
    """
    try:
        # By inode alone: some filesystems show another device to stat than to the kernel's table.
        lock_file = str((folder / LOCK_FILE).stat().st_ino)
        index_memory = str((folder / f"{INDEX_FILE}-shm").stat().st_ino)
        with open("/proc/locks", encoding="ascii") as table:
            rows = [line.split() for line in table if "->" not in line]
    except OSError:
        return frozenset()
    found = set()
    for _, _, _, access, pid, place, first, *_ in rows:
        inode = place.rsplit(":", 1)[-1]
        stands_in_the_way = inode == lock_file or (inode == index_memory and first in _INDEX_LOCKS)
        if access == "WRITE" and stands_in_the_way:
            found.add(int(pid))
    return frozenset(found)
