"""Which files a folder holds: looked at cheaply, listed only when something may be new.

A folder's time of change moves when a name comes or goes, so a look is one `stat` per folder as
long as nothing does. That time has a granularity: a name that came right after a listing may not
move it any more, so the folder is listed again until its time is certainly over. And it may be
wrong (some network file systems keep it for a while): so the folder is listed now and then anyway.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from penstock.clock import Clock
from penstock.connectors.folder_files import refuse_ways_out
from penstock.connectors.folder_registry import KnownFiles, Registry
from penstock.connectors.folder_shares import FoundFile, even_begins
from penstock.errors import PathRefused, SourceError, SourceVanished
from penstock.names import show_path

LOOK_S = 0.04  # how often a reader that has read everything looks for more
LIST_S = 5.0  # how often a folder is listed whose time says that nothing is new
IDLE_SHARE, SHARE = 0.005, 0.2  # of a reader's time for looks at no change, and for listings
TICK_S = 0.1  # more than the granularity of times on file systems that have fractions of seconds
COARSE_TICK_S = 2.1  # and on those that have not
LARGE_FILES_MAX = 256  # that a look takes up: some have to be opened to be cut into parts


@dataclass(frozen=True, slots=True)
class Selection:
    """Which files of a folder count, and when; see `FolderOptions`."""

    recursive: bool = False
    pattern: str = "*"
    settle_ms: int = 0
    bounded: bool = False
    part_bytes: int = 32 << 20


Cut = Callable[[FoundFile, int], tuple[int, ...]]  # where parts of about so many bytes begin
_Seen = tuple[int, int, int]  # device, inode and time of change of a folder


class FolderListing:
    """The files of a folder in the order in which they were found.

    The parts of one source that live in one process share it, from any thread.
    """

    def __init__(
        self,
        folder: Path,
        registry: Registry,
        key: str,
        selection: Selection,
        clock: Clock,
        cut: Cut = even_begins,
    ) -> None:
        self.known = KnownFiles(registry, key)
        self.unsettled = False  # whether the last listing left a file for later
        self.look_again_s = LOOK_S  # when there may be more; the longer the more a look costs
        self._folder = folder
        self._selection = selection
        self._clock = clock
        self._cut = cut
        self._lock = threading.Lock()
        self._seen: dict[Path, _Seen] = {}  # every folder as it was before it was last listed
        self._list_until_s = float("inf")  # names may still come that move no time
        self._list_at_s = 0.0
        self._looks, self._looked_s = 0, 0.0

    def look(self, seen: int = -1) -> int:
        """Take up what others have found, and what is new in the folder; return the look's number.

        Who has seen an older one than the last, which was just now, shares that.
        """
        with self._lock:
            began_s = self._clock.monotonic_s()
            if 0 <= seen < self._looks and began_s - self._looked_s < LOOK_S:
                return self._looks
            self._looks, self._looked_s = self._looks + 1, began_s
            self.known.refresh()
            if self.known.sealed:
                return self._looks
            lists = self._may_have_more(began_s)
            if lists:
                self._list()
            took_s = self._clock.monotonic_s() - began_s
            if lists:
                self._list_at_s = began_s + max(LIST_S, took_s / IDLE_SHARE)
            self.look_again_s = max(LOOK_S, took_s / (SHARE if lists else IDLE_SHARE))
            return self._looks

    def refresh(self) -> None:
        """Take up what others have found."""
        with self._lock:
            self.known.refresh()

    def _may_have_more(self, now_s: float) -> bool:
        if self.unsettled or now_s < self._list_until_s or now_s >= self._list_at_s:
            return True
        return any(self._as_it_is(folder) != seen for folder, seen in self._seen.items())

    def _list(self) -> None:
        before, until_s = self._seen, self._list_until_s
        self._seen, self._list_until_s = {}, float("inf")  # also if this fails
        self.unsettled = False
        found = self._in_parts(sorted(self._new_files(), key=lambda file: file.name))
        self.known.add(found, seal=self._selection.bounded and not self.unsettled)
        if self._seen != before or until_s == float("inf"):
            is_coarse = all(time_ns % 1_000_000_000 == 0 for _, _, time_ns in self._seen.values())
            until_s = self._clock.monotonic_s() + (COARSE_TICK_S if is_coarse else TICK_S)
        self._list_until_s = until_s

    @staticmethod
    def _as_it_is(folder: Path) -> _Seen | None:
        try:
            found = os.stat(folder)
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_mtime_ns

    def _new_files(self) -> Iterator[FoundFile]:
        """Yield the files that are not known yet and have settled."""
        now_us = self._clock.now_us()
        for entry, name in self._walk(self._folder, ""):
            if name in self.known:
                continue
            shown = show_path(name)
            if entry.is_symlink():
                refuse_ways_out(self._folder, Path(entry.path), shown)
            try:
                found = entry.stat()
            except FileNotFoundError:
                continue  # gone since it was listed, and never announced
            except OSError as error:
                raise SourceError(f"cannot look at {shown}: {error}", file=shown) from error
            if not stat.S_ISREG(found.st_mode):
                raise PathRefused(
                    f"{shown} is not a regular file: pipes, sockets and devices are never read",
                    file=shown,
                )
            # A time that is still to come was set by hand: nobody is writing the file.
            age_us = now_us - found.st_mtime_ns // 1_000
            if 0 <= age_us < self._selection.settle_ms * 1_000:
                self.unsettled = True
            else:
                yield FoundFile(name, found.st_size, found.st_mtime_ns)

    def _in_parts(self, found: Sequence[FoundFile]) -> list[FoundFile]:
        """Cut large files, and leave those for the next look with which this one would be long."""
        part_bytes, large = self._selection.part_bytes, 0
        taken: list[FoundFile] = []
        for file in found:
            is_large = file.size_bytes > part_bytes
            large += is_large
            if large > LARGE_FILES_MAX:
                self.unsettled = True
                break
            taken.append(replace(file, begins=self._cut(file, part_bytes)) if is_large else file)
        return taken

    def _walk(self, folder: Path, prefix: str) -> Iterator[tuple[os.DirEntry[str], str]]:
        """Yield what counts by its name, and is no folder."""
        seen = self._as_it_is(folder)
        try:
            with os.scandir(folder) as entries:
                listed = [(entry, _is_folder(entry)) for entry in entries]
        except FileNotFoundError as error:
            if prefix:
                return  # a folder below that is gone since it was listed
            shown = show_path(folder)
            raise SourceVanished(
                f"there is no folder {shown}: create it or put it back, or correct the path",
                file=shown,
            ) from error
        except OSError as error:
            shown = show_path(folder)
            raise SourceError(f"cannot list {shown}: {error}", file=shown) from error
        if seen is not None:
            self._seen[folder] = seen
        for entry, is_folder in listed:
            name = prefix + entry.name
            if entry.name.startswith(("_", ".")):
                continue
            if not is_folder:
                if fnmatchcase(entry.name, self._selection.pattern):
                    yield entry, name
            elif self._selection.recursive:
                # A link to a folder inside: its files are found where they are.
                if entry.is_symlink():
                    refuse_ways_out(self._folder, Path(entry.path), show_path(name))
                else:
                    yield from self._walk(Path(entry.path), name + "/")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # links in a circle, for one: looking at it as a file says what it is
