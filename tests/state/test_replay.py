"""Changes of many commits folded into fewer: they do the same, for every kind of state."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.state.columns import KeyColumn, MergeRule, StateSchema, ValueColumn
from penstock.state.contract import State
from penstock.state.entries import EntryState
from penstock.state.keyed import KeyedState
from penstock.state.replay import Fold, Replay
from penstock.state.row_store import RowStore
from tests.state import test_entries, test_row_store
from tests.thoroughness import some

COUNTS = StateSchema(
    keys=(KeyColumn("word", pa.string()),),
    values=(ValueColumn("n", pa.int64(), MergeRule.COUNT),),
)


def change_groups(state: KeyedState, rng: random.Random) -> None:
    words = pa.array([rng.choice(["a", "b", None, "long word"]) for _ in range(4)], pa.string())
    panes = np.array([rng.randrange(6) for _ in range(4)])
    if rng.random() < 0.3:
        state.delete([words], panes)
    if rng.random() < 0.2:
        state.drop_panes(rng.randrange(4))
    if rng.random() < 0.8:
        state.merge([words], panes, [pa.array([1, 2, 3, 4])])


def change_rows(state: RowStore, rng: random.Random) -> None:
    alive = state._alive()
    if alive.size and rng.random() < 0.4:
        state.mark(alive[: rng.randrange(1, 3)])
    if alive.size and rng.random() < 0.4:
        state.delete(alive[:1])
    if rng.random() < 0.2:
        state.evict(rng.randrange(30))
    count = rng.randrange(3)
    rows = [(rng.randrange(4), "text", [rng.randrange(99)]) for _ in range(count)]
    batch = test_row_store.batch(rows)
    until = np.array([rng.randrange(60) for _ in range(count)], np.int64)
    state.insert(batch, test_row_store.keys_of(batch), until)


def change_entries(state: EntryState, rng: random.Random) -> None:
    for _ in range(3):
        key, name = (rng.choice("ab"), 0), (rng.randrange(4),)
        if rng.random() < 0.4:
            state.delete(key, name)
        else:
            state.put(key, name, (rng.randrange(99), ["text"]), rng.choice([None, 7]))


KINDS: list[Any] = [
    (lambda: KeyedState("counts", COUNTS), change_groups),
    (test_row_store.store, change_rows),
    (test_entries.state, change_entries),
]


def shown(state: State) -> list[Any]:
    rows = state.described() if isinstance(state, RowStore) else state.scan()
    listed: list[Any] = rows.to_pylist()
    if isinstance(state, EntryState):  # keys in any order, the entries of each in their own
        listed.sort(key=lambda row: row["k0"])
    return listed


def picture(state: State) -> list[pa.RecordBatch]:
    taken = state.begin_snapshot()
    while not taken.copy_some():
        pass
    return list(taken.batches())


@pytest.mark.parametrize("kind", KINDS, ids=["groups", "rows", "entries"])
@pytest.mark.parametrize("seed", some(range(40), every=4))
def test_folded_changes_do_what_all_do(kind: Any, seed: int) -> None:
    make, change = kind
    rng = random.Random(seed)
    live: State = make()
    for _ in range(rng.randrange(20)):
        change(live, rng)
        live.take_changes()
    base, folds = picture(live), []
    one_by_one, chained, joined = live.empty(), live.empty(), live.empty()
    for restored in (one_by_one, chained, joined):
        restored.restore(base)
    for _ in range(3):  # a chain of three parts
        fold = Fold(live)
        for _ in range(rng.randrange(12)):
            change(live, rng)
            if (changes := live.take_changes()) is not None:
                fold.add(changes)
                one_by_one.apply_changes(changes)
        folds.append(list(fold.batches()))
    for part in folds:
        for batch in part:
            chained.apply_changes(batch)
    assert shown(chained) == shown(one_by_one)
    together = Fold(live)  # the same parts, put together
    for part in folds:
        for batch in part:
            together.add(batch)
    replay = Replay(joined)
    for batch in together.batches():
        replay.add(batch)
    replay.flush()
    assert shown(joined) == shown(one_by_one)
    assert len(joined) == len(live)


def test_a_row_is_set_once_however_often_it_was_changed() -> None:
    live = KeyedState("counts", COUNTS)
    fold = Fold(live)
    for _ in range(50):
        live.merge([pa.array(["a", "b"])], None, [pa.array([1, 1])])
        changes = live.take_changes()
        assert changes is not None
        fold.add(changes)
    assert [batch.num_rows for batch in fold.batches()] == [2]
