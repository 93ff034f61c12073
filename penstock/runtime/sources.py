"""The sources that a program may name: one visible table from name to builder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, cast
from weakref import WeakValueDictionary

import pyarrow as pa

from penstock.clock import Clock
from penstock.connectors.contract import Source
from penstock.connectors.folder import FolderOptions, FolderSource, Format
from penstock.connectors.folder_listing import FolderListing
from penstock.connectors.folder_paths import split_pattern
from penstock.connectors.folder_registry import Registry
from penstock.connectors.nexmark import Kind, NexmarkSettings, NexmarkSource
from penstock.connectors.parquet_statistics import Condition
from penstock.connectors.producers import ProducersSource
from penstock.connectors.rate import RateSource
from penstock.connectors.repeating import RepeatingSource, read_sample
from penstock.connectors.text_socket import SocketSource
from penstock.connectors.ysb import ysb_source
from penstock.errors import InvalidArgument
from penstock.expressions.types import Field, Schema, arrow_schema, parse_type
from penstock.log.contract import Log
from penstock.runtime.partition_values import partition_columns


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """A source as a program asks for it: its options, the columns that are used, and which part."""

    name: str  # of the query and stage, for what the source keeps in the registry
    options: Mapping[str, Any]
    schema: pa.Schema
    part: int
    parts: int
    registry: Registry  # where a source may keep what must outlive it
    clock: Clock
    has_dead_letters: bool = False  # input that does not fit has somewhere to go
    condition: Condition | None = None  # rows of which it is not true are needed by nobody
    coded: Set[str] = frozenset()  # texts that may come as codes of a dictionary
    wake: Callable[[], None] | None = None  # to be called when there is more than before
    # Of all in this process, each as long as a source has it.
    listings: MutableMapping[str, FolderListing] = field(default_factory=WeakValueDictionary)


FOLDER_SETTLE_MS = 100  # longer than a copy under way rests, and short for whoever waits for rows
FOLDER_DONE_MS = 20  # time for a program that closes a file and then sets its times

SourceBuilder = Callable[[SourceRequest], Source]


def _part(request: SourceRequest, whole: Source) -> Source:
    """What one of several vertices reads of a source."""
    part = whole.split(request.parts)[request.part] if request.parts > 1 else whole
    part.replayable &= request.options.get("replayable") is not False
    return part


def _nexmark(request: SourceRequest) -> Source:
    names = {"kind", "seed", "rate", "events_max", "group", "base_ms", "parallel", "paced"}
    options = _taken(request, names)
    paced = bool(options.pop("paced", False))
    kind = cast(Kind, options.pop("kind", "bids"))
    whole = NexmarkSource(
        NexmarkSettings(**options),
        kind,
        [name for column in request.schema for name in _fields(column)],
        request.clock if paced else None,
        _start_us(request) if paced else 0,
    )
    return _part(request, whole)


def _fields(column: pa.Field) -> list[str]:
    """A column as the generator calls it: of a struct those fields that are wanted."""
    if not pa.types.is_struct(column.type):
        return [column.name]
    return [f"{column.name}.{field.name}" for field in column.type]


def _rate(request: SourceRequest) -> Source:
    options = _taken(request, {"rows_per_s", "rows_total"})
    rows_total = options.get("rows_total")
    whole = RateSource(options["rows_per_s"], _start_us(request), rows_total, request.clock)
    return _part(request, whole)


def _ysb(request: SourceRequest) -> Source:
    options = _taken(request, {"rate", "rows_total"})
    return _part(request, ysb_source(**options, columns=request.schema.names))


def _replay(request: SourceRequest) -> Source:
    options = _taken(request, {"path", "time_column", "period_us", "digest", "rows_total"})
    rows_total = options.pop("rows_total", None)
    names, sample = request.schema.names, read_sample(**options)
    return _part(request, RepeatingSource(sample, rows_total, names, coded=request.coded))


def _socket(request: SourceRequest) -> Source:
    options = _taken(request, {"host", "port"})
    return SocketSource(options["host"], options["port"], request.clock)


def _producers(request: SourceRequest) -> Source:
    options = _taken(request, {"port", "token_file", "buffer_bytes", "columns"})
    columns = arrow_schema(_columns(options.pop("columns")))
    return ProducersSource(request.schema, columns, wake=request.wake, **options)


def _folder(request: SourceRequest) -> Source:
    reading = {"mode", "bounded", "recursive", "pattern", "base"}
    reading |= {"header", "delimiter", "escape", "check_header", "case_sensitive"}
    reading |= {"settle_ms", "changed", "latest_first", "files_max", "bytes_max"}
    reading |= {"age_ms_max", "name_only", "clean", "archive"}
    known = {"format", "path", "glob", "columns", "partitions", "time_zone", "facts"}
    options = _taken(request, {*known, *reading})
    settling = {"settle_ms": FOLDER_SETTLE_MS, "done_ms": FOLDER_DONE_MS}
    if "settle_ms" in options:  # who says how long means it, also of files that are closed
        settling = {"settle_ms": options["settle_ms"]}
    partitions = _columns(options.get("partitions", ()))
    facts = pa.schema([f for f in request.schema if f.name in options.get("facts", ())])
    names = {*(field.name for field in partitions), *facts.names}
    schema = pa.schema([field for field in request.schema if field.name not in names])
    if options["format"] == "csv" and "columns" in options:  # by place: all of them are needed
        schema = arrow_schema(_columns(options["columns"]))
    elif not len(schema):  # rows are counted all the same
        schema = arrow_schema(_columns(options["columns"][:1] or [["__row", "string"]]))
    folder, below = options["path"], ""
    if options.get("glob"):
        folder, below = split_pattern(folder)
    if request.has_dead_letters:
        options.setdefault("mode", "deadletter")
    key = files_key(request.name)
    first = request.registry.get(first_key(request.name))
    whole = FolderSource(
        folder,
        cast(Format, options["format"]),
        request.registry,
        schema,
        FolderOptions(
            below=below,
            **{name: options[name] for name in reading if name in options} | settling,
        ),
        key,
        request.clock,
        request.listings.get(key),
        request.condition,
        request.coded,
        request.wake,
        partition_columns(partitions, request.schema.names, options.get("time_zone")),
        facts,
        0 if first is None else int(first.value),
    )
    request.listings[key] = whole.listing
    return _part(request, whole)


def _columns(columns: Sequence[Sequence[str]]) -> Schema:
    return tuple(Field(name, parse_type(kind)) for name, kind in columns)


def files_key(source: str) -> str:
    """Where the files that a source has found are listed."""
    return f"source/{source}/files"


def first_key(source: str) -> str:
    """Where it stands with how many of them it does not begin: somebody else has read them."""
    return f"source/{source}/first"


def _start_us(request: SourceRequest) -> int:
    """When a source that is paced by the clock began: the first time it was built, for ever."""
    key = f"source/{request.name}/start"
    request.registry.compare_and_set(key, 0, b"%d" % request.clock.now_us())
    found = request.registry.get(key)
    assert found is not None
    return int(found.value)


def start_keys(log: Log, query: str) -> list[str]:
    """Where the log keeps when the paced sources of a query began."""
    begin = f"source/{query}."
    return [key for key in log.keys("source") if key.startswith(begin) and key.endswith("/start")]


def _taken(request: SourceRequest, known: set[str]) -> dict[str, Any]:
    options = {name: each for name, each in request.options.items() if name != "replayable"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise InvalidArgument(
            f"a source has no option {', '.join(unknown)}; known: {', '.join(sorted(known))}",
            options=unknown,
        )
    return options


SOURCES: Mapping[str, SourceBuilder] = {
    "nexmark": _nexmark,
    "rate": _rate,
    "ysb": _ysb,
    "replay": _replay,
    "folder": _folder,
    "socket": _socket,
    "producers": _producers,
}
