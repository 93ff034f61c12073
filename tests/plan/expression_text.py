"""Column expressions from text, in the form in which expressions print themselves.

It reads what plans in cases and notebooks need: operators, function calls, casts, CASE, literals.
Struct constructors and lookup tables have no text form.
"""

from __future__ import annotations

import decimal
import re
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import PlanError
from penstock.expressions.types import parse_type
from penstock.testing.columns import ColumnExpression, Constant, Reference, apply, negated

DEPTH_MAX = 100
DIGITS_MAX = 40  # beyond any type that a literal can have

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>\d+(?:\.\d+)?(?:e[-+]?\d+)?(?:[LSY]\b)?)
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | `(?P<quoted>[^`]+)`
    | '(?P<string>(?:[^'\\]|\\.)*)'
    | (?P<mark><=>|<=|>=|!=|<>|[-+*/%<>=(),.\[\]:])
    )""",
    re.VERBOSE,
)
_COMPARISONS = {
    "=": "eq", "!=": "ne", "<>": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge",
    "<=>": "eq_null_safe",
}  # fmt: skip
_SUMS = {"+": "add", "-": "subtract"}
_PRODUCTS = {"*": "multiply", "/": "divide", "%": "remainder", "div": "int_divide"}
_SUFFIXES = {"L": "bigint", "S": "smallint", "Y": "tinyint"}
_ALIASES = {
    "startswith": "starts_with", "endswith": "ends_with", "isnan": "is_nan",
    "dayofweek": "day_of_week",
}  # fmt: skip
# Functions that take constants as options: position of each among the arguments.
_OPTIONS: dict[str, tuple[str | None, ...]] = {
    "split": (None, "pattern", "limit"),
    "round": (None, "scale"),
    "date_trunc": ("unit", None),
}


@dataclass(frozen=True, slots=True)
class Token:
    kind: str  # number, word, quoted, string, mark, end
    text: str


@dataclass(slots=True)
class Cursor:
    """A place in a text of tokens; plan lines share it with expressions."""

    text: str
    tokens: list[Token] = field(default_factory=list)
    at: int = 0

    def __post_init__(self) -> None:
        position, text = 0, self.text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                raise self.error(f"unexpected {text[position : position + 20]!r}")
            self.tokens.append(Token(match.lastgroup, match.group(match.lastgroup)))
            position = match.end()
        self.tokens.append(Token("end", ""))

    @property
    def next(self) -> Token:
        return self.tokens[self.at]

    def error(self, reason: str) -> PlanError:
        return PlanError(f"{self.text.strip()!r:.200}: {reason}", text=self.text[:200])

    def take(self, *kinds: str) -> str:
        token = self.next
        if token.kind not in kinds:
            raise self.error(f"unexpected {token.text or 'end'!r}, expected a {' or '.join(kinds)}")
        self.at += 1
        return token.text

    def is_word(self, *words: str) -> bool:
        return self.next.kind == "word" and self.next.text.lower() in words

    def is_mark(self, *marks: str) -> bool:
        return self.next.kind == "mark" and self.next.text in marks

    def accept(self, text: str) -> bool:
        """Step over a word or mark if it is the next one."""
        if (self.next.kind == "mark" and self.next.text == text) or self.is_word(text):
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.error(f"unexpected {self.next.text or 'end'!r}, expected {text!r}")

    def name(self) -> str:
        return self.take("word", "quoted")

    def number(self) -> int:
        digits = self.take("number")
        if not digits.isdecimal() or len(digits) > DIGITS_MAX:
            raise self.error(f"{digits!r:.40} is not a whole number of at most {DIGITS_MAX} digits")
        return int(digits)

    def end(self) -> None:
        if self.next.kind != "end":
            raise self.error(f"unexpected {self.next.text!r}")


def take_expression(cursor: Cursor, depth: int = 0) -> ColumnExpression:
    """The longest expression from the cursor on."""
    if depth > DEPTH_MAX:
        raise cursor.error(f"nested deeper than {DEPTH_MAX}")
    left = _conjunction(cursor, depth)
    while cursor.accept("or"):
        left = apply("or", left, _conjunction(cursor, depth))
    return left


def take_operand(cursor: Cursor) -> ColumnExpression:
    """What may stand at one side of a comparison."""
    return _sum(cursor, 0)


def _conjunction(cursor: Cursor, depth: int) -> ColumnExpression:
    left = _negation(cursor, depth)
    while cursor.accept("and"):
        left = apply("and", left, _negation(cursor, depth))
    return left


def _negation(cursor: Cursor, depth: int) -> ColumnExpression:
    if depth > DEPTH_MAX:
        raise cursor.error(f"nested deeper than {DEPTH_MAX}")
    if cursor.accept("not"):
        return negated(_negation(cursor, depth + 1))
    return _comparison(cursor, depth)


def _comparison(cursor: Cursor, depth: int) -> ColumnExpression:
    left = _sum(cursor, depth)
    if cursor.is_mark(*_COMPARISONS):
        function = _COMPARISONS[cursor.take("mark")]
        return apply(function, left, _sum(cursor, depth))
    if cursor.accept("is"):
        function = "is_not_null" if cursor.accept("not") else "is_null"
        cursor.expect("null")
        return apply(function, left)
    if cursor.accept("in"):
        cursor.expect("(")
        return apply("in", left, *_arguments(cursor, depth))
    for word in ("like", "rlike"):
        if cursor.accept(word):
            return apply(word, left, pattern=_unescaped(cursor.take("string")))
    return left


def _sum(cursor: Cursor, depth: int) -> ColumnExpression:
    left = _product(cursor, depth)
    while cursor.is_mark(*_SUMS):
        left = apply(_SUMS[cursor.take("mark")], left, _product(cursor, depth))
    return left


def _product(cursor: Cursor, depth: int) -> ColumnExpression:
    left = _postfix(cursor, depth)
    while cursor.is_mark("*", "/", "%") or cursor.is_word("div"):
        function = _PRODUCTS[cursor.take("mark", "word").lower()]
        left = apply(function, left, _postfix(cursor, depth))
    return left


def _postfix(cursor: Cursor, depth: int) -> ColumnExpression:
    value = _primary(cursor, depth)
    while True:
        if cursor.accept("."):
            value = apply("get_field", value, name=cursor.name())
        elif cursor.accept("["):
            value = apply("get_item", value, take_expression(cursor, depth + 1))
            cursor.expect("]")
        else:
            return value


def _primary(cursor: Cursor, depth: int) -> ColumnExpression:
    if depth > DEPTH_MAX:
        raise cursor.error(f"nested deeper than {DEPTH_MAX}")
    token = cursor.next
    if cursor.accept("("):
        inner = take_expression(cursor, depth + 1)
        cursor.expect(")")
        return inner
    if cursor.accept("-"):
        if cursor.next.kind == "number":
            return _number(cursor, -1)
        return apply("negate", _postfix(cursor, depth + 1))
    if token.kind == "number":
        return _number(cursor, 1)
    if token.kind == "string":
        return Constant(_unescaped(cursor.take("string")))
    name = cursor.name()
    if token.kind == "word" and name.lower() in ("true", "false", "null"):
        return Constant({"true": True, "false": False, "null": None}[name.lower()])
    if token.kind == "word" and name.lower() == "case":
        return _case(cursor, depth)
    if token.kind == "word" and cursor.accept("("):
        return _call(cursor, name, depth)
    return Reference(name)


def _call(cursor: Cursor, name: str, depth: int) -> ColumnExpression:
    if name.lower() in ("cast", "try_cast"):
        return _cast(cursor, name.lower(), depth)
    function = _ALIASES.get(name, name)
    args = _arguments(cursor, depth)
    places = _OPTIONS.get(function, ())
    options: dict[str, Any] = {}
    operands: list[ColumnExpression] = []
    for index, arg in enumerate(args):
        option = places[index] if index < len(places) else None
        if option is not None and isinstance(arg, Constant):
            options[option] = arg.value
        else:
            operands.append(arg)
    return apply(function, *operands, **options)


def _cast(cursor: Cursor, function: str, depth: int) -> ColumnExpression:
    value = take_expression(cursor, depth + 1)
    cursor.expect("as")
    words, brackets = "", 0
    while brackets > 0 or not cursor.is_mark(")"):
        token = cursor.take("word", "mark", "number")
        brackets += (token in "(<") - (token in ")>")
        words += token
    cursor.expect(")")
    if words.isupper() and isinstance(value, Constant):  # how a fractional literal prints itself
        try:
            return Constant(float(value.value), parse_type(words.lower()))
        except (TypeError, ValueError) as error:
            raise cursor.error(f"{value.value!r:.40} is not a number") from error
    return apply(function, value, to=words)


def _case(cursor: Cursor, depth: int) -> ColumnExpression:
    parts: list[ColumnExpression] = []
    while cursor.accept("when"):
        parts.append(take_expression(cursor, depth + 1))
        cursor.expect("then")
        parts.append(take_expression(cursor, depth + 1))
    if cursor.accept("else"):
        parts.append(take_expression(cursor, depth + 1))
    cursor.expect("end")
    return apply("case", *parts)


def _arguments(cursor: Cursor, depth: int) -> list[ColumnExpression]:
    args: list[ColumnExpression] = []
    while not cursor.accept(")"):
        if args:
            cursor.expect(",")
        args.append(take_expression(cursor, depth + 1))
    return args


def _number(cursor: Cursor, sign: int) -> ColumnExpression:
    digits = cursor.take("number")
    if "e" not in digits and len(digits) > DIGITS_MAX:
        raise cursor.error(f"{digits!r:.40} has more than {DIGITS_MAX} digits")
    suffix = _SUFFIXES.get(digits[-1])
    if suffix is not None and digits[:-1].isdecimal():
        return Constant(sign * int(digits[:-1]), parse_type(suffix))
    return Constant(sign * (decimal.Decimal(digits) if set(".e") & set(digits) else int(digits)))


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)
