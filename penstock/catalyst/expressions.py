"""Catalyst's expressions in ours: a row of the table of functions names the class it comes from.

What a class needs more than its children as arguments is a builder of its own, in `_BUILDERS`.
Attributes are known by their exprId, never by name. What Spark computes in another way than the
table's functions (legacy arithmetic, functions that turn errors into nulls, collations) is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from penstock.catalyst.by_spark import SparkColumns
from penstock.catalyst.interval_expressions import (
    ARITHMETIC,
    INTERVAL_BUILDERS,
    cast_interval,
    interval_of,
    micros_of,
)
from penstock.catalyst.jvm import JvmNode, collation_key, scala_set
from penstock.catalyst.literals import internal_value, read_literal
from penstock.catalyst.nested_expressions import NESTED_BUILDERS
from penstock.catalyst.place import INPUT_FILE, AggregateCalls, Builder, Place
from penstock.catalyst.refusals import SUBQUERY, reason_for, unsupported
from penstock.catalyst.spark_types import spark_type
from penstock.catalyst.text_expressions import TEXT_BUILDERS
from penstock.catalyst.time_expressions import TIME_BUILDERS
from penstock.errors import ExpressionError, UnsupportedPlan
from penstock.expressions.functions import FUNCTIONS, Function
from penstock.expressions.signatures import cast_needs_zone
from penstock.expressions.tree import Call, Expression, Literal, call, cast, literal
from penstock.expressions.types import BIGINT, BOOLEAN, INT, VOID, decimal_type

DEPTH_MAX = 100  # bounded before Python's own stack is
# Kinds whose type is Spark's by construction.
_TYPED = frozenset({"AttributeReference", "Literal", "Cast", "NamedLambdaVariable"})


@dataclass(frozen=True)
class ExpressionReader:
    """Reads the expressions of one plan node.

    `columns` are the attributes in reach, by exprId; `hidden` says why others are not. What is not
    known here becomes one of the columns `by_spark`, where these are collected, or is refused.
    """

    plan_node: str
    columns: Mapping[int, Expression]
    session_zone: str
    hidden: Mapping[int, str]
    aggregates: AggregateCalls | None = None
    by_spark: SparkColumns | None = None
    column: str | None = None  # the output column that all is read for, where that is one

    def read(self, node: JvmNode, column: str | None = None) -> Expression:
        """The expression of a tree; `column` names the output column in errors."""
        try:
            return self.built(node, column)
        except UnsupportedPlan as refusal:
            if self.by_spark is None:
                raise

            def refuse(part: JvmNode, reason: str) -> UnsupportedPlan:
                return self.refuse(part, reason, column)

            return self.by_spark.column(node, self.columns, self.aggregates, refusal, refuse)

    def read_key(self, node: JvmNode, column: str | None = None) -> Expression:
        """What stands for a value where values are told apart or put into order."""
        found = self.read(node, column)
        if found.type.is_collated:
            return self.read(collation_key(node), column)
        return literal(None, BOOLEAN) if found.type == VOID else found

    def built(self, node: JvmNode, column: str | None = None, depth: int = 0) -> Expression:
        """The expression of a tree all of which is known here."""
        if depth > DEPTH_MAX:
            reason = f"it is nested deeper than {DEPTH_MAX}; compute it in several columns"
            raise self.refuse(node, reason, column)
        builder = _BUILDERS.get(node.kind)
        if builder is None:
            raise self.refuse(node, reason_for(node), column)
        try:
            expression = builder(Place(self, node, column, depth))
            if expression.type != BOOLEAN and node.kind not in _TYPED:
                _check_type(expression, node)
        except ExpressionError as error:
            raise self.refuse(node, error.message, column) from error
        return expression

    def refuse(self, node: JvmNode, reason: str, column: str | None = None) -> UnsupportedPlan:
        return unsupported(self.plan_node, reason, expression=node, column=column or self.column)


def _check_type(expression: Expression, node: JvmNode) -> None:
    """What is built must have the type that Spark's analyser gave it."""
    expected = spark_type(node.read("dataType"))
    if expression.type != expected:
        raise ExpressionError(f"it has type {expected} in Spark and {expression.type} here")


