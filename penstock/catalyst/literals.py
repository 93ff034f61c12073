"""Constants of Catalyst, which come as Spark's internal values, as typed literals of ours."""

from __future__ import annotations

import decimal
from typing import Any

from penstock.catalyst.jvm import JvmNode, scala_items
from penstock.catalyst.spark_types import spark_type
from penstock.errors import ExpressionError
from penstock.expressions.tree import Expression, Literal, call, literal
from penstock.expressions.types import DataType


def read_literal(node: JvmNode) -> Expression:
    """The constant of a Literal node; of a struct or a map, a call that builds it."""
    return _constant(node.read("value"), node.read("dataType"))


def _constant(value: Any, type_handle: Any) -> Expression:
    data_type = spark_type(type_handle)
    if data_type.kind == "struct" and value is not None:
        return _struct(value, type_handle, data_type)
    if data_type.kind == "map" and value is not None:
        return _map(value, type_handle, data_type)
    return literal(internal_value(value, data_type, type_handle), data_type)


def _struct(row: Any, type_handle: Any, data_type: DataType) -> Expression:
    members = scala_items(type_handle)
    args = [
        _constant(row.get(index, member.dataType()), member.dataType())
        for index, member in enumerate(members)
    ]
    return call("struct", *args, names=[field.name for field in data_type.fields])


def _map(value: Any, type_handle: Any, data_type: DataType) -> Expression:
    keys, values = value.keyArray(), value.valueArray()
    if value.numElements() == 0:
        raise ExpressionError("an empty map is not known here")
    args = [
        _constant(side.get(index, handle), handle)
        for index in range(value.numElements())
        for side, handle in ((keys, type_handle.keyType()), (values, type_handle.valueType()))
    ]
    return call("map", *args)


def internal_value(value: Any, data_type: DataType, type_handle: Any = None) -> Any:
    """A value in the form that Spark keeps it in, as the plain value of a literal."""
    if value is None:
        return None
    if data_type.kind == "string" or data_type.is_collated:
        return str(value.toString())
    if data_type.kind == "decimal":
        return decimal.Decimal(value.toString())
    if data_type.kind == "array":
        return _array(value, data_type, type_handle)
    if data_type.is_nested:
        raise ExpressionError(f"constants of type {data_type} are not known here")
    return bytes(value) if data_type.kind == "binary" else value


def _array(value: Any, data_type: DataType, type_handle: Any) -> tuple[Any, ...]:
    assert data_type.element is not None
    return _items(value, data_type.element, type_handle.elementType())


def _items(value: Any, element: DataType, type_handle: Any) -> tuple[Any, ...]:
    return tuple(
        internal_value(value.get(index, type_handle), element, type_handle)
        for index in range(value.numElements())
    )


def read_map(node: JvmNode) -> tuple[list[tuple[Any, Any]], DataType]:
    """The pairs of a Literal node of a map type, and the type of its values."""
    handle, value = node.read("dataType"), node.read("value")
    data_type = spark_type(handle)
    if data_type.kind != "map" or value is None:
        raise ExpressionError(f"a map was expected, this is {data_type}")
    assert data_type.key is not None
    assert data_type.value is not None
    keys = _items(value.keyArray(), data_type.key, handle.keyType())
    values = _items(value.valueArray(), data_type.value, handle.valueType())
    return list(zip(keys, values, strict=True)), data_type.value


def constant_value(expression: Expression, what: str) -> Any:
    """The value of an argument that must be a constant here."""
    if not isinstance(expression, Literal) or expression.value is None:
        raise ExpressionError(f"{what} must be a constant here, {expression} is not one")
    return expression.value
