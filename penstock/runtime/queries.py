"""Stored queries: what the log's metadata keeps of each, who runs it, and how far it has come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from penstock.errors import InvalidProgram, QueryNotFound
from penstock.json_codec import Malformed, parse, read_as, spaced_json
from penstock.log.contract import Log
from penstock.names import check_any_name, check_name
from penstock.runtime.instances import InstanceNumbers
from penstock.runtime.markers import WATERMARK_NONE, Marker, decode_marker
from penstock.runtime.streams import register_streams
from penstock.stages.program import Program, VertexProgram

QUERIES_FOLDER = "queries"


class RunState(Enum):
    """What the newest run of a query last said of itself."""

    RUNNING = "running"
    STOPPED = "stopped"  # with a last commit: also at the end of the input
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StoredQuery:
    """A query as the log's metadata keeps it."""

    id: str
    name: str
    program: Program
    output: str
    location: str | None
    sink: str | None = None  # its kind and where it is; None if it was stored without
    beside: Mapping[str, str] = field(default_factory=dict)  # of more results: streams, and sinks
    gone: Mapping[str, str] = field(default_factory=dict)  # the same, of those it had earlier
    fed: Mapping[str, str] = field(default_factory=dict)  # streams that Spark brings in: of what

    @property
    def sinks(self) -> dict[str, str | None]:
        """By stream: the sink of each result."""
        return {self.output: self.sink, **self.beside}

    @property
    def sinks_ever(self) -> dict[str, str]:
        """The same, with results that are gone: their streams hold rows, and are nobody else's."""
        return {**self.gone, **{name: sink for name, sink in self.sinks.items() if sink}}

    def encode(self) -> bytes:
        return spaced_json(self)


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """How far a query has come: the last marker of each of its vertices, None before the first."""

    markers: dict[str, Marker | None]
    watermark_us: int  # the least of the vertices with state; of all where none has any

    @property
    def epoch(self) -> int:
        """The newest epoch of any vertex; 0 before the first commit."""
        return max((marker.epoch for marker in self._known()), default=0)

    @property
    def late_rows(self) -> int:
        return sum(marker.late_rows for marker in self._known())

    @property
    def rejected_rows(self) -> int:
        return sum(marker.rejected_rows for marker in self._known())

    @property
    def has_ended(self) -> bool:
        """Whether every vertex has committed the end of its input."""
        return all(marker is not None and marker.ended for marker in self.markers.values())

    def _known(self) -> list[Marker]:
        return [marker for marker in self.markers.values() if marker is not None]


def stored_query(log: Log, name: str) -> StoredQuery | None:
    """Read a query back; None if there is none of that name."""
    found = log.get(f"query/{check_name(name, 'query')}")
    return None if found is None else _decode(name, found.value)


def needed_query(log: Log, name: str) -> StoredQuery:
    """Read a query back; QueryNotFound lists what there is."""
    found = stored_query(log, name)
    if found is None:
        known = ", ".join(stored_names(log)) or "none"
        raise QueryNotFound(
            f"there is no query {name!r} in this log; known: {known}",
            query=name,
        )
    return found


def query_at(log: Log, location: str) -> StoredQuery | None:
    """The query that a checkpoint location belongs to; None if it is nobody's."""
    return next((query for query in _all(log) if query.location == location), None)


def query_with_id(log: Log, query_id: str) -> StoredQuery:
    """The query with an id; QueryNotFound lists what there is."""
    queries = list(_all(log))
    found = next((query for query in queries if query.id == query_id), None)
    if found is None:
        known = ", ".join(f"{query.id} ({query.name})" for query in queries) or "none"
        raise QueryNotFound(
            f"there is no query with the id {query_id!r} in this log; known: {known}. Leave "
            "queryId out to start a new query",
            query_id=query_id,
        )
    return found


def stored_names(log: Log) -> list[str]:
    """The names of all stored queries, in order."""
    return sorted(key.split("/", 1)[1] for key in log.keys("query"))


def query_progress(log: Log, program: Program) -> QueryProgress:
    """What the last markers say. Each vertex is read at its own moment."""
    markers = {vertex.name: _last_marker(log, vertex) for vertex in program.vertices}
    stateful = [v for v in program.vertices if program.stage_of(v).stateful]
    watermarks = [
        WATERMARK_NONE if (marker := markers[vertex.name]) is None else marker.watermark_us
        for vertex in stateful or program.vertices
    ]
    return QueryProgress(markers, min(watermarks, default=WATERMARK_NONE))


def begin_run(log: Log, stored: StoredQuery) -> InstanceNumbers:
    """Store a query, after what its streams are, and begin a run of it: the newest from here on."""
    register_streams(log, stored.program)
    log.put(f"query/{stored.name}", stored.encode())
    return InstanceNumbers(log, stored.name, [v.name for v in stored.program.vertices])


def note_run(log: Log, name: str, run: int, state: RunState) -> None:
    """Store what the run of this number says of itself, unless a newer one has spoken."""
    key, value = _state_key(name), f"{run} {state.value}".encode("ascii")
    while True:
        known = log.get(key)
        said = None if known is None else _decode_state(known.value)
        if said is not None and said[0] > run:
            return
        if log.compare_and_set(key, 0 if known is None else known.version, value):
            return


def run_state(log: Log, name: str) -> RunState | None:
    """What the newest run last said; None if the query was never started, or nobody can read it."""
    known = log.get(_state_key(name))
    said = None if known is None else _decode_state(known.value)
    return None if said is None else said[1]


def _state_key(name: str) -> str:
    return f"state/{check_name(name, 'query')}"


def _decode_state(value: bytes) -> tuple[int, RunState] | None:
    """The number of a run and what it said; None if it cannot be read."""
    number, _, state = bytes(value).decode("ascii", "replace").partition(" ")
    try:
        return int(number), RunState(state)
    except ValueError:
        return None


def lock_path(folder: Path, name: str) -> Path:
    """The file that whoever runs a query keeps locked."""
    return folder / QUERIES_FOLDER / f"{check_name(name, 'query')}.lock"


def running_process(folder: Path, name: str) -> int | None:
    """The process of this machine that runs a query; None if there is none.

    The kernel's table is read: trying the lock instead would stand in the way of a start for a
    moment.
    """
    path = lock_path(folder, name)
    try:
        inode = str(path.stat().st_ino)
        with open("/proc/locks", encoding="ascii") as table:
            rows = [line.split() for line in table if "->" not in line]
    except OSError:
        return None
    # By inode alone: some filesystems show another device to stat than to the kernel's table.
    holders = (int(r[4]) for r in rows if r[1] == "FLOCK" and r[5].rsplit(":", 1)[-1] == inode)
    return next(holders, None)


def _all(log: Log) -> Iterator[StoredQuery]:
    for name in stored_names(log):
        with suppress(InvalidProgram):  # one damaged entry is no reason to refuse all the others
            if (query := stored_query(log, name)) is not None:
                yield query


def _last_marker(log: Log, vertex: VertexProgram) -> Marker | None:
    record = log.last(vertex.vertex_tag)
    return None if record is None else decode_marker(record)


def _decode(name: str, value: bytes) -> StoredQuery:
    try:
        query = read_as(StoredQuery, parse(value), "query")
        check_name(query.name, "query")
        check_any_name(query.output, "stream")
        return query
    except Malformed as error:
        raise InvalidProgram(
            f"the stored query {name!r} cannot be read ({type(error).__name__}: {error}): run "
            "`penstock fsck`; start the query under a new name",
            query=name,
        ) from error
