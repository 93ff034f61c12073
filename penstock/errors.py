"""Every error that Penstock raises on purpose, drawn as a tree.

    StreamError
    ├── InvalidName             a name or tag outside the allowed alphabet
    ├── InvalidConfig           a setting out of its range
    ├── InvalidArgument         a call's argument of the wrong type or out of its range
    ├── LogError                the shared log
    │   ├── LogNotFound         no such folder
    │   ├── NotALog             a folder, but not one of ours
    │   ├── LogVersionUnsupported
    │   ├── LogReadOnly         the folder or disk cannot be written
    │   ├── LogClosed           the handle was closed, or failed a sync and must be reopened
    │   ├── DiskFull            ENOSPC or EDQUOT: nothing was appended
    │   ├── LogIOError          any other failed system call
    │   ├── LogBusy             another process holds a lock and does not let go
    │   ├── OutcomeUnknown      the append may or may not be in the log: repeat it
    │   ├── Fenced              a newer instance owns this vertex
    │   ├── SequenceConflict    (producer, instance, sequence) was used for something else
    │   ├── RecordTooLarge      a body, a tag list or an append beyond its bound
    │   ├── Trimmed             what was asked for is no longer kept
    │   └── LogDamaged          bytes on disk are not what was written
    │       ├── IndexMissing, IndexForeign, IndexDamaged
    │       ├── SegmentMissing, SegmentTruncated, SegmentDamaged
    │       ├── TailLost        acknowledged records are gone from the end
    │       └── RecordLost      a repair moved this record's bytes aside
    ├── PUnitError              a p-unit cannot be decoded
    │   ├── PUnitDamaged, PUnitVersionUnsupported, PUnitTooLarge
    │   └── SchemaMismatch      a unit's schema is not the one that was asked for
    ├── ExpressionError         an expression or a type that cannot be built or read back
    ├── PlanError               a query that is wrong or cannot be run as it is written
    │   ├── UnknownColumn       an expression names a column that its input does not have
    │   └── UnsupportedPlan     a query that is well formed but has no exact continuous answer here
    ├── ProgramError            the program that a slot runs
    │   ├── InvalidProgram      its text is damaged, or its parts contradict each other
    │   ├── StageVersionUnsupported
    │   └── ProgramIncompatible a changed query cannot take over the state of the stored one
    ├── StateError              keyed state was used in a way it does not allow
    │   ├── StateTooLarge       the state would grow beyond its memory bound; nothing changed
    │   └── StateOverflow       a sum left the range of its column; nothing changed
    ├── CheckpointError         a checkpoint cannot be written or read
    │   ├── CheckpointNotFound  no checkpoint of that name is there
    │   ├── CheckpointDamaged   its bytes are not what was written; an older one may be whole
    │   ├── CheckpointVersionUnsupported
    │   └── CheckpointForeign   it is of a marker that is not in this log; an older one may fit
    ├── RuntimeFailure          a vertex cannot start or go on
    │   ├── JobFailed           a running query ended with an error of one of its vertices
    │   ├── TooFewSlots         Spark has not enough task slots, or they keep ending
    │   ├── ControlError        the connection between a job and a slot
    │   ├── MarkerDamaged       a marker's bytes cannot be read
    │   ├── ChangeLogBroken     neither a checkpoint nor the change log gives the state back
    │   ├── NotRecovered        a vertex was lost of a query whose guarantee keeps no state
    │   ├── StreamNotFound      no stream of that name is described in the log
    │   ├── StreamConflict      a stream of that name is there with other columns or kinds of rows
    │   ├── AlreadyWritten      a write that raised an error is in the log after all
    │   ├── ProducerEnded       a write after the one that said it was the last
    │   ├── StreamInputError    rows of a stream do not fit the query that reads them
    │   ├── FunctionFailed      a Python function of the query cannot be loaded, or fails as a whole
    │   ├── StaticSideTooLarge  a static side, or what a join with it gives, is beyond its bound
    │   └── StaticSideLost      the version of a static side that a marker names is not there
    ├── RowError                one row failed: overflow, division by zero, a bad cast
    ├── DemoFailed              the demonstration itself could not be carried out
    ├── ApiError                a PySpark user's call cannot be carried out
    │   ├── NotAttached, UnsupportedSession
    │   ├── JavaNotFound        Spark has no Java that is new enough to run on
    │   ├── InvalidOption       an option, format, mode or trigger that does not exist
    │   ├── QueryActive         the query is running already
    │   ├── QueryNotFound       no query of that name is stored in the log
    │   └── QueryMismatch       the stored query of this name is another one
    └── ConnectorError          a source or a sink outside the log
        ├── SourceError         a source cannot deliver what an offset promises
        │   ├── ProducerRefused what a producer sends, or says to be, is not taken
        │   ├── InvalidOffset   an offset that this source never handed out
        │   ├── MalformedInput  a line, a row or a file that does not fit the schema
        │   ├── PathRefused     a link out of the folder, or not a regular file
        │   └── SourceVanished, SourceShrunk, SourceChanged
        └── SinkError           a sink cannot take or keep what was written

Each class says who caused it and what the runtime does. All of them survive pickling, because they
cross Spark's process boundary. Anything that is not a StreamError is a bug and ends the slot.
"""

