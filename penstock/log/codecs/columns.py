"""Columns as nodes, and back: which forms a type can have, nulls, texts, and what is nested.

Values under a null have no meaning. A form that saves bytes leaves them out; one that is read in
place has them as they are. What Arrow says about a column that was read, the unit's reader asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.arrays import (
    Mask,
    Vector,
    decimal_column,
    decimal_words,
    is_large,
    is_text,
    packed,
    storage,
    text_column,
    texts_of,
    validity_of,
    values_of,
)
from penstock.log.codecs.kernels import DELTA, DELTA2, VALUES, XOR
from penstock.log.codecs.nodes import (
    GENERIC,
    Budget,
    Form,
    Known,
    Node,
    Unfit,
    bytes_node,
    damaged,
    read_bytes,
    read_words,
    words_node,
)

MessageReader = Callable[[pa.Buffer, pa.Schema, int], pa.RecordBatch]
CODED_TYPES = tuple(pa.dictionary(pa.int32(), each) for each in (pa.string(), pa.binary()))
_DIGITS_MAX = 15
_EXACT = float(1 << 53)  # whole numbers that a double holds
_LENGTH_BYTES = 4
_OF_ROWS = frozenset({Form.MESSAGE, Form.OFFSETS, Form.LENGTHS, Form.DICTIONARY, Form.NARROW})
_DISTINCT_SHARE = 2  # a dictionary has at most one value for so many rows


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a column is written: an outer form, and how the numbers or bytes within it are."""

    outer: Form | None = None
    form: Form = Form.RAW
    order: int = VALUES


_ORDERS = {"": VALUES, "delta.": DELTA, "delta2.": DELTA2}
_LEAVES = {
    "pack": Form.PACKED,
    "simple8b": Form.SIMPLE8B,
    "varbyte": Form.VARIABLE_BYTES,
    "blocks": Form.BLOCKS,
}
_GENERIC = {name: form for form, name in GENERIC.items()}
_OF_WORDS = {
    prefix + leaf: Scheme(None, form, order)
    for prefix, order in _ORDERS.items()
    for leaf, form in _LEAVES.items()
}
SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        "none": Scheme(),
        **_OF_WORDS,  # base-delta, delta, delta of delta; then null suppression and the others
        "xor": Scheme(None, Form.BLOCKS, XOR),
        "runs": Scheme(Form.RUNS),
        "dictionary": Scheme(Form.DICTIONARY),
        "lengths": Scheme(Form.LENGTHS),
        **{f"lengths.{name}": Scheme(Form.LENGTHS, form) for name, form in _GENERIC.items()},
        **{f"scaled.{name}": Scheme(Form.SCALED, s.form, s.order) for name, s in _OF_WORDS.items()},
        **{name: Scheme(None, form) for name, form in _GENERIC.items()},
    }
)


def schemes_for(kind: pa.DataType) -> tuple[str, ...]:
    """The schemes that columns of a type can have, without lossy ones."""
    generic = ("none", *_GENERIC)
    if kind in CODED_TYPES:
        return ("dictionary",)
    if is_text(kind):
        return (*generic, "dictionary", "lengths", *(f"lengths.{name}" for name in _GENERIC))
    if kind.id == pa.lib.Type_BOOL:
        return (*generic, "runs")
    if kind.id == pa.lib.Type_DECIMAL128:
        return (*generic, *_OF_WORDS, "runs", "dictionary")
    if storage(kind) is None:
        return generic
    if pa.types.is_floating(kind):
        return (*generic, "xor", "runs", "dictionary")
    return (*generic, *_OF_WORDS, "runs", "dictionary")


# --- writing --------------------------------------------------------------------------------------


def column_node(column: pa.Array, scheme: str, known: Known | None = None, digits: int = 0) -> Node:
    """A column by a scheme for its type; Unfit if its values cannot have it or gain nothing.

    `digits` behind the point are kept by the schemes that begin with `scaled`.
    """
    how = SCHEMES[scheme]
    in_place = scheme == "none" or (how.outer is None and how.form in GENERIC)
    if column.null_count and not _is_whole(column.type):
        valid = validity_of(column)
        bits = bits_node(valid)
        if in_place:
            return Node(Form.PLACED, len(column), None, (bits, _values(column, how, None, 0)))
        dense = column.drop_null()
        return Node(Form.DENSE, len(column), None, (bits, _values(dense, how, known, digits)))
    return _values(column, how, known, digits)


