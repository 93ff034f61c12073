"""The rules by which a call's operand types give its result type, as Spark's analyser has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from penstock.errors import ExpressionError
from penstock.expressions.lookup_table import LookupTable
from penstock.expressions.regex import like_pattern
from penstock.expressions.types import (
    ARITHMETIC_DIGITS_MAX,
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DECIMAL_DIGITS_MAX,
    DOUBLE,
    FRACTIONAL_KINDS,
    INT,
    INTEGER_BITS,
    INTERVAL_KINDS,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    DataType,
    Field,
    array_type,
    decimal_type,
    map_type,
    parse_type,
    struct_type,
)

DIVISION_SCALE_MIN = 6
NEGATED_DIGITS_MAX = 34
TABLE_ROWS_MAX = 4_000_000
LOOKUP_KINDS = frozenset(
    {"boolean", "tinyint", "smallint", "int", "bigint", "double", "string", "date", "timestamp"}
)
_UNORDERED_KINDS = frozenset({"array", "struct", "map"})


@dataclass(frozen=True, slots=True)
class Operands:
    """What a rule looks at: the function, its arguments' types and nullability, its options."""

    function: str
    types: tuple[DataType, ...]
    nullables: tuple[bool, ...]
    options: dict[str, Any]

    def refuse(self, wanted: str) -> NoReturn:
        given = ", ".join(str(data_type) for data_type in self.types)
        raise ExpressionError(
            f"{self.function} takes {wanted}, not ({given}): cast the arguments first",
            function=self.function,
            given=given,
        )

    def require_kinds(self, *kinds: str) -> None:
        if any(data_type.kind not in kinds for data_type in self.types):
            self.refuse(" or ".join(kinds))

    def require_equal(self, types: tuple[DataType, ...]) -> DataType:
        if any(data_type != types[0] for data_type in types):
            self.refuse("arguments of one type")
        return types[0]


# --- whether the result can be null ---------------------------------------------------------------


def any_nullable(operands: Operands) -> bool:
    return any(operands.nullables)


def never_null(_operands: Operands) -> bool:
    return False


def always_nullable(_operands: Operands) -> bool:
    return True


def all_nullable(operands: Operands) -> bool:
    return all(operands.nullables)


def branch_nullable(operands: Operands) -> bool:
    """if and case: a null condition only picks another branch, so only the values count."""
    has_else = len(operands.nullables) % 2 == 1
    values = list(operands.nullables[1::2]) + ([operands.nullables[-1]] if has_else else [])
    return any(values) or not has_else


def cast_nullable(operands: Operands) -> bool:
    """NaN and the infinities have no decimal: they become null."""
    return operands.nullables[0] or (
        operands.types[0].is_fractional and operands.options["to"].startswith("decimal")
    )


# --- types that need no rule of their own ---------------------------------------------------------


def gives(result: DataType, *kinds: str) -> Callable[[Operands], DataType]:
    """One type, whichever of these kinds the operands are of."""

    def rule(operands: Operands) -> DataType:
        operands.require_kinds(*kinds)
        return result

    return rule


def takes(*types: DataType) -> Callable[[Operands], DataType]:
    """Operands of exactly these types; the result has the type of the first."""

    def rule(operands: Operands) -> DataType:
        if operands.types != types:
            operands.refuse(f"({', '.join(map(str, types))})")
        return types[0]

    return rule


# --- digits and numbers ---------------------------------------------------------------------------


def _computed(precision: int, scale: int) -> DataType:
    """A decimal that a call computes: digits behind the point are given up before others are."""
    if precision > DECIMAL_DIGITS_MAX:
        kept = max(DECIMAL_DIGITS_MAX - (precision - scale), min(scale, DIVISION_SCALE_MIN))
        return decimal_type(DECIMAL_DIGITS_MAX, kept)
    return decimal_type(precision, scale)


def _decimals(operands: Operands) -> tuple[int, int, int, int] | None:
    """(p1, s1, p2, s2) where both operands are decimals."""
    left, right = operands.types
    if not (left.is_decimal and right.is_decimal):
        return None
    return left.precision, left.scale, right.precision, right.scale


def _equal_numbers(operands: Operands) -> DataType:
    if not all(data_type.is_numeric for data_type in operands.types):
        operands.refuse("numbers")
    return operands.require_equal(operands.types)


