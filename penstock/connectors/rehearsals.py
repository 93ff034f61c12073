"""Rehearsals of readers: a few rows, so that everything that is slow the first time is done.

A slot rehearses the lines of its source itself: machine code is loaded, or wished for, or waited
for where nothing stands in for it (decimals in CSV, binaries in JSON). What makes NEXMark events
has no stand-in either, and is rehearsed in the process beside the slots that compiles, which calls
it here as the readers do.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.connectors import line_kernels, nexmark_columns, nexmark_kernels
from penstock.connectors.line_formats import CsvLines, JsonLines, LineFormat, Lines, TextLines
from penstock.connectors.nexmark import KINDS, Kind, NexmarkSource

_FORMATS: Mapping[str, Callable[[pa.Schema], LineFormat]] = MappingProxyType(
    {"text": TextLines, "jsonl": JsonLines, "csv": CsvLines}
)


def _nexmark(kind: Kind) -> Callable[[], None]:
    def rehearse() -> None:
        source = NexmarkSource(kind=kind)
        source.read(source.initial_offset(), 100)

    return rehearse


REHEARSALS: Mapping[str, Callable[[], None]] = MappingProxyType(
    {f"nexmark_{kind}": _nexmark(kind) for kind in (*KINDS, "all")}
)


def rehearsals_for(connector: str, options: Mapping[str, Any]) -> Iterator[str]:
    """What is to be rehearsed elsewhere before a source is read."""
    if connector == "nexmark":
        yield f"nexmark_{options.get('kind', 'bids')}"


def rehearsed_source() -> str:
    """The text of all that is compiled by rehearsals."""
    return "\n".join(inspect.getsource(module) for module in (nexmark_kernels, nexmark_columns))


def rehearse_lines(form: str, schema: pa.Schema) -> None:
    """Read two lines, if that is what a format is about."""
    if form not in _FORMATS:
        return
    line = _line(form, schema).encode()
    data = np.frombuffer(line + b"\n" + line + b"\n", np.uint8)
    starts, ends, _ = line_kernels.find_lines(data, 2, True)
    _FORMATS[form](schema).rows(Lines(data, starts, ends), False)


def _line(form: str, schema: pa.Schema) -> str:
    samples = {field.name: _sample(field.type) for field in schema}
    if form == "csv":
        return ",".join(samples.values())
    # Other values than texts are the parser's own matter; of lists and structs there is none here.
    texts = {
        name: sample
        for name, sample in samples.items()
        if pa.types.is_temporal(schema.field(name).type) or schema.field(name).type == pa.binary()
    }
    return json.dumps(texts)


def _sample(kind: pa.DataType) -> str:
    if pa.types.is_date(kind):
        return "2024-02-29"
    if pa.types.is_timestamp(kind):
        return "2024-02-29 10:00:00"
    return "true" if pa.types.is_boolean(kind) else "1000"
