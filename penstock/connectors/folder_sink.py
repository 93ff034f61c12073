"""A sink that keeps one Parquet file per vertex and epoch in a folder that anyone may read."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.connectors.contract import Sink, epoch_refused
from penstock.errors import SinkError
from penstock.names import check_any_name

_FILE = re.compile(r"([A-Za-z0-9_.]+)-([0-9]{20})\.parquet")
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK)


class FolderSink(Sink):
    """Rows as files named by vertex and epoch: `hot.s0.0-00000000000000000012.parquet`.

    A file appears whole under its name, by a link to a finished and synced temporary file, and an
    existing one is never replaced. So whoever lists the folder at any moment sees each epoch once,
    and a zombie and its heir can both write the same epoch: the first one stays. Temporary files
    begin with a dot, which directory readers skip; those of a vertex are cleared when its next
    instance asks for the last epoch.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._last: dict[str, int | None] = {}
        with _told("create the folder", self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)

    def write(self, vertex: str, epoch: int, batches: Iterable[pa.RecordBatch]) -> bool:
        if epoch < 0:
            raise epoch_refused(epoch)
        last = self.last_epoch(vertex)
        if last is not None and epoch <= last:
            return False
        temporary = self._write_temporary(vertex, epoch, batches)
        if temporary is None:
            return False
        final = self._folder / f"{vertex}-{epoch:020d}.parquet"
        try:
            new = _publish(temporary, final)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
        self._last[vertex] = epoch
        return new

    def last_epoch(self, vertex: str) -> int | None:
        check_any_name(vertex, "vertex")
        if vertex not in self._last:
            self._last[vertex] = self._find_last(vertex)
        return self._last[vertex]

    def _find_last(self, vertex: str) -> int | None:
        last: int | None = None
        with _told("list the folder", self._folder), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.startswith(f".{vertex}-") and entry.name.endswith(".tmp"):
                    with suppress(FileNotFoundError):
                        os.unlink(entry.path)
                found = _FILE.fullmatch(entry.name)
                if found is not None and found[1] == vertex:
                    last = max(int(found[2]), -1 if last is None else last)
        return last

    def _write_temporary(
        self, vertex: str, epoch: int, batches: Iterable[pa.RecordBatch]
    ) -> str | None:
        """Write and sync the rows; return the file's path, or None if there is no row."""
        rows = (batch for batch in batches if batch.num_rows)
        first = next(rows, None)
        if first is None:
            return None
        with _told("write", self._folder):
            handle, path = tempfile.mkstemp(".tmp", f".{vertex}-{epoch:020d}-", self._folder)
        try:
            with _told("write", Path(path)), os.fdopen(handle, "wb") as file:
                with pq.ParquetWriter(file, first.schema) as writer:
                    writer.write_batch(first)
                    for batch in rows:
                        _check_schema(batch.schema, first.schema)
                        writer.write_batch(batch)
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                os.fsync(file.fileno())
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(path)
            raise
        return path


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
