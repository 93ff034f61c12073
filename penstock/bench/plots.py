"""Pictures of figures as SVG: bars by group, lines over time, points between two axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

INK, LINE, MARK = "#333333", "#dddddd", "#cc0000"
TOP, PLOT_HEIGHT, BOTTOM = 82, 300, 46
LEFT, RIGHT = 74, 26
BAR_WIDTHS = (34, 12)  # the widest, the least
GAP = 18  # between groups
WIDTH, WIDTH_MIN = 900, 620
TICKS = 6  # of an axis that is not logarithmic, about
CHARACTER = 6.7  # wide, of the legend's letters


class Bar(NamedTuple):
    """One bar of each group."""

    key: str
    colour: str
    name: str


class Series(NamedTuple):
    """Points that belong together."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]


class Axis(NamedTuple):
    """What an axis says, and whether its steps are factors."""

    words: str
    is_log: bool = False


class _Scale:
    """From values to shares of an axis."""

    def __init__(self, values: Iterable[float], is_log: bool) -> None:
        known = [value for value in values if not is_log or value > 0] or [1.0]
        self.is_log = is_log
        if is_log:
            low = math.floor(math.log10(min(known)))
            high = max(low + 1, math.ceil(math.log10(max(known))))
            self.ticks = [10.0**power for power in range(low, high + 1)]
        else:
            least = min(*known, 0.0)
            step = _step(max(*known, 0.0) - least)
            low = math.floor(least / step)
            high = max(low + 1, math.ceil(max(known) / step))
            self.ticks = [number * step for number in range(low, high + 1)]

    def share(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        if self.is_log:
            low, high, value = (math.log10(max(each, low)) for each in (low, high, value))
        return min(1.0, max(0.0, (value - low) / (high - low)))


def _step(span: float) -> float:
    """A round number of which some make the span."""
    rough = max(span, 1e-9) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)


def bars(
    words: str,
    groups: Mapping[str, Mapping[str, float]],
    of_group: Sequence[Bar],
    *,
    is_log: bool = True,
) -> str:
    """Bars side by side in each group, with their figures above them."""
    of_group = [bar for bar in of_group if any(bar.key in each for each in groups.values())]
    values = [each[bar.key] for each in groups.values() for bar in of_group if bar.key in each]
    scale = _Scale(values, is_log)
    room = (WIDTH - LEFT - RIGHT) / max(1, len(groups)) - GAP
    widest, least = BAR_WIDTHS
    bar_width = min(widest, max(least, room / max(1, len(of_group))))
    group_width = bar_width * len(of_group) + GAP
    width = max(round(LEFT + group_width * len(groups) + GAP + RIGHT), WIDTH_MIN)
    parts = [*_frame(words, width, [(b.name, b.colour) for b in of_group]), *_y_axis(scale, width)]
    bottom = TOP + PLOT_HEIGHT
    for number, (name, figures) in enumerate(groups.items()):
        x = LEFT + GAP / 2 + number * group_width
        parts.append(_text(x + (group_width - GAP) / 2, bottom + 20, name, 13, "middle"))
        for bar in of_group:
            if bar.key in figures:
                ends = (_y(scale, figures[bar.key]), bottom if is_log else _y(scale, 0.0))
                y = min(ends)
                shape = f'width="{bar_width - 2:.1f}" height="{max(ends) - y:.1f}"'
                parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" {shape} fill="{bar.colour}"/>')
                parts.append(_above(x + bar_width / 2 - 1, y, short(figures[bar.key]), bar_width))
            x += bar_width
    return _svg(width, parts)


def _above(x: float, y: float, figure: str, room: float) -> str:
    """A figure above its bar, upright where it is narrow."""
    if CHARACTER * len(figure) * 0.8 <= room:
        return _text(x, y - 4, figure, 10, "middle")
    place = f'transform="translate({x + 3.5:.1f} {y - 4:.1f}) rotate(-90)"'
    return f'<text {place} font-size="9">{escape(figure)}</text>'


def lines(
    words: str,
    series: Sequence[Series],
    x_axis: Axis,
    y_axis: Axis,
    *,
    marks: Sequence[tuple[float, str]] = (),
) -> str:
    """Lines, with moments marked across them."""
    return _plot(words, series, x_axis, y_axis, marks, is_line=True)