# --- arithmetic -----------------------------------------------------------------------------------


def sum_or_difference(operands: Operands) -> DataType:
    digits = _decimals(operands)
    if digits is None:
        return _equal_numbers(operands)
    p1, s1, p2, s2 = digits
    scale = max(s1, s2)
    return _computed(max(p1 - s1, p2 - s2) + scale + 1, scale)


def product(operands: Operands) -> DataType:
    digits = _decimals(operands)
    if digits is None:
        return _equal_numbers(operands)
    p1, s1, p2, s2 = digits
    return _computed(p1 + p2 + 1, s1 + s2)


def decimal_or_double_quotient(operands: Operands) -> DataType:
    digits = _decimals(operands)
    if digits is None:
        operands.require_kinds("double")
        return DOUBLE
    p1, s1, p2, s2 = digits
    scale = max(DIVISION_SCALE_MIN, s1 + p2 + 1)
    return _computed(p1 - s1 + s2 + scale, scale)


def integer_quotient(operands: Operands) -> DataType:
    digits = _decimals(operands)
    if digits is not None:
        _check_aligned(operands, digits)
    else:
        operands.require_kinds("tinyint", "smallint", "int", "bigint")
        operands.require_equal(operands.types)
    return BIGINT


def remainder(operands: Operands) -> DataType:
    digits = _decimals(operands)
    if digits is None:
        return _equal_numbers(operands)
    _check_aligned(operands, digits)
    p1, s1, p2, s2 = digits
    scale = max(s1, s2)
    return _computed(max(1, min(p1 - s1, p2 - s2) + scale), scale)


def _check_aligned(operands: Operands, digits: tuple[int, int, int, int]) -> None:
    """Both operands, brought to one scale, must fit 64 bits."""
    p1, s1, p2, s2 = digits
    precision = max(p1 - s1, p2 - s2) + max(s1, s2)
    if precision > ARITHMETIC_DIGITS_MAX:
        raise ExpressionError(
            f"{operands.function}({', '.join(map(str, operands.types))}) needs {precision} digits; "
            f"it is computed here up to {ARITHMETIC_DIGITS_MAX}: cast the operands to fewer",
            function=operands.function,
            precision=precision,
        )


def numeric_operand(operands: Operands) -> DataType:
    if not operands.types[0].is_numeric:
        operands.refuse("a number")
    return operands.types[0]


def negated(operands: Operands) -> DataType:
    """Spark rounds the negative of a decimal to 34 digits."""
    operand = numeric_operand(operands)
    if operand.precision > NEGATED_DIGITS_MAX:
        operands.refuse(f"decimals of up to {NEGATED_DIGITS_MAX} digits")
    return operand


def whole_number(operands: Operands) -> DataType:
    """floor and ceil: bigint, or a decimal without fraction and with one more digit."""
    operands.require_kinds("double", "bigint", "decimal")
    operand = operands.types[0]
    if not operand.is_decimal:
        return BIGINT
    if operand.scale == 0:
        return operand
    return decimal_type(min(operand.precision - operand.scale + 1, DECIMAL_DIGITS_MAX), 0)


def rounded(operands: Operands) -> DataType:
    operand = numeric_operand(operands)
    if not operand.is_decimal:
        return operand
    scale = int(operands.options["scale"])
    whole_digits = operand.precision - operand.scale + 1
    if scale < 0:
        return decimal_type(min(max(whole_digits, -scale + 1), DECIMAL_DIGITS_MAX), 0)
    kept = min(operand.scale, scale)
    return decimal_type(min(whole_digits + kept, DECIMAL_DIGITS_MAX), kept)


def one_integer(operands: Operands) -> DataType:
    operands.require_kinds("tinyint", "smallint", "int", "bigint")
    return operands.require_equal(operands.types)


def shifted(operands: Operands) -> DataType:
    value, distance = operands.types
    if value not in (INT, BIGINT) or distance != INT:
        operands.refuse("int or bigint, and int")
    return value


def bit_at(operands: Operands) -> DataType:
    value, place = operands.types
    if not value.is_integer or place != INT:
        operands.refuse("an integer and int")
    return TINYINT


# --- comparison, logic, branches ------------------------------------------------------------------


