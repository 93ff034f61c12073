"""Public calls that build plans: what is wrong is refused by the name of the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import StreamError
from penstock.testing.columns import apply
from penstock.testing.plans import (
    aggregate,
    col,
    count,
    parse_schema,
    query,
    scan_source,
    scan_stream,
    sum_,
    window,
)

ROWS = scan_stream("b", "a bigint, xs array<int>, ts timestamp")
WRONG: tuple[Any, ...] = (None, -1, 1.5, b"x", [], {}, object(), True, "")

# By call and argument: the call, and which of the values above are right there.
CALLS: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...]]] = {
    "scan_stream name": (lambda v: scan_stream(v, "a int"), ()),
    "scan_stream schema": (lambda v: scan_stream("s", v), ()),
    "scan_stream substreams": (lambda v: scan_stream("s", "a int", v), ()),
    "scan_source source": (lambda v: scan_source(v, "a int"), ()),
    "scan_source schema": (lambda v: scan_source("s", v), ()),
    "scan_source partitions": (lambda v: scan_source("s", "a int", v), (None,)),
    "query name": (lambda v: query(v, ROWS.to_stream("o")), ()),
    "query writes": (lambda v: query("q", v), ()),
    "query parallelism": (lambda v: query("q", ROWS.to_stream("o"), parallelism=v), ()),
    "query settings": (lambda v: query("q", ROWS.to_stream("o"), settings=v), (None,)),
    "filter": (ROWS.filter, (True,)),
    "select": (ROWS.select, ()),
    "with_column name": (lambda v: ROWS.with_column(v, col("a")), ()),
    "with_column column": (lambda v: ROWS.with_column("x", v), (-1, 1.5, b"x", True, "")),
    "explode array": (lambda v: ROWS.explode(v, "x"), ()),
    "explode output": (lambda v: ROWS.explode("xs", v), ()),
    "explode outer": (lambda v: ROWS.explode("xs", "x", v), (True,)),
    "explode position": (lambda v: ROWS.explode("xs", "x", False, v), (None,)),
    "union others": (ROWS.union, ()),
    "with_watermark column": (lambda v: ROWS.with_watermark(v, 1), ()),
    "with_watermark delay": (lambda v: ROWS.with_watermark("ts", v), ()),
    "group_by key": (ROWS.group_by, ()),
    "group_by window": (lambda v: ROWS.group_by(window=v), (None,)),
    "agg calls": (lambda v: ROWS.group_by("a").agg(v, mode="update"), ()),
    "agg mode": (lambda v: ROWS.group_by("a").agg(count(), mode=v), ()),
    "to_stream name": (ROWS.to_stream, ()),
    "window time": (lambda v: ROWS.group_by(window=window(v, 5)), ()),
    "window size": (lambda v: ROWS.group_by(window=window("ts", v)), ()),
    "window slide": (lambda v: ROWS.group_by(window=window("ts", 5, v)), (None,)),
    "window start": (lambda v: ROWS.group_by(window=window("ts", 5, 5, v)), ()),
    "window output": (lambda v: window("ts", 5, 5, 0, v), ()),
    "aggregate function": (lambda v: ROWS.group_by("a").agg(aggregate(v), mode="update"), ()),
    "sum_ argument": (lambda v: ROWS.group_by("a").agg(sum_(v), mode="update"), ()),
    "count alias": (lambda v: count().alias(v), ()),
    "alias": (lambda v: col("a").alias(v), ()),
    "apply function": (lambda v: ROWS.select(apply(v, col("a")).alias("x")), ()),
    "cast to": (lambda v: ROWS.select(col("a").cast(v).alias("x")), ()),
    "parse_schema": (parse_schema, ()),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_refused_by_name(name: str) -> None:
    call, right = CALLS[name]
    for value in WRONG:
        if any(value is known for known in right):
            call(value)
            continue
        with pytest.raises(StreamError) as caught:
            call(value)
        assert caught.value.message, f"{name} of {value!r}"


def test_the_error_names_call_argument_and_value() -> None:
    with pytest.raises(StreamError, match="explode: output is 5; a name is expected") as caught:
        ROWS.explode("xs", 5)  # type: ignore[arg-type]
    assert caught.value.details == {"argument": "output"}
