"""Codecs of columns: every value comes back from every form, and forged bytes raise, no more."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PUnitDamaged, PUnitError
from penstock.log import punit
from penstock.log.codecs import kernels, nodes
from penstock.log.codecs.choosing import Adaptive, Chooser, Speed, Speeds, statistics
from penstock.log.codecs.columns import (
    CODED_TYPES,
    SCHEMES,
    ColumnReader,
    column_node,
    schemes_for,
)
from penstock.log.codecs.nodes import Budget, Form, HeadReader, Node, Unfit, heads, padded
from penstock.log.codecs.stand_ins import STAND_INS
from penstock.loops import loops_of
from tests.thoroughness import examples

ROWS = 40_003  # some chunks, and a part of one
INTEGERS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")


class HandClock:
    """Time that only a test moves on."""

    def __init__(self) -> None:
        self.s = 0.0

    def now_us(self) -> int:
        return int(self.s * 1e6)

    def monotonic_s(self) -> float:
        self.s += 1e-6  # so that nothing takes no time
        return self.s


def stored(tree: Node) -> Node:
    """The tree as it is read again from its bytes."""
    data = bytearray()
    for node in tree.walk():
        if node.data is not None and node.data.size:
            data += bytes(padded(len(data)) - len(data)) + node.data.to_pybytes()
    buffer = pa.allocate_buffer(len(data))
    memoryview(buffer).cast("B")[:] = data
    reader = HeadReader(memoryview(heads([tree])), buffer)
    read = reader.tree()
    reader.end()
    return read


def read(tree: Node, column: pa.Array) -> pa.Array:
    def message(body: pa.Buffer, schema: pa.Schema, rows: int) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(body, schema)

    kind = column.type.value_type if column.type in CODED_TYPES else column.type
    size = 16 * len(column) + 2 * column.nbytes + (1 << 20)
    back = ColumnReader(len(column), Budget(size), message).column(tree, kind)
    back.validate(full=True)
    return back


def same(one: pa.Array, other: pa.Array) -> bool:
    """Equal, bit by bit where floats have many of the same."""
    if not pa.types.is_floating(one.type):
        return bool(one.equals(other))
    bits = [each.drop_null().to_numpy(zero_copy_only=False).tobytes() for each in (one, other)]
    return bits[0] == bits[1] and bool(one.is_valid().equals(other.is_valid()))


def round_trips(column: pa.Array) -> set[str]:
    """Try all forms of a column's type; which ones it could have."""
    fitting = set()
    values = column.dictionary_decode() if column.type in CODED_TYPES else column
    for scheme in schemes_for(column.type):
        try:
            tree = column_node(column, scheme)
        except Unfit:
            continue
        assert same(read(stored(tree), column), values), scheme
        fitting.add(scheme)
    return fitting


