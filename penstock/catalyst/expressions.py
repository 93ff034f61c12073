"""Catalyst's expressions in ours: a row of the table of functions names the class it comes from.

What a class needs more than its children as arguments is a builder of its own, in `_BUILDERS`.
Attributes are known by their exprId, never by name. What Spark computes in another way than the
table's functions (legacy arithmetic, functions that turn errors into nulls, collations) is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.catalyst.jvm import JvmNode, scala_option, scala_set
from penstock.catalyst.literals import constant_value, internal_value, read_literal, read_map
from penstock.catalyst.refusals import reason_for, unsupported
from penstock.catalyst.spark_types import spark_type
from penstock.errors import ExpressionError, UnsupportedPlan
from penstock.expressions.functions import FUNCTIONS, Function
from penstock.expressions.signatures import cast_needs_zone
from penstock.expressions.tree import Call, Expression, Literal, call, cast, literal
from penstock.expressions.types import BIGINT, BOOLEAN, INT, DataType, decimal_type

DEPTH_MAX = 100  # bounded before Python's own stack is
EULER = 2.718281828459045
# Kinds whose type is Spark's by construction.
_TYPED = frozenset({"AttributeReference", "Literal", "Cast"})
SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US
_NOT_ANSI = "it was written without ANSI mode; set spark.sql.ansi.enabled to true"


class AggregateCalls(Protocol):
    """Where an expression over groups finds the columns of its aggregates."""

    def column(self, node: JvmNode) -> Expression:
        """The column that holds an AggregateExpression."""
        ...


@dataclass(frozen=True)
class ExpressionReader:
    """Reads the expressions of one plan node.

    `columns` are the attributes in reach, by exprId; `hidden` says why others are not.
    """

    plan_node: str
    columns: Mapping[int, Expression]
    session_zone: str
    hidden: Mapping[int, str]
    aggregates: AggregateCalls | None = None

    def read(self, node: JvmNode, column: str | None = None, depth: int = 0) -> Expression:
        """The expression of a tree; `column` names the output column in errors."""
        if depth > DEPTH_MAX:
            reason = f"it is nested deeper than {DEPTH_MAX}; compute it in several columns"
            raise self.refuse(node, reason, column)
        builder = _BUILDERS.get(node.kind)
        if builder is None:
            raise self.refuse(node, reason_for(node), column)
        try:
            expression = builder(_Place(self, node, column, depth))
            if expression.type != BOOLEAN and node.kind not in _TYPED:
                _check_type(expression, node)
        except ExpressionError as error:
            raise self.refuse(node, error.message, column) from error
        return expression

    def refuse(self, node: JvmNode, reason: str, column: str | None = None) -> UnsupportedPlan:
        return unsupported(self.plan_node, reason, expression=node, column=column)


def _check_type(expression: Expression, node: JvmNode) -> None:
    """What is built must have the type that Spark's analyser gave it."""
    expected = spark_type(node.read("dataType"))
    if expression.type != expected:
        raise ExpressionError(f"it has type {expected} in Spark and {expression.type} here")


@dataclass(frozen=True)
class _Place:
    """One node, as a builder sees it."""

    reader: ExpressionReader
    node: JvmNode
    column: str | None
    depth: int

    def arg(self, index: int) -> Expression:
        return self.reader.read(self.node.children[index], self.column, self.depth + 1)

    def args(self) -> list[Expression]:
        return [self.arg(index) for index in range(len(self.node.children))]

    def constant(self, index: int, what: str) -> Any:
        return constant_value(self.arg(index), what)

    def read(self, field: str) -> Any:
        return self.node.read(field)

    def zone(self) -> str:
        return str(scala_option(self.read("timeZoneId")) or self.reader.session_zone)


Builder = Callable[[_Place], Expression]


# --- leaves and what only passes on ---------------------------------------------------------------


def _attribute(place: _Place) -> Expression:
    expr_id = place.node.expr_id
    found = place.reader.columns.get(expr_id)
    if found is None:
        reason = place.reader.hidden.get(expr_id, "the column is not in reach here")
        raise ExpressionError(reason)
    return found


def _literal(place: _Place) -> Expression:
    return read_literal(place.node)


def _first_child(place: _Place) -> Expression:
    return place.arg(0)


def _aggregate(place: _Place) -> Expression:
    if place.reader.aggregates is None:
        raise ExpressionError("an aggregate stands outside of an aggregation")
    return place.reader.aggregates.column(place.node)


# --- functions of the table -----------------------------------------------------------------------


def _direct(function: Function) -> Builder:
    """A function that takes Catalyst's children as they are, and the zone if it asks for one."""

    def build(place: _Place) -> Expression:
        if function.ansi is not None:
            _require_ansi(place, function.ansi)
        args = place.args()
        zoned = "time_zone" in function.options and args[0].type.kind == "timestamp"
        return call(function.name, *args, **({"time_zone": place.zone()} if zoned else {}))

    return build


