"""The rows of one Parquet file, streamed page by page, cast to the schema that was asked for."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence, Set
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.connectors.contract import offset_refused
from penstock.connectors.folder_files import FileRows, OpenFile, Piece
from penstock.connectors.folder_shares import Share
from penstock.connectors.parquet_cuts import group_begins
from penstock.connectors.parquet_pages import (
    BATCH_BYTES_MAX,
    JOINED_BYTES_MAX,
    ROW_BYTES_MAX,
    SMALL_FILE_BYTES,
    ParquetPages,
)
from penstock.connectors.parquet_statistics import Condition, excluded_groups
from penstock.connectors.parquet_types import (
    as_codes,
    as_type,
    decoded_bytes,
    decoded_bytes_most,
    is_before_the_calendar,
    is_time_inside,
    place_of,
    stored_texts,
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

ROW_TEXT_MAX = 4_096
GROUP_BYTES_MAX = 256 << 20  # of a row group, if it is also this many times as large as the file:
GROUP_RATIO_MAX = 1_000
ROWS_MAX = 1 << 62


class ParquetFileRows(FileRows):
    """Rows by their number in the file.

    Row groups are read in pages of a fixed number of rows, so that what is found unreadable does
    not depend on how many rows a caller asks for. Reading on is cheap; going back starts the row
    group again. Texts that are wanted as codes come so where `ParquetPages` has them so.
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
        self._open()

    def _open(self) -> None:
        try:
            self._file_pages = ParquetPages(self._file, self._schema)
            metadata, self._there = self._file_pages.metadata, self._file_pages.schema
            groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
            self._groups = groups
            self._ends = list(accumulate(group.num_rows for group in groups))
            self._old_calendar = _has_old_calendar(metadata)
            size_bytes = self._file.size_bytes
            self._misfit = self._schema_misfit() or _size_misfit(groups, size_bytes)
            if self._misfit is None:
                self._take_share()
                coded = [name for name in self._schema.names if name in self._coded]
                self._file_pages.take(self._found(self._schema.names), self._found(coded))
                self._look_at_statistics()
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            self._file.check(0, 0)
            self._misfit = f"not a readable Parquet file: {reason_of(error)}"

    def _take_share(self) -> None:
        begins = group_begins(self._groups, self._file.size_bytes)
        first, end_byte = bisect_left(begins, self._share.begin_byte), self._share.end_byte
        end = len(begins) if end_byte is None else bisect_left(begins, end_byte)
        starts = [0, *self._ends]  # of each row group, and of what would follow
        self._begin, self._end = starts[first], starts[end]

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
            fitting = _fitting_rows(rows)  # fails where codes are none of the dictionary
        except (pa.ArrowException, OSError) as error:
            self._file.check(0, row)
            return self._unreadable(row, reason_of(error))
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
        if any(map(stored_texts, rows.columns)):
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
            self._pages = self._file_pages.of(group)
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

    def _found(self, wanted: Sequence[str]) -> list[str]:
        """Return the file's names of the columns that are wanted and there."""
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
