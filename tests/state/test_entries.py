"""Entries by key against a dictionary: changes, pictures, taking back, moments, key ranges."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from penstock.errors import StateError, StateTooLarge
from penstock.kernels.hashing import hash_columns
from penstock.state.entries import (
    VALUE,
    EntryKind,
    EntryState,
    column_tuples,
    storage_type,
    tuple_columns,
)

KEY = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC"))])
NAME = pa.schema([("part", pa.int64())])
WORTH = pa.schema([("n", pa.int64()), ("texts", pa.list_(pa.string()))])
HALVES = ((0, 1 << 31), (1 << 31, 1 << 32))

Model = dict[tuple[Any, Any], tuple[Any, int | None]]


def kind() -> EntryKind:
    return EntryKind(KEY, NAME, WORTH, hash_columns)


def state(bytes_max: int = 1 << 30) -> EntryState:
    return EntryState("entries", kind(), bytes_max=bytes_max)


def shown(target: EntryState) -> Model:
    return {
        (key, name): (entry.value, entry.until)
        for key in target._groups
        for name, entry in target.of(key)
    }


keys = st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 2))
names = st.tuples(st.integers(0, 3))
values = st.one_of(
    st.none(),
    st.tuples(st.one_of(st.none(), st.integers(0, 9)), st.lists(st.text(max_size=2), max_size=2)),
)
untils = st.one_of(st.none(), st.integers(0, 30))


class Machine(RuleBasedStateMachine):
    """A state that is changed, an heir that replays its changes, and what they hold."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.heir = state(), state()
        self.model: Model = {}
        self.before: Model = {}
        self.committed: Model = {}
        self.picture: tuple[Any, Model] | None = None

    @rule(key=keys, name=names, value=values, until=untils)
    def put(self, key: Any, name: Any, value: Any, until: int | None) -> None:
        self.state.put(key, name, value, until)
        self.model[key, name] = (value, until)

    @rule(key=keys, name=names)
    def delete(self, key: Any, name: Any) -> None:
        self.state.delete(key, name)
        self.model.pop((key, name), None)

    @rule(key=keys)
    def clear(self, key: Any) -> None:
        self.state.clear(key)
        self.model = {place: worth for place, worth in self.model.items() if place[0] != key}

    @rule()
    def begin(self) -> None:
        self.state.begin()
        self.before = dict(self.model)

    @rule()
    def take_back(self) -> None:
        self.state.take_back()
        self.model = dict(self.before)

    @rule(limit=st.integers(0, 32))
    def due(self, limit: int) -> None:
        found = self.state.take_due(limit)
        wanted = [
            (u, *place) for place, (_, u) in self.model.items() if u is not None and u < limit
        ]
        assert sorted(found, key=repr) == sorted(wanted, key=repr)
        assert [until for until, *_ in found] == sorted(until for until, *_ in found)
        for _, key, name in found:
            self.state.remember_due(key, name)

    @rule()
    def commit(self) -> None:
        changes = self.state.take_changes()
        if changes is not None:
            self.heir.apply_changes(changes)
            self.heir.apply_changes(changes)  # what is absolute may be applied twice
        self.before, self.committed = dict(self.model), dict(self.model)
        assert shown(self.heir) == self.committed
        assert not self.heir.has_changes

    @rule()
    def draw(self) -> None:
        self.commit()
        self.picture = (self.state.begin_snapshot(), dict(self.model))

    @rule()
    def restore(self) -> None:
        if self.picture is None:
            return
        picture, drawn = self.picture
        found = state()
        found.restore(picture.batches())
        assert shown(found) == drawn
        halves = found.partition(HALVES)
        assert {**shown(halves[0]), **shown(halves[1])} == drawn
        together, other = halves
        together.merge_from(other)
        assert shown(together) == drawn
        untils = [until for _, until in drawn.values() if until is not None]
        assert found.first_due() == min(untils, default=None)

    @invariant()
    def they_hold_the_same(self) -> None:
        assert shown(self.state) == self.model
        assert len(self.state) == len(self.model)
        assert (self.state.memory_bytes() > 0) == bool(self.model)
        assert self.state.scan().num_rows == len(self.model)


def test_it_is_a_dictionary_whatever_is_done_to_it() -> None:
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=30, stateful_step_count=20, deadline=None)
    )


