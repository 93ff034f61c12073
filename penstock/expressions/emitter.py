"""Expressions as lines of Numba source: values and nulls in local variables, failures as exits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from penstock.expressions.nodes import Arguments, Call, Column, Expression, Literal, may_fail
from penstock.expressions.types import INTEGER_BITS, DataType

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


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
        cast = wide(column.type)
        code = f"{array}[{at}]" if cast is None else f"{cast}({array}[{at}])"
        null = self.let(f"~{array}_valid[row]", "n") if self.nulls else "False"
        return Value(self.let(code), null)

    def _literal(self, constant: Literal) -> Value:
        if constant.value is None:
            return Value(zero(constant.type), "True")
        return Value(literal_code(constant.value, constant.type))

    def _call(self, call: Call) -> Value:
        assert call.row.compiled is not None, "only what a loop can compute comes here"
        return call.row.compiled.write(self, call)

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
        if call.row.arguments is Arguments.UNTIL_NULL_FROM_RIGHT:
            order.reverse()
        values: dict[int, Value] = {}
        for index in order:
            missing = self.any_null(list(values.values()))
            arg = call.args[index]
            if missing == "False" or not may_fail(arg):
                values[index] = self.value(arg)
            else:
                values[index] = self._unless(missing, arg)
        return [values[index] for index in range(len(call.args))]

    def _unless(self, missing: str, arg: Expression) -> Value:
        if missing == "True":
            return Value(zero(arg.type), "True")
        result, null = self.let(zero(arg.type)), self.let("True", "n")
        with self.block(f"if not {missing}:"):
            item = self.value(arg)
            self.line(f"{result} = {item.code}")
            self.line(f"{null} = {item.null}")
        return Value(result, null)

    def strict(self, call: Call, code: Callable[..., str]) -> Value:
        """Null if an argument is; cannot fail, so it is computed in any case."""
        args = self._arguments(call)
        null = self.any_null(args)
        if null == "True":
            return Value(zero(call.type), "True")
        return Value(self.let(code(*[arg.code for arg in args])), null)

    def checked(self, call: Call, compute: Callable[..., str]) -> Value:
        """Null if an argument is, else computed by lines that may take the failing exit."""
        args = self._arguments(call)
        null = self.any_null(args)
        if null == "True":
            return Value(zero(call.type), "True")
        codes = [arg.code for arg in args]
        if null == "False":
            return Value(self.let(compute(*codes)))
        result = self.let(zero(call.type))
        with self.block(f"if not {null}:"):
            self.line(f"{result} = {compute(*codes)}")
        return Value(result, null)

    def fail_if(self, condition: str) -> None:
        with self.block(f"if {condition}:"):
            self.fail(self)

    def within(self, code: str, least: int, most: int) -> str:
        self.fail_if(f"{code} < {least} or {code} > {most}")
        return code


def wrapping(a: str, sign: str, b: str) -> str:
    """64-bit arithmetic that may wrap and is checked afterwards.

    Unsigned, because the compiler may assume that signed arithmetic never wraps, and then drops
    the check.
    """
    return f"np.int64(np.uint64({a}) {sign} np.uint64({b}))"


def flag(null: str) -> str:
    """A null constant as a NumPy boolean: `~True` in plain Python is -2."""
    return f"np.bool_({null})" if null in ("True", "False") else null


def bounds(data_type: DataType) -> tuple[int, int]:
    half = 1 << (INTEGER_BITS[data_type.kind] - 1)
    return -half, half - 1


def wide(data_type: DataType) -> str | None:
    """Integers and times of any width are computed in 64 bits."""
    if data_type.kind == "boolean":
        return None
    return {"float": "np.float32", "double": "np.float64"}.get(data_type.kind, "np.int64")


def widened(code: str, data_type: DataType) -> str:
    cast = wide(data_type)
    return code if cast is None else f"{cast}({code})"


def zero(data_type: DataType) -> str:
    zeros = {"boolean": "False", "float": "np.float32(0.0)", "double": "0.0"}
    return zeros.get(data_type.kind, "np.int64(0)")


def literal_code(value: Any, data_type: DataType) -> str:
    """A constant as source; no text of a value is ever pasted in, only numbers."""
    if data_type.kind == "boolean":
        return f"np.bool_({bool(value)})"
    if data_type.is_fractional:
        number = float(value)
        text = repr(number) if math.isfinite(number) else unbounded(number)
        return f"np.float32({text})" if data_type.kind == "float" else f"np.float64({text})"
    whole = int(value.scaleb(data_type.scale)) if data_type.is_decimal else int(value)
    return f"np.int64({whole})"


def unbounded(number: float) -> str:
    if math.isnan(number):
        return "np.nan"
    return "np.inf" if number > 0 else "-np.inf"
