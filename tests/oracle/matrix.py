"""Expressions in SQL, made from the table of functions itself: every function on every type.

What our own checks accept must be what Spark accepts, and give what Spark gives. So a function or a
type that is added to the table is judged without anybody remembering to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.errors import ExpressionError
from penstock.expressions.functions import FUNCTIONS, Function
from penstock.expressions.tree import Call, call, column
from tests.oracle.edges import PAIRS

CASTS = ("cast", "try_cast")

# What cannot be guessed from the table: the options that a call needs, and other constants.
_OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "round": tuple({"scale": scale} for scale in (0, 1, -1)),
    "date_trunc": tuple(
        {"unit": unit, "time_zone": "UTC"}
        for unit in ("year", "quarter", "month", "week", "day", "hour", "minute", "second",
                     "millisecond", "microsecond")
    ),
    "concat_ws": ({"separator": "-"},),
    "like": tuple({"pattern": text} for text in ("a%", "%c", "_b_", "%", "")),
    "rlike": tuple({"pattern": text} for text in ("^a", "[0-9]+", "a.*c", "(a|X)b?")),
    "split": tuple({"pattern": text} for text in (",", "X", "[0-9]+", " ")),
}  # fmt: skip
# Read by name in SQL, and printed by another: `struct(…)` calls its fields col1, col2, ….
_NOT_PRINTED_AS_SQL = frozenset(
    {"struct", "get_field", "lookup", "nullif", "null_on_error", "try_eval"}
    | {"sequence"}  # between the extremes it would fill Spark's memory
    # the engine's own
    | {"key_bytes", "of_key_bytes", "interval_micros", "interval_of_micros"}
    | {"interval_months", "interval_of_months"}
    | {"multiply_micros", "divide_micros", "padded_number"}
)


def matrix() -> list[str]:
    """Each of them as SQL, once."""
    found: list[str] = []
    for function in FUNCTIONS.values():
        if function.name in _NOT_PRINTED_AS_SQL or function.name in CASTS:
            continue
        found += map(str, _calls(function))
    found += map(str, _casts())
    return list(dict.fromkeys(found))


def _calls(function: Function) -> Iterator[Call]:
    least, most = function.arity
    count = least if most == least else max(least, 2)
    for kind, names in PAIRS.items():
        args = [column(names[index % 2], kind) for index in range(count)]
        for options in _OPTIONS.get(function.name, ({},)):
            made = _accepted(function.name, args, options)
            if made is not None:
                yield made


def _casts() -> Iterator[Call]:
    for function in CASTS:
        for source, (name, _) in PAIRS.items():
            for target in PAIRS:
                made = _accepted(function, [column(name, source)], {"to": target})
                if made is not None and source != target:
                    yield made
        texts = [column(name, "string") for name in ("num", "at")]
        for text, target in ((text, target) for text in texts for target in PAIRS):
            made = _accepted(function, [text], {"to": target})
            if made is not None:
                yield made


def _accepted(function: str, args: list[Any], options: dict[str, Any]) -> Call | None:
    """The call, in UTC where it needs a zone; None if our own table refuses it."""
    for more in ({}, {"time_zone": "UTC"}):
        try:
            return call(function, *args, **{**options, **more})
        except ExpressionError:
            continue
    return None