def test_lists_keep_their_order_when_changes_are_taken_back_and_replayed() -> None:
    target, heir = state(), state()
    key = ("a", 0)
    for number in range(3):
        target.put(key, (number,), (number, []))
    first = target.take_changes()
    assert first is not None
    target.begin()
    target.clear(key)
    target.put(key, (0,), (9, []))
    target.take_back()
    assert [name for name, _ in target.of(key)] == [(0,), (1,), (2,)]
    assert target.next_number(key) == 3
    assert target.take_changes() is None
    heir.apply_changes(first)
    assert [name for name, _ in heir.of(key)] == [(0,), (1,), (2,)]


def test_what_is_too_large_is_refused_and_changes_nothing() -> None:
    target = state(bytes_max=1_000)
    target.put(("a", 0), VALUE, (1, ["x" * 200]))
    with pytest.raises(StateTooLarge, match="'entries' holds"):
        target.put(("b", 0), VALUE, (1, ["x" * 600]))
    assert list(shown(target)) == [(("a", 0), VALUE)]


def test_changes_of_other_columns_are_refused() -> None:
    others = EntryKind(KEY, NAME, pa.schema([("n", pa.string())]), hash_columns)
    other = EntryState("entries", others, bytes_max=1 << 20)
    other.put(("a", 0), (1,), ("1",))
    changes = other.take_changes()
    assert changes is not None
    with pytest.raises(StateError, match="has columns"):
        state().apply_changes(changes)


def test_values_of_every_type_come_back() -> None:
    day = (datetime.date(2024, 2, 29) - datetime.date(1970, 1, 1)).days
    schema = pa.schema(
        [
            ("t", pa.timestamp("us", "UTC")),
            ("d", pa.date32()),
            ("x", pa.decimal128(12, 3)),
            ("b", pa.binary()),
            ("ts", pa.list_(pa.timestamp("us", "UTC"))),
            ("m", pa.map_(pa.string(), pa.int64())),
            ("s", pa.struct([("a", pa.int32()), ("t", pa.date32())])),
        ]
    )
    rows: list[tuple[Any, ...]] = [
        (10**15, day, Decimal("1.250"), b"\0", [1, None], [("p", 1)], {"a": 1, "t": day}),
        (None,) * 7,
    ]
    columns = tuple_columns(rows, schema)
    assert [column.type for column in columns] == schema.types
    assert column_tuples(columns, 2) == rows
    assert storage_type(schema.field("s").type).field("t").type == pa.int32()


@pytest.mark.parametrize("is_picture", [True, False])
def test_values_of_other_columns_and_narrower_numbers_are_taken_in(is_picture: bool) -> None:
    narrow = pa.schema([("n", pa.int32()), ("half", pa.float32())])
    old = EntryState("entries", EntryKind(KEY, NAME, narrow, hash_columns), bytes_max=1 << 20)
    old.put(("a", 1), (0,), (7, 0.5), 9)
    old.put(("a", 1), (1,), None)
    old.put(("b", 2), (2,), (None, None))
    changes = old.take_changes()
    assert changes is not None
    wide = pa.schema([("new", pa.list_(pa.string())), ("half", pa.float64()), ("n", pa.int64())])
    fewer, renamed = wide.remove(2), pa.schema([("m", pa.int64())])
    other = pa.schema([("n", pa.string()), ("half", pa.float32())])
    for found in (wide, narrow, fewer, renamed, other):
        heir = EntryState("entries", EntryKind(KEY, NAME, found, hash_columns), bytes_max=1 << 20)
        if found in (renamed, other):
            with pytest.raises(StateError, match=r"has columns .*what is to be applied has"):
                heir.apply_changes(changes)
            continue
        if is_picture:
            heir.restore(old.begin_snapshot().batches())
        else:
            heir.apply_changes(changes)
        values = [(7, 0.5), None, (None, None)]
        if found is wide:
            values = [(None, 0.5, 7), None, (None, None, None)]
        if found is fewer:
            values = [(None, 0.5), None, (None, None)]
        assert shown(heir) == {
            (("a", 1), (0,)): (values[0], 9),
            (("a", 1), (1,)): (values[1], None),
            (("b", 2), (2,)): (values[2], None),
        }
