"""What a keyed state promises beyond single operations: bounds, memory, costs, order, ownership."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.errors import InvalidName, StateError, StateTooLarge
from penstock.state import overlaps, tables
from penstock.state.columns import KeyColumn, MergeRule, StateSchema, ValueColumn
from penstock.state.contract import ChangeKind
from penstock.state.keyed import KeyedState
from penstock.state.overlaps import Overlap
from tests.state.model import (
    SCHEMA,
    StateModel,
    columns_of,
    key_hash,
    restored,
    same,
    shown,
    snapshot_of,
    take_closed,
    window_of,
)

pytestmark = pytest.mark.usefixtures("loops")

COUNTS = StateSchema(
    (KeyColumn("key", pa.int64()),),
    (ValueColumn("rows", pa.int64(), MergeRule.COUNT), ValueColumn("v", pa.int64(), MergeRule.SUM)),
)
NAMES = StateSchema(
    (KeyColumn("name", pa.string()),), (ValueColumn("last", pa.string(), MergeRule.LAST),)
)


def count(state: KeyedState, keys: np.ndarray, pane: int = 0) -> None:
    ones = np.ones(len(keys), np.int64)
    hashes = (keys * 2654435761 % (1 << 32)).astype(np.uint32)
    panes = np.full(len(keys), pane)
    state.merge_words(keys.reshape(-1, 1), None, panes, [ones, keys], None, hashes)


def test_a_state_beyond_its_bound_is_refused_and_goes_on() -> None:
    bytes_max = 1 << 20
    state = KeyedState("bounded", COUNTS, bytes_max=bytes_max)
    rows = 0

    def grow() -> None:
        nonlocal rows
        while True:
            count(state, np.arange(rows, rows + 300))
            rows += 300
            state.take_changes()
            assert state.memory_bytes() <= bytes_max

    with pytest.raises(StateTooLarge) as raised:
        grow()
    assert raised.value.details["bytes_max"] == bytes_max
    assert rows > 5_000, "most of the bound is for rows"
    assert len(state) == rows
    assert state.memory_bytes() <= bytes_max
    assert state.take_changes() is None
    assert state.scan().column("rows").to_pylist() == [1] * rows
    count(state, np.arange(rows))  # what is there can still change
    assert state.scan().column("rows").to_pylist() == [2] * rows
    with pytest.raises(StateTooLarge):
        state.put([pa.array(range(10**6, 10**6 + 9000))], None, [pa.array([1] * 9000)] * 2)
    assert len(state) == rows
    state.drop_panes(0)
    count(state, np.arange(100))
    assert len(state) == 100


def test_windows_are_put_together_in_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that is within its bound can be read, however large it is."""
    monkeypatch.setattr(overlaps, "LINES_AT_ONCE_MAX", 4_096)
    state, panes, keys = KeyedState("hopping", COUNTS), 60, np.arange(2_000)
    for pane in range(panes):
        count(state, keys, pane)
    list(state.window_rows(np.array([0]), Overlap(1, 1)))  # what is loaded is loaded now
    tracemalloc.start()
    try:
        (window,) = state.window_rows(np.array([0]), Overlap(panes, 1))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert window.column("rows").to_pylist() == [panes] * keys.size
    assert most < state.memory_bytes() * 3 / 4


@pytest.mark.parametrize(
    ("keys", "panes_of_a_key"), [(2000, 1), (1000, 3), (200, 120)], ids=["sparse", "some", "dense"]
)
def test_windows_cost_what_they_have_however_many_pieces_they_come_in(
    keys: int, panes_of_a_key: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlaps, "LINES_AT_ONCE_MAX", 512)
    monkeypatch.setattr(overlaps, "ROWS_AT_ONCE_MAX", 256)
    fold, folded = tables.fold_blocks, 0

    def counted(lines: np.ndarray, *rest: Any) -> None:
        nonlocal folded
        folded += len(lines)
        fold(lines, *rest)

    monkeypatch.setattr(tables, "fold_blocks", counted)
    state, every, per_window = KeyedState("hopping", COUNTS), np.arange(keys), 20
    for pane in range(120):
        count(state, every[(pane - every) % 120 < panes_of_a_key], pane)
    windows = np.arange(1 - per_window, 120)
    found = list(state.window_rows(windows, Overlap(per_window, 1)))
    rows = sum(batch.num_rows for batch in found)
    assert len(found) > 2
    assert sum(pc.sum(batch.column("rows")).as_py() for batch in found) == len(state) * per_window
    assert folded <= 3 * max(len(state), rows)