def comparison(operands: Operands) -> DataType:
    ordered(operands)
    return BOOLEAN


def ordered(operands: Operands) -> DataType:
    operand = operands.require_equal(operands.types)
    if operand.kind in _UNORDERED_KINDS:
        operands.refuse("values that are not nested")
    return operand


def hashed(result: DataType) -> Callable[[Operands], DataType]:
    """A hash of values of any types but maps, whose entries have no order."""

    def rule(operands: Operands) -> DataType:
        if any(given.has_map for given in operands.types):
            raise ExpressionError("a map has no hash")
        return result

    return rule


def boolean_from_anything(_operands: Operands) -> DataType:
    return BOOLEAN


def one_type(operands: Operands) -> DataType:
    return operands.require_equal(operands.types)


def branches(operands: Operands) -> DataType:
    """if and case: boolean conditions, values of one type."""
    types = operands.types
    conditions = types[0::2] if len(types) % 2 == 0 else types[0:-1:2]
    values = types[1::2] if len(types) % 2 == 0 else (*types[1::2], types[-1])
    if any(condition != BOOLEAN for condition in conditions):
        operands.refuse("boolean conditions")
    return operands.require_equal(values)


# --- casts ----------------------------------------------------------------------------------------

_NUMBERS = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double", "decimal"})
_INTEGERS = frozenset({"tinyint", "smallint", "int", "bigint"})
_TIMES = frozenset({"date", "timestamp", "timestamp_ntz"})
# What ANSI mode allows, less what is left to Structured Streaming: timestamp to decimal (Spark goes
# through a double), float to string and to decimal (Java's shortest text of a 32-bit float).
_CASTABLE: Mapping[str, frozenset[str]] = {
    "boolean": _NUMBERS | {"string"},
    "tinyint": _NUMBERS | {"boolean", "string", "timestamp"},
    "smallint": _NUMBERS | {"boolean", "string", "timestamp"},
    "int": _NUMBERS | {"boolean", "string", "timestamp"},
    "bigint": _NUMBERS | {"boolean", "string", "timestamp"},
    "float": (_NUMBERS - {"decimal"}) | {"boolean"},
    "double": _NUMBERS | {"boolean", "string", "timestamp"},
    "decimal": _NUMBERS | {"boolean", "string"},
    "string": _NUMBERS | {"boolean", "binary"} | _TIMES,
    "binary": frozenset({"string"}),
    "date": frozenset({"string", "timestamp", "timestamp_ntz"}),
    "timestamp": _INTEGERS | {"double", "string", "date", "timestamp_ntz"},
    "timestamp_ntz": frozenset({"string", "date", "timestamp"}),
    **dict.fromkeys(INTERVAL_KINDS, frozenset({"string"})),
}


def cast_target(operands: Operands) -> DataType:
    source = operands.types[0]
    target = parse_type(operands.options["to"])
    if source != target and target.kind not in _CASTABLE.get(source.kind, frozenset()):
        raise ExpressionError(
            f"{operands.function} from {source} to {target} is not supported here",
            function=operands.function,
            source=str(source),
            target=str(target),
        )
    _settle_zone(operands, needed=cast_needs_zone(source, target))
    return target


def cast_needs_zone(source: DataType, target: DataType) -> bool:
    """Whether a cast depends on the session's time zone."""
    pair = {source.kind, target.kind}
    return "timestamp" in pair and bool(pair & {"string", "date", "timestamp_ntz"})


def _settle_zone(operands: Operands, needed: bool) -> None:
    """Insist on a time zone where it matters; forget it elsewhere: equal calls stay equal."""
    if not needed:
        operands.options.pop("time_zone", None)
    elif operands.options.get("time_zone") is None:
        raise ExpressionError(
            f"{operands.function} on a timestamp needs the option 'time_zone': "
            "pass the session's zone, for example time_zone='UTC'",
            function=operands.function,
            option="time_zone",
        )


# --- strings --------------------------------------------------------------------------------------


def like_match(operands: Operands) -> DataType:
    operands.require_kinds("string")
    like_pattern(operands.options["pattern"], operands.options["escape"])
    return BOOLEAN


