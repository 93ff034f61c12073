"""Writes docs/expressions.md: every expression class of the installed Spark, and what computes it.

The classes are read from Spark's own jars, without a JVM, and what computes them from the tables
of the package. `python tools/expressions_page.py` writes the page; a test compares it.
"""

from __future__ import annotations

import struct
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import pyspark

from penstock.catalyst.by_spark import not_by_spark
from penstock.catalyst.chance import CHANCE_KINDS
from penstock.catalyst.expressions import EXPRESSION_KINDS
from penstock.catalyst.generators import GENERATOR_KINDS
from penstock.catalyst.over import OVER_KINDS
from penstock.catalyst.refusals import EXPRESSION_REASONS
from penstock.expressions.functions import FUNCTIONS
from penstock.operators.aggregate_functions import AGGREGATES

PAGE = Path(__file__).parents[1] / "docs" / "expressions.md"
_JARS = ("spark-catalyst_*.jar", "spark-sql_*.jar")
_EXPRESSION = "org/apache/spark/sql/catalyst/expressions/Expression"
_INTERFACE, _ABSTRACT = 0x0200, 0x0400
# Classes that name their nodes otherwise than by themselves.
NODE_NAMES: Mapping[str, str] = {
    "ArrayAggregate": "aggregate",
    "ArrayExists": "exists",
    "ArrayFilter": "filter",
    "ArrayForAll": "forall",
    "ArraySort": "array_sort",
    "ArrayTransform": "transform",
    "BitAndAgg": "bit_and",
    "BitOrAgg": "bit_or",
    "BitXorAgg": "bit_xor",
    "MakeTimestamp": "make_timestamp",
    "MapFilter": "map_filter",
    "TransformKeys": "transform_keys",
    "TransformValues": "transform_values",
    "ZipWith": "zip_with",
}
# What a builder makes of classes that no row names; nothing stands for what is only passed on.
_MADE_OF: Mapping[str, str | None] = {
    "AtLeastNNonNulls": "is_not_null",
    "AttributeReference": None,
    "ConvertTimezone": "cast",
    "DateAddYMInterval": "add_months",
    "DateSub": "date_add",
    "ExtractANSIIntervalDays": "int_divide",
    "ExtractANSIIntervalHours": "int_divide",
    "ExtractANSIIntervalMinutes": "int_divide",
    "ExtractANSIIntervalSeconds": "remainder",
    "FormatString": "concat",
    "InSet": "in",
    "InputFileName": None,
    "Invoke": "to_json",
    "KnownNotContainsNull": None,
    "KnownNullable": None,
    "LikeAll": "like",
    "LikeAny": "like",
    "Literal": None,
    "MakeDTInterval": "multiply",
    "MakeDecimal": None,
    "NaNvl": "is_nan",
    "NotLikeAll": "like",
    "NotLikeAny": "like",
    "NamedLambdaVariable": None,
    "PreciseTimestampConversion": "unix_micros",
    "StaticInvoke": "base64",
    "StringLocate": "instr",
    "StringSpace": "repeat",
    "SubtractDates": "subtract",
    "SubtractTimestamps": "subtract",
    "TimestampAdd": "add_length",
    "ToUnixTimestamp": "unix_micros",
    "UnixTimestamp": "unix_micros",
    "UnscaledValue": "multiply",
    "WeekDay": "day_of_week",
    "array_sort": "sort_array",
}
_AGGREGATES = {row.catalyst: row.name for row in reversed(AGGREGATES.values())}
_AGGREGATES["PivotFirst"] = "last"
# Read together with the node of the plan that they stand in, not as a value of one row.
_WITH_THEIR_NODE = (
    frozenset({"Alias", "AggregateExpression", "ScalarSubquery", "WindowExpression"})
    | GENERATOR_KINDS
    | OVER_KINDS
)
# What the analyser has replaced before a plan is read.
_REPLACED = frozenset({"Cube", "GeneratorOuter", "GroupingSets", "LambdaFunction", "Rollup"})


class JavaClass(NamedTuple):
    """What a class file says of its class."""

    name: str
    parents: tuple[str, ...]
    is_concrete: bool


def classes_of(jar: Path) -> Iterator[JavaClass]:
    """The classes of a jar that are not inside others."""
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if name.endswith(".class") and "$" not in name and "sql/" in name:
                yield _class_of(archive.read(name))


