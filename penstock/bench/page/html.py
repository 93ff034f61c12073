"""The page itself: one file of HTML with its pictures in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.bench.page import Taken

_STYLE = """
body { font-family: sans-serif; color: #222; max-width: 1120px; margin: 24px auto; padding: 0 16px }
table { border-collapse: collapse; margin: 10px 0; font-size: 13px }
th, td { border: 1px solid #ddd; padding: 3px 8px; text-align: right }
th:first-child, td:first-child { text-align: left }
.reached { color: #1a7f37 } .missed { color: #cf222e; font-weight: bold }
code { background: #f3f3f3; padding: 1px 4px }
figure { margin: 14px 0; overflow-x: auto }
"""


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, its first column the names."""
    head = "".join(f"<th>{escape(each.replace('_', ' '))}</th>" for each in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def paragraph(words: str) -> str:
    return f"<p>{escape(words)}</p>"


def details(summary: str, content: str) -> str:
    """What is there for who asks for it."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def page(taken: Sequence[Taken], facts: Mapping[str, str], moment: str) -> str:
    """All that was taken: the machine, the goals, and a section for each."""
    from penstock.bench.page.sections import SECTIONS  # noqa: PLC0415 (which is made with this)

    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><title>Penstock, measured</title>',
        f"<style>{_STYLE}</style></head><body>",
        "<h1>Penstock, measured</h1>",
        paragraph(
            f"Made {moment}. All figures come from the lines of JSON that the commands below have "
            "printed. A rate is of rows whose results are committed, unless it says otherwise."
        ),
        "<h2>The machine</h2>",
        table(["what", "it is"], [[name, words] for name, words in facts.items()]),
        "<h2>Goals</h2>",
        *_goals(taken),
    ]
    for each in taken:
        section = SECTIONS[each.section]
        parts += [f'<h2 id="{each.section}">{escape(section.title)}</h2>', paragraph(section.words)]
        parts.append(f"<p><code>{escape(each.command)}</code>{_load(each.found)}</p>")
        if each.found is None:
            parts.append(f'<p class="missed">Not measured: {escape(each.failure)}</p>')
            continue
        for shown in section.show(each.found[section.key]):
            parts.append(f"<figure>{shown}</figure>" if shown.startswith("<svg") else shown)
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _load(found: Mapping[str, Any] | None) -> str:
    if found is None or "load_before" not in found:
        return ""
    told = f"{found.get('cores', '?')} cores, load before {found['load_before']}"
    machine = found.get("machine")
    return escape(f" ({told}; on {machine})" if machine else f" ({told})")


def _goals(taken: Sequence[Taken]) -> Iterator[str]:
    reach = [
        (each.section, goal, reached)
        for each in taken
        for goal, reached in (each.found or {}).get("reach", {}).items()
    ]
    reached = sum(is_reached for _, _, is_reached in reach)
    yield paragraph(f"{reached} of {len(reach)} are reached.")
    rows = "".join(
        f'<tr><td>{escape(goal.replace("_", " "))}</td><td class="{_class(ok)}">{_class(ok)}</td>'
        f'<td><a href="#{section}">{section}</a></td></tr>'
        for section, goal, ok in reach
    )
    yield f"<table><tr><th>goal</th><th>it is</th><th>see</th></tr>{rows}</table>"


def _class(is_reached: bool) -> str:
    return "reached" if is_reached else "missed"
