"""Windowed aggregates against plain Python: disorder, late rows, batch boundaries, restarts."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock.errors import StateOverflow
from penstock.expressions.tree import call, column, literal
from penstock.expressions.types import Field, Schema, arrow_schema, parse_type
from penstock.kernels.cache import KernelCache
from penstock.operators.specs import (
    AggregateCall,
    AggregateSpec,
    PartialAggregateSpec,
    WatermarkSpec,
    WindowSpec,
)
from penstock.operators.windows import Windows
from tests.operators.chains import linear
from tests.operators.oracle import Row, WindowOracle
from tests.thoroughness import examples, some

SEEDED = settings(
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
SCHEMA: Schema = (
    Field("time", parse_type("timestamp")),
    Field("key", parse_type("string")),
    Field("value", parse_type("bigint")),
    Field("price", parse_type("double")),
    Field("word", parse_type("string")),
)
time, key, value, price, word = (column(field.name, field.type) for field in SCHEMA)
EXACT = (
    AggregateCall("count", None, "n"),
    AggregateCall("count", value, "values"),
    AggregateCall("sum", value, "total"),
    AggregateCall("avg", value, "mean"),
)
OTHERS = (
    AggregateCall("min", value, "least"),
    AggregateCall("max", value, "most"),
    AggregateCall("sum", price, "prices"),
)
KEPT = (
    AggregateCall("first", value, "opened"),
    AggregateCall("last", value, "latest", ignores_nulls=True),
    AggregateCall("min", word, "lowest"),
    AggregateCall("max", word, "highest"),
    AggregateCall("min_by", call("upper", word), "by_word", word),
    AggregateCall("bit_xor", value, "bits"),
    AggregateCall("var_pop", price, "spread"),
    AggregateCall("skewness", price, "skew"),
    AggregateCall("count", value, "different", is_distinct=True),
    AggregateCall("sum", value, "sum_of_different", is_distinct=True),
    AggregateCall("collect_list", word, "words"),
    AggregateCall("collect_set", value, "all_values"),
    AggregateCall("percentile", price, "quartiles", options=(True, False, 0.25, 0.5)),
    AggregateCall("percentile_approx", value, "middle", options=(False, 10_000, 0.5)),
    AggregateCall("mode", word, "mode"),
)
SHAPES = {
    "tumbling": (10, 10, 0),
    "hopping": (12, 3, 1),
    "uneven": (10, 4, 0),
    "apart": (20, 10, 5),
}


def spec_of(shape: str, mode: str, aggregates: tuple[AggregateCall, ...]) -> AggregateSpec:
    size, slide, start = SHAPES[shape]
    window = WindowSpec(time, size, slide, start)
    return AggregateSpec((("key", key),), window, aggregates, mode, is_watermarked=True)


def rows_of(random: Random, count: int, around: int) -> list[Row]:
    """Rows near a time, in disorder, some far behind; prices are sums of quarters, so exact."""
    return [
        {
            "time": None if random.random() < 0.05 else around + random.randint(-25, 10),
            "key": random.choice(["a", "b", "ccc", None]),
            "value": None if random.random() < 0.2 else random.randint(-50, 50),
            "price": None if random.random() < 0.2 else random.randint(-9, 9) / 4,
            "word": random.choice([None, "", "a", "ab", "b", "é", "z\0"]),
        }
        for _ in range(count)
    ]


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    columns = [pa.array([row["time"] for row in rows], pa.int64()).cast(pa.timestamp("us", "UTC"))]
    for field in arrow_schema(SCHEMA[1:]):
        columns.append(pa.array([row.get(field.name) for row in rows], field.type))
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(SCHEMA))


def tuples_of(batches: tuple[pa.RecordBatch, ...]) -> list[tuple[Any, ...]]:
    found = []
    for batch in batches:
        batch.validate(full=True)
        window = batch.column(0)
        bounds = [window.field(index).cast(pa.int64()).to_pylist() for index in (0, 1)]
        found += list(zip(*bounds, *[c.to_pylist() for c in batch.columns[1:]], strict=True))
    return found


def columns_of(rows: list[tuple[Any, ...]], aggregates: tuple[AggregateCall, ...]) -> list[Any]:
    """Of the oracle's aggregates, those that the query has."""
    every = [aggregate.name for aggregate in EXACT + OTHERS + KEPT]
    kept = [3 + every.index(aggregate.name) for aggregate in aggregates]
    return [(*row[:3], *(row[index] for index in kept)) for row in rows]


