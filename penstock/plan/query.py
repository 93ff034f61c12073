"""The top of a plan: what a query writes, where to, and how it is to be run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from penstock.errors import PlanError, UnsupportedPlan
from penstock.expressions.types import Schema
from penstock.names import check_name
from penstock.plan.nodes import (
    Relation,
    Scan,
    StreamRef,
    field_of,
    rewrite,
    scans_of,
    stream_names,
)
from penstock.stages.program import Program, StreamRole, check_stream_name, shape, show_schema
from penstock.stages.settings import Settings

PARALLELISM_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Write:
    """The stream that the rows of a relation go to.

    `partition_by`, `trunk` and `vertices` are set by rules: how rows are dealt to substreams, what
    of the child is computed together with other writes of the same trunk (None: nothing is), and by
    how many vertices. `changes`: rows that change come and go with a weight, instead of being shown
    as their mode says. `cohort` is that of the stages that it becomes.
    """

    child: Relation
    target: StreamRef
    partition_by: tuple[str, ...] = ()
    vertices: int = 1
    changes: bool = False
    trunk: Relation | None = None
    cohort: int = 0

    def __post_init__(self) -> None:
        for name in self.partition_by:
            field_of(self.child.schema, name, self.label)

    @property
    def label(self) -> str:
        return f"write to stream {self.target.name}"

    @property
    def stream(self) -> str:
        return self.target.name


@dataclass(frozen=True, slots=True)
class Query:
    """Everything that one query writes, and how it is to be run."""

    name: str
    writes: tuple[Write, ...]
    parallelism: int = 1
    settings: Settings = field(default_factory=Settings)
    stored: Program | None = None  # which it goes on from
    times_apart: bool = False  # who reads what is shared keeps his watermark to himself

    def __post_init__(self) -> None:
        check_name(self.name, "query")
        if not self.writes:
            raise PlanError(f"query {self.name} writes nothing: add a write", query=self.name)
        if type(self.parallelism) is not int or not 1 <= self.parallelism <= PARALLELISM_MAX:
            raise PlanError(
                f"query {self.name}: parallelism is {self.parallelism!r:.80}; "
                f"it is a whole number from 1 to {PARALLELISM_MAX}",
                query=self.name,
            )
        self._check_names()
        written = self._check_written()
        self._check_read(written)
        self._check_cycles()
        read = {name for scan in self.scans() for name in stream_names(scan)}
        for side in (self.settings.late_stream, self.settings.dead_letter_stream):
            if side in written or side in read:
                does = "writes results to" if side in written else "reads"
                raise PlanError(
                    f"query {self.name} {does} stream {side!r}, which is also its one for late or "
                    "dead-lettered rows: name two streams",
                    stream=side,
                )

    def _check_names(self) -> None:
        """Streams that the engine made are its own: this query's rules and sink may use theirs."""
        for scan in self.scans():
            for stream in scan.relation if isinstance(scan.relation, tuple) else ():
                role: StreamRole = "internal" if stream.internal else "input"
                check_stream_name(self.name, stream.name, role)
        for write in self.writes:
            role = "internal" if write.target.internal else "output"
            check_stream_name(self.name, write.target.name, role)

    def _check_written(self) -> dict[str, Schema]:
        written: dict[str, Schema] = {}
        for write in self.writes:
            schema = written.setdefault(write.stream, write.child.schema)
            if shape(schema) != shape(write.child.schema):
                raise PlanError(
                    f"two writes to stream {write.stream!r} differ: {show_schema(schema)} and "
                    f"{show_schema(write.child.schema)}; select the same columns on both",
                    stream=write.stream,
                )
        return written

    def _check_read(self, written: dict[str, Schema]) -> None:
        for scan in self.scans():
            for name in stream_names(scan):
                if name not in written:
                    continue
                types = dict(shape(written[name]))
                for column in scan.schema:
                    field_of(written[name], column.name, scan.label)
                    if types[column.name] != str(column.type):
                        raise PlanError(
                            f"{scan.label} reads {column.name} as {column.type}, but this query "
                            f"writes it as {types[column.name]}",
                            stream=name,
                            column=column.name,
                        )

    def _check_cycles(self) -> None:
        feeds: dict[str, set[str]] = {}
        for write in self.writes:
            read = {name for scan in scans_of(write.child) for name in stream_names(scan)}
            feeds.setdefault(write.stream, set()).update(read)
        for start, direct in feeds.items():
            reached: set[str] = set()
            ahead = set(direct)
            while ahead:
                stream = ahead.pop()
                reached.add(stream)
                ahead |= feeds.get(stream, set()) - reached
            if start in reached:
                raise UnsupportedPlan(
                    f"query {self.name}: stream {start!r} is computed from itself; a cycle has no "
                    "end to wait for, break it into two queries",
                    stream=start,
                )

    @property
    def cohorts(self) -> int:
        """How many cohorts of results there ever were, with this start's."""
        known = 1 if self.stored is None else self.stored.cohorts
        return max(known, *(write.cohort + 1 for write in self.writes))

    def scans(self) -> tuple[Scan, ...]:
        """Every scan of the query, in order, repeats included."""
        return tuple(scan for write in self.writes for scan in scans_of(write.child))


def going_on(query: Query, stored: Program | None) -> Query:
    """The query as it goes on from a stored program.

    A stage has one position in its input. So results that are new now begin from the beginning of
    theirs in stages of their own, which those of one start share; the others stay where they are.
    If all are new, that is no addition, and what it would leave behind is for `compare` to refuse.
    """
    if stored is None:
        return query
    cohorts = {stream: stage.cohort for stage in stored.stages for stream in stage.written}
    if not any(write.stream in cohorts for write in query.writes):
        return replace(query, stored=stored)
    writes = tuple(
        replace(write, cohort=cohorts.get(write.stream, stored.cohorts)) for write in query.writes
    )
    return replace(query, writes=writes, stored=stored)


def rewrite_query(query: Query, change: Callable[[Relation], Relation]) -> Query:
    """The query with every write's tree rewritten."""
    writes = tuple(replace(write, child=rewrite(write.child, change)) for write in query.writes)
    return replace(query, writes=writes)
