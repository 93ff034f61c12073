"""P-units: an immutable batch of rows as one self-contained, checked byte string.

Layout, little endian. A unit is exactly as long as its header says; nothing may follow it.

    offset  size  field
         0     4  magic "PNPU"
         4     2  version, 2
         6     1  encoding: 0 = the payload is one Arrow IPC record batch message; 1 = that message
                  has codes for some texts, and a message with the texts of each such column
                  follows; 2 = each column has codecs of its own (`codecs/nodes.py`): two words of
                  32 bits, the bytes of all heads and the MB that the disk was thought to take in a
                  second; the heads; from the next boundary of 64 the bytes that they speak of
         7     1  codec of the whole payload: 0 none, 1 lz4 (frame), 2 zstd; 3 in encoding 2
         8     8  fingerprint: xxh3_64 of the serialised schema
        16     8  rows
        24     8  raw payload bytes, before the codec; in encoding 2 of all columns in memory
        32     8  stored payload bytes, after the codec
        40     4  schema bytes
        44     8  which columns have codes, a bit for each of the first 64; zero in encoding 0
        52     8  reserved, zero
        60     4  header check: the low half of xxh3_64 over the 60 bytes before it
        64     …  the schema, one Arrow IPC schema message, never compressed, so `inspect` is cheap
         P     …  the payload; P is the first multiple of 64 after the schema, zeros in between
       end     8  checksum: xxh3_64 over all bytes before it

The checksum comes last, so that one pass gives both it and the checksum of the whole unit, which
is what a log keeps of a record's body and verifies when it reads it.

Where the unit lies on a 64-byte boundary, so does its payload, and Arrow keeps every buffer inside
it on 8 bytes: an uncompressed unit is read in place, also from a mapped file.

Why xxh3 and not crc32c: 64 bits miss less than 32, it runs at memory speed from one C call, and
the wheel that has it is small. Like any checksum without a key it finds accidents, not attackers:
whoever can write a unit can also write its checksum. So every length is checked before it is used,
decompression is bounded, and what Arrow decodes is validated in full before anyone sees it.

The schema is one of plain columns. Dictionaries live outside a single IPC message, and view columns
drag the rows of other slices along; `encode` turns both into values (`plain_schema` says of which
type). Dense unions, for the same reason, are refused. Only what goes from stage to stage keeps the
codes of its texts, where it is asked for (`keep_codes`): 32-bit numbers of distinct texts. Whoever
decodes gets values, unless it names the columns that may come coded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64, xxh3_64_intdigest

from penstock.arrays import texts_of, values_of
from penstock.errors import (
    PUnitError,
    PUnitTooLarge,
    PUnitVersionUnsupported,
    SchemaMismatch,
)
from penstock.log.codecs.choosing import Adaptive
from penstock.log.codecs.columns import CODED_TYPES, ColumnReader
from penstock.log.codecs.nodes import Budget, HeadReader, Node, damaged, decompress, heads, padded
from penstock.log.codecs.telling import ColumnFacts, column_facts
from penstock.log.record import Body, Record

MAGIC = b"PNPU"
VERSION = 2
HEADER_BYTES = 64
ALIGNMENT_BYTES = 64
RAW_BYTES_MAX = 256 << 20
SCHEMA_BYTES_MAX = 1 << 20
COLUMNS_BYTES_MIN = 8 << 10  # less is stored as it is: its frame would be most of it
BUDGET_SLACK_BYTES = 1 << 20
ROWS_MAX = 1 << 26  # rows without columns, or of nulls, cost no bytes: only this bounds them

_FIELDS = struct.Struct("<4sHBBQQQQIQ8x")
_HEADER_CHECK = struct.Struct("<I")
_CHECKSUM = struct.Struct("<Q")
_COLUMNS = struct.Struct("<II")
_RESERVED_AT = 52
_HEADER_CHECK_AT = 60
_RESERVED_ZERO = bytes(8)
_CODED_COLUMNS_MAX = 64  # a bit each

_CACHED_SCHEMAS_MAX = 256
_CACHED_SCHEMA_BYTES_MAX = 64 << 10  # larger ones are parsed each time: 16 MiB bound the cache

_TEXTS = pa.schema({"texts": pa.string()})  # of a column with codes

# What pyarrow raises on bytes it does not like; its I/O and lookup errors are plain Python ones.
_ARROW_REFUSALS = (
    pa.ArrowException,
    OSError,
    ValueError,
    LookupError,
    TypeError,
    OverflowError,
    NotImplementedError,
    struct.error,
)


class Encoding(IntEnum):
    """How rows become the payload. The numbers are on disk: never reuse one."""

    ARROW = 0
    CODED = 1
    COLUMNS = 2


class Codec(IntEnum):
    """How the payload is compressed. The numbers are on disk: never reuse one.

    `ADAPTIVE` is a codec for each column, which goes by what is in it and how fast the disk is.
    """

    NONE = 0
    LZ4 = 1
    ZSTD = 2
    ADAPTIVE = 3


_OF_PROCESS = Adaptive()  # decides where nobody else does

CODECS = {codec.name.lower(): codec for codec in Codec}  # by the names that people give


@dataclass(frozen=True, slots=True)
class PUnitHeader:
    """What a unit says about itself: enough to list it, and to see which schema it has."""

    version: int
    encoding: Encoding
    codec: Codec
    fingerprint: int
    rows: int
    schema: pa.Schema
    schema_bytes: int
    raw_bytes: int
    stored_bytes: int
    coded: tuple[int, ...]  # the places of columns that have codes

    @property
    def payload_at(self) -> int:
        """Where the payload begins, counted from the start of the unit."""
        return _payload_at(self.schema_bytes)

    @property
    def unit_bytes(self) -> int:
        """How long the whole unit is."""
        return self.payload_at + self.stored_bytes + _CHECKSUM.size


class Unit(NamedTuple):
    """An encoded unit, and the xxh3_64 of all its bytes, for whoever keeps it."""

    body: pa.Buffer
    digest: int


# ------------------------------------------------------------------ writing


def encode(
    batch: pa.RecordBatch,
    codec: Codec = Codec.NONE,
    *,
    raw_bytes_max: int = RAW_BYTES_MAX,
    verify: bool = True,
) -> pa.Buffer:
    """Return the bytes of the unit that holds this batch's rows, and only these.

    `codec` is a wish: a payload that it does not shrink by a sixteenth is stored as it is, so that
    it can be read in place. `verify` validates the batch in full, because a unit that no reader
    would accept must fail here, where the rows can still be looked at; a producer whose columns
    cannot be malformed (numbers from its own kernels) may turn it off.
    """
    return encode_unit(batch, codec, raw_bytes_max=raw_bytes_max, verify=verify).body


def encode_unit(
    batch: pa.RecordBatch,
    codec: Codec = Codec.NONE,
    *,
    raw_bytes_max: int = RAW_BYTES_MAX,
    verify: bool = True,
    keep_codes: bool = False,
    adaptive: Adaptive | None = None,
    stream: str = "",
) -> Unit:
    """As `encode`, with the digest of the bytes, which costs no second pass over them.

    `keep_codes`: texts that come coded, with distinct texts, stay so. `adaptive` decides about the
    codecs of columns, `stream` by stream; without, it is one for the whole process.
    """
    if codec is Codec.ADAPTIVE:
        if batch.nbytes >= COLUMNS_BYTES_MIN:
            chosen = adaptive or _OF_PROCESS
            return _encode_columns(batch, chosen, stream, raw_bytes_max, verify, keep_codes)
        codec = Codec.NONE
    texts: dict[int, pa.Array] = {}
    known = _known_schema(batch.schema.serialize().to_pybytes())
    if not known.plain:
        texts = _coded_texts(batch, CODED_TYPES[:1]) if keep_codes else texts
        batch, coded = _to_plain(batch, leave=texts), batch
        known = _known_schema(plain_schema(coded.schema).serialize().to_pybytes())
    _check_size(batch.num_rows, len(known.serialised))
    try:
        parts = [batch, *(pa.record_batch({"texts": each}) for each in texts.values())]
        for part in parts:
            _validate(part, full=verify)
        # Slices of fixed-width rows alone may need no copy; of texts and codes always.
        row_bytes = -1 if texts else known.row_bytes
        messages = [_own_rows(part, row_bytes).serialize() for part in parts]
    except _ARROW_REFUSALS as error:
        raise PUnitError(f"this batch cannot be written as a p-unit: {error}") from error
    raw = messages[0] if len(messages) == 1 else pa.py_buffer(b"".join(messages))
    _check_raw_bytes(batch.num_rows, raw.size, raw_bytes_max)
    stored, codec = _compress(raw, codec)
    columns = sum(1 << place for place in texts)
    encoding = Encoding.CODED if columns else Encoding.ARROW
    return _frame(known, batch.num_rows, raw.size, [(0, stored)], encoding, codec, columns)


def _check_size(rows: int, schema_bytes: int) -> None:
    if rows > ROWS_MAX or schema_bytes > SCHEMA_BYTES_MAX:
        raise PUnitTooLarge(
            f"a batch of {rows} rows with {schema_bytes} bytes of schema does not fit a p-unit "
            f"({ROWS_MAX} rows, {SCHEMA_BYTES_MAX} bytes of schema); split it",
            rows=rows,
            schema_bytes=schema_bytes,
        )


def _check_raw_bytes(rows: int, raw_bytes: int, raw_bytes_max: int) -> None:
    if raw_bytes > raw_bytes_max:
        raise PUnitTooLarge(
            f"a batch of {rows} rows takes {raw_bytes} bytes, more than the {raw_bytes_max} that a "
            "p-unit may hold; split it",
            raw_bytes=raw_bytes,
            raw_bytes_max=raw_bytes_max,
        )


def _encode_columns(
    batch: pa.RecordBatch,
    adaptive: Adaptive,
    stream: str,
    raw_bytes_max: int,
    verify: bool,
    keep_codes: bool,
) -> Unit:
    schema = plain_schema(batch.schema)
    known = _known_schema(schema.serialize().to_pybytes())
    _check_size(batch.num_rows, len(known.serialised))
    texts = _coded_texts(batch, CODED_TYPES) if keep_codes else {}
    plain = _to_plain(batch, texts)
    try:
        _validate(plain, full=verify)
        columns = [
            batch.column(place) if place in texts else column
            for place, column in enumerate(plain.columns)
        ]
        for column in (columns[place] for place in texts):
            column.dictionary.validate(full=verify)
        raw_bytes = sum(map(_values_bytes, columns))
        _check_raw_bytes(batch.num_rows, raw_bytes, raw_bytes_max)
        chooser = adaptive.chooser((stream, known.fingerprint, tuple(texts)))
        nodes = chooser.nodes(columns)
    except _ARROW_REFUSALS as error:
        raise PUnitError(f"this batch cannot be written as a p-unit: {error}") from error
    disk_mb_s = min(round(chooser.disk_bytes_per_s / 1e6), 0xFFFF_FFFF)
    return _frame_columns(known, batch.num_rows, raw_bytes, nodes, disk_mb_s)


def values_bytes(batch: pa.RecordBatch) -> int:
    """How large the rows are in memory with values in place of codes."""
    return sum(_values_bytes(column) for column in batch.columns)


def _values_bytes(column: pa.Array) -> int:
    rows = len(column)
    if column.type not in CODED_TYPES:
        return int(column.nbytes)
    sizes = np.diff(texts_of(column.dictionary)[0])
    if sizes.size and sizes.min() == sizes.max():
        return 5 * rows + (rows - int(column.null_count)) * int(sizes[0])
    codes = values_of(column.indices.drop_null())
    return 5 * rows + int(sizes[codes].sum(dtype=np.int64))


def _frame_columns(
    known: _KnownSchema, rows: int, raw_bytes: int, nodes: Sequence[Node], disk_mb_s: int
) -> Unit:
    """The unit of these columns."""
    all_heads = heads(nodes)
    parts = [(0, pa.py_buffer(_COLUMNS.pack(len(all_heads), disk_mb_s) + all_heads))]
    at = padded(_COLUMNS.size + len(all_heads))
    for data in (each.data for node in nodes for each in node.walk()):
        if data is not None and data.size:
            parts.append((at, data))
            at = padded(at + data.size)
    return _frame(known, rows, raw_bytes, parts, Encoding.COLUMNS, Codec.ADAPTIVE, 0)


def _coded_texts(batch: pa.RecordBatch, types: Collection[pa.DataType]) -> dict[int, pa.Array]:
    """The texts of the columns of these types, by place, that can keep their codes."""
    columns = enumerate(batch.columns[:_CODED_COLUMNS_MAX])
    coded = {place: each.dictionary for place, each in columns if each.type in types}
    return {place: texts for place, texts in coded.items() if not texts.null_count}


def _own_rows(batch: pa.RecordBatch, row_bytes: int) -> pa.RecordBatch:
    """Return the batch without the rows around it in its buffers.

    Arrow cuts a slice's buffers only to multiples of 64 bytes, so neighbours would be written too,
    and equal rows would make different units. A copy is exact; it is saved where the buffers have
    just the size that the rows need.
    """
    if batch.get_total_buffer_size() == row_bytes * batch.num_rows:
        return batch
    return pa.concat_batches([batch, batch.slice(0, 0)])  # of one batch it would be no copy


def _compress(raw: pa.Buffer, codec: Codec) -> tuple[pa.Buffer, Codec]:
    if codec is Codec.NONE:
        return raw, codec
    stored = pa.compress(raw, codec=codec.name.lower())
    worthwhile = stored.size < raw.size - raw.size // 16
    return (stored, codec) if worthwhile else (raw, Codec.NONE)


def _frame(
    known: _KnownSchema,
    rows: int,
    raw_bytes: int,
    parts: Sequence[tuple[int, pa.Buffer]],
    encoding: Encoding,
    codec: Codec,
    coded: int,
) -> Unit:
    """The unit with these parts of a payload, each at its place, zeros in between."""
    schema_end = HEADER_BYTES + len(known.serialised)
    payload_at = _payload_at(len(known.serialised))
    last_at, last = parts[-1]
    stored_bytes = last_at + last.size
    unit = pa.allocate_buffer(payload_at + stored_bytes + _CHECKSUM.size)
    view = memoryview(unit).cast("B")
    _FIELDS.pack_into(
        view,
        0,
        MAGIC,
        VERSION,
        encoding,
        codec,
        known.fingerprint,
        rows,
        raw_bytes,
        stored_bytes,
        len(known.serialised),
        coded,
    )
    _HEADER_CHECK.pack_into(view, _HEADER_CHECK_AT, _header_check(view))
    view[HEADER_BYTES:schema_end] = known.serialised
    end = schema_end
    for at, part in parts:
        view[end : payload_at + at] = bytes(payload_at + at - end)
        end = payload_at + at + part.size
        view[payload_at + at : end] = memoryview(part).cast("B")
    digest = xxh3_64(view[: -_CHECKSUM.size])
    _CHECKSUM.pack_into(view, len(view) - _CHECKSUM.size, digest.intdigest())
    digest.update(view[-_CHECKSUM.size :])
    return Unit(unit, digest.intdigest())


# ------------------------------------------------------------------ reading


def inspect(
    body: Body, *, raw_bytes_max: int = RAW_BYTES_MAX, rows_max: int = ROWS_MAX
) -> PUnitHeader:
    """Return what a unit says about itself without touching its payload.

    Header and schema have checks of their own and are verified; only `decode` verifies the payload.
    """
    unit = _as_buffer(body)
    fields = _read_fields(unit)
    return _read_header(unit, fields, raw_bytes_max, rows_max)


def decode_record(
    record: Record, coded: Collection[str] = (), columns: Collection[str] | None = None
) -> pa.RecordBatch:
    """Return the rows in a record of a log, which has verified the record's bytes already."""
    return decode(record.body, is_sound=True, coded=coded, columns=columns)