def points(words: str, series: Sequence[Series], x_axis: Axis, y_axis: Axis) -> str:
    """Points, those of a series in one colour."""
    return _plot(words, series, x_axis, y_axis, (), is_line=False)


def _plot(
    words: str,
    series: Sequence[Series],
    x_axis: Axis,
    y_axis: Axis,
    marks: Sequence[tuple[float, str]],
    *,
    is_line: bool,
) -> str:
    every = [point for each in series for point in each.points]
    xs = _Scale([*(x for x, _ in every), *(x for x, _ in marks)], x_axis.is_log)
    ys = _Scale([y for _, y in every], y_axis.is_log)
    named = [(each.name, each.colour) for each in series] if len(series) > 1 else []
    parts = [*_frame(words, WIDTH, named), *_y_axis(ys, WIDTH)]
    parts += [*_x_axis(xs, x_axis.words), *_marks(marks, xs)]
    parts.append(_text(LEFT - 8, TOP - 8, y_axis.words, 11, "start"))
    for each in series:
        places = [(_x(xs, x), _y(ys, y)) for x, y in each.points]
        if is_line:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            parts.append(
                f'<polyline points="{path}" fill="none" stroke="{each.colour}" stroke-width="1.6"/>'
            )
        else:
            parts += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{each.colour}" opacity="0.75"/>'
                for x, y in places
            ]
    return _svg(WIDTH, parts)


def _x(scale: _Scale, value: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * scale.share(value)


def _y(scale: _Scale, value: float) -> float:
    return TOP + PLOT_HEIGHT * (1 - scale.share(value))


def _x_axis(scale: _Scale, words: str) -> Iterator[str]:
    bottom = TOP + PLOT_HEIGHT
    for tick in scale.ticks:
        x = _x(scale, tick)
        yield f'<path d="M{x:.1f} {bottom}v5" stroke="{INK}"/>'
        yield _text(x, bottom + 18, short(tick), 12, "middle")
    yield _text((LEFT + WIDTH - RIGHT) / 2, bottom + 36, words, 12, "middle")


def _marks(marks: Sequence[tuple[float, str]], scale: _Scale) -> Iterator[str]:
    """Moments, their words below each other so that neighbours can be read."""
    for number, (at, word) in enumerate(sorted(marks)):
        x = _x(scale, at)
        dashes = f'stroke="{MARK}" stroke-dasharray="4 3"'
        yield f'<path d="M{x:.1f} {TOP}v{PLOT_HEIGHT}" {dashes}/>'
        is_right = x > WIDTH - 190
        place = x - 5 if is_right else x + 5
        yield _text(place, TOP + 13 + 15 * number, word, 11, "end" if is_right else "start", MARK)


def _y_axis(scale: _Scale, width: float) -> Iterator[str]:
    for tick in scale.ticks:
        y = _y(scale, tick)
        yield f'<path d="M{LEFT} {y:.1f}H{width - RIGHT}" stroke="{LINE}"/>'
        yield _text(LEFT - 8, y + 4, short(tick), 12, "end")


def _frame(words: str, width: float, named: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield f'<rect width="{width}" height="{TOP + PLOT_HEIGHT + BOTTOM}" fill="white"/>'
    yield _text(LEFT - 8, 18, words, 13, "start")
    x, y = LEFT - 8.0, 28
    for name, colour in named:
        if x + _entry_width(name) > width and x > LEFT:
            x, y = LEFT - 8.0, y + 17
        yield f'<rect x="{x:.1f}" y="{y}" width="11" height="11" fill="{colour}"/>'
        yield _text(x + 16, y + 10, name, 12, "start")
        x += _entry_width(name)


def _entry_width(name: str) -> float:
    return 32 + CHARACTER * len(name)


def _svg(width: float, parts: Sequence[str]) -> str:
    height = TOP + PLOT_HEIGHT + BOTTOM
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'width="{width:.0f}" height="{height}" font-family="sans-serif" fill="{INK}">'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def _text(x: float, y: float, words: str, size: int, anchor: str, colour: str = INK) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"'
    return f"<text {place}>{escape(words)}</text>"


def short(value: float) -> str:
    """Two or three digits: 0.25, 950, 12 k, 1.4 M."""
    for unit, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= unit:
            share = value / unit
            return (
                f"{share:.1f}{letter}" if share < 9.95 and value % unit else f"{share:.0f}{letter}"
            )
    if value == round(value):
        return f"{value:.0f}"
    return f"{value:.3g}"
