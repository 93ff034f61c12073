"""Expressions as lines of Numba source: values and nulls in local variables, failures as exits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from penstock.expressions.tree import Call, Column, Expression, Literal
from penstock.expressions.types import INTEGER_BITS, DataType
from penstock.kernels.support import COMPARISONS, can_fail, is_branchless

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1
_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_RIGHT_FIRST = frozenset({"divide", "int_divide", "remainder", "pmod"})
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


@dataclass(frozen=True, slots=True)
class Value:
    """Where an expression's result is: source of its value, and of whether it is null."""

    code: str
    null: str = "False"


@dataclass
class Emitter:
    """Writes the lines of one function body; `row` is the variable of the current row.

    `column_names` gives each column's array; with `nulls` a column also has an array of validity.
    `tables` collects the lookups in order: the caller passes their arrays. `fail` writes the exit
    that is taken when the current row fails. Results are remembered per scope, so that a
    subexpression is computed once on each path.
    """

    column_names: dict[str, str]
    nulls: bool
    fail: Callable[[Emitter], None]
    tables: dict[tuple[Any, ...], tuple[str, Call]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    names: int = 0
    scopes: list[dict[Expression, Value]] = field(default_factory=lambda: [{}])

    # --- lines and scopes -------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def name(self, stem: str = "x") -> str:
        self.names += 1
        return f"{stem}{self.names}"

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """An indented suite; what is computed inside is forgotten at its end."""
        self.line(header)
        self.depth += 1
        self.scopes.append({})
        yield
        self.scopes.pop()
        self.depth -= 1

    def let(self, code: str, stem: str = "x") -> str:
        name = self.name(stem)
        self.line(f"{name} = {code}")
        return name

    # --- entry ------------------------------------------------------------------------------------

    def value(self, expression: Expression) -> Value:
        """Lines that compute the expression, and where its result is."""
        for scope in reversed(self.scopes):
            if expression in scope:
                return scope[expression]
        if isinstance(expression, Column):
            result = self._column(expression)
        elif isinstance(expression, Literal):
            result = self._literal(expression)
        else:
            result = self._call(expression)
        self.scopes[-1][expression] = result
        return result

    def condition(self, expression: Expression) -> str:
        """Source that is true where the expression is true, false where it is false or null."""
        result = self.value(expression)
        if result.null == "False":
            return result.code
        if result.null == "True":
            return "False"
        return f"({result.code} & ~{result.null})"

    def _column(self, column: Column) -> Value:
        array = self.column_names[column.name]
        at = "2 * row" if column.type.is_decimal else "row"
        cast = _wide(column.type)
        code = f"{array}[{at}]" if cast is None else f"{cast}({array}[{at}])"
        null = self.let(f"~{array}_valid[row]", "n") if self.nulls else "False"
        return Value(self.let(code), null)

    def _literal(self, constant: Literal) -> Value:
        if constant.value is None:
            return Value(_zero(constant.type), "True")
        return Value(literal_code(constant.value, constant.type))

    def _call(self, call: Call) -> Value:
        function = call.function
        if function in COMPARISONS:
            return self._strict(call, lambda a, b: _compared(function, a, b, call.args[0].type))
        return _WRITERS[function](self, call)

    # --- shapes shared by many functions ----------------------------------------------------------

    def any_null(self, values: list[Value]) -> str:
        nulls = list(dict.fromkeys(v.null for v in values if v.null != "False"))
        if "True" in nulls:
            return "True"
        if len(nulls) <= 1:
            return nulls[0] if nulls else "False"
        return self.let(" | ".join(nulls), "n")

    def _arguments(self, call: Call) -> list[Value]:
        """The arguments in Spark's order: once one is null, later ones that may fail are left."""
        order = list(range(len(call.args)))
        if call.function in _RIGHT_FIRST:
            order.reverse()
        values: dict[int, Value] = {}
        for index in order:
            missing = self.any_null(list(values.values()))
            arg = call.args[index]
            if missing == "False" or not can_fail(arg):
                values[index] = self.value(arg)
            else:
                values[index] = self._unless(missing, arg)
        return [values[index] for index in range(len(call.args))]

    def _unless(self, missing: str, arg: Expression) -> Value:
        if missing == "True":
            return Value(_zero(arg.type), "True")
        result, null = self.let(_zero(arg.type)), self.let("True", "n")
        with self.block(f"if not {missing}:"):
            item = self.value(arg)
            self.line(f"{result} = {item.code}")
            self.line(f"{null} = {item.null}")
        return Value(result, null)

    def _strict(self, call: Call, code: Callable[..., str]) -> Value:
        """Null if an argument is; cannot fail, so it is computed in any case."""
        args = self._arguments(call)
        null = self.any_null(args)
        if null == "True":
            return Value(_zero(call.type), "True")
        return Value(self.let(code(*[arg.code for arg in args])), null)

    def _checked(self, call: Call, compute: Callable[..., str]) -> Value:
        """Null if an argument is, else computed by lines that may take the failing exit."""
        args = self._arguments(call)
        null = self.any_null(args)
        if null == "True":
            return Value(_zero(call.type), "True")
        codes = [arg.code for arg in args]
        if null == "False":
            return Value(self.let(compute(*codes)))
        result = self.let(_zero(call.type))
        with self.block(f"if not {null}:"):
            self.line(f"{result} = {compute(*codes)}")
        return Value(result, null)

    def fail_if(self, condition: str) -> None:
        with self.block(f"if {condition}:"):
            self.fail(self)

    def _within(self, code: str, least: int, most: int) -> str:
        self.fail_if(f"{code} < {least} or {code} > {most}")
        return code

    # --- arithmetic -------------------------------------------------------------------------------

    def _add(self, call: Call) -> Value:
        return self._sum(call, "+", "({a} ^ {r}) & ({b} ^ {r})")

    def _subtract(self, call: Call) -> Value:
        return self._sum(call, "-", "({a} ^ {b}) & ({a} ^ {r})")

    def _sum(self, call: Call, sign: str, wrapped: str) -> Value:
        if call.type.is_decimal:
            return self._decimal_sum(call, sign)
        if call.type.is_fractional:
            return self._strict(call, lambda a, b: f"{a} {sign} {b}")

        def compute(a: str, b: str) -> str:
            if call.type.kind != "bigint":
                return self._within(self.let(f"{a} {sign} {b}"), *_bounds(call.type))
            r = self.let(wrapping(a, sign, b))
            self.fail_if(f"({wrapped.format(a=a, b=b, r=r)}) < 0")
            return r

        return self._checked(call, compute)

    def _decimal_sum(self, call: Call, sign: str) -> Value:
        left, right = (10 ** (call.type.scale - arg.type.scale) for arg in call.args)
        return self._strict(call, lambda a, b: f"{a} * {left} {sign} {b} * {right}")

    def _multiply(self, call: Call) -> Value:
        if not call.type.is_integer:
            return self._strict(call, lambda a, b: f"{a} * {b}")

        def compute(a: str, b: str) -> str:
            if call.type.kind != "bigint":
                return self._within(self.let(f"{a} * {b}"), *_bounds(call.type))
            r = self.let(wrapping(a, "*", b))
            small = " and ".join(f"{_INT32_MIN} <= {x} <= {_INT32_MAX}" for x in (a, b))
            with self.block(f"if not ({small}) and {a} != 0:"):
                # A quotient tells whether the product wrapped; the one that would trap is apart.
                with self.block(f"if {a} == -1:"):
                    self.fail_if(f"{b} == {INT64_MIN}")
                with self.block(f"elif {r} // {a} != {b}:"):
                    self.fail(self)
            return r

        return self._checked(call, compute)

    def _divide(self, call: Call) -> Value:
        def compute(a: str, b: str) -> str:
            self.fail_if(f"{b} == 0.0")
            return f"{a} / {b}"

        return self._checked(call, compute)

    def _int_divide(self, call: Call) -> Value:
        def compute(a: str, b: str) -> str:
            self.fail_if(f"{b} == 0")
            r = self.let("0")
            with self.block(f"if {b} == -1:"):
                if call.args[0].type.kind == "bigint":
                    self.fail_if(f"{a} == {INT64_MIN}")
                self.line(f"{r} = -{a}")
            with self.block("else:"):
                self.line(f"{r} = {a} // {b}")
                with self.block(f"if {r} < 0 and {r} * {b} != {a}:"):
                    self.line(f"{r} += 1")
            return r

        return self._checked(call, compute)

    def _remainder(self, call: Call) -> Value:
        fractional = call.type.is_fractional

        def compute(a: str, b: str) -> str:
            self.fail_if(f"{b} == 0")
            if fractional:
                return f"{_wide(call.type)}(np.fmod({a}, {b}))"
            r = self.let("0")
            with self.block(f"if {b} != -1:"):
                self.line(f"{r} = {a} % {b}")
                with self.block(f"if {r} != 0 and ({a} < 0) != ({b} < 0):"):
                    self.line(f"{r} -= {b}")
            return r

        return self._checked(call, compute)

    def _pmod(self, call: Call) -> Value:
        return self._strict(call, lambda a, b: f"{a} % {b}")  # b is a positive literal

    def _negate(self, call: Call) -> Value:
        if not call.type.is_integer:
            return self._strict(call, lambda a: f"-{a}")

        def compute(a: str) -> str:
            self.fail_if(f"{a} == {_bounds(call.type)[0]}")
            return f"-{a}"

        return self._checked(call, compute)

    def _abs(self, call: Call) -> Value:
        if not call.type.is_integer:
            return self._strict(call, lambda a: f"abs({a})")

        def compute(a: str) -> str:
            self.fail_if(f"{a} == {_bounds(call.type)[0]}")
            return f"abs({a})"

        return self._checked(call, compute)

    def _sqrt(self, call: Call) -> Value:
        return self._strict(call, lambda a: f"np.sqrt({a})")

    # --- comparison -------------------------------------------------------------------------------

    def _eq_null_safe(self, call: Call) -> Value:
        a, b = (self.value(arg) for arg in call.args)
        equal = _compared("eq", a.code, b.code, call.args[0].type)
        if a.null == b.null == "False":
            return Value(self.let(equal))
        an, bn = _flag(a.null), _flag(b.null)
        return Value(self.let(f"({an} & {bn}) | (({equal}) & ~{an} & ~{bn})"))

    def _in(self, call: Call) -> Value:
        probe, *items = (self.value(arg) for arg in call.args)
        data_type = call.args[0].type
        tests = [
            f"({_compared('eq', probe.code, item.code, data_type)})"
            + ("" if item.null == "False" else f" & ~{item.null}")
            for item in items
            if item.null != "True"
        ]
        found = self.let(" | ".join(f"({test})" for test in tests) or "False")
        unknown = self.any_null(items)
        if probe.null == "True":
            return Value("False", "True")
        parts = [] if probe.null == "False" else [probe.null]
        if unknown != "False":
            parts.append(f"(~{found})" if unknown == "True" else f"({unknown} & ~{found})")
        return Value(found, self.let(" | ".join(parts), "n") if parts else "False")

    def _greatest(self, call: Call) -> Value:
        return self._extreme(call, "gt")

    def _least(self, call: Call) -> Value:
        return self._extreme(call, "lt")

    def _extreme(self, call: Call, better: str) -> Value:
        best = self.let(_zero(call.type))
        null = self.let("True", "n")
        for arg in call.args:
            item = self.value(arg)
            if item.null == "True":
                continue
            wins = _compared(better, item.code, best, call.type)
            guard = "" if item.null == "False" else f"(not {item.null}) and "
            with self.block(f"if {guard}({null} or {wins}):"):
                self.line(f"{best} = {item.code}")
                self.line(f"{null} = False")
        never = any(self.value(arg).null == "False" for arg in call.args)
        return Value(best, "False" if never else null)

    def _nullif(self, call: Call) -> Value:
        a, b = (self.value(arg) for arg in call.args)
        equal = self.let(_compared("eq", a.code, b.code, call.type))
        known = self.any_null([a, b])
        same = equal if known == "False" else f"({equal} & ~{_flag(known)})"
        return Value(a.code, self.let(f"{_flag(a.null)} | {same}", "n"))

    # --- logic and branches -----------------------------------------------------------------------

    def _not(self, call: Call) -> Value:
        return self._strict(call, lambda a: f"not {a}")

    def _and(self, call: Call) -> Value:
        return self._logic(call, decided_by="False")

    def _or(self, call: Call) -> Value:
        return self._logic(call, decided_by="True")

    def _logic(self, call: Call, decided_by: str) -> Value:
        """Three-valued: an argument that decides does so even beside a null."""
        left, right = call.args
        first = self.value(left)
        if is_branchless(right):
            return self._combined(first, self.value(right), decided_by)
        result, null = self.let(decided_by), self.let("False", "n")
        decided = f"not {first.code}" if decided_by == "False" else first.code
        open_ = "True" if first.null == "True" else f"{_flag(first.null)} or not ({decided})"
        with self.block(f"if {open_}:"):
            both = self._combined(first, self.value(right), decided_by)
            self.line(f"{result} = {both.code}")
            self.line(f"{null} = {both.null}")
        return Value(result, null if self.nulls or call.nullable else "False")

    def _combined(self, a: Value, b: Value, decided_by: str) -> Value:
        sign = "&" if decided_by == "False" else "|"
        if a.null == b.null == "False":
            return Value(self.let(f"{a.code} {sign} {b.code}"))
        decided = []
        for item in (a, b):
            wrong = f"(not {item.code})" if decided_by == "False" else item.code
            known = "" if item.null == "False" else f" & ~{_flag(item.null)}"
            decided.append(f"({wrong}{known})")
        settled = self.let(" | ".join(decided))
        null = self.let(f"({_flag(a.null)} | {_flag(b.null)}) & ~{settled}", "n")
        value = f"not {settled}" if decided_by == "False" else settled
        return Value(self.let(value), null)

    def _is_null(self, call: Call) -> Value:
        return Value(_flag(self.value(call.args[0]).null))

    def _is_not_null(self, call: Call) -> Value:
        null = self.value(call.args[0]).null
        constants = {"False": "np.bool_(True)", "True": "np.bool_(False)"}
        return Value(constants.get(null) or self.let(f"not {null}"))

    def _is_nan(self, call: Call) -> Value:
        arg = self.value(call.args[0])
        if arg.null == "True":
            return Value("np.bool_(False)")
        known = "" if arg.null == "False" else f" & ~{arg.null}"
        return Value(self.let(f"({arg.code} != {arg.code}){known}"))

    def _coalesce(self, call: Call) -> Value:
        result, null = self.let(_zero(call.type)), self.let("True", "n")
        for index, arg in enumerate(call.args):
            with self.block(f"if {null}:" if index else "if True:"):
                item = self.value(arg)
                self.line(f"{result} = {item.code}")
                self.line(f"{null} = {item.null}")
        return Value(result, null)

    def _if(self, call: Call) -> Value:
        condition, then, otherwise = call.args
        return self._branches([(condition, then)], otherwise, call.type)

    def _case(self, call: Call) -> Value:
        pairs = list(zip(call.args[0::2], call.args[1::2], strict=False))
        otherwise = call.args[-1] if len(call.args) % 2 else Literal(None, call.type)
        return self._branches(pairs, otherwise, call.type)

    def _branches(
        self, pairs: list[tuple[Expression, Expression]], otherwise: Expression, data_type: DataType
    ) -> Value:
        result, null = self.let(_zero(data_type)), self.let("False", "n")
        self._branch(pairs, otherwise, result, null)
        return Value(result, null)

    def _branch(
        self,
        pairs: list[tuple[Expression, Expression]],
        otherwise: Expression,
        result: str,
        null: str,
    ) -> None:
        if not pairs:
            item = self.value(otherwise)
            self.line(f"{result} = {item.code}")
            self.line(f"{null} = {item.null}")
            return
        (condition, then), *rest = pairs
        test = self.condition(condition)
        with self.block(f"if {test}:"):
            self._branch([], then, result, null)
        with self.block("else:"):
            self._branch(rest, otherwise, result, null)

    # --- casts and times --------------------------------------------------------------------------

    def _cast(self, call: Call) -> Value:
        source, target = call.args[0].type, call.type
        if source == target:
            return self.value(call.args[0])
        if target.is_fractional:
            scale = f" / {float(10**source.scale)!r}" if source.is_decimal else ""
            return self._strict(call, lambda a: f"{_wide(target)}({a}){scale}")
        if target.kind == "boolean":
            return self._strict(call, lambda a: f"{a} != 0")
        if source.kind == "boolean":
            return self._strict(call, lambda a: f"np.int64({a})")
        if source.kind == "timestamp":
            return self._strict(call, lambda a: f"{a} // 1000000")
        if target.is_decimal:
            return self._checked(call, lambda a: self._rescaled(a, source.scale, target))
        return self._checked(call, lambda a: self._within(a, *_bounds(target)))

    def _rescaled(self, a: str, scale: int, target: DataType) -> str:
        """Half up to the target's scale; fails beyond its precision."""
        more = target.scale - scale
        if more >= 0:
            most = 10 ** max(target.precision - more, 0) - 1
            self._within(a, -most, most)
            return f"{a} * {10**more}"
        unit = 10**-more
        size = self.let(f"(abs({a}) + {unit // 2}) // {unit}")
        self.fail_if(f"{size} > {10**target.precision - 1}")
        return f"{size} if {a} >= 0 else -{size}"

    def _unix_seconds(self, call: Call) -> Value:
        return self._strict(call, lambda a: f"{a} // 1000000")

    def _unix_millis(self, call: Call) -> Value:
        return self._strict(call, lambda a: f"{a} // 1000")

    def _unix_micros(self, call: Call) -> Value:
        return self.value(call.args[0])

    def _timestamp_micros(self, call: Call) -> Value:
        return self.value(call.args[0])

    def _timestamp_millis(self, call: Call) -> Value:
        return self._scaled_time(call, 1000)

    def _timestamp_seconds(self, call: Call) -> Value:
        return self._scaled_time(call, 1_000_000)

    def _scaled_time(self, call: Call, factor: int) -> Value:
        most = INT64_MAX // factor
        return self._checked(call, lambda a: f"{self._within(a, -most, most)} * {factor}")

    # --- lookup -----------------------------------------------------------------------------------

    def _lookup(self, call: Call) -> Value:
        key = self.value(call.args[0])
        identity = (call.option("table"), call.option("value_type"))
        if identity not in self.tables:
            self.tables[identity] = (f"t{len(self.tables)}", call)
        table = self.tables[identity][0]
        shape = table_shape(call)
        result, null = self.let(_zero(call.type)), self.let("True", "n")
        guard = "if True:" if key.null == "False" else f"if not {_flag(key.null)}:"
        with self.block(guard):
            at = (
                self._dense_place(key.code, table)
                if shape.dense
                else self._searched_place(key.code, table)
            )
            with self.block(f"if {at} < np.uint64({table}_values.size):"):
                self.line(f"{result} = {_widened(f'{table}_values[{at}]', call.type)}")
                holes = f"not {table}_valid[{at}]" if shape.holes else "False"
                self.line(f"{null} = {holes}")
        return Value(result, null)

    def _dense_place(self, key: str, table: str) -> str:
        return self.let(f"np.uint64({key}) - np.uint64({table}_first)", "at")

    def _searched_place(self, key: str, table: str) -> str:
        """Binary search; the size of the table where the key is not in it."""
        low, high = self.let("0", "low"), self.let(f"{table}_keys.size", "high")
        with self.block(f"while {low} < {high}:"):
            middle = self.let(f"({low} + {high}) >> 1", "middle")
            with self.block(f"if {table}_keys[{middle}] < {key}:"):
                self.line(f"{low} = {middle} + 1")
            with self.block("else:"):
                self.line(f"{high} = {middle}")
        at = self.let(f"np.uint64({table}_keys.size)", "at")
        with self.block(f"if {low} < {table}_keys.size and {table}_keys[{low}] == {key}:"):
            self.line(f"{at} = np.uint64({low})")
        return at


# By function, besides comparisons; `support.py` says which calls of them come here.
_WRITERS: Mapping[str, Callable[[Emitter, Call], Value]] = {
    "add": Emitter._add,
    "subtract": Emitter._subtract,
    "multiply": Emitter._multiply,
    "divide": Emitter._divide,
    "int_divide": Emitter._int_divide,
    "remainder": Emitter._remainder,
    "pmod": Emitter._pmod,
    "negate": Emitter._negate,
    "abs": Emitter._abs,
    "sqrt": Emitter._sqrt,
    "eq_null_safe": Emitter._eq_null_safe,
    "in": Emitter._in,
    "greatest": Emitter._greatest,
    "least": Emitter._least,
    "nullif": Emitter._nullif,
    "not": Emitter._not,
    "and": Emitter._and,
    "or": Emitter._or,
    "is_null": Emitter._is_null,
    "is_not_null": Emitter._is_not_null,
    "is_nan": Emitter._is_nan,
    "coalesce": Emitter._coalesce,
    "if": Emitter._if,
    "case": Emitter._case,
    "cast": Emitter._cast,
    "unix_seconds": Emitter._unix_seconds,
    "unix_millis": Emitter._unix_millis,
    "unix_micros": Emitter._unix_micros,
    "timestamp_micros": Emitter._timestamp_micros,
    "timestamp_millis": Emitter._timestamp_millis,
    "timestamp_seconds": Emitter._timestamp_seconds,
    "lookup": Emitter._lookup,
}


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


def wrapping(a: str, sign: str, b: str) -> str:
    """64-bit arithmetic that may wrap and is checked afterwards.

    Unsigned, because the compiler may assume that signed arithmetic never wraps, and then drops
    the check.
    """
    return f"np.int64(np.uint64({a}) {sign} np.uint64({b}))"


def _flag(null: str) -> str:
    """A null constant as a NumPy boolean: `~True` in plain Python is -2."""
    return f"np.bool_({null})" if null in ("True", "False") else null


def _bounds(data_type: DataType) -> tuple[int, int]:
    half = 1 << (INTEGER_BITS[data_type.kind] - 1)
    return -half, half - 1


def _wide(data_type: DataType) -> str | None:
    """Integers and times of any width are computed in 64 bits."""
    if data_type.kind == "boolean":
        return None
    return {"float": "np.float32", "double": "np.float64"}.get(data_type.kind, "np.int64")


def _widened(code: str, data_type: DataType) -> str:
    cast = _wide(data_type)
    return code if cast is None else f"{cast}({code})"


def _zero(data_type: DataType) -> str:
    zeros = {"boolean": "False", "float": "np.float32(0.0)", "double": "0.0"}
    return zeros.get(data_type.kind, "np.int64(0)")


def literal_code(value: Any, data_type: DataType) -> str:
    """A constant as source; no text of a value is ever pasted in, only numbers."""
    if data_type.kind == "boolean":
        return f"np.bool_({bool(value)})"
    if data_type.is_fractional:
        number = float(value)
        text = repr(number) if math.isfinite(number) else _unbounded(number)
        return f"np.float32({text})" if data_type.kind == "float" else f"np.float64({text})"
    whole = int(value.scaleb(data_type.scale)) if data_type.is_decimal else int(value)
    return f"np.int64({whole})"


def _unbounded(number: float) -> str:
    if math.isnan(number):
        return "np.nan"
    return "np.inf" if number > 0 else "-np.inf"


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