class Pair:
    """A chain and the oracle, fed alike."""

    def __init__(
        self,
        shape: str,
        mode: str,
        aggregates: tuple[AggregateCall, ...],
        cache: KernelCache | None,
    ) -> None:
        self.aggregates = aggregates
        self.spec = spec_of(shape, mode, aggregates)
        self.cache = cache
        self.chain = linear((WatermarkSpec("time", 5), self.spec), SCHEMA, cache, want_late=True)
        self.oracle = WindowOracle(*SHAPES[shape])
        self.late = 0

    def feed(self, rows: list[Row], random: Random) -> int | None:
        """One or several batches; return the greatest time."""
        cut = random.randint(0, len(rows))
        times = []
        for piece in (rows[:cut], rows[cut:]):
            output = self.chain.process(batch_of(piece))
            assert output.batches == ()
            self.late += output.late_rows
            assert (0 if output.late is None else output.late.num_rows) == output.late_rows
            times.append(output.max_event_time_us)
        self.oracle.take(rows)
        assert self.late == self.oracle.late
        known = [t for t in times if t is not None]
        assert max(known, default=None) == max(
            (row["time"] for row in rows if row["time"] is not None), default=None
        )
        return max(known, default=None)

    def advance(self, watermark: int) -> None:
        found = tuples_of(self.chain.on_watermark(watermark))
        assert found == columns_of(self.oracle.close(watermark), self.aggregates)

    def commit(self) -> dict[str, Any]:
        """Take changes as the runtime does; return what a marker would hold."""
        for state in self.chain.states.values():
            state.take_changes()
        progress: dict[str, Any] = json.loads(json.dumps(self.chain.progress()))
        return progress

    def restart(self) -> None:
        """Throw the chain away and make another from its states and progress."""
        progress = self.commit()
        pictures = {}
        for name, state in self.chain.states.items():
            snapshot = state.begin_snapshot()
            while not snapshot.copy_some():
                pass
            pictures[name] = list(snapshot.batches())
        self.chain = linear(
            (WatermarkSpec("time", 5), self.spec), SCHEMA, self.cache, want_late=True
        )
        for name, state in self.chain.states.items():
            state.restore(pictures[name])
        self.chain.restore_progress(progress)


CASES = [(shape, EXACT + OTHERS) for shape in sorted(SHAPES)]
CASES += [(shape, KEPT + EXACT + OTHERS) for shape in ("tumbling", "hopping")]
CASES += [("hopping", EXACT), ("uneven", EXACT)]  # exact aggregates alone keep running totals


@pytest.mark.parametrize("case", some(CASES, every=2), ids=lambda case: f"{case[0]}-{len(case[1])}")
@settings(SEEDED, max_examples=examples(12))
@given(seed=st.integers(0, 2**32))
def test_append_mode(
    kernels: KernelCache, case: tuple[str, tuple[AggregateCall, ...]], seed: int
) -> None:
    """Each window comes once, when the watermark passes its end, also across restarts."""
    random = Random(seed)
    shape, aggregates = case
    pair = Pair(shape, "append", aggregates, kernels)
    now, watermark = 0, None
    for _ in range(random.randint(1, 12)):
        now += random.choice([0, 1, 3, 10, 40])
        latest = pair.feed(rows_of(random, random.randint(0, 12), now), random)
        if latest is not None and random.random() < 0.8:
            watermark = max(latest - 5, watermark if watermark is not None else latest - 5)
            pair.advance(watermark)
        if random.random() < 0.3:
            pair.restart()
    pair.advance((1 << 63) - 1)
    for state in pair.chain.states.values():
        assert len(state) == 0, "closed windows leave nothing behind"


