"""The figures as a picture: bars of rows per second by query, one colour per engine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

# Key of the figure, colour, name.
BARS = (
    ("cold_rows_per_s", "#9ecae1", "Penstock, first start"),
    ("rows_per_s", "#08519c", "Penstock"),
    ("spark_rows_per_s", "#e6550d", "Structured Streaming"),
    ("batch_rows_per_s", "#fdae6b", "Spark batch"),
    ("read_rows_per_s", "#bdbdbd", "reading alone (pyarrow)"),
)
BAR = 30  # wide
GAP = 26  # between queries
LEFT, TOP, PLOT_HEIGHT, BOTTOM = 58, 58, 300, 34
INK, LINE = "#333333", "#dddddd"

Figures = Mapping[str, Mapping[str, Any]]


def chart(queries: Figures) -> str:
    """An SVG; heights are logarithms, because the engines are far apart."""
    width = LEFT + len(queries) * (len(BARS) * BAR + GAP) + GAP
    height = TOP + PLOT_HEIGHT + BOTTOM
    decades = _decades(queries)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" fill="{INK}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *_legend(),
        *_axis(decades, width),
        *_groups(queries, decades),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _decades(queries: Figures) -> range:
    """Powers of ten from below the least figure to above the greatest."""
    rates = [f[key] for f in queries.values() for key, _, _ in BARS if key in f]
    return range(math.floor(math.log10(min(rates))), math.ceil(math.log10(max(rates))) + 1)


def _y(rate: float, decades: range) -> float:
    share = (math.log10(rate) - decades[0]) / max(1, decades[-1] - decades[0])
    return TOP + PLOT_HEIGHT * (1 - share)


def _legend() -> Iterator[str]:
    yield _text(
        LEFT,
        20,
        "rows per second from start() until all is in the sink, on a logarithmic axis",
        13,
        "start",
    )
    x = LEFT
    for _, colour, name in BARS:
        yield f'<rect x="{x}" y="31" width="11" height="11" fill="{colour}"/>'
        yield _text(x + 16, 41, name, 12, "start")
        x += 34 + round(6.6 * len(name))


def _axis(decades: range, width: int) -> Iterator[str]:
    for power in decades:
        y = _y(10**power, decades)
        yield f'<path d="M{LEFT} {y:.1f}H{width - GAP}" stroke="{LINE}"/>'
        yield _text(LEFT - 8, y + 4, _short(10**power), 12, "end")


def _groups(queries: Figures, decades: range) -> Iterator[str]:
    bottom = TOP + PLOT_HEIGHT
    x = LEFT + GAP
    for name, figures in queries.items():
        yield _text(x + len(BARS) * BAR / 2, bottom + 22, name, 14, "middle")
        for key, colour, _ in BARS:
            if key in figures:
                y = _y(figures[key], decades)
                shape = f'width="{BAR - 3}" height="{bottom - y:.1f}" fill="{colour}"'
                yield f'<rect x="{x}" y="{y:.1f}" {shape}/>'
                yield _text(x + BAR / 2 - 1.5, y - 4, _short(figures[key]), 10, "middle")
            x += BAR
        x += GAP


def _text(x: float, y: float, words: str, size: int, anchor: str) -> str:
    return f'<text x="{x:g}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{words}</text>'


def _short(rate: float) -> str:
    """Two or three digits: 950, 12 k, 1.4 M."""
    for unit, letter in ((1e6, " M"), (1e3, " k"), (1, "")):
        if rate >= unit:
            value = rate / unit
            return (
                f"{value:.1f}{letter}" if value < 9.95 and rate % unit else f"{value:.0f}{letter}"
            )
    return f"{rate:.1g}"
