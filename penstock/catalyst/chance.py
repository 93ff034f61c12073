"""The clock and random numbers in a query: as Python functions, before Spark's optimizer sees them.

Left to the optimizer the clock would be the constant of the moment at which the query was planned.
As functions that are not deterministic they are computed once for each row, in steps of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from penstock.catalyst.jvm import (
    JvmNode,
    java_classes,
    scala_items,
    scala_object,
    scala_option,
    scala_sequence,
)
from penstock.operators import chance


class _Chance(NamedTuple):
    """What computes an expression, and of what type it is; None: of its first child's."""

    function: Callable[..., Any]
    type: str | None
    by_zone: bool = False
    by_child: bool = False


_SOURCES: Mapping[str, _Chance] = {
    "Rand": _Chance(chance.rand, "double"),
    "Randn": _Chance(chance.randn, "double"),
    "Uuid": _Chance(chance.uuid, "string"),
    "RandStr": _Chance(chance.randstr, "string", by_child=True),
    "Shuffle": _Chance(chance.shuffle, None, by_child=True),
    "CurrentTimestamp": _Chance(chance.current_timestamp, "timestamp"),
    "Now": _Chance(chance.current_timestamp, "timestamp"),
    "LocalTimestamp": _Chance(chance.local_timestamp, "timestamp_ntz", by_zone=True),
    "CurrentDate": _Chance(chance.current_date, "date", by_zone=True),
}

_UNIFORM, _PARTITION = "Uniform", "SparkPartitionID"

CHANCE_KINDS = frozenset(_SOURCES) | {_UNIFORM, _PARTITION}


def with_functions(session: Any, plan: JvmNode) -> JvmNode:
    """The analysed plan with functions in the place of what is another value each time."""
    patterns = java_classes().org.apache.spark.sql.catalyst.trees.TreePattern
    has_clock = plan.handle.containsPattern(patterns.CURRENT_LIKE())
    if not has_clock and plan.read("deterministic"):
        return plan
    zone = str(session.conf.get("spark.sql.session.timeZone"))
    return JvmNode(_plan(plan, zone))


def _plan(node: JvmNode, zone: str) -> Any:
    """A node over children that were rewritten, with its own expressions rewritten.

    Rows that do not stream are computed by Spark, with its own clock and chance.
    """
    if not node.read("isStreaming"):
        return node.handle
    below = [_plan(child, zone) for child in node.children]
    same = all(new.fastEquals(old.handle) for new, old in zip(below, node.children, strict=True))
    handle = node.handle if same else node.handle.withNewChildren(scala_sequence(below))
    expressions = JvmNode(handle).nodes("expressions")
    if not any(part.kind in CHANCE_KINDS for each in expressions for part in each.walk()):
        return handle
    arguments = [_argument(handle.productElement(at), zone) for at in range(handle.productArity())]
    array = _gateway().new_array(java_classes().java.lang.Object, len(arguments))
    for at, argument in enumerate(arguments):
        array[at] = argument
    return handle.makeCopy(array)


def _argument(value: Any, zone: str) -> Any:
    """One part of a node: an expression, a sequence that may hold some, or anything else."""
    if _is(value, "Expression"):
        return _expression(JvmNode(value), zone)
    if _is(value, "Seq") and any(_is(item, "Expression") for item in scala_items(value)):
        items = [_argument(item, zone) for item in scala_items(value)]
        return scala_sequence(items)
    return value


def _expression(node: JvmNode, zone: str) -> Any:
    if (source := _SOURCES.get(node.kind)) is not None:
        return _call(node, source, zone)
    if node.kind == _UNIFORM:  # what Spark makes of it has a rand()
        return _expression(JvmNode(node.handle.replacement()), zone)
    if node.kind == _PARTITION:  # rows are in none
        return _literal(0)
    below = [_expression(child, zone) for child in node.children]
    if all(new is old.handle for new, old in zip(below, node.children, strict=True)):
        return node.handle
    return node.handle.withNewChildren(scala_sequence(below))


def _call(node: JvmNode, source: _Chance, zone: str) -> Any:
    # Spark is loaded where it is used.
    functions: Any = import_module("pyspark.sql.functions")
    types: Any = import_module("pyspark.sql.types")
    zone = str(scala_option(node.read("timeZoneId")) or zone) if source.by_zone else zone
    if source.by_child:
        given = _expression(node.children[0], zone)
    else:
        given = _literal(zone if source.by_zone else 0)
    result = source.type or types._parse_datatype_json_string(str(node.read("dataType").json()))
    function: Any = functions.arrow_udf(source.function, result).asNondeterministic()
    return function._unwrapped._judf.builder(scala_sequence([given]))


def _literal(value: Any) -> Any:
    catalyst = java_classes().org.apache.spark.sql.catalyst.expressions
    return scala_object(catalyst, "Literal").apply(value)


def _is(value: Any, kind: str) -> bool:
    return hasattr(value, "getClass") and kind in JvmNode(value).ancestors


def _gateway() -> Any:
    from pyspark import SparkContext  # noqa: PLC0415 (Spark is loaded where it is used)

    return SparkContext._gateway