def test_strings_beyond_the_bound_are_refused_and_forgotten() -> None:
    state = KeyedState("bounded", NAMES, bytes_max=100_000)
    state.merge([pa.array(["a", "b"])], None, [pa.array(["x", "y"])])
    before, strings = state.scan(), state.statistics().strings
    with pytest.raises(StateTooLarge):
        state.merge([pa.array(["c", "d"])], None, [pa.array(["z", "z" * 200_000])])
    with pytest.raises(StateTooLarge):
        state.merge(
            [pa.array([f"name {at}" for at in range(3000)])], None, [pa.nulls(3000, "string")]
        )
    assert state.scan().equals(before)
    assert state.statistics().strings == strings
    state.merge([pa.array(["c"])], None, [pa.array(["z"])])
    assert state.scan().column("name").to_pylist() == ["a", "b", "c"]


def test_memory_shrinks_after_a_large_eviction() -> None:
    state = KeyedState("windows", COUNTS)
    count(state, np.arange(50_000), pane=1)
    count(state, np.arange(100), pane=2)
    state.take_changes()
    full = state.memory_bytes()
    assert state.drop_panes(1) == 50_000
    assert state.memory_bytes() < full / 20
    assert state.scan().column("key").to_pylist() == list(range(100))
    changes = state.take_changes()
    assert changes is not None
    assert changes.num_rows == 1, "one row for fifty thousand"
    assert shown(changes)[0]["__change"] == ChangeKind.EVICT


def test_strings_are_forgotten_with_their_last_row() -> None:
    state = KeyedState("names", NAMES)
    for pane in range(30):
        names = pa.array([f"{pane}-{at}" for at in range(1000)])
        state.merge([names], np.full(1000, pane), [names])
        take_closed(state, pane - 1)
    assert state.statistics().strings < 5000
    assert state.scan().column("name").to_pylist() == sorted(names.to_pylist())
    for turn in range(30):  # values come and go without any row leaving
        values = pa.array([f"value {turn} {at}" for at in range(1000)])
        state.merge([names], np.full(1000, 29), [values])
    assert state.statistics().strings < 9000
    assert state.scan().column("last").to_pylist() == [
        dict(zip(names.to_pylist(), values.to_pylist(), strict=True))[name]
        for name in sorted(names.to_pylist())
    ]


def test_deleted_strings_survive_until_the_changes_are_taken() -> None:
    state = KeyedState("names", NAMES)
    gone = pa.array([f"gone {at}" for at in range(3000)])
    state.merge([gone], None, [gone])
    state.take_changes()
    replica = restored(state, snapshot_of(state))
    assert state.delete([gone]) == 3000
    state.merge([pa.array(["new"])], None, [pa.array(["x"])])
    changes = state.take_changes()
    assert changes is not None
    assert changes.column("name").to_pylist() == [*gone.to_pylist(), "new"]
    replica.apply_changes(changes)
    assert replica.scan().equals(state.scan())
    assert len(replica) == 1


@pytest.mark.usefixtures("no_collector")
def test_a_state_that_nobody_has_any_more_is_gone() -> None:
    state = KeyedState("names", NAMES)
    names = pa.array([f"name {at}" for at in range(3000)])
    state.merge([names], np.arange(3000), [names])
    state.take_changes()
    state.begin_snapshot().copy_some(100)
    state.delete([names.slice(0, 5)], np.arange(5))
    list(state.window_rows(np.arange(3000), Overlap(7, 1)))
    gone = weakref.ref(state), weakref.ref(state._table), weakref.ref(state._strings)
    del state
    assert [each() for each in gone] == [None] * 3


