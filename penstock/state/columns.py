"""The schema of a keyed state, and how its columns become 64-bit words and Arrow again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.arrays import fixed_column, is_text, storage, validity_of, values_of
from penstock.errors import StateError
from penstock.loops import Words
from penstock.state import tables
from penstock.state.strings import StringView, Validity

PANE_NAME = "__pane"
PANE_LOWEST = -(1 << 63)
HASH_NAME = "__hash"
CHANGE_NAME = "__change"
RESERVED_NAMES = frozenset({PANE_NAME, HASH_NAME, CHANGE_NAME})
COLUMNS_MAX = 62  # nulls of keys and of values are the bits of one word each
DECIMAL_DIGITS_MAX = 18

ArrowMaker = Callable[[Words, Validity, StringView], pa.Array]

Ranks = Callable[[Words], Words]  # string numbers as words whose order is that of the strings

_WORD_BITS = 63
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


class MergeRule(StrEnum):
    """How a value joins a row that is already there."""

    SUM = "sum"  # null + x = x; an integer or decimal that leaves its type's range: StateOverflow
    COUNT = "count"  # as sum, but a new row starts at 0 instead of null
    MIN = "min"  # nulls do not count; NaN is the greatest value
    MAX = "max"
    AND = "and"  # bit by bit; nulls do not count
    OR = "or"
    XOR = "xor"
    MEAN = "mean"  # by a column with the number of values
    MOMENT_2 = "moment 2"  # sums of powers of distances from the mean, by the number and the mean,
    MOMENT_3 = "moment 3"  # and by the lower moments
    MOMENT_4 = "moment 4"
    COMOMENT = "comoment"  # of two: by the number and the means of both
    OF_LEAST = "of least"  # the value that came last with the least value of another column
    OF_GREATEST = "of greatest"
    FIRST = "first"  # the value that came with the row's first merge, null or not
    LAST = "last"  # the value that came with the row's last merge, null or not


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """One part of a key. Null is a key value of its own; NaN equals NaN and -0.0 equals 0.0."""

    name: str
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class ValueColumn:
    """One value of a row, and how it merges: some rules read other columns, which come later."""

    name: str
    type: pa.DataType
    rule: MergeRule
    reads: tuple[str, ...] = ()


@dataclass(frozen=True)
class StateSchema:
    """The columns of a state. With no key columns there is one global group per pane."""

    keys: tuple[KeyColumn, ...]
    values: tuple[ValueColumn, ...]

    def __post_init__(self) -> None:
        columns: list[KeyColumn | ValueColumn] = [*self.keys, *self.values]
        names = [column.name for column in columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice or RESERVED_NAMES & set(names):
            raise StateError(
                f"state columns {names}: each name may be used once, and none of "
                f"{sorted(RESERVED_NAMES)}",
                columns=names,
            )
        if len(self.keys) > COLUMNS_MAX or len(self.values) > COLUMNS_MAX:
            raise StateError(
                f"a state holds at most {COLUMNS_MAX} key and {COLUMNS_MAX} value columns, "
                f"not {len(self.keys)} and {len(self.values)}"
            )
        for column in columns:
            _check_type(column.name, column.type)
        rule_codes(self.values)

    @cached_property
    def row_schema(self) -> pa.Schema:
        """Keys, pane, values: what operators get."""
        return pa.schema([*self._key_fields(), _PANE_FIELD, *self._value_fields()])

    @cached_property
    def snapshot_schema(self) -> pa.Schema:
        """Keys, pane, hash, values: what checkpoints hold."""
        return pa.schema([*self._key_fields(), _PANE_FIELD, _HASH_FIELD, *self._value_fields()])

    @cached_property
    def change_schema(self) -> pa.Schema:
        """As the snapshot, and what the change is: what the change log holds."""
        return self.snapshot_schema.append(pa.field(CHANGE_NAME, pa.int8(), nullable=False))

    def _key_fields(self) -> list[pa.Field]:
        return [pa.field(column.name, column.type) for column in self.keys]

    def _value_fields(self) -> list[pa.Field]:
        return [pa.field(column.name, column.type) for column in self.values]


_PANE_FIELD = pa.field(PANE_NAME, pa.int64(), nullable=False)
_HASH_FIELD = pa.field(HASH_NAME, pa.uint32(), nullable=False)


def _check_type(name: str, kind: pa.DataType) -> None:
    if pa.types.is_decimal128(kind):
        if 1 <= kind.precision <= DECIMAL_DIGITS_MAX:
            return
    elif is_text(kind) or pa.types.is_boolean(kind) or storage(kind) is not None:
        return
    raise StateError(
        f"state column {name!r} has type {kind}: a state holds integers, floats, booleans, "
        f"decimals of at most {DECIMAL_DIGITS_MAX} digits, dates, times, timestamps, strings "
        "and binaries",
        column=name,
        type=str(kind),
    )


def rule_codes(columns: Sequence[ValueColumn]) -> list[int]:
    """Return the loops' numbers for the columns' rules: with the places of what they read."""
    places = {column.name: at for at, column in enumerate(columns)}
    codes = []
    for at, column in enumerate(columns):
        code = _rule_code(column)
        for turn, name in enumerate(column.reads, start=1):
            if places[name] <= at:
                raise StateError(
                    f"state column {column.name!r} is merged by {name!r}, which has to come later",
                    column=column.name,
                )
            code |= places[name] << turn * tables.RULE_BITS
        codes.append(code)
    return codes


_OF_ANY_TYPE = {
    MergeRule.FIRST: tables.FIRST,
    MergeRule.LAST: tables.LAST,
    MergeRule.OF_LEAST: tables.OF_LEAST,
    MergeRule.OF_GREATEST: tables.OF_GREATEST,
}
_OF_BIGINT = {
    MergeRule.AND: tables.AND_INT,
    MergeRule.OR: tables.OR_INT,
    MergeRule.XOR: tables.XOR_INT,
}
_OF_DOUBLE = {
    MergeRule.MEAN: tables.MEAN,
    MergeRule.MOMENT_2: tables.MOMENT_2,
    MergeRule.MOMENT_3: tables.MOMENT_3,
    MergeRule.MOMENT_4: tables.MOMENT_4,
    MergeRule.COMOMENT: tables.COMOMENT,
}


def _rule_code(column: ValueColumn) -> int:
    """Return the loops' number for a column's rule and type; raise if they do not go together."""
    kind, rule = column.type, column.rule
    if rule in _OF_ANY_TYPE:
        return _OF_ANY_TYPE[rule]
    for known, needed in ((_OF_BIGINT, pa.int64()), (_OF_DOUBLE, pa.float64())):
        if rule in known and kind != needed:
            raise StateError(
                f"state column {column.name!r}: {rule} needs {needed}, not {kind}",
                column=column.name,
                type=str(kind),
            )
    if rule in _OF_BIGINT or rule in _OF_DOUBLE:
        return (_OF_BIGINT | _OF_DOUBLE)[rule]
    if rule in (MergeRule.SUM, MergeRule.COUNT):
        if pa.types.is_float64(kind) and rule is MergeRule.SUM:
            return tables.SUM_FLOAT
        if pa.types.is_signed_integer(kind):
            return tables.SUM_INT
        if pa.types.is_decimal(kind) and rule is MergeRule.SUM:
            return tables.SUM_INT
        raise StateError(
            f"state column {column.name!r}: {rule} needs a signed integer"
            f"{', decimal or double' if rule is MergeRule.SUM else ''} column, not {kind}",
            column=column.name,
            type=str(kind),
        )
    lowest = rule is MergeRule.MIN
    if is_text(kind):
        return tables.MIN_BYTES if lowest else tables.MAX_BYTES
    if pa.types.is_floating(kind):
        return tables.MIN_FLOAT if lowest else tables.MAX_FLOAT
    if pa.types.is_uint64(kind):
        raise StateError(
            f"state column {column.name!r}: {rule} of unsigned 64-bit values is not supported; "
            "cast the column to decimal or bigint",
            column=column.name,
        )
    return tables.MIN_INT if lowest else tables.MAX_INT


def value_range(kind: pa.DataType) -> tuple[int, int]:
    """Return the lowest and highest word that a column of this type can hold."""
    if pa.types.is_decimal(kind):
        return 1 - 10**kind.precision, 10**kind.precision - 1
    if pa.types.is_signed_integer(kind):
        return -(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1
    return _INT64_MIN, _INT64_MAX


def to_words(array: pa.Array, normalise: bool) -> Words:
    """Return a fixed-width column as words, 0 where it is null; keys `normalise` their floats."""
    count = len(array)
    if count == 0:
        return np.empty(0, np.int64)
    words = _plain_words(array, normalise)
    if array.null_count:
        words = np.where(validity_of(array), words, 0)
    return words


def _plain_words(array: pa.Array, normalise: bool) -> Words:
    numbers = values_of(array)
    if numbers.dtype.kind != "f":
        is_word = numbers.dtype.itemsize == 8
        return numbers.view(np.int64) if is_word else numbers.astype(np.int64)
    wide = numbers.astype(np.float64, copy=False)
    if normalise:
        wide = np.where(np.isnan(wide), np.nan, wide + 0.0)  # -0.0 + 0.0 is 0.0
    return wide.view(np.int64)


def arrow_maker(kind: pa.DataType) -> ArrowMaker:
    """Return what turns words into a fixed-width column: the type is looked at only once."""
    plain = storage(kind)
    is_float = plain is not None and plain.kind == "f"
    return partial(_column_from, kind, is_float)


def _column_from(
    kind: pa.DataType, is_float: bool, words: Words, valid: Validity, strings: StringView
) -> pa.Array:
    return fixed_column(kind, words.view(np.float64) if is_float else words, valid)


def _strings_from(
    kind: pa.DataType, words: Words, valid: Validity, strings: StringView
) -> pa.Array:
    return strings.to_arrow(words, valid, kind)


def bit_words(columns: Sequence[pa.Array], count: int, when_valid: bool) -> Words:
    """Return one word per row: bit i says that column i is not null (or, else, that it is)."""
    bits = np.full(count, (1 << len(columns)) - 1 if when_valid else 0, np.int64)
    for index, column in enumerate(columns):
        if column.null_count:
            bits ^= np.where(validity_of(column), 0, np.int64(1) << index)
    return bits


class RowsAsArrow:
    """Turns raw rows into Arrow columns. Holds a schema only; safe to use from any thread."""

    def __init__(self, schema: StateSchema) -> None:
        self.schema = schema
        self._first_value = tables.KEYS + len(schema.keys)
        self._all_valid = (1 << len(schema.values)) - 1
        self._key_makers = [_maker(key.type) for key in schema.keys]
        self._value_makers = [_maker(value.type) for value in schema.values]

    def keys(self, rows: Words, strings: StringView) -> list[pa.Array]:
        nulls = rows[:, tables.NULLS]
        whole = not nulls.any()
        return [
            make(
                rows[:, tables.KEYS + index],
                None if whole else nulls >> index & 1 == 0,
                strings,
            )
            for index, make in enumerate(self._key_makers)
        ]

    def values(self, rows: Words, strings: StringView) -> list[pa.Array]:
        valid = rows[:, tables.VALID]
        whole = bool((valid == self._all_valid).all())
        return [
            make(
                rows[:, self._first_value + index],
                None if whole else valid >> index & 1 == 1,
                strings,
            )
            for index, make in enumerate(self._value_makers)
        ]

    def rows(self, rows: Words, strings: StringView) -> pa.RecordBatch:
        """Keys, pane, values."""
        columns = [*self.keys(rows, strings), _panes(rows), *self.values(rows, strings)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema.row_schema)

    def snapshot(self, rows: Words, strings: StringView) -> pa.RecordBatch:
        """Keys, pane, hash, values."""
        columns = self._snapshot_columns(rows, strings)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema.snapshot_schema)

    def changes(self, rows: Words, kinds: NDArray[np.int8], strings: StringView) -> pa.RecordBatch:
        """Keys, pane, hash, values, kind of change."""
        columns = [*self._snapshot_columns(rows, strings), fixed_column(pa.int8(), kinds)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema.change_schema)

    def _snapshot_columns(self, rows: Words, strings: StringView) -> list[pa.Array]:
        hashes = (rows[:, tables.META] & tables.HASH_MASK).astype(np.uint32)
        return [
            *self.keys(rows, strings),
            _panes(rows),
            fixed_column(pa.uint32(), hashes),
            *self.values(rows, strings),
        ]

    def order(
        self, words_of: Callable[[int], Words], rows: int, ranks: Ranks, pane_first: bool = True
    ) -> NDArray[np.intp] | None:
        """Return the order by pane, then key, or by key, then pane; None if the rows have it.

        It asks for words by column. It is the same for the same rows, however they came here.
        """
        if rows < 2:
            return None
        nulls = words_of(tables.NULLS)
        some_null = bool(nulls.any())
        levels: list[Words] = []
        for index, key in enumerate(self.schema.keys):
            if some_null:
                levels.append(nulls >> index & 1 ^ 1)
            levels.append(_sortable(words_of(tables.KEYS + index), key.type, ranks))
        levels.insert(0 if pane_first else len(levels), words_of(tables.PANE))
        return _ordered(levels)


def _panes(rows: Words) -> pa.Array:
    return fixed_column(pa.int64(), rows[:, tables.PANE])


def _maker(kind: pa.DataType) -> ArrowMaker:
    return partial(_strings_from, kind) if is_text(kind) else arrow_maker(kind)


def _sortable(words: Words, kind: pa.DataType, ranks: Ranks) -> Words:
    """Words whose order as integers is the order of the values."""
    if is_text(kind):
        return ranks(words)
    words = np.ascontiguousarray(words)
    if pa.types.is_floating(kind):  # the bits of negative floats run backwards
        return np.where(words < 0, words ^ np.int64(_INT64_MAX), words)
    if pa.types.is_uint64(kind):
        return words ^ np.int64(_INT64_MIN)
    return words


def _ordered(levels: list[Words]) -> NDArray[np.intp] | None:
    """The order by the first level, then the next; None if all are alike. Nothing ties."""
    packed: list[Words] = []
    room = 0
    for level in levels:
        low, high = int(level.min()), int(level.max())
        if low == high:
            continue
        bits = (high - low).bit_length()
        if packed and bits <= room:  # one sort of two levels in one word beats a sort of each
            packed[-1] = (packed[-1] << bits) | (level - low)
            room -= bits
        elif bits < _WORD_BITS:
            packed.append(level - low)
            room = _WORD_BITS - bits
        else:
            packed.append(level)
            room = 0
    if len(packed) > 1:
        return np.lexsort(packed[::-1])
    return np.argsort(packed[0]) if packed else None


def check_schema(state: str, batch: pa.RecordBatch, wanted: pa.Schema) -> None:
    """What is to be applied to a state, or restored into it, has the state's columns."""
    if batch.schema.names != wanted.names or batch.schema.types != wanted.types:
        own, others = (
            ", ".join(f"{field.name} {field.type}" for field in schema)
            for schema in (wanted, batch.schema)
        )
        raise StateError(
            f"state {state!r} has columns {own}; what is to be applied has {others}", state=state
        )
