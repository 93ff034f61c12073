"""Catalyst's trees as they stand in the JVM: plans and expressions, read a node at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from py4j.java_gateway import get_field
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

TEXT_CHARACTERS_MAX = 300
_PYTHON_LINE = re.compile(r"[^()]+:\d+")


def scala_items(sequence: Any) -> list[Any]:
    """The elements of a Scala sequence."""
    return [sequence.apply(index) for index in range(sequence.size())]


def scala_set(elements: Any) -> Iterator[Any]:
    """The elements of a Scala set, in no order that means anything."""
    iterator = elements.iterator()
    while iterator.hasNext():
        yield iterator.next()


def scala_map(entries: Any) -> dict[str, str]:
    """A Scala map of texts."""
    return {str(pair._1()): str(pair._2()) for pair in scala_set(entries)}


def scala_option(option: Any) -> Any:
    """What an Option holds, or None."""
    return option.get() if option.isDefined() else None


def java_number(holder: Any, field: str) -> int:
    """A public field of a Java object."""
    return int(get_field(holder, field))


class JvmNode:
    """One node of a Catalyst tree. Everything is asked for once: asking is a call to the JVM."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    @cached_property
    def kind(self) -> str:
        """The simple name of its class."""
        return str(self.handle.nodeName())

    @cached_property
    def children(self) -> tuple[JvmNode, ...]:
        return tuple(JvmNode(child) for child in scala_items(self.handle.children()))

    @cached_property
    def output(self) -> tuple[JvmNode, ...]:
        """The attributes that a plan gives."""
        return self.nodes("output")

    @cached_property
    def expr_id(self) -> int:
        """The number by which Catalyst tells attributes apart, whatever their names."""
        return int(self.handle.exprId().id())

    def read(self, field: str) -> Any:
        """The value of one field of the node's class."""
        return getattr(self.handle, field)()

    def node(self, field: str) -> JvmNode:
        return JvmNode(self.read(field))

    def nodes(self, field: str) -> tuple[JvmNode, ...]:
        return tuple(JvmNode(item) for item in scala_items(self.read(field)))

    def walk(self) -> Iterator[JvmNode]:
        """The node and everything below it, parents first."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))

    @cached_property
    def text(self) -> str:
        """The node as SQL where Catalyst can print it so, else as it prints itself."""
        try:
            shown = str(self.handle.sql())
        except (Py4JError, PySparkException):
            shown = str(self.handle.toString())  # internal expressions have no SQL
        short = shown[:TEXT_CHARACTERS_MAX]
        return short if short == shown else short + "…"

    @cached_property
    def call_site(self) -> str | None:
        """The line of the user's program that wrote the node, if Spark knows it."""
        context = self.handle.origin().context()
        if context is None or str(context.contextType().toString()) != "DataFrame":
            return None
        site = str(context.callSite())
        # Some functions of PySpark do not say who called them: then it is a frame of the JVM.
        return site if _PYTHON_LINE.fullmatch(site) else None
