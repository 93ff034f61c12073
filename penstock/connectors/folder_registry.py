"""The order in which a folder's files were discovered, kept where a restart finds it again."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.errors import SourceError
from penstock.log.record import Versioned
from penstock.names import check_path

CHUNK_FILES = 512
REGISTRY_VERSION = 1


class Registry(Protocol):
    """The part of a log's metadata that is needed; every `Log` is one."""

    def get(self, key: str) -> Versioned | None:
        """Return a value, or None."""

    def compare_and_set(self, key: str, version: int, value: bytes) -> bool:
        """Set a value if the key's version is `version` (0: no such key yet); say whether."""


class MemoryRegistry:
    """A registry that lives as long as the process, for tests and notebooks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, Versioned] = {}

    def get(self, key: str) -> Versioned | None:
        with self._lock:
            return self._values.get(key)

    def compare_and_set(self, key: str, version: int, value: bytes) -> bool:
        with self._lock:
            current = self._values.get(key)
            if (current.version if current else 0) != version:
                return False
            self._values[key] = Versioned(value, version + 1)
            return True


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file as it was when it was discovered; from then on it must not change."""

    name: str  # path below the folder, parts joined by '/'
    size_bytes: int
    mtime_ns: int


class KnownFiles:
    """The discovered files, numbered from 0 in an order that is never changed, only continued.

    The list is stored in chunks under `<key>/0`, `<key>/1`, … : an addition rewrites the last chunk
    only. Any number of readers may add at the same time: each addition is conditional on the list
    being the one that the reader saw. The names stay known, so a file is never taken twice; this
    costs about 100 bytes of memory per file that was ever in the folder.
    """

    def __init__(self, registry: Registry, key: str) -> None:
        self._registry = registry
        self._key = check_path(f"{key}/0", "registry key")[:-2]
        self._entries: list[FileEntry] = []
        self._names: set[str] = set()
        self._chunk = 0  # number of the last chunk, and how much of it is in _entries
        self._chunk_entries = 0
        self._chunk_version = 0
        self.sealed = False  # no file will be added any more

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, number: int) -> FileEntry:
        return self._entries[number]

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def refresh(self) -> None:
        """Take over what others have added."""
        while not self.sealed:
            stored = self._registry.get(f"{self._key}/{self._chunk}")
            if stored is not None and stored.version > self._chunk_version:
                self._load(stored)
            if self._chunk_entries < CHUNK_FILES:
                return
            if self._registry.get(f"{self._key}/{self._chunk + 1}") is None:
                return
            self._chunk, self._chunk_entries, self._chunk_version = self._chunk + 1, 0, 0

    def add(self, found: Sequence[FileEntry], seal: bool = False) -> None:
        """Append the files that are not known yet, in the order given; `seal` closes the list."""
        self.refresh()
        while not self.sealed:
            fresh = {entry.name: entry for entry in found if entry.name not in self._names}
            new = list(fresh.values())
            if not new and not seal:
                return
            if self._chunk_entries == CHUNK_FILES:
                self._chunk, self._chunk_entries, self._chunk_version = self._chunk + 1, 0, 0
            now = new[: CHUNK_FILES - self._chunk_entries]
            first = len(self._entries) - self._chunk_entries
            entries = [*self._entries[first:], *now]
            value = _encode(entries, sealed=seal and len(now) == len(new))
            key = f"{self._key}/{self._chunk}"
            self._registry.compare_and_set(key, self._chunk_version, value)
            # Won or lost, the registry now says what the list is.
            self.refresh()

    def _load(self, stored: Versioned) -> None:
        entries, sealed = _decode(stored.value, self._key)
        first = len(self._entries) - self._chunk_entries
        known = self._entries[first:]
        if entries[: len(known)] != known:
            raise SourceError(
                f"the list of files under {self._key!r} was rewritten: two different folders may "
                "be using the same registry key",
                key=self._key,
            )
        self._entries += entries[len(known) :]
        self._names.update(entry.name for entry in entries[len(known) :])
        self._chunk_entries, self._chunk_version = len(entries), stored.version
        self.sealed = sealed


def _encode(entries: Sequence[FileEntry], sealed: bool) -> bytes:
    # ASCII: names that are not UTF-8 carry lone surrogates, which only escapes can hold.
    files = [[entry.name, entry.size_bytes, entry.mtime_ns] for entry in entries]
    return json.dumps({"version": REGISTRY_VERSION, "sealed": sealed, "files": files}).encode()


def _decode(value: bytes, key: str) -> tuple[list[FileEntry], bool]:
    try:
        content: Any = json.loads(value)
        if content["version"] != REGISTRY_VERSION:
            raise ValueError(f"version {content['version']!r} is not known")
        entries = [FileEntry(str(name), int(size), int(at)) for name, size, at in content["files"]]
        return entries, bool(content["sealed"])
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(
            f"the list of files under {key!r} cannot be read: {error}; it was damaged or written "
            "by a newer version",
            key=key,
        ) from error