def json_target(operands: Operands) -> DataType:
    operands.require_kinds("string")
    target = parse_type(operands.options["to"])
    if not target.is_nested:
        raise ExpressionError(f"JSON is read into a struct, an array or a map, not {target}")
    inside = list(target.walk())
    for each in inside:
        if each.kind not in _JSON_KINDS or each.key not in (None, STRING):
            raise ExpressionError(f"JSON is not read into {each} here")
        names = {field.name for field in each.fields}
        if len(names) < len(each.fields):
            raise ExpressionError("a struct has two fields of one name")
    _settle_zone(operands, needed=TIMESTAMP in inside)
    return target


def json_source(operands: Operands) -> DataType:
    (source,) = operands.types
    if not source.is_nested:
        raise ExpressionError(f"JSON is made of a struct, an array or a map, not {source}")
    inside = list(source.walk())
    for each in inside:
        if each.kind not in _JSON_KINDS - {"float"} or each.key not in (None, STRING):
            raise ExpressionError(f"{each} is not written as JSON here")
        if each.scale > _JSON_SCALE_MAX:
            raise ExpressionError(f"Java writes some values of {each} with an exponent")
    _settle_zone(operands, needed=TIMESTAMP in inside)
    return STRING


_JSON_SCALE_MAX = 6
# Bytes, and times without a zone, are read by rules of their own.
_JSON_KINDS = frozenset(
    {*INTEGER_BITS, *FRACTIONAL_KINDS, "decimal", "boolean", "string", "date", "timestamp"}
    | {"struct", "array", "map"}
)


# --- dates and times ------------------------------------------------------------------------------


def date_part(operands: Operands) -> DataType:
    operands.require_kinds("date", "timestamp", "timestamp_ntz")
    _settle_zone(operands, needed=operands.types[0] == TIMESTAMP)
    return INT


def time_part(operands: Operands) -> DataType:
    operands.require_kinds("timestamp", "timestamp_ntz")
    _settle_zone(operands, needed=operands.types[0] == TIMESTAMP)
    return INT


def truncated_time(operands: Operands) -> DataType:
    operands.require_kinds("timestamp")
    _settle_zone(operands, needed=True)
    return TIMESTAMP


def date_of_parts(operands: Operands) -> DataType:
    operands.require_kinds("int")
    return DATE


def time_of_parts(operands: Operands) -> DataType:
    """make_timestamp: in a zone, or without one."""
    if operands.types != (*[INT] * 5, decimal_type(16, 6)):
        operands.refuse("five integers and decimal(16,6)")
    return TIMESTAMP if operands.options.get("time_zone") is not None else TIMESTAMP_NTZ


def time_of_text(operands: Operands) -> DataType:
    """With the session's zone, or without one."""
    operands.require_kinds("string")
    return TIMESTAMP if operands.options.get("time_zone") is not None else TIMESTAMP_NTZ


def moved_time(*lengths: str) -> Callable[[Operands], DataType]:
    """A time, with or without zone, and a length of one of these kinds."""

    def rule(operands: Operands) -> DataType:
        time, length = operands.types
        if time not in (TIMESTAMP, TIMESTAMP_NTZ) or length.kind not in lengths:
            operands.refuse(f"a timestamp and {' or '.join(lengths)}")
        _settle_zone(operands, needed=time == TIMESTAMP)
        return time

    return rule


def interval_of(count: DataType, *kinds: str) -> Callable[[Operands], DataType]:
    """An interval of one of these kinds, of what it is counted by."""

    def rule(operands: Operands) -> DataType:
        operands.require_kinds(count.kind)
        target = parse_type(operands.options["to"])
        if target.kind not in kinds:
            operands.refuse(f"the name of an interval, not of {target}")
        return target

    return rule


def scaled_micros(*numbers: str) -> Callable[[Operands], DataType]:
    """The microseconds of an interval, and a number of one of these kinds."""

    def rule(operands: Operands) -> DataType:
        micros, number = operands.types
        if micros != BIGINT or number.kind not in numbers:
            operands.refuse(f"bigint and {' or '.join(numbers)}")
        return BIGINT

    return rule


def zoned(result: DataType, *kinds: str) -> Callable[[Operands], DataType]:
    """One type; a zone is needed where an operand is a timestamp with one."""

    def rule(operands: Operands) -> DataType:
        operands.require_kinds(*kinds)
        _settle_zone(operands, needed=TIMESTAMP in operands.types)
        return result

    return rule


