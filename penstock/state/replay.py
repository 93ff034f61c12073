"""Changes of many commits: applied in order, or folded into fewer that do the same.

A batch of changes is applied in a fixed order: what it removes goes before the rows that it sets.
So a sequence of batches folds into two parts: all removals, in their order, and then the rows that
the sequence has set and not removed again. A removal of a row that is set again later is harmless:
the row that is set follows it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.state.contract import State

REPLAY_ROWS_MAX = 65_536


class Replay:
    """Applies one state's changes in order, many commits at a time.

    Commits are small and come by the hundred. Those that only set rows are put together, where the
    last value of a row wins as it does one by one. A commit that removes rows is applied by
    itself: put together with others, it could remove a row that a later one sets again. Commits
    from before a start that gave the state more columns are those of that time.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    def add(self, changes: pa.RecordBatch) -> pa.RecordBatch | None:
        """Apply changes, at the latest with the next `flush`; return what they remove."""
        removals = self._state.removals(changes)
        if removals is not None:
            self.flush()
            self._state.apply_changes(changes)
            return removals
        if self._waiting and self._waiting[0].schema != changes.schema:
            self.flush()
        self._waiting.append(changes)
        self._rows += changes.num_rows
        if self._rows >= REPLAY_ROWS_MAX:
            self.flush()
        return None

    def flush(self) -> None:
        waiting, self._waiting, self._rows = self._waiting, [], 0
        if waiting:
            self._state.apply_changes(pa.concat_batches(waiting))


class Fold:
    """Changes that do what many do one after the other, with each row that is set only once.

    Of the state that they belong to only the kind is used.
    """

    def __init__(self, kind: State) -> None:
        self._left = kind.empty()
        self._replay = Replay(self._left)
        self._removals: list[pa.RecordBatch] = []

    def add(self, changes: pa.RecordBatch) -> None:
        removed = self._replay.add(changes)
        if removed is not None:
            self._removals.append(removed)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """What was added by now, to be applied in this order."""
        self._replay.flush()
        if self._removals:
            yield pa.concat_batches(self._removals)
        picture = self._left.begin_snapshot()
        while not picture.copy_some():
            pass
        yield from (self._left.as_changes(rows) for rows in picture.batches())
