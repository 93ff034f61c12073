"""What a program will do, as text: stages, state, what is persisted where, and guarantees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from penstock.expressions.durations import show_duration
from penstock.expressions.tree import Column, Expression, Literal
from penstock.expressions.types import Schema
from penstock.operators.specs import (
    AggregateCall,
    AggregateSpec,
    DeduplicateSpec,
    FilterSpec,
    GenerateSpec,
    JoinSide,
    JoinSpec,
    LimitSpec,
    NamedExpression,
    ObserveSpec,
    OperatorSpec,
    Order,
    OverSpec,
    PartialAggregateSpec,
    ProjectSpec,
    PythonCall,
    PythonGroupsSpec,
    PythonRowsSpec,
    PythonSpec,
    SessionSpec,
    SortSpec,
    SortStep,
    SparkColumn,
    SparkSpec,
    StatefulSpec,
    StaticJoinSpec,
    TableSpec,
    WatermarkSpec,
    WindowSpec,
    accumulators_of,
    collections_of,
    is_running,
    is_stateful,
)
from penstock.plan.event_time import instant_of
from penstock.plan.prune_columns import row_bytes
from penstock.stages.program import (
    ConnectorSpec,
    Port,
    Program,
    Stage,
    StageOutput,
    StreamSpec,
    is_fed,
    is_of_sink,
    observed_stream,
)
from penstock.stages.settings import Settings

Engine = Callable[[Expression, Schema], str]  # where an expression runs: "numba", "arrow"

_LABEL = 11
_DURABILITIES = {
    "synced": "on disk before a marker counts",
    "process": "survives crashes of processes; a power cut may take the newest records",
}


def explain(
    program: Program,
    engine: Engine | None = None,
    durability: str = "synced",
    sides: Mapping[str, str] | None = None,
) -> str:
    """The whole explanation.

    `engine` says where an expression over a schema runs; without it nothing is said about that.
    `durability` is the log's, `sides` what it holds of each static side.
    """
    blocks = [_heading(program)]
    blocks.extend(
        "\n".join(_stage_lines(program, index, stage, engine))
        for index, stage in enumerate(program.stages)
    )
    if sides:
        blocks.append("\n".join(["Static sides", *_aligned(iter(sides.items()))]))
    blocks.append("\n".join(["Persisted", *_aligned(_persisted(program))]))
    blocks.append("\n".join(["Guarantees", *_aligned(_guarantees(program, durability))]))
    return "\n\n".join(blocks) + "\n"


def _heading(program: Program) -> str:
    stages = _count(len(program.stages), "stage")
    vertices = _count(len(program.vertices), "vertex", "vertices")
    commits = f"commits at the latest every {_milliseconds(program.settings.commit_interval_ms)}"
    if (trigger_ms := program.settings.trigger_interval_ms) is not None:
        commits += f", the output once every {_milliseconds(trigger_ms)}"
    heading = f"Query {program.query}: {stages}, {vertices}, {commits}"
    if not program.settings.recovers:
        heading += f"\n{_UNSAFE[program.settings.guarantee]}"
    return heading


_UNSAFE = {
    "unmarked": "WITHOUT GUARANTEE (unmarked): rows are stored, state is not. Nothing is "
    "recovered: whatever dies ends the query, and it cannot be started again",
    "unsafe": "WITHOUT GUARANTEE (unsafe): neither state nor input is stored, and nothing is "
    "synced. Nothing is recovered: whatever dies ends the query, and it cannot be started again",
}


def _milliseconds(length_ms: int) -> str:
    return show_duration(length_ms * 1_000)


# --- stages ---------------------------------------------------------------------------------------


def _stage_lines(
    program: Program, index: int, stage: Stage, engine: Engine | None
) -> Iterator[str]:
    vertices = program.stage_vertices(index)
    more = f" … .{vertices[-1].index}" if len(vertices) > 1 else ""
    names = vertices[0].name + more
    where = (
        ", hosted by the driver, where Spark takes some ms a batch" if stage.is_on_driver else ""
    )
    yield f"Stage {stage.name}: {_count(len(vertices), 'vertex', 'vertices')}, {names}{where}"
    for port in stage.ports:
        yield from _labelled("reads", [_input_text(program, port)])
        yield from _labelled("columns", [_columns(port.schema)])
    yield from _labelled("chain", _chain_lines(stage, engine) or ["rows pass as they are"])
    yield from _labelled("watermark", [_watermark_text(program, stage)])
    yield from _labelled("state", _state_lines(program, stage))
    for output in stage.outputs:
        yield from _labelled("writes", [_output_text(program, output)])
        if output.steps:
            yield from _labelled("  after", _step_lines(output.steps, stage.schema, engine))


def _labelled(label: str, lines: list[str]) -> list[str]:
    return [
        f"  {label if number == 0 else '':<{_LABEL}}{line}" for number, line in enumerate(lines)
    ]


def _input_text(program: Program, port: Port) -> str:
    if port.source is not None:
        return f"source {port.source}"
    streams = [program.stream(name) for name in port.streams]
    return ", ".join(_stream_text(stream) for stream in streams)


def _stream_text(stream: StreamSpec) -> str:
    kind = "internal stream" if stream.role == "internal" else "stream"
    return f"{kind} {stream.name} ({_count(stream.substreams, 'substream')})"


def _output_text(program: Program, output: StageOutput) -> str:
    text = _stream_text(program.stream(output.stream))
    if output.partition_by:
        return f"{text} by hash of {', '.join(output.partition_by)}"
    return text


def _columns(schema: Schema) -> str:
    return ", ".join(f"{f.name} {f.type}" for f in schema)


def _chain_lines(stage: Stage, engine: Engine | None) -> list[str]:
    rows: list[tuple[str, str]] = []
    schemas: list[Schema] = []
    for number, port in enumerate(stage.ports):
        schema = port.schema
        before = f"port {number}: " if len(stage.ports) > 1 else ""
        for step in port.front:
            rows.append((before + _operator_text(step), _engine_text(step, schema, engine)))
            schema = step.output_schema(schema)
        schemas.append(schema)
    for spec in stage.operators:
        schema = tuple(field for each in schemas for field in each)
        rows.append((_operator_text(spec), _engine_text(spec, schema, engine)))
        schemas = [spec.output_schema(*schemas[: spec.ports if is_stateful(spec) else 1])]
    return _in_columns(rows)


def _step_lines(steps: Sequence[OperatorSpec], schema: Schema, engine: Engine | None) -> list[str]:
    rows: list[tuple[str, str]] = []
    for step in steps:
        rows.append((_operator_text(step), _engine_text(step, schema, engine)))
        schema = step.output_schema(schema)
    return _in_columns(rows)


def _in_columns(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max((len(text) for text, where in rows if where), default=0)
    return [f"{text:<{width}}  {where}".rstrip() if where else text for text, where in rows]


def _operator_text(spec: OperatorSpec) -> str:
    if isinstance(spec, FilterSpec):
        return f"filter {spec.condition}"
    if isinstance(spec, ProjectSpec):
        return f"project {show_named(spec.columns)}"
    if isinstance(spec, GenerateSpec):
        outer = ", rows without elements too" if spec.outer else ""
        return f"explode {spec.expression} as {spec.output}{outer}"
    if isinstance(spec, StaticJoinSpec):
        return show_static_join(spec)
    if isinstance(spec, WatermarkSpec):
        return f"watermark {spec.column}, {show_duration(spec.delay_us)} behind"
    if isinstance(spec, SparkSpec):
        return ", ".join(f"Spark's {each.text} as {each.result.name}" for each in spec.columns)
    if isinstance(spec, ObserveSpec):
        return f"observe {spec.name!r}: {_grouping(spec.partial)}"
    if isinstance(spec, PythonSpec):
        return ", ".join(
            f"Python {_call(each.call)} as {each.result.name}" for each in spec.columns
        )
    if isinstance(spec, PythonRowsSpec):
        names = ", ".join(field.name for field in spec.outputs)
        kind = "rows of" if spec.repeats else "batches of"
        return f"{kind} Python {_call(spec.call)} as {names}"
    if isinstance(spec, PythonGroupsSpec):
        by = f" of each {', '.join(spec.key_names)}" if spec.keys else ""
        names = ", ".join(field.name for field in spec.outputs)
        return f"groups{by} to Python {_call(spec.call)} as {names}"
    if isinstance(spec, PartialAggregateSpec):
        return f"partial aggregate {_grouping(spec)}, where it saves rows"
    if isinstance(spec, DeduplicateSpec):
        within = "" if spec.within_us is None else f" within {show_duration(spec.within_us)}"
        return f"first row of each {', '.join(spec.key_names)}{within}"
    if isinstance(spec, OverSpec):
        return _over_text(spec)
    if isinstance(spec, JoinSpec):
        return show_join(spec)
    if isinstance(spec, SortSpec):
        return f"whole result, {', then '.join(map(_sort_text, spec.steps))}"
    if isinstance(spec, LimitSpec):
        return f"first {_count(spec.rows, 'row')}, then none"
    if isinstance(spec, TableSpec):
        removed = "" if spec.removed is None else f", none where {spec.removed}"
        return f"newest row of each {', '.join(spec.key_names)}{removed}"
    if spec.merge_partials:
        return f"merge partials of {_calls(spec.aggregates)}, {_emits(spec)}"
    return f"aggregate {_grouping(spec)}, {_emits(spec)}"


def _call(call: PythonCall) -> str:
    """A function with what it is known by: whoever changes it sees another digest."""
    once = "" if call.deterministic else ", once for each row, before the marker"
    return f"{call.text} [{call.digest[:8]}{once}]"


def _emits(spec: AggregateSpec) -> str:
    if spec.changes:
        return "emits what goes and what comes"
    return f"{spec.mode} mode"


def _sort_text(step: SortStep) -> str:
    parts = []
    if step.order:
        parts.append(f"sorted by {_order_text(step.order)}")
    if step.offset:
        parts.append(f"without the first {_count(step.offset, 'row')}")
    if step.limit is not None:
        parts.append(f"at most {_count(step.limit, 'row')}")
    return ", ".join(parts) or "as it is"


def _order_text(order: tuple[Order, ...]) -> str:
    return ", ".join(f"{each.column}{' descending' if each.descending else ''}" for each in order)


def _over_text(spec: OverSpec) -> str:
    calls = ", ".join(
        f"{call.function}({', '.join(map(str, call.expressions()))}) as {call.name}"
        for call in spec.calls
    )
    order = _order_text(spec.order)
    where = f" of each {', '.join(spec.key_names)}" if spec.partition else ""
    return f"window functions {calls}{where}{f' ordered by {order}' if order else ''}"


def _grouping(spec: PartialAggregateSpec | AggregateSpec) -> str:
    text = _calls(spec.aggregates)
    if spec.keys:
        text += f" by {show_named(spec.keys)}"
    return text + (f" in {show_window(spec.window)}" if spec.window is not None else "")


def _calls(calls: tuple[AggregateCall, ...]) -> str:
    return ", ".join(show_call(call) for call in calls)


def _engine_text(spec: OperatorSpec, schema: Schema, engine: Engine | None) -> str:
    """Where the operator's expressions run; those outside the fused loop are named."""
    if spec.is_on_driver:
        return "[spark]"
    if isinstance(spec, PythonSpec | PythonRowsSpec | PythonGroupsSpec):
        return "[python]"
    if engine is None or (isinstance(spec, AggregateSpec) and spec.merge_partials):
        return ""
    found: dict[str, list[Expression]] = {}
    for expression in spec.expressions():
        if not isinstance(expression, Column | Literal):
            found.setdefault(engine(expression, schema), []).append(expression)
    if len(found) < 2:
        return f"[{next(iter(found))}]" if found else ""
    shown = [f"{where}: {', '.join(map(str, items))}" for where, items in found.items()]
    return f"[{'; '.join(shown)}]"