@pytest.mark.parametrize("aggregates", [EXACT + OTHERS, KEPT + EXACT], ids=["numbers", "kept"])
@pytest.mark.parametrize("shape", ["tumbling", "hopping"])
@settings(SEEDED, max_examples=examples(12))
@given(seed=st.integers(0, 2**32))
def test_update_mode(
    kernels: KernelCache, shape: str, aggregates: tuple[AggregateCall, ...], seed: int
) -> None:
    """At each commit the open windows that changed, and nothing else."""
    random = Random(seed)
    pair = Pair(shape, "update", aggregates, kernels)
    now, watermark = 0, -(1 << 40)
    for _ in range(random.randint(1, 10)):
        now += random.choice([0, 1, 3, 10])
        latest = pair.feed(rows_of(random, random.randint(0, 12), now), random)
        rises = latest is not None and random.random() < 0.5
        before = dict(pair.oracle.windows)
        changed = set(pair.oracle.changed)
        if rises and latest is not None:
            watermark = max(watermark, latest - 5)
            closing = pair.chain.on_watermark(watermark)
            ended = pair.oracle.close(watermark)
            expected = [row for row in ended if (row[0], row[2]) in changed]
            assert tuples_of(closing) == columns_of(expected, aggregates), before
        found = tuples_of(pair.chain.on_commit())
        assert found == columns_of(pair.oracle.updates(), aggregates)
        assert pair.chain.on_commit() == () or found
        pair.commit()
        assert pair.chain.on_commit() == ()
        if random.random() < 0.3:
            pair.restart()


@pytest.mark.parametrize("shape", ["tumbling", "hopping"])
def test_complete_mode_keeps_everything(kernels: KernelCache, shape: str) -> None:
    random = Random(4)
    aggregates = EXACT + OTHERS + KEPT
    pair = Pair(shape, "complete", aggregates, kernels)
    for step in range(5):
        pair.feed(rows_of(random, 10, step * 20), random)
        assert pair.chain.on_watermark(step * 20) == ()
        found = tuples_of(pair.chain.on_commit())
        pair.oracle.changed = set(pair.oracle.windows)
        assert found == columns_of(pair.oracle.updates(), aggregates)
        pair.commit()
    assert pair.late == 0


@pytest.mark.parametrize("shape", ["tumbling", "uneven"])
def test_partials_through_an_exchange(kernels: KernelCache, shape: str) -> None:
    """Two chains make partials, a third merges them: the same windows, the same late rows."""
    random = Random(11)
    aggregates = EXACT + OTHERS
    whole = spec_of(shape, "append", aggregates)
    partial = PartialAggregateSpec(whole.keys, whole.window, aggregates)
    merging = replace(whole, merge_partials=True)
    upstream = [linear((WatermarkSpec("time", 5), partial), SCHEMA, kernels) for _ in range(2)]
    downstream = linear((merging,), upstream[0].output_schema, kernels)
    oracle = WindowOracle(*SHAPES[shape])
    late = 0
    for step in range(8):
        for chain in upstream:
            rows = rows_of(random, 20, step * 9)
            output = chain.process(batch_of(rows))
            assert output.late_rows == 0
            for batch in output.batches:
                late += downstream.process(batch).late_rows
            oracle.take(rows)
        found = tuples_of(downstream.on_watermark(step * 9))
        assert found == columns_of(oracle.close(step * 9), aggregates)
    assert late == oracle.late > 0


def test_the_watermark_of_process_counts_too(kernels: KernelCache) -> None:
    pair = Pair("tumbling", "append", EXACT, kernels)
    row = {"time": 5, "key": "a", "value": 1, "price": None}
    assert pair.chain.process(batch_of([row]), watermark_us=9).late_rows == 0
    assert pair.chain.process(batch_of([row]), watermark_us=10).late_rows == 1
    assert tuples_of(pair.chain.on_watermark(20)) == [(0, 10, "a", 1, 1, 1, 1.0)]
    assert pair.chain.process(batch_of([row]), watermark_us=None).late_rows == 1