def decode(
    body: Body,
    *,
    expected: pa.Schema | None = None,
    raw_bytes_max: int = RAW_BYTES_MAX,
    rows_max: int = ROWS_MAX,
    verify: bool = True,
    is_sound: bool = False,
    coded: Collection[str] = (),
    columns: Collection[str] | None = None,
) -> pa.RecordBatch:
    """Return a unit's rows; if not compressed they lie in `body` itself, which they keep alive.

    With `expected`, a unit of any other schema raises `SchemaMismatch` before its payload is
    decoded (see `conform` for readers that can bridge the difference). `verify=False` skips the
    checksum and the full validation: right only for bytes that this very process has encoded or
    decoded before. `is_sound` skips the checksum alone: right for bytes that were verified as they
    were read, by another checksum over all of them. Columns named in `coded` come with the codes
    that the unit may have for them. With `columns`, only those of these names are decoded, in the
    order that the unit has them.
    """
    unit = _as_buffer(body)
    fields = _read_fields(unit)
    if verify and not is_sound:
        _verify_checksum(unit)
    header = _read_header(unit, fields, raw_bytes_max, rows_max)
    if expected is not None and not header.schema.equals(expected):
        raise _mismatch(header.schema, expected)
    stored = unit.slice(header.payload_at, header.stored_bytes)
    if header.codec in (Codec.LZ4, Codec.ZSTD):
        raw = decompress(stored, header.codec.name.lower(), header.raw_bytes)
    elif stored.address % 8:
        raw = _aligned_copy(stored)  # numbers that straddle words: kernels would be slow or refuse
    else:
        raw = stored
    if header.encoding is Encoding.COLUMNS:
        return _read_columns(raw, header, verify, coded, columns)
    return _read_rows(raw, header, verify, coded, columns)


