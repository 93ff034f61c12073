"""Generators of rows: the array that one takes apart, and the columns that it makes of an item."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.catalyst.expressions import ExpressionReader
from penstock.catalyst.jvm import JvmNode
from penstock.catalyst.literals import constant_value
from penstock.catalyst.refusals import EXPRESSION_REASONS
from penstock.errors import ExpressionError
from penstock.expressions.tree import Column, Expression, call, literal

_UNKNOWN = (
    "this generator is not known here; explode, posexplode, inline, stack and json_tuple are, and "
    "the first three with _outer"
)


@dataclass(frozen=True)
class Generated:
    """One row per item of `array`: the item itself, or its fields where it `is_taken_apart`.

    Without an array: these `columns`, one row for each.
    """

    array: Expression | None
    has_position: bool = False
    is_taken_apart: bool = False
    columns: tuple[Expression, ...] = ()

    def columns_of(self, item: Column) -> list[Expression]:
        """What it makes of an item, but for the position."""
        if not self.is_taken_apart:
            return [item]
        return [call("get_field", item, name=field.name) for field in item.type.fields]


def read_generator(generator: JvmNode, expressions: ExpressionReader) -> Generated:
    """What a generator makes of the rows in reach."""
    reader = _GENERATORS.get(generator.kind)
    if reader is None:
        raise expressions.refuse(generator, EXPRESSION_REASONS.get(generator.kind, _UNKNOWN))
    try:
        return reader(generator, expressions)
    except ExpressionError as error:
        raise expressions.refuse(generator, error.message) from error


def _explode(generator: JvmNode, expressions: ExpressionReader) -> Generated:
    found = expressions.read(generator.children[0])
    has_position = generator.kind == "PosExplode"
    if found.type.kind == "map":
        return Generated(call("map_entries", found), has_position, is_taken_apart=True)
    return Generated(found, has_position)


def _inline(generator: JvmNode, expressions: ExpressionReader) -> Generated:
    return Generated(expressions.read(generator.children[0]), is_taken_apart=True)


def _stack(generator: JvmNode, expressions: ExpressionReader) -> Generated:
    """So many rows of the arguments, one after the other, nulls where these do not suffice."""
    first, *others = generator.children
    rows = int(constant_value(expressions.read(first), "the number of rows"))
    values = [expressions.read(other) for other in others]
    width = -(-len(values) // rows)
    names = [f"col{place}" for place in range(width)]
    values += [literal(None, values[at % width].type) for at in range(len(values), rows * width)]
    items = [
        call("struct", *values[at : at + width], names=names)
        for at in range(0, rows * width, width)
    ]
    return Generated(call("array", *items), is_taken_apart=True)


def _json_tuple(generator: JvmNode, expressions: ExpressionReader) -> Generated:
    text, *names = (expressions.read(child) for child in generator.children)
    fields = [constant_value(name, "the name of a field") for name in names]
    names = list(dict.fromkeys(fields))
    columns = (call("json_field", text, name=name, names=names) for name in fields)
    return Generated(None, columns=tuple(columns))


_GENERATORS: Mapping[str, Callable[[JvmNode, ExpressionReader], Generated]] = {
    "Explode": _explode,
    "PosExplode": _explode,
    "Inline": _inline,
    "Stack": _stack,
    "JsonTuple": _json_tuple,
}
GENERATOR_KINDS = frozenset(_GENERATORS)