def test_sums_near_the_end_of_64_bits(kernels: KernelCache) -> None:
    """Running totals step aside where a sum might overflow; a window that does overflow says so."""
    pair = Pair("hopping", "append", EXACT, kernels)
    huge = [
        {"time": at, "key": "a", "value": (1 << 62) - 1, "price": None} for at in (1, 4, 40, 41)
    ]
    pair.feed(huge[:2], Random(1))
    pair.advance(20)
    pair.feed([{**huge[2], "time": 30}, {**huge[0], "time": 31, "value": -5}], Random(1))
    pair.advance(60)
    pair.feed([{**row, "time": 70 + 3 * at} for at, row in enumerate(huge[:3])], Random(1))
    with pytest.raises(StateOverflow):
        pair.chain.on_watermark(90)


def test_many_windows_at_once_and_far_apart(kernels: KernelCache) -> None:
    """An end of input closes thousands of windows in one call; empty stretches cost nothing."""
    pair = Pair("hopping", "append", EXACT, kernels)
    random = Random(9)
    for around in (0, 3_000, 1 << 40):
        rows = [row for step in range(0, 900, 30) for row in rows_of(random, 2, around + step)]
        pair.feed(rows, random)
    pair.advance((1 << 63) - 1)
    assert len(pair.chain.states["aggregate0"]) == 0


# --- the ends of time -----------------------------------------------------------------------------

TIME_END = (1 << 63) - 1


@pytest.mark.parametrize("size", [(10_000_000, 10_000_000, 0), (10, 3, 2), (1, 1, 0)])
@pytest.mark.parametrize("mode", ["append", "update"])
@pytest.mark.parametrize("function", ["count", "bit_or"])
def test_windows_beyond_64_bits_fail_their_row_and_no_other(
    kernels: KernelCache, size: tuple[int, int, int], mode: str, function: str
) -> None:
    """No row vanishes: it is in all its windows, whose ends are times, or it is rejected."""
    window = WindowSpec(time, *size)
    counted = (AggregateCall(function, literal(1, parse_type("int")), "n"),)
    spec = AggregateSpec((), window, counted, mode, is_watermarked=True)
    schema = SCHEMA[:1]
    chain = linear((spec,), schema, kernels)
    first, last = window.times_us
    outside = [-TIME_END - 1, -TIME_END, first - 1, last + 1, TIME_END - 1, TIME_END]
    times = pa.array([*outside, first, last], pa.int64()).cast(pa.timestamp("us", "UTC"))
    batch = pa.RecordBatch.from_arrays([times], schema=arrow_schema(schema))
    output = chain.process(batch, on_bad_row="reject")
    assert output.rejected is not None
    assert output.rejected.column("time").cast(pa.int64()).to_pylist() == outside
    assert "would lie beyond 64 bits" in output.rejected.column("error")[0].as_py()
    emitted = tuples_of(chain.on_watermark(TIME_END))
    expected = [
        (start, start + window.size_us, 1)
        for at in (first, last)
        for start in range(
            at - (at - window.start_us) % window.slide_us, at - window.size_us, -window.slide_us
        )
    ]
    assert sorted(emitted) == sorted(expected)
    assert output.late_rows == 0


def test_the_windows_of_panes_far_apart_are_found_without_a_walk() -> None:
    windows = Windows(WindowSpec(time, 10, 4))
    panes = np.array([-(10**15), 0, 1, 3, 10**15])
    near = [w for w in range(-10, 10) if any(_covers(windows, w, pane) for pane in (0, 1, 3))]
    found = list(windows.overlap.windows_over(panes, -TIME_END, TIME_END))
    assert found == sorted(set(found))
    assert [w for w in found if -10 < w < 10] == near
    assert all(any(_covers(windows, w, int(pane)) for pane in panes) for w in found)
    assert len(found) == len(near) + 2 * 3
    assert list(windows.overlap.windows_over(panes, 0, 1)) == [0, 1]


def _covers(windows: Windows, window: int, pane: int) -> bool:
    first, last = windows.panes_of(window)
    return first <= pane <= last
