"""A growing folder of files as a source: Parquet, JSON lines, CSV or text."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import pyarrow as pa

from penstock.connectors.contract import (
    DealtSource,
    Offset,
    SourceBatch,
    check_rows_max,
    offset_refused,
)
from penstock.connectors.folder_files import AnnouncedFile, FileRows, Piece, refuse_ways_out
from penstock.connectors.folder_registry import FileEntry, KnownFiles, Registry
from penstock.connectors.line_files import (
    BLOCK_BYTES_MIN,
    COMPRESSED,
    CompressedFileRows,
    LineFileRows,
)
from penstock.connectors.line_formats import CsvLines, JsonLines, LineFormat, TextLines
from penstock.connectors.parquet_files import ParquetFileRows
from penstock.connectors.rejects import rejected_batch
from penstock.errors import InvalidArgument, PathRefused, SourceError, SourceVanished

Format = Literal["parquet", "jsonl", "csv", "text"]
TEXT_SCHEMA = pa.schema([pa.field("value", pa.string(), nullable=False)])
FILES_PER_READ_MAX = 64
LINE_BYTES_LIMIT = 1 << 30


@dataclass(frozen=True)
class FolderOptions:
    """How a folder is read.

    - mode: "fail" stops at input that does not fit, "deadletter" hands it out as rejected rows;
    - bounded: read what is there at the first look, then end;
    - recursive: also folders below; names that begin with '_' or '.' are skipped at every level;
    - pattern: which file names count, as a shell would match them;
    - header, delimiter, escape: of CSV; check_header: its names must be those of the schema;
    - case_sensitive: whether a Parquet column is found by its name's very letters.
    """

    mode: Literal["fail", "deadletter"] = "fail"
    bounded: bool = False
    recursive: bool = False
    pattern: str = "*"
    header: bool = False
    delimiter: str = ","
    escape: str = "\\"
    check_header: bool = False
    case_sensitive: bool = False
    block_bytes: int = 4 << 20
    line_bytes_max: int = 16 << 20

    def __post_init__(self) -> None:
        if self.mode not in ("fail", "deadletter"):
            raise InvalidArgument(f"mode is {self.mode!r}, possible are fail and deadletter")
        if not BLOCK_BYTES_MIN <= self.block_bytes <= LINE_BYTES_LIMIT:
            raise InvalidArgument(
                f"block_bytes is {self.block_bytes}, "
                f"{BLOCK_BYTES_MIN} to {LINE_BYTES_LIMIT} is possible"
            )
        if not 1 <= self.line_bytes_max <= LINE_BYTES_LIMIT:
            raise InvalidArgument(
                f"line_bytes_max is {self.line_bytes_max}, 1 to {LINE_BYTES_LIMIT} is possible"
            )


@dataclass(frozen=True, slots=True)
class _At:
    """A position: a file's number, and how many bytes and rows of it were read."""

    file: int
    byte: int = 0
    row: int = 0

    @property
    def offset(self) -> Offset:
        return {"file": self.file, "byte": self.byte, "row": self.row}


