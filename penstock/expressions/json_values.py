"""Values found in columns of JSON texts, as Spark's get_json_object and json_tuple find them.

Texts that are JSON by the letter go through a compiled loop; what that leaves is read one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.arrays import Bytes, Mask, Vector, text_column, texts_of, validity_of
from penstock.errors import ExpressionError
from penstock.expressions import json_kernels
from penstock.expressions.frame import Frame
from penstock.expressions.json_kernels import BY_INDEX, BY_NAME, FOUND, ODD
from penstock.expressions.json_parser import Step, members_of, value_at
from penstock.expressions.nodes import Call

# One step of a path. What else Spark takes, wildcards and names that begin with spaces, is not
# known here.
_STEP = re.compile(r"\.([^\s.\[\]'?*][^.\[\]'?*]*)|\['([^\s\[\]'?*][^'?*]*)'\]|\[(\d{1,9})\]")


def check_json_path(value: Any) -> str:
    """A path of names and indices."""
    text = str(value)
    steps_of(text)
    return text


@lru_cache(maxsize=256)
def steps_of(path: str) -> tuple[Step, ...]:
    """The steps of a path, `$` being none."""
    steps: list[Step] = []
    at = 1
    while path.startswith("$") and at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            break
        name, quoted, index = match.groups()
        steps.append(int(index) if index is not None else name or quoted)
        at = match.end()
    if not path.startswith("$") or at < len(path):
        raise ExpressionError(f"only names and indices are known in a JSON path here, not {path!r}")
    return tuple(steps)


def get_json_object(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    steps = steps_of(node.option("path"))
    return _values(args[0], steps, False, lambda text: value_at(text, steps))


def json_field(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """One of the members that are asked for: if another one cannot be written, it is null too."""
    name, names = node.option("name"), frozenset(node.option("names"))
    return _values(args[0], (name,), True, lambda text: members_of(text, names).get(name))


def _values(
    texts: pa.Array, steps: tuple[Step, ...], last: bool, read: Callable[[str], str | None]
) -> pa.Array:
    there = validity_of(texts)
    offsets, data = texts_of(texts)
    begins = offsets.astype(np.int64)
    written, finishes, verdicts = json_kernels.find_values(
        data, begins[:-1], np.where(there, begins[1:], begins[:-1]), *_encoded(steps), last
    )
    odd = np.flatnonzero(there & (verdicts == ODD))
    found: Mask = there & (verdicts == FOUND)
    column = text_column(pa.string(), np.concatenate([[0], finishes]), written, found)
    if not odd.size:
        return column
    others = [read(text) for text in texts.take(pa.array(odd)).to_pylist()]
    order = np.arange(len(texts))
    order[odd] = len(texts) + np.arange(odd.size)
    return pa.concat_arrays([column, pa.array(others, pa.string())]).take(pa.array(order))


@lru_cache(maxsize=256)
def _encoded(steps: tuple[Step, ...]) -> tuple[Vector, Bytes]:
    """The steps as the loop takes them."""
    names = b""
    rows = np.zeros((len(steps), 3), np.int64)
    for row, step in zip(rows, steps, strict=True):
        if isinstance(step, int):
            row[:] = BY_INDEX, step, 0
        else:
            encoded = step.encode()
            row[:] = BY_NAME, len(names), len(names) + len(encoded)
            names += encoded
    return rows, np.frombuffer(names + b"\0", np.uint8)


def left_to_others(
    _data: Bytes, begins: Vector, _ends: Vector, _steps: Vector, _names: Bytes, _last: bool
) -> tuple[Bytes, Vector, Bytes]:
    """What stands in for the loop until it is compiled: every text is read on its own."""
    verdicts = np.full(begins.size, ODD, np.uint8)
    return np.zeros(0, np.uint8), np.zeros(begins.size, np.int64), verdicts
