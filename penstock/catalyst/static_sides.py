"""Joins of a stream with rows that stand: what Spark is to compute, and how they are looked up."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from py4j.protocol import Py4JError

from penstock.catalyst.by_spark import SparkColumns, SparkExpressions
from penstock.catalyst.expressions import ExpressionReader, attribute_ids, conjuncts
from penstock.catalyst.joins import decided_behind, decided_by_spark, pair_condition
from penstock.catalyst.jvm import (
    JvmNode,
    java_classes,
    scala_object,
    scala_option,
    scala_sequence,
)
from penstock.catalyst.refusals import unsupported
from penstock.catalyst.relations import field_of_attribute
from penstock.catalyst.rows import Names, SparkRows, made
from penstock.expressions.tree import Column, Expression, call
from penstock.expressions.types import BOOLEAN, Field, Schema, parse_type
from penstock.operators.specs import (
    InitialState,
    JoinKey,
    NamedExpression,
    SparkColumn,
    StaticJoinSpec,
    can_be_looked_up,
    column_of,
)
from penstock.plan.keys import as_key
from penstock.plan.nodes import step
from penstock.runtime.static_sides import INITIAL_PREFIX, SIDE_PREFIX

# Spark's join types by its own words, with the stream on the left; the second: on the right.
_KINDS: Mapping[str, tuple[str | None, str | None]] = {
    "Inner": ("inner", "inner"),
    "Cross": ("inner", "inner"),
    "LeftOuter": ("left", None),
    "RightOuter": (None, "left"),
    "LeftSemi": ("semi", None),
    "LeftAnti": ("anti", None),
    "ExistenceJoin": ("existence", None),
}
_NORMALIZED = frozenset({"KnownFloatingPointNormalized", "NormalizeNaNAndZero"})
_NUMBER = re.compile(r"#(\d+)L?")
_OF_A_RUN = re.compile(r"@[0-9a-f]{4,8}\b|splits=Some\(\d+\)")


@dataclass(frozen=True)
class StaticSide:
    """Rows that Spark computes: `plan` gives those columns, in this order."""

    name: str
    plan: Any  # a LogicalPlan of the JVM
    schema: Schema


@dataclass(frozen=True)
class _Equality:
    """A conjunct of the join's condition that holds where two values are equal."""

    row: JvmNode
    static: JvmNode
    null_safe: bool


def static_join(
    node: JvmNode,
    rows: SparkRows,
    static: JvmNode,
    is_left: bool,
    zone: str,
    known: SparkExpressions,
) -> tuple[SparkRows, StaticSide]:
    """The rows of a stream joined with a static side; `is_left` says where the stream stands.

    `known` collects what Spark computes.
    """
    reader = _Reader(node, rows, static, zone, SparkColumns(known))
    found, side = reader.read(_kind(node, is_left))
    return decided_behind(node, found, reader.of_pairs, zone, known), side


def static_value(
    node: JvmNode, rows: SparkRows, subquery: JvmNode, column: str | None
) -> tuple[SparkRows, StaticSide]:
    """The rows of a stream with the one value of a static subquery; null where it gives no row.

    `column` is the one that it is asked for, if it has a name.
    """
    static = subquery.node("plan")
    count = scala_option(static.read("maxRows"))
    if count is None or int(count) > 1:
        raise unsupported(
            node.kind,
            "this subquery may give more than one row: let it aggregate them, as by max(), or end "
            "in LIMIT 1",
            expression=subquery,
            column=column,
        )
    (item,) = static.output
    field = field_of_attribute(static, item)
    kind = parse_type(str(field.type))
    field = Field(Names().give(field.name), kind, field.nullable)
    side = _static_side(static.handle, (field,))
    name = Names(rows.names).give(field.name)
    spec = StaticJoinSpec(side.name, "left", (), ((name, column_of(field)),))
    relation = made(node, lambda: step(spec, rows.relation), subquery)
    value = Column(name, kind, True)
    return replace(rows, relation=relation, columns={**rows.columns, subquery.expr_id: value}), side