def column_nodes(body: Body, header: PUnitHeader) -> tuple[list[Node], int]:
    """The forms of a unit's columns, and what its writer took for the disk's MB in a second."""
    return _column_nodes(_as_buffer(body).slice(header.payload_at, header.stored_bytes), header)


def describe_columns(body: Body, header: PUnitHeader) -> list[ColumnFacts]:
    """What each column of a unit is stored as; of other encodings nothing is known by column."""
    if header.encoding is not Encoding.COLUMNS:
        return []
    nodes, disk_mb_s = column_nodes(body, header)
    return [
        column_facts(field, node, header.rows, disk_mb_s)
        for field, node in zip(header.schema, nodes, strict=True)
    ]


def _column_nodes(payload: pa.Buffer, header: PUnitHeader) -> tuple[list[Node], int]:
    if payload.size < _COLUMNS.size:
        raise damaged("its columns have no heads")
    heads_bytes, disk_mb_s = _COLUMNS.unpack_from(payload)
    end = _COLUMNS.size + heads_bytes
    if end > payload.size:
        raise damaged("the heads of its columns reach out of the payload")
    at = min(padded(end), payload.size)
    view = memoryview(payload).cast("B")
    reader = HeadReader(view[_COLUMNS.size : end], payload.slice(at))
    nodes = [reader.tree() for _ in range(len(header.schema))]
    reader.end()
    return nodes, disk_mb_s