def _class_of(data: bytes) -> JavaClass:
    """The head of a class file: constants, flags, and the names of the parents."""
    (count,) = struct.unpack_from(">H", data, 8)
    texts: dict[int, str] = {}
    names: dict[int, int] = {}
    at, index = 10, 1
    while index < count:
        tag = data[at]
        if tag == 1:
            (size,) = struct.unpack_from(">H", data, at + 1)
            texts[index] = data[at + 3 : at + 3 + size].decode("utf-8", "replace")
            at += 3 + size
        else:
            if tag == 7:
                (names[index],) = struct.unpack_from(">H", data, at + 1)
            at += {3: 5, 4: 5, 5: 9, 6: 9, 7: 3, 8: 3, 15: 4, 16: 3, 19: 3, 20: 3}.get(tag, 5)
        index += 2 if tag in (5, 6) else 1
    flags, this, parent, interfaces = struct.unpack_from(">HHHH", data, at)
    known = struct.unpack_from(f">{interfaces}H", data, at + 8)
    parents = tuple(texts[names[each]] for each in (parent, *known) if each)
    return JavaClass(texts[names[this]], parents, not flags & (_INTERFACE | _ABSTRACT))


def expression_classes() -> dict[str, frozenset[str]]:
    """The simple name of each expression class of Spark, with those of all that it extends."""
    jars = Path(pyspark.__file__).parent / "jars"
    found = {
        each.name: each
        for pattern in _JARS
        for jar in sorted(jars.glob(pattern))
        for each in classes_of(jar)
    }

    def ancestors(name: str) -> frozenset[str]:
        own = found.get(name)
        if own is None:
            return frozenset({name})
        return frozenset({name}).union(*(ancestors(parent) for parent in own.parents))

    classes: dict[str, frozenset[str]] = {}
    for each in found.values():
        above = ancestors(each.name)
        if each.is_concrete and _EXPRESSION in above:
            simple = frozenset(name.rpartition("/")[2] for name in above)
            classes[each.name.rpartition("/")[2]] = simple
    return classes


def status_of(name: str, ancestors: frozenset[str]) -> tuple[str, str]:
    """(compiled, Arrow, Python, by Spark, rewritten or refused; what more there is to say)."""
    kind = NODE_NAMES.get(name, name)
    if kind in _WITH_THEIR_NODE:
        return "compiled", "with the node of the plan that it stands in"
    if kind in EXPRESSION_KINDS:
        return _known(kind)
    if kind in CHANCE_KINDS:
        return "Python", "once for each row"
    if kind == "PythonUDF":
        return "Python", "but for aggregates of groups: [docs/python.md](python.md)"
    if kind == "PythonUDTF":
        return "Python", "rows for each row: [docs/python.md](python.md)"
    if kind in _AGGREGATES:
        return "aggregate", f"`{_AGGREGATES[kind]}`"
    if "RuntimeReplaceable" in ancestors or name in _REPLACED:
        return "rewritten", ""
    reason = EXPRESSION_REASONS.get(name) or not_by_spark(kind, ancestors)
    return ("by Spark", "") if reason is None else ("refused", reason)


def _known(kind: str) -> tuple[str, str]:
    rows = {row.catalyst: row for row in FUNCTIONS.values() if row.catalyst is not None}
    made_of = _MADE_OF.get(kind)
    row = rows.get(kind) or (FUNCTIONS[made_of] if made_of is not None else None)
    if row is None:
        return "compiled", ""
    compiled = row.compiled is not None
    return ("compiled" if compiled else "Arrow"), f"`{row.name}`"


_INTRODUCTION = """# Expressions

Every expression class of Spark {version}, and what computes it. Written by
`tools/expressions_page.py` from the tables of the package and Spark's own classes.

- **compiled**: by a loop of machine code, where the types of its arguments are numbers or times; by
  Arrow where they are not.
- **Arrow**: by Arrow and NumPy, whole columns at a time.
- **by Spark**: by Spark itself, over the rows of a commit, slower; `explain` shows where. So are
  forms of the classes above that are not known here, such as a pattern that is no constant.
- **rewritten**: by Spark's optimizer, in other expressions of this page.
- **aggregate**: over groups, by loops or Arrow.
- **refused**: it has no value that a row alone decides, and that is the same after a recovery; or
  it is an aggregate or a function over windows that is not known here.

| | classes |
|---|---|
{counts}

| class | computed | |
|---|---|---|
{rows}
"""
_ORDER = ("compiled", "Arrow", "aggregate", "by Spark", "rewritten", "refused")


def page() -> str:
    """The text of the page."""
    found = {
        name: status_of(name, ancestors) for name, ancestors in sorted(expression_classes().items())
    }
    counted = Counter(status for status, _ in found.values())
    counts = "\n".join(f"| {status} | {counted[status]} |" for status in _ORDER)
    rows = "\n".join(f"| {name} | {status} | {note} |" for name, (status, note) in found.items())
    return _INTRODUCTION.format(version=pyspark.__version__, counts=counts, rows=rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
