"""Runs a translated query over rounds of rows in one process, which may be lost on the way."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path

import pyarrow as pa

from penstock.api.static_sides import rows_of
from penstock.catalyst.evaluator import DriverSpark
from penstock.catalyst.translate import Translated
from penstock.expressions.types import schema_from_arrow
from penstock.kernels.cache import KernelCache
from penstock.log import punit
from penstock.plan.nodes import StreamRef
from penstock.plan.optimizer import plan_program
from penstock.plan.query import Query, Write
from penstock.runtime.assembly import Assembly
from penstock.runtime.checkpointing import BackgroundCheckpointer
from penstock.runtime.static_sides import write_version
from penstock.runtime.streams import StreamReader, StreamWriter, create_stream
from penstock.stages.program import Program
from penstock.stages.settings import Settings
from penstock.state.checkpoints import CheckpointStore
from penstock.testing.clock import ManualClock
from penstock.testing.memory_log import MemoryLog, MemoryStore
from penstock.testing.standalone import StandaloneHost
from tests.oracle.feeding import Round

Feed = Callable[[], object]

OUTPUT, LATE = "out", "late"
CHECKPOINT_COMMITS = 3
STEPS_MAX = 4


@dataclass(frozen=True)
class Manner:
    """How a query is run: nothing of it may change the result."""

    parallelism: int = 1
    crashes: int = 0
    keep_late: bool = False
    seed: int = 0
    kernels: KernelCache | None = None  # None: everything is evaluated by Arrow

    @classmethod
    def drawn(cls, rng: random.Random) -> Manner:
        parallelism, crashes = rng.choice((1, 3)), rng.choice((0, 1, 3))
        return cls(parallelism, crashes, seed=rng.randrange(1 << 30))


@dataclass(frozen=True)
class Outcome:
    """What is committed once the input has ended."""

    rows: pa.Table
    late_rows: int
    late: pa.Table | None


def program_of(translated: Translated, manner: Manner) -> Program:
    settings = Settings(
        commit_interval_ms=0,
        checkpoint_interval_commits=CHECKPOINT_COMMITS,
        late_stream=LATE if manner.keep_late else None,
        watermark_policy=translated.watermark_policy,
    )
    write = Write(translated.relation, StreamRef(OUTPUT))
    return plan_program(Query(translated.query, (write,), manner.parallelism, settings))


class Process:
    """One incarnation of a process that hosts all vertices of a program."""

    def __init__(
        self,
        program: Program,
        store: MemoryStore,
        folder: Path,
        kernels: KernelCache | None,
        spark: DriverSpark | None = None,
    ) -> None:
        self.log = MemoryLog(store)
        checkpoints = CheckpointStore(folder)
        self._checkpointer = BackgroundCheckpointer(checkpoints, self.log)
        clock = ManualClock()
        self.host = StandaloneHost(
            Assembly(
                program,
                self.log,
                clock,
                checkpoints,
                self._checkpointer,
                kernels,  # type: ignore[arg-type]
                spark=spark,
            )
        )

    def crash(self) -> None:
        self.host.abandon()
        self._checkpointer.close()

    def close(self) -> None:
        self.host.close()
        self._checkpointer.close()


def run(
    program: Program,
    log: MemoryLog,
    feeds: Sequence[Feed],
    folder: Path,
    manner: Manner,
    spark: DriverSpark | None = None,
) -> Outcome:
    """The committed output of a program whose input grows by one feed after the other.

    After each of them processes are lost as the manner says, and then everything that is there is
    processed and committed.
    """
    rng = random.Random(manner.seed)
    lost_in = [rng.randrange(len(feeds)) for _ in range(manner.crashes)]
    process = Process(program, log.store, folder, manner.kernels, spark)
    try:
        for number, feed in enumerate(feeds):
            feed()
            for _ in range(lost_in.count(number)):
                for _ in range(rng.randrange(STEPS_MAX)):
                    process.host.step()
                process.crash()
                process = Process(program, log.store, folder, manner.kernels, spark)
            process.host.run_available()
        vertices = process.host.statistics().vertices.values()
        return Outcome(
            rows=StreamReader(log, OUTPUT).read_all(),
            late_rows=sum(vertex.late_rows for vertex in vertices),
            late=StreamReader(log, LATE).read_all() if manner.keep_late else None,
        )
    finally:
        process.close()


def run_rows(
    translated: Translated, rounds: Sequence[Round], folder: Path, manner: Manner | None = None
) -> Outcome:
    """The same for a query over one stream, to its end."""
    (stream,) = translated.streams
    return run_streams(translated, {stream: rounds}, folder, manner)


def run_streams(
    translated: Translated,
    rounds: Mapping[str, Sequence[Round]],
    folder: Path,
    manner: Manner | None = None,
) -> Outcome:
    """The same for a query over streams, which grow by turns and end one after the other."""
    manner = Manner() if manner is None else manner
    log = log_with_statics(translated)
    writers: dict[str, StreamWriter] = {}
    for name, of_stream in rounds.items():
        create_stream(log, name, schema_from_arrow(of_stream[0][0].schema))
        writers[name] = StreamWriter(log, name, f"writer_of_{name}")
    feeds: list[Feed] = []
    for turn in zip_longest(*rounds.values()):
        for writer, deliveries in zip(writers.values(), turn, strict=True):
            if deliveries is not None:
                feeds.append(partial(_deliver, writer, deliveries))
    feeds += [partial(writer.write, None, ended=True) for writer in writers.values()]
    program = program_of(translated, manner)
    if not translated.spark:
        return run(program, log, feeds, folder, manner)
    from pyspark.sql import SparkSession  # noqa: PLC0415

    with closing(DriverSpark(SparkSession.active(), translated.spark)) as spark:
        return run(program, log, feeds, folder, manner, spark)


def log_with_statics(translated: Translated) -> MemoryLog:
    """A new log that has the static rows of a query."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    log = MemoryLog()
    for number, side in enumerate(translated.statics):
        static = rows_of(SparkSession.active(), side, 1 << 20)
        write_version(log, translated.query, side.name, number + 1, static, punit.Codec.LZ4)
    return log


def _deliver(writer: StreamWriter, deliveries: Round) -> None:
    for batch in deliveries:
        writer.write(batch)
