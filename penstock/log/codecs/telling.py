"""What a unit's columns are stored as, and why, for people."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.arrays import is_large, is_text, storage
from penstock.log.codecs.kernels import DELTA, DELTA2, XOR
from penstock.log.codecs.nodes import GENERIC, Form, Node, Why

_ORDERS = {DELTA: "delta.", DELTA2: "delta2.", XOR: "xor."}
_WORDS = {
    Form.PACKED: "pack",
    Form.SIMPLE8B: "simple8b",
    Form.VARIABLE_BYTES: "varbyte",
    Form.BLOCKS: "blocks",
    Form.RUNS: "runs",
    Form.DICTIONARY: "dictionary",
    Form.LENGTHS: "lengths",
    Form.SCALED: "scaled",
    **GENERIC,
}
_REASONS = {
    Why.ASKED: "as asked for",
    Why.CHEAPEST: "cheapest",
    Why.NOTHING_PAYS: "no codec pays",
    Why.OUTGROWN: "values broke what was assumed",
    Why.ONLY_GENERIC: "of a type without codecs",
}


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """One column of a unit."""

    name: str
    codec: str
    raw_bytes: int
    stored_bytes: int
    reason: str

    @property
    def ratio(self) -> float:
        return self.raw_bytes / self.stored_bytes if self.stored_bytes else 1.0


def column_facts(field: pa.Field, node: Node, rows: int, disk_mb_s: int) -> ColumnFacts:
    """What a column is stored as; its bytes in memory are those of its type, or as many as text."""
    reason = f"{_REASONS[node.why]} at {disk_mb_s:,} MB/s"
    if detail := _detail(node):
        reason = f"{detail}: {reason}"
    return ColumnFacts(
        field.name, codec_name(node), _raw_bytes(field.type, node, rows), node.bytes, reason
    )


def codec_name(node: Node) -> str:
    """The scheme that a node has, as `columns.SCHEMES` names it."""
    inner = _inner(node)
    if inner.form is Form.SCALED:
        return f"scaled.{codec_name(inner.children[0])}"
    if inner.form is Form.BLOCKS and inner.order == XOR:
        return "xor"
    if inner.form is Form.LENGTHS and inner.children[1].form in GENERIC:
        return f"lengths.{GENERIC[inner.children[1].form]}"
    if inner.form in (Form.OFFSETS, Form.MESSAGE):
        return codec_name(inner.children[-1])
    return _ORDERS.get(inner.order, "") + _WORDS.get(inner.form, "none")


def _inner(node: Node) -> Node:
    while node.form in (Form.DENSE, Form.PLACED, Form.NARROW) and node.children:
        node = node.children[-1]
    return node


def _detail(node: Node) -> str:
    inner = _inner(node)
    if inner.form is Form.PACKED:
        return f"{inner.width} bits each"
    if inner.form is Form.RUNS and inner.children:
        return f"runs of {inner.count / max(1, inner.children[0].count):.1f} on average"
    if inner.form is Form.DICTIONARY and inner.children:
        return f"{inner.children[1].count:,} distinct values"
    return ""


def _raw_bytes(kind: pa.DataType, node: Node, rows: int) -> int:
    inner = _inner(node)
    bits = -(-rows // 8) if node.form in (Form.DENSE, Form.PLACED) else 0
    if is_text(kind):
        width = 8 if is_large(kind) else 4
        texts = inner.children[1] if inner.form is Form.DICTIONARY else inner
        content = texts.children[-1] if texts.children else texts
        size = content.numbers[0] if content.form in GENERIC else content.own_bytes
        if inner.form is Form.DICTIONARY and texts.count:
            size = size * inner.count // texts.count  # as if all were as frequent
        return bits + width * (rows + 1) + size
    if kind.id == pa.lib.Type_BOOL:
        return bits + -(-rows // 8)
    if kind.id == pa.lib.Type_DECIMAL128:
        return bits + 16 * rows
    if (dtype := storage(kind)) is not None:
        return bits + rows * dtype.itemsize
    content = node.children[0] if node.children else node
    return content.numbers[0] if content.form in GENERIC else content.own_bytes
