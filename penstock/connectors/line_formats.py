"""What a line means: JSON objects, CSV records or plain text, parsed a block at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from penstock.connectors import line_kernels as kernels
from penstock.connectors.rejects import Misfit, fitted, joined, reason_of, sift
from penstock.errors import InvalidArgument

_VERDICT_REASONS = {
    kernels.NOT_AN_OBJECT: "not a JSON object",
    kernels.UNFINISHED: "the JSON object is not closed",
    kernels.TRAILING: "more than one JSON object",
    kernels.UNQUOTED: "a quoted value is not closed on its line",
}
# A time of day with a zone behind it; a date alone must not pass for one.
_ZONED = r"\d{2}:\d{2}(:\d{2}([.,]\d+)?)?\s*(Z|[+-]\d{2}(:?\d{2})?)$"


@dataclass(frozen=True)
class Lines:
    """Some consecutive lines inside a block of bytes."""

    data: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return int(self.starts.size)

    def text(self, line: int) -> str:
        """Return a line for people to read, whatever its bytes."""
        raw = self.data[self.starts[line] : self.ends[line]].tobytes()
        return raw.decode("utf-8", "backslashreplace")

    def pack(self, picks: np.ndarray, separate: bool) -> tuple[bytes, np.ndarray]:
        """Return some lines as one run of valid UTF-8, or raise Misfit."""
        packed, offsets = kernels.pack_lines(self.data, self.starts, self.ends, picks, separate)
        raw = packed.tobytes()
        try:
            # Line ends are never inside a character: what is valid together is valid line by line.
            raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Misfit(f"not UTF-8: {error.reason}") from error
        return raw, offsets


class LineFormat(ABC):
    """How lines become rows of a schema. `header` says whether a file's first line is no row."""

    header = False

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def rows(
        self, lines: Lines, first_only: bool, names: Sequence[str] | None = None
    ) -> tuple[pa.RecordBatch | None, list[tuple[int, str]]]:
        """Return the rows, and (line, reason) of each line that is none. `names`: of the header."""
        verdicts = self.judge(lines)
        rejected = [
            (int(line), _VERDICT_REASONS[int(verdicts[line])])
            for line in np.flatnonzero(verdicts > kernels.ODD)
        ]
        batches: list[pa.RecordBatch] = []
        for begin, end in self._runs(verdicts):
            picks = np.arange(begin, end)[verdicts[begin:end] <= kernels.ODD]
            picks = picks[verdicts[picks] != kernels.BLANK]
            found, misfits = self._sifted(lines, picks, first_only, names)
            batches += found
            rejected += [(int(picks[row]), reason) for row, reason in misfits]
            if misfits and first_only:
                break
        return joined(batches), sorted(rejected)

    def _sifted(
        self, lines: Lines, picks: np.ndarray, first_only: bool, names: Sequence[str] | None
    ) -> tuple[list[pa.RecordBatch], list[tuple[int, str]]]:
        def convert(begin: int, end: int) -> pa.RecordBatch:
            return self.parse(lines, picks[begin:end], names)

        return sift(0, picks.size, convert, first_only)

    @staticmethod
    def _runs(verdicts: np.ndarray) -> list[tuple[int, int]]:
        """Cut the lines into ranges that may be parsed together: an odd line stands alone."""
        odd = np.flatnonzero(verdicts == kernels.ODD)
        cuts = np.unique(np.concatenate([[0, verdicts.size], odd, odd + 1]))
        return [(int(low), int(high)) for low, high in pairwise(cuts)]

    def judge(self, lines: Lines) -> np.ndarray:
        """Return what the lines' bytes alone say about them."""
        return np.zeros(len(lines), np.uint8)

    @abstractmethod
    def parse(self, lines: Lines, picks: np.ndarray, names: Sequence[str] | None) -> pa.RecordBatch:
        """Return exactly one row for each picked line, or raise Misfit."""


