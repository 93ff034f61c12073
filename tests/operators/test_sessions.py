"""Sessions against a list of rows that is cut where the gaps are, in plain Python."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import StateOverflow
from penstock.expressions.tree import call, column, literal
from penstock.expressions.types import (
    BIGINT,
    DOUBLE,
    STRING,
    TIMESTAMP,
    Field,
    Schema,
    arrow_schema,
)
from penstock.kernels.cache import KernelCache
from penstock.operators.chain import Chain
from penstock.operators.specs import (
    WEIGHT_FIELD,
    AggregateCall,
    AggregateSpec,
    OperatorSpec,
    PartialAggregateSpec,
    SessionSpec,
    WatermarkSpec,
)
from tests.operators.chains import linear
from tests.thoroughness import some

SECOND = 1_000_000
GAP = 5 * SECOND
ROWS: Schema = (
    Field("k", STRING),
    Field("at", TIMESTAMP),
    Field("gap", BIGINT),
    Field("v", BIGINT),
    Field("p", DOUBLE),
)
K, AT, GAPS, V, P = (column(field.name, field.type) for field in ROWS)
CALLS = tuple(
    AggregateCall(function, argument, name)
    for function, argument, name in (
        ("count", None, "n"),
        ("sum", V, "s"),
        ("avg", V, "a"),
        ("min", P, "lo"),
        ("max", V, "hi"),
    )
)
Row = dict[str, Any]
Found = list[tuple[Any, ...]]


def session(dynamic: bool = True) -> SessionSpec:
    gap = GAPS if dynamic else literal(GAP, BIGINT)
    return SessionSpec(AT, call("timestamp_micros", call("add", call("unix_micros", AT), gap)))


def spec(keyed: bool = True, dynamic: bool = True, **more: Any) -> AggregateSpec:
    keys = (("k", K),) if keyed else ()
    return AggregateSpec(keys, session(dynamic), CALLS, is_watermarked=True, **more)


class Model:
    """All rows that were in time, and what the watermark has taken of them."""

    def __init__(self, keyed: bool) -> None:
        self.keyed = keyed
        self.rows: list[Row] = []
        self.watermark: int | None = None
        self.late: list[Row] = []

    def take(self, rows: list[Row]) -> None:
        for row in rows:
            if row["at"] is None:
                continue
            is_late = self.watermark is not None and row["at"] + row["gap"] <= self.watermark
            (self.late if is_late else self.rows).append(row)

    def sessions(self) -> list[list[Row]]:
        found: list[list[Row]] = []
        end = 0
        for row in sorted(self.rows, key=lambda row: (self.key(row), row["at"])):
            same = found and self.key(found[-1][0]) == self.key(row) and row["at"] <= end
            if same:
                found[-1].append(row)
            else:
                found.append([row])
            end = max(end, row["at"] + row["gap"]) if same else row["at"] + row["gap"]
        return found

    def key(self, row: Row) -> str:
        return f"{row['k'] is not None}{row['k']}" if self.keyed else ""

    def close(self, watermark: int) -> Found:
        self.watermark = watermark
        over = [rows for rows in self.sessions() if _end(rows) <= watermark]
        gone = {id(row) for rows in over for row in rows}
        self.rows = [row for row in self.rows if id(row) not in gone]
        return self.shown(over)

    def shown(self, sessions: list[list[Row]]) -> Found:
        return sorted((self._shown(rows) for rows in sessions), key=repr)

    def _shown(self, rows: list[Row]) -> tuple[Any, ...]:
        values = [row["v"] for row in rows if row["v"] is not None]
        prices = [row["p"] for row in rows if row["p"] is not None]
        key = (rows[0]["k"],) if self.keyed else ()
        total = sum(values) if values else None
        average = sum(values) / len(values) if values else None
        begin = min(row["at"] for row in rows)
        extremes = (min(prices, default=None), max(values, default=None))
        return (begin, _end(rows), *key, len(rows), total, average, *extremes)


def _end(rows: list[Row]) -> int:
    end: int = max(row["at"] + row["gap"] for row in rows)
    return end


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    schema = arrow_schema(ROWS)
    columns = []
    for field in schema:
        kind = pa.int64() if pa.types.is_timestamp(field.type) else field.type
        columns.append(pa.array([row[field.name] for row in rows], kind).cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def shown(batches: tuple[pa.RecordBatch, ...]) -> Found:
    found = []
    for batch in batches:
        window, *others = batch.columns
        times = [time.cast(pa.int64()).to_pylist() for time in window.flatten()]
        found += list(zip(*times, *(each.to_pylist() for each in others), strict=True))
    return sorted(found, key=repr)


def random_rows(rng: random.Random, now: int, dynamic: bool) -> list[Row]:
    keys = ["a", "b", None, *(f"k{number}" for number in range(rng.choice([1, 30])))]
    rows = []
    for _ in range(rng.randrange(40)):
        back = rng.choice([0, rng.randrange(8), rng.randrange(120)]) * SECOND // 2
        gap = rng.choice([GAP // 5, GAP, 4 * GAP, 1]) if dynamic else GAP
        rows.append({
            "k": rng.choice(keys), "gap": gap,
            "at": None if rng.random() < 0.02 else now - back,
            "v": rng.choice([None, rng.randrange(-50, 50)]), "p": rng.choice([None, 1.5, -2.25]),
        })  # fmt: skip
    return rows


def exchanged(grouping: AggregateSpec, cache: KernelCache | None) -> tuple[Chain, Chain]:
    part: PartialAggregateSpec = grouping.partial
    before = linear((WatermarkSpec("at", 0), part), ROWS, cache)
    merging = AggregateSpec(
        part.keys, part.window, part.aggregates, grouping.mode, True, is_watermarked=True
    )
    return before, linear((merging,), part.output_schema(ROWS), cache)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("through_exchange", [False, True])
@pytest.mark.parametrize("seed", some(range(6), every=3))
def test_rows_become_the_sessions_that_their_gaps_say(
    dynamic: bool, keyed: bool, through_exchange: bool, seed: int
) -> None:
    rng = random.Random(f"{dynamic} {keyed} {seed}")
    model, grouping = Model(keyed), spec(keyed, dynamic)
    before, chain = exchanged(grouping, None)
    if not through_exchange:
        chain = linear((WatermarkSpec("at", 0), grouping), ROWS, None)
    now, late, emitted = 10_000 * SECOND, 0, 0
    for _ in range(25):
        rows = random_rows(rng, now, dynamic)
        model.take(rows)
        batches = [batch_of(rows)]
        if through_exchange:
            batches = [b for batch in batches for b in before.process(batch).batches]
        late += sum(chain.process(batch).late_rows for batch in batches)
        now += rng.randrange(0, 12) * SECOND
        if rng.random() < 0.6:
            watermark = now - rng.choice([0, 10, 40]) * SECOND
            if model.watermark is None or watermark > model.watermark:
                closed = model.close(watermark)
                emitted += len(closed)
                assert shown(chain.on_watermark(watermark)) == closed
        if rng.random() < 0.3:  # what is kept in the log is enough to go on
            chain = restored(chain, grouping, through_exchange)
        assert late == len(model.late)
    assert shown(chain.on_watermark(now + 10**12)) == model.close(now + 10**12)
    assert not any(map(len, chain.states.values()))
    assert emitted
    assert late


def restored(chain: Chain, grouping: AggregateSpec, through_exchange: bool) -> Chain:
    specs: tuple[OperatorSpec, ...] = (WatermarkSpec("at", 0), grouping)
    again = exchanged(grouping, None)[1] if through_exchange else linear(specs, ROWS, None)
    carry_over(chain, again)
    return again


def carry_over(chain: Chain, again: Chain) -> None:
    """What the log would have of a chain, into another one."""
    for name, state in chain.states.items():
        state.take_changes()
        picture = state.begin_snapshot()
        while not picture.copy_some():
            pass
        again.states[name].restore(list(picture.batches()))
    again.restore_progress(chain.progress())


def test_changes_give_the_state_again() -> None:
    rng = random.Random(3)
    chain, again = (linear((WatermarkSpec("at", 0), spec()), ROWS, None) for _ in range(2))
    (state,), (other,) = chain.states.values(), again.states.values()
    now = 10_000 * SECOND
    for _ in range(30):
        chain.process(batch_of(random_rows(rng, now, True)))
        now += rng.randrange(12) * SECOND
        chain.on_watermark(now - 20 * SECOND)
        changes = state.take_changes()
        if changes is not None:
            other.apply_changes(changes)
            other.apply_changes(changes)
        assert state.scan().equals(other.scan())


def test_complete_mode_gives_every_session_and_knows_no_late_row() -> None:
    rng = random.Random(5)
    model = Model(True)
    chain = linear((WatermarkSpec("at", 0), spec(mode="complete")), ROWS, None)
    now = 10_000 * SECOND
    for _ in range(10):
        rows = random_rows(rng, now, True)
        model.take(rows)
        assert not chain.process(batch_of(rows)).late_rows
        now += 10 * SECOND
        assert not chain.on_watermark(now)
        if rows:
            assert shown(chain.on_commit()) == model.shown(model.sessions())
        for state in chain.states.values():
            state.take_changes()


def test_late_rows_are_handed_on_as_they_came() -> None:
    chain = linear((WatermarkSpec("at", 0), spec()), ROWS, None, want_late=True)
    chain.on_watermark(100 * SECOND)
    row = {"k": "a", "at": 90 * SECOND, "gap": 10 * SECOND, "v": 1, "p": None}
    longer = {**row, "gap": 10 * SECOND + 1, "v": 2}
    done = chain.process(batch_of([row, longer]))
    assert done.late_rows == 1
    assert done.late is not None
    assert done.late.column("v").to_pylist() == [1]


def test_the_rows_before_a_sum_that_overflows_are_there_as_before() -> None:
    chain = linear((WatermarkSpec("at", 0), spec()), ROWS, None)
    row = {"k": "a", "at": 90 * SECOND, "gap": GAP, "v": (1 << 63) - 1, "p": None}
    chain.process(batch_of([row, {**row, "at": 80 * SECOND, "v": 5}]))
    (state,) = chain.states.values()
    before = state.scan()
    with pytest.raises(StateOverflow):
        chain.process(batch_of([{**row, "at": 85 * SECOND, "v": 1}]))
    assert state.scan().equals(before)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("seed", some(range(4), every=3))
def test_sessions_that_change_go_and_come(weighted: bool, keyed: bool, seed: int) -> None:
    """What came and has not gone is what a list of the rows of the moment says, at each commit."""
    rng = random.Random(f"{weighted} {keyed} {seed}")
    grouping = spec(keyed, mode="update", changes=True, weighted=weighted)
    schema = (*ROWS, WEIGHT_FIELD) if weighted else ROWS
    specs = (WatermarkSpec("at", 0), grouping)
    model, chain = Model(keyed), linear(specs, schema, None)
    ledger, over = Counter[Any](), Counter[Any]()
    now, went = 10_000 * SECOND, 0
    for _ in range(25):
        rows = random_rows(rng, now, True)
        gone = [row for row in model.rows if weighted and rng.random() < 0.3]
        went += len(gone)
        model.take(rows)
        model.rows = [row for row in model.rows if not any(row is each for each in gone)]
        batch = batch_of([*rows, *gone])
        if weighted:
            weights = pa.array([1] * len(rows) + [-1] * len(gone), pa.int8())
            batch = batch.append_column(arrow_schema(schema).field(WEIGHT_FIELD.name), weights)
        chain.process(batch)
        now += rng.randrange(0, 12) * SECOND
        watermark = now - rng.choice([0, 10, 40]) * SECOND
        emitted = ()
        if rng.random() < 0.5 and (model.watermark is None or watermark > model.watermark):
            over.update(model.close(watermark))
            emitted = chain.on_watermark(watermark)
        for *row, weight in shown((*emitted, *chain.on_commit())):
            ledger[tuple(row)] += weight
        assert +ledger == over + Counter(model.shown(model.sessions()))
        assert min(ledger.values(), default=0) >= 0
        if rng.random() < 0.3:
            before, chain = chain, linear(specs, schema, None)
            carry_over(before, chain)
    assert bool(went) == weighted
    chain.on_watermark(now + 10**12)
    assert not any(map(len, chain.states.values()))


def test_what_sessions_collect_goes_with_them() -> None:
    rng = random.Random(8)
    calls = (AggregateCall("collect_list", V, "all"), AggregateCall("count", V, "n"))
    calls += (AggregateCall("count", V, "differ", is_distinct=True),)
    grouping = replace(spec(), aggregates=calls)
    model, chain = Model(True), linear((WatermarkSpec("at", 0), grouping), ROWS, None)
    now, found = 10_000 * SECOND, 0
    for _ in range(25):
        rows = random_rows(rng, now, True)
        model.take(rows)
        chain.process(batch_of(rows))
        now += rng.randrange(1, 12) * SECOND
        watermark = now - 20 * SECOND
        model.watermark = watermark
        over = [rows for rows in model.sessions() if _end(rows) <= watermark]
        model.close(watermark)
        expected = {}
        for rows in over:
            values = [row["v"] for row in rows if row["v"] is not None]
            begin = min(row["at"] for row in rows)
            expected[begin, rows[0]["k"]] = (sorted(values), len(values), len(set(values)))
        given = {
            (begin, key): (sorted(every), count, differ)
            for begin, _, key, every, count, differ in shown(chain.on_watermark(watermark))
        }
        assert given == expected
        found += len(given)
        chain = restored(chain, grouping, False)
    assert found
    chain.on_watermark(now + 10**12)
    assert not any(map(len, chain.states.values()))


@pytest.mark.slow
def test_compiled_loops_find_the_same_sessions(kernels: KernelCache) -> None:
    rng = random.Random(11)
    chains = [linear((WatermarkSpec("at", 0), spec()), ROWS, each) for each in (None, kernels)]
    now = 10_000 * SECOND
    for _ in range(20):
        batch = batch_of(random_rows(rng, now, True))
        now += 6 * SECOND
        found = []
        for chain in chains:
            chain.process(batch)
            found.append(shown(chain.on_watermark(now - 10 * SECOND)))
        assert found[0] == found[1]
