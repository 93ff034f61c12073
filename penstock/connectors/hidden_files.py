"""Parquet files under names that readers pass over: written, synced, and not yet part of anything.

A sink writes such files of the rows that it is given, and links them to names that readers see.
Slots write some too: then the log has, instead of rows, a record that says which file has them.
"""

from __future__ import annotations

import math
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from xxhash import xxh3_64_intdigest

from penstock.errors import InvalidOption, SinkError
from penstock.log import punit
from penstock.log.record import Body

_SPARK_KEY = b"org.apache.spark.sql.parquet.row.metadata"
OWNER_KEY = b"penstock.owner"  # in the metadata of every file: the rows know whose they are
# By Spark's names: what Arrow calls a compression.
_CODECS = {
    "none": "none", "uncompressed": "none", "snappy": "snappy", "gzip": "gzip", "brotli": "brotli",
    "lz4": "lz4", "lz4_raw": "lz4", "zstd": "zstd",
}  # fmt: skip
DICTIONARY_BYTES_MAX = 1 << 20  # of a column: Arrow goes on without one that gets larger
SAMPLE_ROWS = 1 << 13
TAIL_BYTES = 8  # of a Parquet file: how long its footer is, and the magic
_FILE_OF_SLOT = re.compile(r"\.([A-Za-z0-9_.]+)-([0-9]{1,19})-([0-9a-f]{16})-([A-Za-z0-9-]+)\.rows")

# A record that has this schema stands for rows that are in a file.
_NAMED = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("footer_digest", pa.uint64(), nullable=False),
    ],
    metadata={"penstock.rows": "in a file"},
)


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A finished file, as a record of the log names it."""

    name: str  # in the sink's folder
    rows: int
    bytes: int
    footer_digest: int  # xxh3_64 of the footer, which says where everything in the file lies

    def encode(self) -> punit.Unit:
        """The body of the record: a p-unit, so that whoever lists records can show it."""
        values = (self.name, self.rows, self.bytes, self.footer_digest)
        columns = [
            pa.array([value], field.type) for value, field in zip(values, _NAMED, strict=True)
        ]
        return punit.encode_unit(pa.RecordBatch.from_arrays(columns, schema=_NAMED))


def named_file(body: Body) -> NamedFile | None:
    """The file that has a record's rows; None if the record has them itself."""
    if not punit.inspect(body).schema.equals(_NAMED, check_metadata=True):
        return None
    (row,) = punit.decode(body, is_sound=True).to_pylist()
    if _FILE_OF_SLOT.fullmatch(row["file"]) is None:
        raise SinkError(
            f"a record names a file that no slot has written, {row['file'][:80]!r}: look for "
            "damage with `penstock fsck`"
        )
    return NamedFile(*row.values())


@dataclass(frozen=True, slots=True)
class FileOfSlot:
    """What the name says of a file that a slot has begun."""

    name: str
    vertex: str
    instance: int
    owner: str


def file_of_slot(name: str) -> FileOfSlot | None:
    """Who has written a file of this name; None if no slot has."""
    found = _FILE_OF_SLOT.fullmatch(name)
    return None if found is None else FileOfSlot(name, found[1], int(found[2]), found[4])


@dataclass(frozen=True, slots=True)
class FilesKind:
    """How the files of one sink are made: where, whose, and as what. All of it is plain text."""

    folder: str
    owner: str  # the id of the query
    codec: str | None = None  # as Spark calls it; None is the one that Arrow and Spark begin with
    spark_types: str | None = None  # what Spark's own files say of their columns, as JSON

    def begin(self, name: str) -> HiddenFile:
        """A new file of this name."""
        return HiddenFile(self, os.path.join(self.folder, name))

    def begin_in_slot(self, vertex: str, instance: int) -> HiddenFile:
        """A new file of rows that this instance commits, or nobody."""
        return self.begin(f".{vertex}-{instance}-{secrets.token_hex(8)}-{self.owner}.rows")

    def metadata(self) -> dict[bytes, bytes]:
        said = {} if self.spark_types is None else {_SPARK_KEY: self.spark_types.encode()}
        return {**said, OWNER_KEY: self.owner.encode("ascii")}

    def check(self, file: NamedFile) -> None:
        """Raise SinkError unless the file that a record names is there, whole."""
        path = Path(self.folder, file.name)
        with told("read", path), open(path, "rb") as found:
            size = os.fstat(found.fileno()).st_size
            if size == file.bytes and _footer_digest(found.fileno(), size) == file.footer_digest:
                return
        raise SinkError(
            f"{path} is not the file that was written: it has {size} bytes, and {file.bytes} were "
            f"synced, with {file.rows} rows. Put back what was there, from a copy of the folder",
            path=str(path),
        )


