"""Columns of JSON texts read into structs, arrays and maps, as Spark's from_json reads them.

Texts that Arrow's parser and Spark's understand alike are read together, by the reader of JSON
lines; the others one by one. What is not known to be read alike counts as others.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import Mask, Vector, texts_of, true_rows, validity_of
from penstock.connectors import line_kernels
from penstock.connectors.line_formats import JsonLines, Lines
from penstock.connectors.rejects import Misfit, joined
from penstock.expressions.frame import Frame
from penstock.expressions.json_parser import NAME_CHARACTERS_MAX, NUMBER_CHARACTERS_MAX, read_json
from penstock.expressions.nodes import Call
from penstock.expressions.reading import dates_of_text, micros_of_text
from penstock.expressions.types import STRING, DataType, Field, array_type, arrow_type, struct_type
from penstock.expressions.vectors import arrow_column

_TOGETHER_MIN = 32  # so few rows are not worth another try of Arrow's parser
_TIMES = ("date", "timestamp")
_WORDS = ("Inf", "NaN", "\0", "\n")  # Arrow takes words that Spark does not, and ends at others
_DAYS = re.compile(r"[+-]?\d+")
_GREGORIAN_FROM = -141_427  # the day from which on Spark's two calendars agree
_INT_BOUND = 1 << 31


def from_json(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    texts, wanted, zone = args[0], node.type, node.option("time_zone")
    together = _read_alike(texts) if _is_plain(wanted) else np.zeros(len(texts), np.bool_)
    batches: list[pa.RecordBatch] = []
    read: list[Vector] = []
    places = np.flatnonzero(together)
    if places.size:
        offsets, data = texts_of(texts)
        begins = offsets.astype(np.int64)
        lines = Lines(data, begins[:-1][places], begins[1:][places])
        _read_together(_lines_of(wanted), lines, places, batches, read)
    columns: list[pa.Array] = []
    done = np.zeros(len(texts), np.bool_)
    order = np.zeros(len(texts), np.int64)
    if (batch := joined(batches)) is not None:
        found, refused = _with_times(batch.to_struct_array(), wanted, zone, in_array=False)
        rows = np.concatenate(read)
        order[rows] = np.arange(rows.size)
        done[rows] = ~(refused | _negative_zeros(found))
        columns.append(found)
    one_by_one = np.flatnonzero(validity_of(texts) & ~done)
    if one_by_one.size:
        order[one_by_one] = sum(map(len, columns)) + np.arange(one_by_one.size)
        done[one_by_one] = True
        columns.append(_one_by_one(texts.take(pa.array(one_by_one)), wanted, zone))
    if not columns:
        return pa.nulls(len(texts), arrow_type(wanted))
    if len(columns) == 1 and len(columns[0]) == len(texts):
        return columns[0]  # all of them, in order
    return pa.concat_arrays(columns).take(pa.array(order, mask=~done))


# --- together -------------------------------------------------------------------------------------


def _is_plain(wanted: DataType) -> bool:
    """Whether Arrow's parser knows the type: it has no maps, and begins with an object."""
    return wanted.kind == "struct" and bool(wanted.fields) and not wanted.has_map


def _read_alike(texts: pa.Array) -> Mask:
    """Which texts are objects that may be read together."""
    valid = validity_of(texts)
    offsets, data = texts_of(texts)
    begins = offsets.astype(np.int64)
    verdicts = line_kernels.judge_json(data, begins[:-1], begins[1:])
    sizes = np.diff(begins)
    alike: Mask = valid & (verdicts == line_kernels.PLAIN) & (sizes <= NAME_CHARACTERS_MAX)
    whole = data[begins[0] : begins[-1]].tobytes()
    for word in _WORDS:
        if word.encode() in whole:
            alike &= ~true_rows(pc.match_substring(texts, word))
    if (sizes > NUMBER_CHARACTERS_MAX).any():
        digits = f"[0-9.]{{{NUMBER_CHARACTERS_MAX}}}"
        alike &= ~true_rows(pc.match_substring_regex(texts, digits))
    return alike


