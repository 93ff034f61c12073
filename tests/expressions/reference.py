"""An independent definition of every expression: one row at a time, plain Python, no engine code.

Works on the JSON form of a tree. Values are None, bool, int, float, str, bytes, Decimal, lists and
dictionaries; a date is its days and a timestamp its microseconds since 1970. `Refused` is raised
for a row on which Spark would fail in ANSI mode.
"""

from __future__ import annotations

import math
import re
import struct
from datetime import date, datetime, timedelta, timezone
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
WIDE = Context(prec=2000, rounding=ROUND_HALF_UP)
DAY_US = 86_400_000_000
EPOCH = datetime(1970, 1, 1)
EPOCH_UTC = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017
US = timedelta(microseconds=1)


class Refused(Exception):
    """This row has no value."""


def value_of(node: dict[str, Any], row: dict[str, Any]) -> Any:
    """The value of an expression on one row, arguments computed only when Spark computes them."""
    if "column" in node:
        return row[node["column"]]
    if "literal" in node:
        return _literal(node["literal"], node["type"])
    name, args, options = node["call"], node["args"], node.get("options", {})
    lazy = LAZY.get(name)
    if lazy is not None:
        return lazy(args, row)
    if name in ("greatest", "least", "eq_null_safe", "struct", "array", "concat_ws", "is_null",
                "is_not_null", "is_nan"):  # fmt: skip
        return STRICT[name](node, [value_of(arg, row) for arg in args], options)
    order = list(range(len(args)))
    if name in ("divide", "int_divide", "remainder", "pmod"):
        order.reverse()
    values: list[Any] = [None] * len(args)
    for index in order:
        values[index] = value_of(args[index], row)
        if values[index] is None:
            return None
    return STRICT[name](node, values, options)


