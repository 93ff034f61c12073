"""The closed table of functions: one row holds all that is known of a function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import ExpressionError
from penstock.expressions import (
    arithmetic,
    bits,
    branches,
    casts,
    collections,
    comparison,
    dates,
    formats,
    hashes,
    intervals,
    json_texts,
    json_values,
    json_writing,
    key_values,
    lambdas,
    mathematics,
    nested,
    signatures,
    strings,
    texts,
    times,
    writers,
)
from penstock.expressions.nodes import Arguments, Call, Compiled, Function, always, may_fail
from penstock.expressions.options import (
    REQUIRED,
    Option,
    OptionRule,
    check_date_unit,
    check_day_unit,
    check_escape,
    check_flag,
    check_limit,
    check_match_pattern,
    check_names,
    check_replaced_pattern,
    check_replacement,
    check_scale,
    check_sha2_bits,
    check_split_pattern,
    check_text,
    check_time_zone,
    check_type_text,
    check_weekday,
    check_whole,
)
from penstock.expressions.signatures import (
    Operands,
    all_nullable,
    always_nullable,
    branch_nullable,
    cast_nullable,
    gives,
    never_null,
    takes,
)
from penstock.expressions.spark_hash import SEED
from penstock.expressions.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DECIMAL_DIGITS_MAX,
    DOUBLE,
    INT,
    INTEGER_BITS,
    INTERVAL_KINDS,
    MONTHS_KINDS,
    STRING,
    TIMESTAMP,
    DataType,
    array_type,
    decimal_type,
)

__all__ = ["FUNCTIONS", "CheckedCall", "Function", "check_call", "function_named"]

_INTEGERS = tuple(INTEGER_BITS)
_ZONE = {"time_zone": OptionRule(check_time_zone, None)}
_CAST = {"to": OptionRule(check_type_text, REQUIRED), **_ZONE}
_PARSED = {"pattern": OptionRule(formats.check_read, REQUIRED), **_ZONE}


def _integer_result(call: Call) -> bool:
    """Integers overflow; a decimal's result is typed so that it fits, if 38 digits are enough."""
    return call.type.is_integer or call.type.precision == DECIMAL_DIGITS_MAX


def _cast_may_fail(call: Call) -> bool:
    source, target = call.args[0].type, call.type
    if source == target:
        return False
    if source.kind == "boolean":
        return target.is_decimal  # 1 has no place in decimal(1,1)
    return not (source.is_integer and (target.is_fractional or target.kind == "boolean"))


def _first_nullable(operands: Operands) -> bool:
    return operands.nullables[0]


def _print_case(args: Sequence[str]) -> str:
    pairs = zip(args[0::2], args[1::2], strict=False)
    text = "CASE" + "".join(f" WHEN {condition} THEN {value}" for condition, value in pairs)
    return text + (f" ELSE {args[-1]}" if len(args) % 2 else "") + " END"


_ARITHMETIC: tuple[Function, ...] = (
    Function(
        "add", (2, 2), signatures.sum_or_difference, arithmetic.add_subtract_multiply,
        fails=_integer_result, sql="({0} + {1})", catalyst="Add", ansi="evalMode",
        compiled=Compiled(writers.add, branchless=True),
    ),
    Function(
        "subtract", (2, 2), signatures.sum_or_difference, arithmetic.add_subtract_multiply,
        fails=_integer_result, sql="({0} - {1})", catalyst="Subtract", ansi="evalMode",
        compiled=Compiled(writers.subtract, branchless=True),
    ),
    Function(
        "multiply", (2, 2), signatures.product, arithmetic.add_subtract_multiply,
        fails=_integer_result, sql="({0} * {1})", catalyst="Multiply", ansi="evalMode",
        compiled=Compiled(writers.multiply, branchless=True),
    ),
    Function(
        "divide", (2, 2), signatures.decimal_or_double_quotient, arithmetic.divide,
        arguments=Arguments.UNTIL_NULL_FROM_RIGHT, fails=always, sql="({0} / {1})",
        catalyst="Divide", ansi="evalMode",
        compiled=Compiled(writers.divide, when=writers.of_doubles),
    ),
    Function(
        "int_divide", (2, 2), signatures.integer_quotient, arithmetic.int_divide,
        arguments=Arguments.UNTIL_NULL_FROM_RIGHT, fails=always, sql="({0} div {1})",
        catalyst="IntegralDivide", ansi="evalMode",
        compiled=Compiled(writers.int_divide, when=writers.not_of_decimals),
    ),
    Function(
        "remainder", (2, 2), signatures.remainder, arithmetic.remainder,
        arguments=Arguments.UNTIL_NULL_FROM_RIGHT, fails=always, sql="({0} % {1})",
        catalyst="Remainder", ansi="evalMode",
        compiled=Compiled(writers.remainder, when=writers.not_of_decimals),
    ),
    Function(
        "pmod", (2, 2), signatures.remainder, arithmetic.pmod,
        arguments=Arguments.UNTIL_NULL_FROM_RIGHT, fails=always, catalyst="Pmod", ansi="evalMode",
        compiled=Compiled(writers.strict("{} % {}"), when=writers.by_positive_literal),
    ),
    Function(
        "negate", (1, 1), signatures.negated, arithmetic.negate_or_abs,
        fails=_integer_result, sql="(- {0})", catalyst="UnaryMinus", ansi="failOnError",
        compiled=Compiled(writers.one_number("-{}")),
    ),
    Function(
        "abs", (1, 1), signatures.negated, arithmetic.negate_or_abs, fails=_integer_result,
        catalyst="Abs", ansi="failOnError", compiled=Compiled(writers.one_number("abs({})")),
    ),
)  # fmt: skip

_COMPARED = Compiled(writers.comparison, branchless=True)

