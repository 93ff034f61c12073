"""Which files a folder holds: looked at cheaply, listed only when something may be new.

Where the kernel tells of everything that comes (`folder_events`), what it tells is looked at, and
nothing else. Elsewhere a look is one `stat` per folder as long as no folder's time of change moves,
which it does when a name comes or goes. That time has a granularity: a name that came right after a
listing may not move it any more, so the folder is listed again until its time is certainly over.
And all of that may be wrong (some network file systems keep the time for a while): so the folder is
listed now and then anyway.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.clock import Clock
from penstock.connectors.contract import AGAIN_S
from penstock.connectors.folder_events import FolderEvents, FolderNews
from penstock.connectors.folder_files import refuse_ways_out
from penstock.connectors.folder_paths import FolderPaths
from penstock.connectors.folder_registry import KnownFiles, Registry
from penstock.connectors.folder_shares import FoundFile, even_begins
from penstock.errors import PathRefused, SourceError, SourceVanished
from penstock.names import show_path

LOOK_S = 0.04  # how often a reader that has read everything looks for more
WOKEN_S = 1.0  # the same, if it is woken when something comes
LIST_S = 5.0  # how often a folder is listed although nothing seems to be new
# Of a reader's time: for looks at no change, for listings, and for those that make sure of hearing.
IDLE_SHARE, SHARE, SURE_SHARE = 0.005, 0.2, 0.001
TICK_S = 0.1  # more than the granularity of times on file systems that have fractions of seconds
COARSE_TICK_S = 2.1  # and on those that have not
AHEAD_US_MAX = 1_000_000  # of the clock: what clocks are set back by, and differ by
LARGE_FILES_MAX = 256  # that a look takes up: some have to be opened to be cut into parts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which files of a folder count, and when; see `FolderOptions`."""

    recursive: bool = False
    pattern: str = "*"
    settle_ms: int = 0
    done_ms: int = 0
    bounded: bool = False
    part_bytes: int = 32 << 20
    below: str = ""
    base: str | None = None
    case_sensitive: bool = False
    latest_first: bool = False
    files_max: int | None = None
    age_ms_max: int | None = None
    name_only: bool = False
    partitions: tuple[str, ...] = ()  # the columns that folders stand for


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
        wake: Callable[[], None] | None = None,
    ) -> None:
        self.known = KnownFiles(registry, key, selection.name_only)
        self.paths = FolderPaths(
            os.fspath(folder),
            selection.below,
            selection.pattern,
            selection.recursive,
            selection.partitions,
            selection.base,
            selection.case_sensitive,
        )
        self.look_again_s = LOOK_S  # when there may be more; the longer the more a look costs
        self._folder = folder
        self._selection = selection
        self._clock = clock
        self._cut = cut
        self._lock = threading.Lock()
        self._events = None if selection.bounded else FolderEvents(wake)
        self._is_woken = wake is not None
        self._hears_all = False  # whatever comes is heard of
        self._coming: dict[str, bool] = {}  # names to look at: is the writer done with the file
        self._settled_in_s = 0.0  # the first of them
        self._warned_of: set[str] = set()
        self._seen: dict[Path, _Seen] = {}  # every folder as it was before it was last listed
        self._is_listed = False  # and nothing was missed since
        self._list_until_s = 0.0  # names may still come that move no time
        self._list_at_s = 0.0
        self._looks, self._looked_s = 0, 0.0

    @property
    def unsettled(self) -> bool:
        """Whether there is a file that is left for later."""
        return bool(self._coming)

    def look(self, seen: int = -1) -> int:
        """Take up what others have found, and what is new in the folder; return the look's number.

        Who has seen an older one than the last, which was just now, shares that.
        """
        with self._lock:
            began_s = self._clock.monotonic_s()
            if 0 <= seen < self._looks and began_s - self._looked_s < LOOK_S:
                return self._looks
            self._looks, self._looked_s = self._looks + 1, began_s
            lists = self._may_have_more(began_s)
            if lists or self._coming or not self._hears_all:
                self.known.refresh()  # who hears everything hears nothing that others found
            if self.known.sealed:
                return self._looks
            is_busy = lists or bool(self._coming)
            if lists:
                self._list()
            elif self._coming:
                self._take_up(self._coming)
            took_s = self._clock.monotonic_s() - began_s
            if lists:
                share = SURE_SHARE if self._hears_all else IDLE_SHARE
                self._list_at_s = began_s + max(LIST_S, took_s / share)
            pause_s = WOKEN_S if self._hears_all and self._is_woken else LOOK_S
            if self._coming:
                pause_s = min(LOOK_S, max(AGAIN_S, self._settled_in_s))
            self.look_again_s = max(pause_s, took_s / (SHARE if is_busy else IDLE_SHARE))
            return self._looks

    def refresh(self) -> None:
        """Take up what others have found."""
        with self._lock:
            self.known.refresh()

    def _may_have_more(self, now_s: float) -> bool:
        """Hear which names have come; return whether there may be others, which a listing shows."""
        news = FolderNews() if self._events is None else self._events.take()
        for name, is_done in news.names.items():
            if self.paths.counts(name):
                self._coming[name] = is_done or self._coming.get(name, False)
                if is_done:
                    self._warn_if_changed(name)
        self._is_listed &= news.is_complete  # what was not heard is found, be it at a later try
        if now_s >= self._list_at_s or not self._is_listed:
            return True
        if self._hears_all:  # but not of another folder in the place of this one
            seen, found = self._seen.get(self._folder), self._as_it_is(self._folder)
            return seen is None or found is None or seen[:2] != found[:2]
        if now_s < self._list_until_s:
            return True
        return any(self._as_it_is(folder) != seen for folder, seen in self._seen.items())

    def _warn_if_changed(self, name: str) -> None:
        """Say, once, of a file that was taken up that somebody has written to it since."""
        if name in self._warned_of or (taken := self.known.file(name)) is None:
            return
        seen = self._file(name)
        if seen is not None and (seen.st_size, seen.st_mtime_ns) != (
            taken.size_bytes,
            taken.mtime_ns,
        ):
            self._warned_of.add(name)
            logger.warning(
                "%s in %s was taken up with %d bytes and was written to afterwards, it has %d now: "
                "what was added after it was read is not read. Rename files into the folder when "
                "they are complete, or set settleTime to more than their writers rest",
                show_path(name),
                show_path(self._folder),
                taken.size_bytes,
                seen.st_size,
            )

    def _list(self) -> None:
        before, self._seen = self._seen if self._is_listed else {}, {}
        self._is_listed = False  # unless this succeeds
        self._hears_all = self._events is not None
        names = [name for name in self._walk(self._folder, "") if name not in self.known]
        self._take_up({name: self._coming.get(name, False) for name in names})
        if self._seen != before:
            is_coarse = all(time_ns % 1_000_000_000 == 0 for _, _, time_ns in self._seen.values())
            tick_s = COARSE_TICK_S if is_coarse else TICK_S
            self._list_until_s = self._clock.monotonic_s() + tick_s
        self._is_listed = True

    def _take_up(self, names: Mapping[str, bool]) -> None:
        """Add those that are files and have settled to the known ones, and leave the others."""
        found: list[FoundFile] = []
        left: dict[str, bool] = {}
        settled_in_us = 0
        for name, is_done in names.items():
            if name in self.known or (seen := self._file(name)) is None or self._is_old(seen):
                continue
            rest_ms = self._selection.done_ms if is_done else self._selection.settle_ms
            # By the time after the look at it: before that, a file that is being written would seem
            # to be of a time still to come. One clearly so was set by hand, and nobody writes.
            age_us = self._clock.now_us() - seen.st_mtime_ns // 1_000
            if -AHEAD_US_MAX < age_us < rest_ms * 1_000:
                left_us = rest_ms * 1_000 - age_us
                settled_in_us = min(settled_in_us, left_us) if left else left_us
                left[name] = is_done
            else:
                found.append(FoundFile(name, seen.st_size, seen.st_mtime_ns))
        found.sort(key=lambda file: file.name)
        found.sort(
            key=lambda file: file.mtime_ns // 1_000_000, reverse=self._selection.latest_first
        )
        taken = self._in_parts(found[: self._files_left()])
        if len(taken) < len(found):  # there is nothing that these wait for
            left |= {file.name: names[file.name] for file in found[len(taken) :]}
            settled_in_us = 0
        self.known.add(taken, seal=self._selection.bounded and not left)
        self._coming, self._settled_in_s = left, settled_in_us / 1e6

    def _is_old(self, seen: os.stat_result) -> bool:
        """Whether a file came too long after younger ones: none is with those that came first."""
        age_ms_max = self._selection.age_ms_max
        if age_ms_max is None or not len(self.known):
            return False
        return seen.st_mtime_ns // 1_000_000 < self.known.newest_ns // 1_000_000 - age_ms_max

    def _files_left(self) -> int | None:
        """How many files a look takes up: of the newest no more than are read before the next."""
        return self._selection.files_max if self._selection.latest_first else None

    @staticmethod
    def _as_it_is(folder: Path) -> _Seen | None:
        try:
            found = os.stat(folder)
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_mtime_ns

    def _file(self, name: str) -> os.stat_result | None:
        """What is known of a file; None if there is none, or it is a folder."""
        path = os.path.join(self._folder, name)
        try:
            found = os.lstat(path)
            if stat.S_ISLNK(found.st_mode):
                if os.path.isdir(path) and not self.paths.enters(name):
                    return None
                refuse_ways_out(self._folder, Path(path), show_path(name))
                found = os.stat(path)
        except FileNotFoundError:
            return None  # gone since its name was known, and never announced
        except OSError as error:
            shown = show_path(name)
            raise SourceError(f"cannot look at {shown}: {error}", file=shown) from error
        if stat.S_ISDIR(found.st_mode):
            return None
        if not stat.S_ISREG(found.st_mode):
            shown = show_path(name)
            raise PathRefused(
                f"{shown} is not a regular file: pipes, sockets and devices are never read",
                file=shown,
            )
        return found

    def _in_parts(self, found: Sequence[FoundFile]) -> list[FoundFile]:
        """Cut large files, and leave those for the next look with which this one would be long."""
        part_bytes, large = self._selection.part_bytes, 0
        taken: list[FoundFile] = []
        for file in found:
            is_large = file.size_bytes > part_bytes
            large += is_large
            if large > LARGE_FILES_MAX:
                break
            taken.append(replace(file, begins=self._cut(file, part_bytes)) if is_large else file)
        return taken

    def _walk(self, folder: Path, prefix: str) -> Iterator[str]:
        """Yield what counts by its name, and is no folder."""
        if self._events is not None and not self._events.watch(folder, prefix):
            self._hears_all = False
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
            if not is_folder:
                if self.paths.counts(name):
                    yield name
            elif self.paths.enters(name):
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