def _is_whole(kind: pa.DataType) -> bool:
    """Whether Arrow writes the column, with its nulls."""
    of_numbers = storage(kind) is not None or kind.id in (
        pa.lib.Type_BOOL,
        pa.lib.Type_DECIMAL128,
    )
    return not (of_numbers or is_text(kind) or kind in CODED_TYPES)


def bits_node(flags: Mask) -> Node:
    """Flags as bits, in runs of bytes where these are few."""
    bits = np.packbits(flags, bitorder="little")
    try:
        return _runs_node(bits, runs_share=16)
    except Unfit:
        return bytes_node(pa.py_buffer(bits))


def _values(column: pa.Array, how: Scheme, known: Known | None, digits: int) -> Node:
    kind = column.type
    if kind in CODED_TYPES:
        return _coded_node(column.indices, column.dictionary)
    if is_text(kind):
        return _text_node(column, how)
    if _is_whole(kind):
        message = pa.record_batch([column], ["c"]).serialize()
        return Node(Form.MESSAGE, len(column), None, (bytes_node(message, how.form),))
    if kind.id == pa.lib.Type_BOOL:
        return _numbers_node(np.packbits(values_of(column), bitorder="little"), how, known)
    if kind.id == pa.lib.Type_DECIMAL128:
        return _decimal_node(decimal_words(column), how, known)
    values = values_of(column)
    if how.outer is Form.SCALED:
        return _scaled_node(values, how, known, digits)
    if values.dtype.kind == "f":
        values = values.view(f"u{values.itemsize}")
    return _numbers_node(values, how, known)


def _numbers_node(values: Vector, how: Scheme, known: Known | None) -> Node:
    if how.outer is Form.RUNS:
        return _runs_node(values)
    if how.outer is Form.DICTIONARY:
        coded = pa.array(values).dictionary_encode()
        return _coded_node(coded.indices, coded.dictionary)
    if how.form is Form.RAW or how.form in GENERIC:
        return bytes_node(pa.py_buffer(np.ascontiguousarray(values)), how.form, values.size)
    return words_node(np.ascontiguousarray(values), how.form, how.order, known)


def _runs_node(values: Vector, runs_share: int = 2) -> Node:
    """Values that follow each other in runs; Unfit if there are many."""
    changes = np.flatnonzero(values[1:] != values[:-1])
    if values.size == 0 or (changes.size + 1) * runs_share > values.size:
        raise Unfit
    begins = np.append(0, changes + 1)
    lengths = np.diff(begins, append=values.size).astype(np.uint32)
    return Node(Form.RUNS, values.size, None, (_small_node(values[begins]), _small_node(lengths)))


def _small_node(values: Vector) -> Node:
    """Numbers of another form, in as few bits as the widest needs."""
    try:
        return words_node(np.ascontiguousarray(values), Form.PACKED, VALUES)
    except Unfit:
        return bytes_node(pa.py_buffer(np.ascontiguousarray(values)), count=values.size)


def _coded_node(codes: pa.Array, values: pa.Array) -> Node:
    count, distinct = len(codes), len(values)
    if distinct * _DISTINCT_SHARE > count:
        raise Unfit
    known = Known(0, max(distinct - 1, 0).bit_length())
    numbers = _text_node(values, SCHEMES["lengths"]) if is_text(values.type) else None
    if numbers is None:
        numbers = _small_node(values_of(values))
    return Node(
        Form.DICTIONARY,
        count,
        None,
        (words_node(values_of(codes).view(np.uint32), Form.PACKED, VALUES, known), numbers),
    )


def _text_node(column: pa.Array, how: Scheme) -> Node:
    if how.outer is Form.DICTIONARY:
        coded = column.dictionary_encode()
        return _coded_node(coded.indices, coded.dictionary)
    begins, data = texts_of(column)
    content = pa.py_buffer(data[begins[0] : begins[-1]])
    if how.outer is Form.LENGTHS:
        lengths = np.diff(begins)
        if lengths.size and int(lengths.max()) >> 32:
            raise Unfit
        children = (_small_node(lengths.astype(np.uint32)), bytes_node(content, how.form))
        return Node(Form.LENGTHS, len(column), None, children)
    offsets = np.ascontiguousarray(begins - begins[0] if begins[0] else begins)
    children = (
        bytes_node(pa.py_buffer(offsets), how.form, offsets.size),
        bytes_node(content, how.form),
    )
    return Node(Form.OFFSETS, len(column), None, children)