_COMPARISON: tuple[Function, ...] = (
    Function(
        "eq", (2, 2), signatures.comparison, comparison.compare,
        sql="({0} = {1})", catalyst="EqualTo", compiled=_COMPARED,
    ),
    Function(
        "ne", (2, 2), signatures.comparison, comparison.compare,
        sql="(NOT ({0} = {1}))", compiled=_COMPARED,
    ),
    Function(
        "lt", (2, 2), signatures.comparison, comparison.compare,
        sql="({0} < {1})", catalyst="LessThan", compiled=_COMPARED,
    ),
    Function(
        "le", (2, 2), signatures.comparison, comparison.compare,
        sql="({0} <= {1})", catalyst="LessThanOrEqual", compiled=_COMPARED,
    ),
    Function(
        "gt", (2, 2), signatures.comparison, comparison.compare,
        sql="({0} > {1})", catalyst="GreaterThan", compiled=_COMPARED,
    ),
    Function(
        "ge", (2, 2), signatures.comparison, comparison.compare,
        sql="({0} >= {1})", catalyst="GreaterThanOrEqual", compiled=_COMPARED,
    ),
    Function(
        "eq_null_safe", (2, 2), signatures.comparison, comparison.eq_null_safe, never_null,
        arguments=Arguments.ALL, sql="({0} <=> {1})", catalyst="EqualNullSafe",
        compiled=Compiled(writers.eq_null_safe, branchless=True),
    ),
    Function(
        "in", (2, None), signatures.comparison, comparison.contained_in,
        arguments=Arguments.BY_FUNCTION, sql="({0} IN ({1...}))", catalyst="In",
        compiled=Compiled(
            writers.contained_in, when=writers.safe_later_arguments, branchless=True
        ),
    ),
    Function(
        "greatest", (2, None), signatures.ordered, comparison.greatest_or_least, all_nullable,
        arguments=Arguments.ALL, catalyst="Greatest", compiled=Compiled(writers.extreme),
    ),
    Function(
        "least", (2, None), signatures.ordered, comparison.greatest_or_least, all_nullable,
        arguments=Arguments.ALL, catalyst="Least", compiled=Compiled(writers.extreme),
    ),
)  # fmt: skip

_LOGIC_AND_BRANCHES: tuple[Function, ...] = (
    Function(
        "and", (2, 2), gives(BOOLEAN, "boolean"), branches.and_or, arguments=Arguments.BY_FUNCTION,
        sql="({0} AND {1})", catalyst="And", compiled=Compiled(writers.and_or, branchless=True),
    ),
    Function(
        "or", (2, 2), gives(BOOLEAN, "boolean"), branches.and_or, arguments=Arguments.BY_FUNCTION,
        sql="({0} OR {1})", catalyst="Or", compiled=Compiled(writers.and_or, branchless=True),
    ),
    Function(
        "not", (1, 1), gives(BOOLEAN, "boolean"), branches.negation, sql="(NOT {0})",
        catalyst="Not", compiled=Compiled(writers.strict("not {}"), branchless=True),
    ),
    Function(
        "is_null", (1, 1), signatures.boolean_from_anything, branches.null_test, never_null,
        sql="({0} IS NULL)", catalyst="IsNull", compiled=Compiled(writers.is_null, branchless=True),
    ),
    Function(
        "is_not_null", (1, 1), signatures.boolean_from_anything, branches.null_test, never_null,
        sql="({0} IS NOT NULL)", catalyst="IsNotNull",
        compiled=Compiled(writers.is_not_null, branchless=True),
    ),
    Function(
        "is_nan", (1, 1), gives(BOOLEAN, "float", "double"), branches.nan_test, never_null,
        sql="isnan({...})", catalyst="IsNaN", compiled=Compiled(writers.is_nan, branchless=True),
    ),
    Function(
        "coalesce", (1, None), signatures.one_type, branches.coalesce, all_nullable,
        arguments=Arguments.BY_FUNCTION, catalyst="Coalesce", compiled=Compiled(writers.coalesce),
    ),
    Function(
        "if", (3, 3), signatures.branches, branches.case, branch_nullable,
        arguments=Arguments.BY_FUNCTION, catalyst="If", compiled=Compiled(writers.case),
    ),
    Function(
        "case", (2, None), signatures.branches, branches.case, branch_nullable,
        arguments=Arguments.BY_FUNCTION, sql=_print_case, catalyst="CaseWhen",
        compiled=Compiled(writers.case),
    ),
    Function(
        "nullif", (2, 2), signatures.ordered, branches.nullif, always_nullable,
        arguments=Arguments.BY_FUNCTION,
        compiled=Compiled(writers.nullif, when=writers.safe_later_arguments),
    ),
    Function(
        "cast", (1, 1), signatures.cast_target, casts.cast, cast_nullable, _CAST,
        fails=_cast_may_fail, sql="CAST({0} AS {to})", catalyst="Cast", ansi="evalMode",
        compiled=Compiled(writers.cast, when=writers.cast_of_numbers),
    ),
    Function(
        "try_cast", (1, 1), signatures.cast_target, casts.cast, always_nullable, _CAST,
        sql="TRY_CAST({0} AS {to})",
    ),
    # null where the call itself fails; where its arguments do, it fails with them
    Function(
        "null_on_error", (1, 1), signatures.one_type, branches.null_on_error, always_nullable,
        arguments=Arguments.BY_FUNCTION, sql="try({0})",
    ),
    # null where anything below fails
    Function(
        "try_eval", (1, 1), signatures.one_type, branches.try_eval, always_nullable,
        arguments=Arguments.BY_FUNCTION, sql="try({0})", catalyst="TryEval",
    ),
)  # fmt: skip