def _watermark_text(program: Program, stage: Stage) -> str:
    own = [spec for spec in stage.specs if isinstance(spec, WatermarkSpec)]
    if own:
        return f"greatest {own[-1].column} minus {show_duration(own[-1].delay_us)}"
    which = "least" if program.settings.watermark_policy == "min" else "furthest"
    return "none" if stage.source is not None else f"{which} of its writers' markers"


def _state_lines(program: Program, stage: Stage) -> list[str]:
    return [line for spec in stage.stateful for line in _state_of(spec, program.settings)] or [
        "none"
    ]


def _state_of_function(spec: PythonGroupsSpec, settings: Settings) -> list[str]:
    kept = [
        f"{each.kind} {each.name} ({', '.join(f'{f.name} {f.type}' for f in each.value)})"
        + ("" if each.ttl_ms is None else f" for {show_duration(each.ttl_ms * 1_000)}")
        for each in spec.variables
    ]
    columns = ", ".join(f"{key} {key.type}" for key in spec.keys) or "one group"
    if not kept:
        return ["none: the groups of a batch are complete when it is"]
    called = {
        "none": "kept until the function removes it",
        "processing": "the function is called again when the clock has come as far as it asked for",
        "event": "the function is called again when the watermark is as far as it asked for",
    }
    return [f"by {columns}", *kept, f"{_bound_text(settings)}, {called[spec.clock]}"]