@pytest.mark.usefixtures("no_collector")
def test_a_picture_is_held_by_whoever_wants_it_and_not_by_the_state() -> None:
    state = KeyedState("counts", COUNTS)
    count(state, np.arange(1000))
    state.take_changes()
    snapshot = state.begin_snapshot()
    assert not snapshot.copy_some(500)
    assert state.statistics().snapshot_bytes == snapshot.nbytes > 0
    while not snapshot.copy_some():
        pass
    del snapshot
    assert state.statistics().snapshot_bytes == 0


def test_nothing_closes_without_looking_at_rows() -> None:
    state = KeyedState("windows", COUNTS)
    count(state, np.arange(1000), pane=5)
    entered = []
    state._table.in_panes = lambda *panes: entered.append(panes)  # type: ignore[assignment]
    assert take_closed(state, 4).num_rows == 0
    assert state.drop_panes(-100) == 0
    assert not entered


def test_a_change_costs_what_changed() -> None:
    state = KeyedState("counts", COUNTS)
    count(state, np.arange(20_000))
    assert state.take_changes().num_rows == 20_000
    assert state.take_changes() is None
    count(state, np.array([7, 7, 7]))
    changes = state.take_changes()
    assert shown(changes) == [
        {"key": 7, "__pane": 0, "__hash": 7 * 2654435761 % (1 << 32), "rows": 4, "v": 28,
         "__change": ChangeKind.PUT}
    ]  # fmt: skip


def test_an_eviction_and_a_late_row_in_one_batch_of_changes() -> None:
    """The row came back after its pane was evicted: the eviction must not take it on replay."""
    state, replica = KeyedState("live", COUNTS), KeyedState("replica", COUNTS)
    count(state, np.arange(5), pane=3)
    replica.apply_changes(state.take_changes())
    state.drop_panes(3)
    count(state, np.array([2]), pane=1)
    state.drop_panes(0)
    replica.apply_changes(state.take_changes())
    assert replica.scan().equals(state.scan())
    assert len(replica) == 1


def test_changes_of_an_unknown_kind_are_refused() -> None:
    state = KeyedState("counts", COUNTS)
    count(state, np.arange(3))
    changes = state.take_changes()
    odd = changes.set_column(5, changes.schema.field(5), pa.array([0, 9, 0], pa.int8()))
    with pytest.raises(StateError, match="kind of change"):
        state.apply_changes(odd)


def test_restoring_and_applying_take_one_range_of_hashes() -> None:
    model, state = StateModel(), KeyedState("whole", SCHEMA)
    rows = [((at, "k"), at % 3, (1, at, None, None, None, None, at)) for at in range(200)]
    model.merge(rows)
    state.merge(*columns_of(SCHEMA, rows))
    changes = state.take_changes()
    half = (0, 1 << 31)
    first, second = KeyedState("first", SCHEMA), KeyedState("second", SCHEMA)
    first.restore(snapshot_of(state), only=half)
    second.apply_changes(changes, only=(1 << 31, 1 << 32))
    owned = {key: row for key, row in model.rows.items() if key_hash(key[0]) < 1 << 31}
    assert 0 < len(owned) < 200
    assert same(shown(first.scan()), model.listed(owned))
    first.merge_from(second)
    assert same(shown(first.scan()), model.listed())
    assert first.take_changes().num_rows == len(second), "rows taken over are changes"


