"""The table of functions is whole: whatever knows a function has it from its row."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from penstock.catalyst.expressions import EXPRESSION_KINDS
from penstock.expressions import (
    arithmetic,
    bits,
    branches,
    casts,
    collections,
    comparison,
    dates,
    formats,
    functions,
    hashes,
    intervals,
    json_texts,
    json_values,
    json_writing,
    key_values,
    lambdas,
    mathematics,
    nested,
    strings,
    texts,
    times,
    writers,
)
from penstock.expressions.functions import FUNCTIONS
from penstock.expressions.nodes import Function

EVALUATING = (
    arithmetic, bits, branches, casts, collections, comparison, dates, formats, hashes, intervals,
    json_texts, json_values, json_writing, key_values, lambdas, mathematics, nested, strings,
    texts, times,
)  # fmt: skip
# Made from other classes of Catalyst, by builders: a negated equality, what is in TRY mode, a case.
WITHOUT_CLASS = {
    "array_concat", "array_prepend", "array_reverse", "base64", "binary_substring",
    "interval_micros", "interval_months", "interval_of_micros", "interval_of_months", "json_field",
    "key_bytes",
    "ltrim_characters", "map_value", "ne", "null_on_error", "nullif",
    "of_key_bytes", "padded_number", "rtrim_characters", "to_json", "trim_characters", "try_cast",
    "try_parse_time",
}  # fmt: skip
# Classes that are no function: leaves, what stands over groups, and what others are made from.
WITHOUT_FUNCTION = {
    "AggregateExpression", "AtLeastNNonNulls", "AttributeReference", "ConvertTimezone",
    "DateAddYMInterval", "DateSub", "ExtractANSIIntervalDays", "ExtractANSIIntervalHours",
    "ExtractANSIIntervalMinutes", "ExtractANSIIntervalSeconds", "FormatString", "InSet",
    "InputFileName", "Invoke",
    "KnownNotContainsNull",
    "KnownNullable", "LikeAll", "LikeAny", "Literal", "MakeDTInterval", "MakeDecimal", "NaNvl",
    "NamedLambdaVariable", "NotLikeAll", "NotLikeAny",
    "PreciseTimestampConversion", "ScalarSubquery", "StaticInvoke", "StringLocate", "StringSpace",
    "SubtractDates", "SubtractTimestamps", "TimestampAdd",
    "ToUnixTimestamp", "UnixTimestamp", "UnscaledValue", "WeekDay", "WindowExpression",
    "array_sort",
}  # fmt: skip


def _rows() -> list[Function]:
    tuples = [value for value in vars(functions).values() if isinstance(value, tuple)]
    return [row for rows in tuples for row in rows if isinstance(row, Function)]


def _public(module: ModuleType, shape: list[str]) -> Iterator[Callable[..., Any]]:
    """The functions of a module that others may use, whose parameters have these types."""
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if function.__module__ == module.__name__ and not name.startswith("_"):
            parameters = inspect.signature(function).parameters.values()
            if [parameter.annotation for parameter in parameters] == shape:
                yield function


def test_every_function_has_one_row() -> None:
    assert sorted(row.name for row in _rows()) == sorted(FUNCTIONS)
    assert all(FUNCTIONS[name].name == name for name in FUNCTIONS)


def test_what_evaluates_stands_in_a_row() -> None:
    shape = ["Call", "list[pa.Array]", "Frame"]
    written = {function for module in EVALUATING for function in _public(module, shape)}
    assert written == {row.evaluate for row in FUNCTIONS.values()}


def test_what_writes_source_stands_in_a_row() -> None:
    used = {row.compiled.write for row in FUNCTIONS.values() if row.compiled is not None}
    made_for_one = {write for write in used if "<locals>" in write.__qualname__}
    assert set(_public(writers, ["Emitter", "Call"])) == used - made_for_one


def test_what_catalyst_has_stands_in_a_row() -> None:
    classes = [row.catalyst for row in FUNCTIONS.values() if row.catalyst is not None]
    assert len(set(classes)) == len(classes)
    assert EXPRESSION_KINDS - set(classes) == WITHOUT_FUNCTION
    assert set(classes) <= EXPRESSION_KINDS
    assert {row.name for row in FUNCTIONS.values() if row.catalyst is None} == WITHOUT_CLASS
    assert not [row for row in FUNCTIONS.values() if row.ansi and row.catalyst is None]


@pytest.mark.parametrize("row", FUNCTIONS.values(), ids=lambda row: row.name)
def test_a_row_prints_a_call_with_all_its_arguments(row: Function) -> None:
    least, most = row.arity
    args = [f"<{index}>" for index in range(most or least + 1)]
    options = {name: name.upper() for name in row.options}
    text = row.text(args, options)
    assert all(arg in text for arg in args)
