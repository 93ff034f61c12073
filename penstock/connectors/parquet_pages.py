"""How the row groups of a Parquet file are read: in which pages, and which texts as codes."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain, islice

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.connectors.folder_files import OpenFile
from penstock.connectors.parquet_footer import Footer, read_footer, stored_values
from penstock.connectors.parquet_types import longest_text, stored_texts

PAGE_ROWS = 8_192
PAGE_ROWS_MAX = 1 << 18  # where every value has a few bytes, whatever the file says
PAGE_BUFFER_BYTES = 1 << 20
JOINED_BYTES_MAX = 16 << 20  # pages are joined up to here: large batches, of rows that are small
SMALL_FILE_BYTES = 1 << 18  # such a file is read at once
CODED_ROWS_MIN = 1 << 16  # of a row group: smaller ones are joined, and have a dictionary each
CODED_ROWS_PER_VALUE = 4  # measured: a larger dictionary costs more than it saves
# A few hundred bytes of a file can stand for any amount of memory: a value that is stored once and
# named by every row, or one that compresses to nothing. What is built from them is bounded here.
BATCH_BYTES_MAX = 64 << 20
ROW_BYTES_MAX = 64 << 20
STORED_TEXT_BYTES_MAX = 4 * BATCH_BYTES_MAX // PAGE_ROWS
PROBE_ROWS = 64

Stored = Mapping[str, pa.Array]  # the dictionaries that Arrow has, None of what it does not tell


class FileBytes(io.RawIOBase):
    """An open file's bytes for Arrow to read.

    Not a memory map: a file that is cut short underneath one kills the process.
    """

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        starts = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size_bytes}
        self._at = starts[whence] + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(self._file.size_bytes - self._at, 0)
        content = self._file.pread(self._at, left if size < 0 else min(size, left), 0)
        self._at += len(content)
        return content


class ParquetPages:
    """Pages of row groups, of as many rows as are sure to be small together.

    Texts come as codes of a dictionary for one of three reasons: those that are stored are long, so
    that what rows need has to be known before it is built; somebody wants codes, and the row group
    is large beside its dictionary; or the file is small, and opened so without a look at it before.

    Arrow leaves a value out that a dictionary has twice, and then counts the codes behind it wrong:
    so a text comes as codes only where Arrow has as many values as the file says, else plain.

    Of a row group's metadata only its sizes are asked Arrow for: its columns' are not safe to ask
    for, since what is wrong with them ends the process.
    """

    def __init__(self, file: OpenFile, wanted: pa.Schema) -> None:
        """Open the file, so that it is known what is there; `take` says what is to be read."""
        self._file = file
        self._opened: dict[tuple[str, ...], pq.ParquetFile] = {}  # by the texts that are codes
        self.metadata: pq.FileMetaData = None
        first = self._small_file(wanted)
        self._is_small = first is not None
        self._first = first or self._parquet_file(())
        self.metadata, self.schema = self._first.metadata, self._first.schema_arrow

    def _small_file(self, wanted: pa.Schema) -> pq.ParquetFile | None:
        """None if the file has many rows all the same, or other columns."""
        if self._file.size_bytes > SMALL_FILE_BYTES or any(map(pa.types.is_nested, wanted.types)):
            return None
        texts = [field.name for field in wanted if field.type in (pa.string(), pa.binary())]
        try:
            opened = self._parquet_file(texts)
        except KeyError:
            return None
        return opened if opened.metadata.num_rows <= PAGE_ROWS else None

    def _parquet_file(self, coded: Sequence[str]) -> pq.ParquetFile:
        file = self._file
        small = file.size_bytes <= SMALL_FILE_BYTES
        return pq.ParquetFile(
            pa.BufferReader(file.pread(0, file.size_bytes, 0)) if small else FileBytes(file),
            metadata=self.metadata,
            read_dictionary=coded,
            buffer_size=PAGE_BUFFER_BYTES,
            pre_buffer=False,
            coerce_int96_timestamp_unit="us",
        )

    def take(self, columns: Sequence[str], coded: Sequence[str]) -> None:
        """Say which columns are read from now on, and which of them may come as codes."""
        self._columns, self._coded = columns, coded
        kinds = [self.schema.field(name).type for name in columns]
        leaves = [leaf for kind in kinds for leaf in _leaves(kind)]
        fixed = [k for k in leaves if pa.types.is_primitive(k) or pa.types.is_decimal128(k)]
        self._row_bytes = sum(kind.bit_width for kind in fixed) // 8
        self._is_bounded = not any(pa.types.is_nested(kind) for kind in leaves)
        is_narrow = len(fixed) == len(leaves)
        self._rows = _page_rows(self._row_bytes) if is_narrow else PAGE_ROWS
        self._texts = () if is_narrow else _text_paths(self._first.schema, columns)
        self._opened[self._texts if self._is_small else ()] = self._first

    def of(self, group: int) -> Iterator[pa.RecordBatch]:
        """Return the pages of a row group; an ArrowInvalid says why it cannot be read."""
        if not self._texts:
            return self._batches((), group, self._rows)
        paths, longest, small = self._texts, 0, self._is_small
        pages = self._batches(paths, group, PAGE_ROWS) if small else self._some(group, paths)
        try:
            some = next(pages, None)
        except OSError:  # so Arrow also tells of a form that it does not read as codes
            paths, longest = self._without_shared(group)
            some = next(self._some(group, paths), None)
        if some is None:
            return pages
        found = [texts for column in some.columns for texts in stored_texts(column)]
        are_all = len(found) == len(paths)  # no JSON of Arrow's beside what is wanted
        stored = dict(zip(paths, found if are_all else [None] * len(paths), strict=True))
        longest = max(longest, *map(longest_text, found), 0)
        # A text of a row is one that is stored once for many, or one of its own in the row group.
        about = self.metadata.row_group(group)
        own_bytes = about.total_byte_size // max(about.num_rows, 1)
        row_bytes = self._row_bytes + len(self._texts) * longest + own_bytes
        if small or longest > STORED_TEXT_BYTES_MAX:
            coded = self._bounding_codes(group, stored, len(self._texts) * longest)
            if small and coded == self._texts:
                return chain([some], pages)
            rows = PAGE_ROWS if coded == self._texts else _page_rows(row_bytes, rows_min=1)
            return self._batches(coded, group, rows)
        if not self._is_bounded:
            return self._batches((), group, PAGE_ROWS)
        rows = _page_rows(row_bytes)
        return self._batches(self._wanted_codes(group, stored, rows), group, rows)

    def _some(self, group: int, paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return self._batches(self._texts, group, PROBE_ROWS, paths)

    def _without_shared(self, group: int) -> tuple[tuple[str, ...], int]:
        """Return the texts that Arrow reads as codes, and how long some of the others are.

        Those are not that are stored by what they share with the one before. They are looked at row
        by row, since few bytes may be many long ones.
        """
        coded = []
        for path in self._texts:
            with suppress(OSError):
                next(self._some(group, [path]), None)
                coded.append(path)
        others = [path for path in self._texts if path not in coded]
        single = islice(self._batches((), group, 1, others), PROBE_ROWS)
        return tuple(coded), max((row.nbytes for row in single), default=0)

    def _bounding_codes(self, group: int, stored: Stored, row_bytes: int) -> tuple[str, ...]:
        """Return which texts come as codes for the sake of memory: all that Arrow counts right.

        A plain one needs no more than a row may, if it is one for a row. If not, it comes as codes
        even where nobody says how many values the file has.
        """
        coded = []
        for path, texts in stored.items():
            can_be_plain = path in self._columns and row_bytes <= ROW_BYTES_MAX
            values = None if texts is None else self._values(group, path)
            if not can_be_plain if values is None else values in (0, len(texts)):
                coded.append(path)
            elif not can_be_plain:
                raise pa.ArrowInvalid(f"the dictionary of {path} has a value twice")
        return tuple(coded)

    def _wanted_codes(self, group: int, stored: Stored, page_rows: int) -> tuple[str, ...]:
        """Return which texts come as codes because they are wanted so, and it is worth it."""
        rows = self.metadata.row_group(group).num_rows
        if rows < CODED_ROWS_MIN:
            return ()
        values_max = min(rows // CODED_ROWS_PER_VALUE, page_rows)  # each page brings them along
        few = [path for path in self._coded if 0 < len(stored.get(path) or ()) <= values_max]
        return tuple(path for path in few if self._values(group, path) == len(stored[path]))

    def _values(self, group: int, path: str) -> int | None:
        return stored_values(self._file, self._footer, group, path)

    @cached_property
    def _footer(self) -> Footer:
        return read_footer(self._file)

    def _batches(
        self, coded: tuple[str, ...], group: int, rows: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        if coded not in self._opened:
            self._opened[coded] = self._parquet_file(coded)
        wanted = self._columns if columns is None else columns
        found: Iterator[pa.RecordBatch] = self._opened[coded].iter_batches(
            rows, row_groups=[group], columns=wanted, use_threads=False
        )
        return found


def _leaves(kind: pa.DataType) -> list[pa.DataType]:
    """Return the types of which a row has one value each: those of a struct's fields."""
    if not pa.types.is_struct(kind):
        return [kind]
    return [leaf for field in kind for leaf in _leaves(field.type)]


def _page_rows(row_bytes: int, rows_min: int = PAGE_ROWS) -> int:
    return max(rows_min, min(JOINED_BYTES_MAX // max(row_bytes, 1), PAGE_ROWS_MAX))


def _text_paths(schema: pq.ParquetSchema, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the paths of texts, on their own or inside other values, in the columns wanted."""
    columns = [schema.column(number) for number in range(len(schema.names))]
    texts = [
        column.path
        for column in columns
        if column.physical_type == "BYTE_ARRAY" and column.logical_type.type != "DECIMAL"
    ]
    return tuple(path for name in wanted for path in texts if f"{path}.".startswith(f"{name}."))