def initial_state(node: JvmNode, count: int) -> tuple[InitialState, StaticSide]:
    """The rows that a processor begins with; the first `count` columns are their keys."""
    static = node.children[1]
    if static.read("isStreaming"):
        raise unsupported(node.kind, "its initial state is a stream: give it rows that stand")
    names = Names()
    fields: dict[int, Field] = {}
    for item in static.output:
        if item.expr_id not in fields:
            field = field_of_attribute(static, item)
            kind = parse_type(str(field.type))  # what nested members say about nulls is left out
            fields[item.expr_id] = Field(names.give(field.name), kind, field.nullable)
    plan = _only(static, list(fields))
    side = _static_side(plan, tuple(fields.values()), INITIAL_PREFIX)
    keys, rows = static.output[:count], [item.expr_id for item in static.output[count:]]
    shown = [*(key.expr_id for key in keys if key.expr_id not in rows), *rows]
    found = InitialState(
        side.name,
        side.schema,
        tuple(made(node, partial(as_key, column_of(fields[key.expr_id])), key) for key in keys),
        tuple(fields[key.expr_id].name for key in keys),
        tuple(fields[number].name for number in shown),
    )
    return found, side


def _only(plan: JvmNode, numbers: list[int]) -> Any:
    """The plan with each of these attributes once."""
    if len(numbers) == len(plan.output):
        return plan.handle
    items = {item.expr_id: item.handle for item in plan.output}
    project = java_classes().org.apache.spark.sql.catalyst.plans.logical.Project
    return project(scala_sequence([items[number] for number in numbers]), plan.handle)


def _kind(node: JvmNode, is_left: bool) -> str:
    name = str(node.read("joinType").toString()).partition("(")[0]
    kind = _KINDS.get(name, (None, None))[0 if is_left else 1]
    if kind is None:
        where = "left" if is_left else "right"
        raise unsupported(
            node.kind,
            f"a {name} join with the stream on the {where} and static rows on the other side has "
            "to give static rows that no row will ever match, and no row is ever the last; put the "
            "stream on the side whose rows are all kept, or use an inner join",
        )
    return kind


class _Reader:
    """Reads one join."""

    def __init__(
        self, node: JvmNode, rows: SparkRows, static: JvmNode, zone: str, by_spark: SparkColumns
    ) -> None:
        self._node = node
        self._rows = rows
        self._static = static
        self._zone = zone
        self._by_spark = by_spark
        self.of_pairs: list[JvmNode] = []  # what Spark decides behind the join
        own = Names()
        self._fields: dict[int, Field] = {}  # of the static side, under names of its own
        for item in static.output:
            field = field_of_attribute(static, item)
            kind = parse_type(str(field.type))  # what nested members say about nulls is left out
            self._fields[item.expr_id] = Field(own.give(field.name), kind, field.nullable)
        self._own = own
        self._computed: list[tuple[Field, JvmNode]] = []  # keys that are no columns

    def read(self, kind: str) -> tuple[SparkRows, StaticSide]:
        names = Names(self._rows.names)
        added = {number: names.give(field.name) for number, field in self._fields.items()}
        columns = {
            number: Column(added[number], field.type, field.nullable)
            for number, field in self._fields.items()
        }
        keys, condition = self._condition(columns)
        decided = () if kind == "inner" else self._decided(columns)
        rows = self._rows.with_columns(self._by_spark)
        shown: tuple[NamedExpression, ...] = tuple(
            (added[number], column_of(field)) for number, field in self._fields.items()
        )
        if not self._fields and not keys:  # only how many rows there are matters
            catalyst = java_classes().org.apache.spark.sql.catalyst
            true = scala_object(catalyst.expressions, "Literal").TrueLiteral()
            there = Field(self._own.give("there"), BOOLEAN, False)
            self._computed.append((there, JvmNode(true)))
            shown = ((names.give(there.name), column_of(there)),)
        exists = None
        if kind == "existence":
            flag = JvmNode(self._node.read("joinType").exists())
            exists = names.give(str(flag.read("name")))
        side = self._side()
        spec = StaticJoinSpec(side.name, kind, keys, shown, condition, exists, decided)
        relation = made(self._node, lambda: step(spec, rows.relation))
        found = {field.name: field for field in relation.schema}
        visible: dict[int, Expression] = dict(self._rows.columns)
        if exists is not None:
            visible[flag.expr_id] = column_of(found[exists])
        elif spec.adds_columns:
            visible |= {number: column_of(found[name]) for number, name in added.items()}
        return replace(self._rows, relation=relation, columns=visible), side

    def _decided(self, columns: Mapping[int, Column]) -> tuple[SparkColumn, ...]:
        """What only Spark can tell of pairs, within the join; of an inner one it is told behind."""
        parts, self.of_pairs = self.of_pairs, []
        return decided_by_spark(parts, self._pairs(columns), self._by_spark.known)

    def _pairs(self, columns: Mapping[int, Column]) -> ExpressionReader:
        rows = self._rows.expressions(self._node.kind, self._zone)
        return replace(rows, columns={**rows.columns, **columns})

    def _condition(
        self, columns: Mapping[int, Column]
    ) -> tuple[tuple[JoinKey, ...], Expression | None]:
        """The equalities by which static rows are found, and what else must hold."""
        given = scala_option(self._node.read("condition"))
        reader = self._rows.expressions(self._node.kind, self._zone, self._by_spark)
        pairs = self._pairs(columns)
        keys: list[JoinKey] = []
        rest: Expression | None = None
        for part in () if given is None else conjuncts(JvmNode(given)):
            key = self._key(part, reader)
            if key is not None:
                keys.append(key)
                continue
            read = pair_condition(part, pairs, [(reader, self._rows.columns.keys())])
            if read is None:
                self.of_pairs.append(part)
            else:
                rest = read if rest is None else call("and", rest, read)
        return tuple(keys), rest

    def _key(self, part: JvmNode, reader: ExpressionReader) -> JoinKey | None:
        equality = self._equality(part)
        if equality is None:
            return None
        row = reader.read(equality.row)
        if not can_be_looked_up(row.type):
            return None
        return JoinKey(row, column_of(self._key_field(equality.static, row)), equality.null_safe)

    def _equality(self, part: JvmNode) -> _Equality | None:
        if part.kind not in ("EqualTo", "EqualNullSafe"):
            return None
        left, right = (_without_normalizing(child) for child in part.children)
        static = self._fields.keys()
        null_safe = part.kind == "EqualNullSafe"
        for row, other in ((left, right), (right, left)):
            asked, found = attribute_ids(row), attribute_ids(other)
            if asked and found and not asked & static and found <= static:
                return _Equality(row, other, null_safe)
        return None

    def _key_field(self, static: JvmNode, row: Expression) -> Field:
        """The column of the static side that holds a key; Spark computes what is none yet."""
        if static.kind == "AttributeReference":
            return self._fields[static.expr_id]
        field = Field(self._own.give("key"), row.type, bool(static.read("nullable")))
        self._computed.append((field, static))
        return field

    def _side(self) -> StaticSide:
        plan = self._static.handle
        if self._computed:
            plan = _with_columns(self._static, [(f.name, node) for f, node in self._computed])
        return _static_side(plan, (*self._fields.values(), *(f for f, _ in self._computed)))


