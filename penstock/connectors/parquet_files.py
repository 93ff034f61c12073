"""The rows of one Parquet file, streamed page by page, cast to the schema that was asked for."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.connectors.contract import offset_refused
from penstock.connectors.folder_files import AnnouncedFile, FileRows, Piece
from penstock.connectors.rejects import Misfit, Reject, fitted, joined, reason_of, sift

PAGE_ROWS = 8_192
PAGE_BUFFER_BYTES = 1 << 20
ROW_TEXT_MAX = 4_096


class _Bytes(io.RawIOBase):
    """An announced file's bytes for Arrow to read.

    Not a memory map: a file that is cut short underneath one kills the process.
    """

    def __init__(self, file: AnnouncedFile) -> None:
        self._file = file
        self._size_bytes = file.entry.size_bytes
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
    group again.
    """

    def __init__(self, file: AnnouncedFile, schema: pa.Schema, stop_at_first: bool) -> None:
        self._file = file
        self._schema = schema
        self._stop_at_first = stop_at_first
        self._ends: list[int] = []  # number of the row after each row group
        self._misfit: str | None = None  # of the file as a whole
        self._pages: Iterator[pa.RecordBatch] = iter(())
        self._page: pa.RecordBatch | None = None
        self._page_row = -1  # number of the first row of the page, -1: none is open
        self._open()

    def _open(self) -> None:
        try:
            self._parquet = pq.ParquetFile(
                _Bytes(self._file), buffer_size=PAGE_BUFFER_BYTES, pre_buffer=False
            )
            metadata = self._parquet.metadata
            groups = range(metadata.num_row_groups)
            self._ends = list(accumulate(metadata.row_group(group).num_rows for group in groups))
            self._misfit = _file_misfit(self._parquet.schema_arrow, self._schema)
        except (pa.ArrowException, OSError) as error:
            self._file.check(0, 0)
            self._misfit = f"not a readable Parquet file: {reason_of(error)}"

    def close(self) -> None:
        self._pages, self._page, self._page_row = iter(()), None, -1

    def read(self, byte: int, row: int, rows_max: int) -> Piece:
        if self._misfit is not None:
            return Piece(None, (Reject(self._file.shown, 0, "", self._misfit),), 0, 0, True)
        total = self._ends[-1] if self._ends else 0
        if byte or row > total:
            raise offset_refused({"byte": byte, "row": row}, f"the file has {total} rows")
        if row == total:
            return Piece(None, (), 0, row, True)
        try:
            page = self._page_at(row)
        except (pa.ArrowException, OSError) as error:
            self._file.check(0, row)
            return self._unreadable(row, reason_of(error))
        rows = page.slice(row - self._page_row, rows_max)
        batches, misfits = sift(0, rows.num_rows, self._convert(rows), self._stop_at_first)
        rejects = tuple(
            Reject(self._file.shown, row + place + 1, _row_text(rows, place), reason)
            for place, reason in misfits
        )
        following = row + rows.num_rows
        return Piece(joined(batches), rejects, 0, following, following == total)

    def _page_at(self, row: int) -> pa.RecordBatch:
        """Return the page that holds a row, going on from the last one where that is possible."""
        if self._page is None or row < self._page_row or not self._same_group(row):
            group = bisect_right(self._ends, row)
            self._page_row = self._ends[group - 1] if group else 0
            self._pages = self._parquet.iter_batches(
                PAGE_ROWS, row_groups=[group], columns=self._columns(), use_threads=False
            )
            self._page = self._next_page()
        while row >= self._page_row + self._page.num_rows:
            self._page_row += self._page.num_rows
            self._page = self._next_page()
        return self._page

    def _next_page(self) -> pa.RecordBatch:
        self._page, page = None, next(self._pages, None)
        if page is None:
            raise pa.ArrowInvalid("the row group has fewer rows than the file says")
        return page

    def _same_group(self, row: int) -> bool:
        return bisect_right(self._ends, row) == bisect_right(self._ends, self._page_row)

    def _columns(self) -> list[str]:
        there = self._parquet.schema_arrow.names
        return [name for name in self._schema.names if name in there]

    def _convert(self, rows: pa.RecordBatch) -> Callable[[int, int], pa.RecordBatch]:
        def convert(begin: int, end: int) -> pa.RecordBatch:
            part = rows.slice(begin, end - begin)
            try:
                columns = [_cast(part, field) for field in self._schema]
            except pa.ArrowException as error:
                raise Misfit(reason_of(error)) from error
            return fitted(columns, self._schema)

        return convert

    def _unreadable(self, row: int, reason: str) -> Piece:
        """Set the rest of a row group aside, from the first row that cannot be read."""
        group = bisect_right(self._ends, row)
        # The pages before the bad one were read: it begins at a page, wherever the caller stands.
        end = self._ends[group]
        told = f"rows {row + 1} to {end} (row group {group}) cannot be read: {reason}"
        reject = Reject(self._file.shown, row + 1, "", told)
        self._page = None
        return Piece(None, (reject,), 0, end, end == self._ends[-1])


def _cast(rows: pa.RecordBatch, field: pa.Field) -> pa.Array:
    place = rows.schema.get_field_index(field.name)
    if place < 0:
        return pa.nulls(rows.num_rows, field.type)
    return pc.cast(rows.column(place), field.type)


def _file_misfit(there: pa.Schema, wanted: pa.Schema) -> str | None:
    """Return why a file's columns can never be the wanted ones, None if they can."""
    for field in wanted:
        count = there.names.count(field.name)
        if count > 1:
            return f"the file has the column {field.name} twice"
        if count == 0 and not field.nullable:
            return f"the file has no column {field.name}, which must not be null"
        if count and not _comparable(there.field(field.name).type, field.type):
            found = there.field(field.name).type
            return f"column {field.name} is {found}, {field.type} is wanted"
    return None


def _comparable(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Say whether values keep their meaning from type to type; each is checked when cast."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if found == wanted:
        return True
    families = (
        (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
        (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
        (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary),
        (pa.types.is_timestamp,),
        (pa.types.is_date,),
        (pa.types.is_time,),
        (pa.types.is_struct,),
        (pa.types.is_list, pa.types.is_large_list),
        (pa.types.is_map,),
    )
    for family in families:
        if any(test(found) for test in family):
            return any(test(wanted) for test in family)
    return False


def _row_text(rows: pa.RecordBatch, place: int) -> str:
    return str(rows.slice(place, 1).to_pylist()[0])[:ROW_TEXT_MAX]