def integer_columns(dtype: str) -> Iterator[pa.Array]:
    rng, info = np.random.default_rng(1), np.iinfo(dtype)
    numbers = rng.integers(0, 100, ROWS).astype(dtype)
    outlier = numbers.copy()
    outlier[ROWS // 2] = info.max
    widening = numbers.copy()
    widening[ROWS // 2 :] = rng.integers(info.min, info.max, ROWS - ROWS // 2, dtype)
    kind = pa.from_numpy_dtype(np.dtype(dtype))
    yield pa.array(np.full(ROWS, info.min, dtype))
    yield pa.array(np.arange(ROWS).astype(dtype))
    yield pa.array(np.where(np.arange(ROWS) % 2, info.min, info.max).astype(dtype))
    yield pa.array(numbers)
    yield pa.array(outlier)
    yield pa.array(widening)
    yield pa.array(np.repeat(numbers, 10)[:ROWS])
    yield pa.array(numbers, mask=rng.random(ROWS) < 0.2)
    yield pa.array(numbers).slice(3, 20_000)
    yield from (pa.array(values, kind) for values in ([], [5], [5, 7], [None], [None] * 100))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_come_back_from_every_form(dtype: str) -> None:
    fitting = [round_trips(column) for column in integer_columns(dtype)]
    assert all("none" in each for each in fitting)
    of_small = fitting[3]
    if dtype[1] in "48":
        assert {"pack", "simple8b", "varbyte", "delta.pack", "blocks", "dictionary"} <= of_small
    assert "runs" in fitting[0]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_floats_come_back_bit_by_bit(kind: pa.DataType) -> None:
    rng = np.random.default_rng(1)
    dtype = np.dtype(kind.to_pandas_dtype())
    odd = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.5, -1.5], dtype)
    odd_nan = np.array([0x7FF8000000000123], np.uint64).view(np.float64).astype(dtype)
    assert "xor" in round_trips(pa.array(np.repeat(odd, 500)))
    assert "dictionary" in round_trips(pa.array(np.tile(np.append(odd, odd_nan), 500)))
    round_trips(pa.array(np.cumsum(rng.normal(size=ROWS)).astype(dtype)))
    round_trips(
        pa.array(np.round(rng.normal(size=ROWS), 2).astype(dtype), mask=rng.random(ROWS) < 0.5)
    )
    round_trips(pa.array([], kind))
    round_trips(pa.array([None] * 9, kind))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_texts_of_every_length_come_back(kind: pa.DataType) -> None:
    every = [None if length % 7 == 3 else "é" * length for length in range(300)]
    assert "lengths" in round_trips(pa.array(every).cast(kind))
    assert "dictionary" in round_trips(pa.array(["a", "bb", "", None] * 1000).cast(kind))
    for values in ([], [""], [None] * 50, [""] * 50):
        round_trips(pa.array(values, pa.string()).cast(kind))
    round_trips(pa.array(every).cast(kind).slice(5, 99))


def test_other_types_come_back() -> None:
    small = pa.array([None if i % 5 == 1 else Decimal(i) / 100 for i in range(999)])
    assert "pack" in round_trips(small.cast(pa.decimal128(12, 2)))
    large = pa.array([Decimal(10) ** 25 + i for i in range(99)], pa.decimal128(38, 2))
    assert "pack" not in round_trips(large)
    assert "runs" in round_trips(pa.array([True] * 999 + [False] * 999))
    round_trips(pa.array([True, None, False] * 333).slice(1, 700))
    round_trips(pa.array([[1, 2], None, [3]] * 50))
    round_trips(pa.array([{"a": 1, "b": "x"}] * 9))
    round_trips(pa.nulls(20))
    round_trips(pa.array([1, 2, None] * 9, pa.date32()))
    round_trips(pa.array(range(999), pa.timestamp("us", "UTC")))
    round_trips(pa.array(["a", "b", None] * 99).dictionary_encode())


@given(
    st.lists(
        st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(0, 9)), max_size=300
    )
)
@settings(max_examples=examples(30), deadline=None)
def test_any_integers_come_back(values: list[int | None]) -> None:
    round_trips(pa.array(values * 3, pa.int64()))


@given(st.lists(st.one_of(st.none(), st.text(max_size=9), st.sampled_from("ab")), max_size=99))
@settings(max_examples=examples(20), deadline=None)
def test_any_texts_come_back(values: list[str | None]) -> None:
    round_trips(pa.array(values * 3, pa.string()))


# ------------------------------------------------------------------ stand-ins


