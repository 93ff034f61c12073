"""Recovery: how an instance of a vertex begins, whether it is the first or follows a dead one.

    1. fence        register the instance that was handed out: older ones can append nothing more
    2. last marker  what is committed, and where to read on
    3. checkpoint   the newest whole one of that marker or an earlier one: a picture of the state,
                    and changes that later checkpoints hold; none where the state was empty since
    4. changes      the committed ones between the picture and the marker, in order
    5. resume       read the input from where the marker says

The order matters. A marker read before fencing could be followed by one more of the old instance,
and its work would be done twice. No other vertex takes part.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from penstock.errors import ChangeLogBroken, Trimmed
from penstock.log.contract import Log, register
from penstock.log.record import START, Position
from penstock.runtime.changes import committed_changes
from penstock.runtime.checkpointing import check_bound, is_lasting
from penstock.runtime.instances import run_of
from penstock.runtime.markers import Marker, decode_marker
from penstock.state.checkpoints import CheckpointId, CheckpointStore
from penstock.state.contract import State
from penstock.state.replay import Replay

RESTORE_TRIES = 8

logger = logging.getLogger(__name__)


def fence(
    log: Log, vertex: str, vertex_tag: str, instance: int, *, again: bool = False
) -> tuple[Marker, Position]:
    """Steps 1 and 2: take the vertex over; return its last marker, renumbered, and where it is.

    With `again` the caller may have done so already, with the same number, and failed.
    """
    register(log, vertex, instance, again=again)
    record = log.last(vertex_tag)
    if record is None:
        return Marker(vertex=vertex, instance=instance, epoch=0), START
    marker = decode_marker(record)
    same_run = run_of(marker.instance) == run_of(instance)
    caught_up = marker.caught_up and same_run  # in a new run there may be more
    return replace(marker, instance=instance, caught_up=caught_up), record.position


@dataclass(frozen=True, slots=True)
class Restored:
    """How the states were rebuilt."""

    commits_replayed: int
    unusable: tuple[CheckpointId, ...]  # passed over: damaged, or of a marker that is not there


def restore_states(
    log: Log,
    checkpoints: CheckpointStore,
    vertex: str,
    change_tag: str,
    upto: Position,
    states: Mapping[str, State],
    since: Position = START,
) -> Restored:
    """Steps 3 and 4: rebuild the states as of the marker at `upto`.

    They were empty with the marker at `since`, so no checkpoint before it is needed.

    Whoever has registered an instance is the only one to trim its changes. But this is also done
    without, by those who only look at a state, and by one who was overtaken in the middle of it. So
    the trim is looked at when all changes were read: if it went past the checkpoint, some may be
    missing. Then there is a newer checkpoint to begin with, since trims come after one.
    """
    if not states:
        return Restored(0, ())
    tried = None
    for _ in range(RESTORE_TRIES):
        base, unusable = _load_newest(log, checkpoints, vertex, upto, states, since)
        with suppress(Trimmed):
            replayed = _replay_changes(log, change_tag, base, upto, states)
            if log.trimmed(change_tag) <= base:
                return Restored(replayed, unusable)
        if base == tried:
            break
        tried = base
    raise ChangeLogBroken(
        f"vertex {vertex} cannot be restored: its changes are kept from position "
        f"{log.trimmed(change_tag)} on, and no whole checkpoint is that young. Restore the "
        "checkpoint folder, or rebuild the query from its input",
        vertex=vertex,
        kept_from=log.trimmed(change_tag),
        checkpoint=base,
    )


def _load_newest(
    log: Log,
    checkpoints: CheckpointStore,
    vertex: str,
    upto: Position,
    states: Mapping[str, State],
    since: Position,
) -> tuple[Position, tuple[CheckpointId, ...]]:
    """Restore from the newest checkpoint of a marker up to a position; `since` if there is none
    behind it, with states that are empty.

    Returned with those that are unusable for good.
    """
    checkpoint, problems = checkpoints.load_newest(
        vertex, upto, lambda checkpoint: check_bound(checkpoint, checkpoints, log), since
    )
    for problem in problems.values():
        logger.warning(
            "a checkpoint of vertex %s is unusable (%s): falling back to an older one or to the "
            "change log",
            vertex,
            problem.message,
        )
    for name, state in states.items():
        if checkpoint is None:
            state.restore([])
        else:
            checkpoint.restore(name, state)
    unusable = tuple(each for each, problem in problems.items() if is_lasting(problem))
    return Position(since if checkpoint is None else checkpoint.id.position), unusable


def _replay_changes(
    log: Log, change_tag: str, after: Position, upto: Position, states: Mapping[str, State]
) -> int:
    replays = {name: Replay(state) for name, state in states.items()}
    replayed = 0
    for changes in committed_changes(log, change_tag, after, upto, states):
        for name, batch in changes:
            replays[name].add(batch)
        replayed += 1
    for replay in replays.values():
        replay.flush()
    return replayed
