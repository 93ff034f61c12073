"""The benchmark of large state: what a checkpoint costs a running vertex, and how it comes back.

A vertex with many keys goes on counting rows while its checkpoints are written. Steps during a
checkpoint are compared with the steps before it. Then only one key in a hundred changes for a
while, and checkpoints are made of these changes. In the end the vertex is dropped without a word
and recovered: fence, checkpoint, changes since.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from penstock.bench.replay import KeySource
from penstock.bench.report import Report, machine_facts, median
from penstock.connectors.contract import Source
from penstock.kernels.cache import KernelCache
from penstock.plan.optimizer import plan_program
from penstock.runtime.slot import CHECKPOINTS_FOLDER
from penstock.runtime.sources import SourceRequest
from penstock.stages.program import Program
from penstock.stages.settings import Settings
from penstock.state.checkpoints import CheckpointStore
from penstock.testing.plans import count, max_, query, scan_source, sum_, window
from penstock.testing.single_process import SingleProcess

TITLE = "checkpoint and restore of a state with many keys"
STEP_ROWS = 4_096
CHECKPOINT_COMMITS = 100
CHECKPOINTS = 3
RESTORES = 5
CHECKPOINT_S_MAX = 120.0

RESTORE_MS_MAX = 1_000
STALL_MS_MAX = 20
FEW_COMMITS = 10
INCREMENTAL_SHARE_MAX = 0.02


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keys",
        type=_keys,
        default=1_000_000,
        metavar="N",
        help="keys in the state (default 1000000)",
    )
    parser.add_argument(
        "--dir", type=Path, default=Path(), help="a folder on the disk to use (default .)"
    )


def measure(args: argparse.Namespace) -> Report:
    """Fill the state, take checkpoints while it changes, restore it, and report."""
    machine = machine_facts()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=args.dir) as name:
        bench = _Bench(args.keys, Path(name))
        with bench.process() as process:
            steps = bench.take_checkpoints(process)
            state_bytes = process.statistics().vertices[bench.vertex].state_bytes
            sizes = bench.change_few(process)
            bench.change_more(process)
        restores = [bench.restore() for _ in range(RESTORES)]
    report = _report(args.keys, steps, restores, sizes)
    report.facts = {
        **machine,
        "state_bytes": state_bytes,
        "rows_per_step": STEP_ROWS,
        "commits_replayed_max": CHECKPOINT_COMMITS,
    }
    return report


@dataclass(frozen=True, slots=True)
class _Step:
    """How long one step took, and how much of that the vertex's own thread computed."""

    elapsed_ms: float
    cpu_ms: float


@dataclass
class _Steps:
    """Single steps, by whether a checkpoint was being taken, and whole checkpoints."""

    plain: list[_Step] = field(default_factory=list)
    during: list[_Step] = field(default_factory=list)
    checkpoint_ms: list[float] = field(default_factory=list)
    stall_ms: list[float] = field(default_factory=list)  # per checkpoint
    stall_cpu_ms: list[float] = field(default_factory=list)


@dataclass
class _Sizes:
    """What checkpoints hold when few keys change: a picture, and the last changes on each."""

    picture: int = 0
    changes: list[float] = field(default_factory=list)
    checkpoint_ms: list[float] = field(default_factory=list)


