"""Text for people: aligned tables, sizes, times, and nothing that a terminal would obey."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from penstock.names import escape

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns under headings; numbers to the right. Cells are escaped."""
    cells = [[escape(_cell(value)) for value in row] for row in rows]
    right = [
        bool(rows) and all(isinstance(row[place], int | None) for row in rows)
        for place in range(len(headings))
    ]
    widths = [
        max(len(heading), *(len(row[place]) for row in cells), 0)
        for place, heading in enumerate(headings)
    ]
    lines = [_line(headings, widths, right), "  ".join("-" * width for width in widths)]
    lines += [_line(row, widths, right) for row in cells]
    return "\n".join(lines)


def facts(pairs: Sequence[tuple[str, object]]) -> str:
    """Names and values below each other. Values are escaped."""
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name:<{width}}  {escape(_cell(value))}".rstrip() for name, value in pairs)


def size(count: int) -> str:
    """Bytes in the unit that suits them."""
    value = float(count)
    for unit in _UNITS[:-1]:
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_UNITS[-1]}"


def moment(time_us: int | None) -> str:
    """A time in UTC, to the millisecond."""
    if not time_us:
        return "-"
    try:
        when = datetime.fromtimestamp(time_us / 1_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_us} us"
    return when.strftime("%Y-%m-%d %H:%M:%S.") + f"{when.microsecond // 1000:03d}Z"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = [
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    ]
    return "  ".join(padded).rstrip()
