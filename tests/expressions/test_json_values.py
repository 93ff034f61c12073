"""The compiled loop that finds values in JSON texts, and what reads the texts that it leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import ExpressionError
from penstock.expressions import json_kernels
from penstock.expressions.evaluate import evaluate
from penstock.expressions.json_kernels import FOUND, MISSING, ODD
from penstock.expressions.json_parser import members_of, value_at
from penstock.expressions.json_values import left_to_others, steps_of
from penstock.expressions.tree import call, column

TEXTS = [
    '{"a": {"b": [1, "two\\n", 3.50]}}', '{"a":{"b":["x",{"y":"z"}]}}', '{"a": {"c": 1}}', "[]",
    '{"a":{"b":null},"a":{"b":[0,null]}}', '{"a": {"b": [1, "\\u00e9"]}} trailing', "{", None, "",
]  # fmt: skip


def _verdict(text: str) -> int:
    data = np.frombuffer(text.encode(), np.uint8)
    steps = np.array([[json_kernels.BY_NAME, 0, 1]], np.int64)
    ends = np.array([data.size], np.int64)
    name = np.frombuffer(b"a", np.uint8)
    loop: Any = json_kernels.find_values  # whose stand-in leaves every text to others
    _, _, verdicts = loop.machine_code(data, ends * 0, ends, steps, name, False)
    return int(verdicts[0])


@pytest.mark.parametrize("path", ["$", "$.a.b", "$.a.b[1]", "$['a'].b[1].y"])
def test_rows_are_the_same_with_the_loop_and_without(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    tree = call("get_json_object", column("t", "string"), path=path)
    batch = pa.record_batch({"t": pa.array(TEXTS)}).slice(1)
    compiled = evaluate(tree, batch)
    monkeypatch.setattr(json_kernels, "find_values", left_to_others)
    assert compiled.to_pylist() == evaluate(tree, batch).to_pylist()
    one_by_one = [None if text is None else value_at(text, steps_of(path)) for text in TEXTS[1:]]
    assert compiled.to_pylist() == one_by_one


def test_the_loop_does_what_programs_write_itself() -> None:
    found = ('{"a": 1}', '{"b": "\\u00e4", "a": [1.5, -0.25, {"c": "x\\"y"}]}', '{"a": "é😀"}')
    assert [_verdict(text) for text in found] == [FOUND] * 3
    assert [_verdict(text) for text in ('{"b": 1}', '{"a": null}', "[1]")] == [MISSING] * 3
    odd = ("{'a': 1}", '{"\\u0061": 1}', '{"a": 1.50}', '{"a": "\\ud83d"}', '{"a": 01}', "[" * 99)
    assert [_verdict(text) for text in odd] == [ODD] * 6


def test_the_last_member_counts_that_is_not_null() -> None:
    text = '{"a": 1, "b": {"a": 7}, "a": "x", "a": null}'
    assert members_of(text, {"a", "b"}) == {"a": "x", "b": '{"a":7}'}
    names = ["a", "c"]
    tree = call("json_field", column("t", "string"), name="a", names=names)
    assert evaluate(tree, pa.record_batch({"t": pa.array([text])})).to_pylist() == ["x"]


@pytest.mark.parametrize("path", ["a", "$.*", "$[*]", "$.a[*].b", "$..a", "$. a", "$[-1]", "$.a."])
def test_other_paths_are_left_to_spark(path: str) -> None:
    with pytest.raises(ExpressionError, match="only names and indices"):
        call("get_json_object", column("t", "string"), path=path)