@pytest.mark.parametrize("dtype", ["i4", "u8"])
def test_numpy_reads_and_packs_what_loops_do(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes and values, with a loop that cannot be compiled."""
    trees = [
        (column, scheme, tree)
        for column in integer_columns(dtype)
        for scheme in schemes_for(column.type)
        if (tree := fitting(column, scheme)) is not None
    ]
    for each in loops_of(kernels):
        monkeypatch.setattr(each, "_run", broken)
    for column, scheme, tree in trees:
        assert same(read(stored(tree), column), column), scheme
        if SCHEMES[scheme].form is Form.PACKED:
            again = fitting(column, scheme)
            assert again is not None
            assert heads([again]) == heads([tree])
    assert {each.name for each in loops_of(kernels)} == set(STAND_INS)


def broken(*arguments: Any) -> int:
    raise RuntimeError("no compiler")


def fitting(column: pa.Array, scheme: str) -> Node | None:
    try:
        return column_node(column, scheme)
    except Unfit:
        return None


# ------------------------------------------------------------------ units


def some_rows(rows: int = 20_000, seed: int = 1) -> pa.RecordBatch:
    rng = np.random.default_rng(seed)
    return pa.record_batch(
        {
            "at": pa.array(np.arange(rows) * 1000 + 10**15).cast(pa.timestamp("us")),
            "key": pa.array(rng.integers(0, 100, rows), mask=rng.random(rows) < 0.1),
            "price": pa.array(np.round(rng.normal(size=rows), 2)),
            "what": pa.array(np.array(["view", "buy"])[rng.integers(0, 2, rows)]),
            "scores": pa.array([[1, 2]] * rows),
        }
    )


def adaptive(bytes_per_s: float = 50e6, **options: Any) -> Adaptive:
    return Adaptive(bytes_per_s=bytes_per_s, **options)


def encoded(batch: pa.RecordBatch, by: Adaptive | None = None) -> pa.Buffer:
    return punit.encode_unit(batch, punit.Codec.ADAPTIVE, adaptive=by or adaptive()).body


def test_a_unit_has_a_codec_for_each_column() -> None:
    batch = some_rows()
    unit = encoded(batch)
    header = punit.inspect(unit)
    assert header.encoding is punit.Encoding.COLUMNS
    assert punit.decode(unit).equals(batch)
    assert unit.size < batch.nbytes / 2
    told = punit.describe_columns(unit, header)
    assert [each.name for each in told] == batch.schema.names
    assert told[0].codec.startswith("delta")
    assert all(each.ratio > 1 and "50 MB/s" in each.reason for each in told)


def test_only_the_columns_asked_for_are_decoded() -> None:
    batch = some_rows()
    for unit in (encoded(batch), punit.encode(batch), punit.encode(batch, punit.Codec.LZ4)):
        assert punit.decode(unit, columns=["what", "key"]).equals(batch.select(["key", "what"]))
        assert punit.decode(unit, columns=[]).num_rows == batch.num_rows
    forged = encoded(batch).to_pybytes().replace(b"viewbuy", b"\xff\xff\xff\xffbuy")
    good = punit.decode(forged, columns=["key"], is_sound=True)
    assert good.equals(batch.select(["key"]))


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_codes_of_texts_stay_and_come_as_values_to_others(kind: pa.DataType) -> None:
    texts = some_rows().column("what").cast(kind)
    batch = pa.record_batch({"what": texts.dictionary_encode(), "n": some_rows().column("key")})
    by = adaptive()
    unit = punit.encode_unit(batch, punit.Codec.ADAPTIVE, keep_codes=True, adaptive=by).body
    assert punit.decode(unit).column("what").equals(texts)
    coded = punit.decode(unit, coded=["what"]).column("what")
    assert coded.type in CODED_TYPES
    assert coded.dictionary_decode().equals(texts)


class KnownSpeeds(Speeds):
    """Speeds of a machine on which every form costs the same to write and read, values as they are
    a tenth of it."""

    store = 1e-10

    def of(self, scheme: str, sample: pa.Array, digits: int) -> Speed:
        return Speed(1e-10, 0.0) if scheme == "none" else Speed(5e-10, 5e-10)


def test_a_disk_that_is_faster_than_any_codec_gets_values_as_they_are() -> None:
    columns = some_rows().drop_columns(["scores"]).columns
    codecs = {}
    for bytes_per_s in (50e6, 1e15):
        clock = HandClock()
        chooser = Chooser(lambda by=bytes_per_s: by, KnownSpeeds(clock), clock)
        chooser.nodes(columns)
        codecs[bytes_per_s] = {plan.scheme for plan in chooser.plans}
    assert "none" not in codecs[50e6]
    assert codecs[1e15] == {"none"}


def test_values_as_they_are_are_read_in_place() -> None:
    rows = pa.record_batch(
        {"n": pa.array(np.random.default_rng(1).integers(-(2**62), 2**62, 9999))}
    )
    unit = encoded(rows)
    column = punit.decode(unit).column("n")
    assert unit.address <= column.buffers()[1].address < unit.address + unit.size


def test_values_that_outgrow_what_was_assumed_get_another_form_and_a_new_decision() -> None:
    clock = HandClock()
    by = adaptive(clock=clock)
    rng = np.random.default_rng(1)
    small = pa.record_batch({"n": pa.array(rng.integers(0, 50, 20_000))})
    wide = pa.record_batch({"n": pa.array(rng.integers(-(2**63), 2**63 - 1, 20_000))})
    codecs = []
    for batch in (small, small, wide, wide):
        unit = encoded(batch, by)
        assert punit.decode(unit).equals(batch)
        codecs.append(punit.describe_columns(unit, punit.inspect(unit))[0])
        clock.s += 0.6
    assert codecs[0].codec == codecs[1].codec != "none"
    assert "assumed" in codecs[2].reason
    assert codecs[3].codec == "none"
    assert "assumed" not in codecs[3].reason


def test_a_decision_holds_for_an_interval() -> None:
    clock = HandClock()
    chooser = Chooser(lambda: 50e6, Speeds(clock), clock, interval_s=4.0)
    columns = [some_rows().column("key")]
    for _ in range(5):
        chooser.nodes(columns)
        clock.s += 0.9
    assert chooser.decisions == 1
    clock.s += 0.5
    chooser.nodes(columns)
    assert chooser.decisions == 2


def test_digits_that_do_not_matter_are_dropped_where_it_is_said() -> None:
    batch = pa.record_batch({"x": pa.array(np.random.default_rng(1).normal(size=20_000))})
    exact, rounded = encoded(batch), encoded(batch, adaptive(digits=2))
    assert punit.decode(exact).equals(batch)
    assert rounded.size < exact.size / 3
    back = punit.decode(rounded).column("x").to_numpy()
    assert np.abs(back - batch.column("x").to_numpy()).max() <= 0.005 + 1e-12
    odd = pa.record_batch({"x": pa.array([np.nan, np.inf] * 5_000)})
    assert same(punit.decode(encoded(odd, adaptive(digits=2))).column("x"), odd.column("x"))


def test_statistics_say_what_a_sample_is_like() -> None:
    said = statistics(pa.array([3, 3, 3, None, 7, 7, 7]))
    assert (said.rows, said.nulls, said.least, said.most) == (7, 1, 3, 7)
    assert (said.run_length, said.distinct) == (3.0, 2)
    assert statistics(pa.array(["a", "b", "a"])).distinct == 2


# ------------------------------------------------------------------ forged


def payload_of(unit: bytes) -> tuple[int, int]:
    """Where the heads of a unit's columns begin, and how long they are."""
    at = punit.inspect(unit).payload_at
    return at + 8, int(struct.unpack_from("<I", unit, at)[0])


@given(st.data())
@settings(max_examples=examples(150), deadline=None)
def test_forged_heads_raise_and_nothing_else(data: st.DataObject) -> None:
    unit = bytearray(FORGEABLE)
    at, size = payload_of(bytes(unit))
    for _ in range(data.draw(st.integers(1, 3))):
        place = at + data.draw(st.integers(0, size - 1))
        unit[place] = data.draw(st.sampled_from([0, 1, 2, 5, 16, 127, 128, 255]))
    try:
        rows = punit.decode(bytes(unit), is_sound=True)
    except PUnitError:
        return
    rows.validate(full=True)


@given(st.data())
@settings(max_examples=examples(100), deadline=None)
def test_forged_bytes_of_columns_raise_and_nothing_else(data: st.DataObject) -> None:
    unit = bytearray(FORGEABLE)
    at, size = payload_of(bytes(unit))
    place = data.draw(st.integers(at + size, len(unit) - 9))
    unit[place : place + 8] = data.draw(st.binary(min_size=8, max_size=8))[: len(unit) - 8 - place]
    try:
        rows = punit.decode(bytes(unit[: len(FORGEABLE)]), is_sound=True)
    except PUnitError:
        return
    rows.validate(full=True)


def forgeable() -> bytes:
    """A unit with all forms in it."""
    rng = np.random.default_rng(1)
    ints = pa.array(rng.integers(0, 50, 600))
    runs = pa.array(np.repeat(rng.integers(0, 50, 60), 10))
    floats = pa.array(np.repeat(rng.integers(0, 50, 60) / 4, 10))
    texts = pa.array(["a", "bcd", None] * 200)
    columns = {
        **{name: (ints, name) for name in ("pack", "delta.simple8b", "varbyte", "delta2.blocks")},
        **{name: (ints, name) for name in ("snappy", "lz4", "zstd", "dictionary", "none")},
        "runs": (runs, "runs"),
        "xor": (floats, "xor"),
        "scaled": (floats, "scaled.pack"),
        **{f"t_{n}": (texts, n) for n in ("dictionary", "lengths", "lengths.snappy", "none")},
        "list": (pa.array([[1]] * 600), "zstd"),
        "decimal": (ints.cast(pa.decimal128(20, 0)), "pack"),
    }
    trees = [column_node(column, scheme, digits=2) for column, scheme in columns.values()]
    batch = pa.record_batch({name: column for name, (column, _) in columns.items()})
    known = punit._known_schema(batch.schema.serialize().to_pybytes())
    return bytes(punit._frame_columns(known, 600, batch.nbytes, trees, 1).body.to_pybytes())


FORGEABLE = forgeable()


def test_all_forms_of_the_forged_unit_are_read() -> None:
    assert punit.decode(FORGEABLE).num_rows == 600


def test_a_column_larger_than_the_unit_says_is_refused() -> None:
    """Ten bytes that say a gigabyte: a run, a dictionary, and what a library unpacks."""
    known = punit._known_schema(pa.schema({"n": pa.int64()}).serialize().to_pybytes())
    rows = 1 << 26
    run = Node(Form.PACKED, rows, width=0)
    bomb = punit._frame_columns(known, rows, 1_000, [run], 1).body
    with pytest.raises(PUnitDamaged, match="larger than its header says"):
        punit.decode(bomb)
    text = nodes.bytes_node(pa.py_buffer(b"x" * 4_000_000))
    lengths = Node(Form.RAW, 1, pa.py_buffer(struct.pack("<I", 4_000_000)))
    values = Node(Form.LENGTHS, 1, None, (lengths, text))
    codes = Node(Form.PACKED, 1_000_000, width=0)
    known = punit._known_schema(pa.schema({"s": pa.string()}).serialize().to_pybytes())
    tree = Node(Form.DICTIONARY, 1_000_000, None, (codes, values))
    bomb = punit._frame_columns(known, 1_000_000, 8_000_000, [tree], 1).body
    with pytest.raises(PUnitDamaged, match="larger than its header says"):
        punit.decode(bomb)
    packed = pa.compress(bytes(64 << 20), codec="zstd")
    tree = Node(Form.OFFSETS, 0, None, (Node(Form.RAW, 1, pa.py_buffer(bytes(4))),
        Node(Form.ZSTD, 64 << 20, packed, numbers=(64 << 20, 0, 0))))  # fmt: skip
    bomb = punit._frame_columns(known, 0, 100, [tree], 1).body
    with pytest.raises(PUnitDamaged, match="larger than its header says"):
        punit.decode(bomb)