_STRINGS: tuple[Function, ...] = (
    Function("length", (1, 1), gives(INT, "string", "binary"), strings.length, catalyst="Length"),
    Function("substring", (3, 3), takes(STRING, INT, INT), strings.substring, catalyst="Substring"),
    Function("concat", (1, None), gives(STRING, "string"), strings.concat, catalyst="Concat"),
    Function(
        "concat_ws", (1, None), gives(STRING, "string"), strings.concat_ws, never_null,
        {"separator": OptionRule(check_text, REQUIRED)},
        arguments=Arguments.ALL, sql="concat_ws({separator!r}, {...})", catalyst="ConcatWs",
    ),
    Function("upper", (1, 1), gives(STRING, "string"), strings.change_case, catalyst="Upper"),
    Function("lower", (1, 1), gives(STRING, "string"), strings.change_case, catalyst="Lower"),
    Function("trim", (1, 1), gives(STRING, "string"), strings.trim, catalyst="StringTrim"),
    Function("ltrim", (1, 1), gives(STRING, "string"), strings.trim, catalyst="StringTrimLeft"),
    Function("rtrim", (1, 1), gives(STRING, "string"), strings.trim, catalyst="StringTrimRight"),
    Function("replace", (3, 3), gives(STRING, "string"), strings.replace, catalyst="StringReplace"),
    Function(
        "lpad", (3, 3), takes(STRING, INT, STRING), strings.pad, fails=always, catalyst="StringLPad"
    ),
    Function(
        "rpad", (3, 3), takes(STRING, INT, STRING), strings.pad, fails=always, catalyst="StringRPad"
    ),
    Function(
        "starts_with", (2, 2), gives(BOOLEAN, "string"), strings.starts_or_ends_with,
        sql="startswith({...})", catalyst="StartsWith",
    ),
    Function(
        "ends_with", (2, 2), gives(BOOLEAN, "string"), strings.starts_or_ends_with,
        sql="endswith({...})", catalyst="EndsWith",
    ),
    Function("contains", (2, 2), gives(BOOLEAN, "string"), strings.contains, catalyst="Contains"),
    Function(
        "like", (1, 1), signatures.like_match, strings.like,
        options={
            "pattern": OptionRule(check_text, REQUIRED),
            "escape": OptionRule(check_escape, "\\"),
        },
        sql="({0} LIKE {pattern!r})", catalyst="Like",
    ),
    Function(
        "rlike", (1, 1), gives(BOOLEAN, "string"), strings.rlike,
        options={"pattern": OptionRule(check_match_pattern, REQUIRED)},
        sql="({0} RLIKE {pattern!r})", catalyst="RLike",
    ),
    Function(
        "split", (1, 1), gives(array_type(STRING), "string"), strings.split,
        options={
            "pattern": OptionRule(check_split_pattern, REQUIRED),
            "limit": OptionRule(check_limit, -1),
        },
        sql="split({0}, {pattern!r}, {limit})", catalyst="StringSplit",
    ),
)  # fmt: skip

_TEXTS: tuple[Function, ...] = (
    Function(
        "octet_length", (1, 1), gives(INT, "string", "binary"), texts.octets,
        catalyst="OctetLength",
    ),
    Function(
        "bit_length", (1, 1), gives(INT, "string", "binary"), texts.octets, catalyst="BitLength"
    ),
    Function(
        "instr", (1, 1), gives(INT, "string"), texts.instr,
        options={"part": OptionRule(check_text, REQUIRED)},
        sql="instr({0}, {part!r})", catalyst="StringInstr",
    ),
    Function("ascii", (1, 1), gives(INT, "string"), texts.ascii_code, catalyst="Ascii"),
    Function("chr", (1, 1), gives(STRING, "bigint"), texts.character, catalyst="Chr"),
    Function(
        "substring_index", (1, 1), gives(STRING, "string"), texts.substring_index,
        options={
            "separator": OptionRule(check_text, REQUIRED),
            "count": OptionRule(check_whole, REQUIRED),
        },
        sql="substring_index({0}, {separator!r}, {count})", catalyst="SubstringIndex",
    ),
    *(
        Function(
            name, (1, 1), gives(STRING, "string"), texts.trim_characters,
            options={"characters": OptionRule(check_text, REQUIRED)},
            sql=f"trim({side} {{characters!r}} FROM {{0}})",
        )
        for name, side in (
            ("trim_characters", "BOTH"), ("ltrim_characters", "LEADING"),
            ("rtrim_characters", "TRAILING"),
        )
    ),
    Function(
        "split_at", (1, 1), gives(array_type(STRING), "string"), texts.split_part,
        options={"separator": OptionRule(check_text, REQUIRED)},
        sql="split_at({0}, {separator!r})", catalyst="StringSplitSQL",
    ),
    Function(
        "binary_substring", (3, 3), takes(BINARY, INT, INT), texts.bytes_cut,
        sql="substring({...})",
    ),
    Function("reverse", (1, 1), gives(STRING, "string"), texts.reverse, catalyst="Reverse"),
    Function(
        "repeat", (2, 2), takes(STRING, INT), texts.repeat, fails=always, catalyst="StringRepeat"
    ),
    Function(
        "translate", (1, 1), gives(STRING, "string"), texts.translate,
        options={
            "matching": OptionRule(check_text, REQUIRED),
            "replacing": OptionRule(check_text, REQUIRED),
        },
        sql="translate({0}, {matching!r}, {replacing!r})", catalyst="StringTranslate",
    ),
    Function(
        "overlay", (4, 4), takes(STRING, STRING, INT, INT), texts.overlay, catalyst="Overlay"
    ),
    Function(
        "regexp_replace", (1, 1), gives(STRING, "string"), texts.regexp_replace,
        options={
            "pattern": OptionRule(check_replaced_pattern, REQUIRED),
            "replacement": OptionRule(check_replacement, REQUIRED),
        },
        sql="regexp_replace({0}, {pattern!r}, {replacement!r})", catalyst="RegExpReplace",
    ),
    Function(
        "regexp_extract", (1, 1), gives(STRING, "string"), texts.regexp_extract,
        options={
            "pattern": OptionRule(check_replaced_pattern, REQUIRED),
            "group": OptionRule(check_whole, 1),
        },
        sql="regexp_extract({0}, {pattern!r}, {group})", catalyst="RegExpExtract",
    ),
    Function("hex", (1, 1), gives(STRING, "string", "binary", "bigint"), texts.hexadecimal,
             catalyst="Hex"),
    Function("bin", (1, 1), gives(STRING, "bigint"), texts.binary_digits, catalyst="Bin"),
    Function("unhex", (1, 1), gives(BINARY, "string"), texts.unhex, always_nullable,
             catalyst="Unhex"),
    Function(
        "base64", (1, 1), gives(STRING, "binary"), texts.to_base64,
        options={"lines": OptionRule(check_flag, True)},
    ),
    Function(
        "padded_number", (1, 1), gives(STRING, *_INTEGERS), texts.padded_number, never_null,
        {"width": OptionRule(check_whole, REQUIRED), "zeros": OptionRule(check_flag, False)},
        arguments=Arguments.ALL, sql="padded_number({0}, {width}, {zeros})",
    ),
    Function(
        "unbase64", (1, 1), gives(BINARY, "string"), texts.from_base64, fails=always,
        catalyst="UnBase64",
    ),
)  # fmt: skip

