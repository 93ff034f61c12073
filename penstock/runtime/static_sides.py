"""Static sides: rows that Spark computed for a query, in the log as versions.

A side is a stream of the query's own. Each version of it is what one marker of its producer
commits, and is called by the marker's epoch: 1, 2, 3. The driver writes them, each under an
instance of its own, so a version is whole or not there, and one of a run that was followed by
another is refused.

A vertex's marker names the version of each side that all rows behind it are joined with, up to the
next marker. So a new version takes effect at a marker, and whoever begins again from one sees the
same rows. A version is kept as long as the last marker of a vertex names it, or one before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.arrays import no_rows
from penstock.clock import Clock
from penstock.errors import StaticSideLost
from penstock.expressions.types import arrow_schema
from penstock.log import punit
from penstock.log.committed import CommittedReader
from penstock.log.contract import Log, register
from penstock.log.record import Fence, Position, Record, RecordKind
from penstock.names import own_name
from penstock.operators.specs import InitialState, PythonGroupsSpec, StaticJoinSpec
from penstock.operators.static_rows import StaticRows
from penstock.runtime.markers import Marker, decode_marker
from penstock.runtime.outputs import UNIT_BYTES_MAX, Outputs
from penstock.stages.program import Program, Stage
from penstock.stages.tags import marker_tag, substream_tag

SIDE_PREFIX = "static_"  # no stage and no stream between two is called so
INITIAL_PREFIX = f"{SIDE_PREFIX}initial_"  # of rows that processors are given once
LOOK_S = 0.05  # between two looks for a newer version, while there are rows to take

Versions = Mapping[str, int]  # by side
Loaded = MutableMapping[tuple[str, int], StaticRows]


@dataclass(frozen=True, slots=True)
class StaticVersion:
    """One version of a side, as its marker describes it."""

    number: int
    rows: int
    bytes: int  # in memory
    position: Position  # of its marker
    time_us: int  # when it was written


def static_sides(stage: Stage) -> dict[str, list[StaticJoinSpec | InitialState]]:
    """What reads a side in a stage, by side: joins, and processors that begin with its rows."""
    found: dict[str, list[StaticJoinSpec | InitialState]] = {}
    for spec in stage.specs:
        if isinstance(spec, StaticJoinSpec):
            found.setdefault(spec.side, []).append(spec)
        elif isinstance(spec, PythonGroupsSpec) and spec.initial is not None:
            found.setdefault(spec.initial.side, []).append(spec.initial)
    return found


def static_readers(program: Program) -> dict[str, tuple[str, ...]]:
    """The sides of a program, each with the tags of the vertices that read it."""
    found: dict[str, tuple[str, ...]] = {}
    for index, stage in enumerate(program.stages):
        tags = tuple(vertex.vertex_tag for vertex in program.stage_vertices(index))
        for side in static_sides(stage):
            found[side] = (*found.get(side, ()), *tags)
    return found


def fixed_sides(program: Program) -> list[str]:
    """The sides that rows meet which come and go: those that go must meet the rows of then."""
    return [
        spec.side
        for stage in program.stages
        for spec in stage.steps_of_changing_rows()
        if isinstance(spec, StaticJoinSpec)
    ]


# --- versions in the log --------------------------------------------------------------------------


def write_version(
    log: Log, query: str, side: str, instance: int, rows: pa.RecordBatch, codec: punit.Codec
) -> StaticVersion:
    """Append a version and what commits it; `Fenced` if a newer run has written one."""
    stream = own_name(query, side)
    register(log, stream, instance)
    before = newest_version(log, query, side)
    outputs = Outputs(log, Fence(stream, instance), codec, lambda tag: True)
    for piece in _pieces(rows):
        outputs.add(RecordKind.DATA, substream_tag(stream, 0), piece)
        outputs.append_early()
    facts = {"rows": rows.num_rows, "bytes": rows.nbytes}
    number = 1 if before is None else before.number + 1
    marker = Marker(stream, instance, number, timeless=True, progress=(facts,))
    outputs.commit((marker_tag(stream),), marker.encode())
    written = newest_version(log, query, side)
    assert written is not None
    return written


def newest_version(log: Log, query: str, side: str) -> StaticVersion | None:
    """The version that a vertex would begin with now; None before the first."""
    record = log.last(marker_tag(own_name(query, side)))
    return None if record is None else _version(record)


def load_version(log: Log, query: str, side: str, number: int, schema: pa.Schema) -> StaticRows:
    """The rows of a version; StaticSideLost if they are not there, or not any more."""
    stream = own_name(query, side)
    reader = CommittedReader(log, [substream_tag(stream, 0), marker_tag(stream)])
    while (release := reader.take()) is not None:
        if decode_marker(release.marker).epoch == number:
            batches = [punit.decode_record(record) for record in release.records]
            return StaticRows(number, _whole(batches, schema, stream, number))
    raise StaticSideLost(
        f"version {number} of static side {stream} is not in the log: run `penstock fsck`, then "
        "start the query with refreshStatic true under a new name",
        stream=stream,
        version=number,
    )


def has_version(log: Log, query: str, side: str) -> bool:
    """Whether a vertex could begin with a version: its rows are there."""
    newest = newest_version(log, query, side)
    return newest is not None and log.trimmed(_rows_tag(query, side)) < newest.position


def goes_by(log: Log, side: str, number: int, readers: Sequence[str]) -> bool:
    """Whether all these vertices join with a version or a newer one, or have ended."""
    markers = [decode_marker(last) for tag in readers if (last := log.last(tag)) is not None]
    done = [marker.ended or marker.statics.get(side, 0) >= number for marker in markers]
    return len(done) == len(readers) and all(done)


def describe_sides(log: Log, program: Program) -> dict[str, str]:
    """Each side of a program in words: its newest version, how large it is."""
    found = {}
    for side in static_readers(program):
        newest = newest_version(log, program.query, side)
        if newest is None:
            found[side] = "not computed yet: a start has Spark do it"
            continue
        size = f"{newest.rows:,} rows, {newest.bytes:,} bytes in each process that reads it"
        use = "changes with refresh()"
        if side.startswith(INITIAL_PREFIX):
            use = "the processor is given them once, before all other rows"
        found[side] = f"version {newest.number}: {size}; {use}"
    return found


def forget_sides(log: Log, program: Program) -> None:
    """Let the rows of sides go that the query had, and that no vertex of it goes by any more.

    The last marker of a side stays, so that its versions are counted on should it come back.
    """
    current = static_readers(program)
    last = [log.last(vertex.vertex_tag) for vertex in program.vertices]
    named = {side for each in last if each is not None for side in decode_marker(each).statics}
    for key in log.keys("instance"):
        owner, _, side = key.partition("/")[2].partition(".")
        if owner != program.query or not side.startswith(SIDE_PREFIX):
            continue
        if side not in current and side not in named and has_version(log, owner, side):
            newest = newest_version(log, owner, side)
            assert newest is not None
            log.trim(_rows_tag(owner, side), newest.position)


def trim_versions(log: Log, query: str, side: str, readers: Sequence[str]) -> None:
    """Let versions go that come before all which the last markers of its readers name."""
    stream = own_name(query, side)
    named = [_named(log.last(tag), side) for tag in readers]
    least = min(named, default=0)
    older = [each for each in _versions(log, stream) if each.number < least]
    if older:
        for tag in (substream_tag(stream, 0), marker_tag(stream)):
            log.trim(tag, older[-1].position)


def _rows_tag(query: str, side: str) -> str:
    return substream_tag(own_name(query, side), 0)


def _named(marker: Record | None, side: str) -> int:
    """The version that a vertex goes by; 0 if it has not said so yet."""
    return 0 if marker is None else decode_marker(marker).statics.get(side, 0)


def _versions(log: Log, stream: str) -> Iterator[StaticVersion]:
    after = Position(0)
    while page := log.read([marker_tag(stream)], after, 64):
        yield from map(_version, page)
        after = page[-1].position


def _version(record: Record) -> StaticVersion:
    marker = decode_marker(record)
    (facts,) = marker.progress
    return StaticVersion(
        marker.epoch, int(facts["rows"]), int(facts["bytes"]), record.position, record.time_us
    )


def _pieces(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Some rows at a time, so that not all of them are encoded before any is appended."""
    each = max(1, rows.num_rows * UNIT_BYTES_MAX // max(1, rows.nbytes))
    for first in range(0, rows.num_rows, each):
        yield rows.slice(first, each)


def _whole(
    batches: Sequence[pa.RecordBatch], schema: pa.Schema, stream: str, number: int
) -> pa.RecordBatch:
    """One batch of all rows, with the columns that are read."""
    try:
        parts = [batch.select(schema.names).cast(schema) for batch in batches]
    except (KeyError, pa.ArrowInvalid, ValueError) as error:
        raise StaticSideLost(
            f"version {number} of static side {stream} does not have the columns that the query "
            f"reads ({error}): run `penstock fsck`",
            stream=stream,
            version=number,
        ) from error
    return pa.concat_batches(parts) if parts else no_rows(schema)


# --- the versions of a vertex ---------------------------------------------------------------------


class StaticSides:
    """The sides that a vertex joins with, each in the version that its last marker names."""

    def __init__(
        self,
        log: Log,
        query: str,
        stage: Stage,
        loaded: Loaded,
        clock: Clock,
        use: Callable[[str, StaticRows], None],
    ) -> None:
        """`loaded` holds versions for all vertices of a process, as long as one has them in use."""
        self._log = log
        self._query = query
        self._schemas = {
            side: arrow_schema(
                tuple({f.name: f for reader in readers for f in reader.side_schema}.values())
            )
            for side, readers in static_sides(stage).items()
        }
        self._loaded = loaded
        self._clock = clock
        self._use = use
        self._rows: dict[str, StaticRows] = {}
        self._next: dict[str, StaticRows] = {}
        self._tail = Position(0)
        self._looked_s = float("-inf")

    def begin(self, named: Versions) -> None:
        """Go on with what the last marker names; with the newest where it names none."""
        for side in self._schemas:
            self._next[side] = self._load(side, named.get(side))
        self.take_over()

    def look(self, is_idle: bool) -> bool:
        """Whether there is a version that is not in use yet; it is loaded.

        Whoever has rows to take looks now and then, whoever has none each time the log has grown.
        """
        if not self._schemas:
            return False
        tail, now_s = self._log.tail(), self._clock.monotonic_s()
        if tail == self._tail or (not is_idle and now_s < self._looked_s + LOOK_S):
            return bool(self._next)
        self._tail, self._looked_s = tail, now_s
        for side in self._schemas:
            newest = newest_version(self._log, self._query, side)
            known = self._next.get(side, self._rows[side])
            if newest is not None and newest.number > known.version:
                self._next[side] = self._load(side, newest.number)
        return bool(self._next)

    def versions(self) -> dict[str, int]:
        """What the next marker is to name."""
        return {side: rows.version for side, rows in {**self._rows, **self._next}.items()}

    def take_over(self) -> None:
        """The marker that names these versions is in the log: rows are joined with them now."""
        for side, rows in self._next.items():
            self._rows[side] = rows
            self._use(side, rows)
        self._next = {}

    def _load(self, side: str, number: int | None) -> StaticRows:
        if number is None:
            newest = newest_version(self._log, self._query, side)
            if newest is None:
                raise StaticSideLost(
                    f"static side {own_name(self._query, side)} has no version in the log: start "
                    "the query from its driver, which computes one",
                    stream=own_name(self._query, side),
                )
            number = newest.number
        key = (own_name(self._query, side), number)
        schema = self._schemas[side]
        known = self._loaded.get(key)
        if known is None or not set(schema.names) <= set(known.batch.schema.names):
            known = load_version(self._log, self._query, side, number, schema)
            self._loaded[key] = known
        return known
