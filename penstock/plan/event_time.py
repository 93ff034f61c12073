"""Event time through a plan: of which columns the watermark speaks behind each operator."""

from __future__ import annotations

from penstock.expressions.tree import Call, Column, Expression, Literal
from penstock.operators.specs import (
    PANE_COLUMN,
    AggregateSpec,
    OperatorSpec,
    OverSpec,
    PartialAggregateSpec,
    ProjectSpec,
    PythonGroupsSpec,
    PythonRowsSpec,
    SessionSpec,
    SortSpec,
    TableSpec,
    WatermarkSpec,
    WindowSpec,
)

EventTime = tuple[str, ...]


def event_time_after(spec: OperatorSpec, before: EventTime) -> EventTime:
    """The columns that the watermark speaks of behind an operator."""
    if isinstance(spec, WatermarkSpec):
        return (spec.column,)
    if isinstance(spec, ProjectSpec):
        return tuple(name for name, item in spec.columns if carries_time(item, before))
    if isinstance(spec, PartialAggregateSpec):
        return (PANE_COLUMN,) if watermark_ends(spec.window, before) else ()
    if isinstance(spec, AggregateSpec):
        # Rows of a window may come and go until it ends, and all do before the watermark.
        return (spec.window.output,) if spec.forgets and spec.window is not None else ()
    if isinstance(spec, OverSpec):  # its rows are behind the watermark, but for the windows' ends
        return () if spec.is_running or spec.after_us else (spec.time.name,)
    if isinstance(spec, PythonGroupsSpec):
        return () if spec.event_time is None else (spec.event_time,)
    if isinstance(spec, PythonRowsSpec) and not spec.repeats:
        return ()  # who knows what it does to times
    return () if isinstance(spec, SortSpec | TableSpec) else before


def watermark_ends(
    window: WindowSpec | SessionSpec | None, before: EventTime, merge_partials: bool = False
) -> bool:
    """Whether the watermark speaks of a window's time; else no group of it ever ends."""
    if window is None:
        return False
    if merge_partials:
        return PANE_COLUMN in before
    if isinstance(window, SessionSpec) and carries_time(window.end, before):
        return True  # sessions that were over, put together again
    time = instant_of(window)
    return carries_time(window.event_time if time is None else time, before)


def instant_of(window: WindowSpec | SessionSpec) -> Expression | None:
    """The time that groups are of, where each is the window of the microsecond that ends there."""
    if not isinstance(window, WindowSpec) or window.size_us != 1:
        return None
    return _before_last_instant(window.time) if isinstance(window.time, Call) else None


def carries_time(expression: Expression, event_time: EventTime) -> bool:
    """Whether what the watermark says of its columns holds for what an expression gives.

    It holds for the column itself and for the end of a window that the watermark has closed; also
    for a microsecond before that end, which is the last instant inside the window, and for the end
    of the window that a time lies in. A window's start lies behind the watermark, and so may
    anything else that is computed from a time.
    """
    if isinstance(expression, Column):
        return expression.name in event_time
    if not isinstance(expression, Call):
        return False
    if _is_end(expression, event_time):
        return True
    if expression.function == "struct":  # the same windows, shown with another start
        members = dict(zip(expression.option("names"), expression.args, strict=True))
        return set(members) == {"start", "end"} and carries_time(members["end"], event_time)
    return _is_end(_before_last_instant(expression), event_time)


def _is_end(expression: Expression | None, event_time: EventTime) -> bool:
    if isinstance(expression, Call) and expression.function == "timestamp_micros":
        size_us, micros = unmoved(expression.args[0])
        start = window_start(micros)
        return start is not None and size_us >= start[1] and carries_time(start[0], event_time)
    return (
        isinstance(expression, Call)
        and expression.function == "get_field"
        and expression.option("name") == "end"
        and carries_time(expression.args[0], event_time)
    )


def _before_last_instant(expression: Call) -> Expression | None:
    """x of timestamp_micros(unix_micros(x) - 1), or + -1."""
    if expression.function != "timestamp_micros":
        return None
    moved_us, micros = unmoved(expression.args[0])
    if moved_us != -1 or not isinstance(micros, Call) or micros.function != "unix_micros":
        return None
    return micros.args[0]


def unmoved(micros: Expression) -> tuple[int, Expression]:
    """How far microseconds were moved by constants, and what they were before."""
    moved_us = 0
    while isinstance(micros, Call) and micros.function in ("add", "subtract"):
        value, by = micros.args
        if not isinstance(by, Literal) or not isinstance(by.value, int):
            break
        moved_us += by.value if micros.function == "add" else -by.value
        micros = value
    return moved_us, micros


def window_start(micros: Expression) -> tuple[Expression, int] | None:
    """The time x and the size of windows, of `x - pmod(x - offset, size)`."""
    if not isinstance(micros, Call) or micros.function != "subtract":
        return None
    time, into = micros.args
    if not isinstance(into, Call) or into.function != "pmod":
        return None
    since, size = into.args
    if unmoved(since)[1] != time or not isinstance(size, Literal):
        return None
    if not isinstance(time, Call) or time.function != "unix_micros":
        return None
    return (time.args[0], size.value) if isinstance(size.value, int) else None