# --- nested values --------------------------------------------------------------------------------


def struct_of(operands: Operands) -> DataType:
    names = operands.options["names"]
    if len(names) != len(operands.types) or len(set(names)) != len(names):
        operands.refuse(f"one argument for each of the distinct names {list(names)!r:.200}")
    return struct_type([Field(n, t) for n, t in zip(names, operands.types, strict=True)])


def field_of(operands: Operands) -> DataType:
    operands.require_kinds("struct")
    name = operands.options["name"]
    for member in operands.types[0].fields:
        if member.name == name:
            return member.type
    raise ExpressionError(
        f"{operands.types[0]} has no field {name!r:.200}", type=str(operands.types[0]), name=name
    )


def array_of(operands: Operands) -> DataType:
    return array_type(operands.require_equal(operands.types))


def item_of(operands: Operands) -> DataType:
    array, index = operands.types
    if array.kind != "array" or index != INT:
        operands.refuse("(array, int)")
    assert array.element is not None
    return array.element


def _array(operands: Operands, index: int = 0) -> DataType:
    """The type of an array's items."""
    found = operands.types[index]
    if found.element is None:
        operands.refuse("an array")
    return found.element


def _comparable(operands: Operands, data_type: DataType) -> None:
    if data_type.kind in _UNORDERED_KINDS:
        operands.refuse("items that are not nested")


def searched_array(result: DataType | None) -> Callable[[Operands], DataType]:
    """An array and a value like its items; no result stands for the array itself."""

    def rule(operands: Operands) -> DataType:
        element = _array(operands)
        _comparable(operands, element)
        if operands.types[1] != element:
            operands.refuse("an array and a value like its items")
        return operands.types[0] if result is None else result

    return rule


def ordered_array(operands: Operands) -> DataType:
    _comparable(operands, _array(operands))
    return operands.types[0]


def extreme_item(operands: Operands) -> DataType:
    _comparable(operands, _array(operands))
    return _array(operands)


def sets_of_items(operands: Operands) -> DataType:
    """Arrays of one type; Spark tells floats apart in ways of its own here."""
    element = _array(operands)
    _comparable(operands, element)
    if element.is_fractional:
        operands.refuse("items that are not floats")
    return operands.require_equal(operands.types)


def overlapping_arrays(operands: Operands) -> DataType:
    sets_of_items(operands)
    return BOOLEAN


def arrays_of_one_type(operands: Operands) -> DataType:
    _array(operands)
    return operands.require_equal(operands.types)


def array_and_item(operands: Operands) -> DataType:
    if operands.types[1] != _array(operands):
        operands.refuse("an array and a value like its items")
    return operands.types[0]


def flattened(operands: Operands) -> DataType:
    inner = _array(operands)
    if inner.element is None:
        operands.refuse("an array of arrays")
    return inner


def sliced(operands: Operands) -> DataType:
    _array(operands)
    if operands.types[1:] != (INT, INT):
        operands.refuse("an array, a position and a length")
    return operands.types[0]


def repeated(operands: Operands) -> DataType:
    if operands.types[1] != INT:
        operands.refuse("a value and int")
    return array_type(operands.types[0])


def joined_array(operands: Operands) -> DataType:
    if _array(operands) != STRING:
        operands.refuse("an array of texts")
    return STRING


def fields_of_items(operands: Operands) -> DataType:
    inner = Operands(operands.function, (_array(operands),), (True,), operands.options)
    return array_type(field_of(inner))


def item_at(operands: Operands) -> DataType:
    if operands.types[1] != INT:
        operands.refuse("an array and int")
    return _array(operands)


def _map(operands: Operands, index: int = 0) -> tuple[DataType, DataType]:
    found = operands.types[index]
    if found.key is None or found.value is None:
        operands.refuse("a map")
    return found.key, found.value


def map_value(operands: Operands) -> DataType:
    key, value = _map(operands)
    if operands.types[1] != key:
        operands.refuse("a map and a key of it")
    _comparable(operands, key)
    return value


def keys_of(operands: Operands) -> DataType:
    return array_type(_map(operands)[0])


def values_of(operands: Operands) -> DataType:
    return array_type(_map(operands)[1])


def entries_of(operands: Operands) -> DataType:
    key, value = _map(operands)
    return array_type(struct_type([Field("key", key), Field("value", value)]))


