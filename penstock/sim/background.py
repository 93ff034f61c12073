"""The background threads of slots: checkpoints and trims, one job at a time."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import Fenced
from penstock.runtime.checkpointing import Work
from penstock.runtime.trimming import TrimJob
from penstock.runtime.vertex import CheckpointJob
from penstock.sim.actor import Actor
from penstock.sim.disk import Disk
from penstock.sim.explained import check_background_error
from penstock.sim.history import History
from penstock.sim.process import Process
from penstock.sim.schedule import Schedule
from penstock.sim.violation import Violation
from penstock.stages.tags import change_tag
from penstock.testing.memory_log import SimulatedCrash


class Background:
    """Performs what waits in a slot's queue, and looks at what came of it."""

    def __init__(
        self,
        processes: Sequence[Process],
        acting: list[Actor],
        history: History,
        schedule: Schedule,
        disk: Disk,
    ) -> None:
        self._processes = processes
        self._acting = acting
        self._history = history
        self._schedule = schedule
        self._disk = disk

    def work(self, process: Process) -> None:
        """Let the background thread of a process do one job, or die in it."""
        checkpointer = process.checkpointer
        job = checkpointer.take()
        assert job is not None
        is_trim = isinstance(job, TrimJob)
        self._schedule.note("trim" if is_trim else "checkpoint", process, job.vertex)
        trims = len(self._history.trims)
        holds = self._schedule.faults["held up in an action"]
        checkpointer.is_writing = not is_trim
        self._acting.append(process)
        try:
            error = checkpointer.perform(job)
        except SimulatedCrash:
            what = "trimming" if is_trim else "writing a checkpoint"
            self._schedule.sometimes[f"crash while {what}"] += 1
            self._schedule.note("died", process)
            process.die()
        else:
            checkpointer.settle(job)
            self._judge(process, job, error)
            was_alone = self._schedule.faults["held up in an action"] == holds
            trimmed = {each.tag for each in self._history.trims[trims:]}
            if not is_trim and was_alone and change_tag(job.vertex) in trimmed and error is None:
                self._check_left_behind(job.vertex)
        finally:
            self._acting.pop()
            checkpointer.is_writing = False
        if isinstance(job, TrimJob):
            self._note_trims(process, job, trims)
        else:
            self._check_fenced(process, job, trims)

    def _judge(self, process: Process, job: Work, error: Exception | None) -> None:
        """Only what the faults explain may have gone wrong."""
        sometimes = self._schedule.sometimes
        is_trim = isinstance(job, TrimJob)
        if error is None:
            if not is_trim:
                sometimes["checkpoint written"] += 1
                is_of_changes = isinstance(job, CheckpointJob) and job.kinds is not None
                sometimes["checkpoint made of changes"] += is_of_changes
                self._disk.note_written(job.vertex)
                sometimes["checkpoint written by a zombie"] += self._is_zombie(process)
        elif isinstance(error, Fenced) and self._is_overtaken(job):
            sometimes["zombie's checkpoint trims nothing"] += 1
        else:
            check_background_error(error, is_trim, self._disk)
            sometimes["trim that failed" if is_trim else "checkpoint not written"] += 1

    def _check_left_behind(self, vertex: str) -> None:
        """A checkpoint that was just written has tidied up behind the two that are kept."""
        others = [each for each in self._processes if each.checkpointer.is_writing]
        if len(others) == 1 and (old := self._disk.unfinished_below(vertex)):  # nobody else does
            raise Violation(f"{vertex}: unfinished checkpoints stay: {old}")

    def _check_fenced(self, process: Process, job: CheckpointJob, before: int) -> None:
        """Once a newer instance is there, only that one lets changes of a vertex go."""
        for trim in self._history.trims[before:]:
            if trim.who == process.name and trim.tag == change_tag(job.vertex):
                newest = self._history.newest_instance(job.vertex, trim.registrations)
                if job.fence.instance < newest:
                    raise Violation(
                        f"{job.vertex}: instance {job.fence.instance} trims for {newest}"
                    )

    def _is_overtaken(self, job: Work) -> bool:
        newest = self._history.newest_instance(job.vertex)
        return isinstance(job, CheckpointJob) and job.fence.instance < newest

    def _note_trims(self, process: Process, job: TrimJob, before: int) -> None:
        inputs = {tag for tag, _ in job.inputs}
        if any(trim.tag in inputs for trim in self._history.trims[before:]):
            self._schedule.sometimes["input trimmed"] += 1
            self._schedule.sometimes["input trimmed by a zombie"] += self._is_zombie(process)

    def _is_zombie(self, process: Process) -> bool:
        """Whether a newer instance of one of its vertices is elsewhere."""
        return any(
            instance < self._history.newest_instance(name)
            for name, instance in process.instances.items()
        )
