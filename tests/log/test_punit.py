"""P-units: what goes in comes out, and nothing else ever does, whatever the bytes say."""

from __future__ import annotations

import datetime as dt
import decimal
import mmap
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from penstock.errors import (
    PUnitDamaged,
    PUnitError,
    PUnitTooLarge,
    PUnitVersionUnsupported,
    SchemaMismatch,
)
from penstock.log import punit
from penstock.log.punit import Codec, conform, decode, encode, inspect, plain_schema
from tests.thoroughness import examples

CODECS = tuple(Codec)
DAY_MS = 86_400_000


def sample(rows: int = 40) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "key": pa.array(range(rows), pa.int64()),
            "name": pa.array([None if i % 5 == 3 else f"user-{i}" for i in range(rows)]),
            "scores": pa.array([[i, None][: i % 3] for i in range(rows)], pa.list_(pa.int32())),
        }
    )


def forge(
    schema: bytes,
    stored: bytes,
    *,
    rows: int,
    raw_bytes: int | None = None,
    codec: int = 0,
    version: int = 2,
    encoding: int = 0,
    reserved: int = 0,
    schema_fingerprint: int | None = None,
) -> bytes:
    """Write a unit by the documented layout, checks included, with whatever content is given."""
    head = struct.pack(
        "<4sHBBQQQQIQ8x",
        b"PNPU",
        version,
        encoding,
        codec,
        xxh3_64_intdigest(schema) if schema_fingerprint is None else schema_fingerprint,
        rows,
        len(stored) if raw_bytes is None else raw_bytes,
        len(stored),
        len(schema),
        reserved,
    )
    head += struct.pack("<I", xxh3_64_intdigest(head) & 0xFFFFFFFF)
    unit = head + schema + bytes(-(64 + len(schema)) % 64) + stored
    return unit + struct.pack("<Q", xxh3_64_intdigest(unit))


def forge_batch(batch: pa.RecordBatch, payload: bytes | None = None, **fields: Any) -> bytes:
    stored = batch.serialize().to_pybytes() if payload is None else payload
    return forge(
        batch.schema.serialize().to_pybytes(), stored, **{"rows": batch.num_rows, **fields}
    )


def serialised(batch: pa.RecordBatch) -> bytes:
    return bytes(batch.serialize().to_pybytes())


def body_at(message: bytes) -> int:
    return 8 + int(struct.unpack_from("<I", message, 4)[0])