def test_partition_and_merge_refuse_what_would_lose_or_double_rows() -> None:
    state = KeyedState("counts", COUNTS)
    count(state, np.arange(50))
    with pytest.raises(StateError, match="not taken"):
        state.partition([(0, 1 << 32)])
    with pytest.raises(StateError, match="not taken"):
        state.begin_snapshot()
    state.discard_changes()
    for ranges in ([(0, 1 << 31)], [(0, 1 << 32), (0, 1 << 32)]):
        with pytest.raises(StateError, match="one owner"):
            state.partition(ranges)
    (whole,) = state.partition([(0, 1 << 32)])
    assert whole.scan().equals(state.scan())
    with pytest.raises(StateError, match="too: only"):
        state.merge_from(whole)
    with pytest.raises(StateError, match="different columns"):
        state.merge_from(KeyedState("names", NAMES))
    assert state.take_changes() is None


def test_a_running_snapshot_forbids_what_would_break_it() -> None:
    state = KeyedState("counts", COUNTS)
    count(state, np.arange(50))
    changes = state.take_changes()
    snapshot = state.begin_snapshot()
    assert not snapshot.copy_some(10)
    for forbidden in (
        state.begin_snapshot,
        state.clear,
        lambda: state.restore([]),
        lambda: state.apply_changes(changes),
    ):
        with pytest.raises(StateError, match="snapshot"):
            forbidden()
    with pytest.raises(StateError, match="not complete"):
        list(snapshot.batches())
    snapshot.abandon()
    assert not snapshot.copy_some()
    with pytest.raises(StateError, match="not complete"):
        list(snapshot.batches())
    state.apply_changes(changes)
    assert snapshot_of(state)[0].num_rows > 0


def test_a_snapshot_is_of_its_beginning_whatever_happens_to_the_rows() -> None:
    state = KeyedState("names", NAMES)
    names = pa.array([f"name {at}" for at in range(5000)])
    panes = np.arange(5000) % 7
    state.merge([names], panes, [names])
    state.take_changes()
    before = state.scan()
    snapshot = state.begin_snapshot()
    rng = np.random.default_rng(3)
    for turn in range(20):
        if snapshot.copy_some(300):
            break
        chosen = rng.integers(0, 6000, 800)
        some = pa.array([f"name {at}" for at in chosen])
        state.merge([some], chosen % 7, [pa.array([f"turn {turn}"] * 800)])
        state.delete([some.slice(0, 50)], (chosen % 7)[:50])
        if turn == 3:
            state.drop_panes(4)
        assert snapshot.nbytes > 0
    assert snapshot.copy_some()
    assert snapshot.row_count == 5000
    assert restored(state, list(snapshot.batches())).scan().equals(before)


def test_a_snapshot_piece_is_bounded() -> None:
    state = KeyedState("counts", COUNTS)
    count(state, np.arange(1000))
    state.take_changes()
    snapshot = state.begin_snapshot()
    pieces = 1
    while not snapshot.copy_some(64):
        pieces += 1
        assert snapshot.row_count <= 64 * pieces
    assert pieces == 1000 // 64 + 1


def test_an_empty_state_has_an_empty_snapshot() -> None:
    state = KeyedState("counts", COUNTS)
    snapshot = state.begin_snapshot()
    assert snapshot.copy_some()
    assert list(snapshot.batches()) == []
    assert state.take_changes() is None
    assert state.scan().num_rows == 0
    assert window_of(state, 0, 10).num_rows == 0
    assert state.panes().tolist() == []


def test_a_name_outside_the_rule_is_refused() -> None:
    with pytest.raises(InvalidName):
        KeyedState("../elsewhere", COUNTS)


def test_colliding_hash_bits_find_the_right_rows() -> None:
    """All keys in few slots: probing and backward shifts run long and around the end."""
    state = KeyedState("counts", COUNTS)
    rng = np.random.default_rng(11)
    keys = rng.permutation(3000)
    count(state, keys)
    assert state._table._slots.size & (state._table._slots.size - 1) == 0
    for first in range(0, 3000, 100):
        assert state.delete([pa.array(keys[first : first + 100])]) == 100
        left = np.sort(keys[first + 100 :])
        values, found = state.get([pa.array(left)])
        assert found.all()
        assert values[0].to_pylist() == [1] * len(left)
        used = np.count_nonzero(state._table._slots)
        assert used == len(state), "no tombstones, nothing lost"