class HiddenFile:
    """A file that is being written; its first row group decides about its columns."""

    def __init__(self, kind: FilesKind, path: str) -> None:
        self.path = path
        self.rows = 0
        self._kind = kind
        self._schema: pa.Schema | None = None
        self._handle: IO[bytes] | None = None
        self._writer: pq.ParquetWriter | None = None

    def write(self, group: pa.Table) -> None:
        """Write rows as one row group; on failure nothing is left of the file."""
        with self._or_nothing("write"):
            if self._writer is None:
                self._begin(group)
            assert self._writer is not None
            assert self._schema is not None
            _check_schema(group.schema, self._schema)
            group = group.replace_schema_metadata(self._schema.metadata)
            self._writer.write_table(group, group.num_rows)
        self.rows += group.num_rows

    def close(self) -> NamedFile:
        """End the file and sync it; on failure nothing is left of it."""
        assert self._writer is not None
        assert self._handle is not None
        with self._or_nothing("write"):
            self._writer.close()
            self._handle.flush()
            os.fsync(self._handle.fileno())
            size = os.fstat(self._handle.fileno()).st_size
            digest = _footer_digest(self._handle.fileno(), size)
            self._handle.close()
        return NamedFile(os.path.basename(self.path), self.rows, size, digest)

    def abandon(self) -> None:
        """Leave nothing of a file that nobody knows of."""
        if self._writer is not None:
            with suppress(OSError, pa.ArrowException, ValueError):
                self._writer.close()  # it would write at its end, to a file that is closed
        if self._handle is not None:
            with suppress(OSError):
                self._handle.close()
        with suppress(FileNotFoundError):
            os.unlink(self.path)

    def _begin(self, first: pa.Table) -> None:
        metadata = {**(first.schema.metadata or {}), **self._kind.metadata()}
        self._schema = first.schema.with_metadata(metadata)
        self._handle = _created(self.path)
        self._writer = pq.ParquetWriter(
            self._handle,
            self._schema,
            compression=codec_of(self._kind.codec),
            use_dictionary=_with_dictionary(first),
            dictionary_pagesize_limit=DICTIONARY_BYTES_MAX,
        )

    @contextmanager
    def _or_nothing(self, what: str) -> Iterator[None]:
        try:
            with told(what, Path(self.path)):
                yield
        except BaseException:
            self.abandon()
            raise


def codec_of(name: str | None) -> str:
    """What Arrow calls a compression."""
    word = (name or "snappy").lower()
    if word not in _CODECS:
        raise InvalidOption(
            f"Parquet files are not compressed by {name!r:.80}; possible are {', '.join(_CODECS)}",
            option="compression",
        )
    return _CODECS[word]


def table_of(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Batches of one schema as a table."""
    for batch in batches[1:]:
        _check_schema(batch.schema, batches[0].schema)
    return pa.Table.from_batches(batches)


def _footer_digest(handle: int, size: int) -> int:
    tail = os.pread(handle, TAIL_BYTES, max(0, size - TAIL_BYTES))
    footer_bytes = int.from_bytes(tail[:4], "little") + TAIL_BYTES
    if len(tail) < TAIL_BYTES or footer_bytes > size:
        return 0
    return xxh3_64_intdigest(os.pread(handle, footer_bytes, size - footer_bytes))


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


def write_synced(path: str, content: bytes) -> None:
    """Write a new small file."""
    with _created(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _created(path: str) -> IO[bytes]:
    """A new file with the mode that the umask leaves."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    return os.fdopen(handle, "wb")


def _check_schema(schema: pa.Schema, expected: pa.Schema) -> None:
    if not schema.equals(expected):
        raise SinkError(
            f"batches of one epoch differ in their schema: {schema.names} of {schema.types} after "
            f"{expected.names} of {expected.types}; the epoch is not in the sink"
        )


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
