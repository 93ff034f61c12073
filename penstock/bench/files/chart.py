"""The figures as a picture: bars of rows per second by query, one colour per engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.bench.plots import Bar, bars

BARS = (
    Bar("cold_rows_per_s", "#9ecae1", "Penstock, first start"),
    Bar("rows_per_s", "#08519c", "Penstock"),
    Bar("spark_rows_per_s", "#e6550d", "Structured Streaming"),
    Bar("batch_rows_per_s", "#fdae6b", "Spark batch"),
    Bar("read_rows_per_s", "#bdbdbd", "reading alone (pyarrow)"),
)


def chart(queries: Mapping[str, Mapping[str, Any]]) -> str:
    """An SVG; heights are logarithms, because the engines are far apart."""
    words = "rows per second from start() until all is in the sink, on a logarithmic axis"
    return bars(words, queries, BARS)
