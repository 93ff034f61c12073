"""Column types: what may be a key or a value, how keys compare, how values merge."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import StateError, StateOverflow
from penstock.state.columns import COLUMNS_MAX, KeyColumn, MergeRule, StateSchema, ValueColumn
from penstock.state.keyed import KeyedState
from tests.state.model import restored, shown, snapshot_of, window_of

MOMENT = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)

# Ascending values of each type that a key can have.
SAMPLES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [False, True]),
    (pa.int8(), [-128, 0, 127]),
    (pa.int16(), [-32768, 7, 32767]),
    (pa.int32(), [-(1 << 31), 0, (1 << 31) - 1]),
    (pa.int64(), [-(1 << 63), -1, 0, (1 << 63) - 1]),
    (pa.uint8(), [0, 255]),
    (pa.uint32(), [0, (1 << 32) - 1]),
    (pa.uint64(), [0, 1 << 63, (1 << 64) - 1]),
    (pa.float32(), [-math.inf, -1.5, 0.0, 1.5, math.inf]),
    (pa.float64(), [-math.inf, -1e300, -5e-324, 0.0, 5e-324, 0.1, math.inf]),
    (pa.decimal128(18, 4), [Decimal("-99999999999999.9999"), Decimal("0.0001"), Decimal(7)]),
    (pa.decimal128(5, 0), [Decimal(-99999), Decimal(0), Decimal(99999)]),
    (pa.date32(), [date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)]),
    (pa.time64("us"), [time(0), time(23, 59, 59, 999999)]),
    (pa.timestamp("us", tz="UTC"), [MOMENT - timedelta(days=99999), MOMENT]),
    (pa.timestamp("us"), [datetime(1900, 1, 1), datetime(2026, 1, 1)]),
    (pa.duration("us"), [timedelta(seconds=-1), timedelta(0), timedelta(days=3)]),
    (pa.string(), ["", "a", "aa", "b", "é", "日本"]),
    (pa.large_string(), ["", "a", "z" * 300]),
    (pa.binary(), [b"", b"\x00", b"\x00\x01", b"\xff"]),
    (pa.large_binary(), [b"\x00", b"\xff\xfe"]),
]
KINDS = [str(kind) for kind, _ in SAMPLES]


def one_key(kind: pa.DataType, *values: ValueColumn) -> KeyedState:
    return KeyedState("state", StateSchema((KeyColumn("key", kind),), values))


def one_value(kind: pa.DataType, rule: MergeRule) -> KeyedState:
    return KeyedState("state", StateSchema((), (ValueColumn("value", kind, rule),)))


def merged(kind: pa.DataType, rule: MergeRule, values: list[Any]) -> Any:
    """The one value of the one global group, merged one by one and all at once alike."""
    together, single = one_value(kind, rule), one_value(kind, rule)
    together.merge([], None, [pa.array(values, kind)])
    for value in values:
        single.merge([], None, [pa.array([value], kind)])
    results = [state.scan().column("value").to_pylist() for state in (together, single)]
    assert repr(results[0]) == repr(results[1])
    return results[0][0]


@pytest.mark.parametrize(("kind", "samples"), SAMPLES, ids=KINDS)
def test_every_type_is_a_key_and_comes_back_in_order(kind: pa.DataType, samples: list[Any]) -> None:
    state = one_key(kind, ValueColumn("rows", pa.int64(), MergeRule.COUNT))
    keys = [*reversed(samples), None, *samples, None]
    # A slice: offsets into shared buffers must be honoured.
    padded = pa.array([samples[0], *keys, samples[-1]], kind).slice(1, len(keys))
    state.merge([padded], None, [pa.array([1] * len(keys))])
    scanned = state.scan()
    assert scanned.schema.field("key").type == kind
    assert scanned.column("key").to_pylist() == [None, *samples]
    assert scanned.column("rows").to_pylist() == [2] * (len(samples) + 1)
    scanned.validate(full=True)
    state.take_changes()
    assert restored(state, snapshot_of(state)).scan().equals(scanned)


@pytest.mark.parametrize(("kind", "samples"), SAMPLES, ids=KINDS)
@pytest.mark.parametrize("rule", [MergeRule.MIN, MergeRule.MAX, MergeRule.FIRST, MergeRule.LAST])
def test_every_type_is_a_value(kind: pa.DataType, samples: list[Any], rule: MergeRule) -> None:
    if pa.types.is_uint64(kind) and rule in (MergeRule.MIN, MergeRule.MAX):
        with pytest.raises(StateError, match="unsigned"):
            one_value(kind, rule)
        return
    middle = samples[len(samples) // 2]
    given = [middle, samples[0], samples[-1], middle]
    expected = {
        MergeRule.MIN: samples[0],
        MergeRule.MAX: samples[-1],
        MergeRule.FIRST: middle,
        MergeRule.LAST: middle,
    }
    assert merged(kind, rule, given) == expected[rule]
    state = one_value(kind, rule)
    state.merge([], None, [pa.array([None, samples[0]], kind).slice(0, 1)])
    assert state.scan().column("value").to_pylist() == [None]


def test_first_and_last_keep_nulls_and_the_others_ignore_them() -> None:
    assert merged(pa.int64(), MergeRule.FIRST, [None, 1, 2]) is None
    assert merged(pa.int64(), MergeRule.LAST, [1, 2, None]) is None
    assert merged(pa.int64(), MergeRule.MIN, [None, 5, None, 3, None]) == 3
    assert merged(pa.int64(), MergeRule.SUM, [None, None]) is None
    assert merged(pa.int64(), MergeRule.SUM, [None, 4, None]) == 4
    assert merged(pa.int64(), MergeRule.COUNT, [None, None]) == 0


def test_nan_is_the_greatest_float() -> None:
    nan = math.nan
    assert merged(pa.float64(), MergeRule.MIN, [nan, 2.0, math.inf]) == 2.0
    assert math.isnan(merged(pa.float64(), MergeRule.MAX, [1.0, nan, math.inf]))
    assert math.isnan(merged(pa.float64(), MergeRule.MIN, [nan, nan]))


def test_float_keys_group_as_spark_does() -> None:
    state = one_key(pa.float64(), ValueColumn("rows", pa.int64(), MergeRule.COUNT))
    other_nan = np.array([0xFFF8000000000123], np.uint64).view(np.float64)[0]
    keys = np.array([0.0, -0.0, math.nan, other_nan, 1.0])
    state.merge([pa.array(keys)], None, [pa.array([1] * 5)])
    rows = state.scan()
    assert repr(rows.column("key").to_pylist()) == "[0.0, 1.0, nan]"
    assert rows.column("rows").to_pylist() == [2, 1, 2]


def test_dictionary_encoded_strings_are_keys_too() -> None:
    state = one_key(pa.string(), ValueColumn("rows", pa.int64(), MergeRule.COUNT))
    plain = pa.array(["b", None, "a", "b"])
    for keys in (plain, plain.dictionary_encode(), pa.chunked_array([plain])):
        state.merge([keys], None, [pa.array([1] * 4)])
    with_null = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["a", None]))
    state.merge([with_null], None, [pa.array([1, 1, 1])])
    assert state.scan().column("key").to_pylist() == [None, "a", "b"]
    assert state.scan().column("rows").to_pylist() == [5, 4, 6]


def test_no_key_columns_is_one_group_per_pane() -> None:
    state = one_value(pa.int64(), MergeRule.SUM)
    state.merge([], np.array([3, 1, 3]), [pa.array([1, 2, 4])])
    assert shown(state.scan()) == [{"__pane": 1, "value": 2}, {"__pane": 3, "value": 5}]
    assert shown(window_of(state, 0, 9)) == [{"__pane": 0, "value": 7}]


def test_a_state_without_values_remembers_keys() -> None:
    state = one_key(pa.string())
    state.merge([pa.array(["x", "y", "x"])], None, [])
    assert state.scan().column("key").to_pylist() == ["x", "y"]
    assert state.get([pa.array(["y", "z"])])[1].tolist() == [True, False]


@pytest.mark.parametrize(
    ("kind", "highest", "one"),
    [
        (pa.int64(), (1 << 63) - 1, 1),
        (pa.int32(), (1 << 31) - 1, 1),
        (pa.decimal128(18, 2), Decimal("9999999999999999.99"), Decimal("0.01")),
        (pa.decimal128(3, 0), Decimal(999), Decimal(1)),
    ],
    ids=str,
)
def test_a_sum_that_overflows_changes_nothing(kind: pa.DataType, highest: Any, one: Any) -> None:
    value = ValueColumn("value", kind, MergeRule.SUM)
    state = one_key(pa.string(), value, ValueColumn("last", pa.string(), MergeRule.LAST))
    state.merge([pa.array(["k"])], np.array([7]), [pa.array([highest], kind), pa.array(["old"])])
    before = state.scan()
    state.take_changes()
    memory = state.memory_bytes()
    words = [pa.array(["new", "k", "other"]), pa.array(["s1", "s2", "s3"])]
    with pytest.raises(StateOverflow, match=r"key='k', pane=7") as raised:
        state.merge([words[0]], np.array([7, 7, 7]), [pa.array([one] * 3, kind), words[1]])
    assert raised.value.details["column"] == "value"
    assert raised.value.details["row"] == 1
    assert state.scan().equals(before)
    assert state.take_changes() is None
    assert state.memory_bytes() <= memory * 2
    state.merge(  # down and up again within one batch is fine
        [pa.array(["k", "k"])],
        np.array([7, 7]),
        [pa.array([-one, one], kind), pa.array(["a", "b"])],
    )
    assert state.scan().column("value").to_pylist() == [highest]
    assert state.scan().column("last").to_pylist() == ["b"]


def test_the_lowest_integer_can_be_reached_but_not_passed() -> None:
    state = one_value(pa.int64(), MergeRule.SUM)
    state.merge([], None, [pa.array([-(1 << 62), -(1 << 62)])])
    assert state.scan().column("value").to_pylist() == [-(1 << 63)]
    with pytest.raises(StateOverflow):
        state.merge([], None, [pa.array([-1])])
    with pytest.raises(StateOverflow):
        one_value(pa.int64(), MergeRule.SUM).merge([], None, [pa.array([1 << 62, 1 << 62])])


def test_a_window_that_overflows_says_so() -> None:
    state = one_value(pa.int64(), MergeRule.SUM)
    state.merge([], np.array([0, 1]), [pa.array([1 << 62, 1 << 62])])
    with pytest.raises(StateOverflow, match="pane=0"):
        window_of(state, 0, 1)
    assert len(state) == 2


@pytest.mark.parametrize(
    "schema",
    [
        lambda: StateSchema((KeyColumn("a", pa.list_(pa.int64())),), ()),
        lambda: StateSchema((KeyColumn("a", pa.decimal128(19, 0)),), ()),
        lambda: StateSchema((KeyColumn("a", pa.decimal256(9, 0)),), ()),
        lambda: StateSchema((KeyColumn("__pane", pa.int64()),), ()),
        lambda: StateSchema(
            (KeyColumn("a", pa.int64()),), (ValueColumn("a", pa.int64(), MergeRule.SUM),)
        ),
        lambda: StateSchema((), (ValueColumn("a", pa.string(), MergeRule.SUM),)),
        lambda: StateSchema((), (ValueColumn("a", pa.float64(), MergeRule.COUNT),)),
        lambda: StateSchema((), (ValueColumn("a", pa.uint64(), MergeRule.SUM),)),
        lambda: StateSchema(
            tuple(KeyColumn(f"k{at}", pa.int64()) for at in range(COLUMNS_MAX + 1)), ()
        ),
    ],
)
def test_schemas_that_cannot_be_are_refused(schema: Any) -> None:
    with pytest.raises(StateError):
        schema()


def test_as_many_columns_as_allowed() -> None:
    schema = StateSchema(
        tuple(KeyColumn(f"k{at}", pa.int64()) for at in range(COLUMNS_MAX)),
        tuple(ValueColumn(f"v{at}", pa.int64(), MergeRule.LAST) for at in range(COLUMNS_MAX)),
    )
    state = KeyedState("wide", schema)
    key = [None if at % 3 == 0 else at for at in range(COLUMNS_MAX)]
    columns = [pa.array([part, None], pa.int64()) for part in key]
    state.merge(columns, None, columns)
    rows = shown(state.scan())
    assert [rows[1][f"k{at}"] for at in range(COLUMNS_MAX)] == key
    assert [rows[1][f"v{at}"] for at in range(COLUMNS_MAX)] == key
    assert set(rows[0].values()) == {None, 0}


def test_columns_that_do_not_fit_are_refused() -> None:
    state = one_key(pa.int64(), ValueColumn("v", pa.int64(), MergeRule.SUM))
    good = pa.array([1, 2])
    with pytest.raises(StateError, match="type"):
        state.merge([pa.array([1, 2], pa.int32())], None, [good])
    with pytest.raises(StateError, match="type"):
        state.merge([good], None, [pa.array([1])])
    with pytest.raises(StateError, match="arrays"):
        state.merge([good], None, [])
    with pytest.raises(StateError, match="rows"):
        state.merge([good], None, [good], np.zeros(3, np.uint32))
    with pytest.raises(StateError, match="columns"):
        state.apply_changes(pa.record_batch({"a": good}))
    with pytest.raises(StateError, match="columns"):
        state.restore([pa.record_batch({"a": good})])
    with pytest.raises(StateError, match="string columns"):
        one_key(pa.string()).merge_words(np.zeros((1, 1), np.int64), None, None, [])
    with pytest.raises(StateError, match="per row"):
        state.merge_words(np.zeros((2, 2), np.int64), None, None, [np.zeros(2, np.int64)])
    assert len(state) == 0


def test_words_and_columns_are_the_same_merge() -> None:
    schema = StateSchema(
        (KeyColumn("a", pa.int64()), KeyColumn("b", pa.float64())),
        (
            ValueColumn("total", pa.int64(), MergeRule.SUM),
            ValueColumn("peak", pa.float64(), MergeRule.MAX),
        ),
    )
    rng = np.random.default_rng(5)
    by_words, by_columns = KeyedState("words", schema), KeyedState("columns", schema)
    for _ in range(5):
        numbers, halves = rng.integers(0, 9, 200), rng.integers(0, 5, 200) / 2
        known, panes = rng.random(200) < 0.8, rng.integers(0, 4, 200)
        totals, peaks = rng.integers(-9, 9, 200), rng.random(200)
        given, hashes = rng.random(200) < 0.7, rng.integers(0, 1 << 32, 200, np.uint32)
        words = np.stack([numbers, np.where(known, halves, 0.0).view(np.int64)], axis=1)
        by_words.merge_words(
            words,
            np.where(known, 0, 2),
            panes,
            [totals, peaks],
            np.where(given, 3, 1),
            hashes,
        )
        by_columns.merge(
            [pa.array(numbers), pa.array(halves, mask=~known)],
            panes,
            [pa.array(totals), pa.array(peaks, mask=~given)],
            hashes,
        )
    assert by_words.scan().equals(by_columns.scan())
    ready = np.stack([totals, peaks.view(np.int64)], axis=1)
    by_words.merge_words(words, None, None, ready)  # null bits, panes, validity, hashes: none
    assert by_words.rows(0, 0).num_rows >= by_columns.rows(0, 0).num_rows