def _static_side(plan: Any, schema: Schema, prefix: str = SIDE_PREFIX) -> StaticSide:
    facts = [*_described(JvmNode(plan)), *(f"{f.name} {f.type}" for f in schema)]
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()
    return StaticSide(f"{prefix}{digest[:8]}", plan, schema)


def _without_normalizing(node: JvmNode) -> JvmNode:
    """The value itself: keys are looked up with one NaN and one zero anyway."""
    while node.kind in _NORMALIZED:
        node = node.children[0]
    return node


def _with_columns(plan: JvmNode, added: list[tuple[str, JvmNode]]) -> Any:
    """The plan with computed columns behind its own."""
    classes = java_classes()
    catalyst = classes.org.apache.spark.sql.catalyst
    numbers = scala_object(catalyst.expressions, "NamedExpression")
    none = scala_object(classes.scala, "None")
    nothing = scala_sequence([])
    items = [item.handle for item in plan.output]
    for name, node in added:
        number = numbers.newExprId()
        alias = catalyst.expressions.Alias(node.handle, name, number, nothing, none, nothing)
        items.append(alias)
    return catalyst.plans.logical.Project(scala_sequence(items), plan.handle)


def _described(plan: JvmNode) -> Iterator[str]:
    """What a plan computes and from what, the same in every run; not the rows that are there.

    Spark counts attributes through its whole life, so they are numbered anew; where objects are in
    the memory of the JVM, and how many cores there are, says nothing.
    """
    seen: dict[str, int] = {}
    text = _OF_A_RUN.sub("", str(plan.handle.toString()))
    yield _NUMBER.sub(lambda found: f"#{seen.setdefault(found[1], len(seen))}", text)
    for node in plan.walk():
        if not node.children:
            with suppress(Py4JError):  # only files have them
                yield str(node.handle.relation().location().rootPaths().toString())
