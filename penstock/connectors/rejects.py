"""Rows that do not fit: finding them in a failing batch, and keeping what they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.connectors.contract import REJECTED_SCHEMA
from penstock.errors import MalformedInput

TEXT_SHOWN_MAX = 200
REASON_MAX = 300

Misfits = list[tuple[int, str]]  # row and reason of each that is none


class Misfit(Exception):
    """Some row of those that were to be converted together does not fit."""


@dataclass(frozen=True, slots=True)
class Reject:
    """One piece of input that is not a row: where it stands, what it was, why."""

    file: str
    line: int
    text: str
    reason: str

    def error(self) -> MalformedInput:
        """Return the error that stops a source whose mode is "fail"."""
        where = f"line {self.line} of {self.file}" if self.line else self.file
        shown = self.text[:TEXT_SHOWN_MAX] + ("…" if len(self.text) > TEXT_SHOWN_MAX else "")
        return MalformedInput(
            f"{where} does not fit the schema: {self.reason}"
            + (f": {shown!r}" if shown else "")
            + "; mend the input, or set the option deadLetterStream to go on without it",
            file=self.file,
            line=self.line,
            text=shown,
            reason=self.reason,
        )


def rejected_batch(rejects: Sequence[Reject]) -> pa.RecordBatch | None:
    """Return rejects as a batch, None if there are none."""
    if not rejects:
        return None
    columns = [
        pa.array([getattr(reject, field.name) for reject in rejects], field.type)
        for field in REJECTED_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=REJECTED_SCHEMA)


def reason_of(error: Exception) -> str:
    """Return an error's first line, bounded."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:REASON_MAX]


def sift(
    begin: int,
    end: int,
    convert: Callable[[int, int], pa.RecordBatch],
    first_only: bool,
) -> tuple[list[pa.RecordBatch], Misfits]:
    """Convert the rows of a range; return batches of those that fit, and (row, reason) of the rest.

    A range that fails is halved until single rows fail: all together when all fit, and about
    2 log2(n) conversions more for each that does not. With `first_only` the first misfit ends it.
    """
    if begin == end:
        return [], []
    try:
        return [convert(begin, end)], []
    except Misfit as misfit:
        if end - begin == 1:
            return [], [(begin, str(misfit))]
    middle = (begin + end) // 2
    batches, misfits = sift(begin, middle, convert, first_only)
    if not (misfits and first_only):
        more_batches, more_misfits = sift(middle, end, convert, first_only)
        batches, misfits = batches + more_batches, misfits + more_misfits
    return batches, misfits


def are_sound(rows: pa.RecordBatch, schema: pa.Schema) -> bool:
    """Say whether no row holds what `unsound` and `sound_rows` look for, as it mostly is."""
    try:
        rows.validate(full=True)
    except pa.ArrowInvalid:
        return False
    columns = zip(rows.columns, schema, strict=True)
    return all(field.nullable or not column.null_count for column, field in columns)


def unsound(column: pa.Array) -> np.ndarray:
    """Return which rows hold what is no value of the column's type.

    Files may hold it and Arrow hands it out: texts that are not UTF-8, decimals beyond their
    precision. Whatever is computed from it later fails, or is wrong.
    """
    found = np.zeros(len(column), np.bool_)
    ranges = [(0, len(column))]
    while ranges:
        begin, end = ranges.pop()
        some = column.slice(begin, end - begin)
        if pa.types.is_nested(column.type) and end - begin < len(column):
            # A slice still has the others' inner values; a copy has not.
            some = column.take(pa.array(range(begin, end)))
        try:
            some.validate(full=True)
        except pa.ArrowInvalid:
            if end - begin == 1:
                found[begin] = True
            else:
                middle = (begin + end) // 2
                ranges += [(begin, middle), (middle, end)]
    return found


def sound_rows(
    columns: Sequence[pa.Array],
    unfit: Sequence[np.ndarray],
    schema: pa.Schema,
    away: np.ndarray | None = None,
) -> tuple[pa.RecordBatch | None, Misfits]:
    """Return the rows that fit, and (row, reason) of the others, but not of those that are `away`.

    `unfit`: of each column, the rows whose value is none. A null where none may be is no better.
    """
    rows = len(columns[0])
    gone = np.zeros(rows, np.bool_) if away is None else away
    misfits: Misfits = []
    for column, wrong, field in zip(columns, unfit, schema, strict=True):
        told = f"column {field.name} is not of type {field.type}"
        misfits += [(int(row), told) for row in np.flatnonzero(wrong & ~gone)]
        gone = gone | wrong
        if not field.nullable and column.null_count:
            empty = pc.is_null(column).to_numpy(zero_copy_only=False) & ~gone
            told = f"column {field.name} is null or missing"
            misfits += [(int(row), told) for row in np.flatnonzero(empty)]
            gone = gone | empty
    if not gone.any():
        return pa.RecordBatch.from_arrays(list(columns), schema=schema), misfits
    kept = pa.array(np.flatnonzero(~gone))
    batch = None
    if len(kept):
        batch = pa.RecordBatch.from_arrays([c.take(kept) for c in columns], schema=schema)
    return batch, sorted(misfits)


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch | None:
    """Return batches as one, None if there is no row."""
    batches = [batch for batch in batches if batch.num_rows]
    if len(batches) <= 1:
        return batches[0] if batches else None
    return pa.concat_batches(map(with_plain_texts, batches))


def with_plain_texts(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows whose texts are no codes: those of one batch mean nothing in another."""
    for place, column in enumerate(rows.columns):
        if pa.types.is_dictionary(column.type):
            plain = rows.schema.field(place).with_type(column.type.value_type)
            rows = rows.set_column(place, plain, column.dictionary_decode())
    return rows