def new_key(operands: Operands, key: DataType) -> None:
    """Spark tells the keys of maps that are floats apart in ways of its own."""
    _comparable(operands, key)
    if key.is_fractional:
        operands.refuse("keys that are not floats")


def map_of(operands: Operands) -> DataType:
    types = operands.types
    if len(types) % 2:
        operands.refuse("keys and values in turns")
    key = operands.require_equal(types[0::2])
    new_key(operands, key)
    return map_type(key, operands.require_equal(types[1::2]))


def map_of_arrays(operands: Operands) -> DataType:
    key, value = _array(operands), _array(operands, 1)
    new_key(operands, key)
    return map_type(key, value)


def map_of_entries(operands: Operands) -> DataType:
    fields = _array(operands).fields
    if len(fields) != 2:
        operands.refuse("an array of structs of a key and a value")
    new_key(operands, fields[0].type)
    return map_type(fields[0].type, fields[1].type)


def zipped_arrays(operands: Operands) -> DataType:
    names = operands.options["names"]
    if len(names) != len(operands.types) or len(set(names)) != len(names):
        operands.refuse(f"one array for each of the distinct names {list(names)!r:.200}")
    items = [_array(operands, index) for index in range(len(names))]
    return array_type(struct_type([Field(n, t) for n, t in zip(names, items, strict=True)]))


def sequence(operands: Operands) -> DataType:
    kind, *_ = operands.types
    steps = operands.types[2:]
    expected = INT if kind.kind == "date" else kind
    is_known = kind.is_integer or kind.kind == "date"
    if not is_known or operands.types[1] != kind or any(step != expected for step in steps):
        operands.refuse("two whole numbers, or dates, and a step")
    return array_type(kind)


def width_bucket(operands: Operands) -> DataType:
    return takes(DOUBLE, DOUBLE, DOUBLE, BIGINT)(operands) and BIGINT


def sorted_map(operands: Operands) -> DataType:
    _map(operands)
    return operands.types[0]


def maps_of_one_type(operands: Operands) -> DataType:
    new_key(operands, _map(operands)[0])
    return operands.require_equal(operands.types)


def bytes_of_key(operands: Operands) -> DataType:
    kind = operands.types[0]
    if kind.has_map and not operands.options["maps"]:
        operands.refuse("arrays and structs that hold no map")
    if not _has_members(kind):
        operands.refuse("arrays and structs, none of them without members")
    return BINARY


def key_of_bytes(operands: Operands) -> DataType:
    operands.require_kinds("binary")
    return parse_type(operands.options["type"])


def _has_members(data_type: DataType) -> bool:
    """Every struct in it."""
    return all(each.kind != "struct" or each.fields for each in data_type.walk())


def looked_up(operands: Operands) -> DataType:
    """lookup: an integer or string key; the table option becomes a tuple of pairs, checked."""
    operands.require_kinds("int", "bigint", "string")
    value_type = parse_type(operands.options["value_type"])
    if value_type.kind not in LOOKUP_KINDS:
        operands.refuse(f"a table of {', '.join(sorted(LOOKUP_KINDS))} values")
    operands.options["table"] = _table(operands, operands.types[0], value_type)
    return value_type


_PYTHON: Mapping[str, type] = {"boolean": bool, "double": float, "string": str}


def _table(operands: Operands, key_type: DataType, value_type: DataType) -> LookupTable:
    pairs = operands.options["table"]
    if not isinstance(pairs, list | tuple) or len(pairs) > TABLE_ROWS_MAX:
        operands.refuse(f"a table of at most {TABLE_ROWS_MAX} (key, value) pairs")
    key_python = _PYTHON.get(key_type.kind, int)
    value_python = _PYTHON.get(value_type.kind, int)
    for pair in pairs:
        if (
            not isinstance(pair, list | tuple)
            or len(pair) != 2
            or type(pair[0]) is not key_python
            or not (pair[1] is None or type(pair[1]) is value_python)
        ):
            operands.refuse(f"({key_type}, {value_type}) pairs in its table, not {pair!r:.100}")
    if len({key for key, _ in pairs}) != len(pairs):
        operands.refuse("a table with distinct keys")
    return LookupTable((key, value) for key, value in pairs)
