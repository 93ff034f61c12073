"""Rows that do not fit: finding them in a failing batch, and keeping what they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.connectors.contract import REJECTED_SCHEMA
from penstock.errors import MalformedInput

TEXT_SHOWN_MAX = 200
REASON_MAX = 300


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
            + "; mend the input, or set a dead-letter stream to go on without it",
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
) -> tuple[list[pa.RecordBatch], list[tuple[int, str]]]:
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


def fitted(columns: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Return columns as a batch of the schema; raise Misfit if a null stands where none may."""
    for column, field in zip(columns, schema, strict=True):
        if not field.nullable and column.null_count:
            raise Misfit(f"column {field.name} is null or missing")
    return pa.RecordBatch.from_arrays(list(columns), schema=schema)


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch | None:
    """Return batches as one, None if there is no row."""
    batches = [batch for batch in batches if batch.num_rows]
    if len(batches) <= 1:
        return batches[0] if batches else None
    return pa.concat_batches(batches)
