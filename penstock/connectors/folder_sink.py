"""A sink that keeps one Parquet file per epoch of a query in a folder."""

from __future__ import annotations

import errno
import itertools
import math
import os
import re
import secrets
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.connectors.contract import Sink, check_epoch
from penstock.errors import InvalidOption, QueryMismatch, SinkError
from penstock.names import check_any_name

_FILE = re.compile(r"([A-Za-z0-9_.]+)-([0-9]{20})\.parquet")
_SPARK_KEY = b"org.apache.spark.sql.parquet.row.metadata"
_OWNER_KEY = b"penstock.owner"  # in the metadata of every file: the rows know whose they are
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK)
# By Spark's names: what Arrow calls a compression.
_CODECS = {
    "none": "none", "uncompressed": "none", "snappy": "snappy", "gzip": "gzip", "brotli": "brotli",
    "lz4": "lz4", "lz4_raw": "lz4", "zstd": "zstd",
}  # fmt: skip
FILE_BYTES = 64 << 20  # as the log has them: files are closed at about this
FILE_S = 3.0  # and after this time, where no trigger says otherwise
DICTIONARY_BYTES_MAX = 1 << 20  # of a column: Arrow goes on without one that gets larger
SAMPLE_ROWS = 1 << 13
ROW_GROUP_BYTES = 64 << 20  # before encoding: what a writer has in memory, and a reader in a task


@dataclass(frozen=True, slots=True)
class StagedFile:
    """Rows that are written and synced, under a name that readers pass over."""

    path: str | None  # None: there is no row, or the sink has the epoch already
    num_rows: int = 0


class FolderSink(Sink):
    """Rows as files named by query and epoch: `hot-00000000000000000012.parquet`.

    A file appears whole under its name, by a link to a finished and synced temporary file, and an
    existing one is never replaced. So whoever lists the folder at any moment sees each epoch once,
    and a zombie and its heir can both write the same epoch: the first one stays. Temporary files
    begin with a dot, which directory readers skip; those of a query are cleared when it asks for
    the last epoch for the first time. Modes are those that the process's umask allows.

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
        self._said = {} if spark_types is None else {_SPARK_KEY: spark_types.encode()}
        self._codec = _codec(codec)
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

    def publish(self, epoch: int, staged: StagedFile) -> None:
        if staged.path is None:
            return
        try:
            if self._has(epoch):
                return
            link_file(staged.path, self._file(epoch))
        finally:
            self.discard(staged)
        self._last = epoch

    def discard(self, staged: StagedFile) -> None:
        """Remove what was staged, if it is still there; what is published stays."""
        if staged.path is not None:
            with suppress(FileNotFoundError):
                os.unlink(staged.path)

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
        return metadata.get(_OWNER_KEY, b"").decode("ascii", "replace") or None

    def _write_owner(self) -> None:
        """Write the small file, whole or not at all, also after a power cut."""
        temporary = str(self._folder / f".{self._query}-owner-{secrets.token_hex(8)}.tmp")
        with told("write", self._owner_file):
            with _created(temporary) as file:
                file.write(self._id.encode("ascii"))
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
        groups = _row_groups(batches)
        first = next(groups, None)
        if first is None:
            return StagedFile(None)
        said = {**self._said, _OWNER_KEY: self._id.encode("ascii")}
        kept = {**(first.schema.metadata or {}), **said}
        path = str(self._folder / f".{self._query}-{epoch:020d}-{secrets.token_hex(8)}.tmp")
        rows = 0
        try:
            with (
                told("write", Path(path)),
                _created(path) as file,
                pq.ParquetWriter(
                    file,
                    first.schema.with_metadata(kept),
                    compression=self._codec,
                    use_dictionary=_with_dictionary(first),
                    dictionary_pagesize_limit=DICTIONARY_BYTES_MAX,
                ) as parquet,
            ):
                for group in itertools.chain((first,), groups):
                    _check_schema(group.schema, first.schema)
                    parquet.write_table(group.replace_schema_metadata(kept), group.num_rows)
                    rows += group.num_rows
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(path)
            raise
        return StagedFile(path, rows)


def _codec(name: str | None) -> str:
    word = (name or "snappy").lower()
    if word not in _CODECS:
        raise InvalidOption(
            f"Parquet files are not compressed by {name!r:.80}; possible are {', '.join(_CODECS)}",
            option="compression",
        )
    return _CODECS[word]


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


def _with_dictionary(rows: pa.Table) -> bool | list[str]:
    """Which columns get a dictionary; True: all.

    One that would grow too large is not begun: to look values up in it takes most of the time that
    a file takes. How many there are is judged by some rows from all over.
    """
    if any(map(pa.types.is_nested, rows.schema.types)):
        return True  # what Parquet calls the columns inside is only known once they are written
    some = rows
    if len(rows) > SAMPLE_ROWS:  # by chance, for values may come again and again in some order
        places = np.random.default_rng(0).integers(0, len(rows), SAMPLE_ROWS)
        some = rows.take(pa.array(np.sort(places)))
    return [name for name in rows.schema.names if _has_few(some[name])]


def _has_few(some: pa.ChunkedArray) -> bool:
    """Whether the values of some rows are as few as if all of them were in one dictionary."""
    values = some.drop_null()
    if not len(values) or pa.types.is_boolean(some.type):
        return True
    most = DICTIONARY_BYTES_MAX / (values.nbytes / len(values))
    return bool(pc.count_distinct(values).as_py() <= most * -math.expm1(-len(values) / most) + 1)


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


def link_file(temporary: str, final: Path) -> None:
    """Give a finished file its name unless the name is taken."""
    with told("publish", final):
        try:
            os.link(temporary, final)
        except FileExistsError:
            pass  # another writer was first; what follows is for its name too
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # No hard links here: a rename is atomic too, but two writers need the check before it.
            if not final.exists():
                os.rename(temporary, final)
        sync_folder(final.parent)


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def told(what: str, path: Path) -> Iterator[None]:
    """Turn a failed system call, or rows that Parquet cannot hold, into a SinkError."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise SinkError(
            f"cannot {what}: {path}: {error}; the epoch is not in the sink, write it again",
            path=str(path),
            errno=getattr(error, "errno", None),
        ) from error