@lru_cache(maxsize=64)
def _lines_of(wanted: DataType) -> JsonLines:
    return JsonLines(pa.schema(list(arrow_type(_with_texts(wanted)))))


def _with_texts(data_type: DataType) -> DataType:
    """The type with texts in the place of times."""
    if data_type.kind in _TIMES:
        return STRING
    if data_type.element is not None:
        return array_type(_with_texts(data_type.element))
    if data_type.kind == "struct":
        return struct_type([Field(each.name, _with_texts(each.type)) for each in data_type.fields])
    return data_type


def _read_together(
    reader: JsonLines,
    lines: Lines,
    places: Vector,
    batches: list[pa.RecordBatch],
    read: list[Vector],
) -> None:
    """Collect the rows that Arrow's parser takes, in order, and the places that they are from."""
    try:
        batches.append(reader.converted(lines))
        read.append(places)
        return
    except Misfit:
        if len(lines) <= _TOGETHER_MIN:
            return
    middle = len(lines) // 2
    for part in (slice(0, middle), slice(middle, None)):
        _read_together(reader, lines.pick(part), places[part], batches, read)


def _with_times(
    found: pa.Array, wanted: DataType, zone: str | None, in_array: bool
) -> tuple[pa.Array, Mask]:
    """The column with its times, and the rows in whose arrays a text is no time.

    A text that is none is null in a struct. An array that holds one is another matter.
    """
    none = np.zeros(len(found), np.bool_)
    if wanted.kind in _TIMES:
        values, bad = _times(found, wanted, zone)
        return arrow_column(values, validity_of(found) & ~bad, wanted), bad if in_array else none
    if wanted.kind == "struct":
        children, refused = [], none
        for place, field in enumerate(wanted.fields):
            child, bad = _with_times(found.field(place), field.type, zone, in_array)
            children.append(child)
            refused = refused | bad
        there = validity_of(found)
        mask = pa.array(~there) if found.null_count else None
        fields = list(arrow_type(wanted))
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask), refused & there
    if wanted.element is not None:
        offsets = found.offsets
        items, bad = _with_times(found.values, wanted.element, zone, in_array=True)
        ends = np.concatenate([[0], np.cumsum(bad)])[offsets.to_numpy()]
        mask = pa.array(~validity_of(found)) if found.null_count else None
        lists = pa.ListArray.from_arrays(offsets, items, type=arrow_type(wanted), mask=mask)
        return lists, np.diff(ends) > 0
    return found, none


def _negative_zeros(found: pa.Array) -> Mask:
    """Rows with a zero below zero: Spark reads -0 without its sign, -0.0 with it."""
    kind = found.type
    if pa.types.is_struct(kind):
        parts = (_negative_zeros(found.field(place)) for place in range(kind.num_fields))
        below: Mask = np.logical_or.reduce([*parts, np.zeros(len(found), np.bool_)])
        return below
    if pa.types.is_list(kind):
        inside = _negative_zeros(found.values)
        rows: Mask = np.diff(np.concatenate([[0], np.cumsum(inside)])[found.offsets.to_numpy()]) > 0
        return rows
    if not pa.types.is_floating(kind):
        return np.zeros(len(found), np.bool_)
    values = found.fill_null(1).to_numpy(zero_copy_only=False)
    zeros: Mask = (values == 0) & np.signbit(values)
    return zeros


# --- times ----------------------------------------------------------------------------------------


def _times(texts: pa.Array, wanted: DataType, zone: str | None) -> tuple[Vector, Mask]:
    """Times as what they count, and which texts are none."""
    is_date = wanted.kind == "date"
    values, bad = dates_of_text(texts) if is_date else micros_of_text(texts, zone)
    bad = bad & validity_of(texts)
    for row in np.flatnonzero(bad):
        found = _time_of_old(texts[row].as_py(), is_date, zone)
        if found is not None:
            values[row], bad[row] = found, False
    return values, bad


