"""What a line means: JSON objects, CSV records or plain text, parsed a block at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json

from penstock.arrays import validity_of
from penstock.connectors import line_kernels as kernels
from penstock.connectors.rejects import (
    Misfit,
    Misfits,
    joined,
    reason_of,
    sift,
    sound_rows,
    unsound,
)
from penstock.connectors.text_values import Texts, bytes_of, can_be_text, values_of
from penstock.errors import InvalidArgument

_VERDICT_REASONS = {
    kernels.NOT_UTF8: "not UTF-8",
    kernels.NOT_AN_OBJECT: "not a JSON object",
    kernels.UNFINISHED: "the JSON object is not closed",
    kernels.TRAILING: "more than one JSON object",
    kernels.TOO_DEEP: f"nested deeper than {kernels.JSON_DEPTH_MAX}",
    kernels.UNQUOTED: "a quoted value is not closed on its line",
    kernels.LOOSE_QUOTE: "a quote inside a quoted value is not escaped (if quotes are doubled in "
    "this file, set the option escape to a quote)",
    kernels.FEW_FIELDS: "fewer fields than columns",
    kernels.MANY_FIELDS: "more fields than columns",
}


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

    def pick(self, picks: np.ndarray | slice) -> Lines:
        """Return some of the lines."""
        return Lines(self.data, self.starts[picks], self.ends[picks])

    @property
    def utf8(self) -> bool:
        """Whether all of them are UTF-8. Line ends are never inside a character."""
        begin, end = int(self.starts[0]), int(self.ends[-1])
        offsets = pa.py_buffer(np.array([begin, end], np.int32))
        text = pa.StringArray.from_buffers(1, offsets, pa.py_buffer(self.data))
        try:
            text.validate(full=True)
        except pa.ArrowInvalid:
            return False
        return True

    def packed(self) -> pa.Buffer:
        """Return the lines, each followed by a newline; in place if they stand so."""
        starts, ends = self.starts, self.ends
        last = int(ends[-1])
        if (
            np.array_equal(starts[1:], ends[:-1] + 1)
            and last < self.data.size
            and self.data[last] == kernels.NEWLINE
            and (self.data[ends] == kernels.NEWLINE).all()
        ):
            return pa.py_buffer(self.data[int(starts[0]) : last + 1])
        return pa.py_buffer(kernels.pack_lines(self.data, starts, ends))


class LineFormat(ABC):
    """How lines become rows of a schema. `header` says whether a file's first line is no row."""

    header = False

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def rows(self, lines: Lines, first_only: bool) -> tuple[pa.RecordBatch | None, Misfits]:
        """Return the rows, and (line, reason) of each line that is none.

        With `first_only` nothing behind the first of these is needed.
        """
        verdicts = self.judge(lines)
        if not lines.utf8:
            kernels.judge_utf8(lines.data, lines.starts, lines.ends, verdicts)
        rejected = [
            (int(line), _VERDICT_REASONS[int(verdicts[line])])
            for line in np.flatnonzero(verdicts > kernels.BLANK)
        ]
        picks = np.flatnonzero(verdicts == kernels.PLAIN)
        batch, misfits = self.parse(lines.pick(picks), first_only) if picks.size else (None, [])
        rejected += [(int(picks[row]), reason) for row, reason in misfits]
        return batch, sorted(rejected)

    def judge(self, lines: Lines) -> np.ndarray:
        """Return what the lines' bytes alone say about them."""
        return np.zeros(len(lines), np.uint8)

    @abstractmethod
    def parse(self, lines: Lines, first_only: bool) -> tuple[pa.RecordBatch | None, Misfits]:
        """Return rows, and (line, reason) for each line that is none."""


