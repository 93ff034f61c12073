"""A sink that keeps one Parquet file per writer and epoch in a folder."""

from __future__ import annotations

import errno
import itertools
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
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


class FolderSink(Sink):
    """Rows as files named by writer and epoch: `hot-00000000000000000012.parquet`.

    A file appears whole under its name, by a link to a finished and synced temporary file, and an
    existing one is never replaced. So whoever lists the folder at any moment sees each epoch once,
    and a zombie and its heir can both write the same epoch: the first one stays. Temporary files
    begin with a dot, which directory readers skip; those of a writer are cleared when it asks for
    the last epoch for the first time. Modes are those that the process's umask allows.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._last: dict[str, int | None] = {}
        self._owners: dict[str, str] = {}
        with _told("create the folder", self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)

    def write(self, writer: str, epoch: int, batches: Iterable[pa.RecordBatch]) -> bool:
        if epoch < 0:
            raise epoch_refused(epoch)
        last = self.last_epoch(writer)
        if last is not None and epoch <= last:
            return False
        temporary = self._write_temporary(writer, epoch, batches)
        if temporary is None:
            return False
        final = self._file(writer, epoch)
        try:
            new = _publish(temporary, final)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
        self._last[writer] = epoch
        return new

    def last_epoch(self, writer: str) -> int | None:
        check_any_name(writer, "writer")
        if writer not in self._last:
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
        """Whose the newest file is; `owner` may have a folder that has none."""
        if (last := self.last_epoch(writer)) is None:
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
        last: int | None = None
        with _told("list the folder", self._folder), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.startswith(f".{writer}-") and entry.name.endswith(".tmp"):
                    with suppress(FileNotFoundError):
                        os.unlink(entry.path)
                found = _FILE.fullmatch(entry.name)
                if found is not None and found[1] == writer:
                    last = max(int(found[2]), -1 if last is None else last)
        return last

    def _write_temporary(
        self, writer: str, epoch: int, batches: Iterable[pa.RecordBatch]
    ) -> str | None:
        """Write and sync the rows; return the file's path, or None if there is no row."""
        rows = (batch for batch in batches if batch.num_rows)
        first = next(rows, None)
        if first is None:
            return None
        kept = first.schema.metadata or {}
        if (owner := self._owners.get(writer)) is not None:
            kept = {**kept, _OWNER_KEY: owner.encode("ascii")}
        path = str(self._folder / f".{writer}-{epoch:020d}-{secrets.token_hex(8)}.tmp")
        try:
            with (
                _told("write", Path(path)),
                _created(path) as file,
                pq.ParquetWriter(file, first.schema.with_metadata(kept)) as parquet,
            ):
                for batch in itertools.chain((first,), rows):
                    _check_schema(batch.schema, first.schema)
                    parquet.write_batch(batch.replace_schema_metadata(kept))
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(path)
            raise
        return path


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
