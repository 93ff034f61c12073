"""How a compiled loop computes each function: lines of Numba source, failures as exits."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.expressions.emitter import (
    INT64_MAX,
    INT64_MIN,
    Emitter,
    Value,
    bounds,
    flag,
    wide,
    widened,
    wrapping,
    zero,
)
from penstock.expressions.nodes import Call, Expression, Literal, Write, is_branchless, may_fail
from penstock.expressions.types import DataType

_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1
_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


# --- shapes shared by many functions --------------------------------------------------------------


def strict(code: str) -> Write:
    """What needs no more than one piece of source, with the arguments in its places."""
    return lambda emit, call: emit.strict(call, code.format)


def argument(emit: Emitter, call: Call) -> Value:
    """The argument itself: a value that is kept alike under both types."""
    return emit.value(call.args[0])


# --- arithmetic -----------------------------------------------------------------------------------


def add(emit: Emitter, call: Call) -> Value:
    return _sum(emit, call, "+", "({a} ^ {r}) & ({b} ^ {r})")


def subtract(emit: Emitter, call: Call) -> Value:
    return _sum(emit, call, "-", "({a} ^ {b}) & ({a} ^ {r})")


def _sum(emit: Emitter, call: Call, sign: str, wrapped: str) -> Value:
    if call.type.is_decimal:
        return _decimal_sum(emit, call, sign)
    if call.type.is_fractional:
        return emit.strict(call, lambda a, b: f"{a} {sign} {b}")

    def compute(a: str, b: str) -> str:
        if call.type.kind != "bigint":
            return emit.within(emit.let(f"{a} {sign} {b}"), *bounds(call.type))
        r = emit.let(wrapping(a, sign, b))
        emit.fail_if(f"({wrapped.format(a=a, b=b, r=r)}) < 0")
        return r

    return emit.checked(call, compute)


def _decimal_sum(emit: Emitter, call: Call, sign: str) -> Value:
    left, right = (10 ** (call.type.scale - arg.type.scale) for arg in call.args)
    return emit.strict(call, lambda a, b: f"{a} * {left} {sign} {b} * {right}")


def multiply(emit: Emitter, call: Call) -> Value:
    if not call.type.is_integer:
        return emit.strict(call, lambda a, b: f"{a} * {b}")

    def compute(a: str, b: str) -> str:
        if call.type.kind != "bigint":
            return emit.within(emit.let(f"{a} * {b}"), *bounds(call.type))
        r = emit.let(wrapping(a, "*", b))
        small = " and ".join(f"{_INT32_MIN} <= {x} <= {_INT32_MAX}" for x in (a, b))
        with emit.block(f"if not ({small}) and {a} != 0:"):
            # A quotient tells whether the product wrapped; the one that would trap is apart.
            with emit.block(f"if {a} == -1:"):
                emit.fail_if(f"{b} == {INT64_MIN}")
            with emit.block(f"elif {r} // {a} != {b}:"):
                emit.fail(emit)
        return r

    return emit.checked(call, compute)


def divide(emit: Emitter, call: Call) -> Value:
    def compute(a: str, b: str) -> str:
        emit.fail_if(f"{b} == 0.0")
        return f"{a} / {b}"

    return emit.checked(call, compute)


def int_divide(emit: Emitter, call: Call) -> Value:
    def compute(a: str, b: str) -> str:
        emit.fail_if(f"{b} == 0")
        r = emit.let("0")
        with emit.block(f"if {b} == -1:"):
            if call.args[0].type.kind == "bigint":
                emit.fail_if(f"{a} == {INT64_MIN}")
            emit.line(f"{r} = -{a}")
        with emit.block("else:"):
            emit.line(f"{r} = {a} // {b}")
            with emit.block(f"if {r} < 0 and {r} * {b} != {a}:"):
                emit.line(f"{r} += 1")
        return r

    return emit.checked(call, compute)


def remainder(emit: Emitter, call: Call) -> Value:
    fractional = call.type.is_fractional

    def compute(a: str, b: str) -> str:
        emit.fail_if(f"{b} == 0")
        if fractional:
            return f"{wide(call.type)}(np.fmod({a}, {b}))"
        r = emit.let("0")
        with emit.block(f"if {b} != -1:"):
            emit.line(f"{r} = {a} % {b}")
            with emit.block(f"if {r} != 0 and ({a} < 0) != ({b} < 0):"):
                emit.line(f"{r} -= {b}")
        return r

    return emit.checked(call, compute)


def one_number(code: str) -> Write:
    """Negation and magnitude: both fail on the least number, which has no opposite."""

    def write(emit: Emitter, call: Call) -> Value:
        if not call.type.is_integer:
            return emit.strict(call, code.format)

        def compute(a: str) -> str:
            emit.fail_if(f"{a} == {bounds(call.type)[0]}")
            return code.format(a)

        return emit.checked(call, compute)

    return write


# --- comparison -----------------------------------------------------------------------------------


def comparison(emit: Emitter, call: Call) -> Value:
    return emit.strict(call, lambda a, b: _compared(call.function, a, b, call.args[0].type))


def eq_null_safe(emit: Emitter, call: Call) -> Value:
    a, b = (emit.value(arg) for arg in call.args)
    equal = _compared("eq", a.code, b.code, call.args[0].type)
    if a.null == b.null == "False":
        return Value(emit.let(equal))
    an, bn = flag(a.null), flag(b.null)
    return Value(emit.let(f"({an} & {bn}) | (({equal}) & ~{an} & ~{bn})"))


def contained_in(emit: Emitter, call: Call) -> Value:
    probe, *items = (emit.value(arg) for arg in call.args)
    data_type = call.args[0].type
    tests = [
        f"({_compared('eq', probe.code, item.code, data_type)})"
        + ("" if item.null == "False" else f" & ~{item.null}")
        for item in items
        if item.null != "True"
    ]
    found = emit.let(" | ".join(f"({test})" for test in tests) or "False")
    unknown = emit.any_null(items)
    if probe.null == "True":
        return Value("False", "True")
    parts = [] if probe.null == "False" else [probe.null]
    if unknown != "False":
        parts.append(f"(~{found})" if unknown == "True" else f"({unknown} & ~{found})")
    return Value(found, emit.let(" | ".join(parts), "n") if parts else "False")


def extreme(emit: Emitter, call: Call) -> Value:
    """greatest and least."""
    better = "gt" if call.function == "greatest" else "lt"
    best = emit.let(zero(call.type))
    null = emit.let("True", "n")
    for arg in call.args:
        item = emit.value(arg)
        if item.null == "True":
            continue
        wins = _compared(better, item.code, best, call.type)
        guard = "" if item.null == "False" else f"(not {item.null}) and "
        with emit.block(f"if {guard}({null} or {wins}):"):
            emit.line(f"{best} = {item.code}")
            emit.line(f"{null} = False")
    never = any(emit.value(arg).null == "False" for arg in call.args)
    return Value(best, "False" if never else null)


def nullif(emit: Emitter, call: Call) -> Value:
    a, b = (emit.value(arg) for arg in call.args)
    equal = emit.let(_compared("eq", a.code, b.code, call.type))
    known = emit.any_null([a, b])
    same = equal if known == "False" else f"({equal} & ~{flag(known)})"
    return Value(a.code, emit.let(f"{flag(a.null)} | {same}", "n"))


# --- logic and branches ---------------------------------------------------------------------------


def and_or(emit: Emitter, call: Call) -> Value:
    """Three-valued: an argument that decides does so even beside a null."""
    decided_by = "False" if call.function == "and" else "True"
    left, right = call.args
    first = emit.value(left)
    if is_branchless(right):
        return _combined(emit, first, emit.value(right), decided_by)
    result, null = emit.let(decided_by), emit.let("False", "n")
    decided = f"not {first.code}" if decided_by == "False" else first.code
    open_ = "True" if first.null == "True" else f"{flag(first.null)} or not ({decided})"
    with emit.block(f"if {open_}:"):
        both = _combined(emit, first, emit.value(right), decided_by)
        emit.line(f"{result} = {both.code}")
        emit.line(f"{null} = {both.null}")
    return Value(result, null if emit.nulls or call.nullable else "False")


def _combined(emit: Emitter, a: Value, b: Value, decided_by: str) -> Value:
    sign = "&" if decided_by == "False" else "|"
    if a.null == b.null == "False":
        return Value(emit.let(f"{a.code} {sign} {b.code}"))
    decided = []
    for item in (a, b):
        wrong = f"(not {item.code})" if decided_by == "False" else item.code
        known = "" if item.null == "False" else f" & ~{flag(item.null)}"
        decided.append(f"({wrong}{known})")
    settled = emit.let(" | ".join(decided))
    null = emit.let(f"({flag(a.null)} | {flag(b.null)}) & ~{settled}", "n")
    value = f"not {settled}" if decided_by == "False" else settled
    return Value(emit.let(value), null)


def is_null(emit: Emitter, call: Call) -> Value:
    return Value(flag(emit.value(call.args[0]).null))


def is_not_null(emit: Emitter, call: Call) -> Value:
    null = emit.value(call.args[0]).null
    constants = {"False": "np.bool_(True)", "True": "np.bool_(False)"}
    return Value(constants.get(null) or emit.let(f"not {null}"))


def is_nan(emit: Emitter, call: Call) -> Value:
    arg = emit.value(call.args[0])
    if arg.null == "True":
        return Value("np.bool_(False)")
    known = "" if arg.null == "False" else f" & ~{arg.null}"
    return Value(emit.let(f"({arg.code} != {arg.code}){known}"))


def coalesce(emit: Emitter, call: Call) -> Value:
    result, null = emit.let(zero(call.type)), emit.let("True", "n")
    for index, arg in enumerate(call.args):
        with emit.block(f"if {null}:" if index else "if True:"):
            item = emit.value(arg)
            emit.line(f"{result} = {item.code}")
            emit.line(f"{null} = {item.null}")
    return Value(result, null)


def case(emit: Emitter, call: Call) -> Value:
    """if and case."""
    pairs = list(zip(call.args[0::2], call.args[1::2], strict=False))
    otherwise = call.args[-1] if len(call.args) % 2 else Literal(None, call.type)
    result, null = emit.let(zero(call.type)), emit.let("False", "n")
    _branch(emit, pairs, otherwise, result, null)
    return Value(result, null)


def _branch(
    emit: Emitter,
    pairs: list[tuple[Expression, Expression]],
    otherwise: Expression,
    result: str,
    null: str,
) -> None:
    if not pairs:
        item = emit.value(otherwise)
        emit.line(f"{result} = {item.code}")
        emit.line(f"{null} = {item.null}")
        return
    (condition, then), *rest = pairs
    test = emit.condition(condition)
    with emit.block(f"if {test}:"):
        _branch(emit, [], then, result, null)
    with emit.block("else:"):
        _branch(emit, rest, otherwise, result, null)


# --- casts and times ------------------------------------------------------------------------------


def cast(emit: Emitter, call: Call) -> Value:
    source, target = call.args[0].type, call.type
    if source == target:
        return emit.value(call.args[0])
    if target.is_fractional:
        scale = f" / {float(10**source.scale)!r}" if source.is_decimal else ""
        return emit.strict(call, lambda a: f"{wide(target)}({a}){scale}")
    if target.kind == "boolean":
        return emit.strict(call, lambda a: f"{a} != 0")
    if source.kind == "boolean":
        return emit.strict(call, lambda a: f"np.int64({a})")
    if source.kind == "timestamp":
        return emit.strict(call, lambda a: f"{a} // 1000000")
    if target.is_decimal:
        return emit.checked(call, lambda a: _rescaled(emit, a, source.scale, target))
    return emit.checked(call, lambda a: emit.within(a, *bounds(target)))


def _rescaled(emit: Emitter, a: str, scale: int, target: DataType) -> str:
    """Half up to the target's scale; fails beyond its precision."""
    more = target.scale - scale
    if more >= 0:
        most = 10 ** max(target.precision - more, 0) - 1
        emit.within(a, -most, most)
        return f"{a} * {10**more}"
    unit = 10**-more
    size = emit.let(f"(abs({a}) + {unit // 2}) // {unit}")
    emit.fail_if(f"{size} > {10**target.precision - 1}")
    return f"{size} if {a} >= 0 else -{size}"


