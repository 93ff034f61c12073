"""Files that were read are removed, or put elsewhere, once nobody will read them again."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from penstock.connectors.contract import Offset
from penstock.connectors.folder_files import Version
from penstock.connectors.folder_shares import FoundFile, Owners, Share
from penstock.names import show_path

logger = logging.getLogger(__name__)


class FolderCleaning:
    """Cleans a folder up behind its readers.

    A file goes when each reader of a part of it has committed an offset behind that part: no
    recovery begins before it. It must be what it was when it was found, so another one that took
    its name later stays. What cannot be removed is said, and stays too: it is not read again.
    """

    def __init__(
        self, folder: Path, shares: Sequence[Share], readers: int, archive: str | None
    ) -> None:
        """`archive`: where files go, with their whole path below it; None: they are deleted."""
        self._folder = folder
        self._shares = shares
        self._owners = Owners(shares, readers)
        self._archive = archive
        self._waiting: list[int] = []  # first shares of files that are still to be read
        self._seen = 0  # shares that were looked at

    def clean(self, offsets: Sequence[Offset]) -> None:
        """Let go of what all readers are past: the offset that each has committed, None: none."""
        firsts = [0 if offset is None else int(offset["file"]) for offset in offsets]
        last = min(max(firsts), len(self._shares))
        while self._seen < last:
            self._waiting.append(self._seen)
            self._seen += self._shares[self._seen].file.parts
        still: list[int] = []
        for first in self._waiting:
            file = self._shares[first].file
            numbers = range(first, first + file.parts)
            if all(firsts[self._owners[number]] > number for number in numbers):
                self._remove(file)
            else:
                still.append(first)
        self._waiting = still

    def _remove(self, file: FoundFile) -> None:
        path = self._folder / file.name
        try:
            found = os.lstat(path)
            is_it = Version.of(found) == Version(file.size_bytes, file.mtime_ns)
            if not stat.S_ISREG(found.st_mode) or not is_it:
                logger.warning(
                    "%s was read and is not what it was when it was found: it is left where it is",
                    show_path(path),
                )
            elif self._archive is None:
                path.unlink()
            else:
                self._put_away(path, Path(f"{self._archive}/{path}"))
        except FileNotFoundError:
            return  # done before, or by others
        except OSError as error:
            logger.warning("%s was read and cannot be removed: %s", show_path(path), error)

    def _put_away(self, path: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(target):
            logger.warning(
                "%s was read and is left where it is: there is a %s already",
                show_path(path),
                show_path(target),
            )
        else:
            path.rename(target)