def _decimal_node(words: NDArray[np.int64], how: Scheme, known: Known | None) -> Node:
    if how.outer is None and (how.form is Form.RAW or how.form in GENERIC):
        return bytes_node(pa.py_buffer(np.ascontiguousarray(words)), how.form, len(words))
    low, high = np.ascontiguousarray(words[:, 0]), words[:, 1]
    if not np.array_equal(low >> 63, high):
        raise Unfit
    return Node(Form.NARROW, len(words), None, (_numbers_node(low, how, known),))


def _scaled_node(values: Vector, how: Scheme, known: Known | None, digits: int) -> Node:
    if values.dtype.kind != "f" or not 0 <= digits <= _DIGITS_MAX:
        raise Unfit
    units = np.rint(values.astype(np.float64) * 10.0**digits)
    if units.size and not float(np.abs(units).max()) < _EXACT:  # nor if it is not a number
        raise Unfit
    inner = words_node(units.astype(np.int64), how.form, how.order, known)
    if inner.own_bytes >= values.nbytes:
        raise Unfit
    return Node(Form.SCALED, values.size, None, (inner,), numbers=(digits, 0, 0))


# --- reading --------------------------------------------------------------------------------------


class ColumnReader:
    """Turns the nodes of one unit into columns; all memory that this takes is within its bound."""

    def __init__(self, rows: int, budget: Budget, read_message: MessageReader) -> None:
        self._rows = rows
        self._budget = budget
        self._read_message = read_message

    def column(self, node: Node, kind: pa.DataType, coded: bool = False) -> pa.Array:
        """The column that a node stands for; `coded`: with codes for its texts, if it has some."""
        if node.form not in (Form.PLACED, Form.DENSE):
            return self._values(node, kind, self._rows, None, coded)
        bits, values = _children(node, 2)
        found = self._numbers(bits, 1, -(-self._rows // 8))
        valid = np.unpackbits(found, count=self._rows, bitorder="little").view(np.bool_)
        if node.form is Form.PLACED:
            return self._values(values, kind, self._rows, valid, coded)
        dense = self._values(values, kind, int(valid.sum()), None, coded)
        if (dtype := storage(kind)) is not None:
            self._budget.take(self._rows * dtype.itemsize)
            wide = np.zeros(self._rows, dtype)
            wide[valid] = values_of(dense)
            return pa.Array.from_buffers(kind, self._rows, [packed(valid), pa.py_buffer(wide)])
        self._budget.take(16 * self._rows + (0 if coded else dense.nbytes))
        places = np.cumsum(valid, dtype=np.int32) - np.int32(1)  # among those that are there
        return dense.take(pa.array(places, mask=~valid))

    def _values(
        self, node: Node, kind: pa.DataType, rows: int, valid: Mask | None, coded: bool
    ) -> pa.Array:
        if node.form in _OF_ROWS and node.count != rows:
            raise damaged(f"a column of {node.count} values in {rows} rows")
        validity = None if valid is None else packed(valid)
        if is_text(kind):
            return self._texts(node, kind, rows, valid, coded)
        if node.form is Form.MESSAGE:
            (child,) = _children(node, 1)
            message = read_bytes(child, self._budget)
            batch = self._read_message(message, pa.schema([pa.field("c", kind)]), rows)
            return batch.column(0)
        if kind.id == pa.lib.Type_BOOL:
            bits = self._numbers(node, 1, -(-rows // 8))
            return pa.Array.from_buffers(kind, rows, [validity, pa.py_buffer(bits)])
        if kind.id == pa.lib.Type_DECIMAL128:
            return self._decimals(node, kind, rows, valid)
        if (dtype := storage(kind)) is None:
            raise damaged(f"a column of {kind} has the form {node.form.name}")
        self._budget.take(rows * dtype.itemsize)
        if node.form is Form.SCALED:
            values = self._scaled(node, dtype, rows)
        else:
            values = self._numbers(node, dtype.itemsize, rows).view(dtype)
        return pa.Array.from_buffers(kind, rows, [validity, pa.py_buffer(values)])

    def _numbers(self, node: Node, size: int, count: int) -> NDArray[Any]:
        """So many unsigned numbers of some bytes."""
        if node.count != count:
            raise damaged(f"a column of {node.count} values where {count} are due")
        if node.form is Form.RAW or node.form in GENERIC:
            if node.form in GENERIC and node.numbers[0] != count * size:
                raise damaged(f"{node.numbers[0]} bytes for {count} values of {size}")
            data = read_bytes(node, None)
            if data.size != count * size:
                raise damaged(f"{data.size} bytes for {count} values of {size}")
            return np.frombuffer(data, f"u{size}") if count else np.empty(0, f"u{size}")
        if node.form is Form.RUNS:
            return self._runs(node, size)
        if node.form is Form.DICTIONARY:
            codes, values = _children(node, 2)
            _within(values.count, count)
            found = self._numbers(values, size, values.count)
            return np.take(found, self._codes(codes, count, found.size))
        if node.form not in (Form.PACKED, Form.SIMPLE8B, Form.VARIABLE_BYTES, Form.BLOCKS):
            raise damaged(f"numbers have the form {node.form.name}")
        return read_words(node, size)

    def _codes(self, node: Node, count: int, distinct: int) -> NDArray[Any]:
        codes = self._numbers(node, 4, count)
        if count and int(codes.max()) >= distinct:
            raise damaged("a column has codes without a value")
        return codes

    def _runs(self, node: Node, size: int) -> NDArray[Any]:
        values, lengths = _children(node, 2)
        _within(values.count, node.count)
        of = self._numbers(lengths, _LENGTH_BYTES, values.count)
        if int(of.sum(dtype=np.uint64)) != node.count:
            raise damaged("the runs of a column are not as long as it")
        found = self._numbers(values, size, values.count)
        return np.repeat(found, of)

    def _texts(
        self, node: Node, kind: pa.DataType, rows: int, valid: Mask | None, coded: bool
    ) -> pa.Array:
        width = 8 if is_large(kind) else 4
        if node.form is Form.OFFSETS:
            first, data = _children(node, 2)
            offsets = self._numbers(first, width, rows + 1)
            content = read_bytes(data, self._budget)
            validity = None if valid is None else packed(valid)
            return pa.Array.from_buffers(kind, rows, [validity, pa.py_buffer(offsets), content])
        if node.form is Form.LENGTHS:
            return self._by_lengths(node, kind, rows, width)
        if node.form is not Form.DICTIONARY:
            raise damaged(f"texts have the form {node.form.name}")
        codes, values = _children(node, 2)
        _within(values.count, rows)
        texts = self._texts(values, kind, values.count, None, False)
        numbers = self._codes(codes, rows, values.count).view(np.int32)
        coded = coded and not is_large(kind)
        if not coded:
            ends, _ = texts_of(texts)
            self._budget.take((rows + 1) * width + int(np.diff(ends)[numbers].sum(dtype=np.int64)))
        texts.validate(full=True)  # before anything goes by its offsets
        found = pa.DictionaryArray.from_arrays(pa.array(numbers), texts)
        return found if coded else found.dictionary_decode()

    def _by_lengths(self, node: Node, kind: pa.DataType, rows: int, width: int) -> pa.Array:
        first, data = _children(node, 2)
        lengths = self._numbers(first, _LENGTH_BYTES, rows)
        self._budget.take((rows + 1) * width)
        content = np.frombuffer(read_bytes(data, self._budget), np.uint8) if data.count else None
        size = 0 if content is None else content.size
        offsets = np.zeros(rows + 1, np.int64)
        np.cumsum(lengths, dtype=np.int64, out=offsets[1:])
        if int(offsets[-1]) != size or size >= 1 << (8 * width - 1):
            raise damaged("texts are not as long as their bytes")
        if content is None:
            content = np.empty(0, np.uint8)
        return text_column(kind, offsets, content)

    def _decimals(self, node: Node, kind: pa.DataType, rows: int, valid: Mask | None) -> pa.Array:
        if node.form is Form.NARROW:
            (child,) = _children(node, 1)
            self._budget.take(16 * rows)
            low = self._numbers(child, 8, rows).view(np.int64)
            return decimal_column(kind, low, low >> 63, valid)
        data = read_bytes(node, self._budget)
        if data.size != 16 * rows:
            raise damaged(f"{data.size} bytes for {rows} decimals")
        return pa.Array.from_buffers(kind, rows, [None if valid is None else packed(valid), data])

    def _scaled(self, node: Node, dtype: np.dtype[Any], rows: int) -> NDArray[Any]:
        (child,) = _children(node, 1)
        digits = node.numbers[0]
        if dtype.kind != "f" or not 0 <= digits <= _DIGITS_MAX:
            raise damaged(f"numbers of {digits} digits behind the point")
        units = self._numbers(child, 8, rows).view(np.int64)
        return (units / 10.0**digits).astype(dtype)


def _children(node: Node, count: int) -> tuple[Node, ...]:
    if len(node.children) != count:
        raise damaged(f"a form {node.form.name} with {len(node.children)} parts")
    return node.children


def _within(count: int, bound: int) -> None:
    if count > bound:
        raise damaged(f"{count} values for {bound} rows")
