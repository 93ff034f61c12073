"""The rows of one Parquet file, streamed page by page, cast to the schema that was asked for."""

from __future__ import annotations

import io
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence, Set
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.connectors.contract import offset_refused
from penstock.connectors.folder_files import FileRows, OpenFile, Piece, Version
from penstock.connectors.folder_shares import FoundFile, Share, packed_begins
from penstock.connectors.parquet_footer import Footer, read_footer, stored_values
from penstock.connectors.parquet_statistics import Condition, excluded_groups
from penstock.connectors.parquet_types import (
    as_codes,
    as_type,
    decoded_bytes,
    decoded_bytes_most,
    has_codes_beyond,
    has_stored_texts,
    is_before_the_calendar,
    is_time_inside,
    longest_stored_text,
    place_of,
    type_misfit,
)
from penstock.connectors.rejects import (
    Misfit,
    Misfits,
    Reject,
    are_sound,
    joined,
    reason_of,
    sift,
    sound_rows,
    unsound,
    with_plain_texts,
)
from penstock.errors import StreamError

PAGE_ROWS = 8_192
PAGE_ROWS_MAX = 1 << 18  # where every value has a few bytes, whatever the file says
PAGE_BUFFER_BYTES = 1 << 20
JOINED_BYTES_MAX = 16 << 20  # pages are joined up to here: large batches, of rows that are small
SMALL_FILE_BYTES = 1 << 18  # such a file is read at once
CODED_ROWS_MIN = 1 << 16  # of a row group: smaller ones are joined, and have a dictionary each
CODED_ROWS_PER_VALUE = 4  # measured: a larger dictionary costs more than it saves
ROW_TEXT_MAX = 4_096
# A few hundred bytes of a file can stand for any amount of memory: a value that is stored once and
# named by every row, or one that compresses to nothing. What is built from them is bounded here.
BATCH_BYTES_MAX = 64 << 20
ROW_BYTES_MAX = 64 << 20
STORED_TEXT_BYTES_MAX = 4 * BATCH_BYTES_MAX // PAGE_ROWS
GROUP_BYTES_MAX = 256 << 20  # of a row group, if it is also this many times as large as the file:
GROUP_RATIO_MAX = 1_000
PROBE_ROWS = 64
ROWS_MAX = 1 << 62


class _Bytes(io.RawIOBase):
    """An open file's bytes for Arrow to read.

    Not a memory map: a file that is cut short underneath one kills the process.
    """

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self._size_bytes = file.size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        starts = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}
        self._at = starts[whence] + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(self._size_bytes - self._at, 0)
        content = self._file.pread(self._at, left if size < 0 else min(size, left), 0)
        self._at += len(content)
        return content