_HASHES: tuple[Function, ...] = (
    Function("md5", (1, 1), gives(STRING, "binary"), hashes.digest, catalyst="Md5"),
    Function("sha1", (1, 1), gives(STRING, "binary"), hashes.digest, catalyst="Sha1"),
    Function(
        "sha2", (1, 1), gives(STRING, "binary"), hashes.digest,
        options={"bits": OptionRule(check_sha2_bits, 256)}, sql="sha2({0}, {bits})",
        catalyst="Sha2",
    ),
    Function("crc32", (1, 1), gives(BIGINT, "binary"), hashes.crc32, catalyst="Crc32"),
    Function(
        "hash", (1, None), signatures.hashed(INT), hashes.spark_hash, never_null,
        {"seed": OptionRule(check_whole, SEED)}, arguments=Arguments.ALL, catalyst="Murmur3Hash",
    ),
    Function(
        "xxhash64", (1, None), signatures.hashed(BIGINT), hashes.spark_hash, never_null,
        {"seed": OptionRule(check_whole, SEED)}, arguments=Arguments.ALL, catalyst="XxHash64",
    ),
)  # fmt: skip

_JSON: tuple[Function, ...] = (
    Function(
        "from_json", (1, 1), signatures.json_target, json_texts.from_json, always_nullable, _CAST,
        sql="from_json({0}, {to})", catalyst="JsonToStructs",
    ),
    Function(
        "to_json", (1, 1), signatures.json_source, json_writing.to_json, options=_ZONE,
    ),
    Function(
        "get_json_object", (1, 1), gives(STRING, "string"), json_values.get_json_object,
        always_nullable, {"path": OptionRule(json_values.check_json_path, REQUIRED)},
        sql="get_json_object({0}, {path!r})", catalyst="GetJsonObject",
    ),
    Function(
        "json_field", (1, 1), gives(STRING, "string"), json_values.json_field, always_nullable,
        {
            "name": OptionRule(check_text, REQUIRED),
            "names": OptionRule(check_names, REQUIRED),  # of all that are asked for together
        },
        sql="json_tuple({0}, {name!r})",
    ),
)  # fmt: skip

_BITS: tuple[Function, ...] = (
    Function(
        "bit_and", (2, 2), signatures.one_integer, bits.bit_logic, sql="({0} & {1})",
        catalyst="BitwiseAnd", compiled=Compiled(writers.strict("{} & {}"), branchless=True),
    ),
    Function(
        "bit_or", (2, 2), signatures.one_integer, bits.bit_logic, sql="({0} | {1})",
        catalyst="BitwiseOr", compiled=Compiled(writers.strict("{} | {}"), branchless=True),
    ),
    Function(
        "bit_xor", (2, 2), signatures.one_integer, bits.bit_logic, sql="({0} ^ {1})",
        catalyst="BitwiseXor", compiled=Compiled(writers.strict("{} ^ {}"), branchless=True),
    ),
    Function(
        "bit_not", (1, 1), signatures.one_integer, bits.bit_not, sql="(~{0})",
        catalyst="BitwiseNot", compiled=Compiled(writers.strict("~{}"), branchless=True),
    ),
    Function(
        "shift_left", (2, 2), signatures.shifted, bits.shift, sql="({0} << {1})",
        catalyst="ShiftLeft",
    ),
    Function(
        "shift_right", (2, 2), signatures.shifted, bits.shift, sql="({0} >> {1})",
        catalyst="ShiftRight",
    ),
    Function(
        "shift_right_unsigned", (2, 2), signatures.shifted, bits.shift, sql="({0} >>> {1})",
        catalyst="ShiftRightUnsigned",
    ),
    Function(
        "bit_count", (1, 1), gives(INT, *_INTEGERS), bits.bit_count, catalyst="BitwiseCount"
    ),
    Function(
        "get_bit", (2, 2), signatures.bit_at, bits.get_bit, fails=always,
        sql="getbit({...})", catalyst="BitwiseGet",
    ),
)  # fmt: skip