def _require_ansi(place: _Place, field: str) -> None:
    found = place.read(field)
    if field != "evalMode":
        if not found:
            raise ExpressionError(_NOT_ANSI)
        return
    mode = str(found.toString())
    if mode == "TRY":
        raise ExpressionError("functions that give null instead of an error (try_…) are not known")
    if mode != "ANSI":
        raise ExpressionError(
            f"it was written in {mode} mode; set spark.sql.ansi.enabled to true and write it again"
        )


# --- arithmetic -----------------------------------------------------------------------------------


def _unscaled_value(place: _Place) -> Expression:
    """The digits of a decimal as a whole number."""
    arg = place.arg(0)
    scale = arg.type.scale
    power = literal(10**scale, decimal_type(scale + 1, 0))
    return cast(call("multiply", arg, power), BIGINT)


def _make_decimal(place: _Place) -> Expression:
    """Spark sums short decimals by their digits and puts the point back: the sum itself."""
    aggregates, child = place.reader.aggregates, place.node.children[0]
    function = child.children[0] if child.kind == "AggregateExpression" else child
    if aggregates is None or not _is_sum_of_digits(function):
        raise ExpressionError("MakeDecimal stands outside of a sum")
    return aggregates.column(place.node)


def _is_sum_of_digits(function: JvmNode) -> bool:
    return function.kind == "Sum" and function.children[0].kind == "UnscaledValue"


# --- comparison, logic, branches ------------------------------------------------------------------


def _not(place: _Place) -> Expression:
    arg = place.arg(0)
    if isinstance(arg, Call) and arg.function == "eq":
        return call("ne", *arg.args)
    return call("not", arg)


def _in_set(place: _Place) -> Expression:
    """IN with a long list of constants, which Catalyst keeps as a set: sorted, to be repeatable."""
    arg = place.arg(0)
    values = [internal_value(value, arg.type) for value in scala_set(place.read("hset"))]
    known = sorted(value for value in values if value is not None)
    listed = known if len(known) == len(values) else [*known, None]
    return call("in", arg, *[literal(value, arg.type) for value in listed])


def _case_when(place: _Place) -> Expression:
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


def _nan_or(place: _Place) -> Expression:
    value, otherwise = place.args()
    return call("if", call("is_nan", value), otherwise, value)


# --- casts ----------------------------------------------------------------------------------------


def _cast(place: _Place) -> Expression:
    mode = str(place.read("evalMode").toString())
    if mode not in ("ANSI", "TRY"):
        _require_ansi(place, "evalMode")
    arg, target = place.arg(0), spark_type(place.read("dataType"))
    options: dict[str, Any] = {"to": str(target)}
    if cast_needs_zone(arg.type, target):
        options["time_zone"] = place.zone()
    return call("cast" if mode == "ANSI" else "try_cast", arg, **options)


# --- strings --------------------------------------------------------------------------------------


def _trim(function: str) -> Builder:
    def build(place: _Place) -> Expression:
        if len(place.node.children) > 1 and place.constant(1, "what is trimmed") != " ":
            raise ExpressionError("only spaces are trimmed here")
        return call(function, place.arg(0))

    return build


def _like(place: _Place) -> Expression:
    pattern, escape = place.constant(1, "the pattern"), str(place.read("escapeChar"))
    return call("like", place.arg(0), pattern=pattern, escape=escape)


def _rlike(place: _Place) -> Expression:
    return call("rlike", place.arg(0), pattern=place.constant(1, "the pattern"))


def _split(place: _Place) -> Expression:
    pattern, limit = place.constant(1, "the pattern"), place.constant(2, "the limit")
    return call("split", place.arg(0), pattern=pattern, limit=limit if limit > 0 else -1)


def _concat_ws(place: _Place) -> Expression:
    separator, *args = place.args()
    text = constant_value(separator, "the separator")
    return call("concat_ws", *args, separator=text)


# --- mathematics ----------------------------------------------------------------------------------


def _round(place: _Place) -> Expression:
    _require_ansi(place, "ansiEnabled")
    return call("round", place.arg(0), scale=place.constant(1, "the number of digits"))


def _logarithm(place: _Place) -> Expression:
    if place.constant(0, "the base") != EULER:
        raise ExpressionError("only the natural logarithm is known here")
    return call("ln", place.arg(1))


# --- dates and times ------------------------------------------------------------------------------


_UNIT_NAMES: Mapping[str, str] = {
    "yyyy": "year", "yy": "year", "mm": "month", "mon": "month", "dd": "day",
}  # fmt: skip


def _date_trunc(place: _Place) -> Expression:
    given = str(place.constant(0, "the unit")).lower()
    unit = _UNIT_NAMES.get(given, given)
    return call("date_trunc", place.arg(1), unit=unit, time_zone=place.zone())


def _date_sub(place: _Place) -> Expression:
    days = place.constant(1, "the number of days")
    return call("date_add", place.arg(0), literal(-days, INT))


def _weekday(place: _Place) -> Expression:
    """Monday is 0; our days of the week begin with Sunday as 1."""
    shifted = call("add", call("day_of_week", place.arg(0)), literal(5, INT))
    return call("remainder", shifted, literal(7, INT))