from __future__ import annotations

import re
from typing import Any

_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # Not|A|Log


def _rebuild(cls: type[StreamError], message: str, details: dict[str, Any]) -> StreamError:
    return cls(message, **details)


class StreamError(Exception):
    """Root of the tree. `details` holds the facts of the message under stable names."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    @property
    def error_class(self) -> str:
        """A stable name for logs and tests, in PySpark's style: `RecordTooLarge` →
        `RECORD_TOO_LARGE`.
        """
        words = re.sub(_WORD_START, "_", type(self).__name__)
        return words.upper()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.details))


class InvalidName(StreamError):
    """The caller passed, or a file contained, a name outside the rule. Action: fix the name."""


class InvalidConfig(StreamError):
    """A setting is out of range. Action: the message names the setting and its bounds."""


class InvalidArgument(StreamError):
    """A call got an argument that can never be right. A bug in the caller; nothing was changed."""


class LogError(StreamError):
    """Root of what the shared log raises."""


class LogNotFound(LogError):
    """There is no log at this path. Action: create one, or correct the path."""


class NotALog(LogError):
    """The folder holds other things. Action: choose an empty or new folder; nothing was touched."""


class LogVersionUnsupported(LogError):
    """A newer Penstock wrote this log. Action: upgrade; nothing was touched."""


class LogReadOnly(LogError):
    """The folder, the disk or the handle cannot be written. Reading goes on."""


class LogClosed(LogError):
    """The handle is closed, or a failed sync made it untrustworthy. Action: open the log again."""


class DiskFull(LogError):
    """The disk or quota is full.

    Nothing was appended; the log stays readable. Action: free space, retry.
    """


class LogIOError(LogError):
    """A system call failed.

    Nothing acknowledged is lost. Action: look at the disk, reopen, retry.
    """


class LogBusy(LogError):
    """A lock was not to be had in time; `holders` are the process ids. Action: end a hung holder,
    retry.
    """


class OutcomeUnknown(LogError):
    """The append may be in the log.

    Action: repeat it; the (producer, instance, sequence) key makes that safe.
    """


class Fenced(LogError):
    """A newer instance owns this vertex. Action: this instance stops and appends nothing more."""


class SequenceConflict(LogError):
    """A (producer, instance, sequence) was reused for other content.

    A bug in the caller. Action: stop.
    """


class RecordTooLarge(LogError):
    """A body, tag list or append is over its configured bound. Nothing was appended."""


class Trimmed(LogError):
    """The records asked for were trimmed. Action: start from what is left, or from a checkpoint."""


class LogDamaged(LogError):
    """Bytes on disk are not what was written.

    Action: `penstock fsck`, then `penstock log repair`.
    """


class IndexMissing(LogDamaged):
    """The index file is gone while the log's other files are there."""


