"""Functions over the items of arrays and maps: a lambda is computed for all items at once.

A lambda is stored as the JSON of its body, closed: it reads its own variables, and what it takes
from outside as further arguments of the call, named c0, c1, … in the body.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import Mask, Vector, true_rows, validity_of
from penstock.errors import ExpressionError
from penstock.expressions.arithmetic import both_valid
from penstock.expressions.collections import checked_map
from penstock.expressions.collections import zipped as both_zipped
from penstock.expressions.frame import Frame
from penstock.expressions.lists import Items, entries_of, items_of, map_array
from penstock.expressions.nodes import Call, Column, Expression, columns_of, may_fail
from penstock.expressions.signatures import Operands, new_key
from penstock.expressions.types import BOOLEAN, INT, DataType, array_type, map_type
from penstock.expressions.vectors import arrow_column

BODY_CHARACTERS_MAX = 200_000


class Body(str):
    """The JSON of a lambda's body, shown as the expression that it is."""

    __slots__ = ()

    def __format__(self, _spec: str) -> str:
        return str(body_of(self))


@lru_cache(maxsize=1024)
def body_of(text: str) -> Expression:
    """The expression of a body."""
    from penstock.expressions.tree import from_json  # noqa: PLC0415 (it imports the table of us)

    return from_json(json.loads(text))


def check_body(value: Any) -> Body:
    """A body that can be read."""
    if not isinstance(value, str) or len(value) > BODY_CHARACTERS_MAX:
        raise ExpressionError(f"{value!r:.100} is not the body of a lambda")
    try:
        body_of(value)
    except ValueError as error:
        raise ExpressionError(f"{value!r:.100} is not the body of a lambda") from error
    return Body(value)


# --- types ----------------------------------------------------------------------------------------


def _check_variables(
    operands: Operands, body: str, own: Mapping[str, DataType], outer: Sequence[DataType]
) -> DataType:
    """The type of a body that reads these variables and no others."""
    known = {**own, **{f"c{index}": data_type for index, data_type in enumerate(outer)}}
    for name, data_type in _variable_types(body).items():
        if known.get(name) != data_type:
            operands.refuse(f"a lambda over {known.get(name)}; its variable {name} is {data_type}")
    return body_of(body).type


def _element(operands: Operands, index: int = 0) -> DataType:
    element = operands.types[index].element
    if element is None:
        operands.refuse("an array")
    return element


def _of_items(operands: Operands) -> DataType:
    own = {"x": _element(operands), "i": INT}
    return _check_variables(operands, operands.options["body"], own, operands.types[1:])


def transformed(operands: Operands) -> DataType:
    return array_type(_of_items(operands))


def filtered(operands: Operands) -> DataType:
    if _of_items(operands) != BOOLEAN:
        operands.refuse("a condition on items")
    return operands.types[0]


def decided(operands: Operands) -> DataType:
    filtered(operands)
    return BOOLEAN


def aggregated(operands: Operands) -> DataType:
    merged, outer = operands.types[1], operands.types[2:]
    own = {"acc": merged, "x": _element(operands)}
    if _check_variables(operands, operands.options["body"], own, outer) != merged:
        operands.refuse(f"a lambda that gives {merged}")
    return _check_variables(operands, operands.options["finish"], {"acc": merged}, outer)


def zipped(operands: Operands) -> DataType:
    own = {"x": _element(operands), "y": _element(operands, 1)}
    body = operands.options["body"]
    return array_type(_check_variables(operands, body, own, operands.types[2:]))


def _of_entries(operands: Operands) -> DataType:
    key, value = operands.types[0].key, operands.types[0].value
    if key is None or value is None:
        operands.refuse("a map")
    body = operands.options["body"]
    return _check_variables(operands, body, {"x": key, "y": value}, operands.types[1:])


def filtered_map(operands: Operands) -> DataType:
    if _of_entries(operands) != BOOLEAN:
        operands.refuse("a condition on entries")
    return operands.types[0]


def map_of_new_values(operands: Operands) -> DataType:
    value = _of_entries(operands)
    key = operands.types[0].key
    assert key is not None
    return map_type(key, value)


def map_of_new_keys(operands: Operands) -> DataType:
    key, value = _of_entries(operands), operands.types[0].value
    new_key(operands, key)
    assert value is not None
    return map_type(key, value)


def _variable_types(body: str) -> dict[str, DataType]:
    """The types of what a body reads."""
    return {column.name: column.type for column in columns_of(body_of(body))}


# --- values ---------------------------------------------------------------------------------------


def _on_items(
    frame: Frame, body: str, rows: Vector, variables: dict[str, pa.Array], outer: Sequence[pa.Array]
) -> pa.Array:
    """The body for items of these rows, which see what stands beside their row."""
    expression = body_of(body)
    taken = pa.array(rows)
    columns = dict(variables)
    read = {column.name for column in columns_of(expression)}
    for index, array in enumerate(outer):
        if f"c{index}" in read:
            columns[f"c{index}"] = array.take(taken)
    if not columns:  # so that the batch knows how many rows it has
        columns["rows"] = taken
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    originals = rows if frame.rows is None else frame.rows[rows]
    return Frame(batch, originals, frame.failures).value(expression)