def _read_columns(
    payload: pa.Buffer,
    header: PUnitHeader,
    verify: bool,
    coded: Collection[str],
    columns: Collection[str] | None,
) -> pa.RecordBatch:
    nodes, _ = _column_nodes(payload, header)
    # A dictionary, and what it is decoded to, are there at the same time.
    budget = Budget(2 * header.raw_bytes + BUDGET_SLACK_BYTES)

    def read_message(message: pa.Buffer, schema: pa.Schema, rows: int) -> pa.RecordBatch:
        return _read_batch(message, schema, rows, verify)

    reader = ColumnReader(header.rows, budget, read_message)
    found, fields = [], []
    for node, field in zip(nodes, header.schema, strict=True):
        if columns is None or field.name in columns:
            try:
                column = reader.column(node, field.type, field.name in coded)
            except _ARROW_REFUSALS as error:
                raise damaged(f"column {field.name!r} cannot be read: {error}") from error
            found.append(column)
            fields.append(field.with_type(column.type))
    schema = pa.schema(fields, metadata=header.schema.metadata)
    if not found:
        return _no_columns(header.rows, schema)
    try:
        batch = pa.RecordBatch.from_arrays(found, schema=schema)
        _validate(batch, full=verify)
    except _ARROW_REFUSALS as error:
        raise damaged(f"Arrow refuses its payload: {error}") from error
    return batch


