"""What a changed query can keep of the stored one: a verdict per stage, with reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from penstock.errors import ProgramIncompatible
from penstock.expressions.durations import show_duration
from penstock.expressions.tree import Column
from penstock.expressions.types import DataType
from penstock.operators.specs import (
    AggregateSpec,
    OperatorSpec,
    ProjectSpec,
    PythonGroupsSpec,
    PythonRowsSpec,
    PythonSpec,
    SessionSpec,
    StatefulSpec,
    StateVariable,
    StaticJoinSpec,
    accumulators_of,
    collections_of,
)
from penstock.stages.identity import (
    IDENTITY_OPTIONS,
    identity,
    output_kind,
    results_behind,
    results_of,
)
from penstock.stages.program import (
    ConnectorSpec,
    Port,
    Program,
    Stage,
    is_fed,
    is_inner,
    is_of_sink,
    shape,
    show_schema,
)

# Numbers of a state may become those of a type further behind.
WIDER = (("tinyint", "smallint", "int", "bigint"), ("float", "double"))

Verdict = Literal["kept", "rebuilt", "added", "removed", "refused"]


@dataclass(frozen=True, slots=True)
class StageVerdict:
    """One stage.

    kept: nothing changed. rebuilt: other code, same state and positions. added, removed: only in
    one of the programs. refused: what the stored stage left has no meaning for the new one.
    """

    stage: str
    verdict: Verdict
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """All stages of the stored and the new program."""

    query: str
    stages: tuple[StageVerdict, ...]

    @property
    def is_compatible(self) -> bool:
        return all(stage.verdict != "refused" for stage in self.stages)

    def __str__(self) -> str:
        width = max(len(stage.stage) for stage in self.stages)
        lines = [f"query {self.query}: " + self._summary()]
        for stage in self.stages:
            head = f"  {stage.stage:<{width}}  {stage.verdict:<7}"
            lines.append(f"{head}  {stage.reasons[0] if stage.reasons else ''}".rstrip())
            lines.extend(" " * (len(head) + 2) + reason for reason in stage.reasons[1:])
        return "\n".join(lines)

    def _summary(self) -> str:
        if not self.is_compatible:
            return "cannot go on from what is stored"
        changed = any(stage.verdict != "kept" for stage in self.stages)
        return "goes on with changes" if changed else "unchanged"

    def check(self) -> None:
        """Raise ProgramIncompatible, with every reason, if a stage is refused."""
        refused = [stage for stage in self.stages if stage.verdict == "refused"]
        if refused:
            reasons = "; ".join(f"{s.stage}: {reason}" for s in refused for reason in s.reasons)
            raise ProgramIncompatible(
                f"query {self.query} cannot go on from what is stored: {reasons}. "
                "Start it under a new name and with a new sink, and it begins at the beginning of "
                "its input, or run the stored query",
                query=self.query,
                stages=[stage.stage for stage in refused],
            )


def compare(stored: Program, new: Program) -> Comparison:
    """Say for each stage whether the new program can go on from where the stored one stopped."""
    if stored.query != new.query:
        reason = f"the stored program is that of query {stored.query}"
        verdicts = [StageVerdict(stage.name, "refused", (reason,)) for stage in new.stages]
        return Comparison(new.query, tuple(verdicts))
    if (refusal := _guarantee_refusal(stored, new)) is not None:
        verdicts = [StageVerdict(stage.name, "refused", (refusal,)) for stage in new.stages]
        return Comparison(new.query, tuple(verdicts))
    before = {stage.name: index for index, stage in enumerate(stored.stages)}
    after = {stage.name: index for index, stage in enumerate(new.stages)}
    gone = [stage for stage in stored.stages if stage.name not in after]
    verdicts = []
    for name, index in after.items():
        if name in before:
            verdicts.append(_compare_stage(stored, before[name], new, index))
        else:
            verdicts.append(_added(stored, gone, new, new.stages[index]))
    verdicts.extend(_removed(stage) for stage in gone)
    return Comparison(new.query, tuple(verdicts))


def _guarantee_refusal(stored: Program, new: Program) -> str | None:
    """Why nothing can go on from a query that kept no state, or without keeping what there is."""
    before, after = stored.settings.guarantee, new.settings.guarantee
    if before != after:
        return f"it is stored with the guarantee {before}, and now has {after}"
    if not stored.settings.recovers:
        return f"with the guarantee {before} nothing was kept to go on from"
    return None


def _added(stored: Program, gone: Sequence[Stage], new: Program, stage: Stage) -> StageVerdict:
    """A stage under a new name begins anew: only where nothing of another one is in its way."""
    old = _predecessor(stored, gone, new, stage)
    if old is not None:
        reasons = tuple(_differences(stored, old, new, stage))
        streams = ", ".join(name for name in old.written if name in stage.written)
        left = f"stream {streams} holds rows of {old.name}, which the query had before"
        return StageVerdict(stage.name, "refused", reasons or (left,))
    trimmed = [
        stream.name
        for stream in stored.streams
        if (stream.role == "internal" or is_fed(stream.name)) and stream.name in stage.streams
    ]
    if trimmed:
        reason = f"it would begin with rows of {', '.join(trimmed)} that have been trimmed"
        return StageVerdict(stage.name, "refused", (reason,))
    return StageVerdict(stage.name, "added", ("starts from the beginning of its input",))


def _predecessor(
    stored: Program, gone: Sequence[Stage], new: Program, stage: Stage
) -> Stage | None:
    """Of the stages that are gone the one in whose place a new one stands, if it wrote for others.

    It wrote the same stream, or was the same and wrote another.
    """
    if not new.writes_result(stage):
        return None
    for old in gone:
        if not set(old.written).isdisjoint(stage.written):
            return old
    own = (old for old in gone if stored.writes_result(old))
    return next((old for old in own if identity(old) == identity(stage)), None)


def _differences(stored: Program, old: Stage, new: Program, stage: Stage) -> Iterator[str]:
    """Why a stage cannot go on for another one: what differs in it, or before it."""
    vertices = [
        len(program.stage_vertices(program.stages.index(each)))
        for program, each in ((stored, old), (new, stage))
    ]
    if vertices[0] != vertices[1]:
        yield _other_parallelism(*vertices)
        return  # the rest follows from it
    yield from _state_refusals(old.stateful, stage.stateful)
    yield from _output_refusals(old, stage)
    feeding = [_feeding(program, of) for program, of in ((stored, old), (new, stage))]
    if all(feeding) and len(feeding[0]) == len(feeding[1]):
        for before, after in zip(*feeding, strict=True):
            if before.name != after.name:
                yield from _differences(stored, before, new, after)
    else:
        yield from _input_refusals(old, stage)


def _feeding(program: Program, stage: Stage) -> list[Stage]:
    """The stages of the query that write what a stage reads."""
    return [each for each in program.stages if not set(each.written).isdisjoint(stage.streams)]


def _removed(stage: Stage) -> StageVerdict:
    left = "its state stays in the log until it is trimmed" if stage.stateful else ""
    return StageVerdict(stage.name, "removed", (left,) if left else ())


def _compare_stage(stored: Program, before: int, new: Program, after: int) -> StageVerdict:
    old, fresh = stored.stages[before], new.stages[after]
    refusals = [
        *_twin_refusals(stored, old, new, fresh),
        *_input_refusals(old, fresh),
        *_state_refusals(old.stateful, fresh.stateful),
        *_output_refusals(old, fresh),
        *_changing_row_refusals(old, fresh),
        *_twin_output_refusals(stored, old, new, fresh),
        *_ingress_refusals(stored, old, new, fresh),
        *_vertex_refusals(stored, before, new, after),
    ]
    if refusals:
        return StageVerdict(fresh.name, "refused", tuple(refusals))
    changes = tuple(_changes(old, fresh))
    return StageVerdict(fresh.name, "rebuilt" if changes else "kept", changes)


def _twin_refusals(stored: Program, old: Stage, new: Program, fresh: Stage) -> Iterator[str]:
    """Of stages that differ in expressions or options alone, only the order says which is which.

    So where one changes, or one comes before others or goes, it may be another one's state; unless
    it still reads a source with options that no other one has, or results tell them apart.
    """
    known = {output.stream: old.way_to(output) for output in old.outputs}
    same = all(known.get(o.stream, ()) == fresh.way_to(o) for o in fresh.outputs)
    if same and old.source == fresh.source:
        return
    results = [results_of(program.stages) for program in (stored, new)]
    own = [results_behind(old, results[0]), results_behind(fresh, results[1])]
    twins = [
        each.name
        for program, its, other in ((stored, results[0], own[1]), (new, results[1], own[0]))
        for each in program.stages
        if each.name != fresh.name
        and identity(each) == identity(fresh)
        and (each.source == fresh.source or old.source != fresh.source)
        and not (own[1] <= own[0] and other.isdisjoint(results_behind(each, its)))
    ]
    if twins:
        yield (
            f"it and {', '.join(dict.fromkeys(twins))} differ only in expressions or options, and "
            "these have changed: whose rows and state are whose cannot be told"
        )


def _input_refusals(old: Stage, new: Stage) -> Iterator[str]:
    if len(old.ports) != len(new.ports):
        yield f"it had {len(old.ports)} ports and has {len(new.ports)}"
        return
    for before, after in zip(old.ports, new.ports, strict=True):
        yield from _port_refusals(before, after)


def _port_refusals(before: Port, after: Port) -> Iterator[str]:
    if (before.source is None) != (after.source is None):
        yield "it read a source and now reads streams, or the reverse: positions have no meaning"
    elif before.source is not None and after.source is not None:
        if before.source.connector != after.source.connector:
            yield (
                f"the source was {before.source.connector} and is {after.source.connector}: "
                "its offsets have no meaning"
            )
        else:
            yield from _source_refusals(before.source, after.source)
    elif set(before.streams) != set(after.streams):
        yield f"it read {', '.join(before.streams)} and now reads {', '.join(after.streams)}"


def _source_refusals(old: ConnectorSpec, new: ConnectorSpec) -> Iterator[str]:
    before, after = dict(old.options), dict(new.options)
    for name in IDENTITY_OPTIONS.get(old.connector, ()):
        if before.get(name) != after.get(name):
            yield (
                f"{name} of the source was {before.get(name)!r} and is {after.get(name)!r}: its "
                "offsets are those of other rows"
            )


def _state_refusals(old: Sequence[StatefulSpec], new: Sequence[StatefulSpec]) -> Iterator[str]:
    if len(old) != len(new):
        yield "it gained a state" if len(old) < len(new) else "it lost its state"
        return
    for before, after in zip(old, new, strict=True):
        if isinstance(before, AggregateSpec) and isinstance(after, AggregateSpec):
            yield from _aggregate_refusals(before, after)
        elif isinstance(before, PythonGroupsSpec) and isinstance(after, PythonGroupsSpec):
            yield from _function_refusals(before, after)
        elif before.meaning != after.meaning:
            yield f"its state was that of {before.title} and is that of {after.title}"


def _function_refusals(old: PythonGroupsSpec, new: PythonGroupsSpec) -> Iterator[str]:
    if old.keys != new.keys:
        keys = [", ".join(f"{key} {key.type}" for key in spec.keys) for spec in (old, new)]
        yield f"the keys of the function were ({keys[0]}) and are ({keys[1]})"
    if old.clock != new.clock:
        yield f"the function went by the clock {old.clock!r} and goes by {new.clock!r}"
    before, after = ({each.name: each for each in spec.variables} for spec in (old, new))
    for name in dict.fromkeys((*before, *after)):
        if not _goes_on(before.get(name), after.get(name)):
            was, now = (_variable(found.get(name)) for found in (before, after))
            yield f"state {name!r} of the function was {was} and is {now}"
    if set(before) == set(after) and list(before) != list(after):
        yield f"the function asked for its states as {list(before)} and asks as {list(after)}"


def _goes_on(old: StateVariable | None, new: StateVariable | None) -> bool:
    """Whether a variable can have what another one kept.

    Its values may have got columns, which are null in what is there, and wider numbers. Some
    may be gone, and what is there of them is passed over; where none is left it is another state.
    """
    if old is None or new is None or replace(old, value=()) != replace(new, value=()):
        return old == new
    known = {field.name: field for field in old.value}
    is_left = any(field.name in known for field in new.value)
    return is_left and all(
        field.nullable
        if (was := known.get(field.name)) is None
        else _holds(was.type, field.type) and field.nullable >= was.nullable
        for field in new.value
    )


def _holds(old: DataType, new: DataType) -> bool:
    """Whether each value of a type is one of another, too."""
    wider = next((kinds for kinds in WIDER if {old.kind, new.kind} <= set(kinds)), ())
    return old == new or (bool(wider) and wider.index(old.kind) < wider.index(new.kind))


def _variable(variable: StateVariable | None) -> str:
    if variable is None:
        return "not there"
    shown = [
        "(" + ", ".join(f"{field.name} {field.type}" for field in fields) + ")"
        for fields in (variable.key, variable.value)
        if fields
    ]
    ttl = "" if variable.ttl_ms is None else f" for {show_duration(variable.ttl_ms * 1_000)}"
    return f"a {variable.kind} of {' to '.join(shown)}{ttl}"


def _aggregate_refusals(old: AggregateSpec, new: AggregateSpec) -> Iterator[str]:
    if old.keys != new.keys:
        yield f"the keys of the state were {_keys(old)} and are {_keys(new)}"
    if old.window != new.window:
        yield f"the window of the state was {_window(old)} and is {_window(new)}"
    if _kept(old) != _kept(new):
        yield f"the values of the state were {_values(old)} and are {_values(new)}"
    if old.merge_partials != new.merge_partials:
        yield "partials were exchanged before and rows are now, or the reverse"
    if (old.weighted, old.changes) != (new.weighted, new.changes):
        yield "its rows, or those that it reads, come and go, or no longer do"
    if old.mode != new.mode:
        yield (
            f"the mode was {old.mode} and is {new.mode}: its output would hold rows of both kinds; "
            "choose a new query name and a new stream"
        )
    elif old.forgets != new.forgets:
        yield (
            "a watermark ended its windows and no longer does, or the reverse: rows would count "
            "that were late, or be late that counted"
        )


def _output_refusals(old: Stage, new: Stage) -> Iterator[str]:
    before = {output.stream: output for output in old.outputs}
    for after in new.outputs:
        known = before.get(after.stream)
        if known is None:
            yield _other_stream(old, new, after.stream)
            continue
        # What carries rows to a sink may change with a start: each batch has its rows' columns.
        fits = shape(known.schema) == shape(after.schema) or is_of_sink(after.stream)
        if is_inner(after.stream):  # readers take the columns that they need
            fits = set(shape(known.schema)) >= set(shape(after.schema))
        if not fits:
            yield (
                f"stream {after.stream} holds {show_schema(known.schema)} and would get "
                f"{show_schema(after.schema)}"
            )
        if known.partition_by != after.partition_by:
            yield (
                f"rows were partitioned by {', '.join(known.partition_by) or 'vertex'} and are by "
                f"{', '.join(after.partition_by) or 'vertex'}"
            )


def _changing_row_refusals(old: Stage, new: Stage) -> Iterator[str]:
    """Of a row that came by what was, another one would go by what is."""
    before, after = old.steps_of_changing_rows(), new.steps_of_changing_rows()
    if [spec.op for spec in before] == [spec.op for spec in after]:
        changed = [b.op for a, b in zip(before, after, strict=True) if not _does_the_same(a, b)]
    else:
        changed = list(dict.fromkeys(spec.op for spec in (*before, *after)))
    if changed:
        yield (
            f"rows that come and go pass {', '.join(changed)}, with other expressions than before: "
            "of those that came others would go; keep them, or choose a new query name and a new "
            "stream"
        )


def _does_the_same(old: OperatorSpec, new: OperatorSpec) -> bool:
    """Whether a step makes the same of a row, in the columns that both hand on."""
    if isinstance(old, ProjectSpec) and isinstance(new, ProjectSpec):
        known = dict(old.columns)
        return all(known.get(name, each) == each for name, each in new.columns)
    if isinstance(old, StaticJoinSpec) and isinstance(new, StaticJoinSpec):
        return replace(old, columns=()) == replace(new, columns=())
    return old == new


def _other_stream(old: Stage, new: Stage, stream: str) -> str:
    gone = [name for name in old.written if name not in new.written]
    if gone:
        return f"it wrote {', '.join(gone)} and now writes {stream}"
    return f"it did not write {stream} before, which would begin in the middle of its input"


def _twin_output_refusals(stored: Program, old: Stage, new: Program, fresh: Stage) -> Iterator[str]:
    """Of inner streams of one kind, only their order and what is done for them say which is which.

    So where that changes for one, it may be the rows of another that its reader has got so far;
    unless they lead to other results.
    """
    led_to, leads_to = results_of(stored.stages), results_of(new.stages)
    before = {output.stream: output for output in old.outputs}
    for after in fresh.outputs:
        known = before.get(after.stream)
        if known is None or not is_inner(after.stream):
            continue
        if old.way_to(known) == fresh.way_to(after):
            continue
        own = leads_to[after.stream]
        twins = [
            output.stream
            for output in old.outputs
            if is_inner(output.stream)
            and output.stream != after.stream
            and output_kind(old, output) == output_kind(old, known)
        ]
        apart = own <= led_to[after.stream] and not any(own & led_to[name] for name in twins)
        if twins and not apart:
            yield (
                f"{after.stream} is one of several streams that differ only in expressions, and "
                "these have changed: whose rows are whose cannot be told"
            )


def _ingress_refusals(stored: Program, old: Stage, new: Program, fresh: Stage) -> Iterator[str]:
    """Rows that come once and wait between two stages have passed what stood before them then.

    They go on as the stored query would have them if nothing behind has changed, and as the new one
    would if nothing before has. Where a step changed sides they might pass it twice, or never.
    """
    if [spec for port in old.ports for spec in port.front] == [
        spec for port in fresh.ports for spec in port.front
    ] and old.operators == fresh.operators:
        return
    for before, after in _writers_of_once(stored, old, new, fresh):
        if not _does_the_same_in_all(before, after):
            yield (
                f"rows of a source that cannot be read again wait for it, stored behind "
                f"{_steps(before)}, and steps on both sides of them have changed: change one side "
                "at a time"
            )


def _writers_of_once(
    stored: Program, old: Stage, new: Program, fresh: Stage
) -> Iterator[tuple[tuple[OperatorSpec, ...], tuple[OperatorSpec, ...]]]:
    """What rows of sources that come once pass before a stage reads them, then and now."""
    for stream in fresh.streams:
        if stream not in old.streams:
            continue
        ways = [
            next((s.way_to(o) for s, o in program.outputs_to(stream) if _comes_once(s)), None)
            for program in (stored, new)
        ]
        if ways[0] is not None and ways[1] is not None:
            yield ways[0], ways[1]


def _comes_once(stage: Stage) -> bool:
    return stage.source is not None and not stage.source.replayable


def _does_the_same_in_all(old: Sequence[OperatorSpec], new: Sequence[OperatorSpec]) -> bool:
    """Whether ways differ at most in which columns are handed on."""
    ways = [[spec for spec in way if not _only_chooses(spec)] for way in (old, new)]
    return len(ways[0]) == len(ways[1]) and all(map(_does_the_same, *ways))


def _only_chooses(spec: OperatorSpec) -> bool:
    return isinstance(spec, ProjectSpec) and all(
        isinstance(each, Column) and each.name == name for name, each in spec.columns
    )


def _steps(way: Sequence[OperatorSpec]) -> str:
    return ", ".join(spec.op for spec in way) or "nothing"


def _vertex_refusals(stored: Program, before: int, new: Program, after: int) -> Iterator[str]:
    count, wanted = len(stored.stage_vertices(before)), len(new.stage_vertices(after))
    if count != wanted:
        yield _other_parallelism(count, wanted)


def _other_parallelism(count: int, wanted: int) -> str:
    return (
        f"it ran as {count} vertices and would run as {wanted}: its state and positions are "
        f"those of {count}; keep the parallelism"
    )


def _changes(old: Stage, new: Stage) -> Iterator[str]:
    if old.source != new.source:
        yield "the source has other options"
    for one, other in zip(old.ports, new.ports, strict=True):
        if one.schema != other.schema:
            yield f"it reads {show_schema(other.schema)} instead of {show_schema(one.schema)}"
    yield from _changed_functions(old, new)
    known = {output.stream: output for output in old.outputs}
    ways = [
        (old.way_to(known[output.stream]), new.way_to(output), output.stream)
        for output in new.outputs
    ]
    for had, has, stream in ways:
        to = f" to {stream}" if len(ways) > 1 else ""
        yield from _way_changes(had, has, to)
    gone = [stream for stream in old.written if stream not in new.written]
    if gone:
        yield f"it no longer writes {', '.join(gone)}"
    if any(known[output.stream].schema != output.schema for output in new.outputs):
        yield "the output has other columns, or changed in what may be null"


def _way_changes(
    old: Sequence[OperatorSpec], new: Sequence[OperatorSpec], to: str
) -> Iterator[str]:
    before, after = [spec.op for spec in old], [spec.op for spec in new]
    if before != after:
        shown = [" → ".join(words) or "empty" for words in (before, after)]
        yield f"the chain{to} was {shown[0]} and is {shown[1]}"
    elif old != new:
        changed = [a.op for a, b in zip(old, new, strict=True) if a != b]
        yield f"other expressions in {', '.join(changed)}{to}"


def _changed_functions(old: Stage, new: Stage) -> Iterator[str]:
    """Python functions whose code is another: rows from here on are computed with it."""
    before, after = ([call for spec in _python(s) for call in spec.calls] for s in (old, new))
    for one, other in zip(before, after, strict=False):
        if one.digest != other.digest:
            yield f"Python function {other.text:.200} has changed: new rows are computed with it"
    for had, has in zip(_python(old), _python(new), strict=False):
        if isinstance(had, PythonGroupsSpec) and isinstance(has, PythonGroupsSpec):
            known = {each.name: each for each in had.variables}
            for each in has.variables:
                if known.get(each.name) != each:
                    yield f"state {each.name!r} of the function goes on as {_variable(each)}"


def _python(stage: Stage) -> list[PythonSpec | PythonRowsSpec | PythonGroupsSpec]:
    kinds = PythonSpec | PythonRowsSpec | PythonGroupsSpec
    return [spec for spec in stage.specs if isinstance(spec, kinds)]


def _keys(spec: AggregateSpec) -> str:
    return "(" + ", ".join(f"{name} = {key} {key.type}" for name, key in spec.keys) + ")"


def _window(spec: AggregateSpec) -> str:
    if spec.window is None:
        return "none"
    if isinstance(spec.window, SessionSpec):
        return f"sessions from {spec.window.begin} to {spec.window.end}"
    size, slide = show_duration(spec.window.size_us), show_duration(spec.window.slide_us)
    return f"{size} every {slide} of {spec.window.time}"


def _values(spec: AggregateSpec) -> str:
    return "(" + ", ".join(map(str, _kept(spec))) + ")"


def _kept(spec: AggregateSpec) -> tuple[object, ...]:
    """What a group keeps: running values and items."""
    return *accumulators_of(spec.aggregates), *collections_of(spec.aggregates)
