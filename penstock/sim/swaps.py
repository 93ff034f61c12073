"""Attributes of classes and modules that are something else for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def swapped(*swaps: tuple[Any, str, Any]) -> Iterator[None]:
    """Replace attributes of classes or modules for a while."""
    with ExitStack() as stack:
        for owner, name, value in swaps:
            if name in vars(owner):
                stack.callback(setattr, owner, name, vars(owner)[name])
            else:  # inherited
                stack.callback(delattr, owner, name)
            setattr(owner, name, value)
        yield
