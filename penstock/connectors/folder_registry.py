"""The order in which a folder's files were discovered, kept where a restart finds it again."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from penstock.connectors.folder_shares import PARTS_MAX, FoundFile, Share
from penstock.errors import SourceError
from penstock.json_codec import parse, spaced_json
from penstock.log.record import Versioned
from penstock.names import check_path

CHUNK_FILES = 512
REGISTRY_VERSION = 4


class Registry(Protocol):
    """The part of a log's metadata that is needed; every `Log` is one."""

    def get(self, key: str) -> Versioned | None:
        """Return a value, or None."""

    def compare_and_set(self, key: str, version: int, value: bytes) -> bool:
        """Set a value if the key's version is `version` (0: no such key yet); say whether."""


class KnownFiles:
    """Files and parts of files, numbered from 0 in an order that is never changed, only continued.

    A name is a path below the folder, its parts joined by '/'. The list is stored in chunks under
    `<key>/0`, `<key>/1`, … : an addition rewrites the last chunk only. Any number of readers may
    add at the same time: each addition is conditional on the list being the one that the reader
    saw. The names stay known, so a file is never taken twice; this costs about 300 bytes of memory
    per file that was ever in the folder.
    """

    def __init__(self, registry: Registry, key: str, name_only: bool = False) -> None:
        """`name_only`: files of one name are the same, in whatever folders they are."""
        self._registry = registry
        self._name_only = name_only
        self._key = check_path(f"{key}/0", "registry key")[:-2]
        self._files: list[FoundFile] = []
        self.shares: list[Share] = []  # only ever appended to
        self._by_name: dict[str, FoundFile] = {}
        self._chunk = 0  # number of the last chunk, and how much of it is listed
        self._chunk_files = 0
        self._chunk_version = 0
        self.newest_ns = 0  # the last time of change of any
        self.sealed = False  # no file will be added any more

    def __len__(self) -> int:
        return len(self.shares)

    def __getitem__(self, number: int) -> Share:
        return self.shares[number]

    def __contains__(self, name: str) -> bool:
        return self._called(name) in self._by_name

    def _called(self, name: str) -> str:
        return name.rpartition("/")[2] if self._name_only else name

    def file(self, name: str) -> FoundFile | None:
        """The file as it was when it was found."""
        return self._by_name.get(self._called(name))

    def refresh(self) -> None:
        """Take over what others have added."""
        while not self.sealed:
            stored = self._registry.get(f"{self._key}/{self._chunk}")
            if stored is not None and stored.version > self._chunk_version:
                self._load(stored)
            if self._chunk_files < CHUNK_FILES:
                return
            if self._registry.get(f"{self._key}/{self._chunk + 1}") is None:
                return
            self._chunk, self._chunk_files, self._chunk_version = self._chunk + 1, 0, 0

    def add(self, found: Sequence[FoundFile], seal: bool = False) -> None:
        """Append the files that are not known yet, in the order given; `seal` closes the list."""
        self.refresh()
        left = deque(found)
        while not self.sealed:
            if self._chunk_files == CHUNK_FILES:
                self._chunk, self._chunk_files, self._chunk_version = self._chunk + 1, 0, 0
            new: dict[str, FoundFile] = {}
            while left and len(new) < CHUNK_FILES - self._chunk_files:
                file = left.popleft()
                if file.name not in self:
                    new.setdefault(self._called(file.name), file)
            if not new and not seal:
                return
            first = len(self._files) - self._chunk_files
            value = _encode([*self._files[first:], *new.values()], sealed=seal and not left)
            key = f"{self._key}/{self._chunk}"
            self._registry.compare_and_set(key, self._chunk_version, value)
            # Won or lost, the registry now says what the list is.
            self.refresh()
            left.extendleft(reversed([file for file in new.values() if file.name not in self]))

    def _load(self, stored: Versioned) -> None:
        files, sealed = _decode(stored.value, self._key)
        first = len(self._files) - self._chunk_files
        known = self._files[first:]
        if files[: len(known)] != known:
            raise SourceError(
                f"the list of files under {self._key!r} was rewritten: two different folders may "
                "be using the same registry key",
                key=self._key,
            )
        new = files[len(known) :]
        self._files += new
        self.shares += [Share(file, part) for file in new for part in range(file.parts)]
        self._by_name.update((self._called(file.name), file) for file in new)
        self.newest_ns = max([self.newest_ns, *(file.mtime_ns for file in new)])
        self._chunk_files, self._chunk_version = len(files), stored.version
        self.sealed = sealed


def _encode(files: Sequence[FoundFile], sealed: bool) -> bytes:
    # ASCII: names that are not UTF-8 carry lone surrogates, which only escapes can hold.
    listed = [[file.name, file.size_bytes, file.mtime_ns, file.begins] for file in files]
    return spaced_json({"version": REGISTRY_VERSION, "sealed": sealed, "files": listed})


def _decode(value: bytes, key: str) -> tuple[list[FoundFile], bool]:
    try:
        content: Any = parse(value)
        if content["version"] != REGISTRY_VERSION:
            raise ValueError(f"version {content['version']!r} is not known")
        files = [
            FoundFile(name, size_bytes, mtime_ns, tuple(begins))
            for name, size_bytes, mtime_ns, begins in content["files"]
        ]
        for file in files:
            numbers = (file.size_bytes, file.mtime_ns, *file.begins)
            if not isinstance(file.name, str) or any(type(number) is not int for number in numbers):
                raise ValueError("its files are not names, sizes, times and beginnings of parts")
            begins = [*file.begins]
            if not (
                0 < len(begins) <= PARTS_MAX
                and begins[0] == 0
                and begins[-1] <= file.size_bytes
                and begins == sorted(set(begins))
            ):
                raise ValueError("a size or the parts of a file are not possible")
        return files, bool(content["sealed"])
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(
            f"the list of files under {key!r} cannot be read: {error}; it was damaged, or written "
            "by another version",
            key=key,
        ) from error
