"""The sources that a program may name: one visible table from name to builder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from penstock.clock import Clock
from penstock.connectors.contract import Source
from penstock.connectors.folder import FolderOptions, FolderSource, Format
from penstock.connectors.folder_registry import Registry
from penstock.connectors.nexmark import Kind, NexmarkSettings, NexmarkSource
from penstock.connectors.rate import RateSource
from penstock.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """A source as a program asks for it: its options, the columns that are used, and which part."""

    options: Mapping[str, Any]
    schema: pa.Schema
    part: int
    parts: int
    registry: Registry  # where a source may keep what must outlive it
    clock: Clock


SourceBuilder = Callable[[SourceRequest], Source]


def build_source(request: SourceRequest, whole: Source) -> Source:
    """The part of a source that one of several vertices reads."""
    return whole.split(request.parts)[request.part] if request.parts > 1 else whole


def _nexmark(request: SourceRequest) -> Source:
    options = _taken(
        request,
        {"seed", "rate", "events", "group", "base_ms", "kind", "parallel", "paced", "start_us"},
    )
    settings = NexmarkSettings(
        seed=int(options.get("seed", 0)),
        rate=float(options.get("rate", 10_000.0)),
        events_max=None if options.get("events") is None else int(options["events"]),
        group=int(options.get("group", 1)),
        parallel=options.get("parallel", "interleaved"),
        **({"base_ms": int(options["base_ms"])} if "base_ms" in options else {}),
    )
    kind = cast(Kind, options.get("kind", "bids"))
    columns = list(request.schema.names) or None
    clock = request.clock if options.get("paced") else None
    start_us = int(options.get("start_us", 0))
    return build_source(request, NexmarkSource(settings, kind, columns, clock, start_us))


def _rate(request: SourceRequest) -> Source:
    options = _taken(request, {"rows_per_s", "start_us", "rows"})
    rows = options.get("rows")
    whole = RateSource(
        int(options.get("rows_per_s", 1)),
        int(options.get("start_us", 0)),
        None if rows is None else int(rows),
        request.clock,
    )
    return build_source(request, whole)


def _folder(format: Format) -> SourceBuilder:
    def build(request: SourceRequest) -> Source:
        names = {"path", "registry_key", "mode", "bounded", "recursive", "pattern", "header"}
        options = _taken(request, names | {"delimiter"})
        reading = {k: v for k, v in options.items() if k not in ("path", "registry_key")}
        whole = FolderSource(
            options["path"],
            format,
            request.registry,
            request.schema,
            FolderOptions(**reading),
            options.get("registry_key", "files"),
        )
        return build_source(request, whole)

    return build


def _taken(request: SourceRequest, known: set[str]) -> dict[str, Any]:
    unknown = sorted(set(request.options) - known)
    if unknown:
        raise InvalidArgument(
            f"a source has no option {', '.join(unknown)}; known: {', '.join(sorted(known))}",
            options=unknown,
        )
    return dict(request.options)


SOURCES: Mapping[str, SourceBuilder] = {
    "nexmark": _nexmark,
    "rate": _rate,
    "parquet": _folder("parquet"),
    "json": _folder("jsonl"),
    "csv": _folder("csv"),
    "text": _folder("text"),
}