def scaled_time(factor: int) -> Write:
    """A count of longer units as microseconds."""
    most = INT64_MAX // factor
    return lambda emit, call: emit.checked(
        call, lambda a: f"{emit.within(a, -most, most)} * {factor}"
    )


# --- lookup ---------------------------------------------------------------------------------------


def lookup(emit: Emitter, call: Call) -> Value:
    key = emit.value(call.args[0])
    identity = (call.option("table"), call.option("value_type"))
    if identity not in emit.tables:
        emit.tables[identity] = (f"t{len(emit.tables)}", call)
    table = emit.tables[identity][0]
    shape = table_shape(call)
    result, null = emit.let(zero(call.type)), emit.let("True", "n")
    guard = "if True:" if key.null == "False" else f"if not {flag(key.null)}:"
    with emit.block(guard):
        at = (
            _dense_place(emit, key.code, table)
            if shape.dense
            else _searched_place(emit, key.code, table)
        )
        with emit.block(f"if {at} < np.uint64({table}_values.size):"):
            emit.line(f"{result} = {widened(f'{table}_values[{at}]', call.type)}")
            holes = f"not {table}_valid[{at}]" if shape.holes else "False"
            emit.line(f"{null} = {holes}")
    return Value(result, null)


def _dense_place(emit: Emitter, key: str, table: str) -> str:
    return emit.let(f"np.uint64({key}) - np.uint64({table}_first)", "at")