def test_the_pane_table_forgets_empty_panes() -> None:
    state = KeyedState("windows", COUNTS)
    for pane in range(2000):
        count(state, np.arange(3), pane=pane)
        state.drop_panes(pane - 2)
    assert state.statistics().panes == 2
    assert state._table._panes.shape[0] < 64


def test_rows_that_come_and_go_do_not_lengthen_the_list_of_changes() -> None:
    state, replica = KeyedState("windows", COUNTS), KeyedState("replica", COUNTS)
    count(state, np.arange(40), pane=5)
    full = 0
    for turn in range(500):
        count(state, np.arange(100, 140), pane=turn % 5)
        state.delete([pa.array(np.arange(100, 120))], np.full(20, turn % 5))
        state.drop_panes(4)
        deleted = sum(len(part) for part in state._table._deleted)
        full = max(full, state.memory_bytes() - deleted * 64)
    assert full < 100_000
    replica.apply_changes(state.take_changes())
    assert replica.scan().equals(state.scan())
    assert len(replica) == 40


def test_statistics() -> None:
    state = KeyedState("windows", COUNTS)
    count(state, np.arange(30), pane=1)
    count(state, np.arange(10), pane=2)
    state.drop_panes(1)
    seen = state.statistics()
    assert (seen.rows, seen.panes, seen.strings) == (10, 1, 0)
    assert (seen.rows_merged, seen.rows_evicted) == (40, 30)
    assert seen.bytes == state.memory_bytes() > 0


def test_row_layout_words_are_distinct() -> None:
    flags = (tables.LIVE, tables.DIRTY, tables.SAVED)
    assert len({*flags, tables.HASH_MASK}) == 4
    assert all(flag & tables.HASH_MASK == 0 for flag in flags)


SAME_OPERATIONS = """
import hashlib, random
import numpy as np, pyarrow as pa
from tests.state.model import SCHEMA, columns_of, take_closed, window_of
from penstock.state.keyed import KeyedState

chance, state, digest = random.Random(4), KeyedState("state", SCHEMA), hashlib.sha256()
def note(batch):
    if batch is not None:
        digest.update(batch.serialize().to_pybytes())
for turn in range(60):
    rows = [((chance.randrange(50), f"word {chance.randrange(9)}"), turn + chance.randrange(5),
             (1, chance.randrange(100), chance.random(), chance.random(), f"w{turn}", "f", turn))
            for _ in range(100)]
    state.merge(*columns_of(SCHEMA, rows))
    note(window_of(state, turn, turn + 4))
    note(take_closed(state, turn))
    note(state.take_changes())
    if turn % 20 == 10:
        snapshot = state.begin_snapshot()
        while not snapshot.copy_some(50):
            pass
        for batch in snapshot.batches():
            note(batch)
note(state.scan())
print(digest.hexdigest())
"""


@pytest.mark.slow  # two processes that compile all they need
def test_the_same_operations_give_the_same_bytes_in_every_process() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", SAME_OPERATIONS],
            cwd=Path(__file__).parents[2],
            env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            check=True,
            text=True,
            timeout=100,
        ).stdout
        for seed in ("1", "77")
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64


def test_order_does_not_depend_on_how_rows_came() -> None:
    rows = [
        ((at % 13, f"k{at % 7}"), at % 4, (1, at, None, None, None, None, 0)) for at in range(91)
    ]
    live, other = KeyedState("live", SCHEMA), KeyedState("other", SCHEMA)
    live.merge(*columns_of(SCHEMA, rows))
    other.merge(*columns_of(SCHEMA, rows[::-1]))
    live.take_changes()
    again = restored(live, snapshot_of(live))
    scans = [state.scan().serialize().to_pybytes() for state in (live, other, again)]
    assert scans[0] == scans[1] == scans[2]
    closed = [take_closed(state, 2).serialize().to_pybytes() for state in (live, other, again)]
    assert closed[0] == closed[1] == closed[2]
