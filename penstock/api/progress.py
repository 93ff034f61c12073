"""A query's progress in Spark's own words: what listeners and dashboards of PySpark users expect.

There are no micro-batches here. A progress entry covers the time since the last one, a second or
more: `batchDuration` is that time, and the numbers of rows are those that were processed in it. As
in Spark there is none while nothing happens; listeners then hear every 10 s that the query is idle.
`batchId` is the newest epoch. What has no meaning here is there with 0. What Spark has no word for
stands under `metrics`.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from penstock.api.observed import Observed, json_of
from penstock.api.sink_runner import SinkLag
from penstock.clock import Clock
from penstock.errors import StreamError
from penstock.log.contract import Log
from penstock.operators.specs import PythonGroupsSpec
from penstock.runtime.job import Job
from penstock.runtime.markers import WATERMARK_END, WATERMARK_NONE, Marker
from penstock.runtime.queries import query_progress
from penstock.stages.program import Program, Stage

PROGRESS_KEPT = 100  # as many as Spark keeps
DURATIONS = (  # Spark's words for the parts of a micro-batch
    "addBatch", "commitOffsets", "getBatch", "latestOffset", "queryPlanning",
    "triggerExecution", "walCommit",
)  # fmt: skip
IDLE_S = 10.0  # how often Spark tells that nothing happens

VertexFacts = dict[str, dict[str, Any]]


class RowCount:
    """Rows since the last look. A vertex that was recovered counts from 0 again."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: dict[str, tuple[int, int]] = {}  # by vertex: instance and count

    def take(self, vertices: VertexFacts) -> dict[str, int]:
        new = {}
        for vertex, facts in vertices.items():
            instance, before = self._seen.get(vertex, (0, 0))
            count = int(facts[self._name])
            new[vertex] = count - before if instance == facts["instance"] else count
            self._seen[vertex] = (facts["instance"], count)
        return new


