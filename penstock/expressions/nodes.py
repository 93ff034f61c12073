"""What an expression is made of, and what is known of a function: its row of the table.

A call holds the row of its function, so whoever has a call has all the facts about it at hand:
nobody keeps lists of names. The rows themselves stand in `functions.py`.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Union

import pyarrow as pa

from penstock.expressions.durations import show_duration
from penstock.expressions.options import Option, OptionRule
from penstock.expressions.signatures import Operands, any_nullable
from penstock.expressions.types import DataType

if TYPE_CHECKING:
    from penstock.expressions.emitter import Emitter, Value
    from penstock.expressions.frame import Frame

EPOCH_DATE = datetime.date(1970, 1, 1)
EPOCH = datetime.datetime(1970, 1, 1)
MICROSECOND = datetime.timedelta(microseconds=1)


# --- the nodes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the input batch, by name."""

    name: str
    type: DataType
    nullable: bool = True

    def to_json(self) -> dict[str, Any]:
        return {"column": self.name, "type": str(self.type), "nullable": self.nullable}

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A constant. `value` is None or the plain form of its type:

    bool, int, float, str, bytes; decimal.Decimal with the type's scale; days since 1970-01-01 for
    date; microseconds since then for timestamp and timestamp_ntz; a tuple of those for an array.
    Build it with `literal`, which checks and converts.
    """

    value: Any
    type: DataType

    @property
    def nullable(self) -> bool:
        return self.value is None

    def to_json(self) -> dict[str, Any]:
        return {"literal": _value_to_json(self.value, self.type), "type": str(self.type)}

    def __str__(self) -> str:
        return _print_value(self.value, self.type)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Literal)
            and self.type == other.type
            and _identity(self.value) == _identity(other.value)
        )

    def __hash__(self) -> int:
        return hash((self.type, _identity(self.value)))


@dataclass(frozen=True, slots=True)
class Call:
    """A function of the closed table applied to arguments; `type` and `nullable` are computed.

    `options` are the parts that are not expressions (target type of a cast, time zone, pattern),
    sorted by name, every default filled in. Build it with `call`.
    """

    row: Function
    args: tuple[Expression, ...]
    type: DataType
    nullable: bool
    options: tuple[tuple[str, Option], ...] = ()

    @property
    def function(self) -> str:
        return self.row.name

    def option(self, name: str) -> Any:
        """The value of one option, None if the call has none of that name."""
        for key, value in self.options:
            if key == name:
                return value
        return None

    def to_json(self) -> dict[str, Any]:
        """Values of JSON from which `from_json` of the tree rebuilds an equal call."""
        node: dict[str, Any] = {"call": self.function, "args": [arg.to_json() for arg in self.args]}
        if self.options:
            node["options"] = dict(self.options)
        return node

    def __str__(self) -> str:
        return self.row.text([str(arg) for arg in self.args], dict(self.options))


Expression = Union[Column, Literal, Call]  # noqa: UP007 (a forward reference inside Call)


# --- the row of a function ------------------------------------------------------------------------


class Arguments(Enum):
    """Which arguments are computed before the function itself, and on which rows."""

    UNTIL_NULL = "from the left; once one is null, the later ones are not computed"
    UNTIL_NULL_FROM_RIGHT = "the same from the right, to see a zero divisor first"
    ALL = "all of them, even beside a null"
    BY_FUNCTION = "none: the function decides where it needs which"


Evaluate = Callable[[Call, list[pa.Array], "Frame"], pa.Array]
Write = Callable[["Emitter", Call], "Value"]


def _never(_call: Call) -> bool:
    return False


def always(_call: Call) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Compiled:
    """How a compiled loop computes a function.

    `when` says of which calls it can. What is `branchless` is so cheap that a loop computes it for
    every row without looking, if it cannot fail.
    """

    write: Write
    when: Callable[[Call], bool] = always
    branchless: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """One row of the table: all that is known of a function.

    `fails` errs on the side of yes. `sql` is printed with the arguments and options put into its
    places. `catalyst` is Spark's class of the function, where it has one; `ansi` is that class's
    field that must say that overflow is an error.
    """

    name: str
    arity: tuple[int, int | None]
    result: Callable[[Operands], DataType]
    evaluate: Evaluate
    nullable: Callable[[Operands], bool] = any_nullable
    options: Mapping[str, OptionRule] = field(default_factory=dict)
    arguments: Arguments = Arguments.UNTIL_NULL
    fails: Callable[[Call], bool] = _never
    sql: str | Callable[[Sequence[str]], str] | None = None  # None: name(arguments)
    catalyst: str | None = None
    ansi: str | None = None
    compiled: Compiled | None = None

    def text(self, args: Sequence[str], options: Mapping[str, Option]) -> str:
        """A call as Spark SQL would show it."""
        if self.sql is None:
            return f"{self.name}({', '.join(args)})"
        if callable(self.sql):
            return self.sql(args)
        template = self.sql
        for place, listed in (("{1...}", args[1:]), ("{...}", args)):
            escaped = ", ".join(listed).replace("{", "{{").replace("}", "}}")
            template = template.replace(place, escaped)
        return template.format(*args, **options)

    def __reduce__(self) -> tuple[Callable[[str], Function], tuple[str]]:
        """A row travels by its name: it holds code, and is the same one on the other side."""
        from penstock.expressions.functions import function_named  # noqa: PLC0415 (it imports us)

        return function_named, (self.name,)


# --- walking --------------------------------------------------------------------------------------


def children(expression: Expression) -> tuple[Expression, ...]:
    return expression.args if isinstance(expression, Call) else ()


def walk(expression: Expression) -> Iterator[Expression]:
    """The expression and everything below it, parents first."""
    yield expression
    for child in children(expression):
        yield from walk(child)


def columns_of(expression: Expression) -> tuple[Column, ...]:
    """The distinct columns that an expression reads, in order of first use."""
    found = (node for node in walk(expression) if isinstance(node, Column))
    return tuple(dict.fromkeys(found))


def may_fail(expression: Expression) -> bool:
    """Whether some row could make this expression fail; errs on the side of yes."""
    return any(isinstance(node, Call) and node.row.fails(node) for node in walk(expression))


def is_branchless(expression: Expression) -> bool:
    """Whether it is worth computing for every row without looking: cheap, and it cannot fail."""
    calls = (node for node in walk(expression) if isinstance(node, Call))
    return not may_fail(expression) and all(
        call.row.compiled is not None and call.row.compiled.branchless for call in calls
    )


# --- literals -------------------------------------------------------------------------------------


def _identity(value: Any) -> Any:
    """What makes two literals the same: bits for floats, so NaN is itself and -0.0 is not 0.0."""
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, tuple):
        return tuple(_identity(item) for item in value)
    if isinstance(value, decimal.Decimal):
        return value.as_tuple()
    return value


def _print_value(value: Any, data_type: DataType) -> str:
    kind = data_type.kind
    if value is None:
        return "NULL"
    if kind == "boolean":
        return "true" if value else "false"
    if kind == "string" or data_type.is_collated:
        return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"
    if kind == "binary":
        return f"X'{value.hex().upper()}'"
    if kind == "date":
        return f"DATE '{_shown(EPOCH_DATE, datetime.timedelta(days=1), value)}'"
    if kind in ("timestamp", "timestamp_ntz"):
        zone = "Z" if kind == "timestamp" else ""
        return f"{kind.upper()} '{_shown(EPOCH, MICROSECOND, value)}{zone}'"
    if data_type.is_months:
        return f"INTERVAL '{value}' MONTH"
    if data_type.is_interval:
        return f"INTERVAL '{show_duration(value)}'"
    if kind == "array":
        assert data_type.element is not None
        return f"array({', '.join(_print_value(item, data_type.element) for item in value)})"
    if kind in ("float", "double"):
        text = repr(value) if math.isfinite(value) else f"'{value}'"
        return f"CAST({text} AS {kind.upper()})"
    suffix = {"tinyint": "Y", "smallint": "S", "bigint": "L"}.get(kind, "")
    return f"{value}{suffix}"


def _shown(start: datetime.date, unit: datetime.timedelta, count: int) -> str:
    """A date or time for a reader; the bare count where the calendar of Python ends."""
    try:
        return str(start + unit * count)
    except OverflowError:
        return str(count)


def _value_to_json(value: Any, data_type: DataType) -> Any:
    if value is None:
        return None
    if data_type.kind in ("float", "double"):
        return value if math.isfinite(value) else str(value)
    if data_type.kind == "decimal":
        return str(value)
    if data_type.kind == "binary":
        return base64.b64encode(value).decode("ascii")
    if data_type.kind == "array":
        assert data_type.element is not None
        return [_value_to_json(item, data_type.element) for item in value]
    return value