class IndexForeign(LogDamaged):
    """The index file is not SQLite, not ours, or belongs to another log."""


class IndexDamaged(LogDamaged):
    """The index fails its own checks."""


class SegmentMissing(LogDamaged):
    """The index names a segment that is not there."""


class SegmentTruncated(LogDamaged):
    """A segment ends before the bytes that the index promises."""


class SegmentDamaged(LogDamaged):
    """A segment's header, frame or body fails its checksum."""


class TailLost(LogDamaged):
    """The index ends before a position that was acknowledged."""


class RecordLost(LogDamaged):
    """A repair moved this record's bytes aside; the manifest says where."""


class PUnitError(StreamError):
    """Root of what decoding a p-unit raises."""


class PUnitDamaged(PUnitError):
    """The unit's header, length or checksum is wrong. The runtime treats it as a damaged record."""


class PUnitVersionUnsupported(PUnitError):
    """A newer Penstock wrote this unit, or with a codec this one lacks."""


class PUnitTooLarge(PUnitError):
    """The unit declares more bytes or rows than the bound; nothing was allocated."""


class SchemaMismatch(PUnitError):
    """The unit's schema is not the one the reader asked for; the message names the columns."""


class ExpressionError(StreamError):
    """An unknown function, type or option, or operands that do not fit.

    Action: correct the query.
    """


class RowError(StreamError):
    """One row failed: details `row` (index in the batch) and `expression`. Action: the vertex stops
    with stream and position, or sends the row to the dead-letter stream if the query names one."""


class PlanError(StreamError):
    """A query is wrong: types, names or shapes do not fit. Action: correct the query."""


class UnknownColumn(PlanError):
    """An expression names a column that its input lacks; the message lists the ones there are."""


class UnsupportedPlan(PlanError):
    """The query is well formed but is not run here. Action: change it, or run it with Spark."""


class ProgramError(StreamError):
    """Root of what reading or comparing stage programs raises."""


class InvalidProgram(ProgramError):
    """A stage program is damaged, or its parts contradict each other.

    Action: plan the query again.
    """


class StageVersionUnsupported(ProgramError):
    """Another version of Penstock wrote this. Action: use that one; nothing was run."""


class ProgramIncompatible(ProgramError):
    """A changed query cannot take over the stored state. Action: start it under a new name."""


class ConnectorError(StreamError):
    """Root of what sources and sinks outside the log raise."""


class SourceError(ConnectorError):
    """A source cannot deliver what an offset promises.

    Nothing was committed. Action: mend the input.
    """


class ProducerRefused(SourceError):
    """What a producer sends, or who it says it is, is not taken. Action: as the message says."""


class InvalidOffset(SourceError):
    """An offset of another source, or made under other settings. Action: stop."""


class MalformedInput(SourceError):
    """Input that does not fit the schema.

    Action: mend the file, or read with `mode="deadletter"`.
    """


class PathRefused(SourceError):
    """A file outside the trusted folder or of a kind that is never read. Action: remove it."""


class SourceVanished(SourceError):
    """A file is gone before it was read to its end. Action: the message says how to go on."""


class SourceShrunk(SourceError):
    """A file is shorter than when it was begun. Action: the message says how to go on."""


class SourceChanged(SourceError):
    """A file was written to after it was begun. Action: the message says how to go on."""


class SinkError(ConnectorError):
    """A sink cannot take or keep what was written.

    The epoch is not in it. Action: mend it, retry.
    """


class StateError(StreamError):
    """Keyed state was used in a way it does not allow.

    A bug in the caller, or a wrong schema. Action: stop.
    """


class StateTooLarge(StateError):
    """The state would grow beyond its memory bound.

    Nothing changed. Action: end the query; the user raises the bound, or has less state.
    """


class StateOverflow(StateError):
    """A sum left the range of its column's type.

    Nothing changed. Action: as for a row that fails.
    """


class CheckpointError(StreamError):
    """A checkpoint could not be written or read.

    The vertex goes on; older checkpoints are untouched.
    """


