"""Checkpoints made of committed changes: small, whole after any crash, and two that are apart."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import ChangeLogBroken
from penstock.log import punit
from penstock.log.contract import register
from penstock.log.record import START, Entry, Fence, Position, RecordKind
from penstock.runtime import checkpointing
from penstock.runtime.changes import STATE_NAME
from penstock.runtime.checkpointing import CheckpointQueue
from penstock.runtime.markers import Marker
from penstock.runtime.recovery import Restored, restore_states
from penstock.runtime.vertex import CheckpointJob
from penstock.state.checkpoint_files import FilePath
from penstock.state.checkpoints import MANIFEST, CheckpointId, CheckpointStore, Link
from penstock.state.columns import KeyColumn, MergeRule, StateSchema, ValueColumn
from penstock.state.keyed import KeyedState
from penstock.testing.memory_checkpoints import MemoryCheckpoints
from penstock.testing.memory_log import MemoryLog

COUNTS = StateSchema(
    keys=(KeyColumn("key", pa.int64()),), values=(ValueColumn("n", pa.int64(), MergeRule.COUNT),)
)


class Bench:
    """A state that commits into a log, and the queue that makes its checkpoints."""

    def __init__(self, store: CheckpointStore, keys: int) -> None:
        self.log, self.store, self.keys = MemoryLog(), store, keys
        register(self.log, "v", 1)
        self.queue = CheckpointQueue(store, self.log)
        self.state = KeyedState("counts", COUNTS)
        self.position = Position(0)
        self.sequence = 0
        self.count(range(keys))

    def count(self, keys: range) -> None:
        self.state.merge([pa.array(keys, pa.int64())], None, [pa.array([1] * len(keys))])
        self.commit()

    def commit(self) -> None:
        entries = []
        changes = self.state.take_changes()
        if changes is not None:
            body = punit.encode(changes.replace_schema_metadata({STATE_NAME: "counts"}))
            entries.append(Entry(RecordKind.CHANGE, ("C/v",), "v", 1, self.sequence, bytes(body)))
        marker = Marker("v", instance=1, epoch=self.sequence + 1).encode()
        at = self.sequence + len(entries)
        entries.append(Entry(RecordKind.MARKER, ("T/v", "C/v"), "v", 1, at, marker))
        self.position = self.log.append(entries)[-1]
        self.sequence = at + 1

    def picture(self) -> None:
        snapshot = self.state.begin_snapshot()
        while not snapshot.copy_some():
            pass
        self.perform(CheckpointJob(Fence("v", 1), self.position, {"counts": snapshot}))

    def of_changes(self) -> None:
        self.perform(CheckpointJob(Fence("v", 1), self.position, {}, {"counts": self.state}))

    def perform(self, job: CheckpointJob) -> None:
        assert self.queue.perform(job) is None

    def two_pictures(self) -> None:
        assert self.queue.needs_picture("v")
        self.picture()
        assert self.queue.needs_picture("v")
        self.count(range(3))
        self.picture()
        assert not self.queue.needs_picture("v")

    def chain(self) -> list[Link]:
        return self.store.chain(self.store.list("v")[-1])

    def check_restored(self, since: Position = START) -> Restored:
        """What recovery makes of log and checkpoints is the state as it was last committed."""
        restored = KeyedState("counts", COUNTS)
        states = {"counts": restored}
        done = restore_states(self.log, self.store, "v", "C/v", self.position, states, since)
        assert restored.scan().equals(self.state.scan())
        return done


def test_it_writes_about_as_much_as_has_changed(tmp_path: Path) -> None:
    bench = Bench(CheckpointStore(tmp_path), keys=200_000)
    bench.two_pictures()
    shares = []
    for first in range(0, 20_000, 2_000):
        for _ in range(5):  # the same hundredth of all keys, again and again
            bench.count(range(first, first + 1_000))
        bench.of_changes()
        picture, *_, changes = bench.chain()
        shares.append(changes.bytes / picture.bytes)
    assert sorted(shares)[len(shares) // 2] < 0.025  # two turns of each chain: a hundredth each
    bench.check_restored()


def test_removed_rows_are_gone_from_a_chain() -> None:
    bench = Bench(MemoryCheckpoints(), keys=500)
    bench.two_pictures()
    for first in range(0, 60, 10):
        bench.state.delete([pa.array(range(first, first + 10))])
        bench.commit()
        bench.of_changes()
    bench.count(range(5))
    assert len(bench.chain()) > 1
    bench.check_restored()
    assert len(bench.state) == 445


def test_a_chain_stays_short_and_begins_anew_when_much_has_changed() -> None:
    bench = Bench(MemoryCheckpoints(), keys=2_000)
    bench.two_pictures()
    longest, pictures = 0, 0
    for turn in range(160):
        bench.count(range(turn * 7 % 2_000, turn * 7 % 2_000 + 20))
        if bench.queue.needs_picture("v"):
            pictures += 1
            bench.picture()
        else:
            bench.of_changes()
        chain = bench.chain()
        longest = max(longest, len(chain))
        changed = sum(link.bytes for link in chain[1:-1])  # by the last one it may get over it
        assert changed <= checkpointing.CHANGED_SHARE_MAX * chain[0].bytes
        if turn % 10 == 0:
            bench.check_restored()
    assert pictures > 0
    assert checkpointing.FAN < longest <= 3 * checkpointing.FAN
    # Two chains and nothing else: neither files nor changes pile up.
    assert len(bench.store.list("v")) <= 2 * longest
    assert len(bench.log.read(["C/v"], Position(0), 999)) <= 6


@pytest.mark.parametrize("file", [MANIFEST, "counts.units"])
def test_any_one_damaged_file_costs_a_replay_and_not_the_state(file: str) -> None:
    store = MemoryCheckpoints()
    bench = Bench(store, keys=2_000)
    bench.two_pictures()
    for turn in range(12):
        bench.count(range(turn, turn + 5))
        bench.of_changes()
    bench.count(range(5))
    listed = store.list("v")
    assert len(listed) > 4
    for each in listed:
        store.damage(each, 77, file)
        bench.check_restored()
        store.damage(each, 77, file)  # as it was
        with pytest.MonkeyPatch.context() as patch:  # and one that is gone with all its files
            names = store.files._names
            left = {path: found for path, found in names.items() if path[:2] != each.path}
            patch.setattr(store.files, "_names", left)
            bench.check_restored()


def test_where_all_was_emitted_since_no_checkpoint_is_needed() -> None:
    """Nor looked at, until there is one of what came afterwards."""
    store = MemoryCheckpoints()
    bench = Bench(store, keys=50)
    bench.two_pictures()
    bench.state.delete([pa.array(range(50))])
    bench.commit()
    empty = bench.position
    bench.count(range(7))
    bench.count(range(4, 9))
    for each in store.list("v"):
        store.damage(each, 77, MANIFEST)
    assert bench.check_restored(empty) == Restored(2, ())
    with pytest.raises(ChangeLogBroken):
        bench.check_restored()
    bench.picture()
    bench.count(range(3))
    assert bench.check_restored(empty) == Restored(1, ())


class Died(BaseException):
    """The process ended at this step."""


class Countdown:
    def __init__(self, step: int) -> None:
        self.left = step

    def __call__(self, step: str, path: FilePath) -> None:
        self.left -= 1
        if self.left == -1:
            raise Died(step)


def grown(fan: int) -> tuple[Bench, MemoryCheckpoints]:
    store = MemoryCheckpoints()
    bench = Bench(store, keys=2_000)
    bench.two_pictures()
    for turn in range(2 * fan + 1):
        bench.count(range(turn, turn + 5))
        bench.of_changes()
    bench.state.delete([pa.array([1, 2, 1_999])])
    bench.count(range(40, 45))
    return bench, store


def test_a_crash_or_power_cut_at_any_step_of_one_leaves_the_state() -> None:
    """Also of one that takes the last parts of its chain into itself and removes others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpointing, "FAN", 2)
        bench, store = grown(2)
        counting = Countdown(-1)
        store.files.before_step = counting
        bench.of_changes()
        steps = -1 - counting.left
        assert steps > 30
        assert len(bench.chain()) < 5  # parts were put together
        for step in range(steps):
            for seed in (0, step + 1):
                bench, store = grown(2)
                store.files.before_step = Countdown(step)
                with pytest.raises(Died):
                    bench.of_changes()
                store.files.before_step = None
                bench.check_restored()
                store.files.power_cut(random.Random(seed).randrange if seed else lambda _: 0)
                bench.check_restored()
                bench.queue = CheckpointQueue(store, bench.log)  # the next life
                bench.count(range(7))
                bench.picture()
                bench.check_restored()
                assert {each.position for each in store.list("v")} >= {bench.position}


def test_changes_are_not_put_onto_what_is_not_there() -> None:
    bench = Bench(MemoryCheckpoints(), keys=10)
    job = CheckpointJob(Fence("v", 1), bench.position, {}, {"counts": bench.state})
    error = bench.queue.perform(job)
    assert error is not None
    assert "the next one is complete" in str(error)
    assert bench.store.list("v") == []
    assert bench.queue.needs_picture("v")


def test_a_chain_built_on_another_checkpoint_of_that_name_is_damage() -> None:
    store = MemoryCheckpoints()
    bench = Bench(store, keys=500)
    bench.two_pictures()
    bench.count(range(3))
    bench.of_changes()
    picture, _ = bench.chain()
    store.lose(picture.id)
    again = store.write("v", picture.id.position, {"counts": []}, picture.meta)
    assert again == CheckpointId("v", picture.id.position)
    bench.check_restored()  # by the other one of the two
