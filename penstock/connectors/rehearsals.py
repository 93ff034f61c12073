"""Rehearsals of readers: a few rows of a format, so that what reads them is compiled.

The compiled functions of the readers have nothing that could stand in for them. They are compiled
by a process beside the slots, which calls them here as the readers do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.connectors import line_kernels, nexmark_columns, nexmark_kernels, text_kernels
from penstock.connectors.line_formats import CsvLines, JsonLines, LineFormat, Lines, TextLines
from penstock.connectors.nexmark import KINDS, Kind, NexmarkSource

_TIMES = pa.schema([("t", pa.timestamp("us", "UTC"))])
_OTHERS = pa.schema([("i", pa.int64()), ("f", pa.float64()), ("b", pa.bool_()), ("d", pa.date32())])


def _text() -> None:
    _read(TextLines(pa.schema([("value", pa.string())])), b"one\r\ntwo\n")


def _json() -> None:
    _read(JsonLines(pa.schema([("i", pa.int64())])), b'{"i": 1}\n{"i": "\xc3\xa4"}\n')


def _times() -> None:
    _read(JsonLines(_TIMES), b'{"t": "2024-02-29T10:00:00.5Z"}\n{"t": null}\n')


def _csv() -> None:
    _read(CsvLines(_OTHERS), b'1,2.5,true,2024-02-29\n"2",1,false,\n')
    _read(CsvLines(_TIMES), b"2024-02-29 10:00:00\n")


def _nexmark(kind: Kind) -> Callable[[], None]:
    def rehearse() -> None:
        source = NexmarkSource(kind=kind)
        source.read(source.initial_offset(), 100)

    return rehearse


REHEARSALS: Mapping[str, Callable[[], None]] = MappingProxyType(
    {
        "text": _text,
        "jsonl": _json,
        "times": _times,
        "csv": _csv,
        **{f"nexmark_{kind}": _nexmark(kind) for kind in (*KINDS, "all")},
    }
)
OFTEN = ("text", "jsonl", "times")  # are worth compiling before anybody has asked


def rehearsals_for(connector: str, options: Mapping[str, Any], schema: pa.Schema) -> Iterator[str]:
    """What is to be rehearsed before a source is read."""
    if connector == "nexmark":
        yield f"nexmark_{options.get('kind', 'bids')}"
    if connector == "folder" and (form := options["format"]) in REHEARSALS:
        yield from ("text", form) if form != "text" else ("text",)
        if form == "jsonl" and any(pa.types.is_timestamp(kind) for kind in schema.types):
            yield "times"


def rehearsed_source() -> str:
    """The text of all that is compiled by rehearsals."""
    modules = (line_kernels, text_kernels, nexmark_kernels, nexmark_columns)
    return "\n".join(inspect.getsource(module) for module in modules)


def _read(form: LineFormat, raw: bytes) -> None:
    data = np.frombuffer(raw, np.uint8)
    starts, ends, _ = line_kernels.find_lines(data, len(raw), True)
    form.rows(Lines(data, starts, ends), False)
