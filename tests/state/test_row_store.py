"""The row store against a list of rows: matching, forgetting, changes, pictures, key ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.errors import StateError, StateTooLarge
from penstock.kernels.hashing import column_words, hash_columns
from penstock.state import row_store
from penstock.state.row_store import NEVER, Keys, RowKind, RowStore

SCHEMA = pa.schema([("key", pa.int64()), ("text", pa.string()), ("tags", pa.list_(pa.int32()))])
HALVES = ((0, 1 << 31), (1 << 31, 1 << 32))


class Row(NamedTuple):
    key: int | None
    text: str | None
    tags: tuple[int, ...] | None
    until: int
    marked: bool


def keys_of(rows: pa.RecordBatch) -> Keys:
    keys = rows.column("key")
    words = column_words(keys).reshape(-1, 1).copy()
    return Keys(words, np.asarray(keys.is_valid()).copy())


def kind() -> RowKind:
    return RowKind(SCHEMA, keys_of, lambda rows: hash_columns([rows.column("key")], rows.num_rows))


def store(bytes_max: int = 1 << 30) -> RowStore:
    return RowStore("rows", kind(), bytes_max=bytes_max)


def batch(rows: Sequence[Row]) -> pa.RecordBatch:
    columns: list[list[Any]] = [[row[at] for row in rows] for at in range(3)]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def insert(target: RowStore, rows: Sequence[Row]) -> None:
    new = batch(rows)
    until = np.array([row.until for row in rows], np.int64)
    marked = np.array([row.marked for row in rows], np.bool_)
    target.insert(new, keys_of(new), until, marked)


def shown(target: RowStore) -> list[Row]:
    alive = target._alive()
    rows = target.take(alive).to_pylist()
    return [
        Row(
            row["key"],
            row["text"],
            None if row["tags"] is None else tuple(row["tags"]),
            int(until),
            bool(marked),
        )
        for row, until, marked in zip(
            rows, target._until[alive], target.is_marked(alive), strict=True
        )
    ]


rows_of_any_kind = st.lists(
    st.builds(
        Row,
        st.one_of(st.none(), st.integers(0, 5)),
        st.one_of(st.none(), st.text(max_size=3)),
        st.one_of(st.none(), st.lists(st.integers(0, 9), max_size=2).map(tuple)),
        st.one_of(st.integers(0, 50), st.just(NEVER)),
        st.booleans(),
    ),
    max_size=30,
)


class Machine(RuleBasedStateMachine):
    """A store that is changed, one that replays its changes, and the list of what they hold."""

    def __init__(self) -> None:
        super().__init__()
        self.store = store()
        self.heir = store()
        self.model: list[Row] = []
        self.committed: list[Row] = []
        self.picture: tuple[Any, list[Row]] | None = None

    @rule(rows=rows_of_any_kind)
    def insert(self, rows: list[Row]) -> None:
        insert(self.store, rows)
        self.model += rows

    @rule(keys=st.lists(st.one_of(st.none(), st.integers(0, 7)), min_size=1, max_size=8))
    def look_up(self, keys: list[int | None]) -> None:
        asked = batch([Row(key, None, None, 0, False) for key in keys])
        alive = self.store._alive()
        places = {int(row): place for place, row in enumerate(alive)}
        found = [
            (int(at), places[int(row)])
            for ats, rows in self.store.matches(keys_of(asked))
            for at, row in zip(ats, rows, strict=True)
        ]
        assert found == [
            (at, place)
            for at, key in enumerate(keys)
            for place, row in enumerate(self.model)
            if key is not None and row.key == key
        ]

    @rule(upto=st.integers(0, 60))
    def evict(self, upto: int) -> None:
        gone = [row for row in self.model if row.until <= upto]
        assert self.store.take(self.store.expired(upto)).num_rows == len(gone)
        assert self.store.evict(upto) == len(gone)
        self.model = [row for row in self.model if row.until > upto]

    @rule(chosen=st.sets(st.integers(0, 200)))
    def mark(self, chosen: set[int]) -> None:
        self.store.mark(self._rows(chosen))
        self.model = [
            row._replace(marked=True) if at in chosen else row for at, row in enumerate(self.model)
        ]

    @rule(chosen=st.sets(st.integers(0, 200)))
    def delete(self, chosen: set[int]) -> None:
        self.store.delete(self._rows(chosen))
        self.model = [row for at, row in enumerate(self.model) if at not in chosen]

    def _rows(self, chosen: set[int]) -> row_store.Numbers:
        alive = self.store._alive()
        return alive[sorted(at for at in chosen if at < alive.size)]

    @rule(twice=st.booleans())
    def commit(self, twice: bool) -> None:
        changes = self.store.take_changes()
        assert not self.store.has_changes
        for _ in range(0 if changes is None else 1 + twice):
            self.heir.apply_changes(changes)
        self.committed = list(self.model)
        assert shown(self.heir) == self.committed
        assert not self.heir.has_changes

    @precondition(lambda self: not self.store.has_changes)
    @rule()
    def begin_picture(self) -> None:
        picture = self.store.begin_snapshot()
        assert picture.copy_some()
        self.picture = (picture, list(self.model))

    @precondition(lambda self: self.picture is not None)
    @rule()
    def restore(self) -> None:
        assert self.picture is not None
        picture, expected = self.picture
        restored = store()
        restored.restore(list(picture.batches()))
        assert shown(restored) == expected

    @precondition(lambda self: not self.store.has_changes)
    @rule()
    def partition_and_merge(self) -> None:
        low, high = self.store.partition(HALVES)
        assert sorted(map(repr, shown(low) + shown(high))) == sorted(map(repr, self.model))
        low.merge_from(high)
        assert sorted(map(repr, shown(low))) == sorted(map(repr, self.model))
        assert low.has_changes == bool(len(high))

    @invariant()
    def has_the_rows(self) -> None:
        assert len(self.store) == len(self.model)
        assert shown(self.store) == self.model


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks join, blocks end and rows move together within a few steps."""
    monkeypatch.setattr(row_store, "_FAN", 3)
    monkeypatch.setattr(row_store, "_BLOCK", 8)
    monkeypatch.setattr(row_store, "_COMPACT_ROWS_MIN", 16)
    monkeypatch.setattr(row_store, "CHUNK_ROWS_MAX", 32)
    monkeypatch.setattr(row_store, "PAIRS_MAX", 5)
    monkeypatch.setattr(row_store, "_ROWS_FIRST", 4)


