"""Random operations on a state, a replica fed by its changes, and snapshots, against the model."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.errors import StateOverflow, StateTooLarge
from penstock.state import overlaps
from penstock.state.keyed import KeyedState
from penstock.state.overlaps import Overlap
from penstock.state.snapshot import Snapshot
from tests.state.model import (
    SCHEMA,
    StateModel,
    columns_of,
    restored,
    same,
    shown,
    take_closed,
    window_of,
    windows_of,
)
from tests.state.working import let_work
from tests.thoroughness import examples

NUMBERS = st.one_of(st.none(), st.integers(-3, 40))
WORDS = st.one_of(st.none(), st.sampled_from(["", "a", "b", "ab", "é", "z" * 9, "long word " * 3]))
KEYS = st.tuples(NUMBERS, WORDS)
PANES = st.integers(-2, 9)
# Whole floats: their sums do not depend on the order, which the model and a window may differ in.
FLOATS = st.one_of(st.none(), st.integers(-5, 5).map(float))
VALUES = st.tuples(
    st.integers(0, 3),
    st.one_of(st.none(), st.integers(-(10**6), 10**6)),
    FLOATS,
    st.one_of(FLOATS, st.just(float("nan"))),
    WORDS,
    WORDS,
    st.one_of(st.none(), st.integers(-(10**15), 10**15)),
)
ROWS = st.lists(st.tuples(KEYS, PANES, VALUES), min_size=1, max_size=30)


class StateMachine(RuleBasedStateMachine):
    """One live state, its model, and a replica that sees nothing but changes."""

    def __init__(self) -> None:
        super().__init__()
        self.model = StateModel()
        self.live = KeyedState("live", SCHEMA)
        self.replica = KeyedState("replica", SCHEMA)
        self.snapshot: Snapshot | None = None
        self.at_snapshot: list[dict[str, Any]] = []
        self.since_snapshot: list[pa.RecordBatch] = []

    @rule(stand_ins=st.booleans())
    def swap(self, stand_ins: bool) -> None:
        """At any time others go on with the same arrays."""
        let_work(stand_ins)

    @rule(rows=ROWS)
    def merge(self, rows: Any) -> None:
        self.live.merge(*columns_of(SCHEMA, rows))
        self.model.merge(rows)

    @rule(rows=ROWS)
    def put(self, rows: Any) -> None:
        self.live.put(*columns_of(SCHEMA, rows))
        self.model.put(rows)

    @rule(start=st.integers(0, 10**6), count=st.integers(1, 300), pane=PANES)
    def merge_many(self, start: int, count: int, pane: int) -> None:
        """Enough rows to grow the tables, and to shrink them when their pane goes."""
        rows = [((start + at, f"w{at % 50}"), pane, (1, at, None, 0.5, "m", None, at))
                for at in range(count)]  # fmt: skip
        self.merge(rows)

    @rule(keys=st.lists(st.tuples(KEYS, PANES), min_size=1, max_size=10))
    def delete(self, keys: Any) -> None:
        unique = list(dict.fromkeys(keys))
        arrays = columns_of(SCHEMA, [(key, pane, (0,) + (None,) * 6) for key, pane in unique])
        assert self.live.delete(arrays[0], arrays[1]) == self.model.delete(unique)

    @rule(upto=st.integers(-3, 6))
    def take_closed_panes(self, upto: int) -> None:
        assert same(shown(take_closed(self.live, upto)), self.model.take(upto))

    @rule(upto=st.integers(-3, 10))
    def drop_panes(self, upto: int) -> None:
        assert self.live.drop_panes(upto) == len(self.model.take(upto))

    @rule()
    def take_changes(self) -> None:
        changed = self.live.changed_rows()
        changes = self.live.take_changes()
        assert not self.live.has_changes
        if changes is None:
            assert changed.num_rows == 0
            return
        puts = [row for row in shown(changes) if row["__change"] == 0]
        assert len(puts) == changed.num_rows
        self.replica.apply_changes(changes)
        self.replica.apply_changes(changes)  # absolute values: twice is once
        self.since_snapshot.append(changes)
        assert same(shown(self.replica.scan()), self.model.listed())
        assert not self.replica.has_changes

    @precondition(lambda self: self.snapshot is None)
    @rule()
    def begin_snapshot(self) -> None:
        self.take_changes()
        self.snapshot = self.live.begin_snapshot()
        self.at_snapshot = self.model.listed()
        self.since_snapshot = []

    @precondition(lambda self: self.snapshot is not None)
    @rule(rows_max=st.integers(1, 60), abandon=st.integers(0, 9))
    def copy_some(self, rows_max: int, abandon: int) -> None:
        assert self.snapshot is not None
        if abandon == 0:
            self.snapshot.abandon()
            self.snapshot = None
        elif self.snapshot.copy_some(rows_max):
            batches = list(self.snapshot.batches())
            other = restored(self.live, batches)
            assert same(shown(other.scan()), self.at_snapshot)
            self.take_changes()
            for changes in self.since_snapshot:
                other.apply_changes(changes)
            assert same(shown(other.scan()), self.model.listed())
            self.snapshot = None

    @rule(pane_from=PANES, length=st.integers(0, 5))
    def window(self, pane_from: int, length: int) -> None:
        window = window_of(self.live, pane_from, pane_from + length)
        assert same(shown(window), self.model.window(pane_from, pane_from + length))

    @rule(
        per_window=st.integers(1, 9),
        per_slide=st.integers(1, 9),
        only_changed=st.booleans(),
        at_once=st.tuples(st.sampled_from([1, 3, 1 << 17]), st.sampled_from([1, 4, 1 << 18])),
    )
    def windows(
        self, per_window: int, per_slide: int, only_changed: bool, at_once: tuple[int, int]
    ) -> None:
        overlap = Overlap(max(per_window, per_slide), min(per_window, per_slide))
        changed = {
            ((row["number"], row["word"]), row["__pane"]) for row in shown(self.live.changed_rows())
        }
        panes = np.unique([pane for _, pane in changed or self.model.rows]).astype(np.int64)
        windows = overlap.windows_over(panes, -(10**6), 10**6)
        expected = []
        for window in windows.tolist():
            first, last = (
                window * overlap.per_slide,
                window * overlap.per_slide + overlap.per_window,
            )
            inside = {key for key, pane in changed if first <= pane < last}
            expected += [
                {**row, "__pane": window}
                for row in self.model.window(first, last - 1)
                if not only_changed or (row["number"], row["word"]) in inside
            ]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(overlaps, "LINES_AT_ONCE_MAX", at_once[0])
            patch.setattr(overlaps, "ROWS_AT_ONCE_MAX", at_once[1])
            found = shown(windows_of(self.live, windows, overlap, only_changed))
        assert same(found, expected)

    @rule(keys=st.lists(st.tuples(KEYS, PANES), min_size=1, max_size=10))
    def get(self, keys: Any) -> None:
        arrays = columns_of(SCHEMA, [(key, pane, (0,) + (None,) * 6) for key, pane in keys])
        values, found = self.live.get(arrays[0], arrays[1])
        total, longest = values[1].to_pylist(), values[4].to_pylist()
        for at, key in enumerate(keys):
            row = self.model.rows.get(key)
            assert found[at] == (row is not None)
            assert (total[at], longest[at]) == ((row[1], row[4]) if row else (None, None))

    @rule(edges=st.lists(st.integers(0, 1 << 32), max_size=4))
    def partition_and_merge(self, edges: list[int]) -> None:
        self.take_changes()
        cuts = [0, *sorted(edges), 1 << 32]
        parts = self.live.partition(list(pairwise(cuts)))
        assert sum(len(part) for part in parts) == len(self.live)
        whole = KeyedState("whole", SCHEMA)
        for part in parts:
            whole.merge_from(part)
        assert whole.scan().serialize().equals(self.live.scan().serialize())

    @invariant()
    def rows_agree(self) -> None:
        assert len(self.live) == len(self.model.rows)
        assert self.live.panes().tolist() == sorted({pane for _, pane in self.model.rows})

    def teardown(self) -> None:
        let_work(stand_ins=False)
        assert same(shown(self.live.scan()), self.model.listed())
        counts = Counter(pane for _, pane in self.model.rows)
        for pane in self.live.panes().tolist():
            assert self.live.rows(pane, pane).num_rows == counts[pane]


StateMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30)
TestStateMachine = StateMachine.TestCase


def _empty(word: str | None, pane: int = 0, greatest: str | None = None) -> Any:
    return ((None, word), pane, (0, None, None, None, None, greatest, None))


# A refused batch whose strings were forgotten left more room for strings than there had been.
REFUSED = [
    ([((None, "long word " * 3), 0, (0, None, None, None, "", "b", None))], 0),
    ([*([_empty(None)] * 3), _empty("a")], 2),
    ([_empty("a")], 0),
    ([_empty(None), _empty(None), _empty(None, 1, "ab")], 0),
    ([*([_empty(None)] * 4), _empty("é")], 0),
    ([*(_empty(None, pane) for pane in (0, 1, -1, 2, -2)), _empty("", 0, "ab")], 0),
]


@settings(max_examples=examples(60))
@example(batches=REFUSED, bytes_max=2_592, stand_ins=False)
@given(
    batches=st.lists(st.tuples(ROWS, st.integers(0, 3)), min_size=1, max_size=25),
    bytes_max=st.integers(2_000, 30_000),
    stand_ins=st.booleans(),
)
def test_a_tight_bound_takes_each_batch_whole_or_not_at_all(
    batches: Any, bytes_max: int, stand_ins: bool
) -> None:
    """Near its bound, or near overflow, a state merges by another path with the same results."""
    let_work(stand_ins)
    model, replica = StateModel(), KeyedState("replica", SCHEMA)
    state = KeyedState("state", SCHEMA, bytes_max=bytes_max)
    taken: list[Any] = []
    for rows, action in batches:
        large = [(key, pane, (count, 1 << 60, *rest)) for key, pane, (count, _, *rest) in rows]
        given_rows = large if action == 3 else rows
        attempt = StateModel()
        attempt.rows = {key: list(row) for key, row in model.rows.items()}
        attempt.merge(given_rows)
        try:
            state.merge(*columns_of(SCHEMA, given_rows))
        except StateTooLarge:
            assert state.memory_bytes() <= bytes_max
            free = KeyedState("free", SCHEMA)
            for each in (*taken, given_rows):
                free.merge(*columns_of(SCHEMA, each))
            assert free.memory_bytes() > bytes_max / 4
        except StateOverflow:
            assert any(
                row[1] is not None and abs(row[1]) > 1 << 60 for row in attempt.rows.values()
            )
        else:
            model = attempt
            taken.append(given_rows)
        assert same(shown(state.scan()), model.listed())
        if action == 1 and (changes := state.take_changes()) is not None:
            replica.apply_changes(changes)
        if action == 2:
            pane = min((pane for _, pane in model.rows), default=0)
            assert same(shown(take_closed(state, pane)), model.take(pane))
    if (changes := state.take_changes()) is not None:
        replica.apply_changes(changes)
    assert same(shown(replica.scan()), model.listed())
    let_work(stand_ins=False)
