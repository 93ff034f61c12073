"""Values that a state cannot have as keys, and the keys that stand for them."""

from __future__ import annotations

from penstock.expressions.tree import Column, Expression, call
from penstock.expressions.types import DataType

NESTED_KEYS = frozenset({"array", "struct"})


def as_key(value: Expression) -> Expression:
    """What rows are grouped or joined by instead: of a nested value its bytes."""
    return call("key_bytes", value) if value.type.kind in NESTED_KEYS else value


def of_key(key: Column, data_type: DataType) -> Expression:
    """The value for which a key stands."""
    if data_type.kind not in NESTED_KEYS:
        return key
    return call("of_key_bytes", key, type=str(data_type))