_MATHEMATICS: tuple[Function, ...] = (
    Function(
        "floor", (1, 1), signatures.whole_number, mathematics.floor_or_ceil,
        fails=always, catalyst="Floor",
    ),
    Function(
        "ceil", (1, 1), signatures.whole_number, mathematics.floor_or_ceil,
        fails=always, catalyst="Ceil",
    ),
    Function(
        "round", (1, 1), signatures.rounded, mathematics.round_half_up,
        options={"scale": OptionRule(check_scale, 0)},
        fails=always, sql="round({0}, {scale})", catalyst="Round", ansi="ansiEnabled",
    ),
    Function(
        "sqrt", (1, 1), gives(DOUBLE, "double"), mathematics.real_function,
        catalyst="Sqrt", compiled=Compiled(writers.strict("np.sqrt({})")),
    ),
    Function("exp", (1, 1), gives(DOUBLE, "double"), mathematics.real_function, catalyst="Exp"),
    Function(
        "ln", (1, 1), gives(DOUBLE, "double"), mathematics.real_function, always_nullable,
        catalyst="Log",
    ),
    Function(
        "expm1", (1, 1), gives(DOUBLE, "double"), mathematics.real_function, catalyst="Expm1"
    ),
    Function(
        "log1p", (1, 1), gives(DOUBLE, "double"), mathematics.real_function, always_nullable,
        catalyst="Log1p",
    ),
    Function(
        "log10", (1, 1), gives(DOUBLE, "double"), mathematics.logarithm, always_nullable,
        catalyst="Log10",
    ),
    Function(
        "log2", (1, 1), gives(DOUBLE, "double"), mathematics.logarithm, always_nullable,
        catalyst="Log2",
    ),
    Function(
        "log", (2, 2), gives(DOUBLE, "double"), mathematics.logarithm_to_base, always_nullable,
        catalyst="Logarithm",
    ),
    Function(
        "rint", (1, 1), gives(DOUBLE, "double"), mathematics.exact_function, catalyst="Rint",
        compiled=Compiled(writers.strict("np.rint({})")),
    ),
    Function(
        "signum", (1, 1), gives(DOUBLE, "double"), mathematics.exact_function, catalyst="Signum"
    ),
    Function(
        "degrees", (1, 1), gives(DOUBLE, "double"), mathematics.exact_function,
        catalyst="ToDegrees",
    ),
    Function(
        "radians", (1, 1), gives(DOUBLE, "double"), mathematics.exact_function,
        catalyst="ToRadians",
    ),
    Function(
        "factorial", (1, 1), gives(BIGINT, "int"), mathematics.factorial, always_nullable,
        catalyst="Factorial",
    ),
    Function(
        "width_bucket", (4, 4), signatures.width_bucket, mathematics.width_bucket,
        always_nullable, catalyst="WidthBucket",
    ),
    Function("pow", (2, 2), gives(DOUBLE, "double"), mathematics.power, catalyst="Pow"),
)  # fmt: skip

_TIMES: tuple[Function, ...] = (
    Function("year", (1, 1), signatures.date_part, times.date_part, options=_ZONE, catalyst="Year"),
    Function(
        "month", (1, 1), signatures.date_part, times.date_part, options=_ZONE, catalyst="Month"
    ),
    Function(
        "day", (1, 1), signatures.date_part, times.date_part, options=_ZONE, catalyst="DayOfMonth",
    ),
    Function(
        "day_of_week", (1, 1), signatures.date_part, times.date_part, options=_ZONE,
        sql="dayofweek({...})", catalyst="DayOfWeek",
    ),
    Function("hour", (1, 1), signatures.time_part, times.time_part, options=_ZONE, catalyst="Hour"),
    Function(
        "minute", (1, 1), signatures.time_part, times.time_part, options=_ZONE, catalyst="Minute"
    ),
    Function(
        "second", (1, 1), signatures.time_part, times.time_part, options=_ZONE, catalyst="Second"
    ),
    Function(
        "date_trunc", (1, 1), signatures.truncated_time, times.date_trunc,
        options={"unit": OptionRule(check_date_unit, REQUIRED), **_ZONE},
        sql="date_trunc({unit!r}, {0})", catalyst="TruncTimestamp",
    ),
    Function(
        "second_with_fraction", (1, 1),
        signatures.zoned(decimal_type(8, 6), "timestamp", "timestamp_ntz"),
        times.second_with_fraction, options=_ZONE, sql="extract(SECOND FROM {0})",
        catalyst="SecondWithFraction",
    ),
    Function("date_add", (2, 2), takes(DATE, INT), times.date_add, catalyst="DateAdd"),
    Function(
        "unix_seconds", (1, 1), gives(BIGINT, "timestamp"), times.unix_time,
        catalyst="UnixSeconds", compiled=Compiled(writers.strict("{} // 1000000")),
    ),
    Function(
        "unix_millis", (1, 1), gives(BIGINT, "timestamp"), times.unix_time,
        catalyst="UnixMillis", compiled=Compiled(writers.strict("{} // 1000")),
    ),
    Function(
        "unix_micros", (1, 1), gives(BIGINT, "timestamp", "timestamp_ntz"), times.unix_time,
        catalyst="UnixMicros", compiled=Compiled(writers.argument, branchless=True),
    ),
    Function(
        "timestamp_seconds", (1, 1), gives(TIMESTAMP, *_INTEGERS), times.timestamp_from,
        fails=always, catalyst="SecondsToTimestamp",
        compiled=Compiled(writers.scaled_time(1_000_000)),
    ),
    Function(
        "timestamp_millis", (1, 1), gives(TIMESTAMP, *_INTEGERS), times.timestamp_from,
        fails=always, catalyst="MillisToTimestamp", compiled=Compiled(writers.scaled_time(1000)),
    ),
    Function(
        "timestamp_micros", (1, 1), gives(TIMESTAMP, *_INTEGERS), times.timestamp_from,
        catalyst="MicrosToTimestamp", compiled=Compiled(writers.argument, branchless=True),
    ),
)  # fmt: skip