def _time_of_old(text: str, is_date: bool, zone: str | None) -> int | None:
    """What Spark tries second: without the letters GMT, and as a number of days."""
    before, mark, behind = text.partition("GMT")
    if mark:
        again = pa.array([before + behind])
        values, bad = dates_of_text(again) if is_date else micros_of_text(again, zone)
        if not bad[0]:
            return int(values[0])
    if not is_date or not _DAYS.fullmatch(text):
        return None
    days = int(text)
    if not -_INT_BOUND <= days < _INT_BOUND:
        return None
    return days if days >= _GREGORIAN_FROM else _gregorian_days(days)


def _gregorian_days(days: int) -> int:
    """The day that bears the same date as this one of the Julian calendar."""
    shifted = days + 2_440_588 + 32_082
    year = (4 * shifted + 3) // 1461
    of_year = shifted - 1461 * year // 4
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    year, month = year - 4800 + month // 10, month + 3 - 12 * (month // 10)
    sign, magnitude = ("-", -year) if year < 0 else ("", year)
    found, _ = dates_of_text(pa.array([f"{sign}{magnitude:04}-{month}-{day}"]))
    return int(found[0])


# --- one by one -----------------------------------------------------------------------------------


def _one_by_one(texts: pa.Array, wanted: DataType, zone: str | None) -> pa.Array:
    """Read twice where times are in it: first for their texts, which are read as times together."""
    given = texts.to_pylist()
    asked: dict[tuple[str, str], int | None] = {}

    def noted(text: str, data_type: DataType) -> int:
        asked[data_type.kind, _sound(text)] = None
        return 0

    def time_of(text: str, data_type: DataType) -> int | None:
        key = data_type.kind, _sound(text)
        if key not in asked:  # behind one that is no time, where reading went on otherwise
            values, bad = _times(pa.array([key[1]]), data_type, zone)
            asked[key] = None if bad[0] else int(values[0])
        return asked[key]

    for text in given:
        read_json(text, wanted, noted)
    for kind in _TIMES:
        those = [text for each, text in asked if each == kind]
        if those:
            values, bad = _times(pa.array(those), DataType(kind), zone)
            for text, value, wrong in zip(those, values.tolist(), bad.tolist(), strict=True):
                asked[kind, text] = None if wrong else value
    return _column([read_json(text, wanted, time_of) for text in given], wanted)


def _column(values: list[Any], wanted: DataType) -> pa.Array:
    there = np.array([value is not None for value in values], np.bool_)
    mask = pa.array(~there)
    if wanted.kind == "struct":
        children = [
            _column([None if row is None else row[place] for row in values], field.type)
            for place, field in enumerate(wanted.fields)
        ]
        return pa.StructArray.from_arrays(children, fields=list(arrow_type(wanted)), mask=mask)
    if wanted.kind in ("array", "map"):
        sizes = [0 if row is None else len(row) for row in values]
        offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
        items = [item for row in values if row is not None for item in row]
        if wanted.element is not None:
            inside = _column(items, wanted.element)
            return pa.ListArray.from_arrays(offsets, inside, type=arrow_type(wanted), mask=mask)
        assert wanted.value is not None
        names = _column([name for name, _ in items], STRING)
        inside = _column([value for _, value in items], wanted.value)
        return pa.MapArray.from_arrays(offsets, names, inside, type=arrow_type(wanted), mask=mask)
    if wanted.kind in _TIMES:
        counts = np.array([0 if value is None else value for value in values], np.int64)
        return arrow_column(counts, there, wanted)
    if wanted == STRING:
        values = [None if value is None else _sound(value) for value in values]
    return pa.array(values, arrow_type(wanted))


def _sound(text: str) -> str:
    """A text as bytes can hold it: single surrogates are question marks in Java."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