def patched(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


# ------------------------------------------------------------------ round trips

LEAVES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.null(): st.none(),
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint8(): st.integers(0, 2**8 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float16(): st.floats(width=16, allow_nan=False).map(np.float16),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(max_size=20),
    pa.large_string(): st.text(max_size=20),
    pa.binary(): st.binary(max_size=20),
    pa.large_binary(): st.binary(max_size=20),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.date32(): st.dates(),
    pa.date64(): st.dates(),
    pa.time32("ms"): st.integers(0, DAY_MS - 1),
    pa.time64("us"): st.integers(0, DAY_MS * 1000 - 1),
    pa.timestamp("us"): st.integers(-(2**60), 2**60),
    pa.timestamp("ns", "Europe/Berlin"): st.integers(-(2**60), 2**60),
    pa.timestamp("us", "UTC"): st.integers(-(2**60), 2**60),
    pa.duration("ms"): st.integers(-(2**60), 2**60),
    pa.decimal128(10, 2): st.integers(-(10**10) + 1, 10**10 - 1).map(
        lambda cents: decimal.Decimal(cents).scaleb(-2)
    ),
    pa.decimal256(40, 0): st.integers(-(10**40) + 1, 10**40 - 1).map(decimal.Decimal),
    pa.month_day_nano_interval(): st.tuples(*[st.integers(-1000, 1000)] * 3),
}


def values_of(of: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type, nulls among them."""
    full: st.SearchStrategy[Any]
    if pa.types.is_fixed_size_list(of):
        item = values_of(of.value_type)
        full = st.lists(item, min_size=of.list_size, max_size=of.list_size)
    elif pa.types.is_map(of):
        full = st.dictionaries(LEAVES[of.key_type], values_of(of.item_type), max_size=3).map(
            lambda pairs: list(pairs.items())
        )
    elif pa.types.is_list(of) or pa.types.is_large_list(of):
        full = st.lists(values_of(of.value_type), max_size=3)
    elif pa.types.is_struct(of):
        full = st.fixed_dictionaries({field.name: values_of(field.type) for field in of})
    else:
        full = LEAVES[of]
    return st.none() | full


TYPES = st.recursive(
    st.sampled_from(list(LEAVES)),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(lambda of: pa.list_(of, 2)),
        inner.map(lambda of: pa.map_(pa.string(), of)),
        st.lists(inner, max_size=3).map(
            lambda types: pa.struct([(f"f{place}", of) for place, of in enumerate(types)])
        ),
    ),
    max_leaves=4,
)


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    types = draw(st.lists(TYPES, max_size=4))
    rows = draw(st.integers(0, 12))
    columns = [
        pa.array(draw(st.lists(values_of(of), min_size=rows, max_size=rows)), of) for of in types
    ]
    schema = pa.schema([(f"c{place}", of) for place, of in enumerate(types)])
    if not columns:
        return pa.record_batch({"only": list(range(rows))}).select([])
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    start = draw(st.integers(0, rows))
    return batch.slice(start, draw(st.integers(0, rows - start)))


@pytest.mark.parametrize("codec", CODECS)
@given(batch=batches())
@settings(max_examples=examples(120), deadline=None)
def test_any_batch_round_trips(codec: Codec, batch: pa.RecordBatch) -> None:
    unit = encode(batch, codec)
    back = decode(unit, expected=batch.schema)
    back.validate(full=True)
    assert back.equals(batch)
    assert back.schema.equals(batch.schema, check_metadata=True)
    header = inspect(unit)
    assert (header.rows, header.unit_bytes) == (batch.num_rows, unit.size)
    assert encode(back, codec).equals(unit)  # equal rows, equal bytes, however they were sliced


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_a_batch_without_columns_keeps_its_rows(rows: int) -> None:
    batch = sample(rows).select([])
    assert decode(encode(batch)).num_rows == rows


def test_nan_and_metadata_survive() -> None:
    schema = pa.schema(
        [pa.field("x", pa.float64(), metadata={b"unit": b"m"}), pa.field("y", pa.int8(), False)],
        metadata={b"source": b"test"},
    )
    batch = pa.record_batch([pa.array([float("nan"), None]), pa.array([1, 2], pa.int8())], schema)
    back = decode(encode(batch))
    assert back.schema.equals(schema, check_metadata=True)
    assert str(back.to_pylist()) == str(batch.to_pylist())


@pytest.mark.parametrize(
    "make", [bytes, bytearray, memoryview, pa.py_buffer], ids=lambda m: m.__name__
)
def test_every_kind_of_body_is_read(make: Callable[[Any], Any]) -> None:
    batch = sample()
    assert decode(make(encode(batch))).equals(batch)


def test_units_follow_the_documented_layout() -> None:
    batch = sample()
    assert encode(batch).to_pybytes() == forge_batch(batch)
    packed = encode(batch, Codec.ZSTD).to_pybytes()
    raw = batch.serialize()
    stored = pa.compress(raw, codec="zstd", asbytes=True)
    assert packed == forge_batch(batch, stored, raw_bytes=raw.size, codec=2)


def test_one_pass_gives_both_checksums() -> None:
    for codec in CODECS:
        unit, digest = punit.encode_unit(sample(), codec)
        assert digest == xxh3_64_intdigest(unit)
        assert unit.equals(encode(sample(), codec))


def test_what_a_log_has_verified_is_not_summed_again() -> None:
    unit = bytearray(encode(sample()))
    unit[-1] ^= 1
    with pytest.raises(PUnitDamaged, match="checksum"):
        decode(unit)
    assert decode(unit, is_sound=True).equals(sample())


@pytest.mark.parametrize("word", ["plain", "naïve", ""])
def test_texts_of_any_alphabet_are_validated(word: str) -> None:
    texts = pa.array([word, None, word * 3, "x"])
    for column in (texts, texts.slice(1), texts.slice(2, 0)):
        batch = pa.record_batch({"text": column})
        assert decode(encode(batch)).equals(batch)


def test_encoding_is_deterministic() -> None:
    for codec in CODECS:
        assert encode(sample(), codec).equals(encode(sample(), codec))


def test_a_payload_that_does_not_shrink_is_stored_plain() -> None:
    noise = np.random.default_rng(7).bytes(4000)
    batch = pa.record_batch({"noise": [noise]})
    unit = encode(batch, Codec.LZ4)
    assert inspect(unit).codec is Codec.NONE
    assert decode(unit).equals(batch)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_compression_shrinks(codec: Codec) -> None:
    batch = pa.record_batch({"n": np.zeros(10_000, np.int64)})
    unit = encode(batch, codec)
    header = inspect(unit)
    assert header.codec is codec
    assert header.stored_bytes * 20 < header.raw_bytes
    assert decode(unit).equals(batch)


# ------------------------------------------------------------------ in place


def test_uncompressed_units_are_read_in_place_from_a_mapped_file(tmp_path: Path) -> None:
    batch = sample(1000)
    path = tmp_path / "units"
    path.write_bytes(bytes(128) + encode(batch).to_pybytes())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        unit = pa.py_buffer(memoryview(mapped)[128:])
        back = decode(unit)
        values = back.column("key").buffers()[1]
        assert unit.address <= values.address < unit.address + unit.size
        assert values.address % 8 == 0
        assert (unit.address + inspect(unit).payload_at) % 64 == 0
        assert back.equals(batch)
        del back, values, unit  # the rows keep the mapping alive; it cannot be closed before


@pytest.mark.parametrize("shift", range(1, 8))
def test_a_misaligned_unit_is_copied_to_an_aligned_place(shift: int) -> None:
    batch = sample()
    place = pa.allocate_buffer(encode(batch).size + shift)
    memoryview(place).cast("B")[shift:] = memoryview(encode(batch)).cast("B")
    back = decode(place.slice(shift))
    assert back.column("key").buffers()[1].address % 8 == 0
    assert back.equals(batch)


# ------------------------------------------------------------------ slices


def wide(rows: int) -> pa.RecordBatch:
    def secret(row: int) -> str:
        return f"the secret of row {row:05d}"

    strings = pa.array([None if row % 7 == 2 else secret(row) for row in range(rows)])
    return pa.record_batch(
        {
            "flag": pa.array([None if row % 3 == 1 else row % 2 == 0 for row in range(rows)]),
            "text": strings,
            "list": pa.array([[secret(row)] * (row % 3) for row in range(rows)]),
            "map": pa.array(
                [[(secret(row), row)] for row in range(rows)], pa.map_("string", "int64")
            ),
            "struct": pa.array(
                [None if row % 5 == 1 else {"s": secret(row)} for row in range(rows)]
            ),
            "pair": pa.array([[row, None] for row in range(rows)], pa.list_(pa.int64(), 2)),
            "view": strings.cast(pa.string_view()),
            "bytes_view": strings.cast(pa.binary()).cast(pa.binary_view()),
            "views": pa.array([[secret(row)] for row in range(rows)], pa.list_(pa.string_view())),
            "list_view": pa.array(
                [[secret(row)] for row in range(rows)], pa.list_view(pa.string())
            ),
            "dictionary": strings.dictionary_encode(),
            "runs": pa.RunEndEncodedArray.from_arrays(
                pa.array(range(1, rows + 1), pa.int32()), strings
            ),
            "sparse": pa.UnionArray.from_sparse(pa.array([0] * rows, pa.int8()), [strings]),
        }
    )


@pytest.mark.parametrize(
    ("start", "rows"), [(0, 3), (1, 1), (3, 5), (7, 9), (8, 8), (61, 39), (99, 0)]
)
def test_a_slice_holds_its_own_rows_and_no_others(start: int, rows: int) -> None:
    piece = wide(100).slice(start, rows)
    unit = encode(piece)
    assert decode(unit).to_pylist() == piece.to_pylist()
    text = unit.to_pybytes()
    inside = {row for row in range(100) if f"row {row:05d}".encode() in text}
    assert inside <= set(range(start, start + rows))


def test_a_small_slice_of_a_large_batch_is_a_small_unit() -> None:
    for name in wide(1).schema.names:
        piece = wide(2000).select([name]).slice(1001, 2)
        assert encode(piece).size < 2048, name


# ------------------------------------------------------------------ dictionaries and views

LETTERS = pa.array(["a", "b", None, "a", "c", "b"])
CODED = LETTERS.dictionary_encode()

HIDDEN_DICTIONARIES: dict[str, pa.Array] = {
    "top": CODED,
    "null in the dictionary": pa.DictionaryArray.from_arrays(
        [1, 0, None, 2], pa.array(["x", None, "y"])
    ),
    "of lists": pa.DictionaryArray.from_arrays([0, 1, None, 0], pa.array([[1], [2, 3]])),
    "of dictionaries": pa.DictionaryArray.from_arrays([3, 2, None], CODED),
    "list": pa.ListArray.from_arrays([0, 2, None, 2, 6], CODED),
    "large list": pa.LargeListArray.from_arrays([0, 2, 2, 6], CODED),
    "fixed list": pa.FixedSizeListArray.from_arrays(CODED, 2),
    "struct": pa.StructArray.from_arrays([CODED, LETTERS], ["x", "y"]),
    "masked struct": pa.StructArray.from_arrays(
        [CODED], ["x"], mask=pa.array([False, True, False, True, False, False])
    ),
    "map": pa.MapArray.from_arrays([0, 1, 1, 3], ["k", "l", "m"], CODED[1:4]),
    "list of structs": pa.ListArray.from_arrays(
        [0, 1, 6], pa.StructArray.from_arrays([CODED], ["x"])
    ),
    "list view": pa.ListViewArray.from_arrays([0, 2], [2, 2], CODED),
    "list view, any order": pa.ListViewArray.from_arrays([2, 0, 1], [2, 3, 0], LETTERS),
    "list view of views": pa.ListViewArray.from_arrays(
        [3, 0], [3, 4], LETTERS.cast(pa.string_view())
    ),
    "list view of list views": pa.array(
        [[["a"], None], None, [["b", "c"]]], pa.list_view(pa.list_view(pa.string()))
    ),
    "large list view": pa.array([["a"], None, ["b", "c"]], pa.large_list_view(pa.string())),
    "struct of views": pa.array(
        [{"v": "x" * 30}, None, {"v": None}], pa.struct([("v", pa.string_view())])
    ),
}


@pytest.mark.parametrize("name", HIDDEN_DICTIONARIES)
def test_dictionaries_and_views_become_values(name: str) -> None:
    column = HIDDEN_DICTIONARIES[name]
    whole = pa.RecordBatch.from_arrays(
        [column], schema=pa.schema([pa.field("c", column.type, metadata={"k": "v"})])
    )
    for start in range(len(column) + 1):
        for batch in (whole.slice(start), whole.slice(start, 1)):
            back = decode(encode(batch), expected=plain_schema(batch.schema))
            assert back.to_pylist() == batch.to_pylist()
            assert back.schema.field(0).metadata == {b"k": b"v"}


@pytest.mark.parametrize(
    "column",
    [
        pa.UnionArray.from_sparse(pa.array([0] * 6, pa.int8()), [CODED]),
        pa.UnionArray.from_dense(
            pa.array([0] * 6, pa.int8()), pa.array(range(6), pa.int32()), [LETTERS]
        ),
        pa.RunEndEncodedArray.from_arrays(pa.array([1, 2, 3, 4, 5, 6], pa.int32()), CODED),
        pa.array([{"x": ["a"]}], pa.struct([("x", pa.list_view(pa.string()))])),
    ],
    ids=["union", "dense union", "run ends", "list view in a struct"],
)
def test_what_cannot_be_made_plain_is_refused_by_name(column: pa.Array) -> None:
    with pytest.raises(SchemaMismatch, match="cast"):
        encode(pa.record_batch({"c": column}))


# ------------------------------------------------------------------ refusing to write


def test_a_batch_that_no_reader_would_accept_is_not_written() -> None:
    text = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(struct.pack("<ii", 0, 2)), pa.py_buffer(b"\xc3\x28")]
    )
    batch = pa.record_batch({"text": text})
    with pytest.raises(PUnitError, match="cannot be written"):
        encode(batch)
    with pytest.raises(PUnitDamaged, match="UTF8"):
        decode(encode(batch, verify=False))


def test_oversized_batches_are_not_written() -> None:
    with pytest.raises(PUnitTooLarge) as caught:
        encode(sample(1000), raw_bytes_max=1000)
    assert caught.value.details["raw_bytes_max"] == 1000
    with pytest.raises(PUnitTooLarge):
        encode(pa.record_batch({"n": pa.nulls(punit.ROWS_MAX + 1)}))
    with pytest.raises(PUnitTooLarge):
        encode(pa.record_batch({"n" * punit.SCHEMA_BYTES_MAX: [1]}))


# ------------------------------------------------------------------ damage


@pytest.mark.parametrize("codec", CODECS)
def test_a_unit_cut_at_any_length_is_damaged(codec: Codec) -> None:
    unit = encode(sample(), codec).to_pybytes()
    for size in range(len(unit)):
        with pytest.raises(PUnitDamaged):
            decode(unit[:size])
        with pytest.raises(PUnitDamaged):
            inspect(unit[:size])


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_any_flipped_byte_is_noticed(codec: Codec, flip: int) -> None:
    unit = encode(sample(), codec).to_pybytes()
    for at in range(len(unit)):
        damaged = bytearray(unit)
        damaged[at] ^= flip
        with pytest.raises(PUnitVersionUnsupported if at in (4, 5) else PUnitDamaged):
            decode(damaged)


def test_inspect_notices_damage_in_header_and_schema() -> None:
    unit = encode(sample()).to_pybytes()
    header = inspect(unit)
    for at in range(64 + header.schema_bytes):
        damaged = bytearray(unit)
        damaged[at] ^= 0x10
        with pytest.raises(PUnitError):
            inspect(damaged)


def test_inspect_does_not_touch_the_payload() -> None:
    batch = sample()
    unit = bytearray(encode(batch))
    header = inspect(unit)
    unit[header.payload_at : -8] = bytes(header.stored_bytes)
    assert inspect(unit) == header
    assert header.schema.equals(batch.schema)
    assert header.fingerprint == xxh3_64_intdigest(batch.schema.serialize().to_pybytes())


def test_trailing_bytes_are_damage() -> None:
    with pytest.raises(PUnitDamaged):
        decode(encode(sample()).to_pybytes() + b"\0")


@given(data=st.binary(max_size=300), magic=st.booleans(), verify=st.booleans())
@settings(max_examples=examples(300), deadline=None)
def test_random_bytes_are_refused(data: bytes, magic: bool, verify: bool) -> None:
    body = b"PNPU\1\0\0\0" + data if magic else data
    with pytest.raises(PUnitError):
        decode(body, verify=verify)
    with pytest.raises(PUnitError):
        inspect(body)


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 3},
        {"version": 0},
        {"encoding": 1},  # whose columns with codes are said
        {"encoding": 3},
        {"encoding": 255},
        {"codec": 4},
        {"reserved": 1},
    ],
    ids=str,
)
def test_what_a_newer_penstock_wrote_is_called_that(fields: dict[str, Any]) -> None:
    unit = forge_batch(sample(), **fields)
    for read in (decode, inspect):
        with pytest.raises(PUnitVersionUnsupported):
            read(unit)


# ------------------------------------------------------------------ texts that keep their codes


def with_codes(texts: list[str | None], numbers: list[int]) -> pa.RecordBatch:
    column = pa.array(texts, pa.string()).dictionary_encode()
    fields = [pa.field("key", column.type), pa.field("n", pa.int64())]
    return pa.RecordBatch.from_arrays([column, pa.array(numbers)], schema=pa.schema(fields))


TWICE = with_codes(["b", "a", None, "b", "\u00fc", ""], [1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize("codec", CODECS)
@given(
    texts=st.lists(st.none() | st.sampled_from(["a", "b", "", "\u00fc" * 9]), max_size=12),
    data=st.data(),
)
@settings(max_examples=examples(60), deadline=None)
def test_codes_are_kept_for_who_asks_for_them(
    codec: Codec, texts: list[str | None], data: st.DataObject
) -> None:
    whole = with_codes(texts, list(range(len(texts))))
    start = data.draw(st.integers(0, len(texts)))
    batch = whole.slice(start, data.draw(st.integers(0, len(texts) - start)))
    unit = punit.encode_unit(batch, codec, keep_codes=True).body
    assert inspect(unit).schema == plain_schema(batch.schema)
    assert inspect(unit).coded == (0,)
    coded = decode(unit, coded={"key"})
    assert coded.equals(batch)
    assert coded.schema == batch.schema
    for plain in (decode(unit), decode(unit, coded={"n", "other"})):
        assert plain.schema == plain_schema(batch.schema)
        assert plain.to_pylist() == batch.to_pylist()


def test_codes_are_not_kept_for_others() -> None:
    assert inspect(encode(TWICE)).coded == ()
    assert decode(encode(TWICE), coded={"key"}).schema == plain_schema(TWICE.schema)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"x", b"x"]).dictionary_encode(),
        pa.array([1, 1]).dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), ["x", "y"]),
        pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["x", None])),
    ],
    ids=["binary", "numbers", "8 bits", "a null among the texts"],
)
def test_other_dictionaries_become_values(column: pa.DictionaryArray) -> None:
    batch = pa.record_batch({"c": column})
    unit = punit.encode_unit(batch, keep_codes=True).body
    assert inspect(unit).coded == ()
    assert decode(unit).to_pylist() == batch.to_pylist()


def test_a_column_beyond_the_64th_becomes_values() -> None:
    batch = pa.record_batch({f"c{place}": TWICE.column(0) for place in range(66)})
    unit = punit.encode_unit(batch, keep_codes=True).body
    assert inspect(unit).coded == tuple(range(64))
    assert decode(unit, coded=set(batch.schema.names)).to_pylist() == batch.to_pylist()


def forge_coded(codes: pa.Array, texts: pa.Array, **fields: Any) -> bytes:
    """A unit of one coded column, with all checks right."""
    schema = pa.schema({"key": pa.string()}).serialize().to_pybytes()
    payload = serialised(pa.record_batch({"key": codes}))
    payload += serialised(pa.record_batch({"texts": texts}))
    return forge(schema, payload, **{"rows": len(codes), "encoding": 1, "reserved": 1} | fields)


def test_the_forger_of_codes_is_believed() -> None:
    unit = forge_coded(pa.array([1, 0, None], pa.int32()), pa.array(["a", "b"]))
    assert decode(unit).to_pylist() == [{"key": "b"}, {"key": "a"}, {"key": None}]


@pytest.mark.parametrize(
    ("codes", "texts", "fields"),
    [
        ([0, 2], ["a", "b"], {}),
        ([-1, 0], ["a", "b"], {}),
        ([0], [], {}),
        ([0, 1], ["a", None], {}),
        ([0, 1], ["a", "b"], {"rows": 1}),
        ([0, 1], ["a", "b"], {"reserved": 2}),
        ([0, 1], ["a", "b"], {"reserved": 3}),
        ([0, 1], ["a", "b"], {"reserved": 1 << 63}),
    ],
)
def test_codes_that_cannot_be_are_damage(
    codes: list[int], texts: list[str | None], fields: dict[str, Any]
) -> None:
    unit = forge_coded(pa.array(codes, pa.int32()), pa.array(texts, pa.string()), **fields)
    for coded in ((), ("key",)):
        with pytest.raises(PUnitDamaged):
            decode(unit, coded=coded)


@pytest.mark.parametrize("flip", [0x01, 0x40, 0xFF])
def test_flips_in_coded_units_give_an_error_or_a_valid_batch(flip: int) -> None:
    unit = bytes(punit.encode_unit(TWICE, keep_codes=True).body)
    header = inspect(unit)
    schema, payload = unit[64 : 64 + header.schema_bytes], unit[header.payload_at : -8]
    accepted = 0
    for at in range(len(payload)):
        changed = patched(payload, at, bytes([payload[at] ^ flip]))
        try:
            back = decode(forge(schema, changed, rows=6, encoding=1, reserved=1), coded={"key"})
        except PUnitError:
            continue
        back.validate(full=True)
        accepted += 1
    assert accepted > 0


def test_coded_rows_conform_to_a_schema_of_texts() -> None:
    wanted = pa.schema({"n": pa.int64(), "key": pa.string()})
    found = conform(TWICE, wanted)
    assert found.column("key").equals(TWICE.column("key"))
    assert found.column("n").equals(TWICE.column("n"))
    with pytest.raises(SchemaMismatch):
        conform(TWICE, pa.schema({"key": pa.binary()}))


# ------------------------------------------------------------------ hostile units, all checks right


def with_offset(place: int, value: int) -> bytes:
    """One string column of three rows, with one of its four offsets changed."""
    message = serialised(TEXT)
    offsets = struct.pack("<4i", 0, 3, 6, 9)
    at = message.index(offsets, body_at(message))
    return patched(message, at + 4 * place, struct.pack("<i", value))


TEXT = pa.record_batch({"s": ["abc", "def", "ghi"]})
NULLS = pa.record_batch({"s": ["abc", None, "ghi"]})
NUMBERS = pa.record_batch({name: np.arange(64, dtype=np.int64) for name in "ab"})


def moved_buffer(new_offset: int, new_length: int) -> bytes:
    """Column b's values somewhere else."""
    message = serialised(NUMBERS)
    at = message.rindex(struct.pack("<qq", 512, 512), 0, body_at(message))
    return patched(message, at, struct.pack("<qq", new_offset, new_length))


def without_utf8() -> bytes:
    return serialised(TEXT).replace(b"abcdefghi", b"ab\xffdefghi")


def lying_null_count() -> bytes:
    message = serialised(NULLS)
    at = message.index(struct.pack("<qq", 3, 1))  # the field node: length, nulls
    return patched(message, at, struct.pack("<qq", 3, 2))


def compressed_inside() -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, NUMBERS.schema, options=options) as writer:
        writer.write_batch(NUMBERS)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    return bytes(reader.read_next_message().serialize())


HOSTILE: dict[str, tuple[pa.RecordBatch, Callable[[], bytes]]] = {
    "last offset beyond the data": (TEXT, lambda: with_offset(3, 1 << 30)),
    "middle offset beyond the data": (TEXT, lambda: with_offset(1, 1 << 30)),
    "negative offset": (TEXT, lambda: with_offset(0, -1)),
    "falling offsets": (TEXT, lambda: with_offset(2, 2)),
    "not UTF-8": (TEXT, without_utf8),
    "wrong null count": (NULLS, lying_null_count),
    "compressed buffers": (NUMBERS, compressed_inside),
    "overlapping buffers": (NUMBERS, lambda: moved_buffer(0, 1024)),
    "buffer beyond the payload": (NUMBERS, lambda: moved_buffer(1 << 40, 512)),
    "buffer partly beyond the payload": (NUMBERS, lambda: moved_buffer(768, 512)),
    "buffer too short": (NUMBERS, lambda: moved_buffer(512, 8)),
    "negative buffer length": (NUMBERS, lambda: moved_buffer(512, -512)),
    "negative buffer offset": (NUMBERS, lambda: moved_buffer(-512, 512)),
    "a schema instead of rows": (NUMBERS, lambda: NUMBERS.schema.serialize().to_pybytes()),
    "bytes after the message": (NUMBERS, lambda: serialised(NUMBERS) + bytes(8)),
    "bytes missing": (NUMBERS, lambda: serialised(NUMBERS)[:-8]),
    "another schema's rows": (NUMBERS, lambda: serialised(sample(64))),
    "empty payload": (NUMBERS, lambda: b""),
    "end of stream": (NUMBERS, lambda: b"\xff\xff\xff\xff\0\0\0\0"),
    "huge metadata": (NUMBERS, lambda: patched(serialised(NUMBERS), 4, b"\xf8\xff\xff\xff")),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_content_behind_right_checks_is_refused(name: str) -> None:
    batch, payload = HOSTILE[name]
    with pytest.raises(PUnitDamaged):
        decode(forge_batch(batch, payload()))


def test_the_forger_itself_is_believed() -> None:
    """Or the tests above would pass for the wrong reason."""
    for batch in (TEXT, NULLS, NUMBERS):
        assert decode(forge_batch(batch)).equals(batch)
    assert decode(forge_batch(NUMBERS, moved_buffer(512, 512))).equals(NUMBERS)


@pytest.mark.parametrize("rows", [0, 63, 65, 1 << 20])
def test_a_wrong_row_count_is_damage(rows: int) -> None:
    with pytest.raises(PUnitDamaged, match="rows"):
        decode(forge_batch(NUMBERS, rows=rows))


@pytest.mark.parametrize("flip", [0x01, 0x40, 0xFF])
def test_flips_behind_right_checks_give_an_error_or_a_valid_batch(flip: int) -> None:
    """Every byte of schema and payload, all checks made right again: no crash, no bad batch."""
    batch = sample(4)
    schema, payload = batch.schema.serialize().to_pybytes(), serialised(batch)
    accepted = 0
    for at in range(len(schema) + len(payload)):
        changed = bytearray(schema + payload)
        changed[at] ^= flip
        unit = forge(bytes(changed[: len(schema)]), bytes(changed[len(schema) :]), rows=4)
        try:
            back = decode(unit)
        except PUnitError:
            continue
        back.validate(full=True)
        assert back.num_rows == 4
        accepted += 1
    assert accepted > 0  # a changed number is still a number


@given(
    batch=batches(),
    patches=st.lists(st.tuples(st.integers(0, 2**16), st.binary(min_size=1, max_size=8))),
)
@settings(max_examples=examples(150), deadline=None)
def test_patched_payloads_behind_right_checks_give_an_error_or_a_valid_batch(
    batch: pa.RecordBatch, patches: list[tuple[int, bytes]]
) -> None:
    payload = whole = serialised(batch)
    for at, new in patches:
        payload = patched(payload, at % len(payload), new)
    try:
        back = decode(forge_batch(batch, payload))
    except PUnitError:
        assert payload != whole
        return
    back.validate(full=True)
    again = encode(back)
    assert encode(decode(again)).equals(again)  # bytes, since rows with NaN never equal themselves


@given(data=st.binary(max_size=400), codec=st.sampled_from([0, 1, 2]), prefix=st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_random_payloads_behind_right_checks_are_refused(
    data: bytes, codec: int, prefix: bool
) -> None:
    if prefix:
        data = struct.pack("<iI", -1, len(data) & ~7) + data
    with pytest.raises(PUnitDamaged):
        decode(forge_batch(NUMBERS, data, codec=codec, raw_bytes=len(data)))


@given(schema=st.binary(max_size=200))
@settings(max_examples=examples(100), deadline=None)
def test_random_schemas_behind_right_checks_are_refused(schema: bytes) -> None:
    with pytest.raises(PUnitDamaged, match="schema"):
        inspect(forge(schema, b"", rows=0))


def test_a_schema_that_no_encoder_writes_is_refused() -> None:
    for column in (CODED, LETTERS.cast(pa.string_view())):
        with pytest.raises(PUnitDamaged, match="dictionary, view"):
            decode(forge_batch(pa.record_batch({"c": column})))


def test_a_wrong_fingerprint_is_damage() -> None:
    schema = NUMBERS.schema.serialize().to_pybytes()
    with pytest.raises(PUnitDamaged, match="fingerprint"):
        decode(forge(schema, serialised(NUMBERS), rows=64, schema_fingerprint=1))


def test_unequal_lengths_without_a_codec_are_damage() -> None:
    with pytest.raises(PUnitDamaged, match="not compressed"):
        decode(forge_batch(NUMBERS, raw_bytes=8))


# ------------------------------------------------------------------ decompression


def frames(codec: str, count: int) -> bytes:
    """64 MiB of zeros per frame, in a few KiB."""
    return bytes(pa.compress(bytes(64 << 20), codec=codec, asbytes=True)) * count


@pytest.mark.parametrize(("codec", "name"), [(1, "lz4"), (2, "zstd")])
def test_a_bomb_is_refused_without_its_bytes(codec: int, name: str) -> None:
    bomb = frames(name, 160 if name == "zstd" else 4)
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(PUnitTooLarge) as caught:
        decode(forge_batch(NUMBERS, bomb, codec=codec, raw_bytes=10 << 30))
    assert caught.value.details["declared"] == 10 << 30
    with pytest.raises(PUnitDamaged, match="more than"):
        decode(forge_batch(NUMBERS, bomb, codec=codec, raw_bytes=4096))
    assert pa.default_memory_pool().max_memory() - before < 16 << 20


def test_the_reader_sets_the_bound() -> None:
    unit = encode(sample(1000), Codec.ZSTD)
    with pytest.raises(PUnitTooLarge):
        decode(unit, raw_bytes_max=1000)
    with pytest.raises(PUnitTooLarge):
        inspect(unit, raw_bytes_max=1000)
    with pytest.raises(PUnitTooLarge):
        decode(unit, rows_max=999)
    assert decode(unit, rows_max=1000).num_rows == 1000


def test_rows_that_cost_no_bytes_are_bounded() -> None:
    rows = 1 << 60
    nothing = pa.record_batch({"n": pa.nulls(3)})
    message = serialised(nothing).replace(struct.pack("<q", 3), struct.pack("<q", rows))
    with pytest.raises(PUnitTooLarge):
        decode(forge_batch(nothing, message, rows=rows))


@pytest.mark.parametrize(("codec", "name"), [(1, "lz4"), (2, "zstd")])
def test_a_payload_of_another_size_than_declared_is_damage(codec: int, name: str) -> None:
    raw = serialised(NUMBERS)
    stored = pa.compress(raw, codec=name, asbytes=True)
    assert decode(forge_batch(NUMBERS, stored, codec=codec, raw_bytes=len(raw))).equals(NUMBERS)
    for declared in (0, 1, len(raw) - 8, len(raw) - 1, len(raw) + 1, len(raw) + 8, 1 << 20):
        with pytest.raises(PUnitDamaged):
            decode(forge_batch(NUMBERS, stored, codec=codec, raw_bytes=declared))
    for bad in (stored[:-1], stored[:8], b"", stored + b"\0", stored + stored, raw):
        with pytest.raises(PUnitDamaged):
            decode(forge_batch(NUMBERS, bad, codec=codec, raw_bytes=len(raw)))


# ------------------------------------------------------------------ schemas

WANTED = pa.schema(
    [pa.field("id", pa.int64(), False), ("price", pa.float64()), ("note", pa.string())]
)


def test_the_expected_schema_passes_whatever_its_metadata() -> None:
    batch = sample()
    expected = pa.schema(
        [field.with_metadata({"comment": "x"}) for field in batch.schema], metadata={"a": "b"}
    )
    assert decode(encode(batch), expected=expected).equals(batch)


def test_a_mismatch_names_the_columns() -> None:
    batch = pa.record_batch({"id": pa.array([1], pa.int32()), "note": ["x"], "old": [True]})
    with pytest.raises(SchemaMismatch) as caught:
        decode(encode(batch), expected=WANTED)
    assert caught.value.details == {
        "missing": ("price",),
        "extra": ("old",),
        "changed": ("id: int32, wanted int64 not null",),
    }
    for word in ("missing price", "extra old", "changed id"):
        assert word in caught.value.message
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.details == caught.value.details


def test_another_order_or_a_repeated_name_is_a_mismatch() -> None:
    batch = pa.record_batch({"a": [1], "b": [2]})
    with pytest.raises(SchemaMismatch, match="another order"):
        decode(encode(batch), expected=batch.select(["b", "a"]).schema)
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    assert decode(encode(twice)).equals(twice)
    with pytest.raises(SchemaMismatch, match="not unique"):
        decode(encode(twice), expected=batch.select(["a"]).schema)


def test_a_mismatch_is_seen_before_the_payload_is_decoded() -> None:
    unit = forge_batch(NUMBERS, b"not zstd", codec=2, raw_bytes=1000)
    with pytest.raises(SchemaMismatch):
        decode(unit, expected=WANTED)


def test_conform_adds_drops_widens_and_reorders() -> None:
    batch = pa.record_batch(
        {
            "old": [True, False],
            "price": pa.array([1.5, None], pa.float32()),
            "id": pa.array([-(2**31), 2**31 - 1], pa.int32()),
        }
    )
    got = conform(batch, WANTED)
    assert got.schema.equals(WANTED)
    assert got.to_pylist() == [
        {"id": -(2**31), "price": 1.5, "note": None},
        {"id": 2**31 - 1, "price": None, "note": None},
    ]
    assert decode(encode(got), expected=WANTED).equals(got)


def test_conform_of_the_same_schema_is_the_same_batch() -> None:
    batch = sample()
    assert conform(batch, batch.schema) is batch


def test_conform_to_no_columns_keeps_the_rows() -> None:
    assert conform(sample(9), pa.schema([])).num_rows == 9


@pytest.mark.parametrize(
    ("have", "want"),
    [
        (pa.array([1], pa.int64()), pa.field("c", pa.int32())),
        (pa.array([1], pa.int32()), pa.field("c", pa.float64())),
        (pa.array([1.0], pa.float64()), pa.field("c", pa.float32())),
        (pa.array(["1"]), pa.field("c", pa.int64())),
        (pa.array([None, 1]), pa.field("c", pa.int64(), nullable=False)),
        (pa.array([dt.datetime(2020, 1, 1)]), pa.field("c", pa.timestamp("us", "UTC"))),
        (pa.array([[1]], pa.list_(pa.int32())), pa.field("c", pa.list_(pa.int64()))),
        (pa.array([1]), pa.field("d", pa.int64(), nullable=False)),
    ],
    ids=str,
)
def test_conform_refuses_what_would_lose_or_invent(have: pa.Array, want: pa.Field) -> None:
    with pytest.raises(SchemaMismatch):
        conform(pa.record_batch({"c": have}), pa.schema([want]))


def test_conform_refuses_repeated_names() -> None:
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    once = pa.record_batch({"a": [1]})
    with pytest.raises(SchemaMismatch, match="not unique"):
        conform(twice, once.schema)
    with pytest.raises(SchemaMismatch, match="not unique"):
        conform(once, twice.schema)


def test_schemas_that_differ_only_in_metadata_do_not_share_a_cache_entry() -> None:
    """pyarrow calls such schemas equal, so a cache keyed by schema would mix them up."""
    plain = pa.record_batch({"a": [1]})
    marked = plain.replace_schema_metadata({"origin": "west"})
    for batch in (plain, marked, plain):
        assert decode(encode(batch)).schema.metadata == batch.schema.metadata
    assert inspect(encode(plain)).fingerprint != inspect(encode(marked)).fingerprint


def test_the_schema_cache_is_bounded() -> None:
    for number in range(400):
        batch = pa.record_batch({f"c{number}": [1]})
        assert decode(encode(batch)).equals(batch)
    info = punit._parse_schema_cached.cache_info()
    assert info.maxsize is not None
    assert info.currsize <= info.maxsize < 400
    large = pa.record_batch({"n" * (punit._CACHED_SCHEMA_BYTES_MAX + 1): [1]})
    misses = punit._parse_schema_cached.cache_info().misses
    assert decode(encode(large)).equals(large)
    assert punit._parse_schema_cached.cache_info().misses == misses
