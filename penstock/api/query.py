"""A running query, as PySpark users know it: the look-alike of `StreamingQuery`."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from penstock.api.sinks import SinkRunner, sink_error
from penstock.clock import SystemClock
from penstock.errors import StreamError
from penstock.runtime.job import Job
from penstock.runtime.markers import WATERMARK_END, WATERMARK_NONE
from penstock.stages.program import Program

PROGRESS_KEPT = 100
PROGRESS_INTERVAL_S = 1.0
POLL_S = 0.02


class StreamingQuery:
    """A query that Penstock runs. Every name means what it means in PySpark."""

    def __init__(
        self,
        *,
        query_id: str,
        name: str,
        program: Program,
        job: Job,
        sink: SinkRunner | None,
        sink_text: str,
        explanation: str,
        on_stop: Callable[[], None],
        available_now: bool,
    ) -> None:
        self._id = query_id
        self._run_id = str(uuid.uuid4())
        self._name = name
        self._program = program
        self._job = job
        self._sink = sink
        self._sink_text = sink_text
        self._explanation = explanation
        self._on_stop = on_stop
        self._clock = SystemClock()
        self._progress: deque[dict[str, Any]] = deque(maxlen=PROGRESS_KEPT)
        self._totals = (0, self._clock.monotonic_s())
        self._batch = 0
        self._stop_lock = threading.Lock()
        self._is_stopped = False
        self._finished = threading.Event()  # stopped, and everything committed is delivered
        self._watcher = threading.Thread(
            target=self._watch, args=(available_now,), name=f"penstock-{name}", daemon=True
        )
        self._watcher.start()

    @property
    def id(self) -> str:
        """Stable over restarts."""
        return self._id

    @property
    def runId(self) -> str:
        """New with each start."""
        return self._run_id

    @property
    def name(self) -> str:
        return self._name

    @property
    def isActive(self) -> bool:
        return not self._finished.is_set()

    @property
    def status(self) -> dict[str, Any]:
        running = self._job.vertex_status()
        busy = any(not facts.get("is_drained", True) for facts in running.values())
        return {
            "message": "Processing new data" if busy else "Waiting for data to arrive",
            "isDataAvailable": busy,
            "isTriggerActive": self.isActive,
        }

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        return self._progress[-1] if self._progress else None

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        return list(self._progress)

    @property
    def job(self) -> Job:
        """What runs the query: slots, processes, recoveries."""
        return self._job

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait for the end, raise the query's error if any; with a timeout, say whether over."""
        over = self._finished.wait(timeout)
        if over and (error := self.exception()) is not None:
            raise error
        return over if timeout is not None else None

    def processAllAvailable(self) -> None:
        """Wait until everything that is there now has been processed, committed and delivered."""
        while not self._is_quiet():
            if self._job.is_over:
                break
            time.sleep(POLL_S)
        if (error := self.exception()) is not None:
            raise error

    def exception(self) -> StreamError | None:
        if self._sink is not None and self._sink.error is not None:
            return sink_error(self._name, self._sink.error)
        return self._job.error

    def explain(self, extended: bool = False) -> None:
        """Print stages, vertices, what is persisted and what is guaranteed."""
        print(self._explanation)
        if extended:
            print(json.dumps(json.loads(self._program.to_json()), indent=1))

    def stop(self) -> None:
        """Commit what has been processed and end. Stopping twice is harmless."""
        with self._stop_lock:
            first, self._is_stopped = not self._is_stopped, True
        if not first:
            self._finished.wait()
            return
        try:
            self._job.stop()
            if self._sink is not None:
                self._sink.stop(timeout_s=30)
            self._note_progress()
        finally:
            self._on_stop()
            self._finished.set()

    def __repr__(self) -> str:
        state = "active" if self.isActive else "ended"
        return f"<penstock.StreamingQuery {self._name!r} {state} id={self._id}>"

    def _watch(self, available_now: bool) -> None:
        """Note progress every second, and end the query when its work is done."""
        noted_s = 0.0
        while not self._job.wait_over(POLL_S):
            now_s = self._clock.monotonic_s()
            if now_s - noted_s >= PROGRESS_INTERVAL_S:
                noted_s = now_s
                self._note_progress()
            sink_failed = self._sink is not None and self._sink.error is not None
            if sink_failed or (available_now and self._is_quiet()):
                break
        self.stop()

    def _is_quiet(self) -> bool:
        """Whether no vertex has anything left: all say so twice, and nothing moved in between.

        Once is not enough: a vertex may be drained a moment before its producer commits more.
        """
        first = self._picture()
        if first is None:
            return False
        deadline_s = self._clock.monotonic_s() + 5
        while self._clock.monotonic_s() < deadline_s and not self._job.is_over:
            time.sleep(POLL_S)
            second = self._picture()
            if second is None or [e for _, _, e in second] != [e for _, _, e in first]:
                return False
            if all(
                later > earlier
                for (_, earlier, _), (_, later, _) in zip(first, second, strict=True)
            ):
                return self._sink is None or self._sink.is_drained()
        return False

    def _picture(self) -> list[tuple[str, int, int]] | None:
        """Each vertex with its number of reports and epoch; None if one has work or is missing."""
        known = self._job.vertex_status()
        picture = []
        for vertex in self._program.vertices:
            facts = known.get(vertex.name)
            if not facts:
                return None
            if facts["state"] != "ended" and not facts["is_drained"]:
                return None
            reports = facts["reports"] if facts["state"] != "ended" else self._clock.now_us()
            picture.append((vertex.name, reports, facts["epoch"]))
        return picture

    def _note_progress(self) -> None:
        vertices = {n: f for n, f in self._job.vertex_status().items() if f}
        rows_in = sum(
            facts["rows_in"]
            for name, facts in vertices.items()
            if self._stage_of(name).input.source is not None or self._reads_input(name)
        )
        before, before_s = self._totals
        now_s = self._clock.monotonic_s()
        self._totals = (rows_in, now_s)
        rate = max(0, rows_in - before) / max(now_s - before_s, 1e-9)
        self._batch += 1
        self._progress.append(self._progress_facts(vertices, max(0, rows_in - before), rate))

    def _progress_facts(
        self, vertices: dict[str, dict[str, Any]], rows: int, rate: float
    ) -> dict[str, Any]:
        stateful = {
            name: facts
            for name, facts in vertices.items()
            if self._stage_of(name).aggregate is not None
        }
        marks = [facts["watermark_us"] for facts in (stateful or vertices).values()]
        watermark_us = min(marks, default=WATERMARK_NONE)
        return {
            "id": self._id,
            "runId": self._run_id,
            "name": self._name,
            "timestamp": _iso(self._clock.now_us()),
            "batchId": max((facts["epoch"] for facts in vertices.values()), default=0),
            "batchDuration": self._program.settings.commit_interval_ms,
            "durationMs": {"triggerExecution": self._program.settings.commit_interval_ms},
            "eventTime": {}
            if watermark_us in (WATERMARK_NONE, WATERMARK_END)
            else {"watermark": _iso(watermark_us)},
            "numInputRows": rows,
            "inputRowsPerSecond": rate,
            "processedRowsPerSecond": rate,
            "stateOperators": [
                {
                    "operatorName": name,
                    "numRowsTotal": facts["state_rows"],
                    "memoryUsedBytes": facts["state_bytes"],
                    "numRowsDroppedByWatermark": facts["late_rows"],
                    "customMetrics": {"checkpoints": facts["checkpoints"]},
                }
                for name, facts in sorted(stateful.items())
            ],
            "sources": [
                {"description": str(stage.input.source or ", ".join(stage.input.streams))}
                for stage in self._program.stages
                if stage.input.source is not None or self._is_outside(stage.input.streams)
            ],
            "sink": {"description": self._sink_text},
            "observedMetrics": {},
            "metrics": {
                "vertices": vertices,
                "recoveries": len(self._job.recoveries()),
                "slots": {
                    str(number): {"pid": pid, "machine": machine, "vertices": list(names)}
                    for number, (pid, machine, names) in self._job.slot_processes().items()
                },
            },
        }

    def _stage_of(self, vertex: str) -> Any:
        found = next(each for each in self._program.vertices if each.name == vertex)
        return self._program.stage_of(found)

    def _reads_input(self, vertex: str) -> bool:
        return self._is_outside(self._stage_of(vertex).input.streams)

    def _is_outside(self, streams: tuple[str, ...]) -> bool:
        return any(self._program.stream(name).role == "input" for name in streams)


def _iso(time_us: int) -> str:
    moment = datetime.fromtimestamp(time_us / 1e6, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
