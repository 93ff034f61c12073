"""Checkpoints in the background: the state goes to the store while its vertex goes on.

Two are kept that have no file in common, so that a damaged file costs a longer replay, not the
state; while there is only one, all changes stay. A checkpoint that is made of changes goes onto the
older of the two: the log has all changes since that one, because it is trimmed up to there. So two
chains grow in turn. Alike parts at the end of a chain become one; a chain whose changes are large,
measured by its picture, is followed by a new picture, for which the vertex has to copy its state.

When a checkpoint is safe, what it makes needless is trimmed: the changes before the older of two.

These trims are fenced, unlike others (`trimming`). Which changes are needless follows from files,
and a recovery may find one of them damaged: it then needs the changes that a zombie, who knows
nothing of that, would let go. Once a new instance is registered, only it trims. Checkpoints are
removed after the trim that made them needless went through: they were listed before it, so none of
them is a newer instance's. And not before the markers of those that stay are on the disk, also
where appends are not synced.

The same thread trims what needs no checkpoint (`trimming`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.errors import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointForeign,
    Fenced,
    StreamError,
)
from penstock.log.contract import Log
from penstock.log.record import Position, Record
from penstock.runtime.changes import committed_changes
from penstock.runtime.markers import decode_marker, marker_at, marker_digest
from penstock.runtime.trimming import TrimJob, let_go
from penstock.runtime.vertex import CheckpointJob
from penstock.stages.tags import change_tag, vertex_tag
from penstock.state.checkpoints import CheckpointId, CheckpointStore, Link
from penstock.state.contract import State
from penstock.state.replay import Fold

CHECKPOINTS_KEPT = 2
CHANGED_SHARE_MAX = 0.5  # of a chain's picture: with more changes than this a new one is due
FAN = 8  # so many alike parts of a chain become one

Work = CheckpointJob | TrimJob

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CheckpointStatistics:
    """What the worker has done since it was made."""

    written: int
    failed: int
    waiting: int  # trims included
    trims: int


def write_checkpoint(job: CheckpointJob, store: CheckpointStore, log: Log) -> bool:
    """Store a job's checkpoint, then let go of what it makes needless.

    Returns whether the next one can be made of changes.
    """
    marker = marker_at(log, vertex_tag(job.vertex), job.position)
    if marker is None:
        raise CheckpointError(
            f"the marker of vertex {job.vertex} at position {job.position} is no longer in the "
            "log: a newer instance has gone on from there",
            vertex=job.vertex,
            position=job.position,
        )
    if job.kinds is None:
        states = {name: snapshot.batches() for name, snapshot in job.snapshots.items()}
        store.write(job.vertex, job.position, states, bound_to(marker))
    else:
        since = _to_build_on(job, store, log)
        changes = _changes_since(since, job, job.kinds, store, log)
        store.write(job.vertex, job.position, changes, bound_to(marker), since[0])
    chains = _let_older_go(job, store, log)
    return len(chains) == CHECKPOINTS_KEPT and _has_room(chains[-1])


def _has_room(chain: list[Link]) -> bool:
    """Whether more changes may be put onto a chain."""
    picture, *changes = chain
    return sum(link.bytes for link in changes) <= CHANGED_SHARE_MAX * picture.bytes


def _to_build_on(job: CheckpointJob, store: CheckpointStore, log: Log) -> list[Link]:
    """The link that a checkpoint is to follow, and behind it those that become part of it."""
    chains = _independent(job.vertex, store, log, Listed(store.list(job.vertex)))
    if len(chains) < CHECKPOINTS_KEPT or chains[-1][-1].id.position >= job.position:
        raise CheckpointError(
            f"vertex {job.vertex} has no two whole checkpoints before position {job.position} to "
            "put changes onto: the next one is complete",
            vertex=job.vertex,
            position=job.position,
        )
    *_, last = chain = chains[-1]
    alike = [link for link in chain[1:][-FAN:] if link.bytes <= FAN * last.bytes]
    return chain[-FAN - 1 :] if len(alike) == FAN else [last]


def _changes_since(
    links: list[Link],
    job: CheckpointJob,
    kinds: Mapping[str, State],
    store: CheckpointStore,
    log: Log,
) -> dict[str, Iterator[pa.RecordBatch]]:
    """What changed since the first of these links: what the others have, and what the log has."""
    folds = {name: Fold(state) for name, state in kinds.items()}
    for loaded in store.load_changes(links[1:]):
        for name, batches in loaded.items():
            for batch in batches:
                folds[name].add(batch)
    tag, after = change_tag(job.vertex), Position(links[-1].id.position)
    for changes in committed_changes(log, tag, after, job.position, kinds):
        for name, batch in changes:
            folds[name].add(batch)
    if log.trimmed(tag) > after:
        raise CheckpointError(
            f"changes of vertex {job.vertex} went while they were read: a newer instance has gone "
            "on from there",
            vertex=job.vertex,
            position=job.position,
        )
    return {name: fold.batches() for name, fold in folds.items()}


@dataclass
class Listed:
    """The checkpoints of a vertex at one moment, and which of them could not be read just now."""

    ids: list[CheckpointId]
    out_of_reach: list[CheckpointId] = field(default_factory=list)


def _independent(vertex: str, store: CheckpointStore, log: Log, listed: Listed) -> list[list[Link]]:
    """The newest usable checkpoints that have no file in common, each with what it stands on."""
    chains: list[list[Link]] = []
    members: set[CheckpointId] = set()
    for checkpoint in reversed(listed.ids):
        try:
            check_bound(checkpoint, store, log)
            chain = store.chain(checkpoint)
        except CheckpointError as problem:
            if not is_lasting(problem):
                listed.out_of_reach.append(checkpoint)
            continue
        ids = {link.id for link in chain}
        if ids.isdisjoint(members):
            chains.append(chain)
            members |= ids
        if len(chains) == CHECKPOINTS_KEPT:
            break
    return chains


def _let_older_go(job: CheckpointJob, store: CheckpointStore, log: Log) -> list[list[Link]]:
    """Trim and remove what the newest independent checkpoints do not need; return these."""
    listed = Listed(store.list(job.vertex))
    chains = _independent(job.vertex, store, log, listed)
    if len(chains) < CHECKPOINTS_KEPT or listed.out_of_reach:
        return chains  # others may stand on what seems needless
    oldest = chains[-1][-1].id.position
    log.trim(change_tag(job.vertex), Position(oldest), job.fence)
    # The marker itself stays: it is what the checkpoint is known by, and may be the last one.
    log.trim(vertex_tag(job.vertex), Position(oldest - 1), job.fence)
    # A power cut that takes the markers of the newer ones must leave the older ones.
    log.sync()
    kept = {link.id for chain in chains for link in chain}
    for checkpoint in reversed(listed.ids):  # none without those that it stands on
        if checkpoint not in kept:
            try:
                store.delete(checkpoint)
            except CheckpointDamaged:
                store.set_aside(checkpoint)
    store.delete_unfinished(job.vertex, oldest)
    return chains


def bound_to(marker: Record) -> dict[str, Any]:
    """What a checkpoint notes about the marker whose state it shows."""
    facts = decode_marker(marker)
    return {"instance": facts.instance, "epoch": facts.epoch, "marker": marker_digest(marker)}


def check_bound(checkpoint: CheckpointId, store: CheckpointStore, log: Log) -> None:
    """Raise CheckpointForeign unless the marker that a checkpoint belongs to is in the log."""
    marker = marker_at(log, vertex_tag(checkpoint.vertex), Position(checkpoint.position))
    noted = store.read_meta(checkpoint).get("marker")
    if marker is None or noted != marker_digest(marker):
        raise CheckpointForeign(
            f"checkpoint {checkpoint} shows the state of a marker that is not in this log. "
            "Recovery falls back to an older one and the changes after it",
            checkpoint=str(checkpoint),
            vertex=checkpoint.vertex,
            position=checkpoint.position,
        )


def is_lasting(problem: CheckpointError) -> bool:
    """Whether a checkpoint will be as unusable tomorrow: others may only be out of reach now."""
    return isinstance(problem, CheckpointDamaged | CheckpointForeign)


class CheckpointQueue:
    """What waits to be written or trimmed, and what came of it: all but the thread that does it.

    Of each vertex one checkpoint and one trim are under way at a time. Whoever calls from several
    threads brings a lock; `perform` may run without it.
    """

    def __init__(self, store: CheckpointStore, log: Log) -> None:
        self._store = store
        self._log = log
        self._jobs: deque[Work] = deque()
        self._busy: set[tuple[type, str]] = set()
        self._again: set[tuple[type, str]] = set()  # trims asked for while one was under way
        self._growing: set[str] = set()  # vertices whose next checkpoint can be made of changes
        self._is_closed = False
        self._written = self._failed = self._trims = 0

    def submit(self, job: Work) -> bool:
        key = _key(job)
        if self._is_closed:
            return False
        if key in self._busy:
            # A trim takes what is needless when it begins. Refused, the last one of a vertex that
            # ends would never be made.
            if isinstance(job, TrimJob):
                self._again.add(key)
            return isinstance(job, TrimJob)
        self._busy.add(key)
        self._jobs.append(job)
        return True

    def needs_picture(self, vertex: str) -> bool:
        """Whether a vertex has to copy its state for the next checkpoint, as the first ones do."""
        return vertex not in self._growing

    @property
    def has_jobs(self) -> bool:
        """Whether something waits to be taken."""
        return bool(self._jobs)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return not self._busy

    def take(self) -> Work | None:
        """The next job, which is under way until it is settled; None if none waits."""
        if not self._jobs:
            return None
        job = self._jobs.popleft()
        self._again.discard(_key(job))  # what was asked for by now is in this one
        return job

    def perform(self, job: Work) -> StreamError | OSError | None:
        """Do a job; return why it failed, if it did. Nothing that is needed depends on it."""
        return self._trim(job) if isinstance(job, TrimJob) else self._write(job)

    def count_failure(self) -> None:
        """Note a job that ended with an error which `perform` does not know."""
        self._failed += 1

    def settle(self, job: Work) -> None:
        """A job is over, done or not."""
        key = _key(job)
        if key in self._again:
            self._again.discard(key)
            self._jobs.append(job)
        else:
            self._busy.discard(key)

    def close(self) -> None:
        """Take no more; keep the trims that wait and drop the checkpoints.

        Trims are short, and the last ones free what a query that has ended leaves behind.
        """
        self._is_closed = True
        dropped = [job for job in self._jobs if not isinstance(job, TrimJob)]
        self._busy -= {_key(job) for job in dropped}
        self._jobs = deque(job for job in self._jobs if isinstance(job, TrimJob))

    def statistics(self) -> CheckpointStatistics:
        return CheckpointStatistics(self._written, self._failed, len(self._busy), self._trims)

    def _write(self, job: CheckpointJob) -> StreamError | OSError | None:
        self._growing.discard(job.vertex)  # whatever fails, a complete one follows
        try:
            is_growing = write_checkpoint(job, self._store, self._log)
        except Fenced as error:
            # The picture is a true one and may serve; what it makes needless is another's to trim.
            logger.info("vertex %s was taken over while a checkpoint was written", job.vertex)
            self._failed += 1
            return error
        except (StreamError, OSError) as error:
            # The change log still has everything: only the next recovery takes longer.
            logger.warning(
                "checkpoint %d of vertex %s was not written: %s", job.position, job.vertex, error
            )
            self._failed += 1
            return error
        if is_growing:
            self._growing.add(job.vertex)
        self._written += 1
        return None

    def _trim(self, job: TrimJob) -> StreamError | OSError | None:
        try:
            let_go(job, self._log)
        except (StreamError, OSError) as error:
            # What should have gone takes up room until the next time; nothing else depends on it.
            logger.warning("vertex %s could not trim what it has read: %s", job.vertex, error)
            return error
        self._trims += 1
        return None


def _key(job: Work) -> tuple[type, str]:
    return type(job), job.vertex


class BackgroundCheckpointer:
    """One thread that writes checkpoints and trims for all vertices of a host, one at a time."""

    def __init__(self, store: CheckpointStore, log: Log) -> None:
        self._queue = CheckpointQueue(store, log)
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="penstock-checkpoint", daemon=True)
        self._thread.start()

    def submit(self, job: Work) -> bool:
        with self._changed:
            taken = self._queue.submit(job)
            self._changed.notify_all()
        return taken

    def needs_picture(self, vertex: str) -> bool:
        return self._queue.needs_picture(vertex)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until every submitted job is done or has failed; return whether so."""
        with self._changed:
            return self._changed.wait_for(lambda: self._queue.is_idle, timeout_s)

    def statistics(self) -> CheckpointStatistics:
        with self._changed:
            return self._queue.statistics()

    def close(self) -> None:
        """Finish what is being done, and the trims that wait; drop the other checkpoints."""
        with self._changed:
            self._stopping = True
            self._queue.close()
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            try:
                self._queue.perform(job)
            except Exception:
                # A bug. Without this thread there would be no more checkpoints and trims, and
                # nobody would notice: it says what happened and goes on with the next job.
                logger.exception("background work of vertex %s failed unexpectedly", job.vertex)
                self._queue.count_failure()
            with self._changed:
                self._queue.settle(job)
                self._changed.notify_all()
            del job  # while this waits for the next: a picture may be as large as its state

    def _next(self) -> Work | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue.has_jobs or self._stopping)
            return self._queue.take()
