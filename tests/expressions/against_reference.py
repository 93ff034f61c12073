"""Compares the engine with the reference, row by row, on values and on which rows fail."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa

from penstock.expressions.evaluate import evaluate_rows
from penstock.expressions.tree import Expression, may_fail
from penstock.expressions.types import arrow_type
from tests.expressions import reference


def plain(array: pa.Array) -> list[Any]:
    """Python values: a date as its days, a timestamp as its microseconds."""
    if pa.types.is_timestamp(array.type):
        return array.cast(pa.int64()).to_pylist()
    if pa.types.is_date32(array.type):
        return array.cast(pa.int32()).to_pylist()
    return array.to_pylist()


def same(ours: Any, theirs: Any, close: bool = False) -> bool:
    if isinstance(ours, float) and isinstance(theirs, float):
        if math.isnan(ours) or math.isnan(theirs):
            return math.isnan(ours) and math.isnan(theirs)
        if close and ours != theirs:
            return math.isclose(ours, theirs, rel_tol=1e-14)
        return ours == theirs and math.copysign(1, ours) == math.copysign(1, theirs)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return type(ours) is type(theirs) and bool(ours == theirs)


def check_against_reference(tree: Expression, batch: pa.RecordBatch, close: bool = False) -> None:
    """Fail unless both give the same value, or both refuse, on every row."""
    (array,), bad, first = evaluate_rows([tree], batch)
    array.validate(full=True)
    assert array.type.equals(arrow_type(tree.type))
    assert len(array) == batch.num_rows
    node = tree.to_json()
    columns = {name: plain(batch.column(name)) for name in batch.schema.names}
    values = plain(array)
    for row in range(batch.num_rows):
        given = {name: column[row] for name, column in columns.items()}
        try:
            wanted = reference.value_of(node, given)
        except reference.Refused:
            assert bad[row], f"{tree} on {given}: {values[row]!r}, but must fail"
            continue
        except OverflowError:  # outside the years that the reference can count
            continue
        assert not bad[row], f"{tree} on {given}: fails, but must give {wanted!r}"
        assert same(values[row], wanted, close), f"{tree} on {given}: {values[row]!r} != {wanted!r}"
        assert wanted is not None or tree.nullable, f"{tree} is null but said never to be"
    assert (first is None) == (not bad.any())
    assert first is None or may_fail(tree), f"{tree} fails but said never to"
    if first is not None:
        assert first.details["row"] == int(bad.argmax())
