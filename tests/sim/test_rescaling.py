"""States of real operators in the middle of a run, cut by key range, gone on with apart, and put
together again: all give what one operator gives that was never cut.

Which graphs, and their input, are the simulator's.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.kernels.cache import KernelCache
from penstock.kernels.hashing import hash_columns
from penstock.operators.chain import Chain
from penstock.operators.contract import TIME_END, TIME_NONE, moved_back
from penstock.operators.specs import AggregateSpec, WatermarkSpec
from penstock.sim.data import SECOND_US, Disorder, make_feed, to_arrow
from penstock.sim.more_shapes import MORE_SHAPES
from penstock.sim.shapes import JOINED_SHAPES, LATER_SHAPES, SHAPES, Shape, programs_of
from penstock.stages.key_ranges import split_key_space
from penstock.stages.program import Program, Stage
from penstock.state.contract import KeyRange
from tests.thoroughness import IS_DEEP

ROUND_ROWS = 6
SEEDS = 3 if IS_DEEP else 1
# By what they keep: groups, windows, distinct keys, groups of groups, rows of joins, sessions,
# waiting rows, tables, joins of tables, items, keys that expire.
NAMES = (
    "running", "hopping", "distinct", "regrouped", "pairs", "within", "sessions", "sessions_gap",
    "sessions_of_sessions", "top_k", "last_ones", "grouped_table", "tables_full", "tables_anti",
    "table_of_groups", "near_full", "near_semi", "near_anti", "joins_of_joins", "collected",
    "within_watermark", "met_table", "distinct_moments", "late_sessions",
)  # fmt: skip
QUICK = ("sessions_gap", "last_ones", "near_full", "collected")
ALL = {s.name: s for s in (*SHAPES, *LATER_SHAPES, *JOINED_SHAPES, *MORE_SHAPES)}


@dataclass(frozen=True)
class Batch:
    port: int
    rows: pa.RecordBatch


@dataclass(frozen=True)
class Time:
    us: int
    of_ports_us: tuple[int, ...]


class Commit:
    pass


Event = Batch | Time | Commit


class Line:
    """A whole program in one thread, which notes what comes to each stage."""

    def __init__(self, program: Program, kernels: KernelCache) -> None:
        self._stages = program.stages
        self._chains = [chain_of(stage, kernels) for stage in program.stages]
        self._times = [[TIME_NONE] * len(stage.ports) for stage in program.stages]
        self.events: list[list[Event]] = [[] for _ in program.stages]

    def round(self, given: Sequence[pa.RecordBatch | None], at_end: bool) -> None:
        """Rows of each feed, in the order of the feeds, then time, then a commit."""
        for number, stage in enumerate(self._stages):
            if stage.source is not None:
                batch = given[int(stage.source.options["feed"])]
                if batch is not None:
                    names = [field.name for field in stage.ports[0].schema]
                    self._take(number, 0, batch.select(names))
                self._hear(number, 0, TIME_END if at_end else self._seen_us(number))
        for number in range(len(self._stages)):
            self.events[number].append(Commit())
            self._hand_on(number, self._chains[number].on_commit())

    def _seen_us(self, number: int) -> int:
        delays = [s.delay_us for s in self._stages[number].specs if isinstance(s, WatermarkSpec)]
        found = [
            time.as_py()
            for event in self.events[number]
            if isinstance(event, Batch) and delays
            for time in event.rows.column("ts").cast(pa.int64())
            if time.as_py() is not None
        ]
        return max(found) - delays[0] if found else TIME_NONE

    def _take(self, number: int, port: int, rows: pa.RecordBatch) -> None:
        self.events[number].append(Batch(port, rows))
        output = self._chains[number].process(rows, None, "raise", port)
        self._hand_on(number, output.batches)

    def _hand_on(self, number: int, batches: Sequence[pa.RecordBatch]) -> None:
        for batch in batches:
            for output, rows in self._chains[number].outputs(batch):
                stream = self._stages[number].outputs[output].stream
                for other, port in self._readers(stream):
                    names = [field.name for field in self._stages[other].ports[port].schema]
                    self._take(other, port, rows.select(names))

    def _hear(self, number: int, port: int, us: int) -> None:
        times = self._times[number]
        before, times[port] = min(times), max(times[port], us)
        if min(times) <= before:
            return
        time = Time(min(times), tuple(times))
        self.events[number].append(time)
        chain = self._chains[number]
        self._hand_on(number, chain.on_watermark(time.us, time.of_ports_us))
        for output in self._stages[number].outputs:
            for other, its_port in self._readers(output.stream):
                self._hear(other, its_port, moved_back(time.us, chain.behind_us))

    def _readers(self, stream: str) -> Iterator[tuple[int, int]]:
        for number, stage in enumerate(self._stages):
            for port, each in enumerate(stage.ports):
                if stream in each.streams:
                    yield number, port


def chain_of(stage: Stage, kernels: KernelCache) -> Chain:
    """What emits its whole result does so when it has changed: here it shows what has changed."""
    ports = [(port.schema, port.front) for port in stage.ports]
    operators = [
        replace(spec, mode="update")
        if isinstance(spec, AggregateSpec) and spec.mode == "complete"
        else spec
        for spec in stage.operators
    ]
    return Chain(ports, operators, kernels)


class Shared:
    """One chain for each range of keys; rows find theirs as an exchange deals them."""

    def __init__(
        self, chains: list[Chain], ranges: Sequence[KeyRange], keys: Callable[[int], Sequence[str]]
    ) -> None:
        self.chains, self._ranges, self._keys = chains, ranges, keys

    def meet(self, event: Event) -> Counter[Any]:
        found: Counter[Any] = Counter()
        for chain, (low, high) in zip(self.chains, self._ranges, strict=True):
            if isinstance(event, Commit):
                batches = chain.on_commit()
                for state in chain.states.values():
                    state.take_changes()
            elif isinstance(event, Time):
                batches = chain.on_watermark(event.us, event.of_ports_us)
            else:
                columns = [event.rows.column(name) for name in self._keys(event.port)]
                hashes = hash_columns(columns, event.rows.num_rows)
                rows = event.rows.filter(pa.array((hashes >= low) & (hashes < high)))
                batches = chain.process(rows, None, "raise", event.port).batches
            found.update(plain(row) for batch in batches for row in batch.to_pylist())
        return found


def plain(row: dict[str, Any]) -> str:
    """Lists that were collected are in no order."""
    return repr({n: sorted(v, key=repr) if isinstance(v, list) else v for n, v in row.items()})


def cut(chain: Chain, make: Callable[[], Chain], ranges: Sequence[KeyRange]) -> list[Chain]:
    """Chains that go on from here, each with the keys of a range."""
    parts = [make() for _ in ranges]
    for name, state in chain.states.items():
        for part, owned in zip(parts, state.partition(ranges), strict=True):
            restore(part, name, owned)
    for part in parts:
        part.restore_progress(chain.progress())
    return parts


def put_together(parts: Sequence[Chain], make: Callable[[], Chain]) -> Chain:
    whole = make()
    first, *others = parts
    for name, state in first.states.items():
        restore(whole, name, state)
        for other in others:
            whole.states[name].merge_from(other.states[name])  # type: ignore[arg-type]
        whole.states[name].take_changes()
    whole.restore_progress(furthest([part.progress() for part in parts]))
    return whole


def furthest(progress: Sequence[Any]) -> Any:
    """Times and counters of parts, for the whole of them: the greatest of each."""
    if isinstance(progress[0], list | tuple):
        return [furthest(each) for each in zip(*progress, strict=True)]
    return max((each for each in progress if each is not None), default=None)


def has_numbers(chain: Chain) -> bool:
    """Whether groups keep values under numbers of their own: of two parts they may be the same."""
    return any(name.endswith(("_values", "_sums")) for name in chain.states)


def restore(chain: Chain, name: str, state: Any) -> None:
    picture = state.begin_snapshot()
    while not picture.copy_some():
        pass
    chain.states[name].restore(list(picture.batches()))


def feeds_of(shape: Shape, rng: random.Random) -> list[pa.RecordBatch]:
    disorder = Disorder(SECOND_US, 0.0)
    return [to_arrow(make_feed(rng, number, 60, disorder)) for number in range(shape.feeds)]


def events_of(shape: Shape, seed: int, kernels: KernelCache) -> tuple[Program, list[list[Event]]]:
    rng = random.Random(f"{shape.name} {seed}")
    (program,) = programs_of(shape)
    line = Line(program, kernels)
    feeds = feeds_of(shape, rng)
    for first in range(0, 60, ROUND_ROWS):
        line.round([feed.slice(first, ROUND_ROWS) for feed in feeds], at_end=False)
    line.round([None] * len(feeds), at_end=True)
    return program, line.events


def keys_of(program: Program, stage: Stage) -> Callable[[int], Sequence[str]]:
    """By port: the columns by which its rows are dealt out."""
    by_stream = {each.stream: each.partition_by for s in program.stages for each in s.outputs}
    return lambda port: by_stream[stage.ports[port].streams[0]]


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in NAMES],
)
def test_states_are_cut_and_put_together(name: str, seed: int, kernels: KernelCache) -> None:
    rng = random.Random(f"{name} {seed}")
    program, events = events_of(ALL[name], seed, kernels)
    tested = 0
    for stage, met in zip(program.stages, events, strict=True):
        keys = keys_of(program, stage)
        if stage.source or not stage.stateful or not all(map(keys, range(len(stage.ports)))):
            continue
        check_stage(stage, met, keys, rng, kernels)
        tested += 1
    assert tested


def check_stage(
    stage: Stage,
    events: Sequence[Event],
    keys: Callable[[int], Sequence[str]],
    rng: random.Random,
    kernels: KernelCache,
) -> None:
    def make() -> Chain:
        return chain_of(stage, kernels)

    whole_range = split_key_space(1)
    whole = Shared([make()], whole_range, keys)
    apart = Shared([make()], whole_range, keys)
    expected: Counter[Any] = Counter()
    found: Counter[Any] = Counter()
    emitted = 0
    commits = [at for at, event in enumerate(events) if isinstance(event, Commit)]
    cuts = sorted(rng.sample(commits[1:-1], 3))
    for at, event in enumerate(events):
        expected.update(whole.meet(event))
        found.update(apart.meet(event))
        if isinstance(event, Commit):
            assert found == expected, f"after event {at} of {len(events)}, cut at {cuts}"
            emitted += expected.total()
            expected.clear()
            found.clear()
        if at == cuts[0]:
            ranges = split_key_space(rng.choice((2, 3, 7)))
            apart = Shared(cut(apart.chains[0], make, ranges), ranges, keys)
        elif at == cuts[1] and not has_numbers(apart.chains[0]):
            apart = Shared([put_together(apart.chains, make)], whole_range, keys)
        elif at == cuts[2] and len(apart.chains) == 1:
            ranges = split_key_space(2)
            apart = Shared(cut(apart.chains[0], make, ranges), ranges, keys)
    assert emitted