class ParquetFileRows(FileRows):
    """Rows by their number in the file.

    Row groups are read in pages of a fixed number of rows, so that what is found unreadable does
    not depend on how many rows a caller asks for. Reading on is cheap; going back starts the row
    group again. Where a row group stores long texts once for many rows, these come as dictionaries,
    so that what the rows will need is known before it is built.

    Texts that are wanted as codes come so where the file has them so, in rows as they come alone:
    large row groups with dictionaries that are small beside them.

    Of a row group's metadata only its sizes are asked Arrow for: its columns' are not safe to ask
    for, since what is wrong with them ends the process.
    """

    def __init__(
        self,
        file: OpenFile,
        share: Share,
        schema: pa.Schema,
        stop_at_first: bool,
        case_sensitive: bool = False,
        condition: Condition | None = None,
        coded: Set[str] = frozenset(),
    ) -> None:
        """`condition`: rows of which it is not true may be passed over, by whole row groups.

        `coded`: columns of texts that may come as dictionaries.
        """
        self._file = file
        self._share = share
        self._begin = self._end = 0  # the rows of the share: those of some of the row groups
        self._schema = schema
        self._stop_at_first = stop_at_first
        self._case_sensitive = case_sensitive
        self._condition = condition
        self._coded = coded
        self._passed_over: list[bool] = []  # of each row group; none if all are read
        self._ends: list[int] = []  # number of the row after each row group
        self._misfit: str | None = None  # of the file as a whole
        self._old_calendar = False
        self._pages: Iterator[pa.RecordBatch] = iter(())
        self._page: pa.RecordBatch | None = None
        self._page_row = -1  # number of the first row of the page, -1: none is open
        self._row_bytes = 0  # of the columns whose values are all of one size
        self._is_narrow = False  # there are no other columns, whatever the file says
        self._is_flat = False  # there are texts besides, one for a row
        self._shared: pq.ParquetFile | None = None  # texts as dictionaries; None: there are none
        self._texts: list[str] = []  # their paths
        self._with_codes: dict[tuple[str, ...], pq.ParquetFile] = {}  # by what comes coded
        self._open()

    def _open(self) -> None:
        try:
            plain = self._small_file() or self._parquet_file()
            metadata, self._there = plain.metadata, plain.schema_arrow
            self._plain = plain
            groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
            self._groups = groups
            self._ends = list(accumulate(group.num_rows for group in groups))
            self._old_calendar = _has_old_calendar(metadata)
            size_bytes = self._file.size_bytes
            self._misfit = self._schema_misfit() or _size_misfit(groups, size_bytes)
            if self._misfit is None:
                self._take_share()
                self._look_at_columns(metadata)
                self._look_at_statistics()
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            self._file.check(0, 0)
            self._misfit = f"not a readable Parquet file: {reason_of(error)}"

    def _small_file(self) -> pq.ParquetFile | None:
        """Open a small file such that its texts come as dictionaries, without a look at it before.

        None if it has many rows all the same, or other columns: then more is to be thought of.
        """
        texts = [f.name for f in self._schema if f.type in (pa.string(), pa.binary())]
        is_flat = not any(pa.types.is_nested(field.type) for field in self._schema)
        if self._file.size_bytes > SMALL_FILE_BYTES or not is_flat:
            return None
        try:
            opened = self._parquet_file(None, texts)
        except KeyError:
            return None
        self._shared = opened if opened.metadata.num_rows <= PAGE_ROWS else None
        return self._shared

    def _take_share(self) -> None:
        begins = _group_begins(self._groups, self._file.size_bytes)
        first, end_byte = bisect_left(begins, self._share.begin_byte), self._share.end_byte
        end = len(begins) if end_byte is None else bisect_left(begins, end_byte)
        starts = [0, *self._ends]  # of each row group, and of what would follow
        self._begin, self._end = starts[first], starts[end]

    def _look_at_columns(self, metadata: pq.FileMetaData) -> None:
        columns = self._columns()
        kinds = [self._there.field(name).type for name in columns]
        fixed = [k for k in kinds if pa.types.is_primitive(k) or pa.types.is_decimal128(k)]
        self._row_bytes = sum(kind.bit_width for kind in fixed) // 8
        self._is_narrow = len(fixed) == len(kinds)
        self._is_flat = not any(pa.types.is_nested(kind) for kind in kinds)
        if self._is_narrow or self._shared is not None:
            return
        if texts := _text_paths(metadata.schema, columns):
            self._shared = self._parquet_file(metadata, texts)
            self._texts = texts

    def _look_at_statistics(self) -> None:
        if self._condition is None or self._old_calendar:
            return
        if len(self._groups) == 1 and self._file.size_bytes <= SMALL_FILE_BYTES:
            return  # it is read as fast
        there = self._there
        columns = {}
        for field in self._schema:
            place = place_of(field.name, there.names, self._case_sensitive)
            if place >= 0:
                columns[field.name] = there.names[place], there.field(place).type, field.type
        rows = [group.num_rows for group in self._groups]
        self._passed_over = excluded_groups(self._file, self._condition, columns, rows)

    def _is_passed_over(self, row: int) -> bool:
        return bool(self._passed_over) and self._passed_over[bisect_right(self._ends, row)]

    def _parquet_file(
        self, metadata: pq.FileMetaData | None = None, dictionaries: Sequence[str] = ()
    ) -> pq.ParquetFile:
        file = self._file
        small = file.size_bytes <= SMALL_FILE_BYTES
        return pq.ParquetFile(
            pa.BufferReader(file.pread(0, file.size_bytes, 0)) if small else _Bytes(file),
            metadata=metadata,
            read_dictionary=dictionaries,
            buffer_size=PAGE_BUFFER_BYTES,
            pre_buffer=False,
            coerce_int96_timestamp_unit="us",
        )

    def close(self) -> None:
        self._pages, self._page, self._page_row = iter(()), None, -1

    def read(self, byte: int, row: int, rows_max: int) -> Piece:
        if self._misfit is not None:
            whole = Reject(self._file.shown, 0, "", self._misfit)
            return Piece(None, () if self._share.part else (whole,), 0, 0, True)
        row = max(row, self._begin)  # where a part begins if nothing of it was read
        total = self._end
        if byte or row > total:
            raise offset_refused({"byte": byte, "row": row}, f"the file has {total} rows")
        if row == total:
            return Piece(None, (), 0, row, True)
        if self._is_passed_over(row):
            while row < total and self._is_passed_over(row):
                row = self._ends[bisect_right(self._ends, row)]
            return Piece(None, (), 0, row, row == total)
        try:
            rows = self._rows_at(row, rows_max)
        except (pa.ArrowException, OSError) as error:
            self._file.check(0, row)
            return self._unreadable(row, reason_of(error))
        fitting = rows.num_rows if self._is_narrow else _fitting_rows(rows)
        if not fitting:
            told = f"the row takes more than {ROW_BYTES_MAX} bytes"
            reject = Reject(self._file.shown, row + 1, "", told)
            return Piece(None, (reject,), 0, row + 1, row + 1 == total)
        rows = rows.slice(0, fitting)
        batch, misfits = self._fitted(rows)
        rejects = tuple(
            Reject(self._file.shown, row + place + 1, _row_text(rows, place), reason)
            for place, reason in misfits
        )
        following = row + rows.num_rows
        return Piece(batch, rejects, 0, following, following == total)

    def _fitted(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch | None, Misfits]:
        found, misfits = sift(0, rows.num_rows, self._convert(rows), self._stop_at_first)
        cast = joined(found)
        if cast is None:
            return None, misfits
        if not misfits and not self._old_calendar and are_sound(cast, self._schema):
            return pa.RecordBatch.from_arrays(cast.columns, schema=self._schema_of(cast)), misfits
        cast = with_plain_texts(cast)  # what is wrong in a dictionary is so in some rows only
        unfit = [unsound(column) for column in cast.columns]
        if self._old_calendar:
            old = [is_before_the_calendar(column) for column in cast.columns]
            unfit = [wrong | before for wrong, before in zip(unfit, old, strict=True)]
        batch, more = sound_rows(cast.columns, unfit, self._schema)
        away = [row for row, _ in misfits]
        places = np.delete(np.arange(rows.num_rows), away)
        return batch, sorted(misfits + [(int(places[row]), reason) for row, reason in more])

    def _schema_of(self, rows: pa.RecordBatch) -> pa.Schema:
        """Return the schema that was asked for, with codes where rows have them."""
        schema = self._schema
        for place, kind in enumerate(rows.schema.types):
            if pa.types.is_dictionary(kind):
                schema = schema.set(place, schema.field(place).with_type(kind))
        return schema

    def _rows_at(self, row: int, rows_max: int) -> pa.RecordBatch:
        """Return rows of one page, and whole ones that follow if nothing is still to be built."""
        page = self._page_at(row)
        rows = page.slice(row - self._page_row, rows_max)
        if not self._is_narrow and any(has_stored_texts(kind) for kind in rows.schema.types):
            return rows
        pages, end, size_bytes = [rows], row + rows.num_rows, rows.nbytes
        while end < min(row + rows_max, self._end) and size_bytes < JOINED_BYTES_MAX:
            if self._is_passed_over(end):
                break
            try:
                following = self._page_at(end)
            except (pa.ArrowException, OSError):
                self._page = None
                break  # the next read begins there, and tells
            if following.schema != page.schema or end + following.num_rows > row + rows_max:
                break
            pages.append(following)
            end, size_bytes = end + following.num_rows, size_bytes + following.nbytes
        return pages[0] if len(pages) == 1 else pa.concat_batches(pages)

    def _page_at(self, row: int) -> pa.RecordBatch:
        """Return the page that holds a row, going on from the last one where that is possible."""
        if self._page is None or row < self._page_row or not self._same_group(row):
            group = bisect_right(self._ends, row)
            self._page_row = self._ends[group - 1] if group else 0
            self._pages = self._pages_of(group)
            self._page = self._next_page()
        while row >= self._page_row + self._page.num_rows:
            self._page_row += self._page.num_rows
            self._page = self._next_page()
        return self._page

    def _pages_of(self, group: int) -> Iterator[pa.RecordBatch]:
        """Return the pages of a row group, of as many rows as are sure to be small together."""
        if self._is_narrow:
            return self._batches(self._plain, group, _page_rows(self._row_bytes))
        if self._shared is None:
            return self._batches(self._plain, group, PAGE_ROWS)
        if self._shared is self._plain:
            return self._small_pages(group)
        some = next(self._batches(self._shared, group, PROBE_ROWS, self._texts), None)
        stored = longest_stored_text(some)
        if stored > STORED_TEXT_BYTES_MAX:
            return self._batches(self._shared, group, PAGE_ROWS)
        if not self._is_flat:
            return self._batches(self._plain, group, PAGE_ROWS)
        # A text of a row is one that is stored once for many, or one of its own in the row group.
        found = self._groups[group]
        own_bytes = found.total_byte_size // max(found.num_rows, 1)
        rows = _page_rows(self._row_bytes + len(self._texts) * stored + own_bytes)
        return self._batches(self._file_with_codes(group, rows, some), group, rows)

    def _small_pages(self, group: int) -> Iterator[pa.RecordBatch]:
        """Return the pages of a row group of a small file, which is one that has codes."""
        pages = list(self._batches(self._shared, group, PAGE_ROWS))
        is_wrong = any(has_codes_beyond(column) for page in pages for column in page.columns)
        if is_wrong and all(decoded_bytes_most(page) <= BATCH_BYTES_MAX for page in pages):
            # Arrow counts codes wrong where a dictionary has a value twice.
            return self._batches(self._parquet_file(), group, PAGE_ROWS)
        return iter(pages)

    def _file_with_codes(
        self, group: int, page_rows: int, some: pa.RecordBatch | None
    ) -> pq.ParquetFile:
        """Return the file as a row group is to be read: with codes where they are worth it.

        `some` rows of it have all texts as Arrow reads them with codes.
        """
        rows = self._groups[group].num_rows
        if some is None or rows < CODED_ROWS_MIN:
            return self._plain
        values_max = min(rows // CODED_ROWS_PER_VALUE, page_rows)  # each page brings them along
        wanted = [field.name for field in self._schema if field.name in self._coded]
        coded = tuple(
            name
            for name in self._found(wanted)
            if name in some.schema.names
            and len(some.column(name).dictionary) <= values_max
            and self._has_codes(group, name, some.column(name))
        )
        if not coded:
            return self._plain
        if coded not in self._with_codes:
            self._with_codes[coded] = self._parquet_file(self._plain.metadata, coded)
        return self._with_codes[coded]

    def _has_codes(self, group: int, name: str, some: pa.DictionaryArray) -> bool:
        """Say whether a column is nothing but codes, and Arrow counts them right.

        It does not where a dictionary has a value twice: then it has fewer than the file.
        """
        return stored_values(self._file, self._footer, group, name) == len(some.dictionary)

    @cached_property
    def _footer(self) -> Footer:
        return read_footer(self._file)

    def _batches(
        self, parquet: pq.ParquetFile, group: int, rows: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        wanted = self._columns() if columns is None else columns
        found: Iterator[pa.RecordBatch] = parquet.iter_batches(
            rows, row_groups=[group], columns=wanted, use_threads=False
        )
        return found

    def _next_page(self) -> pa.RecordBatch:
        self._page, page = None, next(self._pages, None)
        if page is None:
            raise pa.ArrowInvalid("the row group has fewer rows than the file says")
        return page

    def _same_group(self, row: int) -> bool:
        return bisect_right(self._ends, row) == bisect_right(self._ends, self._page_row)

    def _columns(self) -> list[str]:
        """Return the file's names of the columns that are wanted and there."""
        return self._found(self._schema.names)

    def _found(self, wanted: Sequence[str]) -> list[str]:
        there = self._there.names
        places = [place_of(name, there, self._case_sensitive) for name in wanted]
        return [there[place] for place in places if place >= 0]

    def _schema_misfit(self) -> str | None:
        """Return why the file's columns can never be the wanted ones, None if they can."""
        there = self._there
        for field in self._schema:
            try:
                place = place_of(field.name, there.names, self._case_sensitive)
            except Misfit as misfit:
                return str(misfit)
            if place < 0 and not field.nullable:
                return f"the file has no column {field.name}, which must not be null"
            if place < 0:
                continue
            found = there.field(place).type
            why = type_misfit(found, field.type, self._case_sensitive)
            if why is not None:
                return f"column {field.name} is {found}, {field.type} is wanted: {why}"
            if self._old_calendar and is_time_inside(field.type):
                return f"column {field.name} holds times of Spark 2 inside other values"
        return None

    def _convert(self, rows: pa.RecordBatch) -> Callable[[int, int], pa.RecordBatch]:
        def convert(begin: int, end: int) -> pa.RecordBatch:
            part = rows.slice(begin, end - begin)
            try:
                columns = [self._cast(part, field) for field in self._schema]
            except pa.ArrowException as error:
                raise Misfit(reason_of(error)) from error
            names = self._schema.names
            return pa.RecordBatch.from_arrays(columns, names)

        return convert

    def _cast(self, rows: pa.RecordBatch, field: pa.Field) -> pa.Array:
        place = place_of(field.name, rows.schema.names, self._case_sensitive)
        if place < 0:
            return pa.nulls(rows.num_rows, field.type)
        column = rows.column(place)
        if field.name in self._coded and (coded := as_codes(column, field.type)) is not None:
            return coded
        return as_type(column, field.type, self._case_sensitive)

    def _unreadable(self, row: int, reason: str) -> Piece:
        """Set the rest of a row group aside, from the first row that cannot be read."""
        group = bisect_right(self._ends, row)
        # The pages before the bad one were read: it begins at a page, wherever the caller stands.
        end = self._ends[group]
        told = f"rows {row + 1} to {end} (row group {group}) cannot be read: {reason}"
        reject = Reject(self._file.shown, row + 1, "", told)
        self._page = None
        return Piece(None, (reject,), 0, end, end == self._end)


def parquet_begins(folder: Path, found: FoundFile, part_bytes: int) -> tuple[int, ...]:
    """Where parts of a file begin that are whole row groups; it is one if that is not to be known.

    Whoever reads it says why.
    """
    try:
        file = OpenFile(folder, found.name, Version(found.size_bytes, found.mtime_ns))
        try:
            metadata = pq.read_metadata(_Bytes(file))
            groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
        finally:
            file.close()
    except (pa.ArrowException, OSError, UnicodeDecodeError, StreamError):
        return (0,)
    return packed_begins(_group_begins(groups, found.size_bytes), found.size_bytes, part_bytes)


def _group_begins(groups: Sequence[pq.RowGroupMetaData], size_bytes: int) -> list[int]:
    """Where row groups would begin in a file that had each of their bytes in the same measure.

    Where they are in truth is in the metadata of columns. And this is what their reading costs.
    """
    sizes = [max(group.total_byte_size, 0) for group in groups]
    if not any(sizes):
        sizes = [1] * len(sizes)
    *begins, total = accumulate(sizes, initial=0)
    return [size_bytes * begin // max(total, 1) for begin in begins]


def _page_rows(row_bytes: int) -> int:
    return max(PAGE_ROWS, min(JOINED_BYTES_MAX // max(row_bytes, 1), PAGE_ROWS_MAX))


def _text_paths(schema: pq.ParquetSchema, wanted: Sequence[str]) -> list[str]:
    """Return the paths of texts, on their own or inside other values, in the columns wanted."""
    columns = [schema.column(number) for number in range(len(schema.names))]
    texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
    return [path for path in texts if any(f"{path}.".startswith(f"{name}.") for name in wanted)]


def _size_misfit(groups: Sequence[pq.RowGroupMetaData], size_bytes: int) -> str | None:
    """Return why a file is beyond the bounds by what it says of itself, None if it is within."""
    if any(group.num_rows < 0 for group in groups) or sum(g.num_rows for g in groups) > ROWS_MAX:
        return "the file gives an impossible number of rows"
    for group in groups:
        said = group.total_byte_size
        if said > max(GROUP_BYTES_MAX, GROUP_RATIO_MAX * size_bytes):
            return f"a row group of {said} bytes is said to be in a file of {size_bytes}"
    return None


def _has_old_calendar(metadata: pq.FileMetaData) -> bool:
    """Say whether old dates of a file are of the Julian calendar: Spark 2 wrote them so."""
    told = metadata.metadata or {}
    version = told.get(b"org.apache.spark.version", b"3")
    return version < b"3" or any(
        key in told for key in (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
    )


def _fitting_rows(rows: pa.RecordBatch) -> int:
    """Return how many rows from the first on can be built at once; 0 if not even one."""
    is_flat = not any(pa.types.is_nested(kind) for kind in rows.schema.types)
    if is_flat and decoded_bytes_most(rows) <= BATCH_BYTES_MAX:
        return int(rows.num_rows)
    sizes = decoded_bytes(rows)
    if sizes is None:
        return int(rows.num_rows)
    fitting = int(np.searchsorted(np.cumsum(sizes), BATCH_BYTES_MAX, side="right"))
    if not fitting and sizes[0] <= ROW_BYTES_MAX:
        return 1
    return fitting


def _row_text(rows: pa.RecordBatch, place: int) -> str:
    """Return a row for people to read, whatever its values."""
    texts = [
        f"{name}: {_value_text(column.slice(place, 1))}"
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    ]
    return f"{{{', '.join(texts)}}}"[:ROW_TEXT_MAX]


def _value_text(value: pa.Array) -> str:
    try:
        if pa.types.is_dictionary(value.type):
            value = value.dictionary_decode()
        if pa.types.is_string(value.type) and value[0].is_valid:
            raw = value.cast(pa.binary())[0].as_buffer()[:ROW_TEXT_MAX].to_pybytes()
            return repr(raw.decode("utf-8", "backslashreplace"))
        return repr(value[0].as_py())[:ROW_TEXT_MAX]
    except (pa.ArrowException, ValueError, OverflowError):
        return "?"  # what Python cannot show, such as a date after the year 9999