def _state_of(spec: StatefulSpec, settings: Settings) -> list[str]:
    if isinstance(spec, DeduplicateSpec):
        by = "" if spec.within_us is None else f" by {show_duration(spec.within_us)}"
        forgotten = (
            f"keys are forgotten when the watermark has passed their {spec.time}{by}"
            if spec.forgets
            else "keys are never forgotten"
        )
        columns = ", ".join(f"{key} {key.type}" for key in spec.keys)
        return [f"by {columns}", f"{_bound_text(settings)}, {forgotten}"]
    if isinstance(spec, OverSpec):
        last = f", of each partition the last {spec.back:,} longer" if spec.back else ""
        best = f", the best {spec.best[1]:,} of a partition" if spec.best else ""
        waits = f"rows wait until the watermark has passed their {spec.time}{last}{best}"
        return ["whole rows", f"{_bound_text(settings)}, {waits}"]
    if isinstance(spec, PythonGroupsSpec):
        return _state_of_function(spec, settings)
    if isinstance(spec, JoinSpec):
        return [*_rows_of_sides(spec), _bound_text(settings)]
    if isinstance(spec, SortSpec):
        kept = "kept until they go, and read again at each commit"
        return ["all rows of the result", f"{_bound_text(settings)}, {kept}"]
    if isinstance(spec, LimitSpec):
        return ["how many rows have passed"]
    if isinstance(spec, TableSpec):
        columns = ", ".join(f"{key} {key.type}" for key in spec.keys)
        return [f"a row by {columns}", f"{_bound_text(settings)}, kept until it is removed"]
    keys = ", ".join(f"{name} {key.type}" for name, key in spec.keys) or "one group"
    pane = "" if spec.window is None else f", panes of {show_duration(spec.window.pane_us)}"
    if isinstance(spec.window, SessionSpec):
        pane = ", a row for each session"
    values = [f"{each} {each.type}" for each in accumulators_of(spec.aggregates)]
    if spec.by_rows:
        in_sessions = isinstance(spec.window, SessionSpec)
        anew = "every row, read again when one of its key comes or goes: "
        again = [f"{anew}{_calls(spec.aggregates)}"]
        pane = "" if spec.window is None else ", a row for each window"
        return [
            f"by {keys}{', a row for each session' if in_sessions else pane}",
            *(again if in_sessions else _changing_values(spec.aggregates)),
            f"{_bound_text(settings)}, {_closing(spec)}, or have no rows left",
        ]
    items = [f"items {each}" for each in collections_of(spec.aggregates)]
    return [
        f"by {keys}{pane}",
        f"values {', '.join(values) or 'none'}",
        *items,
        f"{_bound_text(settings)}, {_closing(spec)}",
    ]


