"""The benchmark of join state: what a row costs as both sides grow, and how they come back.

Two streams are joined by key, without an end: every row is kept, and meets one of the other side.
The vertex that joins them is stepped in this process, over a log on the disk. Then it is dropped
without a word and recovered: fence, checkpoint, changes since.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.bench.report import Report, machine_facts, median
from penstock.expressions.tree import Column
from penstock.expressions.types import BIGINT
from penstock.kernels.cache import KernelCache
from penstock.log import open_log
from penstock.operators.specs import JoinKey, JoinMatch, JoinSpec
from penstock.plan.nodes import step
from penstock.plan.optimizer import plan_program
from penstock.runtime.streams import StreamWriter, create_stream
from penstock.stages.program import Program
from penstock.stages.settings import Settings
from penstock.testing.plans import Draft, query, scan_stream
from penstock.testing.single_process import SingleProcess

TITLE = "join state: cost of a row as it grows, and restore"
SIDES = ("left", "right")
SIZES = (10_000, 100_000, 1_000_000)
BATCH_ROWS = 1_024
CHECKPOINT_COMMITS = 100
RESTORES = 3
CHECKPOINT_S_MAX = 120.0
STATE_BYTES_MAX = 8 << 30

FLAT_MAX = 1.5  # the cost of a row with the most rows kept, beside that with the fewest
RESTORE_MS_MAX = 2_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rows",
        type=_rows,
        default=SIZES[-1],
        metavar="N",
        help="of each side in the end (default 1000000)",
    )
    parser.add_argument(
        "--dir", type=Path, default=Path(), help="a folder on the disk to use (default .)"
    )


def measure(args: argparse.Namespace) -> Report:
    """Fill both sides, restore them, and report."""
    machine = machine_facts()
    sizes = sorted({min(size, args.rows) for size in SIZES})
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=args.dir) as name:
        bench = _Bench(Path(name))
        bench.warm()
        costs = bench.fill(sizes)
        restores = [bench.restore(2 * sizes[-1]) for _ in range(RESTORES)]
    report = Report(f"{TITLE}: {sizes[-1]:,} rows of each side")
    for size, us in costs.items():
        report.add(f"row_us_{size}", median(us), f"a row in, with {size:,} of each side", len(us))
    report.add("restore_ms", median(restores), "fence, checkpoint, changes: both sides", RESTORES)
    growth = report.value(f"row_us_{sizes[-1]}") / report.value(f"row_us_{sizes[0]}")
    report.add("growth", growth, "of the cost of a row from the fewest to the most", 1)
    report.reach = {
        "cost_is_flat": growth <= FLAT_MAX,
        "restore_within_2_s": report.value("restore_ms") <= RESTORE_MS_MAX,
    }
    report.facts = machine | {"state_bytes": bench.state_bytes}
    return report


class _Bench:
    """One folder with a log, and the program over it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kernels = KernelCache(folder / "kernels")
        self._program = _program()
        self._vertex = self._program.vertices[-1].name
        self.state_bytes = 0

    def warm(self) -> None:
        """Compile what there is to compile, in a log of its own."""
        with self._process("warm") as process:
            _Sides(process, BATCH_ROWS).both()
            process.run_available()

    def fill(self, sizes: list[int]) -> dict[int, list[float]]:
        """The microseconds of a row, batch by batch, while the state grows from half of a size."""
        costs: dict[int, list[float]] = {size: [] for size in sizes}
        with self._process("log") as process:
            sides = _Sides(process, BATCH_ROWS)
            while sides.rows < sizes[-1]:
                written = sides.both(sizes[-1])
                start_s = time.perf_counter()
                process.run_available()
                us = (time.perf_counter() - start_s) * 1e6 / (2 * written)
                for size, of_size in costs.items():
                    if size // 2 <= sides.rows <= size:
                        of_size.append(us)
            process.wait_checkpoints(CHECKPOINT_S_MAX)
            self.state_bytes = process.statistics().vertices[self._vertex].state_bytes
        return costs

    def restore(self, rows: int) -> float:
        """From nothing to a vertex that can step, in a process that is warm, as a standby is."""
        process = self._process("log", ())
        try:
            start_s = time.perf_counter()
            process.host.begin(self._vertex)
            elapsed_ms = (time.perf_counter() - start_s) * 1e3
            found = process.statistics().vertices[self._vertex].state_rows
            assert found == rows, f"{found} of {rows} rows came back"
            return elapsed_ms
        finally:
            process.abandon()

    def _process(self, log: str, vertices: tuple[str, ...] | None = None) -> SingleProcess:
        folder = self._folder / log
        with open_log(folder, create=True) as made:
            for side in SIDES:
                create_stream(made, side, _schema(side))
        return SingleProcess(self._program, folder, vertices=vertices, kernels=self._kernels)


class _Sides:
    """The two streams, which get the same keys in another order."""

    def __init__(self, process: SingleProcess, batch_rows: int) -> None:
        self._writers = {side: StreamWriter(process.log, side, f"{side}_writer") for side in SIDES}
        self._batch_rows = batch_rows
        self.rows = 0

    def both(self, rows_max: int = 1 << 40) -> int:
        """A batch of each side; how many rows each has."""
        count = min(self._batch_rows, rows_max - self.rows)
        keys = np.arange(self.rows, self.rows + count)
        for name, order in (("left", keys), ("right", keys[::-1])):
            columns = [pa.array(order), pa.array(order * 3)]
            batch = pa.RecordBatch.from_arrays(columns, schema=_schema(name))
            self._writers[name].write(batch)
        self.rows += count
        return count


def _schema(side: str) -> pa.Schema:
    fields = [pa.field(f"{side}_{name}", pa.int64(), nullable=False) for name in ("key", "value")]
    return pa.schema(fields)


def _program() -> Program:
    settings = Settings(
        commit_interval_ms=0,
        checkpoint_interval_commits=CHECKPOINT_COMMITS,
        state_bytes_max=STATE_BYTES_MAX,
    )
    sides = [
        scan_stream(side, f"{side}_key bigint not null, {side}_value bigint not null")
        for side in SIDES
    ]
    left, right = (Column(f"{side}_key", BIGINT, False) for side in SIDES)
    key = JoinKey(left, right)
    joined = step(JoinSpec("inner", JoinMatch((key,))), *(side.relation for side in sides))
    return plan_program(query("join", Draft(joined).to_stream("pairs"), settings=settings))


def _rows(text: str) -> int:
    value = int(float(text))
    if not SIZES[0] <= value <= 10**8:
        raise argparse.ArgumentTypeError(f"{text}: a side has {SIZES[0]:,} to 1e8 rows here")
    return value