class FolderSource(DealtSource):
    """Files of a folder, each read once, whatever their names and whenever they appear.

    A look at the folder takes up the names that are not known yet, in the order of their paths, and
    appends them to the list in the registry: this list is the order of reading, for this process
    and for every later one. The offset is a file's number in it and a position inside the file.
    From the look on a file must not change until it is read: it has to appear whole, by a rename
    from elsewhere on the same disk. What was read to its end may be removed.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        format: Format,
        registry: Registry,
        schema: pa.Schema | None = None,
        options: FolderOptions | None = None,
        registry_key: str = "files",
    ) -> None:
        self._folder = Path(os.path.abspath(folder))
        self._format: Format = format
        self._options = options if options is not None else FolderOptions()
        self.schema = _checked_schema(format, schema)
        self._lines = _line_format(format, self.schema, self._options)
        self._registry, self._registry_key = registry, registry_key
        self._known = KnownFiles(registry, registry_key)
        self._open: tuple[int, AnnouncedFile, FileRows] | None = None

    def initial_offset(self) -> Offset:
        return _At(self._first).offset

    def read(self, offset: Offset, rows_max: int) -> SourceBatch:
        rows_max = check_rows_max(rows_max)
        begin = at = self._position(offset)
        for _ in range(FILES_PER_READ_MAX):
            if not self._is_known(at.file):
                break
            piece = self._piece(at, rows_max)
            if piece.rejects and self._options.mode == "fail":
                raise piece.rejects[0].error()
            at = self._after(at, piece)
            if piece.batch is not None or piece.rejects:
                rejected = rejected_batch(piece.rejects)
                return SourceBatch(piece.batch, at.offset, self._is_end(at), rejected=rejected)
        ended = self._is_end(at)
        idle = at == begin and not ended
        return SourceBatch(
            None, at.offset, ended, idle=idle, nothing_yet=idle and at == _At(self._first)
        )

    def close(self) -> None:
        if self._open is not None:
            _, file, rows = self._open
            self._open = None
            rows.close()
            file.close()

    def _piece(self, at: _At, rows_max: int) -> Piece:
        file, rows = self._opened(at.file)
        file.check(at.byte, at.row)
        return rows.read(at.byte, at.row, rows_max)

    def _after(self, at: _At, piece: Piece) -> _At:
        if not piece.finished:
            return _At(at.file, piece.byte, piece.row)
        self.close()
        return _At(at.file + self._stride)

    def _opened(self, number: int) -> tuple[AnnouncedFile, FileRows]:
        if self._open is None or self._open[0] != number:
            self.close()
            file = AnnouncedFile(self._folder, self._known[number])
            self._open = (number, file, self._rows(file))
        return self._open[1], self._open[2]

    def _rows(self, file: AnnouncedFile) -> FileRows:
        options = self._options
        stop_at_first = options.mode == "fail"
        if self._lines is None:
            return ParquetFileRows(file, self.schema, stop_at_first, options.case_sensitive)
        if file.entry.name.lower().endswith(COMPRESSED):
            return CompressedFileRows(file)
        return LineFileRows(
            file, self._lines, stop_at_first, options.block_bytes, options.line_bytes_max
        )

    def _is_known(self, number: int) -> bool:
        """Say whether there is a file of this number, after a look at the folder if need be."""
        if number >= len(self._known):
            self._known.refresh()
        if number >= len(self._known) and not self._known.sealed:
            found = sorted(self._new_files(), key=lambda entry: entry.name)
            self._known.add(found, seal=self._options.bounded)
        return number < len(self._known)

    def _is_end(self, at: _At) -> bool:
        return self._known.sealed and at.file >= len(self._known)

    def _position(self, offset: Offset) -> _At:
        if not isinstance(offset, dict) or set(offset) != {"file", "byte", "row"}:
            raise offset_refused(offset, "file, byte and row were expected")
        numbers = (offset["file"], offset["byte"], offset["row"])
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise offset_refused(offset, "numbers from 0 on were expected")
        at = _At(*numbers)
        if at.file % self._stride != self._first % self._stride or at.file < self._first:
            raise offset_refused(offset, f"this part reads file {self._first} + k * {self._stride}")
        if at.file >= len(self._known):
            self._known.refresh()
        if at.file >= len(self._known) + self._stride or (
            at.file >= len(self._known) and (at.byte or at.row)
        ):
            raise offset_refused(
                offset, f"the registry lists {len(self._known)} files under {self._registry_key!r}"
            )
        return at

    def _new_files(self) -> Iterator[FileEntry]:
        for path, name in self._walk(self._folder, ""):
            if name in self._known:
                continue
            refuse_ways_out(self._folder, path, name)
            try:
                found = os.stat(path)
            except FileNotFoundError:
                continue  # gone since it was listed, and never announced
            except OSError as error:
                raise SourceError(f"cannot look at {name}: {error}", file=name) from error
            if not stat.S_ISREG(found.st_mode):
                raise PathRefused(
                    f"{name} is not a regular file: pipes, sockets and devices are never read",
                    file=name,
                )
            yield FileEntry(name, found.st_size, found.st_mtime_ns)

    def _walk(self, folder: Path, prefix: str) -> Iterator[tuple[Path, str]]:
        """Yield the paths and names that count, which may be anything but folders."""
        try:
            with os.scandir(folder) as entries:
                listed = [(entry, entry.is_dir()) for entry in entries]
        except FileNotFoundError as error:
            if prefix:
                return  # a folder below that is gone since it was listed
            raise SourceVanished(f"there is no folder {folder}", file=str(folder)) from error
        except OSError as error:
            raise SourceError(f"cannot list {folder}: {error}", file=str(folder)) from error
        for entry, is_folder in listed:
            name = prefix + entry.name
            if entry.name.startswith(("_", ".")):
                continue
            if not is_folder:
                if fnmatchcase(entry.name, self._options.pattern):
                    yield Path(entry.path), name
            elif self._options.recursive:
                refuse_ways_out(self._folder, Path(entry.path), name)
                # A link to a folder inside: its files are found where they are.
                if not entry.is_symlink():
                    yield from self._walk(Path(entry.path), name + "/")

    def _copy(self) -> FolderSource:
        return FolderSource(
            self._folder,
            self._format,
            self._registry,
            self.schema,
            self._options,
            self._registry_key,
        )


def _checked_schema(format: Format, schema: pa.Schema | None) -> pa.Schema:
    if schema is None and format == "text":
        return TEXT_SCHEMA
    if schema is None or not len(schema):
        raise InvalidArgument(f"{format} files need a schema with at least one column")
    if len(set(schema.names)) != len(schema):
        raise InvalidArgument(f"the schema has a column twice: {', '.join(schema.names)}")
    return schema


def _line_format(format: Format, schema: pa.Schema, options: FolderOptions) -> LineFormat | None:
    """Return how lines become rows, None for a format that is not made of lines."""
    if format == "parquet":
        return None
    if format == "jsonl":
        return JsonLines(schema)
    if format == "csv":
        return CsvLines(
            schema, options.delimiter, options.header, options.escape, options.check_header
        )
    if format == "text":
        return TextLines(schema)
    raise InvalidArgument(f"format is {format!r}, possible are parquet, jsonl, csv and text")