class _Bench:
    """One folder with a log, and the program over it."""

    def __init__(self, keys: int, folder: Path) -> None:
        self._keys = keys
        self._folder = folder
        self._kernels = KernelCache(folder / "kernels")
        self._program = _program()
        (self.vertex,) = [vertex.name for vertex in self._program.vertices]
        self._beginning = _Step(0.0, 0.0)  # the step that began the last checkpoint
        self._coming: KeySource | None = None

    def process(self, vertices: tuple[str, ...] | None = None) -> SingleProcess:
        return SingleProcess(
            self._program,
            self._folder / "log",
            vertices=vertices,
            sources={"keys": self._keys_in_turn},
            kernels=self._kernels,
        )

    def _keys_in_turn(self, request: SourceRequest) -> Source:
        self._coming = KeySource(self._keys, request.schema)
        return self._coming

    def take_checkpoints(self, process: SingleProcess) -> _Steps:
        steps = _Steps()
        vertex = process.host.vertex(self.vertex)
        while process.statistics().vertices[self.vertex].rows_in < self._keys:
            process.host.step()  # the first pass over the keys only fills the state
        while vertex.is_copying:
            process.host.step()
        process.wait_checkpoints(CHECKPOINT_S_MAX)
        for _ in range(CHECKPOINTS):
            plain = self._plain_steps(process)
            during, checkpoint_ms = self._checkpoint_steps(process)
            steps.plain += plain
            steps.during += during
            steps.checkpoint_ms.append(checkpoint_ms)
            steps.stall_ms.append(
                _beyond([s.elapsed_ms for s in during], [s.elapsed_ms for s in plain])
            )
            steps.stall_cpu_ms.append(
                _beyond([s.cpu_ms for s in during], [s.cpu_ms for s in plain])
            )
        return steps

    def _plain_steps(self, process: SingleProcess) -> list[_Step]:
        """Step up to the next checkpoint; the step that begins it belongs to it."""
        steps: list[_Step] = []
        vertex = process.host.vertex(self.vertex)
        taken = vertex.statistics().checkpoints
        while True:
            step = _timed_step(process)
            if vertex.is_copying or vertex.statistics().checkpoints > taken:
                self._beginning = step
                return steps
            steps.append(step)

    def _checkpoint_steps(self, process: SingleProcess) -> tuple[list[_Step], float]:
        """Step on until the checkpoint that has just begun is in the store."""
        steps = [self._beginning]
        start_s = time.perf_counter()
        vertex = process.host.vertex(self.vertex)
        while vertex.is_copying or process.wait_checkpoints(0.0).waiting:
            steps.append(_timed_step(process))
        return steps, (time.perf_counter() - start_s) * 1e3 + self._beginning.elapsed_ms

    def change_few(self, process: SingleProcess) -> _Sizes:
        """Let one key in a hundred change, and have checkpoints made of that."""
        store = CheckpointStore(self._folder / "log" / CHECKPOINTS_FOLDER)
        vertex = process.host.vertex(self.vertex)
        assert self._coming is not None
        self._coming.keys = max(1, self._keys // 100)
        sizes = _Sizes()
        while len(sizes.changes) < CHECKPOINTS:
            taken = vertex.statistics().checkpoints
            for _ in range(FEW_COMMITS):
                process.host.step()
            vertex.checkpoint()
            start_s = time.perf_counter()
            while vertex.is_copying or vertex.statistics().checkpoints == taken:
                process.host.step()
            process.wait_checkpoints(CHECKPOINT_S_MAX)
            elapsed_ms = (time.perf_counter() - start_s) * 1e3
            picture, *changes = store.chain(store.list(self.vertex)[-1])
            sizes.picture = picture.bytes
            if changes:
                sizes.changes.append(changes[-1].bytes)
                sizes.checkpoint_ms.append(elapsed_ms)
        return sizes

    def change_more(self, process: SingleProcess) -> None:
        """Commit changes that the last checkpoint does not hold."""
        for _ in range(CHECKPOINT_COMMITS // 2):
            process.host.step()

    def restore(self) -> tuple[float, float]:
        """The time from nothing to a vertex that can step, and how much of it was computing.

        The process is warm, as a standby slot is: its modules and kernels are loaded.
        """
        process = self.process(vertices=())
        try:
            start_s, start_cpu_s = time.perf_counter(), time.process_time()
            process.host.begin(self.vertex)
            elapsed_ms = (time.perf_counter() - start_s) * 1e3
            cpu_ms = (time.process_time() - start_cpu_s) * 1e3
            rows = process.statistics().vertices[self.vertex].state_rows
            assert rows == self._keys, f"{rows} of {self._keys} keys came back"
            return elapsed_ms, cpu_ms
        finally:
            process.abandon()


def _program() -> Program:
    settings = Settings(
        commit_interval_ms=0,
        step_rows_max=STEP_ROWS,
        checkpoint_interval_commits=CHECKPOINT_COMMITS,
    )
    rows = scan_source("keys", "key bigint not null, ts timestamp not null", partitions=1)
    grouped = rows.with_watermark("ts", 0).group_by("key", window=window("ts", "1 hour"))
    counted = grouped.agg(
        count().alias("rows"), sum_("key").alias("total"), max_("key").alias("top")
    )
    return plan_program(query("restore", counted.to_stream("never"), settings=settings))


def _timed_step(process: SingleProcess) -> _Step:
    start_ns, start_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
    process.host.step()
    cpu_ns, elapsed_ns = time.thread_time_ns() - start_cpu_ns, time.perf_counter_ns() - start_ns
    return _Step(elapsed_ns / 1e6, cpu_ns / 1e6)


def _beyond(during: list[float], plain: list[float]) -> float:
    """By how much the longest step of a checkpoint is longer than the longest before it."""
    return max(0.0, max(during) - max(plain))


def _report(keys: int, steps: _Steps, restores: list[tuple[float, float]], sizes: _Sizes) -> Report:
    report = Report(f"{TITLE}: {keys:,} keys")
    plain_ms = [step.elapsed_ms for step in steps.plain]
    during_ms = [step.elapsed_ms for step in steps.during]
    figures = (
        ("checkpoint_ms", steps.checkpoint_ms, "from its marker to safely stored, between steps"),
        ("stall_ms_max", steps.stall_ms, "longest step of a checkpoint less the longest before it"),
        ("stall_cpu_ms_max", steps.stall_cpu_ms, "the same in processor time of the vertex"),
        ("restore_ms", [r[0] for r in restores], "fence, checkpoint, changes: ready to step"),
        ("restore_cpu_ms", [r[1] for r in restores], "processor time of this"),
        ("incremental_bytes", sizes.changes, "a checkpoint when 1 % of the keys changed"),
        ("incremental_ms", sizes.checkpoint_ms, "such a one, from its marker to safely stored"),
        ("step_ms_plain", plain_ms, "median step without a checkpoint"),
        ("step_ms_checkpoint", during_ms, "median step during one"),
    )
    for key, samples, meaning in figures:
        report.add(key, median(samples), meaning, len(samples))
    report.add("step_ms_plain_max", max(plain_ms), "longest step without one", len(plain_ms))
    longest = "longest step during one"
    report.add("step_ms_checkpoint_max", max(during_ms), longest, len(during_ms))
    report.add("checkpoint_bytes", sizes.picture, "a complete checkpoint", 1)
    share = report.value("incremental_bytes") / sizes.picture
    report.add("incremental_share", share, "incremental_bytes / checkpoint_bytes", 1)
    report.reach = {
        "incremental_share_at_most_2_percent": share <= INCREMENTAL_SHARE_MAX,
        "restore_within_1_s": report.value("restore_ms") <= RESTORE_MS_MAX,
        "stall_at_most_20_ms": report.value("stall_ms_max") <= STALL_MS_MAX,
    }
    return report


def _keys(text: str) -> int:
    value = int(float(text))
    if not 1 <= value <= 10**8:
        raise argparse.ArgumentTypeError(f"{text}: a state has 1 to 1e8 keys here")
    return value
