"""The closed table of functions: what each takes, what type it gives, how it prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import ExpressionError
from penstock.expressions.options import (
    REQUIRED,
    Option,
    OptionRule,
    check_date_unit,
    check_escape,
    check_limit,
    check_match_pattern,
    check_names,
    check_scale,
    check_split_pattern,
    check_text,
    check_time_zone,
    check_type_text,
)
from penstock.expressions.signatures import (
    Operands,
    array_of,
    as_boolean,
    bigint_from,
    boolean_from,
    boolean_from_anything,
    branches,
    cast_target,
    comparison,
    date_part,
    date_plus_days,
    decimal_or_double_quotient,
    field_of,
    first_of_equal_types,
    integer_quotient,
    item_of,
    looked_up,
    math_on_double,
    null_if_equal,
    numeric_operand,
    padded,
    pattern_match,
    product,
    remainder,
    rounded,
    size_of,
    split_result,
    string_from_strings,
    struct_of,
    sub_text,
    sum_or_difference,
    text_length,
    time_part,
    timestamp_from_integer,
    truncated_time,
    two_strings_to_boolean,
    whole_number,
)
from penstock.expressions.types import DataType

__all__ = ["FUNCTIONS", "CheckedCall", "Function", "Option", "check_call", "print_call"]


def _any_nullable(operands: Operands) -> bool:
    return any(operands.nullables)


def _never_null(_operands: Operands) -> bool:
    return False


def _always_nullable(_operands: Operands) -> bool:
    return True


def _all_nullable(operands: Operands) -> bool:
    return all(operands.nullables)


def _branch_nullable(operands: Operands) -> bool:
    """`if` and `case`: a null condition only picks another branch, so only the values count."""
    if operands.function == "if":
        return any(operands.nullables[1:])
    count = len(operands.nullables)
    has_else = count % 2 == 1
    values = list(operands.nullables[1::2]) + ([operands.nullables[-1]] if has_else else [])
    return any(values) or not has_else


def _cast_nullable(operands: Operands) -> bool:
    """NaN and the infinities have no decimal: they become null."""
    return operands.nullables[0] or (
        operands.types[0].is_fractional and operands.options["to"].startswith("decimal")
    )


@dataclass(frozen=True, slots=True)
class Function:
    """One row of the table. `sql` is printed with the arguments and options put into its places."""

    name: str
    arity: tuple[int, int | None]
    result: Callable[[Operands], DataType]
    nullable: Callable[[Operands], bool] = _any_nullable
    options: Mapping[str, OptionRule] = field(default_factory=dict)
    sql: str | None = None  # None: name(arguments)


_ZONE = {"time_zone": OptionRule(check_time_zone, None)}
_CAST = {"to": OptionRule(check_type_text, REQUIRED), **_ZONE}

_TABLE: tuple[Function, ...] = (
    # arithmetic
    Function("add", (2, 2), sum_or_difference, sql="({0} + {1})"),
    Function("subtract", (2, 2), sum_or_difference, sql="({0} - {1})"),
    Function("multiply", (2, 2), product, sql="({0} * {1})"),
    Function("divide", (2, 2), decimal_or_double_quotient, sql="({0} / {1})"),
    Function("int_divide", (2, 2), integer_quotient, sql="({0} div {1})"),
    Function("remainder", (2, 2), remainder, sql="({0} % {1})"),
    Function("pmod", (2, 2), remainder),
    Function("negate", (1, 1), numeric_operand, sql="(- {0})"),
    Function("abs", (1, 1), numeric_operand),
    # comparison
    Function("eq", (2, 2), comparison, sql="({0} = {1})"),
    Function("ne", (2, 2), comparison, sql="(NOT ({0} = {1}))"),
    Function("lt", (2, 2), comparison, sql="({0} < {1})"),
    Function("le", (2, 2), comparison, sql="({0} <= {1})"),
    Function("gt", (2, 2), comparison, sql="({0} > {1})"),
    Function("ge", (2, 2), comparison, sql="({0} >= {1})"),
    Function("eq_null_safe", (2, 2), comparison, _never_null, sql="({0} <=> {1})"),
    Function("in", (2, None), comparison, sql="({0} IN ({1...}))"),
    Function("greatest", (2, None), first_of_equal_types, _all_nullable),
    Function("least", (2, None), first_of_equal_types, _all_nullable),
    # logic
    Function("and", (2, 2), as_boolean, sql="({0} AND {1})"),
    Function("or", (2, 2), as_boolean, sql="({0} OR {1})"),
    Function("not", (1, 1), as_boolean, sql="(NOT {0})"),
    # nulls and branches
    Function("is_null", (1, 1), boolean_from_anything, _never_null, sql="({0} IS NULL)"),
    Function("is_not_null", (1, 1), boolean_from_anything, _never_null, sql="({0} IS NOT NULL)"),
    Function("is_nan", (1, 1), boolean_from("float", "double"), _never_null, sql="isnan({...})"),
    Function("coalesce", (1, None), branches, _all_nullable),
    Function("if", (3, 3), branches, _branch_nullable),
    Function("case", (2, None), branches, _branch_nullable),
    Function("nullif", (2, 2), null_if_equal, _always_nullable),
    # casts
    Function("cast", (1, 1), cast_target, _cast_nullable, _CAST, sql="CAST({0} AS {to})"),
    Function(
        "try_cast", (1, 1), cast_target, _always_nullable, _CAST, sql="TRY_CAST({0} AS {to})"
    ),
    # strings
    Function("length", (1, 1), text_length),
    Function("substring", (3, 3), sub_text),
    Function("concat", (1, None), string_from_strings),
    Function(
        "concat_ws",
        (1, None),
        string_from_strings,
        _never_null,
        {"separator": OptionRule(check_text, REQUIRED)},
        sql="concat_ws({separator!r}, {...})",
    ),
    Function("upper", (1, 1), string_from_strings),
    Function("lower", (1, 1), string_from_strings),
    Function("trim", (1, 1), string_from_strings),
    Function("ltrim", (1, 1), string_from_strings),
    Function("rtrim", (1, 1), string_from_strings),
    Function("replace", (3, 3), string_from_strings),
    Function("lpad", (3, 3), padded),
    Function("rpad", (3, 3), padded),
    Function("starts_with", (2, 2), two_strings_to_boolean, sql="startswith({...})"),
    Function("ends_with", (2, 2), two_strings_to_boolean, sql="endswith({...})"),
    Function("contains", (2, 2), two_strings_to_boolean),
    Function(
        "like",
        (1, 1),
        pattern_match,
        options={
            "pattern": OptionRule(check_text, REQUIRED),
            "escape": OptionRule(check_escape, "\\"),
        },
        sql="({0} LIKE {pattern!r})",
    ),
    Function(
        "rlike",
        (1, 1),
        pattern_match,
        options={"pattern": OptionRule(check_match_pattern, REQUIRED)},
        sql="({0} RLIKE {pattern!r})",
    ),
    Function(
        "split",
        (1, 1),
        split_result,
        options={
            "pattern": OptionRule(check_split_pattern, REQUIRED),
            "limit": OptionRule(check_limit, -1),
        },
        sql="split({0}, {pattern!r}, {limit})",
    ),
    # mathematics
    Function("floor", (1, 1), whole_number),
    Function("ceil", (1, 1), whole_number),
    Function(
        "round",
        (1, 1),
        rounded,
        options={"scale": OptionRule(check_scale, 0)},
        sql="round({0}, {scale})",
    ),
    Function("sqrt", (1, 1), math_on_double),
    Function("exp", (1, 1), math_on_double),
    Function("ln", (1, 1), math_on_double, _always_nullable),
    Function("pow", (2, 2), math_on_double),
    # dates and times
    Function("year", (1, 1), date_part, options=_ZONE),
    Function("month", (1, 1), date_part, options=_ZONE),
    Function("day", (1, 1), date_part, options=_ZONE),
    Function("day_of_week", (1, 1), date_part, options=_ZONE, sql="dayofweek({...})"),
    Function("hour", (1, 1), time_part, options=_ZONE),
    Function("minute", (1, 1), time_part, options=_ZONE),
    Function("second", (1, 1), time_part, options=_ZONE),
    Function(
        "date_trunc",
        (1, 1),
        truncated_time,
        options={"unit": OptionRule(check_date_unit, REQUIRED), **_ZONE},
        sql="date_trunc({unit!r}, {0})",
    ),
    Function("date_add", (2, 2), date_plus_days),
    Function("unix_seconds", (1, 1), bigint_from("timestamp")),
    Function("unix_millis", (1, 1), bigint_from("timestamp")),
    Function("unix_micros", (1, 1), bigint_from("timestamp")),
    Function("timestamp_seconds", (1, 1), timestamp_from_integer),
    Function("timestamp_millis", (1, 1), timestamp_from_integer),
    Function("timestamp_micros", (1, 1), timestamp_from_integer),
    # nested values
    Function(
        "struct",
        (1, None),
        struct_of,
        _never_null,
        {"names": OptionRule(check_names, REQUIRED)},
    ),
    Function(
        "get_field", (1, 1), field_of, _always_nullable,
        {"name": OptionRule(check_text, REQUIRED)}, sql="{0}.{name}",
    ),
    Function("array", (1, None), array_of, _never_null),
    Function("get_item", (2, 2), item_of, _always_nullable, sql="{0}[{1}]"),
    Function("size", (1, 1), size_of),
    # a static table of (key, value) pairs; null for a key that is not in it
    Function(
        "lookup",
        (1, 1),
        looked_up,
        _always_nullable,
        {
            "table": OptionRule(lambda value: value, REQUIRED),
            "value_type": OptionRule(check_type_text, REQUIRED),
        },
    ),
)  # fmt: skip

FUNCTIONS: Mapping[str, Function] = {function.name: function for function in _TABLE}


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """What checking a call gives: its type, whether it can be null, its options made complete."""

    type: DataType
    nullable: bool
    options: tuple[tuple[str, Option], ...]


def check_call(
    function: str,
    types: Sequence[DataType],
    nullables: Sequence[bool],
    options: Mapping[str, Any],
) -> CheckedCall:
    """Check one call against the table; an ExpressionError names what does not fit."""
    entry = FUNCTIONS.get(function)
    if entry is None:
        raise ExpressionError(
            f"there is no function {function!r:.100}: Structured Streaming can run it, this engine "
            f"knows {', '.join(sorted(FUNCTIONS))}",
            function=str(function)[:100],
        )
    least, most = entry.arity
    if len(types) < least or (most is not None and len(types) > most):
        wanted = str(least) if least == most else f"{least} to {most or 'any number of'}"
        raise ExpressionError(
            f"{function} takes {wanted} arguments, {len(types)} were given",
            function=function,
            given=len(types),
        )
    complete = _complete_options(entry, options)
    operands = Operands(function, tuple(types), tuple(nullables), complete)
    result = entry.result(operands)
    kept = {key: value for key, value in operands.options.items() if value is not None}
    return CheckedCall(result, entry.nullable(operands), tuple(sorted(kept.items())))


def _complete_options(entry: Function, given: Mapping[str, Any]) -> dict[str, Option]:
    unknown = sorted(set(given) - set(entry.options))
    if unknown:
        raise ExpressionError(
            f"{entry.name} has no option {unknown[0]!r:.100}: "
            f"it knows {', '.join(entry.options) or 'none'}",
            function=entry.name,
            option=str(unknown[0])[:100],
        )
    complete: dict[str, Option] = {}
    for name, rule in entry.options.items():
        value = given.get(name)
        if value is not None:
            complete[name] = rule.check(value)
        elif rule.default is REQUIRED:
            raise ExpressionError(
                f"{entry.name} needs the option {name!r}", function=entry.name, option=name
            )
        else:
            complete[name] = rule.default
    return complete


def print_call(function: str, args: Sequence[str], options: Mapping[str, Option]) -> str:
    """One call as Spark SQL would show it."""
    entry = FUNCTIONS[function]
    if function == "case":
        return _print_case(args)
    if entry.sql is None:
        return f"{function}({', '.join(args)})"
    template = entry.sql.replace(
        "{1...}", ", ".join(args[1:]).replace("{", "{{").replace("}", "}}")
    )
    template = template.replace("{...}", ", ".join(args).replace("{", "{{").replace("}", "}}"))
    return template.format(*args, **options)


def _print_case(args: Sequence[str]) -> str:
    pairs = zip(args[0::2], args[1::2], strict=False)
    text = "CASE" + "".join(f" WHEN {condition} THEN {value}" for condition, value in pairs)
    return text + (f" ELSE {args[-1]}" if len(args) % 2 else "") + " END"
