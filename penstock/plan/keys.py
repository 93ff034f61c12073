"""Values that a state cannot have as keys, and the keys that stand for them."""

from __future__ import annotations

from penstock.expressions.tree import Column, Expression, call
from penstock.expressions.types import DataType

DIGITS_MAX = 18  # of a decimal in one word


def as_key(value: Expression, maps: bool = False) -> Expression:
    """What rows are grouped or joined by instead: of a nested value, or a wide one, its bytes.

    With `maps` that is so of maps too, which are equal if their entries are, in the same order.
    """
    if not _is_in_bytes(value.type):
        return value
    options = {"maps": True} if maps and value.type.has_map else {}
    return call("key_bytes", value, **options)


def of_key(key: Column, data_type: DataType) -> Expression:
    """The value for which a key stands."""
    if not _is_in_bytes(data_type):
        return key
    return call("of_key_bytes", key, type=str(data_type))


def _is_in_bytes(data_type: DataType) -> bool:
    is_wide = data_type.is_decimal and data_type.precision > DIGITS_MAX
    return is_wide or data_type.is_nested