class CheckpointNotFound(CheckpointError):
    """There is no checkpoint of this name. Action: list what is there."""


class CheckpointDamaged(CheckpointError):
    """A checkpoint's bytes are not what was written.

    Action: recovery falls back to an older one.
    """


class CheckpointVersionUnsupported(CheckpointError):
    """Another version of Penstock wrote this checkpoint. Action: use that one; nothing was touched.

    Recovery does not fall back: what that version has trimmed may be in this checkpoint alone.
    """


class CheckpointForeign(CheckpointError):
    """A checkpoint shows the state of a marker that is not in this log.

    A power cut took the marker with it, or the folder is another log's. Action: recovery falls
    back to an older one.
    """


class RuntimeFailure(StreamError):
    """Root of what keeps a vertex from starting or going on."""


class JobFailed(RuntimeFailure):
    """A vertex failed for good, or another run took over.

    Action: the query ends with this error.
    """


class TooFewSlots(RuntimeFailure):
    """There are not enough task slots. Action: the message says how many are needed and how."""


class ControlError(RuntimeFailure):
    """The control connection cannot be made, is not proved or carries rubbish.

    Action: the connection is closed, and a slot without one ends. A query whose port is gone ends.
    """


class MarkerDamaged(RuntimeFailure):
    """A marker cannot be read back.

    Action: the vertex stops; `penstock fsck` says what is wrong.
    """


class ChangeLogBroken(RuntimeFailure):
    """The state cannot be rebuilt from what is kept.

    Action: the vertex stops and says what is missing.
    """


class StreamNotFound(RuntimeFailure):
    """The log has no stream of that name. Action: correct the name, or create the stream."""


class StreamConflict(RuntimeFailure):
    """The stream to be written has other columns, or rows of another kind. Action: another name."""


class AlreadyWritten(RuntimeFailure):
    """A write that raised an error is in the log after all.

    Action: do not repeat it; open the writer again, its `offset` says how far the rows go.
    """


class ProducerEnded(RuntimeFailure):
    """A producer writes after its own end. Action: nothing is written; use another producer."""


class StreamInputError(RuntimeFailure):
    """A unit of an input stream has another schema or is damaged. Action: the vertex stops."""


class FunctionFailed(RuntimeFailure):
    """A Python function of the query cannot be loaded, or failed for a batch and not for a row:
    details `function`, and `module` if one is missing. Action: the query ends; what was committed
    stays, and it goes on from there once the function is corrected."""


class StaticSideTooLarge(RuntimeFailure):
    """A static side has more bytes than a query may hold, or its join gives too many rows.

    Nothing was committed of it. Action: filter or group the static side, or raise its bound.
    """


class NotRecovered(RuntimeFailure):
    """A vertex was lost, and its query has a guarantee that keeps nothing to go on from.

    Action: start the query under a new name, without the option guarantee if rows matter.
    """


class StaticSideLost(RuntimeFailure):
    """The log does not hold the version of a static side that a vertex goes by.

    Action: `penstock fsck`; refresh the query's static sides.
    """


class DemoFailed(StreamError):
    """A part of `penstock demo` did not start or ended early.

    Action: the message has its output.
    """


class ApiError(StreamError):
    """Root of what the PySpark-facing calls raise before anything runs."""


class NotAttached(ApiError):
    """The session has no log. Action: call penstock.attach first."""


class UnsupportedSession(ApiError):
    """The session cannot run Penstock queries. Action: the message says what works there."""


class JavaNotFound(ApiError):
    """Spark has no Java, or too old a one. Action: the message says what was found."""


class InvalidOption(ApiError):
    """An option, format, mode or trigger does not exist or has a bad value."""


class QueryActive(ApiError):
    """Another driver runs this query now. Action: stop it there, or use another name."""


class QueryNotFound(ApiError):
    """No query of this name is stored in the log. Action: the message lists those that are."""


class QueryMismatch(ApiError):
    """The stored query of this name belongs to something else. Action: use another name."""