def _no_columns(rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """Rows without columns; `from_arrays` would forget how many."""
    of = pa.record_batch([pa.nulls(rows)], ["none"]).select([])
    return of.replace_schema_metadata(schema.metadata)


def read_message(message: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """The batch of an Arrow IPC stream behind its schema, checked like that of a unit."""
    if not _is_plain(schema):
        raise damaged("its schema has dictionary, view or dense union columns")
    if message.slice(max(0, message.size - len(_END))).to_pybytes() == _END:
        message = message.slice(0, message.size - len(_END))
    return _read_batch(message, schema, None, verify=True)


class _Fields(NamedTuple):
    version: int
    encoding: int
    codec: int
    fingerprint: int
    rows: int
    raw_bytes: int
    stored_bytes: int
    schema_bytes: int
    coded: int


def _read_fields(unit: pa.Buffer) -> _Fields:
    """Read the fixed header and check that the unit is whole; its lengths allocate nothing."""
    if unit.size < HEADER_BYTES:
        raise damaged(f"{unit.size} bytes are too short for a header", unit_bytes=unit.size)
    magic, *numbers = _FIELDS.unpack_from(unit)
    if magic != MAGIC:
        raise damaged("it does not begin with a p-unit's magic", magic=magic)
    fields = _Fields(*numbers)
    if fields.version != VERSION:
        # Before any check: only magic and version keep their places in other versions.
        raise PUnitVersionUnsupported(
            f"a p-unit of version {fields.version}, this Penstock reads {VERSION}: upgrade it, or "
            "look for damage with `penstock fsck`",
            version=fields.version,
        )
    view = memoryview(unit).cast("B")
    if _HEADER_CHECK.unpack_from(view, _HEADER_CHECK_AT)[0] != _header_check(view):
        raise damaged("its header fails its check")
    unit_bytes = _payload_at(fields.schema_bytes) + fields.stored_bytes + _CHECKSUM.size
    if unit_bytes != unit.size:
        raise damaged(
            f"its header says {unit_bytes} bytes and there are {unit.size}",
            unit_bytes=unit.size,
            declared_bytes=unit_bytes,
        )
    return fields


def _verify_checksum(unit: pa.Buffer) -> None:
    view = memoryview(unit).cast("B")
    content = view[: -_CHECKSUM.size]
    if _CHECKSUM.unpack_from(view, len(content))[0] != xxh3_64_intdigest(content):
        raise damaged("it fails its checksum")


def _read_header(
    unit: pa.Buffer, fields: _Fields, raw_bytes_max: int, rows_max: int
) -> PUnitHeader:
    encoding, codec = _supported(unit, fields)
    _within("raw bytes", fields.raw_bytes, raw_bytes_max)
    _within("rows", fields.rows, rows_max)
    _within("schema bytes", fields.schema_bytes, SCHEMA_BYTES_MAX)
    if (encoding is Encoding.COLUMNS) != (codec is Codec.ADAPTIVE):
        raise damaged(f"encoding {encoding.name} with codec {codec.name}")
    if codec is Codec.NONE and fields.raw_bytes != fields.stored_bytes:
        raise damaged(
            f"not compressed, yet {fields.raw_bytes} bytes are stored as {fields.stored_bytes}",
            raw_bytes=fields.raw_bytes,
            stored_bytes=fields.stored_bytes,
        )
    known = _known_schema(unit.slice(HEADER_BYTES, fields.schema_bytes).to_pybytes())
    if known.fingerprint != fields.fingerprint:
        raise damaged("its schema fails its fingerprint", fingerprint=fields.fingerprint)
    if not known.plain:
        raise damaged("its schema has dictionary, view or dense union columns, which no unit holds")
    return PUnitHeader(
        version=fields.version,
        encoding=encoding,
        codec=codec,
        fingerprint=fields.fingerprint,
        rows=fields.rows,
        schema=known.schema,
        schema_bytes=fields.schema_bytes,
        raw_bytes=fields.raw_bytes,
        stored_bytes=fields.stored_bytes,
        coded=_coded_places(fields.coded, known.schema),
    )


def _coded_places(columns: int, schema: pa.Schema) -> tuple[int, ...]:
    places = tuple(place for place in range(_CODED_COLUMNS_MAX) if columns >> place & 1)
    if any(place >= len(schema) or schema.field(place).type != pa.string() for place in places):
        raise damaged("a column that has codes is not one of texts")
    return places


def _supported(unit: pa.Buffer, fields: _Fields) -> tuple[Encoding, Codec]:
    reserved = unit.slice(_RESERVED_AT, len(_RESERVED_ZERO)).to_pybytes()
    try:
        if reserved != _RESERVED_ZERO:
            raise ValueError(f"reserved bytes {reserved.hex()} are in use")
        if (fields.encoding == Encoding.CODED) != bool(fields.coded):
            raise ValueError(f"columns {fields.coded:#x} are said to have codes")
        return Encoding(fields.encoding), Codec(fields.codec)
    except ValueError as error:
        raise PUnitVersionUnsupported(
            f"a p-unit with encoding {fields.encoding} and codec {fields.codec}, which this "
            f"Penstock lacks ({error}): upgrade it",
            encoding=fields.encoding,
            codec=fields.codec,
        ) from error


def _within(what: str, declared: int, bound: int) -> None:
    if declared > bound:
        raise PUnitTooLarge(
            f"a p-unit declares {declared} {what}, more than the {bound} allowed; nothing was "
            "allocated. If the unit is wanted, raise the reader's bound",
            what=what,
            declared=declared,
            bound=bound,
        )


def _read_rows(
    raw: pa.Buffer,
    header: PUnitHeader,
    verify: bool,
    coded: Collection[str],
    columns: Collection[str] | None,
) -> pa.RecordBatch:
    schema = header.schema
    for place in header.coded:
        schema = schema.set(place, schema.field(place).with_type(pa.int32()))
    message, *others = _messages(raw, 1 + len(header.coded))
    batch = _read_batch(message, schema, header.rows, verify, columns)
    for place, message in zip(header.coded, others, strict=True):
        field = header.schema.field(place)
        if columns is not None and field.name not in columns:
            continue
        (texts,) = _read_batch(message, _TEXTS, None, verify).columns
        column = _of_codes(batch.column(place), texts)
        if field.name not in coded:
            column = column.dictionary_decode()
        batch = batch.set_column(place, field.with_type(column.type), column)
    if columns is None:
        return batch
    return batch.select([at for at, name in enumerate(batch.schema.names) if name in columns])


def _of_codes(codes: pa.Array, texts: pa.Array) -> pa.DictionaryArray:
    bounds = pc.min_max(codes).as_py()
    if texts.null_count or (
        bounds["min"] is not None and not 0 <= bounds["min"] <= bounds["max"] < len(texts)
    ):
        raise damaged("a column has codes without a text")
    return pa.DictionaryArray.from_arrays(codes, texts)


def _read_batch(
    message: pa.Buffer,
    schema: pa.Schema,
    rows: int | None,
    verify: bool,
    columns: Collection[str] | None = None,
) -> pa.RecordBatch:
    """The batch of a message; `rows` is how many it must have, where that is declared.

    Only `columns` are validated in full: nobody will look at the others.
    """
    _check_message(message, rows)
    try:
        batch = pa.ipc.read_record_batch(message, schema)
        _validate(batch, full=verify, columns=columns)
    except _ARROW_REFUSALS as error:
        raise damaged(f"Arrow refuses its payload: {error}") from error
    if batch.num_rows > ROWS_MAX or rows not in (None, batch.num_rows):
        raise damaged(f"it has {batch.num_rows} rows and declares {rows}")
    return batch


def _validate(batch: pa.RecordBatch, full: bool, columns: Collection[str] | None = None) -> None:
    """As `batch.validate(full=full)`, without a look at each text where all bytes are ASCII."""
    batch.validate()
    for name, column in zip(batch.schema.names, batch.columns, strict=True) if full else ():
        if columns is not None and name not in columns:
            continue
        if pa.types.is_string(column.type) and _is_ascii(column):
            column.view(pa.binary()).validate(full=True)
        else:
            column.validate(full=True)


def _is_ascii(column: pa.Array) -> bool:
    """Whether no byte from the first text to the last is part of a longer character."""
    ends, data = texts_of(column)
    texts = data[ends[0] : ends[-1]].view(np.int8)
    return not texts.size or bool(texts.min() >= 0)


# ------------------------------------------------------------------ the Arrow message
#
# pyarrow reads messages safely but not boundedly: a message may say that its buffers are compressed
# and Arrow then allocates what they declare, or point a thousand columns at the same bytes so that
# validating them takes a thousand times as long. Neither shows in pyarrow's interface, so the three
# facts below are read from the flatbuffer itself (field numbers from Arrow's Message.fbs).

_PREFIX = struct.Struct("<iI")  # -1, then the bytes of metadata
_END = _PREFIX.pack(-1, 0)  # of a stream
_RECORD_BATCH = 3  # in the union MessageHeader
_MESSAGE_HEADER_TYPE, _MESSAGE_HEADER, _MESSAGE_BODY_BYTES = 1, 2, 3
_BATCH_ROWS, _BATCH_BUFFERS, _BATCH_COMPRESSION = 0, 2, 3


def _messages(raw: pa.Buffer, count: int) -> list[pa.Buffer]:
    """The messages that a payload consists of, by their own lengths; the last one has the rest."""
    messages = []
    for _ in range(count - 1):
        try:
            size = message_bytes(raw)
        except _ARROW_REFUSALS as error:
            raise damaged(f"its payload is not an Arrow message: {error}") from error
        if not 0 < size < raw.size:
            raise damaged(f"a message of {size} bytes in a payload that has {raw.size}")
        messages.append(raw.slice(0, size))
        raw = raw.slice(size)
    return [*messages, raw]


def message_bytes(raw: pa.Buffer) -> int:
    """How long an Arrow message is that begins here, as it says itself: no more than its metadata
    are looked at, and nothing is believed."""
    view = memoryview(raw).cast("B")
    metadata_bytes: int = _PREFIX.unpack_from(view)[1]
    message = view[_PREFIX.size : _PREFIX.size + metadata_bytes]
    slot = _slot(message, _unsigned(message, 0), _MESSAGE_BODY_BYTES)
    return _PREFIX.size + metadata_bytes + _number("<q", message, slot)


def _check_message(raw: pa.Buffer, rows: int | None) -> None:
    try:
        problem = _message_problem(raw, rows)
    except _ARROW_REFUSALS as error:
        raise damaged(f"its payload is not an Arrow message: {error}") from error
    if problem:
        raise damaged(problem)


def _message_problem(raw: pa.Buffer, rows: int | None) -> str | None:
    view = memoryview(raw).cast("B")
    marker, metadata_bytes = _PREFIX.unpack_from(view)
    body_at = _PREFIX.size + metadata_bytes
    if marker != -1 or body_at > len(view):
        return "its payload does not begin with an Arrow message"
    message = view[_PREFIX.size : body_at]
    root = _unsigned(message, 0)
    if _number("<B", message, _slot(message, root, _MESSAGE_HEADER_TYPE)) != _RECORD_BATCH:
        return "its payload is an Arrow message, but not a record batch"
    body_bytes = _number("<q", message, _slot(message, root, _MESSAGE_BODY_BYTES))
    if body_bytes != len(view) - body_at:
        return f"its message declares {body_bytes} bytes and {len(view) - body_at} are there"
    header = _slot(message, root, _MESSAGE_HEADER)
    batch = header + _unsigned(message, header)
    if rows not in (None, _number("<q", message, _slot(message, batch, _BATCH_ROWS))):
        return f"its message has another number of rows than the {rows} declared"
    if _slot(message, batch, _BATCH_COMPRESSION):
        return "its message has compressed buffers, which no unit holds"
    return _buffers_problem(message, _slot(message, batch, _BATCH_BUFFERS), body_bytes)


def _buffers_problem(message: memoryview, at: int, body_bytes: int) -> str | None:
    if not at:
        return None
    vector = at + _unsigned(message, at)
    count = _unsigned(message, vector)
    if vector + 4 + 16 * count > len(message):
        return "its message ends inside the list of buffers"
    places = struct.unpack_from(f"<{2 * count}q", message, vector + 4)  # offset, length, offset, …
    if min(places, default=0) < 0 or sum(places[1::2]) > body_bytes:
        return "its buffers overlap or reach out of the payload"
    return None


def _slot(message: memoryview, table: int, field: int) -> int:
    """Return where a table's field is in a flatbuffer, 0 if it is left out."""
    vtable = table - struct.unpack_from("<i", message, table)[0]
    if vtable < 0:
        raise ValueError("a flatbuffer table without a vtable")
    vtable_bytes: int = struct.unpack_from("<H", message, vtable)[0]
    if 4 + 2 * field + 2 > vtable_bytes:
        return 0
    offset: int = struct.unpack_from("<H", message, vtable + 4 + 2 * field)[0]
    return table + offset if offset else 0


def _unsigned(message: memoryview, at: int) -> int:
    value: int = struct.unpack_from("<I", message, at)[0]
    return value


def _number(form: str, message: memoryview, at: int) -> int:
    value: int = struct.unpack_from(form, message, at)[0] if at else 0  # left out means zero
    return value


# ------------------------------------------------------------------ schemas


@dataclass(frozen=True, slots=True)
class _KnownSchema:
    serialised: bytes
    schema: pa.Schema
    fingerprint: int
    plain: bool
    row_bytes: int  # of all columns where each value has as many; below 0 where it depends


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema that a unit has when batches of this one are encoded."""
    try:
        fields = [field.with_type(_plain_type(field.type)) for field in schema]
    except NotImplementedError as error:
        raise SchemaMismatch(f"{error}: cast the column before encoding it") from error
    return pa.schema(fields, metadata=schema.metadata)


def _known_schema(serialised: bytes) -> _KnownSchema:
    if len(serialised) > _CACHED_SCHEMA_BYTES_MAX:
        return _parse_schema(serialised)
    return _parse_schema_cached(serialised)


def _parse_schema(serialised: bytes) -> _KnownSchema:
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(serialised))
        return _KnownSchema(
            serialised,
            schema,
            xxh3_64_intdigest(serialised),
            plain=_is_plain(schema),
            row_bytes=_row_bytes(schema),
        )
    except _ARROW_REFUSALS as error:
        raise damaged(f"its schema cannot be read: {error}") from error


def _is_plain(schema: pa.Schema) -> bool:
    try:
        return all(_plain_type(field.type) == field.type for field in schema)
    except NotImplementedError:
        return False


# Keyed by all of the bytes, not by their fingerprint: schemas that were made to collide stay two.
_parse_schema_cached = lru_cache(maxsize=_CACHED_SCHEMAS_MAX)(_parse_schema)


def _row_bytes(schema: pa.Schema) -> int:
    if not all(pa.types.is_primitive(field.type) for field in schema):
        return -1
    bits = [field.type.bit_width for field in schema]
    return -1 if 1 in bits else sum(bits) // 8  # bools share bytes


def _contains(of: pa.DataType, what: Callable[[pa.DataType], bool]) -> bool:
    return what(of) or any(_contains(child, what) for child in _child_types(of))


def _child_types(of: pa.DataType) -> list[pa.DataType]:
    if isinstance(of, pa.BaseExtensionType):
        return [of.storage_type]
    return [of.field(place).type for place in range(of.num_fields)]


def _is_list_view(of: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(of) or pa.types.is_large_list_view(of))


def _plain_type(of: pa.DataType) -> pa.DataType:
    """Return the type without dictionaries and views, at any depth."""
    if pa.types.is_dictionary(of):
        return _plain_type(of.value_type)
    if pa.types.is_string_view(of):
        return pa.string()
    if pa.types.is_binary_view(of):
        return pa.binary()
    if isinstance(of, pa.BaseExtensionType):
        if _plain_type(of.storage_type) != of.storage_type:
            raise NotImplementedError(f"extension type {of} over dictionaries or views")
        return of
    return _plain_nested_type(of) if of.num_fields else of


def _plain_nested_type(of: pa.DataType) -> pa.DataType:
    if pa.types.is_union(of) and of.mode == "dense":  # neither a slice nor a copy cuts its children
        raise NotImplementedError(f"dense union {of}")
    children = [of.field(place) for place in range(of.num_fields)]
    plain = [child.with_type(_plain_type(child.type)) for child in children]
    same = all(new.type == old.type for new, old in zip(plain, children, strict=True))
    if same and not _is_list_view(of):
        return of
    if pa.types.is_map(of):
        entry = plain[0].type
        return pa.map_(entry.field(0), entry.field(1), keys_sorted=of.keys_sorted)
    if pa.types.is_list(of) or pa.types.is_list_view(of):
        return pa.list_(plain[0])
    if pa.types.is_large_list(of) or pa.types.is_large_list_view(of):
        return pa.large_list(plain[0])
    if pa.types.is_fixed_size_list(of):
        return pa.list_(plain[0], of.list_size)
    if pa.types.is_struct(of):
        return pa.struct(plain)
    raise NotImplementedError(f"dictionaries or views inside {of}")


def _to_plain(batch: pa.RecordBatch, leave: Container[int] = ()) -> pa.RecordBatch:
    """The batch with values in place of dictionaries and views; `leave`: with codes, by place."""
    schema = plain_schema(batch.schema)
    columns = []
    for place, (column, field) in enumerate(zip(batch.columns, schema, strict=True)):
        if place in leave:
            columns.append(column.indices)
            schema = schema.set(place, field.with_type(pa.int32()))
            continue
        try:
            columns.append(_plain_column(column, field.type))
        except _ARROW_REFUSALS as error:
            raise SchemaMismatch(
                f"column {field.name!r} of type {column.type} cannot be turned into {field.type} "
                f"({error}): cast it before encoding it",
                column=field.name,
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _plain_column(column: pa.Array, into: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary.take(column.indices)  # unlike a cast, for values of any type
    if _is_list_view(column.type):
        return _list_of_views(column, into)
    if _contains(column.type, _is_list_view):
        raise NotImplementedError("list views inside other columns")
    return column if column.type == into else column.cast(into)


def _list_of_views(column: pa.Array, into: pa.DataType) -> pa.Array:
    """Turn a list view into a list by hand: Arrow's own cast loses elements of some layouts."""
    large = pa.types.is_large_list(into)
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    ends = pc.cumulative_sum(lengths)
    zero = pa.array([0], ends.type)
    offsets = pa.concat_arrays([zero, ends]).cast(pa.int64() if large else pa.int32())
    values = _plain_column(column.flatten(), into.value_type)
    make = pa.LargeListArray if large else pa.ListArray
    return make.from_arrays(offsets, values, type=into, mask=column.is_null())


# ------------------------------------------------------------------ schema evolution


_WIDENINGS = ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with another schema's columns, in its order, as far as no value is lost.

    Missing nullable columns become nulls, unknown columns go, int32 widens to int64 and float to
    double; coded texts stay coded. Anything else raises `SchemaMismatch`. Metadata is the wanted
    schema's.
    """
    if batch.schema.equals(schema):
        return batch
    found = [_conform_column(batch, wanted) for wanted in schema]
    columns = [column for column in found if column is not None]
    if len(columns) < len(found) or len(set(schema.names)) != len(schema):
        raise _mismatch(batch.schema, schema)
    if not columns:  # from_arrays would forget the number of rows
        return batch.select([]).replace_schema_metadata(schema.metadata)
    for place, column in enumerate(columns):
        if column.type in CODED_TYPES:
            schema = schema.set(place, schema.field(place).with_type(column.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _conform_column(batch: pa.RecordBatch, wanted: pa.Field) -> pa.Array | None:
    """Return a column as a field wants it, or None if some value would be lost or invented."""
    places = batch.schema.get_all_field_indices(wanted.name)
    if not places:
        return pa.nulls(batch.num_rows, wanted.type) if wanted.nullable else None
    column = batch.column(places[0])
    if len(places) > 1 or (column.null_count and not wanted.nullable):
        return None
    if column.type == wanted.type:
        return column
    if column.type in CODED_TYPES and column.type.value_type == wanted.type:
        return column
    return column.cast(wanted.type) if (column.type, wanted.type) in _WIDENINGS else None


def _mismatch(unit: pa.Schema, wanted: pa.Schema) -> SchemaMismatch:
    """Name what is different; by name where names are unique, else say that they are not."""
    have, want = ({field.name: field for field in schema} for schema in (unit, wanted))
    missing = tuple(name for name in want if name not in have)
    extra = tuple(name for name in have if name not in want)
    changed = tuple(
        f"{name}: {_describe(have[name])}, wanted {_describe(field)}"
        for name, field in want.items()
        if name in have and not field.equals(have[name])
    )
    named = (("missing", missing), ("extra", extra), ("changed", changed))
    parts = [f"{what} {', '.join(names)}" for what, names in named if names]
    if len(have) != len(unit) or len(want) != len(wanted):
        parts.append("column names are not unique")
    return SchemaMismatch(
        f"the unit has another schema: {'; '.join(parts) or 'same columns in another order'}. "
        "Read it with its own schema, or bridge what can be bridged with `conform`",
        missing=missing,
        extra=extra,
        changed=changed,
    )


def _describe(field: pa.Field) -> str:
    return str(field.type) if field.nullable else f"{field.type} not null"


# ------------------------------------------------------------------ bytes


def _payload_at(schema_bytes: int) -> int:
    return -(-(HEADER_BYTES + schema_bytes) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _header_check(view: memoryview) -> int:
    return xxh3_64_intdigest(view[:_HEADER_CHECK_AT]) & 0xFFFF_FFFF


def _as_buffer(body: Body) -> pa.Buffer:
    return body if isinstance(body, pa.Buffer) else pa.py_buffer(body)


def _aligned_copy(stored: pa.Buffer) -> pa.Buffer:
    copy = pa.allocate_buffer(stored.size)
    memoryview(copy)[:] = memoryview(stored)
    return copy
