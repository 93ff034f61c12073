"""Which form each column of a stream gets: tried on a sample, judged by what it costs.

Every few seconds some rows are written in each form that their statistics allow. A form costs the
time to write and read it, measured on this machine and kept for a minute, and the time that its
bytes take to the disk. The cheapest one holds until the next decision. It is an assumption: values
that break it get another form in their unit, and a decision comes sooner.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from penstock.arrays import Vector, decimal_words, is_text, storage, values_of
from penstock.clock import Clock, SystemClock
from penstock.log.codecs.columns import (
    CODED_TYPES,
    SCHEMES,
    ColumnReader,
    column_node,
    schemes_for,
)
from penstock.log.codecs.disk import UNKNOWN_BYTES_PER_S, disk_bytes_per_s
from penstock.log.codecs.kernels import XOR
from penstock.log.codecs.nodes import Budget, Form, Known, Node, Unfit, Why, span

INTERVAL_S = 4.0
SAMPLE_ROWS = 65_536
SAMPLE_BYTES = 512 << 10
SPEED_AGE_S_MAX = 60.0
SPEED_READINGS = 3
SLOW_S = 0.002  # a reading that takes so long is not repeated: rows wait for it
GAIN_MIN = 0.05  # of what it costs to store values as they are: less is not worth a copy
WORSE_MAX = 1.5  # times the bytes that the sample spoke of: then it is decided sooner
SOONER = 4  # at a quarter of the interval
CHOOSERS_MAX = 256
RUN_LENGTH_MIN = 2.0
DISTINCT_SHARE_MAX = 0.25
OUTLIER_BITS = 2.0  # that the widest value has above the average: then widths are worth storing
_STORE_PROBE_BYTES = 1 << 20
_FOR_OUTLIERS = frozenset({Form.SIMPLE8B, Form.VARIABLE_BYTES, Form.BLOCKS})


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a sample of a column says."""

    rows: int
    nulls: int
    least: int | float | None  # of numbers
    most: int | float | None
    run_length: float
    distinct: int

    @property
    def distinct_share(self) -> float:
        return self.distinct / self.rows if self.rows else 1.0


def statistics(column: pa.Array) -> Statistics:
    """Look at a sample."""
    rows, nulls = len(column), column.null_count
    dense = column.drop_null() if nulls else column
    if dense.type in CODED_TYPES:
        dense = dense.indices
    if is_text(dense.type):
        dense = dense.dictionary_encode().indices
        least = most = None
    numbers = _numbers(dense)
    if numbers is None or not numbers.size:
        return Statistics(rows, nulls, None, None, 1.0, rows)
    if is_text(column.type) or column.type in CODED_TYPES:
        distinct = int(numbers.max()) + 1
    else:
        least, most = numbers.min().item(), numbers.max().item()
        distinct = int(np.unique(numbers.view(f"u{numbers.itemsize}")).size)
    bits = numbers.view(f"u{numbers.itemsize}")
    runs = 1 + int(np.count_nonzero(bits[1:] != bits[:-1]))
    if column.type in CODED_TYPES:
        least = most = None
    return Statistics(rows, nulls, least, most, numbers.size / runs, distinct)


def _numbers(column: pa.Array) -> Vector | None:
    if column.type.id == pa.lib.Type_DECIMAL128:
        return np.ascontiguousarray(decimal_words(column)[:, 0])
    if storage(column.type) is None and column.type.id != pa.lib.Type_BOOL:
        return None
    return values_of(column)


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds for a byte of a column as it is in memory."""

    write: float
    read: float


class Speeds:
    """How fast forms are on this machine, by type; each is measured anew after a while."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[float, Speed]] = {}
        self._store: float | None = None

    def of(self, scheme: str, sample: pa.Array, digits: int) -> Speed:
        """Of a scheme that the sample fits."""
        key = (scheme, str(sample.type))
        now_s = self._clock.monotonic_s()
        if key not in self._known or now_s - self._known[key][0] > SPEED_AGE_S_MAX:
            self._known[key] = (now_s, self._measure(scheme, sample, digits))
        return self._known[key][1]

    @property
    def store(self) -> float:
        """To copy and check a byte on its way to the disk."""
        if self._store is None:
            content = bytes(_STORE_PROBE_BYTES)
            both = self._best(lambda: (bytearray(content), xxh3_64_intdigest(content)))
            self._store = both / len(content)
        return self._store

    def _measure(self, scheme: str, sample: pa.Array, digits: int) -> Speed:
        node = column_node(sample, scheme, None, digits)
        size = max(1, sample.nbytes)

        def read() -> pa.Array:
            reader = ColumnReader(len(sample), Budget(1 << 40), _read_message)
            if sample.type not in CODED_TYPES:
                return reader.column(node, sample.type)
            return reader.column(node, sample.type.value_type, coded=True)

        write_s = self._best(lambda: column_node(sample, scheme, None, digits))
        return Speed(write_s / size, self._best(read) / size)

    def _best(self, work: Callable[[], object]) -> float:
        best_s = float("inf")
        for _ in range(SPEED_READINGS):
            start_s = self._clock.monotonic_s()
            work()
            took_s = self._clock.monotonic_s() - start_s
            best_s = min(best_s, took_s)
            if took_s > SLOW_S:
                break
        return best_s


