"""A growing folder of files as a source: Parquet, JSON lines, CSV or text."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import pyarrow as pa

from penstock.arguments import check_choice, check_integer
from penstock.clock import Clock, SystemClock
from penstock.connectors.contract import (
    AGAIN_S,
    Offset,
    Source,
    SourceBatch,
    check_rows_max,
    offset_refused,
)
from penstock.connectors.file_facts import fact_columns
from penstock.connectors.folder_cleaning import FolderCleaning
from penstock.connectors.folder_files import FileRows, OpenFile, Piece, Version
from penstock.connectors.folder_listing import FolderListing, Selection
from penstock.connectors.folder_partitions import NO_PARTITIONS, PartitionColumns
from penstock.connectors.folder_registry import Registry
from penstock.connectors.folder_shares import Dealing, Share, even_begins
from penstock.connectors.line_files import (
    BLOCK_BYTES_MIN,
    COMPRESSED,
    CompressedFileRows,
    LineFileRows,
    joined_lines,
    lines_most,
)
from penstock.connectors.line_formats import CsvLines, JsonLines, LineFormat, TextLines
from penstock.connectors.parquet_cuts import parquet_begins
from penstock.connectors.parquet_files import ParquetFileRows
from penstock.connectors.parquet_statistics import Condition
from penstock.connectors.rejects import Reject, joined, rejected_batch
from penstock.errors import (
    InvalidArgument,
    SourceChanged,
    SourceShrunk,
    SourceVanished,
    StreamError,
)

_logger = logging.getLogger(__name__)

Format = Literal["parquet", "jsonl", "csv", "text"]
TEXT_SCHEMA = pa.schema([pa.field("value", pa.string(), nullable=False)])
FILES_PER_READ_MAX = 64
BYTES_PER_READ_MAX = 16 << 20  # of small pieces that are handed out together
JOINED_FILE_BYTES_MAX = 1 << 16  # lines of smaller files are parsed together
PIECE_ROWS_ALONE = 1 << 14  # a piece of so many rows is not copied to be joined with others
LINE_BYTES_LIMIT = 1 << 30
SETTLE_MS_LIMIT = 24 * 3_600_000


@dataclass(frozen=True)
class FolderOptions:
    """How a folder is read.

    - mode: "fail" stops at input that does not fit, "deadletter" hands it out as rejected rows;
    - bounded: read what is there at the first look, then end;
    - recursive: also folders below; names that begin with '_' or '.' are skipped at every level;
    - below: a pattern of the places below the folder in which files count, or of the files;
    - pattern: which file names count;
    - base: the folder in which partitions begin, if it is not the place;
    - latest_first: of the files that a look finds, the newest are read first;
    - files_max, bytes_max: how many files, and about how many bytes, are handed out together;
    - age_ms_max: files that come later and are so much older than the newest are left out;
    - name_only: files of one name are one, in whatever folders;
    - clean: what becomes of files that were read: they are left, deleted, or put into `archive`;
    - header, delimiter, escape: of CSV; check_header: its names must be those of the schema;
    - settle_ms: for how long a file must not have been written to before it is begun, so that one
      that is still being copied is left alone; done_ms: the same where the kernel has told that its
      writer closed it, or that it was renamed (by default as long);
    - changed: what to do about a file that is gone, or is not what it was when its reading began:
      "fail", "skip" the rest of it, or "continue" with the rest as it is now;
    - case_sensitive: whether a Parquet column, or a partition, is found by its name's very letters;
    - part_bytes: larger files are read in parts of about so many bytes, by several readers.
    """

    mode: Literal["fail", "deadletter"] = "fail"
    bounded: bool = False
    recursive: bool = False
    below: str = ""
    pattern: str = "*"
    base: str | None = None
    latest_first: bool = False
    files_max: int | None = None
    bytes_max: int | None = None
    age_ms_max: int | None = None
    name_only: bool = False
    clean: Literal["off", "delete", "archive"] = "off"
    archive: str | None = None
    header: bool = False
    delimiter: str = ","
    escape: str = "\\"
    check_header: bool = False
    settle_ms: int = 0
    done_ms: int | None = None
    changed: Literal["fail", "skip", "continue"] = "fail"
    case_sensitive: bool = False
    part_bytes: int = 32 << 20
    block_bytes: int = 4 << 20
    line_bytes_max: int = 16 << 20

    @property
    def selection(self) -> Selection:
        """Which files count."""
        is_newest_only = self.latest_first and (self.files_max or self.bytes_max) is not None
        return Selection(
            self.recursive,
            self.pattern,
            self.settle_ms,
            self.settle_ms if self.done_ms is None else self.done_ms,
            self.bounded,
            self.part_bytes,
            self.below,
            self.base,
            self.case_sensitive,
            self.latest_first,
            self.files_max,
            None if is_newest_only else self.age_ms_max,
            self.name_only,
        )

    def __post_init__(self) -> None:
        check_choice(self.mode, "mode", "fail", "deadletter")
        check_choice(self.changed, "changed", "fail", "skip", "continue")
        check_choice(self.clean, "clean", "off", "delete", "archive")
        check_integer(self.settle_ms, "settle_ms", 0, SETTLE_MS_LIMIT)
        check_integer(self.part_bytes, "part_bytes", 1)
        check_integer(self.block_bytes, "block_bytes", BLOCK_BYTES_MIN, LINE_BYTES_LIMIT)
        check_integer(self.line_bytes_max, "line_bytes_max", 1, LINE_BYTES_LIMIT)


@dataclass(frozen=True, slots=True)
class _At:
    """A position: a share's number, how far it was read, and of which version of its file.

    Before its first row there is no version yet; then the number may be that of another's share, or
    of none: the next one from there on is read.
    """

    file: int
    byte: int = 0
    row: int = 0
    version: Version | None = None

    @property
    def offset(self) -> Offset:
        offset = {"file": self.file, "byte": self.byte, "row": self.row}
        if self.version is not None and (self.byte or self.row):
            offset |= {"size": self.version.size_bytes, "mtime_ns": self.version.mtime_ns}
        return offset


_Taken = tuple[_At, list[pa.RecordBatch], list[Reject]]  # where to go on, and what was read


class FolderSource(Source):
    """Files of a folder, each read once, whatever their names and whenever they appear.

    A look at the folder takes up the names that are not known yet, in the order of their paths, and
    appends them to the list in the registry: this list is the order of reading, for this process
    and for every later one. Large files are several entries of it, a part each. The offset is the
    number of an entry and a position inside the file.

    Inside a file the offset also says which version of it was begun: the file must stay that one
    until it is read to its end, or the rows before and after the offset would be of two files.
    Until then, and once it was read, it may change or go; one in parts must stay as it was found.
    So it is safe to rename files into the folder; one that is copied must not rest for longer than
    `settle_ms` before it is whole, or `done_ms` once it was closed where the kernel tells that.
    """

    reads_ahead = True

    def __init__(
        self,
        folder: str | os.PathLike[str],
        format: Format,
        registry: Registry,
        schema: pa.Schema | None = None,
        options: FolderOptions | None = None,
        registry_key: str = "files",
        clock: Clock | None = None,
        listing: FolderListing | None = None,
        condition: Condition | None = None,
        coded: Set[str] = frozenset(),
        wake: Callable[[], None] | None = None,
        partitions: PartitionColumns | None = None,
        facts: pa.Schema | None = None,
        first: int = 0,
    ) -> None:
        """`schema`: the columns of the files. `partitions`: those that their folders stand for.

        `facts`: those of `FACTS` that are wanted, each under a name that ends with its own.

        `listing`: one that other sources of the same folder and registry key use too.

        `first`: how many entries of the list are not to be read.

        `condition`: rows of which it is not true may be left out.
        `coded`: columns of texts that may come as codes of a dictionary, where files have them so.
        `wake` is called, by another thread, when it is heard that something has come.
        """
        self._folder = Path(os.path.abspath(folder))
        self._format: Format = format
        self._options = options if options is not None else FolderOptions()
        self._file_schema = _checked_schema(format, schema)
        self._partitions = partitions or NO_PARTITIONS
        self._facts = facts or pa.schema([])
        self.schema = pa.schema([*self._file_schema, *self._partitions.schema, *self._facts])
        self._lines = _line_format(format, self._file_schema, self._options)
        self._registry, self._registry_key = registry, registry_key
        self._clock = clock if clock is not None else SystemClock()
        if listing is None:
            cut = partial(parquet_begins, self._folder) if self._lines is None else even_begins
            listing = FolderListing(
                self._folder,
                registry,
                registry_key,
                replace(self._options.selection, partitions=self._partitions.known),
                self._clock,
                cut,
                wake,
            )
        self.listing, self._known = listing, listing.known
        self._condition = condition
        self._coded = coded
        self._dealing = Dealing(self._known.shares, 0, 1)
        self.cleans = self._options.clean != "off"
        self._cleaning = self._cleaning_for(1)
        self._first = first
        self._look = 0  # the last one that was seen
        self._open: tuple[int, OpenFile, FileRows] | None = None

    @property
    def partitions(self) -> int | None:
        return None

    def initial_offset(self) -> Offset:
        return _At(self._first).offset

    def read(self, offset: Offset, rows_max: int) -> SourceBatch:
        rows_max = check_rows_max(rows_max)
        begin = self._position(offset)
        together = self._together(begin, rows_max)
        at, batches, rejects = together or self._one_by_one(begin, rows_max)
        sealed = self._known.sealed  # before the list, which may just be growing
        more = self._dealing.next(at.file) is not None
        ended = sealed and not more
        idle = at == begin and not ended
        # A file that is known is there to be read, even if it changed at each try.
        pending = idle and (self.listing.unsettled or more)
        return SourceBatch(
            joined(batches),
            at.offset,
            ended,
            rejected=rejected_batch(rejects),
            more=more and not idle,
            idle=idle,
            nothing_yet=idle and not pending and at == _At(self._first),
            pending=pending,
            again_s=self.listing.look_again_s if idle and not more else AGAIN_S,
        )

    def _together(self, at: _At, rows_max: int) -> _Taken | None:
        """Read small files of lines as if they were one; None: one by one, whatever is the matter.

        What is wrong with a file, or with a line of it, is told there.
        """
        if self._lines is None or self._lines.header or at.version is not None or len(self._facts):
            return None
        contents: list[bytes] = []
        partition: tuple[str, ...] | None = None
        bytes_left = min(self._options.block_bytes, self._bytes_max)
        for _ in range(self._files_max):
            number = self._dealing.next(at.file)
            if number is None:
                break
            first, partition = partition, self._partition(number)
            if first not in (None, partition) or self._is_passed_over(number):
                break
            try:
                content = self._whole(self._known[number], min(bytes_left, JOINED_FILE_BYTES_MAX))
            except StreamError:
                break
            if content is None or (rows_max := rows_max - lines_most(content)) < 0:
                break
            contents.append(content)
            bytes_left -= len(content)
            at = _At(number + 1)
        lines = joined_lines(contents) if len(contents) > 1 else None
        if lines is None:
            return None
        batch, misfits = self._lines.rows(lines, first_only=True)
        if misfits:
            return None
        return at, [] if batch is None else [self._with_partition(batch, at.file - 1)], []

    @property
    def _files_max(self) -> int:
        return min(self._options.files_max or FILES_PER_READ_MAX, FILES_PER_READ_MAX)

    @property
    def _bytes_max(self) -> int:
        return min(self._options.bytes_max or BYTES_PER_READ_MAX, BYTES_PER_READ_MAX)

    def _partition(self, number: int) -> tuple[str, ...]:
        return self.listing.paths.partition(self._known[number].file.name)

    def _is_passed_over(self, number: int) -> bool:
        """Whether the condition is true of no row of a share, by what its folders stand for."""
        if self._condition is None or not len(self._partitions.schema):
            return False
        return self._partitions.excludes(self._partition(number), self._condition)

    def _with_partition(self, rows: pa.RecordBatch, number: int) -> pa.RecordBatch:
        """Rows of a share with what its folders stand for."""
        if not len(self._partitions.schema):
            return rows
        values = self._partitions.columns(self._partition(number), rows.num_rows, self._coded)
        names = [*rows.schema.names, *self._partitions.schema.names]
        return pa.RecordBatch.from_arrays([*rows.columns, *values], names)

    def _with_facts(self, rows: pa.RecordBatch, file: OpenFile, piece: Piece) -> pa.RecordBatch:
        """Rows of a piece with what is known of its file."""
        if not len(self._facts):
            return rows
        names = tuple(name.rpartition(".")[2] for name in self._facts.names)
        columns = [*rows.columns, *fact_columns(names, file, piece)]
        return pa.RecordBatch.from_arrays(columns, [*rows.schema.names, *self._facts.names])

    def _whole(self, share: Share, bytes_max: int) -> bytes | None:
        """Return a file's content, None if it is too large or not to be read as it is."""
        name, bytes_max = share.file.name, min(bytes_max, self._options.line_bytes_max)
        is_part, is_packed = share.file.parts > 1, name.lower().endswith(COMPRESSED)
        if is_part or is_packed or share.file.size_bytes > bytes_max:
            return None
        file = OpenFile(self._folder, name, None)
        try:
            if file.size_bytes > bytes_max:
                return None
            content = file.pread(0, file.size_bytes, 0)
            file.check(len(content), 0)
            return content
        finally:
            file.close()

    def _one_by_one(self, at: _At, rows_left: int) -> _Taken:
        batches: list[pa.RecordBatch] = []
        rejects: list[Reject] = []
        bytes_left = self._bytes_max
        for _ in range(self._files_max):
            found_some = bool(batches or rejects)
            is_within = at.version is not None
            if found_some and (is_within or self._dealing.next(at.file) is None):
                break  # small files are handed out together; a large one comes in its own pieces
            if rows_left <= 0 or bytes_left <= 0:
                break
            try:
                number = self._found(at.file)
                if number is None:
                    break
                at = at if number == at.file else _At(number)
                if at.version is None and self._is_passed_over(number):
                    at = _At(number + 1)
                    continue
                at, piece = self._next(at, rows_left)
            except StreamError as error:
                if found_some:
                    break  # the next read begins here, and meets it again
                at = self._past(at, error)
                continue
            rejects += piece.rejects
            rows_left -= len(piece.rejects)
            if piece.batch is not None:
                batches.append(piece.batch)
                rows_left -= piece.batch.num_rows
                bytes_left -= piece.batch.nbytes
                if piece.batch.num_rows >= PIECE_ROWS_ALONE:
                    break
        return at, batches, rejects

    def left_behind(self, offset: Offset) -> int:
        return int(offset["file"]) if self.cleans else 0

    def clean(self, offsets: Sequence[Offset]) -> None:
        if self._cleaning is not None:
            self._cleaning.clean(offsets)

    def _cleaning_for(self, readers: int) -> FolderCleaning | None:
        if not self.cleans:
            return None
        archive = self._options.archive if self._options.clean == "archive" else None
        return FolderCleaning(self._folder, self._known.shares, readers, archive)

    def close(self) -> None:
        if self._open is not None:
            _, file, rows = self._open
            self._open = None
            rows.close()
            file.close()

    def _next(self, at: _At, rows_max: int) -> tuple[_At, Piece]:
        """Return the next rows of a file, and where to go on."""
        file, rows = self._opened(at)
        file.check(at.byte, at.row)
        piece = rows.read(at.byte, at.row, rows_max)
        if piece.rejects and self._options.mode == "fail":
            raise piece.rejects[0].error()
        if piece.batch is not None:
            whole = self._with_facts(self._with_partition(piece.batch, at.file), file, piece)
            piece = replace(piece, batch=whole)
        if not piece.finished:
            return _At(at.file, piece.byte, piece.row, file.version), piece
        file.check(piece.byte, piece.row)  # what was added meanwhile would never be read
        self.close()
        return _At(at.file + 1), piece

    def _past(self, at: _At, error: StreamError) -> _At:
        """Return where to go on after a file that is gone or has changed; raise if nowhere."""
        is_of_file = isinstance(error, SourceVanished | SourceShrunk | SourceChanged)
        if not is_of_file or at.file >= len(self._known):
            raise error  # the folder itself may be gone
        self.close()
        choice = self._options.changed
        is_whole = self._known[at.file].file.parts == 1
        if at.version is None and is_whole and not isinstance(error, SourceVanished):
            return at  # nothing of it was read, as far as anyone knows: begin it as it is now
        if choice == "continue" and isinstance(error, SourceChanged):
            _logger.warning("going on in a file that changed: %s", error.message)
            return replace(at, version=self._version_now(at.file))
        if choice == "skip":
            _logger.warning("leaving a file out: %s", error.message)
            return _At(at.file + 1)
        raise error

    def _version_now(self, number: int) -> Version:
        file = OpenFile(self._folder, self._known[number].file.name, None)
        file.close()
        return file.version

    def _opened(self, at: _At) -> tuple[OpenFile, FileRows]:
        if self._open is not None:
            number, file, rows = self._open
            if number == at.file and at.version in (None, file.version):
                return file, rows
            self.close()
        share = self._known[at.file]
        version = at.version
        if version is None and share.file.parts > 1:
            version = Version(share.file.size_bytes, share.file.mtime_ns)
        file = OpenFile(self._folder, share.file.name, version)
        self._open = (at.file, file, self._rows(file, share))
        return self._open[1], self._open[2]

    def _rows(self, file: OpenFile, share: Share) -> FileRows:
        options = self._options
        stop_at_first = options.mode == "fail"
        if self._lines is None:
            return ParquetFileRows(
                file,
                share,
                self._file_schema,
                stop_at_first,
                options.case_sensitive,
                self._condition,
                self._coded,
            )
        if file.name.lower().endswith(COMPRESSED):
            return CompressedFileRows(file, share)
        return LineFileRows(
            file, share, self._lines, stop_at_first, options.block_bytes, options.line_bytes_max
        )

    def _found(self, number: int) -> int | None:
        """Return the number of the next share, after a look at the folder if need be."""
        found = self._dealing.next(number)
        if found is None:
            self._look = self.listing.look(self._look)
            found = self._dealing.next(number)
        return found

    def _position(self, offset: Offset) -> _At:
        if not isinstance(offset, dict) or not all(type(n) is int for n in offset.values()):
            raise offset_refused(offset, "numbers were expected")
        begun = bool(offset.get("byte") or offset.get("row"))
        names = {"file", "byte", "row", "size", "mtime_ns"} if begun else {"file", "byte", "row"}
        if set(offset) != names:
            raise offset_refused(offset, f"{', '.join(sorted(names))} were expected")
        if any(offset[name] < 0 for name in names - {"mtime_ns"}):
            raise offset_refused(offset, "numbers from 0 on were expected")
        version = Version(offset["size"], offset["mtime_ns"]) if begun else None
        at = _At(offset["file"], offset["byte"], offset["row"], version)
        if at.file >= len(self._known):
            self.listing.refresh()
        if at.file > len(self._known) or (at.file == len(self._known) and begun):
            raise offset_refused(
                offset, f"the registry lists {len(self._known)} files under {self._registry_key!r}"
            )
        if begun and self._dealing.next(at.file) != at.file:
            raise offset_refused(offset, "another part of this source reads that file")
        return at

    def _part(self, part: int, parts: int) -> FolderSource:
        source = FolderSource(
            self._folder,
            self._format,
            self._registry,
            self._file_schema,
            self._options,
            self._registry_key,
            self._clock,
            self.listing,
            self._condition,
            self._coded,
            None,
            self._partitions,
            self._facts,
            self._first,
        )
        source._dealing = Dealing(self._known.shares, part, parts)
        source._cleaning = self._cleaning_for(parts)
        return source


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
