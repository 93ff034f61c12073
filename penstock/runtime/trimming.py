"""Trimming: what no vertex of a query will read again leaves the log, away from the hot path.

The low-water mark of a tag is the least `resume` of the last markers of those who read it. Only
streams between two stages of one query are trimmed by it: their readers are all known. A vertex
without state also lets go of its own markers before the last one; one with state does so with each
checkpoint (`checkpointing`).

A trim is not fenced, and need not be. A mark is taken from markers that are in the log, never from
what a vertex remembers. The `resume` of a vertex's markers never falls, whoever wrote them, and a
new instance begins at the last of them. So a mark that was right once is at or below what every
later instance begins with: a zombie that wakes up with an old mark, two processes that trim the
same tag, or a trim that is repeated take nothing that anybody needs.

What a source lets go of, such as files that were read, goes the same way: by the offsets in the
last markers of all who read it, which never fall. These are on the disk before it goes, also where
appends are not synced: after a power cut that took them the query would want to read it again.

Every tag of a marker of the query's inner stages is let go of by somebody, which is what frees the
record: the vertex tag and the change tag here or by a checkpoint, the marker tag of the stream by
its readers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import StreamError
from penstock.log.contract import Log
from penstock.log.record import START, Position
from penstock.runtime.markers import decode_marker
from penstock.runtime.static_sides import static_readers, trim_versions
from penstock.stages.program import Program, VertexProgram
from penstock.stages.tags import parse_tag

TRIM_COMMITS = 256  # a trim costs some index transactions: one for many commits
TRIM_BYTES = 16 << 20  # of input; large units must not wait for so many commits

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrimJob:
    """What one vertex lets go of from time to time; it is the same each time."""

    vertex: str
    vertex_tag: str
    inputs: tuple[tuple[str, tuple[str, ...]], ...]  # tag, and the vertex tags of all who read it
    own: tuple[str, ...]  # tags of its own markers that nobody looks for behind the last one
    clean: Callable[[Sequence[Any]], None] | None = None  # lets go of a source's input,
    beside: tuple[str, ...] = ()  # by the offsets of these vertex tags, in the order of its parts
    statics: tuple[tuple[str, str, tuple[str, ...]], ...] = ()  # query, side, and all who read it
    # Lets go of what the retention of streams that people named does not keep.
    retain: Callable[[], None] | None = None


def trim_job(program: Program, vertex: VertexProgram) -> TrimJob:
    """What a vertex of a program has to let go of."""
    internal = {stream.name for stream in program.streams if stream.role == "internal"}
    inputs = tuple(
        (tag, tuple(each.vertex_tag for each in program.vertices if tag in each.input_tags))
        for tag in vertex.input_tags
        if parse_tag(tag).name in internal
    )
    has_state = bool(program.stage_of(vertex).stateful)
    own = () if has_state else (vertex.vertex_tag, vertex.change_tag)
    statics = tuple(
        (program.query, side, readers)
        for side, readers in static_readers(program).items()
        if vertex.vertex_tag in readers
    )
    return TrimJob(vertex.name, vertex.vertex_tag, inputs, own, statics=statics)


def named_streams(vertex: VertexProgram) -> tuple[str, ...]:
    """The streams that people named which a vertex reads or writes."""
    written = (tag for tags in vertex.output_tags for tag in tags)
    touched = {parse_tag(tag).name for tag in (*vertex.input_tags, *written)}
    return tuple(sorted(name for name in touched if "." not in name))


def let_go(job: TrimJob, log: Log) -> None:
    """Trim all that a job names up to where its readers are by now."""
    for tag, readers in job.inputs:
        _trim(log, tag, low_water(log, readers))
    for query, side, readers in job.statics:
        trim_versions(log, query, side, readers)
    last = log.last(job.vertex_tag)
    if last is not None:
        # The marker itself stays: it is where the next recovery begins.
        for tag in job.own:
            _trim(log, tag, Position(last.position - 1))
    if job.retain is not None:
        job.retain()
    if job.clean is not None:
        markers = [log.last(tag) for tag in job.beside]
        log.sync()
        job.clean([None if marker is None else decode_marker(marker).offset for marker in markers])


def let_markers_go(log: Log, vertex_tag: str, last: Position) -> None:
    """Trim the markers of a producer before its last one, behind which nobody looks.

    For producers that have no background thread. A failure is only noted: the write that came
    before it is done, and whoever is told otherwise might do it again.
    """
    try:
        _trim(log, vertex_tag, Position(last - 1))
    except StreamError as error:
        logger.warning("%s could not be trimmed: %s", vertex_tag, error)


def low_water(log: Log, readers: Sequence[str]) -> Position:
    """Where the reader that is furthest behind would begin, were it restarted now."""
    marks = []
    for vertex_tag in readers:
        last = log.last(vertex_tag)
        marks.append(START if last is None else decode_marker(last).resume)
    return min(marks)


def _trim(log: Log, tag: str, upto: Position) -> None:
    if upto > log.trimmed(tag):  # another reader may have been here first
        log.trim(tag, upto)
