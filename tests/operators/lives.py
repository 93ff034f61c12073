"""Chains that are thrown away now and then, and made again from what a marker has."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa

from penstock.operators.chain import Chain

Row = dict[str, Any]


class Life:
    """A chain, its changes and pictures of its states; a commit may be the end of the chain."""

    def __init__(self, make: Callable[[], Chain], random: Random) -> None:
        self._make, self._random = make, random
        self.chain = make()
        self._pictures: dict[str, list[pa.RecordBatch]] = {}
        self._changes: list[tuple[str, pa.RecordBatch]] = []

    def commit(self) -> list[Row]:
        rows = [row for batch in self.chain.on_commit() for row in batch.to_pylist()]
        for name, state in self.chain.states.items():
            if (changes := state.take_changes()) is not None:
                self._changes.append((name, changes))
        progress = self.chain.progress()
        chance = self._random.random()
        if chance < 0.2:
            self._changes.clear()
            for name, state in self.chain.states.items():
                picture = state.begin_snapshot()
                while not picture.copy_some():
                    pass
                self._pictures[name] = list(picture.batches())
        if chance < 0.5:
            self.chain = self._make()
            for name, batches in self._pictures.items():
                self.chain.states[name].restore(batches)
            for name, changes in self._changes:
                self.chain.states[name].apply_changes(changes)
            self.chain.restore_progress(progress)
        return rows