def _searched_place(emit: Emitter, key: str, table: str) -> str:
    """Binary search; the size of the table where the key is not in it."""
    low, high = emit.let("0", "low"), emit.let(f"{table}_keys.size", "high")
    with emit.block(f"while {low} < {high}:"):
        middle = emit.let(f"({low} + {high}) >> 1", "middle")
        with emit.block(f"if {table}_keys[{middle}] < {key}:"):
            emit.line(f"{low} = {middle} + 1")
        with emit.block("else:"):
            emit.line(f"{high} = {middle}")
    at = emit.let(f"np.uint64({table}_keys.size)", "at")
    with emit.block(f"if {low} < {table}_keys.size and {table}_keys[{low}] == {key}:"):
        emit.line(f"{at} = np.uint64({low})")
    return at


@dataclass(frozen=True, slots=True)
class TableShape:
    """How a lookup's table is laid out: indexed by key or searched, with or without holes."""

    dense: bool
    holes: bool


DENSE_SLACK = 4  # a table indexed by key may be this many times larger than its rows
DENSE_ROWS_FREE = 65_536


def table_shape(call: Call) -> TableShape:
    table = call.option("table")
    if not table:
        return TableShape(dense=False, holes=False)
    keys = [key for key, _ in table]
    span = max(keys) - min(keys) + 1
    dense = span <= max(DENSE_ROWS_FREE, DENSE_SLACK * len(keys))
    nulls = any(value is None for _, value in table)
    return TableShape(dense, nulls or (dense and span != len(keys)))


