"""Cases as text: a title, a plan, and what it becomes. Adding one needs no Python."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "cases"


@dataclass(frozen=True)
class Case:
    title: str
    before: str
    after: str

    def __str__(self) -> str:
        return self.title


def read_cases(path: Path) -> list[Case]:
    """The cases of a file: '# title', 'before:' and a text, 'after:' and a text."""
    cases = []
    for block in ("\n" + path.read_text(encoding="utf-8")).split("\n# ")[1:]:
        title, _, rest = block.partition("\n")
        head, _, after = rest.partition("\nafter:\n")
        intro, _, before = head.partition("before:\n")
        assert intro.strip() == "", f"{path.name}: text before 'before:' in case {title!r}"
        assert before.strip(), f"{path.name}: case {title!r} has no plan"
        assert after.strip(), f"{path.name}: case {title!r} has no result"
        cases.append(Case(title.strip(), before.strip() + "\n", after.strip() + "\n"))
    return cases
