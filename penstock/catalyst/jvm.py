"""Catalyst's trees as they stand in the JVM: plans and expressions, read a node at a time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
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


def java_classes() -> Any:
    """All classes of the driver's JVM, by package."""
    from pyspark import SparkContext  # noqa: PLC0415 (Spark is loaded where it is used)

    return SparkContext._jvm


def scala_sequence(items: Iterable[Any]) -> Any:
    """A Scala sequence of these."""
    classes = java_classes()
    collected = classes.java.util.ArrayList()
    for item in items:
        collected.add(item)
    return classes.scala.jdk.javaapi.CollectionConverters.asScala(collected).toSeq()


def scala_object(package: Any, name: str) -> Any:
    """The one instance of a Scala object."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


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
    def ancestors(self) -> frozenset[str]:
        """The simple names of all classes and traits that its class extends."""
        java_class = self.handle.getClass()
        return _ancestors(str(java_class.getName()), java_class)

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

    def with_children(self, children: Iterable[JvmNode]) -> JvmNode:
        """The same node of other children."""
        handles = scala_sequence(child.handle for child in children)
        return JvmNode(self.handle.withNewChildren(handles))

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


def new_attribute(node: JvmNode) -> JvmNode:
    """An attribute that stands for an expression: of its type, under a number of its own."""
    spark = java_classes().org.apache.spark.sql
    catalyst = spark.catalyst.expressions
    return JvmNode(
        catalyst.AttributeReference(
            "value",
            node.read("dataType"),
            node.read("nullable"),
            scala_object(spark.types, "Metadata").empty(),
            scala_object(catalyst, "NamedExpression").newExprId(),
            scala_sequence([]),
        )
    )


def collation_key(node: JvmNode) -> JvmNode:
    """The bytes by which a string with a collation compares."""
    return JvmNode(
        java_classes().org.apache.spark.sql.catalyst.expressions.CollationKey(node.handle)
    )


_ANCESTORS: dict[str, frozenset[str]] = {}


def _ancestors(name: str, java_class: Any) -> frozenset[str]:
    """Of a class, asked for once: the classes of a JVM do not change."""
    if name not in _ANCESTORS:
        found: set[str] = set()
        waiting = [java_class]
        while waiting:
            each = waiting.pop()
            if each is None or str(each.getSimpleName()) in found:
                continue
            found.add(str(each.getSimpleName()))
            waiting += [each.getSuperclass(), *each.getInterfaces()]
        _ANCESTORS[name] = frozenset(found)
    return _ANCESTORS[name]