def _read_message(message: pa.Buffer, schema: pa.Schema, rows: int) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(message, schema)


@dataclass(frozen=True, slots=True)
class Trial:
    """What one form would cost: seconds for a byte in memory, its share of the bytes."""

    scheme: str
    share: float
    speed: Speed
    cost: float


@dataclass(slots=True)
class Plan:
    """What was decided for a column."""

    scheme: str
    share: float
    why: Why
    known: Known | None = None


class Chooser:
    """Decides for the columns of one stream, and writes them."""

    def __init__(
        self,
        bytes_per_s: Callable[[], float],
        speeds: Speeds,
        clock: Clock,
        interval_s: float = INTERVAL_S,
        digits: int | None = None,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._speeds = speeds
        self._clock = clock
        self._interval_s = interval_s
        self._digits = digits
        self._plans: list[Plan] = []
        self._decided_s = 0.0
        self._is_broken = False
        self.disk_bytes_per_s = 0.0
        self.decisions = 0

    def nodes(self, columns: Sequence[pa.Array]) -> list[Node]:
        """The columns of a batch, each in the form that was decided for it."""
        now_s = self._clock.monotonic_s()
        wait_s = self._interval_s / SOONER if self._is_broken else self._interval_s
        if not self._plans or now_s - self._decided_s >= wait_s:
            self._decide(columns)
            self._decided_s, self._is_broken = now_s, False
        return [self._node(column, plan) for column, plan in zip(columns, self._plans, strict=True)]

    @property
    def plans(self) -> list[Plan]:
        """What holds now."""
        return self._plans

    def _decide(self, columns: Sequence[pa.Array]) -> None:
        self.decisions += 1
        self.disk_bytes_per_s = self._bytes_per_s()
        self._plans = [self._plan(sample_of(column)) for column in columns]

    def _plan(self, sample: pa.Array) -> Plan:
        found = self.trials(sample)
        plain = next((each for each in found if each.scheme == "none"), None)
        best = min(found, key=lambda each: each.cost)
        if plain is not None and best.cost > plain.cost * (1 - GAIN_MIN):
            return Plan("none", 1.0, Why.NOTHING_PAYS)
        return Plan(best.scheme, best.share, Why.CHEAPEST)

    def trials(self, sample: pa.Array, schemes: tuple[str, ...] = ()) -> list[Trial]:
        """What each form that is worth a try would cost."""
        size = max(1, sample.nbytes)
        found = []
        if not self.disk_bytes_per_s:
            self.disk_bytes_per_s = self._bytes_per_s()
        store = self._speeds.store + 1 / self.disk_bytes_per_s
        for scheme in schemes or candidates(sample, self._digits):
            try:
                share = column_node(sample, scheme, None, self._digits or 0).bytes / size
                speed = self._speeds.of(scheme, sample, self._digits or 0)
            except Unfit:
                continue
            cost = speed.write + speed.read + share * store
            found.append(Trial(scheme, share, speed, cost))
        return found

    def _node(self, column: pa.Array, plan: Plan) -> Node:
        digits = self._digits or 0
        if not len(column):
            return column_node(column, "dictionary" if column.type in CODED_TYPES else "none")
        try:
            node = column_node(column, plan.scheme, plan.known, digits)
            node.why = plan.why
        except Unfit:
            self._is_broken = True
            node = _other_node(column, plan.scheme)
            node.why = Why.OUTGROWN
            return node
        if node.bytes > WORSE_MAX * plan.share * column.nbytes + 4096:
            self._is_broken = True
        plan.known = _known(node, plan.known)
        return node


def sample_of(column: pa.Array) -> pa.Array:
    """Rows from the middle of a column, which follow each other."""
    row_bytes = max(1, column.nbytes // max(1, len(column)))
    rows = min(SAMPLE_ROWS, max(1, SAMPLE_BYTES // row_bytes))
    return column.slice(max(0, (len(column) - rows) // 2), rows)


def candidates(sample: pa.Array, digits: int | None) -> Iterator[str]:
    """The forms that a sample's statistics speak for."""
    kind = sample.type
    said = statistics(sample)
    numbers = None if is_text(kind) or kind in CODED_TYPES else _numbers(sample.drop_null())
    for scheme in schemes_for(kind):
        how = SCHEMES[scheme]
        if how.outer is Form.RUNS:
            is_apt = said.run_length >= RUN_LENGTH_MIN
        elif how.outer is Form.DICTIONARY:
            is_apt = kind in CODED_TYPES or said.distinct_share <= DISTINCT_SHARE_MAX
        elif how.form in _FOR_OUTLIERS and how.order != XOR:
            # Where all values are about as wide, the width is known, and packing is faster.
            is_apt = numbers is not None and _has_outliers(numbers, how.order)
        else:
            is_apt = True
        if is_apt:
            yield scheme
    if digits is not None and pa.types.is_floating(kind):
        yield from (f"scaled.{name}" for name in ("pack", "delta.pack", "blocks", "delta.blocks"))


def _has_outliers(numbers: Vector, order: int) -> bool:
    if numbers.dtype.kind not in "iu" or numbers.size < 8:
        return False
    known = span(numbers, order)
    words = numbers.view(f"u{numbers.itemsize}")
    differences = np.diff(words, order) if order else words
    above = differences - np.array(known.low).astype(f"i{numbers.itemsize}").view(words.dtype)
    average = float(np.log2(above.astype(np.float64) + 1).mean())
    return known.width - average > OUTLIER_BITS


def _known(node: Node, before: Known | None) -> Known | None:
    """What holds of the differences in a node, and held before, if that is not much wider."""
    words = node
    while words.form in (Form.DENSE, Form.NARROW, Form.SCALED):
        words = words.children[-1]
    if words.form is not Form.PACKED:
        return None
    now = Known(words.numbers[2], words.width)
    if before is None or not words.order:
        return now
    low = min(now.low, before.low)
    high = max(now.low + (1 << now.width), before.low + (1 << before.width)) - 1
    width = (high - low).bit_length()
    return Known(low, width) if width <= now.width + 1 else now


def _other_node(column: pa.Array, scheme: str) -> Node:
    """A column whose values broke what was assumed: in a form that takes any, in few bytes."""
    prefix, _, leaf = scheme.rpartition(".")
    for other in (f"{prefix}.simple8b" if prefix else "simple8b", "lz4"):
        if other in schemes_for(column.type) and leaf != other.rpartition(".")[2]:
            try:
                return column_node(column, other)
            except Unfit:
                pass
    if column.type in CODED_TYPES:
        column = column.dictionary_decode()
    return column_node(column, "none")


class Adaptive:
    """The choosers of one writer, by stream; for any number of threads."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        interval_s: float = INTERVAL_S,
        digits: int | None = None,
        bytes_per_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`folder` is where units go: its disk is measured; `bytes_per_s` says it instead."""
        self._folder = folder
        self._bytes_per_s = bytes_per_s
        self._interval_s = interval_s
        self._digits = digits
        self._clock = clock or SystemClock()
        self._choosers: OrderedDict[object, Chooser] = OrderedDict()
        self._lock = threading.Lock()

    def chooser(self, key: object) -> Chooser:
        """The one for a stream and its columns; those that were not used for long are forgotten."""
        with self._lock:
            found = self._choosers.get(key)
            if found is None:
                found = Chooser(self._disk, SPEEDS, self._clock, self._interval_s, self._digits)
                self._choosers[key] = found
            self._choosers.move_to_end(key)
            if len(self._choosers) > CHOOSERS_MAX:
                self._choosers.popitem(last=False)
        return found

    def _disk(self) -> float:
        if self._bytes_per_s is not None:
            return self._bytes_per_s
        return UNKNOWN_BYTES_PER_S if self._folder is None else disk_bytes_per_s(self._folder)


SPEEDS = Speeds(SystemClock())  # of this machine, whatever is written
