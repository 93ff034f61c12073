"""Tables: how a plan says that its rows replace each other, and what we make of that."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from penstock.expressions.tree import Column, Expression, call
from penstock.json_codec import canonical_json, parse
from penstock.operators.specs import TableSpec

_MARK = "penstock.as_table "


def table_mark(keys: Sequence[str], delete_flag: str | None, unique: str) -> str:
    """What marks a table in Spark's plan."""
    return _MARK + canonical_json({"flag": delete_flag, "keys": list(keys), "unique": unique})


def read_mark(name: str) -> tuple[list[str], str | None] | None:
    """The keys and the flag of a mark; None if it is none."""
    if not name.startswith(_MARK):
        return None
    found = parse(name.removeprefix(_MARK))
    return found["keys"], found["flag"]


def table_by(keys: Sequence[Column], flag: Column | None, columns: Sequence[Column]) -> TableSpec:
    """The table of these keys. A row is gone by its flag, or if its other columns are all null."""
    removed: Expression | None = flag
    if removed is None:
        names = {key.name for key in keys}
        missing = [call("is_null", each) for each in columns if each.name not in names]
        removed = reduce(lambda one, other: call("and", one, other), missing) if missing else None
    return TableSpec(tuple(keys), removed)
