"""What a Python function is known by: the same for the same function, another for another."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from penstock.catalyst.function_digest import digest_of
from tests.operators.python_code import code


def digest(function: Callable[..., Any], kind: int = 100) -> str:
    return digest_of(code(function, kind), lambda variable: b"")


def made(body: str, name: str = "f", lines: int = 0) -> Callable[..., Any]:
    """A function of a program of its own, which stands some lines further down there."""
    module: dict[str, Any] = {"__name__": "__main__"}
    text = "\n" * lines + textwrap.dedent(body)
    exec(compile(text, f"cell_{lines}.py", "exec"), module)
    found: Callable[..., Any] = module[name]
    return found


BODY = """
    import math
    factor = {factor}
    def helper(n):
        return math.floor(n * factor)
    def f(n, more=1):
        return [helper(each) for each in range(n + more)]
"""


def test_where_a_function_stands_does_not_matter() -> None:
    assert digest(made(BODY.format(factor=3))) == digest(made(BODY.format(factor=3), lines=40))


@pytest.mark.parametrize(
    ("old", "new"),
    [("n * factor", "n + factor"), ("{factor}", "4"), ("more=1", "more=2"), ("math.floor", "int")],
)
def test_what_it_does_matters(old: str, new: str) -> None:
    before = made(BODY.format(factor=3))
    after = made(BODY.replace(old, new).format(factor=3))
    assert digest(before) != digest(after)


def test_how_it_is_called_matters() -> None:
    plain = code(made(BODY.format(factor=3)))
    for other in (
        replace(plain, eval_type=101),
        replace(plain, arguments=("n",)),
        replace(plain, settings=(("spark.sql.session.timeZone", "Asia/Tokyo"),)),
    ):
        assert digest_of(plain, lambda _: b"") != digest_of(other, lambda _: b"")


def test_another_process_finds_the_same() -> None:
    """Classes too, which have a random number when they are pickled."""
    program = """
        from penstock.catalyst.function_digest import digest_of
        from tests.operators.python_code import code
        class Rows:
            limit = 3
            def eval(self, n):
                for each in range(self.limit):
                    yield n, {"a": each, "b": {4, 5}}
        def f(n):
            return Rows().eval(n)
        print(digest_of(code(Rows, 300), None), digest_of(code(f), None))
    """
    found = {
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            capture_output=True, check=True, text=True,
        ).stdout
        for _ in range(2)
    }  # fmt: skip
    assert len(found) == 1
    assert len(set(found.pop().split())) == 2
