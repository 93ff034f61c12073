"""Time windows, found again in the arithmetic that Spark's analyser has made of them.

`window(time, size, slide, start)` arrives as a struct of two times: a Project with one of them for
windows side by side, an Expand with one projection per window that a row falls into for windows
that overlap. It is compared part by part, every constant included, with what the analyser makes of
one family of windows. What differs anywhere is not taken for a window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.catalyst.jvm import JvmNode
from penstock.errors import ExpressionError
from penstock.expressions.tree import Expression, call, literal
from penstock.expressions.types import BIGINT

_PRINTED_TYPES: Mapping[str, str] = {
    "timestamp": "TimestampType",
    "timestamp_ntz": "TimestampNTZType",
}


@dataclass(frozen=True, slots=True)
class Span:
    """A family of windows: [k * slide + start, k * slide + start + size) for every k."""

    size_us: int
    slide_us: int
    start_us: int

    @property
    def overlaps(self) -> bool:
        return self.slide_us != self.size_us

    @property
    def is_even(self) -> bool:
        """Whether every time lies in the same number of windows."""
        return self.size_us % self.slide_us == 0


@dataclass(frozen=True, slots=True)
class PendingWindow:
    """A window that was asked for and waits for the aggregate that groups by it.

    `time` is an expression over the rows that carry it. `conditions` speak of the window alone and
    are checked once it is there; `bounded` says that the rows outside an uneven window were
    filtered out, as they must be.
    """

    time: Expression
    span: Span
    conditions: tuple[JvmNode, ...] = ()
    bounded: bool = False


def window_struct(window: PendingWindow) -> Expression:
    """The window that a time lies in as a value, for windows side by side."""
    span, micros = window.span, call("unix_micros", window.time)
    since = call("subtract", micros, literal(span.start_us, BIGINT)) if span.start_us else micros
    begin = call("subtract", micros, call("pmod", since, literal(span.slide_us, BIGINT)))
    end = call("add", begin, literal(span.size_us, BIGINT))
    times = [call("timestamp_micros", instant) for instant in (begin, end)]
    return call("struct", *times, names=["start", "end"])


# --- recognition ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Found:
    """One window of a family: its time, and the constants in its arithmetic."""

    time: JvmNode
    time_type: str
    size_us: int
    slide_us: int
    start_us: int
    back_us: int  # how far before the last window's start this one begins
    last_start: JvmNode


def tumbling_span(struct: JvmNode) -> tuple[Span, JvmNode] | None:
    """The windows side by side that a struct computes, with the time expression; else None."""
    found = _find(struct)
    if found is None or found.back_us != 0 or found.size_us != found.slide_us:
        return None
    return _span(found), found.time


def sliding_span(structs: Sequence[JvmNode]) -> tuple[Span, JvmNode] | None:
    """The overlapping windows that the projections of an Expand compute; else None.

    The first is taken apart. The others must print as it does, but for the constant that says how
    many slides before it they begin: taking each apart would cost seconds in a large family.
    """
    first = _find(structs[0])
    if first is None or len(structs) != -(-first.size_us // first.slide_us):
        return None
    shown = [str(struct.handle.toString()) for struct in structs]
    last_start = str(first.last_start.handle.toString())
    expected = [
        _printed(first, last_start, index * first.slide_us) for index in range(len(structs))
    ]
    if shown != expected:
        return None
    return _span(first), first.time


def _printed(found: _Found, last_start: str, back_us: int) -> str:
    """One window of a family as Catalyst prints it."""
    begin = f"({last_start} - {back_us})"
    to_time = f", LongType, {_PRINTED_TYPES[found.time_type]})"
    start = f"knownnullable(precisetimestampconversion({begin}{to_time})"
    end = f"knownnullable(precisetimestampconversion(({begin} + {found.size_us}){to_time})"
    return f"named_struct(start, {start}, end, {end})"


def _span(found: _Found) -> Span:
    # A start before or after the first slide names the same windows as one inside it.
    return Span(found.size_us, found.slide_us, found.start_us % found.slide_us)


def _find(struct: JvmNode) -> _Found | None:
    if struct.kind != "CreateNamedStruct" or len(struct.children) != 4:
        return None
    try:
        return _window(struct)
    except ExpressionError:
        return None


def _window(struct: JvmNode) -> _Found:
    """named_struct('start', start, 'end', start + size)."""
    start_name, start, end_name, end = _children(struct, "CreateNamedStruct", 4)
    _require(_text(start_name) == "start" and _text(end_name) == "end")
    begin, time_type = _as_time(start)
    finish, finish_type = _as_time(end)
    again, size = _children(finish, "Add", 2)
    _require(finish_type == time_type and _same(again, begin))
    last_start, back = _children(begin, "Subtract", 2)
    micros, since = _children(last_start, "Subtract", 2)
    time = _micros_of(micros, time_type)
    slide_us, start_us = _since_last_start(since, micros)
    size_us, back_us = _number(size), _number(back)
    _require(0 < slide_us <= size_us and back_us >= 0)
    return _Found(time, time_type, size_us, slide_us, start_us, back_us, last_start)


def _as_time(node: JvmNode) -> tuple[JvmNode, str]:
    """The microseconds under a conversion to a time, and the type of that time."""
    if node.kind == "KnownNullable":
        (node,) = node.children
    (micros,) = _children(node, "PreciseTimestampConversion", 1)
    time_type = _type_name(node, "toType")
    _require(_type_name(node, "fromType") == "long" and time_type in _PRINTED_TYPES)
    return micros, time_type


def _micros_of(node: JvmNode, time_type: str) -> JvmNode:
    (time,) = _children(node, "PreciseTimestampConversion", 1)
    _require(_type_name(node, "fromType") == time_type and _type_name(node, "toType") == "long")
    return time


def _since_last_start(node: JvmNode, micros: JvmNode) -> tuple[int, int]:
    """CASE WHEN r < 0 THEN r + slide ELSE r END with r = (micros - start) % slide."""
    condition, shifted, rest = _children(node, "CaseWhen", 3)
    compared, zero = _children(condition, "LessThan", 2)
    raised, slide = _children(shifted, "Add", 2)
    distance, modulus = _children(rest, "Remainder", 2)
    origin, start = _children(distance, "Subtract", 2)
    _require(_same(compared, rest) and _same(raised, rest) and _same(origin, micros))
    _require(_number(zero) == 0 and _number(slide) == _number(modulus))
    return _number(slide), _number(start)


def _children(node: JvmNode, kind: str, count: int) -> tuple[JvmNode, ...]:
    _require(node.kind == kind and len(node.children) == count)
    return node.children


def _same(one: JvmNode, other: JvmNode) -> bool:
    """Whether two expressions are equal in everything, types and exprIds included."""
    return bool(one.handle.equals(other.handle))


def _number(node: JvmNode) -> int:
    value: Any = node.read("value") if node.kind == "Literal" else None
    _require(isinstance(value, int) and not isinstance(value, bool))
    return int(value)


def _text(node: JvmNode) -> str:
    _require(node.kind == "Literal" and _type_name(node, "dataType") == "string")
    return str(node.read("value").toString())


def _type_name(node: JvmNode, field: str) -> str:
    return str(node.read(field).typeName())


def _require(holds: bool) -> None:
    if not holds:
        raise ExpressionError("this is not one of Spark's windows")