class ProgressLog:
    """Looks at a running query from time to time and keeps the newest entries."""

    def __init__(
        self,
        query: dict[str, Any],
        program: Program,
        sink: str,
        log: Log,
        clock: Clock,
        observed: Observed | None = None,
        fed: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`query` is what every entry begins with: id, runId and name.

        `fed` are the sources that Spark reads, by the streams that it brings them into.
        """
        self._observed = observed
        self._fed = fed
        self._query = query
        self._program = program
        settings = program.settings  # as usual, nothing is said
        self._guarantee = {} if settings.recovers else {"guarantee": settings.guarantee}
        self._sink = sink
        self._log = log
        self._clock = clock
        self._noted_s = clock.monotonic_s()
        self._rows_in = RowCount("rows_in")
        self._rows_out = RowCount("rows_out")
        self._state_rows_changed = RowCount("state_rows_changed")
        self._late_rows = {  # by vertex: which counts on from its last marker
            name: 0 if marker is None else marker.late_rows
            for name, marker in query_progress(log, program).markers.items()
        }
        self._offsets: dict[str, Any] = {}  # by stage: where the last entry ended
        self._entries: deque[StreamingQueryProgress] = deque(maxlen=PROGRESS_KEPT)
        self._seen: Any = None  # what was so at the last entry; if it still is, nothing happened
        self._idle_s = self._noted_s  # since when nothing did, or when that was told
        self._noting = threading.Lock()  # who waits for all rows wants to see them here too

    @property
    def entries(self) -> list[StreamingQueryProgress]:
        return list(self._entries)

    def age_s(self) -> float:
        """How long ago the last entry was made."""
        return self._clock.monotonic_s() - self._noted_s

    def started_event(self) -> QueryStartedEvent:
        now = _iso(self._clock.now_us())
        return QueryStartedEvent(*self._ids(), self._query["name"], now, set())

    def terminated_event(self, error: StreamError | None) -> QueryTerminatedEvent:
        if error is None:
            return QueryTerminatedEvent(*self._ids(), None, None)
        condition = str(error.details.get("condition") or error.error_class)
        return QueryTerminatedEvent(*self._ids(), str(error), condition)

    def _ids(self) -> tuple[uuid.UUID, uuid.UUID]:
        return uuid.UUID(self._query["id"]), uuid.UUID(self._query["runId"])

    def note(self, job: Job, lag: SinkLag | None) -> QueryProgressEvent | QueryIdleEvent | None:
        """Make an entry if anything has happened; `lag` is that of a sink outside the log.

        Returns what listeners should hear of.
        """
        with self._noting:
            return self._note(job, lag)

    def _note(self, job: Job, lag: SinkLag | None) -> QueryProgressEvent | QueryIdleEvent | None:
        vertices = {name: facts for name, facts in job.vertex_status().items() if facts}
        seen = self._signs_of_life(job, vertices)
        has_observed = self._observed is not None and self._observed.take()
        if not vertices or (seen == self._seen and not has_observed):  # which are being placed
            return self._idle_event()
        self._seen = seen
        elapsed_s = max(self.age_s(), 1e-3)
        self._noted_s += elapsed_s
        self._idle_s = self._noted_s
        rows_in, rows_out = self._rows_in.take(vertices), self._rows_out.take(vertices)
        sources = self._sources(vertices, rows_in, elapsed_s)
        rows = sum(source["numInputRows"] for source in sources)
        observed = {} if self._observed is None else self._observed.rows()
        facts = {
            **self._query,
            "timestamp": _iso(self._clock.now_us()),
            "batchId": max((facts["epoch"] for facts in vertices.values()), default=0),
            "batchDuration": round(elapsed_s * 1000),
            "numInputRows": rows,
            "inputRowsPerSecond": rows / elapsed_s,
            "processedRowsPerSecond": rows / elapsed_s,
            "durationMs": dict.fromkeys(DURATIONS, 0)
            | dict.fromkeys(("addBatch", "triggerExecution"), round(elapsed_s * 1000)),
            "eventTime": self._event_time(vertices),
            "stateOperators": self._states(vertices),
            "sources": sources,
            "sink": {
                "description": self._sink,
                "numOutputRows": sum(
                    count for name, count in rows_out.items() if self._writes_result(name)
                ),
                "metrics": {} if lag is None else _sink_metrics(lag),
            },
            "observedMetrics": json_of(observed),
            "metrics": _metrics(job, vertices) | self._guarantee,
        }
        entry = StreamingQueryProgress.fromJson(facts)
        entry["metrics"] = facts["metrics"]
        entry["observedMetrics"] = observed  # with Python's values, where JSON has texts
        self._entries.append(entry)
        return QueryProgressEvent(entry)

    def _idle_event(self) -> QueryIdleEvent | None:
        now_s = self._clock.monotonic_s()
        if now_s - self._idle_s < IDLE_S:
            return None
        self._idle_s = now_s
        return QueryIdleEvent(*self._ids(), _iso(self._clock.now_us()))

    def _signs_of_life(self, job: Job, vertices: VertexFacts) -> Any:
        """What changes when rows come or go, event time moves, or slots change hands."""
        moved = {
            name: (facts["instance"], facts["rows_in"], facts["rows_out"], facts["watermark_us"])
            for name, facts in vertices.items()
        }
        return moved, job.recoveries_count, job.slot_processes()

    def _sources(
        self, vertices: VertexFacts, rows_in: dict[str, int], elapsed_s: float
    ) -> list[dict[str, Any]]:
        markers = query_progress(self._log, self._program).markers
        return [
            self._source(index, stage, vertices, rows_in, markers, elapsed_s)
            for index, stage in enumerate(self._program.stages)
            if stage.source is not None or self._is_outside(stage)
        ]

    def _source(
        self,
        index: int,
        stage: Stage,
        vertices: VertexFacts,
        rows_in: dict[str, int],
        markers: dict[str, Marker | None],
        elapsed_s: float,
    ) -> dict[str, Any]:
        names = [vertex.name for vertex in self._program.stage_vertices(index)]
        start, self._offsets[stage.name] = self._offsets.get(stage.name), _offsets(names, markers)
        rows = sum(rows_in.get(name, 0) for name in names)
        end = self._offsets[stage.name]
        # What is there beyond the last commit is not asked for; who has asked in vain knows.
        is_all = all(vertices.get(name, {}).get("is_drained") for name in names)
        return {
            "description": self._described(stage),
            "startOffset": start,
            "endOffset": end,
            "latestOffset": end if is_all else None,
            "numInputRows": rows,
            "inputRowsPerSecond": rows / elapsed_s,
            "processedRowsPerSecond": rows / elapsed_s,
            "metrics": {},
        }

    def _described(self, stage: Stage) -> str:
        if stage.source is not None:
            is_folder = stage.source.connector == "folder"
            path = stage.source.options["path"] if is_folder else ""
            return f"FileStreamSource[file:{path}]" if is_folder else str(stage.source)  # as Spark
        by_spark = [self._fed[name] for name in stage.streams if name in self._fed]
        named = [name for name in stage.streams if name not in self._fed]
        ours = [f"penstock {', '.join(named)}"] if named else []
        return ", ".join([*ours, *(f"{source} by Structured Streaming" for source in by_spark)])

    def _states(self, vertices: VertexFacts) -> list[dict[str, Any]]:
        changed = self._state_rows_changed.take(vertices)
        states = []
        for index, stage in enumerate(self._program.stages):
            names = [vertex.name for vertex in self._program.stage_vertices(index)]
            known = [vertices[name] for name in names if name in vertices]
            if not stage.stateful:
                continue
            states.append(
                {
                    "operatorName": stage.name,
                    "numRowsTotal": sum(facts["state_rows"] for facts in known),
                    "numRowsUpdated": sum(changed.get(name, 0) for name in names),
                    "allUpdatesTimeMs": 0,
                    "numRowsRemoved": 0,
                    "allRemovalsTimeMs": 0,
                    "commitTimeMs": 0,
                    "memoryUsedBytes": sum(facts["state_bytes"] for facts in known),
                    "numRowsDroppedByWatermark": sum(
                        self._late_since(name, vertices) for name in names
                    ),
                    "numShufflePartitions": len(names),
                    "numStateStoreInstances": len(names),
                    "customMetrics": {
                        "checkpoints": sum(f["checkpoints"] for f in known),
                        **_variables_of(stage),
                    },
                }
            )
        return states

    def _late_since(self, name: str, vertices: VertexFacts) -> int:
        """Rows of a vertex that came too late since the last entry."""
        before = self._late_rows[name]
        self._late_rows[name] = int(vertices.get(name, {}).get("late_rows", before))
        return max(0, self._late_rows[name] - before)

    def _event_time(self, vertices: VertexFacts) -> dict[str, str]:
        """The watermark, and the newest time that rows have had; min and avg are not counted."""
        newest = [f["newest_event_us"] for f in vertices.values()]
        newest_us = max((us for us in newest if us is not None), default=None)
        watermark = self._watermark(vertices)
        times = {"max": None if newest_us is None else _iso(newest_us), "watermark": watermark}
        return {name: time for name, time in times.items() if time is not None}

    def _watermark(self, vertices: VertexFacts) -> str | None:
        """The least watermark of the vertices with state; of all where none has any."""
        marks: list[int] = []
        for stateful in (True, False):
            marks = marks or [
                vertices[vertex.name]["watermark_us"]
                for vertex in self._program.vertices
                if vertex.name in vertices
                and bool(self._program.stage_of(vertex).stateful) is stateful
            ]
        watermark_us = min(marks, default=WATERMARK_NONE)
        return None if watermark_us in (WATERMARK_NONE, WATERMARK_END) else _iso(watermark_us)

    def _writes_result(self, name: str) -> bool:
        vertex = next(each for each in self._program.vertices if each.name == name)
        return self._program.writes_result(self._program.stage_of(vertex))

    def _is_outside(self, stage: Stage) -> bool:
        return any(self._program.stream(name).role == "input" for name in stage.streams)


def _offsets(names: list[str], markers: dict[str, Marker | None]) -> dict[str, Any] | None:
    """How far the vertices' committed input goes: offsets of a source, or positions of the log."""
    reached = {
        name: marker.offset if marker.offset is not None else marker.consumed
        for name in names
        if (marker := markers[name]) is not None
    }
    return reached or None


def _sink_metrics(lag: SinkLag) -> dict[str, str]:
    """What a sink outside the log has still to get; Spark's metrics of sinks are texts too."""
    return {
        "epochsBehind": str(lag.epochs),
        "secondsBehind": f"{lag.seconds:.3f}",
        "rowsUnderWay": str(lag.rows_under_way),
    }


def _metrics(job: Job, vertices: VertexFacts) -> dict[str, Any]:
    return {
        "vertices": vertices,
        "recoveries": job.recoveries_count,
        "slots": {
            str(number): {"pid": pid, "machine": machine, "vertices": list(names)}
            for number, (pid, machine, names) in job.slot_processes().items()
        },
    }


def _iso(time_us: int) -> str:
    moment = datetime.fromtimestamp(time_us / 1e6, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def _variables_of(stage: Stage) -> dict[str, int]:
    """How many states processors have, by the names that Spark has for them."""
    found: dict[str, int] = {}
    for spec in stage.stateful:
        if isinstance(spec, PythonGroupsSpec) and spec.is_processor:
            kinds = [
                f"num{each.kind.title()}State{'' if each.ttl_ms is None else 'WithTTL'}Vars"
                for each in spec.variables
            ]
            for name in (*kinds, *("numDeletedStateVars" for _ in spec.given_up)):
                found[name] = found.get(name, 0) + 1
    return found