def _add_interval(place: _Place) -> Expression:
    """A constant length below a day, which is the same in every time zone."""
    interval = place.node.children[1]
    length_us = interval.read("value") if interval.kind == "Literal" else None
    if not isinstance(length_us, int) or abs(length_us) >= DAY_US:
        raise ExpressionError(
            "only constant intervals of hours, minutes and seconds, below a day, are added here"
        )
    arg = place.arg(0)
    if arg.type.kind != "timestamp":
        raise ExpressionError(f"an interval is added to a timestamp here, not to {arg.type}")
    return shifted_time(arg, length_us)


def shifted_time(time: Expression, by_us: int) -> Expression:
    """A timestamp moved by a number of microseconds."""
    moved = call("add", call("unix_micros", time), literal(by_us, BIGINT))
    return call("timestamp_micros", moved)


def _unix_timestamp(place: _Place) -> Expression:
    """Whole seconds cut off towards 1970, other than unix_seconds, which rounds down."""
    arg = place.arg(0)
    if arg.type.kind != "timestamp":
        raise ExpressionError(f"only timestamps are taken here, not {arg.type}: cast it first")
    return call("int_divide", call("unix_micros", arg), literal(SECOND_US, BIGINT))


def _precise_conversion(place: _Place) -> Expression:
    """How windows go between times and microseconds."""
    arg = place.arg(0)
    target = spark_type(place.read("toType"))
    return call("timestamp_micros" if target.kind == "timestamp" else "unix_micros", arg)


# --- nested values --------------------------------------------------------------------------------


def _named_struct(place: _Place) -> Expression:
    args = place.args()
    names = [constant_value(name, "the name of a field") for name in args[0::2]]
    return call("struct", *args[1::2], names=names)


def _struct_field(place: _Place) -> Expression:
    arg = place.arg(0)
    return call("get_field", arg, name=arg.type.fields[int(place.read("ordinal"))].name)


def _array_item(place: _Place) -> Expression:
    array, index = place.arg(0), place.arg(1)
    if place.read("failOnError"):
        return call("get_item", array, index)
    inside = call("and", call("ge", index, literal(0, INT)), call("lt", index, call("size", array)))
    missing = literal(None, _element(array.type))
    return call("if", inside, call("get_item", array, index), missing)


def _element_at(place: _Place) -> Expression:
    array, index = place.arg(0), place.constant(1, "the position")
    if array.type.kind != "array" or index < 1 or not place.read("failOnError"):
        raise ExpressionError("only arrays, with a constant position from 1 on, are known here")
    return call("get_item", array, literal(index - 1, INT))


def _map_value(place: _Place) -> Expression:
    """A constant map that is asked for a key: a table."""
    table = place.node.children[0]
    if table.kind != "Literal":
        raise ExpressionError("only constant maps are known here: create_map() of literals")
    pairs, value_type = read_map(table)
    return call("lookup", place.arg(1), table=pairs, value_type=str(value_type))


def _element(data_type: DataType) -> DataType:
    if data_type.element is None:
        raise ExpressionError(f"{data_type} is not an array")
    return data_type.element


def _size(place: _Place) -> Expression:
    if place.read("legacySizeOfNull"):
        raise ExpressionError("set spark.sql.legacy.sizeOfNull to false: the size of null is null")
    return call("size", place.arg(0))


def _array(place: _Place) -> Expression:
    args = place.args()
    if not args:
        raise ExpressionError("an empty array is not known here")
    return call("array", *args)


# --- the table ------------------------------------------------------------------------------------

_BUILDERS: Mapping[str, Builder] = {
    **{row.catalyst: _direct(row) for row in FUNCTIONS.values() if row.catalyst is not None},
    # From here on: what is no function of ours, and what needs more than its children.
    # leaves and what only passes on
    "AttributeReference": _attribute,
    "Literal": _literal,
    "KnownNullable": _first_child,
    # over groups
    "AggregateExpression": _aggregate,
    "MakeDecimal": _make_decimal,
    "UnscaledValue": _unscaled_value,
    # comparison
    "InSet": _in_set,
    # logic, nulls, branches
    "Not": _not,
    "NaNvl": _nan_or,
    "CaseWhen": _case_when,
    # casts
    "Cast": _cast,
    # strings
    "ConcatWs": _concat_ws,
    "StringTrim": _trim("trim"),
    "StringTrimLeft": _trim("ltrim"),
    "StringTrimRight": _trim("rtrim"),
    "Like": _like,
    "RLike": _rlike,
    "StringSplit": _split,
    # mathematics
    "Round": _round,
    "Logarithm": _logarithm,
    # dates and times
    "WeekDay": _weekday,
    "TruncTimestamp": _date_trunc,
    "DateSub": _date_sub,
    "TimestampAddInterval": _add_interval,
    "UnixTimestamp": _unix_timestamp,
    "ToUnixTimestamp": _unix_timestamp,
    "PreciseTimestampConversion": _precise_conversion,
    # nested values
    "CreateNamedStruct": _named_struct,
    "GetStructField": _struct_field,
    "CreateArray": _array,
    "GetArrayItem": _array_item,
    "ElementAt": _element_at,
    "GetMapValue": _map_value,
    "Size": _size,
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
