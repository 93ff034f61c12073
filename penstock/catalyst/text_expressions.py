"""Builders for Catalyst's functions of texts and bytes: patterns and separators are constants."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import reduce

from penstock.catalyst.jvm import scala_items
from penstock.catalyst.literals import constant_value
from penstock.catalyst.place import Builder, Place
from penstock.errors import ExpressionError
from penstock.expressions.regex import groups_of
from penstock.expressions.tree import Expression, call, cast, literal
from penstock.expressions.types import STRING

EULER = 2.718281828459045


def _trim(function: str) -> Builder:
    def build(place: Place) -> Expression:
        if len(place.node.children) == 1:
            return call(function, place.arg(0))
        characters = place.constant(1, "what is trimmed")
        if characters == " ":
            return call(function, place.arg(0))
        return call(f"{function}_characters", place.arg(0), characters=characters)

    return build


def _like(place: Place) -> Expression:
    pattern, escape = place.constant(1, "the pattern"), str(place.read("escapeChar"))
    return call("like", place.arg(0), pattern=pattern, escape=escape)


def _like_several(combine: str, negated: bool = False) -> Builder:
    """LIKE ALL and LIKE ANY of constant patterns."""

    def build(place: Place) -> Expression:
        text = place.arg(0)
        patterns = scala_items(place.read("patterns"))
        if any(pattern is None for pattern in patterns):
            raise ExpressionError("a pattern is null")
        each: list[Expression] = [
            call("like", text, pattern=str(pattern.toString())) for pattern in patterns
        ]
        if negated:
            each = [call("not", one) for one in each]
        return reduce(lambda left, right: call(combine, left, right), each)

    return build


def _rlike(place: Place) -> Expression:
    return call("rlike", place.arg(0), pattern=place.constant(1, "the pattern"))


def _split(place: Place) -> Expression:
    pattern, limit = place.constant(1, "the pattern"), place.constant(2, "the limit")
    return call("split", place.arg(0), pattern=pattern, limit=limit if limit > 0 else -1)


def _split_at(place: Place) -> Expression:
    return call("split_at", place.arg(0), separator=place.constant(1, "the separator"))


def _concat_ws(place: Place) -> Expression:
    separator, *args = place.args()
    text = constant_value(separator, "the separator")
    if not args:
        return literal("", STRING)
    return call("concat_ws", *args, separator=text)


def _format_string(place: Place) -> Expression:
    """Values in a constant text, by %s, %d, %5d and %05d: as the texts that they are."""
    pattern = place.constant(0, "the format")
    waiting = [place.arg(index) for index in range(1, len(place.node.children))]
    parts: list[Expression] = []
    for plain, percent, zeros, width, kind in _CONVERSIONS.findall(pattern):
        if plain:
            parts.append(literal("%" if percent else plain, STRING))
        elif not kind or not waiting:
            raise ExpressionError(
                f"the format {pattern!r} is not known here, or has too few values"
            )
        else:
            parts.append(_formatted(waiting.pop(0), zeros, width, kind))
    return call("concat", *parts) if parts else literal("", STRING)


_CONVERSIONS = re.compile(r"([^%]+|%(%))|%(0?)([1-9][0-9]{0,3})?([sd])|%", re.DOTALL)


def _formatted(value: Expression, zeros: str, width: str, kind: str) -> Expression:
    """One value; null is a word."""
    is_text = value.type == STRING or value.type.kind == "boolean"
    if not (value.type.is_integer or (is_text and kind == "s")):
        raise ExpressionError(f"a {value.type} is not written by %{kind} here")
    if (zeros and not width) or (kind == "s" and (zeros or width)):
        raise ExpressionError(f"%{zeros}{width}{kind} is not known here")
    if width:
        return call("padded_number", value, width=int(width), zeros=bool(zeros))
    text = value if value.type == STRING else cast(value, STRING)
    return call("coalesce", text, literal("null", STRING)) if text.nullable else text


def _instr(place: Place) -> Expression:
    return call("instr", place.arg(0), part=place.constant(1, "what is searched for"))


def _locate(place: Place) -> Expression:
    part, start = place.constant(0, "what is searched for"), place.constant(2, "the position")
    if start != 1:
        raise ExpressionError("only a search from the first character on is known here")
    return call("instr", place.arg(1), part=part)


def _substring(place: Place) -> Expression:
    args = place.args()
    return call("binary_substring" if args[0].type.kind == "binary" else "substring", *args)


def _substring_index(place: Place) -> Expression:
    separator, count = place.constant(1, "the separator"), place.constant(2, "the count")
    return call("substring_index", place.arg(0), separator=separator, count=count)


def _translate(place: Place) -> Expression:
    matching, replacing = place.constant(1, "what is replaced"), place.constant(2, "by what")
    return call("translate", place.arg(0), matching=matching, replacing=replacing)


def _space(place: Place) -> Expression:
    return call("repeat", literal(" ", STRING), place.arg(0))


def _regexp_replace(place: Place) -> Expression:
    if place.constant(3, "the position") != 1:
        raise ExpressionError("only texts from their beginning on are replaced in here")
    pattern, replacement = place.constant(1, "the pattern"), place.constant(2, "the replacement")
    return call("regexp_replace", place.arg(0), pattern=pattern, replacement=replacement)


def _regexp_extract(place: Place) -> Expression:
    pattern, group = place.constant(1, "the pattern"), place.constant(2, "the group")
    if not 0 <= group <= groups_of(pattern):
        raise ExpressionError(f"the pattern has no group {group}")
    return call("regexp_extract", place.arg(0), pattern=pattern, group=group)


def _unhex(place: Place) -> Expression:
    if place.read("failOnError"):
        raise ExpressionError("only unhex() that gives null for other digits is known here")
    return call("unhex", place.arg(0))


def _hash(function: str) -> Builder:
    def build(place: Place) -> Expression:
        return call(function, *place.args(), seed=int(place.read("seed")))

    return build


def _sha2(place: Place) -> Expression:
    bits = place.constant(1, "the number of bits")
    return call("sha2", place.arg(0), bits=bits or 256)


def _logarithm(place: Place) -> Expression:
    base, arg = place.args()
    if base == literal(EULER, "double"):
        return call("ln", arg)
    return call("log", base, arg)


def _static(place: Place) -> Expression:
    """Functions that Catalyst calls as static methods of the JVM."""
    owner = str(place.read("staticObject").getName()).rpartition(".")[2].rstrip("$")
    name = f"{owner}.{place.read('functionName')}"
    builder = _STATIC.get(name)
    if builder is None:
        raise ExpressionError(f"{name} is a function of the JVM that is not known here")
    return builder(place)


def _unbase64(place: Place) -> Expression:
    if place.read("failOnError"):
        raise ExpressionError("to_binary() of what may not be Base64 is not known here")
    return call("unbase64", place.arg(0))


def _base64(place: Place) -> Expression:
    return call("base64", place.arg(0), lines=bool(place.constant(1, "whether it has lines")))


def _encoded(place: Place) -> Expression:
    charset = str(place.constant(1, "the character set")).upper()
    if charset not in ("UTF-8", "UTF8"):
        raise ExpressionError(f"only UTF-8 is known here, not {charset:.40}")
    return cast(place.arg(0), "binary")


_STATIC: Mapping[str, Builder] = {"Base64.encode": _base64, "Encode.encode": _encoded}

TEXT_BUILDERS: Mapping[str, Builder] = {
    "ConcatWs": _concat_ws,
    "FormatString": _format_string,
    "StringTrim": _trim("trim"),
    "StringTrimLeft": _trim("ltrim"),
    "StringTrimRight": _trim("rtrim"),
    "Like": _like,
    "LikeAll": _like_several("and"),
    "LikeAny": _like_several("or"),
    "NotLikeAll": _like_several("and", negated=True),
    "NotLikeAny": _like_several("or", negated=True),
    "RLike": _rlike,
    "StringSplit": _split,
    "StringSplitSQL": _split_at,
    "StringInstr": _instr,
    "StringLocate": _locate,
    "Substring": _substring,
    "SubstringIndex": _substring_index,
    "StringTranslate": _translate,
    "StringSpace": _space,
    "RegExpReplace": _regexp_replace,
    "RegExpExtract": _regexp_extract,
    "Unhex": _unhex,
    "UnBase64": _unbase64,
    "Sha2": _sha2,
    "Murmur3Hash": _hash("hash"),
    "XxHash64": _hash("xxhash64"),
    "Logarithm": _logarithm,
    "StaticInvoke": _static,
}
