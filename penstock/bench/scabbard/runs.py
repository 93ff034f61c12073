"""A run of Penstock without end, of which some seconds are measured by what its markers say.

A row is done when the vertices that write the result have committed a watermark behind its time: of
a sample in cycles the time tells the row's number. It was read after the last marker of its source
that does not hold it; from there to the commit it took at most so long. As nothing paces the parts
of a source, one may be ahead of the other: what counts is when the later one has come to the row.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from penstock.api.query import StreamingQuery
from penstock.bench.report import median
from penstock.bench.scabbard.engines import Input, Way, log_for, penstock_writer
from penstock.bench.scabbard.queries import WindowQuery
from penstock.bench.scabbard.samples import Made
from penstock.bench.sessions import wait_compiled
from penstock.errors import CheckpointError
from penstock.log.contract import Log
from penstock.log.record import START, RecordKind
from penstock.runtime.markers import decode_marker
from penstock.runtime.queries import needed_query
from penstock.runtime.slot import CHECKPOINTS_FOLDER
from penstock.stages.program import Program
from penstock.state.checkpoints import MANIFEST, CheckpointStore

WARMUP_S = 1.5
WARM_ROWS = 1 << 26  # at most: what is not compressed fills a disk while kernels are compiled
FIRST_S_MAX = 300.0
COMMITS_S_MAX = 60.0
POLL_S = 0.02
PAGE = 4_096
ROWS_ASKED = 2_000  # of which the latency is told
COMMITS_WEIGHED = 3  # of each source, whose bytes are counted after the measured time
WEIGHING_S_MAX = 10.0


@dataclass(frozen=True)
class Measured:
    """What a run did in its measured seconds."""

    rows: int
    rows_per_s: float
    p50_ms: float | None  # where there were commits enough to tell
    p95_ms: float | None
    bytes_per_row: float | None  # in the streams that its sources write
    checkpoint_mb: float | None
    checkpoint_ms: float | None


@dataclass(frozen=True)
class Mark:
    """What a marker says, and when the log took it."""

    time_us: int
    position: int
    offset: Any
    watermark_us: int


@dataclass
class Trace:
    """The markers of a query's vertices, as they are seen."""

    log: Log
    program: Program
    output: str
    marks: dict[str, list[Mark]] = field(default_factory=dict)
    _after: int = START

    def __post_init__(self) -> None:
        self.marks = {vertex.name: [] for vertex in self.program.vertices}
        self._tags = [vertex.vertex_tag for vertex in self.program.vertices]

    def follow(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            self.look()
            time.sleep(min(POLL_S, left_s))
        self.look()

    def look(self) -> None:
        for record in self.log.read(self._tags, self._after, PAGE):  # type: ignore[arg-type]
            marker = decode_marker(record)
            mark = Mark(record.time_us, record.position, marker.offset, marker.watermark_us)
            self.marks[marker.vertex].append(mark)
            self._after = record.position

    def sources(self) -> list[str]:
        return [
            vertex.name
            for vertex in self.program.vertices
            if self.program.stage_of(vertex).source is not None
        ]

    def ends(self) -> list[list[Mark]]:
        """Of each vertex that writes the result, its markers."""
        return [self.marks[name] for name in self.program.producers(self.output)]


def run_measured(
    spark: SparkSession, query: WindowQuery, given: Input, way: Way, folder: Path, seconds: float
) -> Measured:
    """Start a query, let it get going, and measure it for some seconds."""
    with log_for(spark, folder, way) as attached:
        running = penstock_writer(attached, query, query.name, given, way, None).start()
        try:
            trace = _begun(running, attached.log, query)
            trace.follow(WARMUP_S)
            begin_us = time.time_ns() // 1_000
            trace.follow(seconds)
            _wait_commits(trace, begin_us)
            end_us = time.time_ns() // 1_000
            bytes_per_row = None if way.replayable else _bytes_per_row(trace)
            checkpoints = _checkpoints(attached.path / CHECKPOINTS_FOLDER, trace)
            if (error := running.exception()) is not None:
                raise error
        finally:
            running.stop()
    first, last, rows_per_s = _rate(trace, given.made, begin_us, end_us)
    late_ms = _latencies_ms(trace, given.made, first, last)
    p50_ms, p95_ms = np.percentile(late_ms, [50, 95]).tolist() if late_ms.size else (None, None)
    return Measured(last - first, rows_per_s, p50_ms, p95_ms, bytes_per_row, *checkpoints)


def _wait_commits(trace: Trace, begin_us: int) -> None:
    """Measure longer where a machine with much else to do has not had two commits yet between
    which windows were done."""
    end_s = time.monotonic() + COMMITS_S_MAX
    while time.monotonic() < end_s and any(
        len({mark.watermark_us for mark in marks if mark.time_us >= begin_us}) < 2
        for marks in trace.ends()
    ):
        trace.follow(POLL_S)


def warm(spark: SparkSession, query: WindowQuery, given: Input, way: Way, folder: Path) -> None:
    """Have everything compiled that a run needs."""
    with log_for(spark, folder, way) as attached:
        running = penstock_writer(attached, query, query.name, given, way, WARM_ROWS).start()
        try:
            _begun(running, attached.log, query)
        finally:
            running.stop()
    wait_compiled(None)


def _begun(running: StreamingQuery, log: Log, query: WindowQuery) -> Trace:
    trace = Trace(log, needed_query(log, query.name).program, query.name)
    end_s = time.monotonic() + FIRST_S_MAX
    while not all(marks and marks[-1].watermark_us > 0 for marks in trace.ends()):
        if (error := running.exception()) is not None:
            raise error
        if time.monotonic() > end_s:
            raise TimeoutError(f"{query.name} has no result after {FIRST_S_MAX:g} s")
        trace.follow(POLL_S)
    return trace


def rows_before(made: Made, time_us: int) -> int:
    """How many rows of the sample in cycles are older than a time."""
    cycle, later_us = divmod(time_us - int(made.times_us[0]), made.period_us)
    within = np.searchsorted(made.times_us, int(made.times_us[0]) + later_us)
    return cycle * made.times_us.size + int(within)


def _rate(trace: Trace, made: Made, begin_us: int, end_us: int) -> tuple[int, int, float]:
    """From which row to which, and how many a second, by the slowest of the last vertices."""
    found = []
    for marks in trace.ends():
        within = [mark for mark in marks if begin_us <= mark.time_us <= end_us]
        if len(within) < 2:
            raise TimeoutError(f"{len(within)} commits in the measured time: measure longer")
        first, last = (rows_before(made, mark.watermark_us) for mark in (within[0], within[-1]))
        took_s = (within[-1].time_us - within[0].time_us) / 1e6
        found.append((first, last, (last - first) / took_s))
    return min(found, key=lambda each: each[2])


def _latencies_ms(trace: Trace, made: Made, first: int, last: int) -> NDArray[np.float64]:
    rows = np.linspace(first, last - 1, ROWS_ASKED).astype(np.int64)
    done_us = np.max(
        [_first_above(marks, _rows_done(marks, made), rows) for marks in trace.ends()], axis=0
    )
    read_us = np.max([_last_upto(trace.marks[name], rows) for name in trace.sources()], axis=0)
    late_ms: NDArray[np.float64] = (done_us - read_us) / 1e3
    return late_ms[np.isfinite(late_ms)]


def _rows_done(marks: Sequence[Mark], made: Made) -> NDArray[np.int64]:
    return np.array([rows_before(made, max(mark.watermark_us, 0)) for mark in marks])


def _times_us(marks: Sequence[Mark], *more: float) -> NDArray[np.float64]:
    return np.array([*(mark.time_us for mark in marks), *more], np.float64)


def _first_above(
    marks: Sequence[Mark], done: NDArray[np.int64], rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """When the first marker was there that holds each row."""
    return _times_us(marks, np.inf)[np.searchsorted(done, rows, side="right")]


def _last_upto(marks: Sequence[Mark], rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """When the last marker was there that does not hold each row."""
    offsets = np.array([mark.offset or 0 for mark in marks])
    at = np.searchsorted(offsets, rows, side="right") - 1
    return _times_us(marks)[np.maximum(at, 0)]


def _bytes_per_row(trace: Trace) -> float:
    """What the sources' streams get for each row that is read, over some commits from now."""
    vertices = {v.name: v for v in trace.program.vertices if v.name in trace.sources()}
    tags = [tag for v in vertices.values() for tag in (*v.written_tags, v.vertex_tag)]
    log, after = trace.log, trace.log.tail()
    weighed: Mapping[str, list[tuple[int, int]]] = {name: [] for name in vertices}
    sizes = dict.fromkeys(vertices, 0)
    end_s = time.monotonic() + WEIGHING_S_MAX
    while min(map(len, weighed.values())) <= COMMITS_WEIGHED and time.monotonic() < end_s:
        for record in log.read(tags, after, PAGE):
            after = record.position
            if record.kind is RecordKind.DATA:
                sizes[record.producer] += len(record.body)
            elif record.kind is RecordKind.MARKER:
                offset = decode_marker(record).offset
                weighed[record.producer].append((offset, sizes[record.producer]))
        time.sleep(POLL_S)
    spans = [(each[0], each[-1]) for each in weighed.values() if len(each) > 1]
    if not spans:
        raise TimeoutError("the sources commit nothing")
    stored = sum(end[1] - begin[1] for begin, end in spans)
    return stored * len(vertices) / sum(end[0] - begin[0] for begin, end in spans)


def _checkpoints(folder: Path, trace: Trace) -> tuple[float, float] | tuple[None, None]:
    """How large one of the whole query is, and how long after its marker the slowest is safe."""
    if not folder.exists():
        return None, None
    store = CheckpointStore(folder)
    sizes, times_ms = [], []
    for vertex, marks in trace.marks.items():
        taken_us = {mark.position: mark.time_us for mark in marks}
        bytes_, ms = [0], [0.0]
        for each in store.list(vertex):
            with suppress(CheckpointError, OSError):  # gone meanwhile: there is a newer one
                bytes_.append(store.chain(each)[-1].bytes)
                safe_s = folder.joinpath(*each.path, MANIFEST).stat().st_mtime
                if each.position in taken_us:
                    ms.append(safe_s * 1e3 - taken_us[each.position] / 1e3)
        sizes.append(max(bytes_))
        times_ms.append(median(ms[1:] or ms))
    return (sum(sizes) / 1e6, max(times_ms)) if sum(sizes) else (None, None)