def _places(items: Items) -> pa.Array:
    return pa.array(items.places.astype(np.int32))


def transform(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    items = items_of(args[0])
    variables = {"x": items.values, "i": _places(items)}
    values = _on_items(frame, node.option("body"), items.rows, variables, args[1:])
    return Items(values, items.lengths, items.valid).array(node.type)


def filter_items(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    items = items_of(args[0])
    variables = {"x": items.values, "i": _places(items)}
    wanted = _on_items(frame, node.option("body"), items.rows, variables, args[1:])
    return items.kept(true_rows(wanted)).array(node.type)


def exists_or_forall(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    """Item by item until the answer is known, as far as an item may fail."""
    items = items_of(args[0])
    body, wanted = node.option("body"), node.function == "exists"
    decided = np.zeros(len(items.lengths), np.bool_)
    unknown = np.zeros(len(items.lengths), np.bool_)
    for together in _rounds(items, may_fail(body_of(body))):
        at = together[~decided[items.rows[together]]]
        rows = items.rows[at]
        variables = {"x": items.values.take(pa.array(at))}
        found = _on_items(frame, body, rows, variables, args[1:])
        hit = true_rows(found) if wanted else true_rows(pc.invert(found))
        decided[rows[hit]] = True
        unknown[rows[~validity_of(found)]] = True
    valid = items.valid & (decided | ~unknown)
    return arrow_column(decided if wanted else ~decided, valid, BOOLEAN)


def _rounds(items: Items, one_by_one: bool) -> list[Vector]:
    """The items of all rows: together, or the first ones, then the second ones, and so on."""
    everything = np.arange(len(items.values))
    if not one_by_one:
        return [everything]
    places = items.places
    order = np.argsort(places, kind="stable")
    cuts = np.searchsorted(places[order], np.arange(1, int(places.max(initial=-1)) + 1))
    return np.split(everything[order], cuts) if len(everything) else []


def aggregate(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    """The first items of all rows are merged, then the second ones, and so on."""
    items, merged = items_of(args[0]), args[1]
    for at in _rounds(items, one_by_one=True):
        rows = items.rows[at]
        variables = {
            "acc": merged.take(pa.array(rows)),
            "x": items.values.take(pa.array(at)),
        }
        found = _on_items(frame, node.option("body"), rows, variables, args[2:])
        there = np.full(len(merged), -1, np.int64)
        there[rows] = np.arange(len(rows))
        changed = found.take(pa.array(there, mask=there < 0))
        merged = pc.if_else(pa.array(there >= 0), changed, merged)
    finish = node.option("finish")
    everywhere = np.flatnonzero(items.valid)
    variables = {"acc": merged.take(pa.array(everywhere))}
    found = _on_items(frame, finish, everywhere, variables, args[2:])
    return found.take(_spread(items.valid))


def _spread(valid: Mask) -> pa.Array:
    """Where the values of the valid rows are, null for the others."""
    return pa.array(np.cumsum(valid) - 1, mask=~valid)


def zip_with(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    """Item by item; the shorter array is filled up with nulls."""
    items, columns = both_zipped(args[:2], both_valid(args[:2]))
    variables = dict(zip("xy", columns, strict=True))
    values = _on_items(frame, node.option("body"), items.rows, variables, args[2:])
    return Items(values, items.lengths, items.valid).array(node.type)


def map_entries_changed(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    """A map with other values or keys, or with some of its entries."""
    keys, values = entries_of(args[0])
    variables = {"x": keys.values, "y": values.values}
    found = _on_items(frame, node.option("body"), keys.rows, variables, args[1:])
    if node.function == "transform_values":
        return map_array(keys, found, node.type)
    if node.function == "transform_keys":
        return checked_map(node, replace(keys, values=found), values.values, frame)
    wanted = true_rows(found)
    return map_array(keys.kept(wanted), values.kept(wanted).values, node.type)


def closed_over(
    bodies: Sequence[tuple[Expression, Mapping[str, str]]],
) -> tuple[list[str], list[Expression]]:
    """The JSON of each body with its variables renamed, and the columns taken from outside."""
    from penstock.expressions.tree import transform as changed  # noqa: PLC0415 (as above)

    outer: dict[Column, str] = {}
    for body, names in bodies:
        for column in columns_of(body):
            if column.name not in names:
                outer.setdefault(column, f"c{len(outer)}")

    def closed(body: Expression, names: Mapping[str, str]) -> str:
        def rename(part: Expression) -> Expression:
            if not isinstance(part, Column):
                return part
            return Column(names.get(part.name) or outer[part], part.type, part.nullable)

        return json.dumps(changed(body, rename).to_json(), sort_keys=True, ensure_ascii=False)

    return [closed(body, names) for body, names in bodies], list(outer)
