"""Rows that other programs send: a source whose producers keep what is not committed yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.json as pj

from penstock.connectors import producer_wire as wire
from penstock.connectors.contract import (
    Offset,
    Source,
    SourceBatch,
    check_rows_max,
    offset_refused,
)
from penstock.connectors.producer_gate import BUFFER_BYTES, Gate, offsets_of
from penstock.errors import MalformedInput, PUnitError
from penstock.log import punit

JSON_BYTES_MAX = 256 << 20  # that a unit may become: much more than what other units can
_REFUSALS = (pa.ArrowException, ValueError, TypeError, KeyError)


class ProducersSource(Source):
    """Units of rows in the order in which they came, each whole.

    The offset has the last one of each producer. It cannot be read again: an instance that goes on
    from an offset gets what producers send again, which is all behind it.
    """

    replayable = False

    def __init__(
        self,
        schema: pa.Schema,
        columns: pa.Schema,
        port: int,
        token_file: str,
        buffer_bytes: int = BUFFER_BYTES,
        wake: Callable[[], None] | None = None,
    ) -> None:
        """`schema` are those of the columns that rows have which are wanted."""
        self.schema = schema
        self._columns = columns
        self._port, self._token_file = port, token_file
        self._buffer_bytes = buffer_bytes
        self._wake = wake or (lambda: None)
        self._gate: Gate | None = None
        self._offsets: dict[str, int] = {}  # of what was handed out

    @property
    def port(self) -> int:
        """Where it listens, once it was read."""
        return self._port if self._gate is None else self._gate.port

    def initial_offset(self) -> Offset:
        return {}

    def read(self, offset: Offset, rows_max: int) -> SourceBatch:
        rows_max = check_rows_max(rows_max)
        if (offsets := offsets_of(offset)) is None:
            raise offset_refused(offset, "the last offset of each producer was expected")
        if self._gate is None:
            token = wire.read_token(self._token_file, create=True)
            self._gate = Gate(
                self._port, token, self._decode, offsets, self._buffer_bytes, self._wake
            )
            self._offsets = offsets
        if offsets != self._offsets:
            raise offset_refused(offset, "what producers have sent cannot be read again")
        units = self._gate.take(rows_max)
        if not units:
            return SourceBatch(None, offset, idle=True, nothing_yet=not offset)
        self._offsets |= {unit.producer: unit.offset for unit in units}
        batches = [unit.rows for unit in units if unit.rows.num_rows]
        batch = None
        if batches:
            batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        return SourceBatch(batch, dict(self._offsets), more=self._gate.has_more)

    def committed(self, offset: Offset) -> None:
        if self._gate is not None:
            self._gate.commit(offset)

    def close(self) -> None:
        if self._gate is not None:
            self._gate.close()

    # --- units ------------------------------------------------------------------------------------

    def _decode(self, format: int, payload: pa.Buffer) -> pa.RecordBatch:
        """The wanted columns of a unit; all of it is refused if one value does not fit."""
        try:
            rows = self._decoders[format](payload)
            return self._fitted(rows)
        except (PUnitError, *_REFUSALS) as error:
            reason = error.message if isinstance(error, PUnitError) else str(error)
            raise MalformedInput(
                f"a unit does not fit the columns ({', '.join(self._columns.names)[:400]}): "
                f"{reason[:400]}"
            ) from error

    @cached_property
    def _decoders(self) -> Mapping[int, Callable[[pa.Buffer], pa.RecordBatch]]:
        return {
            wire.FORMATS["arrow"]: _from_arrow,
            wire.FORMATS["csv"]: self._from_csv,
            wire.FORMATS["json"]: self._from_json,
        }

    def _from_csv(self, payload: pa.Buffer) -> pa.RecordBatch:
        names = self._columns.names
        types = {field.name: field.type for field in self._columns}
        table = pv.read_csv(
            pa.BufferReader(payload),
            read_options=pv.ReadOptions(column_names=names, use_threads=False),
            parse_options=pv.ParseOptions(newlines_in_values=False),
            convert_options=pv.ConvertOptions(
                column_types=types, null_values=[""], strings_can_be_null=True
            ),
        )
        return _one(table)

    def _from_json(self, payload: pa.Buffer) -> pa.RecordBatch:
        # Two bytes are a row, and one that says nothing has a value in every column all the same.
        rows_max = payload.to_pybytes().count(b"{")
        if rows_max * self._row_bytes > JSON_BYTES_MAX:
            raise ValueError(
                f"up to {rows_max:,} rows of {self._row_bytes:,} bytes at once: send fewer"
            )
        table = pj.read_json(
            pa.BufferReader(payload),
            read_options=pj.ReadOptions(use_threads=False, block_size=max(1, payload.size)),
            parse_options=pj.ParseOptions(
                explicit_schema=self._columns, unexpected_field_behavior="error"
            ),
        )
        return _one(table)

    @cached_property
    def _row_bytes(self) -> int:
        return sum(_least_bytes(field.type) for field in self._columns)

    def _fitted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        missing = [name for name in self._columns.names if name not in rows.schema.names]
        if missing:  # where all may be null it would be a misspelt one that nobody notices
            raise ValueError(f"column {', '.join(missing)[:200]} is missing")
        fitted = punit.conform(rows, self.schema)
        for field, column in zip(self.schema, fitted.columns, strict=True):
            if column.null_count and not field.nullable:
                raise ValueError(f"column {field.name} has nulls")
        return fitted


def _from_arrow(payload: pa.Buffer) -> pa.RecordBatch:
    """The batch of an IPC stream, without believing its lengths."""
    stream = pa.BufferReader(payload)
    schema = pa.ipc.read_schema(stream)
    return punit.read_message(payload.slice(stream.tell()), schema)


def _least_bytes(kind: pa.DataType) -> int:
    """Of a value in memory, or of a null."""
    if pa.types.is_struct(kind):
        return sum(_least_bytes(field.type) for field in kind)
    return max(1, kind.bit_width // 8) if pa.types.is_primitive(kind) else 8


def _one(table: pa.Table) -> pa.RecordBatch:
    batches: list[Any] = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
