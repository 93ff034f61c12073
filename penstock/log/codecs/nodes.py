"""Nodes: numbers and bytes in a codec's form, and what this form needs to be undone.

A column is a tree of nodes: a dictionary has one of codes and one of values, and so on. On disk
come first all heads, each before its children, and then their bytes in the same order, each on a
boundary of 64: so no two can lie over each other, and what is not asked for is passed over.

    offset  size  field of a head
         0     1  codec
         1     1  width in bits, of `PACKED`
         2     1  order of differences: 0 values, 1 of neighbours, 2 of those, 3 bits (XOR)
         3     1  children
         4     1  why it was chosen, of a column's first node: see `Why`
         5     3  reserved, zero
         8    24  three numbers of the codec: of differences the first value, the first difference
                  and the lowest one; of generic codecs the bytes before; of `SCALED` the digits
        32     8  how many values
        40     8  bytes

Whoever reads one has checked nothing but that the bytes are those that were written, and maybe
not by us: no length is used before it is checked. What a column keeps comes out of a `Budget`; what
is needed on the way has no more values than there are rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.arrays import Vector
from penstock.errors import PUnitDamaged
from penstock.log.codecs import kernels
from penstock.log.codecs.kernels import DELTA, DELTA2, UNFIT, VALUES, XOR
from penstock.log.codecs.stand_ins import run

HEAD = struct.Struct("<BBBBB3xqqqQQ")
ALIGNMENT_BYTES = 64
CHUNK_WORDS = 16_384  # part of the format: no word of Simple-8b and no block goes beyond one
DEPTH_MAX = 8
CHILDREN_MAX = 3

Words = NDArray[np.uint64]
_WORD = 1 << 64
_FIRSTS = {VALUES: 0, DELTA: 1, DELTA2: 2, XOR: 1}  # values that come before the differences


class Form(IntEnum):
    """What a node is. The numbers are on disk: never reuse one."""

    RAW = 0
    PACKED = 1  # null suppression: the same bits of each word
    SIMPLE8B = 2
    VARIABLE_BYTES = 3
    BLOCKS = 4  # as packed, with a width for each 128 words
    RUNS = 5  # children: a value of each run, its length
    DICTIONARY = 6  # children: codes, values
    SNAPPY = 7
    LZ4 = 8
    ZSTD = 9
    LENGTHS = 10  # texts; children: the length of each, all bytes
    OFFSETS = 11  # texts; children: Arrow's offsets, all bytes
    NARROW = 12  # decimals of which the lower word is enough; child: these
    SCALED = 13  # floats as whole numbers of units; child: these
    MESSAGE = 14  # an Arrow message with the one column; child: its bytes
    PLACED = 15  # children: which rows have values (bits), and all rows as they lie in memory
    DENSE = 16  # children: which rows have values (bits), and these alone


class Why(IntEnum):
    """Why a column has its form. The numbers are on disk: never reuse one."""

    ASKED = 0
    CHEAPEST = 1
    NOTHING_PAYS = 2
    OUTGROWN = 3
    ONLY_GENERIC = 4


GENERIC = {Form.SNAPPY: "snappy", Form.LZ4: "lz4", Form.ZSTD: "zstd"}


class Unfit(Exception):
    """These values cannot have this form, or gain nothing by it: they are stored in another."""


class Budget:
    """The memory that a unit may take, as its header says."""

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max

    def take(self, size: int) -> None:
        """Raise PUnitDamaged before anything of this size is made that goes beyond."""
        self._left -= size
        if size < 0 or self._left < 0:
            raise damaged("its columns are larger than its header says")


@dataclass(slots=True)
class Node:
    """One part of a column."""

    form: Form
    count: int
    data: pa.Buffer | None = None
    children: tuple[Node, ...] = ()
    width: int = 0
    order: int = 0
    numbers: tuple[int, int, int] = (0, 0, 0)
    why: Why = Why.ASKED

    @property
    def own_bytes(self) -> int:
        return 0 if self.data is None else self.data.size

    @property
    def bytes(self) -> int:
        """What it takes, heads included."""
        return HEAD.size + self.own_bytes + sum(child.bytes for child in self.children)

    def walk(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            yield from child.walk()


# --- heads ----------------------------------------------------------------------------------------


def heads(nodes: Iterable[Node]) -> bytes:
    """The heads of trees."""
    return b"".join(
        HEAD.pack(
            each.form, each.width, each.order, len(each.children), each.why,
            *each.numbers, each.count, each.own_bytes,
        )
        for node in nodes
        for each in node.walk()
    )  # fmt: skip


class HeadReader:
    """Reads trees; the data of a node lies where those before it end."""

    def __init__(self, heads: memoryview, data: pa.Buffer) -> None:
        self._heads = heads
        self._data = data
        self._at = 0
        self._data_at = 0

    def tree(self, depth: int = 0) -> Node:
        """The next tree."""
        if depth > DEPTH_MAX or self._at + HEAD.size > len(self._heads):
            raise damaged("its columns have no end")
        form, width, order, children, why, a, b, c, count, stored = HEAD.unpack_from(
            self._heads, self._at
        )
        if any(self._heads[self._at + 5 : self._at + 8]) or children > CHILDREN_MAX or order > XOR:
            raise damaged("a column's head has numbers that none has")
        self._at += HEAD.size
        data = self._take(stored)
        try:
            node = Node(Form(form), count, data, (), width, order, (a, b, c), Why(why))
        except ValueError as error:
            raise damaged(f"{error}: written by a newer Penstock, or forged") from error
        node.children = tuple(self.tree(depth + 1) for _ in range(children))
        return node

    def end(self) -> None:
        """Raise PUnitDamaged if there is more than was read."""
        if self._at != len(self._heads) or padded(self._data_at) != padded(self._data.size):
            raise damaged("there is more in it than its columns")

    def _take(self, stored: int) -> pa.Buffer | None:
        at = padded(self._data_at)
        if stored == 0:
            return None
        if stored > self._data.size - at:
            raise damaged("a column reaches out of the payload")
        self._data_at = at + stored
        return self._data.slice(at, stored)


def padded(size: int) -> int:
    """The size up to the next boundary."""
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


# --- numbers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Known:
    """What differences were lately: the lowest, and the bits of the others above it."""

    low: int
    width: int


def words_node(values: Vector, form: Form, order: int, known: Known | None = None) -> Node:
    """Numbers as differences in one of the forms of words; Unfit if they would gain nothing.

    What is known spares a look at all values; a value that it does not hold for is found on the
    way, and then they are looked at.
    """
    if form is Form.PACKED and known is not None:
        try:
            return _words_node(values, form, order, known)
        except Unfit:
            pass
    return _words_node(values, form, order, span(values, order))


def span(values: Vector, order: int) -> Known:
    """The lowest difference, and the bits of the others above it."""
    if order == XOR or values.size <= _FIRSTS[order]:
        return Known(0, 0 if order != XOR else 8 * values.itemsize)
    lows, highs = [], []
    for at in range(0, values.size - _FIRSTS[order], CHUNK_WORDS):
        part = values[at : at + CHUNK_WORDS + _FIRSTS[order]]
        if order:
            part = np.diff(part.view(f"u{values.itemsize}"), order).view(f"i{values.itemsize}")
        lows.append(int(part.min()))
        highs.append(int(part.max()))
    low, high = min(lows), max(highs)
    return Known(_as_signed(low), (high - low).bit_length())


def _words_node(values: Vector, form: Form, order: int, known: Known) -> Node:
    size, count, firsts = values.itemsize, values.size, min(_FIRSTS[order], values.size)
    if form is Form.PACKED and known.width >= 8 * size:
        raise Unfit
    raw = values.view(np.uint8)
    raw.flags.writeable = False
    words = count - firsts
    out = np.empty(_room(form, words, known.width), np.uint64)
    scratch: Words = np.empty(min(words, CHUNK_WORDS), np.uint64)
    into = 0
    step = _chunk(known.width) if form is Form.PACKED else CHUNK_WORDS
    # No more than the values themselves: what is larger is of no use.
    for at in range(0, words, step):
        part = scratch[: min(step, words - at)]
        seen = run(kernels.differences, raw, size, order, known.low, at, part) % _WORD
        if form is Form.PACKED:
            if seen >> known.width:
                raise Unfit
            if known.width == 0:
                continue
            used = run(kernels.pack, part, known.width, out[into:])
        elif form is Form.BLOCKS:
            used = run(kernels.pack_blocks, part, out[into:])
        elif form is Form.SIMPLE8B:
            used = run(kernels.simple8b, part, out[into:])
        else:
            used = run(kernels.variable_bytes, part, out.view(np.uint8)[into:])
        if used == UNFIT:
            raise Unfit
        into += used
    size_bytes = into if form is Form.VARIABLE_BYTES else 8 * into
    if size_bytes >= raw.size and raw.size:
        raise Unfit
    begin = [_as_signed(int(each)) for each in _begin(values, firsts)]
    return Node(
        form,
        count,
        pa.py_buffer(out.view(np.uint8)[:size_bytes]) if size_bytes else None,
        width=known.width if form is Form.PACKED else 0,
        order=order,
        numbers=(begin[0], begin[1], known.low),
    )


def _begin(values: Vector, firsts: int) -> tuple[int, int]:
    """The first value, and the first difference where differences of these are stored."""
    first = int(values[0]) if firsts else 0
    return first, int(values[1]) - first if firsts > 1 else 0


def _room(form: Form, words: int, width: int) -> int:
    if form is Form.PACKED:
        each = 64 // width if width else 1
        return 2 + (words if width else 0) // (each if width < kernels.STRADDLED_BITS_MIN else 1)
    if form is Form.VARIABLE_BYTES:
        return 2 + words * 10 // 8 + 2
    return 2 + words + words // kernels.BLOCK_WORDS + 1


def _chunk(width: int) -> int:
    """As many words as fill whole ones."""
    each = 64 // width if 0 < width < kernels.STRADDLED_BITS_MIN else 64
    return CHUNK_WORDS // each * each


def _as_signed(value: int) -> int:
    value %= _WORD
    return value - _WORD if value >> 63 else value


def read_words(node: Node, size: int) -> NDArray[Any]:
    """The numbers of a node as unsigned ones of `size` bytes; they are no more than rows."""
    count, order = node.count, node.order
    out = np.empty(count, f"u{size}")
    raw = out.view(np.uint8)
    firsts = min(_FIRSTS[order], count)
    first, delta, low = node.numbers
    for place, value in enumerate((first, first + delta)[:firsts]):
        out[place] = value % (1 << 8 * size)
    kind = np.uint8 if node.form is Form.VARIABLE_BYTES else np.uint64
    if node.own_bytes % np.dtype(kind).itemsize:
        raise damaged("a column's words are cut short")
    stored: Any = np.empty(0, kind) if node.data is None else np.frombuffer(node.data, kind)
    step = _chunk(node.width) if node.form is Form.PACKED else CHUNK_WORDS
    scratch: Words = np.zeros(min(step, count), np.uint64)
    start = 0
    for at in range(firsts, count, step):
        part = scratch[: min(step, count - at)]
        start = _read_part(node, stored, start, part)
        if start == UNFIT or run(kernels.restore, part, size, order, low, at, raw) == UNFIT:
            raise damaged("a column's words are not what its head says")
    if start != stored.size:
        raise damaged("a column has more words than values")
    return out


def _read_part(node: Node, stored: Any, start: int, part: Words) -> int:
    """Read words; where the next ones begin, or UNFIT."""
    if node.form is Form.PACKED:
        width = node.width
        if width == 0:
            return start
        if width > 64 or run(kernels.unpack, stored, start, width, part) == UNFIT:
            return UNFIT
        each = 64 // width if width < kernels.STRADDLED_BITS_MIN else 0
        return start + (-(-part.size // each) if each else -(-part.size * width // 64))
    if node.form is Form.BLOCKS:
        return int(run(kernels.unpack_blocks, stored, start, part))
    if node.form is Form.SIMPLE8B:
        return int(run(kernels.unsimple8b, stored, start, part))
    return int(run(kernels.unvariable_bytes, stored, start, part))


# --- bytes ----------------------------------------------------------------------------------------


def bytes_node(data: pa.Buffer, form: Form = Form.RAW, count: int | None = None) -> Node:
    """Bytes, or `count` numbers, as they are or as a library compresses them.

    Unfit if it does not make them less.
    """
    count = data.size if count is None else count
    if form is Form.RAW or data.size == 0:
        return Node(Form.RAW, count, data)
    stored = pa.compress(data, codec=GENERIC[form])
    if stored.size >= data.size:
        raise Unfit
    return Node(form, count, stored, numbers=(data.size, 0, 0))


def read_bytes(node: Node, budget: Budget | None) -> pa.Buffer:
    """The bytes of a node, in place if they are stored as they are; None: they are bounded."""
    data = pa.py_buffer(b"") if node.data is None else node.data
    if node.form is Form.RAW:
        return data
    if node.form not in GENERIC:
        raise damaged(f"bytes have the form {node.form.name}")
    if budget is not None:
        budget.take(node.numbers[0])
    return decompress(data, GENERIC[node.form], node.numbers[0])


def decompress(stored: pa.Buffer, codec: str, raw_bytes: int) -> pa.Buffer:
    """Exactly so many bytes, or PUnitDamaged."""
    try:
        if codec == "snappy":
            return _unsnap(stored, raw_bytes)
        # As a stream, because the one-shot call does not say how much it wrote: an lz4 frame that
        # ends early would leave whatever this process had in that memory before.
        stream = pa.CompressedInputStream(pa.BufferReader(stored), codec)
        raw = stream.read_buffer(raw_bytes)
        beyond = stream.read(1)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise damaged(f"its payload is not {codec}: {error}") from error
    if raw.size != raw_bytes or beyond:
        amount = "more" if beyond else "less"
        raise damaged(f"its payload decompresses to {amount} than the {raw_bytes} bytes declared")
    return raw


def _unsnap(stored: pa.Buffer, raw_bytes: int) -> pa.Buffer:
    """Snappy begins with how much it holds, and libraries write exactly that or fail."""
    size = shift = 0
    for byte in stored.slice(0, min(5, stored.size)).to_pybytes():
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if size != raw_bytes:
        raise damaged(f"its payload holds {size} bytes and declares {raw_bytes}")
    return pa.decompress(stored, decompressed_size=raw_bytes, codec="snappy")


def damaged(what: str, **details: object) -> PUnitDamaged:
    """The error of a unit that is not what it says."""
    return PUnitDamaged(
        f"a p-unit is damaged: {what}. `penstock fsck` finds the record that holds it", **details
    )