class TextLines(LineFormat):
    """Each line is a row of one string column; empty lines are rows too."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__(schema)
        if len(schema) != 1 or schema.field(0).type != pa.string():
            raise InvalidArgument(
                f"text files need a schema of one string column, not {schema.names}"
            )

    def parse(self, lines: Lines, first_only: bool) -> tuple[pa.RecordBatch | None, Misfits]:
        there = np.ones(len(lines), np.bool_)
        column, _ = values_of(Texts(lines.data, lines.starts, lines.ends, there), pa.string())
        return sound_rows([column], [~there], self.schema)


class JsonLines(LineFormat):
    """Each line is one JSON object. Missing fields are null, others ignored, blank lines skipped.

    The brackets are checked before the parser sees a line: it would take two objects of a line, or
    one of two lines, and it does not survive a lone `null`. Times and bytes come from it as texts,
    for which Spark's rules are another matter than the parser's.
    """

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__(schema)
        self._parsed = pa.schema([(field.name, _json_type(field.type)) for field in schema])
        try:
            self._read(pa.py_buffer(b"{}\n"))
        except pa.ArrowException as error:
            raise InvalidArgument(f"JSON lines cannot fill this schema: {error}") from error

    def judge(self, lines: Lines) -> np.ndarray:
        verdicts: np.ndarray = kernels.judge_json(lines.data, lines.starts, lines.ends)
        return verdicts

    def parse(self, lines: Lines, first_only: bool) -> tuple[pa.RecordBatch | None, Misfits]:
        def convert(begin: int, end: int) -> pa.RecordBatch:
            return self.converted(lines.pick(slice(begin, end)))

        found, misfits = sift(0, len(lines), convert, first_only)
        parsed = joined(found)
        if parsed is None:
            return None, misfits
        columns, unfit = [], []
        for column, field in zip(parsed.columns, self.schema, strict=True):
            values, wrong = _from_json(column, field.type)
            columns.append(values)
            unfit.append(wrong | unsound(values))
        batch, more = sound_rows(columns, unfit, self.schema)
        if not more:
            return batch, misfits
        away = [row for row, _ in misfits]
        places = np.delete(np.arange(parsed.num_rows + len(away)), away)
        return batch, misfits + [(int(places[row]), reason) for row, reason in more]

    def converted(self, lines: Lines) -> pa.RecordBatch:
        """Lines that are objects by their brackets, times still as texts; a Misfit if one is not
        of the schema."""
        try:
            table = self._read(lines.packed())
        except pa.ArrowException as error:
            raise Misfit(reason_of(error)) from error
        if table.num_rows != len(lines):
            raise Misfit(f"{table.num_rows} rows in {len(lines)} lines")
        columns = [_array(table.column(name)) for name in self._parsed.names]
        return pa.RecordBatch.from_arrays(columns, schema=self._parsed)

    def _read(self, raw: pa.Buffer) -> pa.Table:
        return pa_json.read_json(
            pa.BufferReader(raw),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=raw.size + 1),
            parse_options=pa_json.ParseOptions(
                explicit_schema=self._parsed,
                newlines_in_values=False,
                unexpected_field_behavior="ignore",
            ),
        )


class CsvLines(LineFormat):
    """Each line is one record of exactly the schema's columns, by their places.

    Blank lines are skipped; an empty field is null, quoted or not. Times without a zone are UTC.
    A header is passed over; with `check_header` its names must be those of the schema.
    """

    def __init__(
        self,
        schema: pa.Schema,
        delimiter: str = ",",
        header: bool = False,
        escape: str = "\\",
        check_header: bool = False,
    ) -> None:
        super().__init__(schema)
        strange = [field.name for field in schema if not can_be_text(field.type)]
        if strange:
            raise InvalidArgument(f"CSV cannot hold the types of {', '.join(strange)}")
        for name, char in (("delimiter", delimiter), ("escape", escape)):
            if len(char) != 1 or char in "\r\n\0" or ord(char) > 127:
                raise InvalidArgument(f"the {name} {char!r} is not one plain ASCII character")
        if delimiter in ('"', escape):
            raise InvalidArgument(f"the delimiter {delimiter!r} is the quote or the escape")
        self.header = header
        self._check_header = check_header
        self._delimiter, self._escape = ord(delimiter), ord(escape)

    def judge(self, lines: Lines) -> np.ndarray:
        blank = kernels.blank_lines(lines.data, lines.starts, lines.ends)
        return np.where(blank, np.uint8(kernels.BLANK), np.uint8(kernels.PLAIN))

    def header_misfit(self, line: Lines) -> str | None:
        """Return why a header line does not serve the schema, None if it does."""
        if not self._check_header:
            return None
        if not line.utf8:
            return "the header is not UTF-8"
        columns, _, verdicts = self._cut(line)
        if verdicts[0] != kernels.PLAIN:
            return f"the header line: {_VERDICT_REASONS[int(verdicts[0])]}"
        texts = [values_of(texts, pa.string())[0][0].as_py() for texts in columns]
        for found, name in zip(texts, self.schema.names, strict=True):
            # As Spark compares them when it is not told to mind the case.
            if (found or "").lower() != name.lower():
                return f"the header has {found!r} where the schema has the column {name}"
        return None

    def parse(self, lines: Lines, first_only: bool) -> tuple[pa.RecordBatch | None, Misfits]:
        cut, whole, verdicts = self._cut(lines)
        columns, unfit = [], []
        for texts, field in zip(cut, self.schema, strict=True):
            column, wrong = values_of(texts, field.type)
            columns.append(column)
            unfit.append(wrong & whole)
        batch, misfits = sound_rows(columns, unfit, self.schema, ~whole)
        broken = [
            (int(row), _VERDICT_REASONS[int(verdicts[row])]) for row in np.flatnonzero(~whole)
        ]
        return batch, sorted(misfits + broken)

    def _cut(self, lines: Lines) -> tuple[list[Texts], np.ndarray, np.ndarray]:
        """Return each column's texts, and which lines have them all."""
        begins, ends, escaped, verdicts = kernels.cut_csv(
            lines.data, lines.starts, lines.ends, len(self.schema), self._delimiter, self._escape
        )
        whole = verdicts == kernels.PLAIN
        columns = []
        for column in range(len(self.schema)):
            there = (ends[column] > begins[column]) & whole
            texts = Texts(lines.data, begins[column], ends[column], there)
            if escaped[column].any():
                texts = texts.unescaped(escaped[column], self._escape)
            columns.append(texts)
        return columns, whole, verdicts