def _literal(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind in ("float", "double"):
        return float(value)
    if kind.startswith("decimal"):
        return Decimal(value)
    return value


# --- types ----------------------------------------------------------------------------------------


def type_of(node: dict[str, Any]) -> str:
    if "type" in node:
        return str(node["type"])
    name, args, options = node["call"], node["args"], node.get("options", {})
    if name in ("cast", "try_cast"):
        return str(options["to"])
    if name in ("add", "subtract", "multiply", "divide", "remainder", "pmod"):
        return _arithmetic_type(name, type_of(args[0]), type_of(args[1]))
    if name in ("case", "if"):
        return type_of(args[1])
    if name == "int_divide":
        return "bigint"
    if name in ("negate", "abs", "coalesce", "nullif", "greatest", "least"):
        return type_of(args[0])
    if name == "struct":
        return "struct"
    return {"length": "int", "size": "int", "split": "array<string>", "array": "array"}.get(
        name, "string"
    )


def digits(kind: str) -> tuple[int, int]:
    precision, scale = re.fullmatch(r"decimal\((\d+),(\d+)\)", kind).groups()  # type: ignore[union-attr]
    return int(precision), int(scale)


def _arithmetic_type(name: str, left: str, right: str) -> str:
    if not left.startswith("decimal"):
        return left
    (p1, s1), (p2, s2) = digits(left), digits(right)
    if name in ("add", "subtract"):
        scale = max(s1, s2)
        return f"decimal({max(p1 - s1, p2 - s2) + scale + 1},{scale})"
    if name == "multiply":
        return f"decimal({p1 + p2 + 1},{s1 + s2})"
    if name == "divide":
        scale = max(6, s1 + p2 + 1)
        return f"decimal({p1 - s1 + s2 + scale},{scale})"
    return f"decimal({min(p1 - s1, p2 - s2) + max(s1, s2)},{max(s1, s2)})"


def fitted(number: Any, kind: str) -> Any:
    """A result as a value of its type, refused if it is outside."""
    if kind in BITS:
        if not -(1 << (BITS[kind] - 1)) <= number < 1 << (BITS[kind] - 1):
            raise Refused(kind)
        return number
    if kind == "float":
        return single(number)
    if kind.startswith("decimal"):
        precision, scale = digits(kind)
        rounded = number.quantize(Decimal(1).scaleb(-scale), context=WIDE)
        if abs(rounded) >= Decimal(10) ** (precision - scale):
            raise Refused(kind)
        return rounded
    return number


def single(number: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


# --- arithmetic -----------------------------------------------------------------------------------


def _float_operation(name: str, a: float, b: float) -> float:
    try:
        return {"add": a.__add__, "subtract": a.__sub__, "multiply": a.__mul__}[name](b)
    except OverflowError:
        return math.nan


def arithmetic(node: dict[str, Any], values: list[Any], _options: dict[str, Any]) -> Any:
    name, kind = node["call"], type_of(node)
    a, b = values
    if kind in ("float", "double"):
        return fitted(_float_operation(name, a, b), kind)
    operations = {"add": lambda: a + b, "subtract": lambda: a - b, "multiply": lambda: a * b}
    if kind.startswith("decimal"):
        operations = {
            "add": lambda: WIDE.add(a, b),
            "subtract": lambda: WIDE.subtract(a, b),
            "multiply": lambda: WIDE.multiply(a, b),
        }
    return fitted(operations[name](), kind)


def divide(node: dict[str, Any], values: list[Any], _options: dict[str, Any]) -> Any:
    a, b = values
    if b == 0:
        raise Refused("zero")
    kind = type_of(node)
    if kind == "double":
        try:
            return a / b
        except OverflowError:
            return math.copysign(math.inf, a) * math.copysign(1.0, b)
    return fitted(Context(prec=60, rounding=ROUND_HALF_UP).divide(a, b), kind)


def _toward_zero(a: Any, b: Any) -> int:
    quotient = abs(int(a)) // abs(int(b))
    return quotient if (a < 0) == (b < 0) else -quotient


def int_divide(_node: dict[str, Any], values: list[Any], _options: dict[str, Any]) -> Any:
    a, b = values
    if b == 0:
        raise Refused("zero")
    if isinstance(a, Decimal):
        a, b = int(a.scaleb(20, WIDE)), int(b.scaleb(20, WIDE))
    return fitted(_toward_zero(a, b), "bigint")


def _remainder(a: Any, b: Any) -> Any:
    if isinstance(a, float):
        return math.fmod(a, b) if math.isfinite(a) and not math.isnan(b) else math.nan
    if isinstance(a, Decimal):
        return WIDE.remainder(a, b)
    return a - b * _toward_zero(a, b)


def remainder(node: dict[str, Any], values: list[Any], _options: dict[str, Any]) -> Any:
    if values[1] == 0:
        raise Refused("zero")
    return fitted(_remainder(*values), type_of(node))


def pmod(node: dict[str, Any], values: list[Any], _options: dict[str, Any]) -> Any:
    a, b = values
    if b == 0:
        raise Refused("zero")
    kind = type_of(node)
    first = _remainder(a, b)
    if not first < 0:
        return fitted(first, kind)
    total = first + b
    if kind in ("int", "bigint"):  # Java wraps around here
        bits = BITS[kind]
        total = (total + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
    if kind == "float":
        total = single(total)
    return fitted(_remainder(total, b), kind)


def negate(node: dict[str, Any], values: list[Any], _options: dict[str, Any]) -> Any:
    number = values[0]
    flipped = number.copy_negate() if isinstance(number, Decimal) else -number
    return fitted(abs(flipped) if node["call"] == "abs" else flipped, type_of(node["args"][0]))


# --- comparison -----------------------------------------------------------------------------------


def compared(a: Any, b: Any) -> int:
    if isinstance(a, float) and (math.isnan(a) or math.isnan(b)):
        return int(math.isnan(a)) - int(math.isnan(b))
    if isinstance(a, str):
        a, b = a.encode(), b.encode()
    return (a > b) - (a < b)


TESTS = {
    "eq": lambda order: order == 0,
    "ne": lambda order: order != 0,
    "lt": lambda order: order < 0,
    "le": lambda order: order <= 0,
    "gt": lambda order: order > 0,
    "ge": lambda order: order >= 0,
}


def compare(node: dict[str, Any], values: list[Any], _options: dict[str, Any]) -> bool:
    return bool(TESTS[node["call"]](compared(*values)))


def eq_null_safe(_node: dict[str, Any], values: list[Any], _options: dict[str, Any]) -> bool:
    a, b = values
    return a is b is None or (a is not None and b is not None and compared(a, b) == 0)


def extreme(node: dict[str, Any], values: list[Any], _options: dict[str, Any]) -> Any:
    best = None
    for value in values:
        if value is not None and (
            best is None or compared(value, best) * (1 if node["call"] == "greatest" else -1) > 0
        ):
            best = value
    return best


# --- lazy functions -------------------------------------------------------------------------------


def and_(args: list[Any], row: dict[str, Any]) -> bool | None:
    left = value_of(args[0], row)
    if left is False:
        return False
    right = value_of(args[1], row)
    return False if right is False else (None if None in (left, right) else True)


def or_(args: list[Any], row: dict[str, Any]) -> bool | None:
    left = value_of(args[0], row)
    if left is True:
        return True
    right = value_of(args[1], row)
    return True if right is True else (None if None in (left, right) else False)


def coalesce(args: list[Any], row: dict[str, Any]) -> Any:
    for arg in args:
        value = value_of(arg, row)
        if value is not None:
            return value
    return None


def case(args: list[Any], row: dict[str, Any]) -> Any:
    rest = list(args)
    while len(rest) >= 2:
        condition, value, *rest = rest
        if value_of(condition, row) is True:
            return value_of(value, row)
    return value_of(rest[0], row) if rest else None


def nullif(args: list[Any], row: dict[str, Any]) -> Any:
    value = value_of(args[0], row)
    if value is None:
        return None
    other = value_of(args[1], row)
    return None if other is not None and compared(value, other) == 0 else value


def in_(args: list[Any], row: dict[str, Any]) -> bool | None:
    value = value_of(args[0], row)
    if value is None:
        return None
    unknown = False
    for arg in args[1:]:
        item = value_of(arg, row)
        if item is None:
            unknown = True
        elif compared(value, item) == 0:
            return True
    return None if unknown else False


LAZY = {"and": and_, "or": or_, "coalesce": coalesce, "if": case, "case": case, "nullif": nullif,
        "in": in_}  # fmt: skip


# --- text -----------------------------------------------------------------------------------------


def substring(_node: dict[str, Any], values: list[Any], _options: dict[str, Any]) -> str:
    text, position, count = values
    start = position - 1 if position > 0 else (len(text) + position if position < 0 else 0)
    end = start + count
    return str(text[max(start, 0) : max(end, 0)]) if end > start else ""


def pad(node: dict[str, Any], values: list[Any], _options: dict[str, Any]) -> str:
    text, count, fill = values
    count = max(count, 0)
    missing = count - len(text)
    if missing <= 0 or not fill:
        return str(text[:count])
    filling = (fill * missing)[:missing]
    return filling + text if node["call"] == "lpad" else text + filling


def like(_node: dict[str, Any], values: list[Any], options: dict[str, Any]) -> bool:
    return _like(values[0], _tokens(options["pattern"], options["escape"]))


def _tokens(pattern: str, escape: str) -> list[tuple[str, str]]:
    tokens, at = [], 0
    while at < len(pattern):
        if pattern[at] == escape:
            tokens.append(("text", pattern[at + 1]))
            at += 2
        else:
            tokens.append(("wild" if pattern[at] in "%_" else "text", pattern[at]))
            at += 1
    return tokens


def _like(text: str, tokens: list[tuple[str, str]]) -> bool:
    reached = {0}
    for kind, character in tokens:
        if (kind, character) == ("wild", "%"):
            reached = set(range(min(reached), len(text) + 1)) if reached else set()
        else:
            reached = {
                at + 1
                for at in reached
                if at < len(text) and (kind == "wild" or text[at] == character)
            }
    return len(text) in reached


JAVA_DOT = "[^\n\r\x85\u2028\u2029]"


def _java_regex(pattern: str) -> re.Pattern[str]:
    """For the simple patterns of the tests: ASCII classes, Java's dot and dollar."""
    out = re.sub(r"(?<!\\)\.", lambda _: JAVA_DOT, pattern)
    out = re.sub(r"(?<!\\)\$", lambda _: "(?=(?:\r\n|[\n\r\x85\u2028\u2029])?\\Z)", out)
    return re.compile(out, re.ASCII)


def rlike(_node: dict[str, Any], values: list[Any], options: dict[str, Any]) -> bool:
    return _java_regex(options["pattern"]).search(values[0]) is not None


def split(_node: dict[str, Any], values: list[Any], options: dict[str, Any]) -> list[str]:
    return _java_regex(options["pattern"]).split(values[0])


def replace(_node: dict[str, Any], values: list[Any], _options: dict[str, Any]) -> str:
    text, search, replacement = values
    return str(text.replace(search, replacement)) if search else str(text)


# --- mathematics ----------------------------------------------------------------------------------


def whole(node: dict[str, Any], values: list[Any], _options: dict[str, Any]) -> Any:
    number = values[0]
    if isinstance(number, float) and math.isnan(number):
        return 0
    if isinstance(number, float) and math.isinf(number):
        raise Refused("infinite")
    result = math.floor(number) if node["call"] == "floor" else math.ceil(number)
    return Decimal(result) if isinstance(number, Decimal) else fitted(result, "bigint")


def rounded(node: dict[str, Any], values: list[Any], options: dict[str, Any]) -> Any:
    number, kind, scale = values[0], type_of(node["args"][0]), options["scale"]
    if isinstance(number, float):
        if not math.isfinite(number):
            return number
        exact = Decimal(repr(number)).quantize(Decimal(1).scaleb(-scale), context=WIDE)
        return fitted(float(exact) + 0.0, kind)
    if isinstance(number, Decimal):
        kept = min(digits(kind)[1], scale)
        exact = number.quantize(Decimal(1).scaleb(-kept), context=WIDE)
        return exact.quantize(Decimal(1).scaleb(-max(kept, 0)), context=WIDE)
    if scale >= 0:
        return number
    return fitted(int(Decimal(number).quantize(Decimal(1).scaleb(-scale), context=WIDE)), kind)


def real(node: dict[str, Any], values: list[Any], _options: dict[str, Any]) -> float | None:
    number = values[0]
    if node["call"] == "sqrt":
        return math.sqrt(number) if number >= 0 else math.nan
    if node["call"] == "ln":
        return None if number <= 0 else math.log(number)
    try:
        return math.exp(number)
    except OverflowError:
        return math.inf


def power(_node: dict[str, Any], values: list[Any], _options: dict[str, Any]) -> float:
    a, b = values
    if b == 0:
        return 1.0
    if math.isnan(a) or math.isnan(b) or (abs(a) == 1 and math.isinf(b)):
        return math.nan
    try:
        return math.pow(a, b)
    except OverflowError:
        return -math.inf if a < 0 and b % 2 == 1 else math.inf
    except ValueError:  # zero to a negative power, or a negative number to a fraction
        if a != 0:
            return math.nan
        return math.copysign(math.inf, a) if b % 2 == 1 else math.inf


# --- times ----------------------------------------------------------------------------------------


def to_local(micros: int, zone: str | None) -> datetime:
    if zone is None:
        return EPOCH + US * micros
    return (EPOCH_UTC + US * micros).astimezone(ZoneInfo(zone)).replace(tzinfo=None)


def to_utc(local: datetime, zone: str) -> int:
    aware = local.replace(tzinfo=ZoneInfo(zone))
    offset = aware.utcoffset()
    assert offset is not None
    return (local - EPOCH) // US - offset // US


def date_of(value: int, kind: str, zone: str | None) -> date:
    if kind == "date":
        return date(1970, 1, 1) + timedelta(days=value)
    return to_local(value, zone).date()


def time_part(node: dict[str, Any], values: list[Any], options: dict[str, Any]) -> int:
    name, kind = node["call"], type_of(node["args"][0])
    if name in ("hour", "minute", "second"):
        return int(getattr(to_local(values[0], options.get("time_zone")), name))
    day = date_of(values[0], kind, options.get("time_zone"))
    return day.isoweekday() % 7 + 1 if name == "day_of_week" else int(getattr(day, name))


def date_trunc(_node: dict[str, Any], values: list[Any], options: dict[str, Any]) -> int:
    micros, zone, unit = values[0], options["time_zone"], options["unit"]
    local = to_local(micros, zone)
    offset = (local - EPOCH) // US - micros
    cut = (
        local.replace(microsecond=local.microsecond // 1000 * 1000)
        if unit != "microsecond"
        else local
    )
    order = ("millisecond", "second", "minute", "hour", "day")
    for step in order[1:]:
        if unit in (*order[order.index(step) :], "week", "month", "quarter", "year"):
            cut = cut.replace(**{"second": {"microsecond": 0}, "minute": {"second": 0},
                                 "hour": {"minute": 0}, "day": {"hour": 0}}[step])  # fmt: skip
    if unit == "week":
        cut -= timedelta(days=cut.weekday())
    elif unit in ("month", "quarter", "year"):
        month = {"month": cut.month, "quarter": (cut.month - 1) // 3 * 3 + 1, "year": 1}[unit]
        cut = cut.replace(month=month, day=1)
    kept = (cut - EPOCH) // US - offset
    if (
        unit in ("hour", "minute", "second", "millisecond", "microsecond")
        and to_local(kept, zone) == cut
    ):
        return kept
    return to_utc(cut, zone)


def unix_time(node: dict[str, Any], values: list[Any], _options: dict[str, Any]) -> int:
    return int(values[0]) // {"seconds": 10**6, "millis": 10**3, "micros": 1}[node["call"][5:]]


def timestamp_from(node: dict[str, Any], values: list[Any], _options: dict[str, Any]) -> int:
    factor = {"seconds": 10**6, "millis": 10**3, "micros": 1}[node["call"][10:]]
    return int(fitted(values[0] * factor, "bigint"))


def date_add(_node: dict[str, Any], values: list[Any], _options: dict[str, Any]) -> int:
    return int((sum(values) + (1 << 31)) % (1 << 32) - (1 << 31))


# --- casts ----------------------------------------------------------------------------------------

CONTROL = "".join(map(chr, range(33))) + "\x7f"
SPACE = "".join(map(chr, range(33)))


def cast(node: dict[str, Any], values: list[Any], options: dict[str, Any]) -> Any:
    source, target = type_of(node["args"][0]), options["to"]
    try:
        return casted(values[0], source, target, options.get("time_zone"))
    except Refused:
        if node["call"] == "try_cast":
            return None
        raise


def casted(value: Any, source: str, target: str, zone: str | None) -> Any:
    if source == target:
        return value
    if source == "string":
        return from_text(value, target, zone)
    if target == "string":
        return to_text(value, source, zone)
    if source in ("date", "timestamp", "timestamp_ntz"):
        return from_time(value, source, target, zone)
    if target == "timestamp":
        if isinstance(value, float):
            return _to_integer(value * 1e6, "bigint")
        return max(-(1 << 63), min((1 << 63) - 1, value * 10**6))
    return from_number(value, target)


def from_number(value: Any, target: str) -> Any:
    if target == "boolean":
        return value != 0
    value = int(value) if isinstance(value, bool) else value
    if target in ("float", "double"):
        return fitted(float(value), target) if target == "double" else _to_single(value)
    if target.startswith("decimal"):
        if isinstance(value, float):
            return None if not math.isfinite(value) else fitted(Decimal(repr(value)), target)
        return fitted(Decimal(value), target)
    if isinstance(value, float):
        return _to_integer(value, target)
    return fitted(int(value), target)


def _to_single(value: Any) -> float:
    """One rounding, not two."""
    return single(value) if isinstance(value, float) else _single_from_decimal(Decimal(value))


def _to_integer(value: float, target: str) -> int:
    bound = 1 << (BITS[target] - 1)
    if math.isnan(value) or math.isinf(value):
        raise Refused("not finite")
    if target == "bigint" and value == float(bound):
        return bound - 1
    return int(fitted(math.trunc(value), target))


def from_time(value: int, source: str, target: str, zone: str | None) -> Any:
    if target == "date":
        return (date_of(value, source, zone) - date(1970, 1, 1)).days
    if source == "date":
        if target == "timestamp_ntz":
            return fitted(value * DAY_US, "bigint")
        assert zone is not None
        return to_utc(EPOCH + timedelta(days=value), zone)
    if target == "timestamp_ntz":
        return (to_local(value, zone) - EPOCH) // US
    if source == "timestamp_ntz":
        assert zone is not None
        return to_utc(EPOCH + US * value, zone)
    if target == "double":
        return value / 1e6
    return fitted(value // 10**6, target)


def to_text(value: Any, source: str, zone: str | None) -> str:
    if source == "boolean":
        return "true" if value else "false"
    if source == "binary":
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            raise Refused("not text") from None
    if source == "double":
        return java_double(value)
    if source.startswith("decimal"):
        return f"{value:f}"
    if source == "date":
        return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
    if source in ("timestamp", "timestamp_ntz"):
        local = to_local(value, zone)
        fraction = f".{local.microsecond:06d}".rstrip("0") if local.microsecond else ""
        return local.strftime("%Y-%m-%d %H:%M:%S").rjust(19, "0") + fraction
    return str(value)


def java_double(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if abs(value) == 5e-324:
        return "4.9E-324" if value > 0 else "-4.9E-324"
    sign, shown, exponent = Decimal(repr(value)).as_tuple()
    text = "".join(map(str, shown)).lstrip("0") or "0"
    magnitude = len(text) + int(exponent) - 1
    minus = "-" if sign else ""
    if value == 0:
        return f"{minus}0.0"
    if 1e-3 <= abs(value) < 1e7:
        plain = f"{Decimal(repr(abs(value))):f}"
        return minus + (plain if "." in plain else plain + ".0")
    text = text.rstrip("0")
    return f"{minus}{text[0]}.{text[1:] or '0'}E{magnitude}"


def from_text(text: str, target: str, zone: str | None) -> Any:
    if target == "binary":
        return text.encode()
    if target in BITS:
        match = re.fullmatch(r"[+-]?[0-9]+", text.strip(CONTROL))
        if not match:
            raise Refused(text)
        return fitted(int(match.group()), target)
    if target == "boolean":
        word = text.strip(CONTROL).lower()
        if word in ("t", "true", "y", "yes", "1"):
            return True
        if word in ("f", "false", "n", "no", "0"):
            return False
        raise Refused(text)
    if target in ("float", "double"):
        return float_from_text(text.strip(SPACE), target)
    if target.startswith("decimal"):
        if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text.strip(SPACE)):
            raise Refused(text)
        try:
            number = Decimal(text.strip(SPACE))
            return fitted(number, target)
        except InvalidOperation:
            raise Refused(text) from None
    return time_from_text(text.strip(CONTROL), target, zone)


def float_from_text(text: str, target: str) -> float:
    words = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "+inf": math.inf,
             "+infinity": math.inf, "-inf": -math.inf, "-infinity": -math.inf}  # fmt: skip
    if text.lower() in words:
        return words[text.lower()]
    if re.fullmatch(r"[+-]?0[xX][0-9a-fA-F]+\.?[0-9a-fA-F]*[pP][+-]?\d+", text):
        return float.fromhex(text)
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[dDfF]?", text):
        raise Refused(text)
    bare = text.rstrip("dDfF")
    return float(bare) if target == "double" else _single_from_decimal(Decimal(bare))


def _single_from_decimal(exact: Decimal) -> float:
    """The nearest single, ties to even, found among its neighbours."""
    guess = single(float(exact))
    if math.isinf(guess) or guess == 0:
        limit = Decimal(2) ** 128 - Decimal(2) ** 103
        return (
            guess
            if abs(exact) >= limit or guess == 0
            else math.copysign(single(3.4028234663852886e38), guess)
        )
    bits = struct.unpack("<i", struct.pack("<f", guess))[0]
    around = [struct.unpack("<f", struct.pack("<i", bits + step))[0] for step in (-1, 0, 1)]
    finite = [number for number in around if math.isfinite(number)]
    return float(
        min(
            finite,
            key=lambda n: (abs(WIDE.subtract(Decimal(n), exact)), struct.pack("<f", n)[0] & 1),
        )
    )


def time_from_text(text: str, target: str, zone: str | None) -> int:
    years = "4,7" if target == "date" else "4,6"
    match = re.fullmatch(
        rf"([+-]?[0-9]{{{years}}})(?:-([0-9]{{1,2}})(?:-([0-9]{{1,2}})(.*))?)?", text, re.S
    )
    if not match:
        raise Refused(text)
    year, month, day = (int(part or 1) for part in match.groups()[:3])
    tail = match.group(4) or ""
    if not 1 <= year <= 9999:
        raise OverflowError("outside Python's calendar")
    try:
        local = datetime(year, month, day)
    except ValueError:
        raise Refused(text) from None
    if tail and tail[0] not in " T":
        raise Refused(text)
    if target == "date":
        return (local.date() - date(1970, 1, 1)).days
    return _with_time(local, tail, target, zone)


def _with_time(local: datetime, tail: str, target: str, zone: str | None) -> int:
    named = ""
    if tail:
        match = re.fullmatch(
            r"[ T]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9.].*)?)?)?",
            tail,
            re.S,
        )
        if not match:
            raise Refused(tail)
        fraction = int(((match.group(4) or "") + "000000")[:6])
        hour, minute, second = (int(part or 0) for part in match.groups()[:3])
        try:
            local = local.replace(hour=hour, minute=minute, second=second, microsecond=fraction)
        except ValueError:
            raise Refused(tail) from None
        named = (match.group(5) or "").strip(" ")
        if match.group(5) is not None and not named:
            raise Refused(tail)
    offset = _named_zone(named)
    if target == "timestamp_ntz":
        return (local - EPOCH) // US
    if isinstance(offset, int):
        return (local - EPOCH) // US - offset * 60 * 10**6
    assert zone is not None
    return to_utc(local, offset or zone)


def _named_zone(name: str) -> int | str | None:
    """Minutes of an offset, the name of a region, or None for no zone at all."""
    if not name:
        return None
    if name in ("Z", "UTC", "GMT", "UT"):
        return 0
    match = re.fullmatch(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{1,2}))?", name)
    if match:
        hours, minutes = int(match.group(2)), int(match.group(3) or 0)
        if hours > 18 or minutes > 59 or hours * 60 + minutes > 18 * 60:
            raise Refused(name)
        return (hours * 60 + minutes) * (-1 if match.group(1) == "-" else 1)
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Refused(name) from None
    return name


# --- nested values --------------------------------------------------------------------------------


def get_item(_node: dict[str, Any], values: list[Any], _options: dict[str, Any]) -> Any:
    items, index = values
    if not 0 <= index < len(items):
        raise Refused("index")
    return items[index]


def lookup(_node: dict[str, Any], values: list[Any], options: dict[str, Any]) -> Any:
    return dict(map(tuple, options["table"])).get(values[0])


STRICT: dict[str, Any] = {
    **dict.fromkeys(("add", "subtract", "multiply"), arithmetic),
    "divide": divide,
    "int_divide": int_divide,
    "remainder": remainder,
    "pmod": pmod,
    **dict.fromkeys(("negate", "abs"), negate),
    **dict.fromkeys(TESTS, compare),
    "eq_null_safe": eq_null_safe,
    **dict.fromkeys(("greatest", "least"), extreme),
    "not": lambda _n, v, _o: not v[0],
    "is_null": lambda _n, v, _o: v[0] is None,
    "is_not_null": lambda _n, v, _o: v[0] is not None,
    "is_nan": lambda _n, v, _o: v[0] is not None and math.isnan(v[0]),
    **dict.fromkeys(("cast", "try_cast"), cast),
    "length": lambda _n, v, _o: len(v[0]),
    "substring": substring,
    "concat": lambda _n, v, _o: "".join(v),
    "concat_ws": lambda _n, v, o: o["separator"].join(t for t in v if t is not None),
    "upper": lambda _n, v, _o: v[0].upper(),
    "lower": lambda _n, v, _o: v[0].lower(),
    "trim": lambda _n, v, _o: v[0].strip(" "),
    "ltrim": lambda _n, v, _o: v[0].lstrip(" "),
    "rtrim": lambda _n, v, _o: v[0].rstrip(" "),
    "replace": replace,
    **dict.fromkeys(("lpad", "rpad"), pad),
    "starts_with": lambda _n, v, _o: v[0].startswith(v[1]),
    "ends_with": lambda _n, v, _o: v[0].endswith(v[1]),
    "contains": lambda _n, v, _o: v[1] in v[0],
    "like": like,
    "rlike": rlike,
    "split": split,
    **dict.fromkeys(("floor", "ceil"), whole),
    "round": rounded,
    **dict.fromkeys(("sqrt", "exp", "ln"), real),
    "pow": power,
    **dict.fromkeys(("year", "month", "day", "day_of_week", "hour", "minute", "second"), time_part),
    "date_trunc": date_trunc,
    "date_add": date_add,
    **dict.fromkeys(("unix_seconds", "unix_millis", "unix_micros"), unix_time),
    **dict.fromkeys(("timestamp_seconds", "timestamp_millis", "timestamp_micros"), timestamp_from),
    "struct": lambda _n, v, o: dict(zip(o["names"], v, strict=True)),
    "get_field": lambda _n, v, o: v[0][o["name"]],
    "array": lambda _n, v, _o: list(v),
    "get_item": get_item,
    "size": lambda _n, v, _o: len(v[0]),
    "lookup": lookup,
}
