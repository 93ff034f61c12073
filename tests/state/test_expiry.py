"""Rows that are over are those that a look at all finds, and finding them costs what they are."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from penstock.state.columns import KeyColumn, MergeRule, StateSchema, ValueColumn
from penstock.state.keyed import KeyedState

SCHEMA = StateSchema(
    (KeyColumn("k", pa.int64()),),
    (ValueColumn("n", pa.int64(), MergeRule.SUM), ValueColumn("end", pa.int64(), MergeRule.MAX)),
)


def state() -> KeyedState:
    return KeyedState("tested", SCHEMA)


def write(tested: KeyedState, keys: list[int], ends: list[int | None]) -> None:
    ones = pa.array([1] * len(keys), pa.int64())
    tested.merge([pa.array(keys, pa.int64())], None, [ones, pa.array(ends, pa.int64())])


def over(tested: KeyedState, limit: int) -> list[int]:
    rows = tested.scan()
    found = zip(rows.column("k").to_pylist(), rows.column("end").to_pylist(), strict=True)
    return sorted(key for key, end in found if end is not None and end <= limit)


@pytest.mark.parametrize("seed", range(12))
def test_they_are_found_whatever_happened_to_the_state(seed: int) -> None:
    rng = random.Random(seed)
    tested, now = state(), 0
    for _ in range(150):
        keys = rng.sample(range(400), rng.randrange(60))
        write(tested, keys, [rng.choice([None, now + rng.randrange(300)]) for _ in keys])
        match rng.randrange(6):
            case 0:
                tested.take_changes()
            case 1:
                gone = [key for key in keys if rng.random() < 0.5]
                tested.delete([pa.array(gone, pa.int64())], np.zeros(len(gone), np.int64))
            case 2:  # as a process that goes on from a picture and changes
                tested.take_changes()
                again = state()
                picture = tested.begin_snapshot()
                while not picture.copy_some():
                    pass
                again.restore(list(picture.batches()))
                write(tested, keys, [now] * len(keys))
                if (changes := tested.take_changes()) is not None:
                    again.apply_changes(changes)
                tested = again
        now += rng.choice([0, 5, 40])
        expected = over(tested, now)
        assert sorted(tested.rows_upto("end", now).column("k").to_pylist()) == expected
        if rng.random() < 0.8:
            assert tested.delete_upto("end", now) == len(expected)
            assert over(tested, now) == []


def test_the_others_are_not_looked_at() -> None:
    """Many are open, and each moment ends a few: the work is that of those, not of the open."""
    sessions, moments = 20_000, 400
    rng = random.Random(1)
    tested = state()
    ends = rng.sample(range(moments * 100), sessions)
    write(tested, list(range(sessions)), list(ends))
    tested.take_changes()
    found = 0
    for moment in range(moments):
        limit = moment * 100 // 10  # only a tenth of them ends
        touched = rng.sample(range(sessions), 5)  # and some go on
        write(tested, touched, [moments * 100] * 5)
        found += tested.rows_upto("end", limit).num_rows
        tested.delete_upto("end", limit)
        tested.take_changes()
    assert found > sessions // 20
    expiry = tested._table.expiry
    assert expiry is not None
    changed = found + 5 * moments
    assert expiry[1].rows_moved < sessions + 40 * changed  # a look at all: sessions * moments
