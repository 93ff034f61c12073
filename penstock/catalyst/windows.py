"""Time windows, found again in the arithmetic that Spark's analyser has made of them.

`window(time, size, slide, start)` arrives as a struct of two times: a Project with one of them for
windows side by side, an Expand with one projection per window that a row falls into for windows
that overlap. It is compared part by part, every constant included, with what the analyser makes of
one family of windows. What differs anywhere is not taken for a window.
"""

from __future__ import annotations

import json
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
class _Tree:
    """An expression as Catalyst's JSON shows it."""

    kind: str
    fields: Mapping[str, Any]
    children: tuple[_Tree, ...]

    def same(self, other: _Tree) -> bool:
        return (
            self.kind == other.kind
            and self.fields == other.fields
            and len(self.children) == len(other.children)
            and all(a.same(b) for a, b in zip(self.children, other.children, strict=True))
        )


@dataclass(frozen=True)
class _Found:
    """One window of a family: its time, and the constants in its arithmetic."""

    time: _Tree
    time_type: str
    size_us: int
    slide_us: int
    start_us: int
    back_us: int  # how far before the last window's start this one begins


def tumbling_span(struct: JvmNode) -> tuple[Span, JvmNode] | None:
    """The windows side by side that a struct computes, with the time expression; else None."""
    found = _find(struct)
    if found is None or found.back_us != 0 or found.size_us != found.slide_us:
        return None
    return _span(found), _time_node(struct)


def sliding_span(structs: Sequence[JvmNode]) -> tuple[Span, JvmNode] | None:
    """The overlapping windows that the projections of an Expand compute; else None.

    The first is taken apart. The others must print as it does, but for the constant that says how
    many slides before it they begin: taking each apart would cost seconds in a large family.
    """
    first = _find(structs[0])
    if first is None or len(structs) != -(-first.size_us // first.slide_us):
        return None
    shown = [str(struct.handle.toString()) for struct in structs]
    last_start = _begin_node(structs[0]).children[0]
    for index, text in enumerate(shown):
        expected = _printed(first, str(last_start.handle.toString()), index * first.slide_us)
        if text != expected:
            return None
    return _span(first), _time_node(structs[0])


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
        return _window(_parse(json.loads(struct.handle.toJSON())))
    except ExpressionError:
        return None


def _parse(nodes: list[dict[str, Any]]) -> _Tree:
    """The tree of a list in which parents stand before their children."""
    remaining = iter(nodes)

    def take() -> _Tree:
        node = next(remaining)
        count = node["num-children"]
        kind = str(node["class"]).rsplit(".", 1)[-1]
        fields = {k: v for k, v in node.items() if k not in ("class", "num-children")}
        return _Tree(kind, fields, tuple(take() for _ in range(count)))

    return take()


def _window(struct: _Tree) -> _Found:
    """named_struct('start', start, 'end', start + size)."""
    start_name, start, end_name, end = _children(struct, "CreateNamedStruct", 4)
    _require(_text(start_name) == "start" and _text(end_name) == "end")
    begin, time_type = _as_time(start)
    finish, finish_type = _as_time(end)
    again, size = _children(finish, "Add", 2)
    _require(finish_type == time_type and again.same(begin))
    last_start, back = _children(begin, "Subtract", 2)
    micros, since = _children(last_start, "Subtract", 2)
    time = _micros_of(micros, time_type)
    slide_us, start_us = _since_last_start(since, micros)
    size_us, back_us = _number(size), _number(back)
    _require(0 < slide_us <= size_us and back_us >= 0)
    return _Found(time, time_type, size_us, slide_us, start_us, back_us)


def _as_time(tree: _Tree) -> tuple[_Tree, str]:
    """The microseconds under a conversion to a time, and the type of that time."""
    if tree.kind == "KnownNullable":
        (tree,) = tree.children
    (micros,) = _children(tree, "PreciseTimestampConversion", 1)
    _require(tree.fields["fromType"] == "long" and tree.fields["toType"] in _PRINTED_TYPES)
    return micros, str(tree.fields["toType"])


def _micros_of(tree: _Tree, time_type: str) -> _Tree:
    (time,) = _children(tree, "PreciseTimestampConversion", 1)
    _require(tree.fields["fromType"] == time_type and tree.fields["toType"] == "long")
    return time


def _since_last_start(tree: _Tree, micros: _Tree) -> tuple[int, int]:
    """CASE WHEN r < 0 THEN r + slide ELSE r END with r = (micros - start) % slide."""
    condition, shifted, rest = _children(tree, "CaseWhen", 3)
    compared, zero = _children(condition, "LessThan", 2)
    raised, slide = _children(shifted, "Add", 2)
    distance, modulus = _children(rest, "Remainder", 2)
    origin, start = _children(distance, "Subtract", 2)
    _require(compared.same(rest) and raised.same(rest) and origin.same(micros))
    _require(_number(zero) == 0 and _number(slide) == _number(modulus))
    return _number(slide), _number(start)


def _children(tree: _Tree, kind: str, count: int) -> tuple[_Tree, ...]:
    _require(tree.kind == kind and len(tree.children) == count)
    return tree.children


def _number(tree: _Tree) -> int:
    _require(tree.kind == "Literal" and tree.fields["dataType"] in ("long", "integer"))
    return int(tree.fields["value"])


def _text(tree: _Tree) -> str:
    _require(tree.kind == "Literal" and tree.fields["dataType"] == "string")
    return str(tree.fields["value"])


def _require(holds: bool) -> None:
    if not holds:
        raise ExpressionError("this is not one of Spark's windows")


def _begin_node(struct: JvmNode) -> JvmNode:
    """The microseconds at which a window begins, inside a struct that has been recognised."""
    conversion = struct.children[1]
    if conversion.kind == "KnownNullable":
        conversion = conversion.children[0]
    return conversion.children[0]


def _time_node(struct: JvmNode) -> JvmNode:
    """The time expression inside a struct that has been recognised."""
    micros = _begin_node(struct).children[0].children[0]
    return micros.children[0]
