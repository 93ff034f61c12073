"""Deduplication against a dictionary: first rows, late rows, forgotten keys, and after restarts."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ExpressionError
from penstock.expressions.tree import column
from penstock.expressions.types import Field, Schema, arrow_schema, parse_type
from penstock.json_codec import canonical_json, parse
from penstock.kernels.cache import KernelCache
from penstock.operators.chain import Chain
from penstock.operators.specs import DeduplicateSpec, OperatorSpec, WatermarkSpec, spec_from_json
from tests.operators.chains import linear

SECOND_US = 1_000_000
ROWS: Schema = tuple(
    Field(name, parse_type(kind))
    for name, kind in (("k", "string"), ("n", "bigint"), ("at", "timestamp"))
)
K, N, AT = (column(field.name, field.type) for field in ROWS)
SPECS = {
    "for ever": DeduplicateSpec((K,)),
    "late by a time that is no key": DeduplicateSpec((K, N), AT),
    "forgotten with their time": DeduplicateSpec((K, AT), AT),
    "within": DeduplicateSpec((K,), AT, 3 * SECOND_US),
    "no keys": DeduplicateSpec(()),
}


class Oracle:
    """One row after the other."""

    def __init__(self, spec: DeduplicateSpec) -> None:
        self.spec = spec
        self.seen: dict[tuple[Any, ...], int | None] = {}
        self.late: list[tuple[Any, ...]] = []
        self.watermark_us: int | None = None

    def take(self, row: tuple[Any, ...]) -> bool:
        time_us = row[2]
        mark_us = self.watermark_us
        is_timed = self.spec.time is not None and time_us is not None
        if is_timed and mark_us is not None and time_us <= mark_us:
            self.late.append(row)
            return False
        named = dict(zip("kna", row, strict=True))
        key = tuple(named[name[0]] for name in self.spec.key_names)
        if self.spec.within_us is not None and key in self.seen:
            expires_us = self.seen[key]
            if None not in (expires_us, mark_us) and mark_us >= expires_us:  # type: ignore[operator]
                del self.seen[key]
        if key in self.seen:
            return False
        within_us = self.spec.within_us
        self.seen[key] = None if time_us is None or within_us is None else time_us + within_us
        return True


def batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    schema = arrow_schema(ROWS)
    columns = [pa.array([row[at] for row in rows], pa.int64() if at == 2 else schema.types[at])
               for at in range(3)]  # fmt: skip
    columns[2] = columns[2].cast(schema.types[2])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def plain(batches: tuple[pa.RecordBatch, ...]) -> list[tuple[Any, ...]]:
    found = []
    for each in batches:
        times = each.column("at").cast(pa.int64()).to_pylist()
        found += list(
            zip(each.column("k").to_pylist(), each.column("n").to_pylist(), times, strict=True)
        )
    return found


def chain_of(spec: DeduplicateSpec, cache: KernelCache | None) -> Chain:
    specs: tuple[OperatorSpec, ...] = (WatermarkSpec("at", 0), spec)
    return linear(specs, ROWS, cache, want_late=True)


def restarted(chain: Chain, spec: DeduplicateSpec, cache: KernelCache | None) -> Chain:
    fresh = chain_of(spec, cache)
    for name, state in chain.states.items():
        state.take_changes()
        picture = state.begin_snapshot()
        while not picture.copy_some():
            pass
        fresh.states[name].restore(list(picture.batches()))
    fresh.restore_progress(chain.progress())
    return fresh


@pytest.mark.parametrize("name", sorted(SPECS))
@pytest.mark.parametrize("seed", range(4))
def test_first_rows_are_those_of_a_dictionary(kernels: KernelCache, name: str, seed: int) -> None:
    spec, rng = SPECS[name], random.Random(f"{name} {seed}")
    chain, oracle = chain_of(spec, kernels), Oracle(spec)
    now_us, late = 0, []
    for _ in range(60):
        rows = []
        for _ in range(rng.randrange(40)):
            time_us = now_us + rng.randrange(-4 * SECOND_US, 2 * SECOND_US)
            key = rng.choice(["a", "b", "", None, f"k{rng.randrange(30)}"])
            rows.append((key, rng.randrange(3), None if rng.random() < 0.05 else time_us))
        done = chain.process(batch(rows))
        wanted = [row for row in rows if oracle.take(row)]
        assert plain(done.batches) == wanted
        late += plain((done.late,)) if done.late is not None else []
        assert late == oracle.late
        if rng.random() < 0.6:
            now_us += rng.randrange(2 * SECOND_US)
            mark_us = now_us - 2 * SECOND_US
            if oracle.watermark_us is None or mark_us > oracle.watermark_us:
                assert chain.on_watermark(mark_us) == ()
                oracle.watermark_us = mark_us
        if rng.random() < 0.2:
            chain = restarted(chain, spec, kernels)
    assert chain.statistics().rows_late <= len(oracle.late)


@pytest.mark.parametrize("name", ["forgotten with their time", "within"])
def test_the_state_does_not_grow_with_time(name: str) -> None:
    spec = SPECS[name]
    chain = chain_of(spec, None)
    (state,) = chain.states.values()
    for second in range(200):
        rows = [(f"k{second}-{n}", n, second * SECOND_US + n) for n in range(20)]
        assert chain.process(batch(rows)).batches[0].num_rows == 20
        chain.on_watermark((second - 2) * SECOND_US)
        assert len(state) <= 20 * 8


def test_changes_bring_a_state_to_where_it_was() -> None:
    for spec in SPECS.values():
        chain, twin = chain_of(spec, None), chain_of(spec, None)
        (state,), (other,) = chain.states.values(), twin.states.values()
        for second in range(12):
            chain.process(batch([(f"k{second % 5}", 1, second * SECOND_US), ("x", second, None)]))
            chain.on_watermark((second - 3) * SECOND_US)
            if (changes := state.take_changes()) is not None:
                other.apply_changes(changes)
            assert state.scan().equals(other.scan())


def test_specs_survive_json_and_bad_ones_are_refused() -> None:
    for spec in SPECS.values():
        assert spec_from_json(parse(canonical_json(spec))) == spec
    with pytest.raises(ExpressionError, match="a time that a watermark speaks of"):
        DeduplicateSpec((K,), None, 5)
    nested = column("list", parse_type("array<bigint>"))
    schema = (*ROWS, Field("list", parse_type("array<bigint>")))
    with pytest.raises(ExpressionError, match="is not supported"):
        DeduplicateSpec((nested,)).output_schema(schema)
    with pytest.raises(ExpressionError, match="there is no column 'z'"):
        DeduplicateSpec((column("z", "bigint"),)).output_schema(ROWS)


def test_the_last_instant_of_a_window_is_late_once_it_is_passed() -> None:
    """The window that ends one microsecond behind it is over, and its row comes just then."""
    spec = DeduplicateSpec((K, AT), AT, is_instant=True)
    chain = chain_of(spec, None)
    last_us = 2 * SECOND_US - 1
    chain.process(batch([("a", 1, last_us)]))
    chain.on_watermark(last_us)
    done = chain.process(batch([("a", 2, last_us), ("b", 3, last_us), ("c", 4, last_us - 1)]))
    assert plain(done.batches) == [("b", 3, last_us)]
    assert done.late_rows == 1
    chain.on_watermark(last_us + 1)
    assert not len(*chain.states.values())
    assert chain.process(batch([("b", 5, last_us)])).late_rows == 1