def _changing_values(calls: tuple[AggregateCall, ...]) -> Iterator[str]:
    """How each result follows rows that come and go."""
    running = [call for call in calls if is_running(call)]
    others = [call for call in calls if not is_running(call)]
    if running:
        yield f"added to and subtracted from: {_calls(tuple(running))}"
    if others:
        kept = ", ".join(dict.fromkeys(str(call.argument) for call in others))
        yield f"every value of {kept}, read again when its group changes: {_calls(tuple(others))}"


def _rows_of_sides(spec: JoinSpec) -> Iterator[str]:
    for name, side, number in (("left", spec.left, 0), ("right", spec.right, 1)):
        if any(spec.tables) and not spec.tables[number]:
            yield f"{name} rows are not kept: they meet those that the table has when they come"
            continue
        keys = ", ".join(f"{key.of(number)} {key.of(number).type}" for key in spec.keys)
        if spec.tables[number]:
            yield f"{name} rows by {keys or 'nothing: all of them are looked at'}, while they last"
            continue
        yield f"{name} rows by {keys or 'nothing: all of them are looked at'}, {_kept(side)}"


def _kept(side: JoinSide) -> str:
    """What makes a join forget a row."""
    limits = [f"{limit.time}{_plus(limit.plus_us)}" for limit in side.limits]
    if not limits:
        return "never forgotten"
    first = limits[0] if len(limits) == 1 else f"the first of {', '.join(limits)}"
    return f"forgotten when the watermark has reached {first}"


