"""A sink that keeps one Parquet file per epoch of a query in a folder."""

from __future__ import annotations

import errno
import os
import re
import secrets
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.connectors.contract import Sink, check_epoch
from penstock.connectors.hidden_files import (
    OWNER_KEY,
    FileOfSlot,
    FilesKind,
    HiddenFile,
    NamedFile,
    codec_of,
    file_of_slot,
    sync_folder,
    table_of,
    told,
    write_synced,
)
from penstock.errors import QueryMismatch
from penstock.names import check_any_name

_FILE = re.compile(r"([A-Za-z0-9_.]+)-([0-9]{20})\.parquet")
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK)
FILE_BYTES = 64 << 20  # as the log has them: files are closed at about this
FILE_S = 3.0  # and after this time, where no trigger says otherwise
ROW_GROUP_BYTES = 64 << 20  # before encoding: what a writer has in memory, and a reader in a task


@dataclass(frozen=True, slots=True)
class StagedFile:
    """Rows that are written and synced, under a name that readers pass over."""

    path: str | None  # None: there is no row, or the sink has the epoch already
    num_rows: int = 0
    is_named: bool = False  # by a record of the log: whoever comes next needs it


class FolderSink(Sink):
    """Rows as files named by query and epoch: `hot-00000000000000000012.parquet`.

    A file appears whole under its name, by a link to a finished and synced temporary file, and an
    existing one is never replaced. So whoever lists the folder at any moment sees each epoch once,
    and a zombie and its heir can both write the same epoch: the first one stays. Temporary files
    begin with a dot, which directory readers skip; those of a query are cleared when it asks for
    the last epoch for the first time. Modes are those that the process's umask allows.

    Slots may write such a file themselves and have the log name it: it is linked as it is. Files of
    slots are not cleared with the others, since the log may yet name them.

    Epochs have a meaning for the query of one id only: to any other, those that are there would
    look written. The id stands in a file that readers of Parquet pass over, and in each file's own
    metadata, which counts where the first is missing or was never filled.
    """

    bytes_max = FILE_BYTES
    patience_s = FILE_S
    bytes_enough = FILE_BYTES // 16

    def __init__(
        self,
        folder: str | os.PathLike[str],
        query: str,
        query_id: str,
        *,
        writers: int = 1,
        codec: str | None = None,
        spark_types: str | None = None,
    ) -> None:
        """`writers` vertices write what is fed: as many files are written at a time.

        `codec` is what Spark calls a compression; None is the one that Arrow and Spark begin with.
        `spark_types` is what Spark's own files say of their columns, as JSON: Parquet has no type
        for intervals.
        """
        self._folder = Path(folder)
        self._query = check_any_name(query, "query")
        self._id = query_id
        codec_of(codec)  # which refuses what is none
        self._kind = FilesKind(os.path.abspath(folder), query_id, codec, spark_types)
        self.files = self._kind
        self._last: int | None = None
        self._has_looked = False  # for the last one
        self._is_claimed = False
        self._claiming = threading.Lock()
        self.ahead = min(writers, os.cpu_count() or 1)
        with told("create the folder", self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        self._check_owner()

    def stage(self, epoch: int, rows: Iterable[pa.RecordBatch]) -> StagedFile:
        check_epoch(epoch)
        self._claim()
        return StagedFile(None) if self._has(epoch) else self._write_temporary(epoch, rows)

    def stage_file(self, epoch: int, file: NamedFile) -> StagedFile:
        check_epoch(epoch)
        self._claim()
        if self._has(epoch) or self._file(epoch).exists():  # be it that another run was first
            return StagedFile(None)
        self._kind.check(file)
        return StagedFile(str(self._folder / file.name), file.rows, is_named=True)

    def publish(self, epoch: int, staged: StagedFile) -> None:
        if staged.path is None:
            return
        if not self._has(epoch):
            try:
                link_file(staged.path, self._file(epoch))
            except BaseException:
                self.discard(staged)
                raise
            self._last = epoch
        self._clear(Path(staged.path))

    def discard(self, staged: StagedFile) -> None:
        """Remove what was staged, if it is still there; what is published or named stays."""
        if staged.path is not None and not staged.is_named:
            with suppress(FileNotFoundError):
                os.unlink(staged.path)

    def files_of_slots(self) -> list[FileOfSlot]:
        found = map(file_of_slot, self._names())
        mine = (self._query, self._id)  # others may write here for a query of the same name
        return [each for each in found if each and (each.vertex.split(".")[0], each.owner) == mine]

    def clear_file(self, name: str) -> None:
        self._clear(self._folder / name)

    def last_epoch(self) -> int | None:
        if not self._has_looked:
            self._clear_temporary()
            self._last, self._has_looked = self._find_last(), True
        return self._last

    def _has(self, epoch: int) -> bool:
        last = self.last_epoch()
        return last is not None and epoch <= last

    def _claim(self) -> None:
        """Take the query's files for this id; with the first file, as by then the id is stored."""
        with self._claiming:
            if self._is_claimed:
                return
            self._check_owner()
            if not self._written_owner():
                self._write_owner()
            self._is_claimed = True

    def _check_owner(self) -> None:
        """Nothing is cleared before it is known: what is being written may be the true owner's."""
        owner = self._written_owner() or self._owner_of_newest()
        if owner != self._id:
            raise QueryMismatch(
                f"{self._folder} holds files of another query {self._query!r} (id "
                f"{(owner or 'unknown')[:40]}, this one is {self._id}): choose another folder or "
                "another queryName, or move the files away",
                query=self._query,
                path=str(self._folder),
            )

    def _written_owner(self) -> str:
        with told("look whose the folder is", self._owner_file):
            if not self._owner_file.exists():
                return ""
            return self._owner_file.read_text("ascii", "replace")

    @property
    def _owner_file(self) -> Path:
        return self._folder / f"_penstock_{self._query}"

    def _owner_of_newest(self) -> str | None:
        """Whose the newest file is, None if it does not say; where there is none, anybody's."""
        if (last := self._find_last()) is None:
            return self._id
        with told("read", file := self._file(last)):
            metadata = pq.read_schema(file).metadata or {}
        return metadata.get(OWNER_KEY, b"").decode("ascii", "replace") or None

    def _write_owner(self) -> None:
        """Write the small file, whole or not at all, also after a power cut."""
        temporary = str(self._folder / f".{self._query}-owner-{secrets.token_hex(8)}.tmp")
        with told("write", self._owner_file):
            write_synced(temporary, self._id.encode("ascii"))
            os.replace(temporary, self._owner_file)
            sync_folder(self._folder)

    def _file(self, epoch: int) -> Path:
        return self._folder / f"{self._query}-{epoch:020d}.parquet"

    def _find_last(self) -> int | None:
        found = (_FILE.fullmatch(name) for name in self._names())
        epochs = (int(each[2]) for each in found if each and each[1] == self._query)
        return max(epochs, default=None)

    def _clear_temporary(self) -> None:
        for name in self._names():
            if name.startswith(f".{self._query}-") and name.endswith(".tmp"):
                self._clear(self._folder / name)

    def _clear(self, path: Path) -> None:
        with told("clear", path), suppress(FileNotFoundError):
            os.unlink(path)

    def _names(self) -> list[str]:
        with told("list the folder", self._folder):
            return os.listdir(self._folder)

    def _write_temporary(self, epoch: int, batches: Iterable[pa.RecordBatch]) -> StagedFile:
        name = f".{self._query}-{epoch:020d}-{secrets.token_hex(8)}.tmp"
        file: HiddenFile | None = None
        try:
            for group in _row_groups(batches):
                file = file or self._kind.begin(name)
                file.write(group)
        except BaseException:
            if file is not None:
                file.abandon()
            raise
        if file is None:
            return StagedFile(None)
        file.close()
        return StagedFile(file.path, file.rows)


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Put batches together: thousands of row groups would be slow to write and to read."""
    waiting: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= ROW_GROUP_BYTES:
            yield table_of(waiting)
            waiting, size_bytes = [], 0
    if waiting:
        yield table_of(waiting)


def link_file(temporary: str, final: Path) -> None:
    """Give a finished file its name unless the name is taken."""
    with told("publish", final):
        try:
            os.link(temporary, final)
        except FileExistsError:
            pass  # another writer was first; what follows is for its name too
        except FileNotFoundError:
            if not final.exists():  # else another run has linked this very file, and cleared it
                raise
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # No hard links here: a rename is atomic too, but two writers need the check before it.
            if not final.exists():
                os.rename(temporary, final)
        sync_folder(final.parent)
