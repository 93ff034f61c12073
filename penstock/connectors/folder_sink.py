"""A sink that keeps one Parquet file per writer and epoch in a folder."""

from __future__ import annotations

import errno
import itertools
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.connectors.contract import Sink, epoch_refused
from penstock.errors import SinkError
from penstock.names import check_any_name

_FILE = re.compile(r"([A-Za-z0-9_.]+)-([0-9]{20})\.parquet")
_OWNER_KEY = b"penstock.owner"  # in the metadata of every file: the rows know whose they are
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK)
ROW_GROUP_BYTES = 64 << 20  # before encoding: what a writer has in memory, and a reader in a task


@dataclass(frozen=True, slots=True)
class StagedFile:
    """An epoch that is written and synced, under a name that readers pass over."""

    writer: str
    epoch: int
    path: str | None  # None: there is no row, or the sink has the epoch already
    num_rows: int = 0


class FolderSink(Sink):
    """Rows as files named by writer and epoch: `hot-00000000000000000012.parquet`.

    A file appears whole under its name, by a link to a finished and synced temporary file, and an
    existing one is never replaced. So whoever lists the folder at any moment sees each epoch once,
    and a zombie and its heir can both write the same epoch: the first one stays. Temporary files
    begin with a dot, which directory readers skip; those of a writer are cleared when it asks for
    the last epoch for the first time. Modes are those that the process's umask allows.

    `write` is `stage`, which several threads may do for several epochs at a time, and `publish`, in
    the order of the epochs.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._last: dict[str, int | None] = {}
        self._owners: dict[str, str] = {}
        with _told("create the folder", self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)

    def write(self, writer: str, epoch: int, batches: Iterable[pa.RecordBatch]) -> bool:
        return self.publish(self.stage(writer, epoch, batches))

    def stage(self, writer: str, epoch: int, batches: Iterable[pa.RecordBatch]) -> StagedFile:
        """Write and sync an epoch's rows, which nobody sees before `publish`."""
        if epoch < 0:
            raise epoch_refused(epoch)
        if self._has(writer, epoch):
            return StagedFile(writer, epoch, None)
        return self._write_temporary(writer, epoch, batches)

    def publish(self, staged: StagedFile) -> bool:
        """Make an epoch visible, durably; return whether it was new."""
        if staged.path is None:
            return False
        try:
            if self._has(staged.writer, staged.epoch):
                return False
            new = _publish(staged.path, self._file(staged.writer, staged.epoch))
        finally:
            self.discard(staged)
        self._last[staged.writer] = staged.epoch
        return new

    def discard(self, staged: StagedFile) -> None:
        """Remove what was staged, if it is still there; what is published stays."""
        if staged.path is not None:
            with suppress(FileNotFoundError):
                os.unlink(staged.path)

    def _has(self, writer: str, epoch: int) -> bool:
        last = self.last_epoch(writer)
        return last is not None and epoch <= last

    def last_epoch(self, writer: str) -> int | None:
        check_any_name(writer, "writer")
        if writer not in self._last:
            self._clear_temporary(writer)
            self._last[writer] = self._find_last(writer)
        return self._last[writer]

    def claim(self, writer: str, owner: str) -> str | None:
        """Take a writer's files for an owner; return whose they are, None if they do not say.

        Epochs have a meaning for their owner only: to anybody else's, those that are there would
        look written. The owner stands in a file that readers of Parquet pass over, and in each
        file's own metadata, which counts where the first is missing or was never filled.
        """
        found = self.owner(writer, owner)
        if found == owner:
            self._owners[writer] = owner
            if not self._written_owner(writer):
                self._put(writer, self._owner_file(writer), owner.encode("ascii"))
        return found

    def owner(self, writer: str, wanted: str) -> str | None:
        """Whose a writer's files are, None if they do not say; `wanted` where there are none."""
        return self._written_owner(writer) or self._owner_of_newest(writer, wanted)

    def _written_owner(self, writer: str) -> str:
        place = self._owner_file(writer)
        with _told("look whose the folder is", place):
            return place.read_text("ascii", "replace") if place.exists() else ""

    def _owner_file(self, writer: str) -> Path:
        return self._folder / f"_penstock_{check_any_name(writer, 'writer')}"

    def _owner_of_newest(self, writer: str, owner: str) -> str | None:
        """Whose the newest file is; `owner` may have a folder that has none.

        Nothing is cleared before that is known: what is being written may be the true owner's.
        """
        if (last := self._find_last(writer)) is None:
            return owner
        with _told("read", file := self._file(writer, last)):
            metadata = pq.read_schema(file).metadata or {}
        return metadata.get(_OWNER_KEY, b"").decode("ascii", "replace") or None

    def _put(self, writer: str, place: Path, content: bytes) -> None:
        """Write a small file, whole or not at all, also after a power cut."""
        temporary = str(self._folder / f".{writer}-owner-{secrets.token_hex(8)}.tmp")
        with _told("write", place):
            with _created(temporary) as file:
                file.write(content)
            os.replace(temporary, place)
            _sync_folder(self._folder)

    def _file(self, writer: str, epoch: int) -> Path:
        return self._folder / f"{writer}-{epoch:020d}.parquet"

    def _find_last(self, writer: str) -> int | None:
        found = (_FILE.fullmatch(name) for name in self._names())
        return max((int(each[2]) for each in found if each and each[1] == writer), default=None)

    def _clear_temporary(self, writer: str) -> None:
        for name in self._names():
            if name.startswith(f".{writer}-") and name.endswith(".tmp"):
                with _told("clear", self._folder / name), suppress(FileNotFoundError):
                    os.unlink(self._folder / name)

    def _names(self) -> list[str]:
        with _told("list the folder", self._folder):
            return os.listdir(self._folder)

    def _write_temporary(
        self, writer: str, epoch: int, batches: Iterable[pa.RecordBatch]
    ) -> StagedFile:
        groups = _row_groups(batches)
        first = next(groups, None)
        if first is None:
            return StagedFile(writer, epoch, None)
        kept = first.schema.metadata or {}
        if (owner := self._owners.get(writer)) is not None:
            kept = {**kept, _OWNER_KEY: owner.encode("ascii")}
        path = str(self._folder / f".{writer}-{epoch:020d}-{secrets.token_hex(8)}.tmp")
        rows = 0
        try:
            with (
                _told("write", Path(path)),
                _created(path) as file,
                pq.ParquetWriter(file, first.schema.with_metadata(kept)) as parquet,
            ):
                for group in itertools.chain((first,), groups):
                    _check_schema(group.schema, first.schema)
                    parquet.write_table(group.replace_schema_metadata(kept), group.num_rows)
                    rows += group.num_rows
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(path)
            raise
        return StagedFile(writer, epoch, path, rows)


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Put batches together: thousands of row groups would be slow to write and to read."""
    waiting: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if waiting:
            _check_schema(batch.schema, waiting[0].schema)
        waiting.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, size_bytes = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


@contextmanager
def _created(path: str) -> Iterator[IO[bytes]]:
    """A new file with the mode that the umask leaves, synced when it is closed."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with os.fdopen(handle, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _check_schema(schema: pa.Schema, expected: pa.Schema) -> None:
    if not schema.equals(expected):
        raise SinkError(
            f"batches of one epoch differ in their schema: {schema.names} of {schema.types} after "
            f"{expected.names} of {expected.types}; the epoch is not in the sink"
        )


def _publish(temporary: str, final: Path) -> bool:
    """Give a finished file its name unless the name is taken; return whether it was free."""
    with _told("publish", final):
        try:
            os.link(temporary, final)
            new = True
        except FileExistsError:
            new = False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # No hard links here: a rename is atomic too, but two writers need the check before it.
            new = not final.exists()
            if new:
                os.rename(temporary, final)
        # Also when another writer was first: its rename may not be durable yet.
        _sync_folder(final.parent)
    return new


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _told(what: str, path: Path) -> Iterator[None]:
    """Turn a failed system call, or rows that Parquet cannot hold, into a SinkError."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise SinkError(
            f"cannot {what}: {path}: {error}; the epoch is not in the sink, write it again",
            path=str(path),
            errno=getattr(error, "errno", None),
        ) from error