def _plus(length_us: int) -> str:
    if not length_us:
        return ""
    return f" {'+' if length_us > 0 else '-'} {show_duration(abs(length_us))}"


def _bound_text(settings: Settings) -> str:
    return f"at most {settings.state_bytes_max / (1 << 20):,.0f} MiB per vertex"


def _closing(spec: AggregateSpec) -> str:
    """What makes the state forget a group."""
    if spec.window is None or spec.mode == "complete":
        return "groups are never forgotten"
    if not spec.forgets:
        return f"groups are never forgotten: no watermark speaks of {spec.window.event_time}"
    if isinstance(spec.window, SessionSpec):
        return f"sessions are forgotten when the watermark of {spec.window.begin} has passed them"
    return f"panes are forgotten when the watermark of {spec.window.time} has passed their windows"


# --- what is kept, what is promised ---------------------------------------------------------------


def _persisted(program: Program) -> Iterator[tuple[str, str]]:
    settings = program.settings
    for stream in program.streams:
        if is_fed(stream.name):
            yield f"S/{stream.name}", "brought in by Structured Streaming, trimmed once it is read"
        elif stream.role == "input":
            yield f"S/{stream.name}", "read only"
        elif stream.name == settings.late_stream:
            yield f"S/{stream.name}", "rows that came after their last window had closed"
        else:
            parts = _count(stream.substreams, "substream")
            reader = "the sink" if is_of_sink(stream.name) else "any reader"
            use = (
                f"between stages, {parts}"
                if stream.role == "internal"
                else f"result, for {reader}, {parts}, {settings.codec}"
            )
            once = [stage for stage, _ in program.outputs_to(stream.name) if _comes_once(stage)]
            if once and settings.guarantee != "unsafe":
                use = f"{use}; {_ingress_text(stream, once[0])}{_WHOLE[settings.push_up]}"
            if stream.name == observed_stream(program.query):
                use = "what was observed, until the query's progress has told it"
            yield f"S/{stream.name}", use
    if settings.dead_letter_stream is not None:
        yield f"S/{settings.dead_letter_stream}", "rows that failed an expression"
    for index, stage in enumerate(program.stages):
        vertices = program.stage_vertices(index)
        name = vertices[0].name if len(vertices) == 1 else f"{program.query}.{stage.name}.*"
        if not settings.recovers:
            yield f"T/{name}", "which rows are released: nothing resumes from there"
            continue
        again = stage.source is not None and stage.source.replayable
        offsets = ", offsets only as the source can be read again" if again else ""
        none = "" if stage.stateful else "; no state, so no checkpoint"
        yield f"T/{name}", f"markers: where to resume{offsets}{none}"
        if stage.stateful:
            every = settings.checkpoint_interval_commits
            age = _milliseconds(settings.checkpoint_interval_ms)
            yield (
                f"C/{name}",
                f"changes of the state, a checkpoint every {every:,} commits or {age}",
            )


_WHOLE = {True: "", False: ". pushUp is off, to measure: nothing is taken away before"}


def _comes_once(stage: Stage) -> bool:
    return stage.source is not None and not stage.source.replayable


def _ingress_text(stream: StreamSpec, stage: Stage) -> str:
    """What of a source that cannot be read again is persisted, and why it is that."""
    assert stage.source is not None
    (port,) = stage.ports
    before, after = row_bytes(port.schema), row_bytes(stream.schema)
    (output, *_) = (each for each in stage.outputs if each.stream == stream.name)
    filters = any(isinstance(spec, FilterSpec) for spec in stage.way_to(output))
    rows = "of rows that pass the filter" if filters else "of every row"
    return (
        f"of {before} bytes a row that {stage.source.connector} gives {after} are persisted, "
        f"{rows}: it cannot be read again"
    )


def _guarantees(program: Program, durability: str) -> Iterator[tuple[str, str]]:
    yield "log", f"{durability}: {_DURABILITIES.get(durability, 'as the log says')}"
    written = dict.fromkeys(name for stage in program.stages for name in stage.written)
    results = [stream for stream in written if program.stream(stream).role == "output"]
    for stream in results:
        promise = "exactly once: rows count when a marker covers them"
        if not program.settings.recovers:
            promise = "NOT exactly once: right only if nothing fails until the query ends"
        yield f"stream {stream}", promise
    if len(results) > 1:
        yield from _together(program, results)
    for stage in program.stages:
        if stage.source is not None and not stage.source.replayable:
            text = "cannot be read again, and nothing of it is kept"
            if program.settings.guarantee != "unsafe":
                text = _once_text(stage.source, stage.written[0])
            yield f"source {stage.source.connector}", text
    yield "late rows", _late_text(program)
    dead = program.settings.dead_letter_stream
    yield "bad rows", f"moved to stream {dead}, once" if dead else "stop the vertex with an error"