def _compared(function: str, a: str, b: str, data_type: DataType) -> str:
    """NaN equals itself and is greater than every number."""
    if not data_type.is_fractional:
        return f"{a} {_SIGNS[function]} {b}"
    if function == "eq":
        return f"({a} == {b}) | (({a} != {a}) & ({b} != {b}))"
    if function == "ne":
        return f"({a} != {b}) & (({a} == {a}) | ({b} == {b}))"
    if function in ("gt", "ge"):
        return _compared(_MIRRORED[function], b, a, data_type)
    if function == "lt":
        return f"({a} < {b}) | (({a} == {a}) & ({b} != {b}))"
    return f"({a} <= {b}) | ({b} != {b})"


# --- of which calls -------------------------------------------------------------------------------

_EXACT_DOUBLE_DIGITS = 15  # a scaled integer of so many digits and its scale are exact doubles


def not_of_decimals(call: Call) -> bool:
    return not call.args[0].type.is_decimal


def of_doubles(call: Call) -> bool:
    return call.args[0].type.kind == "double"


def of_integers(call: Call) -> bool:
    return call.args[0].type.is_integer


def by_positive_literal(call: Call) -> bool:
    divisor = call.args[1]
    known = isinstance(divisor, Literal) and divisor.value is not None and divisor.value > 0
    return known and of_integers(call)


def safe_later_arguments(call: Call) -> bool:
    """Those are not needed for every row, and a loop computes them all: none may fail."""
    return not any(may_fail(arg) for arg in call.args[1:])


def cast_of_numbers(call: Call) -> bool:
    source, target = call.args[0].type, call.type
    if source == target:
        return True
    if source.is_integer:
        return target.is_numeric or target.kind == "boolean"
    if source.kind == "boolean":
        return target.is_integer or target.is_fractional
    if source.is_fractional:
        return target.is_fractional
    if source.is_decimal and target.kind == "double":
        return source.precision <= _EXACT_DOUBLE_DIGITS
    return (source.is_decimal and target.is_decimal) or (
        source.kind == "timestamp" and target.kind == "bigint"
    )
