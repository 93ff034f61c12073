"""The disk that checkpoints are on: it fails for a while, rots, and loses what was not synced."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from penstock.errors import CheckpointError
from penstock.log.contract import Log
from penstock.runtime import checkpointing, vertex
from penstock.runtime.checkpointing import check_bound
from penstock.sim.actor import Actor
from penstock.sim.process import Process
from penstock.sim.schedule import Schedule
from penstock.sim.swaps import swapped
from penstock.stages.tags import change_tag
from penstock.state.checkpoint_files import FilePath
from penstock.state.checkpoints import MANIFEST, CheckpointId
from penstock.testing.memory_checkpoints import MemoryCheckpoints

KEPT = 2  # checkpoints of a vertex, at the least
FAULTY_STEPS = frozenset({"make_folder", "create", "write", "sync_file", "rename", "read"})


def small_chains() -> AbstractContextManager[None]:
    """Let checkpoints be made of changes wherever that is possible, and soon be put together."""
    return swapped(
        (checkpointing, "FAN", 2),
        (checkpointing, "CHANGED_SHARE_MAX", 8.0),
        (vertex, "CHANGES_PER_ROW_MAX", 1_000),
    )


class Disk:
    """The checkpoints of a run. Whoever uses them passes a point before each step."""

    def __init__(self, schedule: Schedule, acting: Sequence[Actor]) -> None:
        """`acting` is the stack of those in the middle of an action; the last one uses the disk."""
        self._schedule = schedule
        self._acting = acting
        self._is_watched = True
        self.checkpoints = MemoryCheckpoints(self._step)
        self.fails = False
        self.has_failed = False  # some time
        self.damaged: set[CheckpointId] = set()
        self._written: dict[str, int] = {}  # checkpoints of a vertex since one was harmed

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Let somebody look at the files who is no part of the run."""
        before, self._is_watched = self._is_watched, False
        try:
            yield
        finally:
            self._is_watched = before

    def note_written(self, vertex: str) -> None:
        """A checkpoint was written, with all that follows."""
        self._written[vertex] = self._written.get(vertex, KEPT) + 1

    def note_tail_lost(self, vertices: Sequence[str]) -> None:
        """Of what was written by now some may show what is lost."""
        self._written = dict.fromkeys(vertices, 0)

    def cut_power(self) -> None:
        self.checkpoints.files.power_cut(self._schedule.rng.randrange)

    def harm_newest(self, vertices: Sequence[str], log: Log) -> None:
        """Let the newest checkpoint of some vertex, or one that it stands on, rot or vanish, where
        the state survives it.
        """
        with self.unwatched():
            written = [ids for name in vertices if (ids := self.checkpoints.list(name))]
            if written:
                self._harm(self._schedule.rng.choice(written), log)

    def unfinished_below(self, vertex: str) -> list[str]:
        """What writers left unfinished before the older of the two checkpoints that are kept."""
        with self.unwatched():
            complete = self.checkpoints.list(vertex)
            apart = [
                each for each in complete if not self._members(each) & self._members(complete[-1])
            ]
        if not apart:
            return []
        kept_from = apart[-1].path[-1].partition("_")[0]  # a position, with its leading zeros
        names = self.checkpoints.files.names_in((vertex,))
        old = {name for name in names if name.partition("_")[0] < kept_from}
        return sorted(old - {each.path[-1] for each in complete})

    def _members(self, checkpoint: CheckpointId) -> set[CheckpointId]:
        """What a checkpoint stands on, and itself."""
        try:
            return {link.id for link in self.checkpoints.chain(checkpoint)}
        except CheckpointError:
            return {checkpoint}

    def _harm(self, ids: list[CheckpointId], log: Log) -> None:
        victim = self._schedule.rng.choice(sorted(self._members(ids[-1])))
        others = [each for each in ids if victim not in self._members(each)]
        if not self._survives_without(victim, others, log):
            return  # a second loss beside the first is one that no engine can undo
        rng, faults = self._schedule.rng, self._schedule.faults
        self._schedule.note("harm", victim)
        self._written[victim.vertex] = -1  # one that is being written may be the victim
        if any(isinstance(a, Process) and a.recovering == victim.vertex for a in self._acting):
            self._schedule.sometimes["checkpoint rots during a recovery"] += 1
        if rng.random() < 0.3:
            faults["checkpoint lost"] += 1
            self.checkpoints.lose(victim)
            return
        faults["checkpoint damaged"] += 1
        (*_, link) = self.checkpoints.chain(victim)
        filled = [name for name, units in link.files.items() if units]
        file = rng.choice([MANIFEST, *(f"{name}.units" for name in filled)])
        self.checkpoints.damage(victim, rng.randrange(1 << 16), file)
        self.damaged.add(victim)

    def _survives_without(
        self, victim: CheckpointId, others: Sequence[CheckpointId], log: Log
    ) -> bool:
        """Whether all others are whole, and one of them, or nothing, reaches the kept changes.

        With all of them whole it holds too when a writer who is held up lets the older ones go.
        After two that were written in peace it must hold: so many are kept.
        """
        if victim in self.damaged or not self.damaged.isdisjoint(others):
            return False
        if self._written.get(victim.vertex, KEPT) >= KEPT:
            return True
        kept_from = log.trimmed(change_tag(victim.vertex))
        if not kept_from and not others:
            return True
        return any(each.position >= kept_from and self._is_bound(each, log) for each in others)

    def _is_bound(self, checkpoint: CheckpointId, log: Log) -> bool:
        try:
            check_bound(checkpoint, self.checkpoints, log)
            self.checkpoints.chain(checkpoint)
        except CheckpointError:
            return False
        return True

    def _step(self, step: str, path: FilePath) -> None:
        """Called before every step of the checkpoint store."""
        if not self._acting or not self._is_watched:
            return
        actor = self._acting[-1]
        if step == "read" and path[-1] == MANIFEST and isinstance(actor, Process):
            position, attempt = path[1].split("_")
            actor.loaded.append(CheckpointId(path[0], int(position), int(attempt)))
        actor.at(f"file {step}")
        if self.fails and step in FAULTY_STEPS and self._schedule.rng.random() < 0.4:
            self._schedule.faults["checkpoint store fails"] += 1
            self.has_failed = True
            raise OSError(errno.EIO, "simulated")