_DATES: tuple[Function, ...] = (
    Function("quarter", (1, 1), gives(INT, "date"), dates.calendar_part, catalyst="Quarter"),
    Function(
        "day_of_year", (1, 1), gives(INT, "date"), dates.calendar_part,
        sql="dayofyear({...})", catalyst="DayOfYear",
    ),
    Function(
        "week_of_year", (1, 1), gives(INT, "date"), dates.calendar_part,
        sql="weekofyear({...})", catalyst="WeekOfYear",
    ),
    Function(
        "year_of_week", (1, 1), gives(INT, "date"), dates.calendar_part,
        sql="extract(YEAROFWEEK FROM {0})", catalyst="YearOfWeek",
    ),
    Function(
        "day_name", (1, 1), gives(STRING, "date"), dates.calendar_name,
        sql="dayname({...})", catalyst="DayName",
    ),
    Function(
        "month_name", (1, 1), gives(STRING, "date"), dates.calendar_name,
        sql="monthname({...})", catalyst="MonthName",
    ),
    Function("last_day", (1, 1), takes(DATE), dates.last_day, catalyst="LastDay"),
    Function(
        "next_day", (1, 1), takes(DATE), dates.next_day,
        options={"weekday": OptionRule(check_weekday, REQUIRED)},
        sql="next_day({0}, {weekday})", catalyst="NextDay",
    ),
    Function(
        "trunc", (1, 1), takes(DATE), dates.trunc,
        options={"unit": OptionRule(check_day_unit, REQUIRED)},
        sql="trunc({0}, {unit!r})", catalyst="TruncDate",
    ),
    Function(
        "add_months", (2, 2), takes(DATE, INT), dates.add_months, fails=always,
        catalyst="AddMonths",
    ),
    Function(
        "add_months_to_time", (2, 2), signatures.moved_time("int"), dates.add_months_to_time,
        options=_ZONE, fails=always, sql="({0} + {1} months)", catalyst="TimestampAddYMInterval",
    ),
    Function(
        "add_length", (2, 2), signatures.moved_time("bigint"), dates.add_length,
        options=_ZONE, fails=always, sql="({0} + {1} microseconds)",
        catalyst="TimestampAddInterval",
    ),
    Function(
        "months_between", (2, 2), signatures.zoned(DOUBLE, "timestamp"), dates.months_between,
        options={"rounded": OptionRule(check_flag, True), **_ZONE}, catalyst="MonthsBetween",
    ),
    Function("date_diff", (2, 2), gives(INT, "date"), dates.date_diff, catalyst="DateDiff"),
    Function(
        "timestamp_diff", (2, 2), signatures.zoned(BIGINT, "timestamp", "timestamp_ntz"),
        dates.timestamp_diff, options={"unit": OptionRule(check_date_unit, REQUIRED), **_ZONE},
        sql="timestampdiff({unit}, {...})", catalyst="TimestampDiff",
    ),
    Function(
        "make_date", (3, 3), signatures.date_of_parts, dates.make_date,
        fails=always, catalyst="MakeDate", ansi="failOnError",
    ),
    Function(
        "make_timestamp", (6, 6), signatures.time_of_parts, dates.make_timestamp,
        options=_ZONE, fails=always, catalyst="make_timestamp", ansi="failOnError",
    ),
    Function("unix_date", (1, 1), gives(INT, "date"), dates.unix_date, catalyst="UnixDate"),
    Function(
        "date_from_unix_date", (1, 1), gives(DATE, "int"), dates.unix_date,
        catalyst="DateFromUnixDate",
    ),
    Function(
        "from_utc_timestamp", (1, 1), takes(TIMESTAMP), dates.shifted_by_zone,
        options={"zone": OptionRule(check_time_zone, REQUIRED)},
        sql="from_utc_timestamp({0}, {zone!r})", catalyst="FromUTCTimestamp",
    ),
    Function(
        "to_utc_timestamp", (1, 1), takes(TIMESTAMP), dates.shifted_by_zone,
        options={"zone": OptionRule(check_time_zone, REQUIRED)},
        sql="to_utc_timestamp({0}, {zone!r})", catalyst="ToUTCTimestamp",
    ),
)  # fmt: skip

_INTERVALS: tuple[Function, ...] = (
    # The microseconds of an interval, which all else is computed with, and back.
    Function(
        "interval_micros", (1, 1), gives(BIGINT, *INTERVAL_KINDS), intervals.retyped,
        sql="micros({0})", compiled=Compiled(writers.argument, branchless=True),
    ),
    Function(
        "interval_of_micros", (1, 1), signatures.interval_of(BIGINT, *INTERVAL_KINDS),
        intervals.retyped, options={"to": OptionRule(check_type_text, REQUIRED)},
        sql="interval({0})", compiled=Compiled(writers.argument, branchless=True),
    ),
    # The same of the months of an interval of years and months.
    Function(
        "interval_months", (1, 1), gives(INT, *MONTHS_KINDS), intervals.retyped,
        sql="months({0})", compiled=Compiled(writers.argument, branchless=True),
    ),
    Function(
        "interval_of_months", (1, 1), signatures.interval_of(INT, *MONTHS_KINDS),
        intervals.retyped, options={"to": OptionRule(check_type_text, REQUIRED)},
        sql="interval({0})", compiled=Compiled(writers.argument, branchless=True),
    ),
    Function(
        "multiply_micros", (2, 2), signatures.scaled_micros("double", "decimal"),
        intervals.multiply, fails=always, sql="({0} * {1})", catalyst="MultiplyDTInterval",
    ),
    Function(
        "divide_micros", (2, 2), signatures.scaled_micros("bigint", "double", "decimal"),
        intervals.divide, fails=always, sql="({0} / {1})", catalyst="DivideDTInterval",
    ),
)  # fmt: skip

_FORMATS: tuple[Function, ...] = (
    Function(
        "date_format", (1, 1), signatures.zoned(STRING, "timestamp"), formats.date_format,
        options={"pattern": OptionRule(formats.check_written, REQUIRED), **_ZONE},
        sql="date_format({0}, {pattern!r})", catalyst="DateFormatClass",
    ),
    Function(
        "from_unixtime", (1, 1), gives(STRING, "bigint"), formats.from_unixtime,
        options={"pattern": OptionRule(formats.check_written, REQUIRED), **_ZONE},
        sql="from_unixtime({0}, {pattern!r})", catalyst="FromUnixTime",
    ),
    Function(
        "parse_time", (1, 1), signatures.time_of_text, formats.parsed_time, options=_PARSED,
        fails=always, sql="to_timestamp({0}, {pattern!r})", catalyst="GetTimestamp",
    ),
    Function(
        "try_parse_time", (1, 1), signatures.time_of_text, formats.parsed_time, always_nullable,
        options=_PARSED, sql="try_to_timestamp({0}, {pattern!r})",
    ),
)  # fmt: skip

