"""Which errors the faults of a run explain; any other is a finding."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.errors import (
    ChangeLogBroken,
    CheckpointDamaged,
    CheckpointError,
    CheckpointNotFound,
    Fenced,
    JobFailed,
    ProgramIncompatible,
    QueryActive,
    SinkError,
    StreamError,
    StreamNotFound,
    TooFewSlots,
)
from penstock.log.contract import Log
from penstock.sim.disk import Disk
from penstock.sim.driver import Driver
from penstock.sim.faults import BY_LOG
from penstock.sim.violation import Violation
from penstock.stages.program import Program

BY_STORE = (CheckpointError, CheckpointDamaged, CheckpointNotFound, ChangeLogBroken)


def explain_run(
    driver: Driver,
    error: StreamError,
    log: Log,
    programs: Iterable[Program],
    disk: Disk,
    refused: Program | None,
) -> str:
    """Why a run failed: the situation that it was in; a Violation if it should not have been."""
    reason = error.details.get("reason", error.error_class)
    if isinstance(error, QueryActive) or (isinstance(error, JobFailed) and reason == "taken over"):
        if driver.is_newest_run(log):
            raise Violation(f"{driver.query}: its newest run was ended as if taken over: {error}")
        is_sink = isinstance(error, QueryActive)
        return "sink taken over by a newer run" if is_sink else "run ended by a newer one"
    if isinstance(error, Fenced) and not driver.is_newest_run(log):
        return "run ended by a newer one"  # which has written static rows
    explained = _classes((*BY_LOG, TooFewSlots, SinkError)) | {"stuck"}
    if any(log.get(f"query/{each.query}") is None for each in programs):
        explained |= _classes((StreamNotFound,))  # who is to write it was not started yet
    if disk.fails or disk.has_failed:
        explained |= _classes(BY_STORE)
    if driver.program is refused:
        explained |= _classes((ProgramIncompatible,))
    if reason not in explained and error.error_class not in explained:
        raise Violation(f"{driver.query} failed: {error}")
    return "run failed"


def check_slot_error(error: StreamError, disk: Disk) -> None:
    """Raise the error that a slot ended with, unless it is explained."""
    if not isinstance(error, BY_LOG) and not (isinstance(error, BY_STORE) and disk.has_failed):
        raise error


def check_background_error(error: Exception, is_trim: bool, disk: Disk) -> None:
    """Raise the error of a checkpoint or trim, unless it is explained."""
    explained = BY_LOG if is_trim else (*BY_LOG, CheckpointError)
    if not (isinstance(error, explained) or (disk.has_failed and not is_trim)):
        raise error


def _classes(kinds: tuple[type[StreamError], ...]) -> set[str]:
    return {kind("").error_class for kind in kinds}