# --- leaves and what only passes on ---------------------------------------------------------------


def _attribute(place: Place) -> Expression:
    expr_id = place.node.expr_id
    found = place.reader.columns.get(expr_id)
    if found is None:
        reason = place.reader.hidden.get(expr_id, "the column is not in reach here")
        raise ExpressionError(reason)
    return found


def _input_file_name(place: Place) -> Expression:
    found = place.reader.columns.get(INPUT_FILE)
    if found is None:
        raise ExpressionError(
            "it is known right behind the source: select it there, or use the column "
            "_metadata.file_path"
        )
    return found


def _subquery(place: Place) -> Expression:
    """The value of a static one is a column beside those of the stream."""
    found = place.reader.columns.get(place.node.expr_id)
    if found is None:
        raise ExpressionError(SUBQUERY)
    return found


def _literal(place: Place) -> Expression:
    return read_literal(place.node)


def _first_child(place: Place) -> Expression:
    return place.arg(0)


def _aggregate(place: Place) -> Expression:
    if place.reader.aggregates is None:
        raise ExpressionError("an aggregate stands outside of an aggregation")
    return place.reader.aggregates.column(place.node, place.column)


# --- functions of the table -----------------------------------------------------------------------


def _direct(function: Function) -> Builder:
    """A function that takes Catalyst's children as they are, and the zone if it asks for one."""

    def build(place: Place) -> Expression:
        is_try = function.ansi == "evalMode" and place.eval_mode() == "TRY"
        if function.ansi is not None and not is_try:
            place.require_ansi(function.ansi)
        args = place.args()
        zone = place.zone_for(*args) if "time_zone" in function.options else {}
        of_intervals = function.name in ARITHMETIC and args[0].type.is_interval
        found = call(function.name, *(map(micros_of, args) if of_intervals else args), **zone)
        found = call("null_on_error", found) if is_try else found
        target = spark_type(place.read("dataType")) if of_intervals else found.type
        return interval_of(found, target) if target.is_interval and of_intervals else found

    return build


# --- arithmetic -----------------------------------------------------------------------------------


def _unscaled_value(place: Place) -> Expression:
    """The digits of a decimal as a whole number."""
    arg = place.arg(0)
    scale = arg.type.scale
    power = literal(10**scale, decimal_type(scale + 1, 0))
    return cast(call("multiply", arg, power), BIGINT)


def _make_decimal(place: Place) -> Expression:
    """Spark sums short decimals by their digits and puts the point back: the sum itself."""
    aggregates, child = place.reader.aggregates, place.node.children[0]
    if aggregates is None or child.kind not in ("AggregateExpression", "WindowExpression"):
        raise ExpressionError("MakeDecimal stands outside of a sum")
    return aggregates.column(place.node, place.column)


# --- comparison, logic, branches ------------------------------------------------------------------


def _not(place: Place) -> Expression:
    arg = place.arg(0)
    if isinstance(arg, Call) and arg.function == "eq":
        return call("ne", *arg.args)
    return call("not", arg)


def _in_set(place: Place) -> Expression:
    """IN with a long list of constants, which Catalyst keeps as a set: sorted, to be repeatable."""
    arg = place.arg(0)
    values = [internal_value(value, arg.type) for value in scala_set(place.read("hset"))]
    known = sorted(value for value in values if value is not None)
    listed = known if len(known) == len(values) else [*known, None]
    return call("in", arg, *[literal(value, arg.type) for value in listed])


def _case_when(place: Place) -> Expression:
    args = place.args()
    return _positive_remainder(args) or call("case", *args)


