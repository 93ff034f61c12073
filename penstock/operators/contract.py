"""What an operator with state promises, and all that a chain knows of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from penstock.arrays import Mask
from penstock.errors import RowError
from penstock.kernels.block import Block
from penstock.kernels.cache import KernelCache
from penstock.operators.python_functions import PythonFunctions
from penstock.operators.specs import SparkColumn
from penstock.operators.static_rows import StaticRows
from penstock.state.contract import KeyRange, State

Batches = tuple[pa.RecordBatch, ...]

ROWS_AT_ONCE_MAX = 1 << 16  # of a batch that goes out

TIME_END = 2**63 - 1  # nothing will come any more
TIME_NONE = -(2**63)


def moved_back(watermark_us: int, by_us: int) -> int:
    """A watermark moved back, unless it is none or that of the end."""
    if watermark_us in (TIME_NONE, TIME_END):
        return watermark_us
    return max(watermark_us - by_us, TIME_NONE + 1)


def in_pieces(rows: pa.RecordBatch) -> Batches:
    """The rows as batches that are not too large to go out."""
    return tuple(
        rows.slice(first, ROWS_AT_ONCE_MAX) for first in range(0, rows.num_rows, ROWS_AT_ONCE_MAX)
    )


class SparkEvaluator(Protocol):
    """Computes what only Spark knows: the driver's session, by the digests of its expressions.

    The same rows always give the same columns, however they are cut into batches.
    """

    def compute(
        self, columns: Sequence[SparkColumn], rows: pa.RecordBatch
    ) -> tuple[list[pa.Array], Mask]:
        """The columns of rows that have all inputs, by name; and the rows that fail."""

    def failure(self, columns: Sequence[SparkColumn], row: pa.RecordBatch) -> tuple[str, str]:
        """Why a row fails, and in which expression."""


@dataclass(frozen=True)
class Tools:
    """What operators are built with."""

    cache: KernelCache | None
    state_bytes_max: int
    want_late: bool  # late rows are handed on, not only counted
    spark: SparkEvaluator | None = None  # where the driver hosts the chain
    python: PythonFunctions | None = None  # in slots, with whose tasks the code came
    is_rehearsal: bool = False  # rows are made up: no function of the query sees them


@dataclass(frozen=True, slots=True)
class Prepared:
    """What an operator has computed of a batch, before anything of it reaches a state."""

    rows: Any  # what its `process` takes
    late_rows: int = 0  # that it has found itself, or were found by `is_late`
    late: pa.RecordBatch | None = None  # these rows, where they are wanted
    max_event_time_us: int | None = None
    bad: Mapping[int, RowError] = field(default_factory=dict)  # by row of the batch


class Operator(ABC):
    """A step of a chain that keeps state between batches.

    Between two markers it is called in this order: `prepare` and `process` for each batch of each
    port, `on_watermark` when event time has come further, `on_time` when something is due,
    `on_commit`; then the runtime takes the changes of `states` and stores `progress`. To come back
    it restores the states and calls `restore_progress`. An operator has no clock, no thread and no
    file, so the same calls always give the same rows.
    """

    states: Mapping[str, State]
    behind_us: int = 0  # how far behind event time its rows may be
    now_us: int = 0  # what the clock shows, for what is processed from here on

    def is_late(
        self, port: int, batch: pa.RecordBatch, watermark_us: int | None
    ) -> pa.BooleanArray | None:
        """Which rows of a port came after event time had passed them; None: none of these.

        The chain takes them out before `prepare`, counts them and hands them on. Rows are late by
        the newer of `watermark_us` and the last `on_watermark`. An operator that finds them in the
        loop that computes them names them in what it prepares instead.
        """
        return None

    @abstractmethod
    def prepare(
        self, port: int, batch: pa.RecordBatch, watermark_us: int | None, collect_bad: bool
    ) -> Prepared:
        """Compute what a batch of a port means, and change nothing.

        A row that fails raises, or is named; the chain then asks again without it.
        """

    @abstractmethod
    def process(self, port: int, prepared: Prepared) -> Batches:
        """Take what was prepared; return the rows that it gives at once."""

    def on_watermark(self, watermark_us: int, of_ports_us: Sequence[int]) -> Batches:
        """Emit what event time finishes, in order: that of all ports together, and of each."""
        return ()

    def due_us(self) -> int | None:
        """When `on_time` is to be called; None: not by the clock."""
        return None

    def use_static(  # noqa: B027 (most have none)
        self, side: str, static: StaticRows, keys: KeyRange | None
    ) -> None:
        """There are rows of a static side, of whose keys those with hashes in a range are ours."""

    def on_time(self) -> Batches:
        """Emit what is due by `now_us`."""
        return ()

    def on_commit(self) -> Batches:
        """Emit what is owed at a commit."""
        return ()

    def owes_whole_result(self) -> bool:
        """Whether `on_commit` is to emit all rows of the result, be it none."""
        return False

    def progress(self) -> Any:
        """What a marker must hold beside the states, as plain JSON."""
        return None

    def restore_progress(self, progress: Any) -> None:  # noqa: B027 (most have nothing to do)
        """Go on from a marker; the states have been restored to it. None: it had nothing."""

    def blocks(self) -> Sequence[Block]:
        """What it computes expressions with."""
        return ()