_NESTED: tuple[Function, ...] = (
    Function(
        "struct", (1, None), signatures.struct_of, nested.make_struct, never_null,
        {"names": OptionRule(check_names, REQUIRED)},
        arguments=Arguments.ALL, catalyst="CreateNamedStruct",
    ),
    Function(
        "get_field", (1, 1), signatures.field_of, nested.get_field, always_nullable,
        {"name": OptionRule(check_text, REQUIRED)}, sql="{0}.{name}", catalyst="GetStructField",
    ),
    Function(
        "array", (1, None), signatures.array_of, nested.make_array, never_null,
        arguments=Arguments.ALL, catalyst="CreateArray",
    ),
    Function(
        "get_item", (2, 2), signatures.item_of, nested.get_item, always_nullable,
        fails=always, sql="{0}[{1}]", catalyst="GetArrayItem",
    ),
    Function("size", (1, 1), gives(INT, "array", "map"), nested.size, catalyst="Size"),
    Function(
        "key_bytes", (1, 1), signatures.bytes_of_key, key_values.key_bytes,
        options={"maps": OptionRule(check_flag, False)},
    ),
    Function(
        "of_key_bytes", (1, 1), signatures.key_of_bytes, key_values.of_key_bytes,
        options={"type": OptionRule(check_type_text, REQUIRED)},
    ),
    # a static table of (key, value) pairs; null for a key that is not in it
    Function(
        "lookup", (1, 1), signatures.looked_up, nested.lookup, always_nullable,
        {
            "table": OptionRule(lambda value: value, REQUIRED),
            "value_type": OptionRule(check_type_text, REQUIRED),
        },
        catalyst="GetMapValue", compiled=Compiled(writers.lookup, when=writers.of_integers),
    ),
)  # fmt: skip

_COLLECTIONS: tuple[Function, ...] = (
    Function(
        "array_contains", (2, 2), signatures.searched_array(BOOLEAN), collections.array_contains,
        always_nullable, catalyst="ArrayContains",
    ),
    Function(
        "array_position", (2, 2), signatures.searched_array(BIGINT), collections.array_position,
        catalyst="ArrayPosition",
    ),
    Function(
        "array_remove", (2, 2), signatures.searched_array(None), collections.array_remove,
        catalyst="ArrayRemove",
    ),
    Function(
        "array_max", (1, 1), signatures.extreme_item, collections.array_extreme, always_nullable,
        catalyst="ArrayMax",
    ),
    Function(
        "array_min", (1, 1), signatures.extreme_item, collections.array_extreme, always_nullable,
        catalyst="ArrayMin",
    ),
    Function(
        "arrays_overlap", (2, 2), signatures.overlapping_arrays, collections.arrays_overlap,
        always_nullable, catalyst="ArraysOverlap",
    ),
    Function(
        "array_distinct", (1, 1), signatures.sets_of_items, collections.array_distinct,
        catalyst="ArrayDistinct",
    ),
    Function(
        "array_union", (2, 2), signatures.sets_of_items, collections.array_union,
        catalyst="ArrayUnion",
    ),
    Function(
        "array_intersect", (2, 2), signatures.sets_of_items, collections.array_difference,
        catalyst="ArrayIntersect",
    ),
    Function(
        "array_except", (2, 2), signatures.sets_of_items, collections.array_difference,
        catalyst="ArrayExcept",
    ),
    Function(
        "sort_array", (1, 1), signatures.ordered_array, collections.sort_array,
        options={
            "upwards": OptionRule(check_flag, True),
            "nulls_last": OptionRule(check_flag, False),
        },
        sql="sort_array({0}, {upwards})", catalyst="SortArray",
    ),
    Function(
        "array_reverse", (1, 1), signatures.arrays_of_one_type, collections.array_reverse,
        sql="reverse({0})",
    ),
    Function(
        "array_concat", (1, None), signatures.arrays_of_one_type, collections.array_concat,
        sql="concat({...})",
    ),
    Function(
        "array_append", (2, 2), signatures.array_and_item, collections.array_add,
        _first_nullable, arguments=Arguments.ALL, catalyst="ArrayInsert",
    ),
    Function(
        "array_prepend", (2, 2), signatures.array_and_item, collections.array_add,
        _first_nullable, arguments=Arguments.ALL,
    ),
    Function(
        "flatten", (1, 1), signatures.flattened, collections.flatten, always_nullable,
        catalyst="Flatten",
    ),
    Function(
        "slice", (3, 3), signatures.sliced, collections.slice_array, fails=always,
        catalyst="Slice",
    ),
    Function(
        "array_repeat", (2, 2), signatures.repeated, collections.array_repeat,
        lambda operands: operands.nullables[1], arguments=Arguments.ALL, fails=always,
        catalyst="ArrayRepeat",
    ),
    Function(
        "array_join", (1, 1), signatures.joined_array, collections.array_join,
        options={
            "separator": OptionRule(check_text, REQUIRED),
            "null_replacement": OptionRule(check_text, None),
        },
        sql="array_join({0}, {separator!r})", catalyst="ArrayJoin",
    ),
    Function(
        "struct_fields", (1, 1), signatures.fields_of_items, collections.struct_fields,
        options={"name": OptionRule(check_text, REQUIRED)}, sql="{0}.{name}",
        catalyst="GetArrayStructFields",
    ),
    Function(
        "element_at", (2, 2), signatures.item_at, collections.element_at, always_nullable,
        options={"null_outside": OptionRule(check_flag, False)}, fails=always,
        catalyst="ElementAt",
    ),
    Function(
        "map_value", (2, 2), signatures.map_value, collections.map_value, always_nullable,
        sql="{0}[{1}]",
    ),
    Function("map_keys", (1, 1), signatures.keys_of, collections.map_part, catalyst="MapKeys"),
    Function(
        "map_values", (1, 1), signatures.values_of, collections.map_part, catalyst="MapValues"
    ),
    Function(
        "map_entries", (1, 1), signatures.entries_of, collections.map_entries,
        catalyst="MapEntries",
    ),
    Function(
        "map", (2, None), signatures.map_of, collections.make_map, never_null,
        arguments=Arguments.ALL, fails=always, catalyst="CreateMap",
    ),
    Function(
        "map_from_arrays", (2, 2), signatures.map_of_arrays, collections.map_from_arrays,
        fails=always, catalyst="MapFromArrays",
    ),
    Function(
        "map_from_entries", (1, 1), signatures.map_of_entries, collections.map_from_entries,
        always_nullable, fails=always, catalyst="MapFromEntries",
    ),
    Function(
        "arrays_zip", (1, None), signatures.zipped_arrays, collections.arrays_zip,
        options={"names": OptionRule(check_names, REQUIRED)}, catalyst="ArraysZip",
    ),
    Function(
        "sequence", (2, 3), signatures.sequence, collections.sequence, fails=always,
        catalyst="Sequence",
    ),
    Function(
        "map_concat", (1, None), signatures.maps_of_one_type, collections.map_concat,
        fails=always, catalyst="MapConcat",
    ),
    Function("map_sort", (1, 1), signatures.sorted_map, collections.map_sort, catalyst="MapSort"),
)  # fmt: skip