def _positive_remainder(args: list[Expression]) -> Expression | None:
    """How windows write pmod: CASE WHEN r < 0 THEN r + n ELSE r END with r = x % n and n > 0."""
    rest = args[-1]
    if len(args) != 3 or not isinstance(rest, Call) or rest.function != "remainder":
        return None
    modulus = rest.args[1]
    if not isinstance(modulus, Literal) or modulus.type != BIGINT or not modulus.value > 0:
        return None
    expected = [
        call("lt", rest, literal(0, BIGINT)),
        call("add", rest, modulus),
        rest,
    ]
    return call("pmod", *rest.args) if args == expected else None


def _enough_values(place: Place) -> Expression:
    """At least so many arguments are there; NaN is not."""
    args, least = place.args(), int(place.read("n"))
    known = [
        call("and", call("is_not_null", arg), call("not", call("is_nan", arg)))
        if arg.type.is_fractional
        else call("is_not_null", arg)
        for arg in args
    ]
    if least <= 0:
        return literal(True, BOOLEAN)
    if least == len(known):
        return reduce(lambda left, right: call("and", left, right), known)
    counted: list[Expression] = [cast(flag, INT) for flag in known]
    total = reduce(lambda left, right: call("add", left, right), counted)
    return call("ge", total, literal(least, INT))


def _nan_or(place: Place) -> Expression:
    value, otherwise = place.args()
    return call("if", call("is_nan", value), otherwise, value)


# --- casts ----------------------------------------------------------------------------------------


def _cast(place: Place) -> Expression:
    mode = place.eval_mode()
    if mode not in ("ANSI", "TRY"):
        place.require_ansi("evalMode")
    arg, target = place.arg(0), spark_type(place.read("dataType"))
    if arg.type.is_interval or target.is_interval:
        made = cast_interval(arg, target, mode)
        if made is not None:
            return made
    options: dict[str, Any] = {"to": str(target)}
    if cast_needs_zone(arg.type, target):
        options["time_zone"] = place.zone()
    return call("cast" if mode == "ANSI" else "try_cast", arg, **options)


# --- mathematics ----------------------------------------------------------------------------------


def _round(place: Place) -> Expression:
    place.require_ansi("ansiEnabled")
    return call("round", place.arg(0), scale=place.constant(1, "the number of digits"))


# --- the table ------------------------------------------------------------------------------------

_BUILDERS: Mapping[str, Builder] = {
    **{row.catalyst: _direct(row) for row in FUNCTIONS.values() if row.catalyst is not None},
    # From here on: what is no function of ours, and what needs more than its children.
    # leaves and what only passes on
    "AttributeReference": _attribute,
    "NamedLambdaVariable": _attribute,
    "ScalarSubquery": _subquery,
    "Literal": _literal,
    "InputFileName": _input_file_name,
    "KnownNullable": _first_child,
    "KnownNotContainsNull": _first_child,
    # over groups
    "AggregateExpression": _aggregate,
    "WindowExpression": _aggregate,
    "MakeDecimal": _make_decimal,
    "UnscaledValue": _unscaled_value,
    # comparison
    "InSet": _in_set,
    # logic, nulls, branches
    "Not": _not,
    "NaNvl": _nan_or,
    "AtLeastNNonNulls": _enough_values,
    "CaseWhen": _case_when,
    # casts
    "Cast": _cast,
    # strings
    **TEXT_BUILDERS,
    # mathematics
    "Round": _round,
    # dates and times
    **TIME_BUILDERS,
    **INTERVAL_BUILDERS,
    # nested values
    **NESTED_BUILDERS,
}

EXPRESSION_KINDS = frozenset(_BUILDERS)


def attribute_ids(node: JvmNode) -> frozenset[int]:
    """The attributes that an expression refers to."""
    return frozenset(part.expr_id for part in node.walk() if part.kind == "AttributeReference")


def conjuncts(condition: JvmNode) -> Iterator[JvmNode]:
    """The parts of a condition that must all hold, from left to right."""
    waiting = [condition]
    while waiting:
        part = waiting.pop()
        if part.kind == "And":
            waiting.extend(reversed(part.children))
        else:
            yield part