class TextLines(LineFormat):
    """Each line is a row of one string column; empty lines are rows too."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__(schema)
        if len(schema) != 1 or schema.field(0).type != pa.string():
            raise InvalidArgument(
                f"text files need a schema of one string column, not {schema.names}"
            )

    def parse(self, lines: Lines, picks: np.ndarray, names: Sequence[str] | None) -> pa.RecordBatch:
        raw, offsets = lines.pack(picks, False)
        column = pa.StringArray.from_buffers(picks.size, pa.py_buffer(offsets), pa.py_buffer(raw))
        return fitted([column], self.schema)


class JsonLines(LineFormat):
    """Each line is one JSON object. Missing fields are null, others ignored, blank lines skipped.

    The brackets are checked before the parser sees a line: it would take two objects of a line, or
    one of two lines, and it does not survive a lone `null`.
    """

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__(schema)
        self._parsed = pa.schema([(field.name, _json_type(field.type)) for field in schema])
        try:
            self._read(b"{}\n")
        except pa.ArrowException as error:
            raise InvalidArgument(f"JSON lines cannot fill this schema: {error}") from error

    def judge(self, lines: Lines) -> np.ndarray:
        verdicts: np.ndarray = kernels.judge_json(lines.data, lines.starts, lines.ends)
        return verdicts

    def parse(self, lines: Lines, picks: np.ndarray, names: Sequence[str] | None) -> pa.RecordBatch:
        raw, _ = lines.pack(picks, True)
        try:
            table = self._read(raw)
            columns = [
                pc.cast(_array(table.column(field.name)), field.type) for field in self.schema
            ]
        except pa.ArrowException as error:
            raise Misfit(reason_of(error)) from error
        if table.num_rows != picks.size:
            raise Misfit(f"{table.num_rows} rows in {picks.size} lines")
        return fitted(columns, self.schema)

    def _read(self, raw: bytes) -> pa.Table:
        return pa_json.read_json(
            pa.BufferReader(raw),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=len(raw) + 1),
            parse_options=pa_json.ParseOptions(
                explicit_schema=self._parsed,
                newlines_in_values=False,
                unexpected_field_behavior="ignore",
            ),
        )


class CsvLines(LineFormat):
    """Each line is one record; empty lines are skipped; an empty field is null, quoted or not: so
    Spark reads it.

    With a header, columns are found by their names and further ones are ignored; without, a record
    has exactly the schema's columns. Times without a zone are UTC.
    """

    def __init__(self, schema: pa.Schema, delimiter: str = ",", header: bool = False) -> None:
        super().__init__(schema)
        nested = [field.name for field in schema if pa.types.is_nested(field.type)]
        if nested:
            raise InvalidArgument(f"CSV cannot hold the nested columns {', '.join(nested)}")
        if len(delimiter) != 1 or delimiter in '"\r\n' or ord(delimiter) > 127:
            raise InvalidArgument(f"the delimiter {delimiter!r} is not one plain ASCII character")
        self.header = header
        self._delimiter = delimiter

    def judge(self, lines: Lines) -> np.ndarray:
        verdicts: np.ndarray = kernels.judge_csv(
            lines.data, lines.starts, lines.ends, np.uint8(ord(self._delimiter))
        )
        return verdicts

    def header_names(self, lines: Lines) -> list[str]:
        """Return a header line's column names; raise Misfit if it does not serve the schema."""
        if self.judge(lines)[0] != kernels.PLAIN:
            raise Misfit("the header line is not CSV")
        raw, _ = lines.pack(np.arange(1), True)
        width = raw.count(self._delimiter.encode()) + 1
        # A quoted name may hold delimiters: try fewer columns until they fit.
        for count in range(width, 0, -1):
            types = {str(number): pa.string() for number in range(count)}
            try:
                table = self._read(raw, list(types), types)
            except pa.ArrowException:
                continue
            names = [str(_array(column)[0]).strip() for column in table.columns]
            self._check_header(names)
            return names
        raise Misfit("the header line is not CSV")

    def _check_header(self, names: list[str]) -> None:
        missing = [name for name in self.schema.names if name not in names]
        if missing:
            raise Misfit(f"the header has no column {', '.join(missing)}")
        twice = [name for name in self.schema.names if names.count(name) > 1]
        if twice:
            raise Misfit(f"the header has the column {', '.join(twice)} twice")

    def parse(self, lines: Lines, picks: np.ndarray, names: Sequence[str] | None) -> pa.RecordBatch:
        raw, _ = lines.pack(picks, True)
        # Names that the schema does not use may repeat in a header: number them instead.
        places = [names.index(name) for name in self.schema.names] if names else None
        width = len(names) if names else len(self.schema)
        labels = [str(number) for number in range(width)]
        wanted = [str(number) for number in (places or range(width))]
        types = {
            label: _csv_type(field.type) for label, field in zip(wanted, self.schema, strict=True)
        }
        try:
            table = self._read(raw, labels, types)
            columns = [
                _from_csv(_array(table.column(label)), field.type)
                for label, field in zip(wanted, self.schema, strict=True)
            ]
        except pa.ArrowException as error:
            raise Misfit(reason_of(error)) from error
        if table.num_rows != picks.size:
            raise Misfit(f"{table.num_rows} records in {picks.size} lines")
        return fitted(columns, self.schema)

    def _read(self, raw: bytes, labels: list[str], types: dict[str, pa.DataType]) -> pa.Table:
        return pa_csv.read_csv(
            pa.BufferReader(raw),
            read_options=pa_csv.ReadOptions(
                use_threads=False, block_size=len(raw) + 1, column_names=labels
            ),
            parse_options=pa_csv.ParseOptions(
                delimiter=self._delimiter, newlines_in_values=False, ignore_empty_lines=True
            ),
            convert_options=pa_csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
            ),
        )


def _array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _json_type(wanted: pa.DataType) -> pa.DataType:
    """Return the type to parse JSON as: dates come as text, the parser takes numbers only."""
    if pa.types.is_date(wanted) or pa.types.is_time(wanted):
        return pa.string()
    if pa.types.is_struct(wanted):
        return pa.struct([(field.name, _json_type(field.type)) for field in wanted])
    if pa.types.is_list(wanted):
        return pa.list_(_json_type(wanted.value_type))
    return wanted


def _csv_type(wanted: pa.DataType) -> pa.DataType:
    """Return the type to parse CSV as: the parser insists on a zone where the type has one."""
    return pa.string() if pa.types.is_timestamp(wanted) and wanted.tz else wanted


def _from_csv(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    if not (pa.types.is_timestamp(wanted) and wanted.tz):
        return column
    has_zone = pc.match_substring_regex(column, _ZONED)
    nothing = pa.scalar(None, pa.string())
    zoned = pc.cast(pc.if_else(has_zone, column, nothing), wanted)
    plain = pc.cast(pc.if_else(has_zone, nothing, column), pa.timestamp(wanted.unit))
    return pc.coalesce(zoned, pc.cast(pc.assume_timezone(plain, "UTC"), wanted))