_BODY = {"body": OptionRule(lambdas.check_body, REQUIRED)}


def _body_may_fail(call: Call) -> bool:
    bodies = (call.option(name) for name in ("body", "finish") if name in call.row.options)
    return any(may_fail(lambdas.body_of(body)) for body in bodies)


_LAMBDAS: tuple[Function, ...] = (
    Function(
        "transform", (1, None), lambdas.transformed, lambdas.transform, _first_nullable, _BODY,
        arguments=Arguments.ALL, fails=_body_may_fail, sql="transform({...}, x -> {body})",
        catalyst="transform",
    ),
    Function(
        "filter", (1, None), lambdas.filtered, lambdas.filter_items, _first_nullable, _BODY,
        arguments=Arguments.ALL, fails=_body_may_fail, sql="filter({...}, x -> {body})",
        catalyst="filter",
    ),
    Function(
        "exists", (1, None), lambdas.decided, lambdas.exists_or_forall, always_nullable, _BODY,
        arguments=Arguments.ALL, fails=_body_may_fail, sql="exists({...}, x -> {body})",
        catalyst="exists",
    ),
    Function(
        "forall", (1, None), lambdas.decided, lambdas.exists_or_forall, always_nullable, _BODY,
        arguments=Arguments.ALL, fails=_body_may_fail, sql="forall({...}, x -> {body})",
        catalyst="forall",
    ),
    Function(
        "aggregate", (2, None), lambdas.aggregated, lambdas.aggregate, always_nullable,
        {**_BODY, "finish": OptionRule(lambdas.check_body, REQUIRED)},
        arguments=Arguments.ALL, fails=_body_may_fail,
        sql="aggregate({...}, (acc, x) -> {body}, acc -> {finish})", catalyst="aggregate",
    ),
    Function(
        "zip_with", (2, None), lambdas.zipped, lambdas.zip_with,
        lambda operands: any(operands.nullables[:2]), _BODY,
        arguments=Arguments.ALL, fails=_body_may_fail, sql="zip_with({...}, (x, y) -> {body})",
        catalyst="zip_with",
    ),
    Function(
        "map_filter", (1, None), lambdas.filtered_map, lambdas.map_entries_changed,
        _first_nullable, _BODY, arguments=Arguments.ALL, fails=_body_may_fail,
        sql="map_filter({...}, (x, y) -> {body})", catalyst="map_filter",
    ),
    Function(
        "transform_values", (1, None), lambdas.map_of_new_values, lambdas.map_entries_changed,
        _first_nullable, _BODY, arguments=Arguments.ALL, fails=_body_may_fail,
        sql="transform_values({...}, (x, y) -> {body})", catalyst="transform_values",
    ),
    Function(
        "transform_keys", (1, None), lambdas.map_of_new_keys, lambdas.map_entries_changed,
        _first_nullable, _BODY, arguments=Arguments.ALL, fails=always,
        sql="transform_keys({...}, (x, y) -> {body})", catalyst="transform_keys",
    ),
)  # fmt: skip

FUNCTIONS: Mapping[str, Function] = {
    function.name: function
    for function in (
        *_ARITHMETIC,
        *_COMPARISON,
        *_LOGIC_AND_BRANCHES,
        *_STRINGS,
        *_TEXTS,
        *_HASHES,
        *_JSON,
        *_BITS,
        *_MATHEMATICS,
        *_TIMES,
        *_DATES,
        *_INTERVALS,
        *_FORMATS,
        *_NESTED,
        *_COLLECTIONS,
        *_LAMBDAS,
    )
}


def function_named(name: str) -> Function:
    """The row of that name; an ExpressionError that lists what there is."""
    row = FUNCTIONS.get(name)
    if row is None:
        raise ExpressionError(
            f"there is no function {name!r:.100}: Structured Streaming can run it, this engine "
            f"knows {', '.join(sorted(FUNCTIONS))}",
            function=str(name)[:100],
        )
    return row


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """What checking a call gives: its row, its type, whether it can be null, complete options."""

    row: Function
    type: DataType
    nullable: bool
    options: tuple[tuple[str, Option], ...]


# What only passes values on: all else may compare them, or take them for plain texts.
_OF_ANY_COLLATION = frozenset(
    {"array", "case", "coalesce", "get_field", "if", "is_not_null", "is_null", "struct"}
)


def check_call(
    function: str,
    types: Sequence[DataType],
    nullables: Sequence[bool],
    options: Mapping[str, Any],
) -> CheckedCall:
    """Check one call against the table; an ExpressionError names what does not fit."""
    entry = function_named(function)
    least, most = entry.arity
    if len(types) < least or (most is not None and len(types) > most):
        wanted = str(least) if least == most else f"{least} to {most or 'any number of'}"
        raise ExpressionError(
            f"{function} takes {wanted} arguments, {len(types)} were given",
            function=function,
            given=len(types),
        )
    if function not in _OF_ANY_COLLATION and any(each.has_collation for each in types):
        raise ExpressionError(
            f"{function} compares texts by their bytes, and {', '.join(map(str, types))} compares "
            "by its collation",
            function=function,
        )
    complete = _complete_options(entry, options)
    operands = Operands(function, tuple(types), tuple(nullables), complete)
    result = entry.result(operands)
    kept = {key: value for key, value in operands.options.items() if value is not None}
    return CheckedCall(entry, result, entry.nullable(operands), tuple(sorted(kept.items())))


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