def test_against_a_list(small_sizes: None) -> None:
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=60, stateful_step_count=30, deadline=None)
    )


def test_a_bound_refuses_rows_and_changes_nothing() -> None:
    kept = store(bytes_max=20_000)
    insert(kept, [Row(1, "a", None, NEVER, False)])
    with pytest.raises(StateTooLarge):
        insert(kept, [Row(key, "x" * 100, None, NEVER, False) for key in range(400)])
    assert shown(kept) == [Row(1, "a", None, NEVER, False)]
    assert kept.memory_bytes() <= 20_000


def test_changes_of_other_columns_are_refused() -> None:
    changes = pa.record_batch({"__change": pa.array([0], pa.int8())})
    with pytest.raises(StateError, match="has columns"):
        store().apply_changes(changes)


def test_a_change_that_nobody_knows_is_refused() -> None:
    source = store()
    insert(source, [Row(1, "a", None, NEVER, False)])
    changes = source.take_changes()
    assert changes is not None
    unknown = changes.set_column(0, "__change", pa.array([9], pa.int8()))
    with pytest.raises(StateError, match=r"does not know: \[9\]"):
        store().apply_changes(unknown)


def test_a_picture_needs_changes_taken() -> None:
    source = store()
    insert(source, [Row(1, "a", None, NEVER, False)])
    with pytest.raises(StateError, match="right after take_changes"):
        source.begin_snapshot()


def test_the_rest_of_the_world_does_not_reach_a_picture() -> None:
    source = store()
    rows = [Row(at % 3, str(at), (at,), at, False) for at in range(40)]
    insert(source, rows)
    source.take_changes()
    picture = source.begin_snapshot()
    source.mark(source._alive()[:5])
    source.evict(30)
    insert(source, rows)
    restored = store()
    restored.restore(list(picture.batches()))
    assert shown(restored) == rows