def _array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _json_type(wanted: pa.DataType) -> pa.DataType:
    """Return the type to parse JSON as."""
    if pa.types.is_date(wanted) or pa.types.is_timestamp(wanted) or pa.types.is_binary(wanted):
        return pa.string()
    if pa.types.is_struct(wanted):
        return pa.struct([(field.name, _json_type(field.type)) for field in wanted])
    if pa.types.is_list(wanted):
        return pa.list_(_json_type(wanted.value_type))
    return wanted


def _from_json(column: pa.Array, wanted: pa.DataType) -> tuple[pa.Array, np.ndarray]:
    """Return a column as the type that is wanted, and which rows hold a text that is no value."""
    if column.type == wanted:
        return column, np.zeros(len(column), np.bool_)
    if pa.types.is_struct(wanted):
        there = validity_of(column)
        children, wrong = [], np.zeros(len(column), np.bool_)
        for place, field in enumerate(wanted):
            child, unfit = _from_json(column.field(place), field.type)
            children.append(child)
            wrong |= unfit & there
        mask = pa.array(~there) if column.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=mask), wrong
    if pa.types.is_list(wanted):
        return _list_from_json(column, wanted)
    texts = Texts.of(column)
    return bytes_of(texts) if wanted == pa.binary() else values_of(texts, wanted)


def _list_from_json(column: pa.Array, wanted: pa.DataType) -> tuple[pa.Array, np.ndarray]:
    offsets = column.offsets
    values, unfit = _from_json(column.values, wanted.value_type)
    mask = pa.array(~validity_of(column)) if column.null_count else None
    wrong = np.zeros(len(column), np.bool_)
    rows = np.searchsorted(offsets.to_numpy(), np.flatnonzero(unfit), side="right") - 1
    wrong[rows[(rows >= 0) & (rows < wrong.size)]] = True
    return pa.ListArray.from_arrays(offsets, values, type=wanted, mask=mask), wrong