def _once_text(source: ConnectorSpec, stream: str) -> str:
    counts = f"rows count once they are in {stream}, from then on exactly once"
    if source.connector == "producers":
        return f"{counts}; until then their producers keep them, and send them again"
    lost = "what was received and not committed is lost in a crash"
    return f"cannot be read again: {counts}; {lost}"


def _together(program: Program, results: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Which results commit at once, and which do not."""
    of_writers: dict[tuple[str, ...], list[str]] = {}
    for stream in results:
        stages = tuple(stage.name for stage, _ in program.outputs_to(stream))
        of_writers.setdefault(stages, []).append(stream)
    for stages, streams in of_writers.items():
        if len(streams) > 1:
            yield (
                "together",
                f"{', '.join(streams)}: each vertex of {', '.join(stages)} commits them with one "
                "marker; up to any marker they show the same rows of the input",
            )
    if len(of_writers) > 1:
        groups = ["+".join(streams) for streams in of_writers.values()]
        yield (
            "apart",
            f"{' | '.join(groups)}: different stages write these, each with markers of its own; "
            "one may show more of the input than another",
        )


def _late_text(program: Program) -> str:
    if not any(spec.drops_late for stage in program.stages for spec in stage.stateful):
        return "none: no watermark ends a window"
    late = program.settings.late_stream
    return f"kept in stream {late}" if late else "counted and dropped"


def _aligned(rows: Iterator[tuple[str, str]]) -> list[str]:
    found = list(rows)
    width = max(len(label) for label, _ in found)
    return [f"  {label:<{width}}  {text}" for label, text in found]


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


# --- operators in words ---------------------------------------------------------------------------


def show_named(columns: tuple[NamedExpression, ...]) -> str:
    """Output columns: a bare name where a column is passed on."""
    return ", ".join(
        name if isinstance(item, Column) and item.name == name else f"{item} as {name}"
        for name, item in columns
    )


def show_window(window: WindowSpec | SessionSpec) -> str:
    """A window in words."""
    if isinstance(window, SessionSpec):
        return f"sessions from {window.begin} to {window.end} as {window.output}"
    if (instant := instant_of(window)) is not None:
        return f"each {instant}"
    text = f"{window.time} {show_duration(window.size_us)}"
    if window.slide_us != window.size_us:
        text += f" every {show_duration(window.slide_us)}"
    if window.start_us:
        text += f" from {show_duration(window.start_us)}"
    return f"{text} as {window.output}"


def show_join(spec: JoinSpec) -> str:
    """A join: its keys, and what else must hold."""
    signs = {True: "<=>", False: "="}
    keys = [f"{key.left} {signs[key.null_safe]} {key.right}" for key in spec.keys]
    text = f"{spec.how} join" + (f" on {', '.join(keys)}" if keys else "")
    text += "" if spec.match.condition is None else f" where {spec.match.condition}"
    return text + _decided_text(spec.decided)


def _decided_text(decided: tuple[SparkColumn, ...]) -> str:
    return "".join(f", if Spark's {each.text} holds" for each in decided)


def show_call(call: AggregateCall) -> str:
    """An aggregate with its name."""
    arguments = ", ".join(map(str, call.expressions())) or "*"
    nulls = " ignore nulls" if call.ignores_nulls else ""
    distinct = "distinct " if call.is_distinct else ""
    return f"{call.function}({distinct}{arguments}){nulls} as {call.name}"


def show_static_join(spec: StaticJoinSpec) -> str:
    """A join with a static side in words."""
    equal = [f"{k.left} {'<=>' if k.null_safe else '='} its {k.right}" for k in spec.keys]
    on = f" on {' and '.join(equal)}" if equal else " with every row"
    where = "" if spec.condition is None else f" where {spec.condition}"
    adds = f", adds {show_named(spec.columns)}" if spec.adds_columns and spec.columns else ""
    return f"{spec.how} join {spec.side}{on}{where}{_decided_text(spec.decided)}{adds}"
