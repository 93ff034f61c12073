"""Builders for Catalyst's structs, arrays, maps, and the functions that take a lambda."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.catalyst.jvm import JvmNode, java_classes, scala_map, scala_option
from penstock.catalyst.literals import constant_value, read_map
from penstock.catalyst.place import Builder, Place
from penstock.catalyst.spark_types import spark_type
from penstock.errors import ExpressionError
from penstock.expressions.lambdas import closed_over
from penstock.expressions.tree import Call, Column, Expression, Literal, call, literal
from penstock.expressions.types import INT, INTERVAL_FIELDS_US, STRING, DataType

# --- structs --------------------------------------------------------------------------------------


def _named_struct(place: Place) -> Expression:
    args = place.args()
    names = [constant_value(name, "the name of a field") for name in args[0::2]]
    return call("struct", *args[1::2], names=names)


def _struct_field(place: Place) -> Expression:
    arg = place.arg(0)
    return member_of(arg, arg.type.fields[int(place.read("ordinal"))].name)


def member_of(struct: Expression, field: str) -> Expression:
    """A field of a struct; of one that is built on the spot, what it is built of."""
    if isinstance(struct, Call) and struct.function == "struct":
        return struct.args[list(struct.option("names")).index(field)]
    return call("get_field", struct, name=field)


def _fields_of_items(place: Place) -> Expression:
    arg = place.arg(0)
    fields = _element(arg.type).fields
    return call("struct_fields", arg, name=fields[int(place.read("ordinal"))].name)


# --- arrays ---------------------------------------------------------------------------------------


def _element(data_type: DataType) -> DataType:
    if data_type.element is None:
        raise ExpressionError(f"{data_type} is not an array")
    return data_type.element


def _array(place: Place) -> Expression:
    args = place.args()
    if not args:
        raise ExpressionError("an empty array is not known here")
    return call("array", *args)


def _array_item(place: Place) -> Expression:
    array, index = place.arg(0), place.arg(1)
    if place.read("failOnError"):
        return call("get_item", array, index)
    inside = call("and", call("ge", index, literal(0, INT)), call("lt", index, call("size", array)))
    missing = literal(None, _element(array.type))
    return call("if", inside, call("get_item", array, index), missing)


def _element_at(place: Place) -> Expression:
    found, key = place.args()
    if found.type.kind == "map":
        return call("map_value", found, key)
    default = place.read("defaultValueOutOfBound")
    if default.isDefined():
        missing = place.read_node(JvmNode(default.get()))
        there = call("element_at", found, key, null_outside=True)
        if missing == literal("", STRING):
            # Only the parts of a text have a default, and none of them is null.
            unknown = call("is_null", found)
            if key.nullable:
                unknown = call("or", unknown, call("is_null", key))
            return call("if", unknown, literal(None, STRING), call("coalesce", there, missing))
        raise ExpressionError("this default of a position outside is not known here")
    return call("element_at", found, key, null_outside=not place.read("failOnError"))


def _size(place: Place) -> Expression:
    if place.read("legacySizeOfNull"):
        raise ExpressionError("set spark.sql.legacy.sizeOfNull to false: the size of null is null")
    return call("size", place.arg(0))


def _sort_array(place: Place) -> Expression:
    return call("sort_array", place.arg(0), upwards=place.constant(1, "the direction"))


def _concat(place: Place) -> Expression:
    args = place.args()
    if args and args[0].type.kind == "array":
        return call("array_concat", *args)
    return call("concat", *args)


def _reverse(place: Place) -> Expression:
    arg = place.arg(0)
    return call("array_reverse" if arg.type.kind == "array" else "reverse", arg)


def _array_insert(place: Place) -> Expression:
    """At one of the ends; elsewhere positions depend on the length in ways of their own."""
    position = place.constant(1, "the position")
    if position not in (1, -1) or (position == -1 and place.read("legacyNegativeIndex")):
        raise ExpressionError("items are put only to the ends of an array here")
    return call("array_prepend" if position == 1 else "array_append", place.arg(0), place.arg(2))


def _array_join(place: Place) -> Expression:
    array, *texts = place.args()
    names = ("separator", "null_replacement")
    options = {
        name: constant_value(text, f"the {name.replace('_', ' ')}")
        for name, text in zip(names, texts, strict=False)
    }
    return call("array_join", array, **options)


# --- maps -----------------------------------------------------------------------------------------


def _map_value(place: Place) -> Expression:
    """A constant map that is asked for a key is a table."""
    table = place.node.children[0]
    if table.kind == "Literal":
        pairs, value_type = read_map(table)
        return call("lookup", place.arg(1), table=pairs, value_type=str(value_type))
    return call("map_value", place.arg(0), place.arg(1))


def _map(place: Place) -> Expression:
    args = place.args()
    if not args:
        raise ExpressionError("an empty map is not known here")
    return call("map", *args)


# --- lambdas --------------------------------------------------------------------------------------


def _variables(node: JvmNode) -> list[JvmNode]:
    if node.kind != "LambdaFunction":
        raise ExpressionError("a lambda was expected")
    return list(node.nodes("arguments"))


def _variable(node: JvmNode) -> Column:
    """A variable while its lambda is read: under a name that no column has."""
    data_type = spark_type(node.read("dataType"))
    return Column(f"\0{node.expr_id}", data_type, bool(node.read("nullable")))


def _body(place: Place, node: JvmNode, names: tuple[str, ...]) -> tuple[Expression, dict[str, str]]:
    """The body of a lambda, its variables under names of their own, and what they are to be."""
    variables = {each.expr_id: _variable(each) for each in _variables(node)}
    reader: Any = place.reader
    inner = replace(reader, columns={**reader.columns, **variables})
    body = inner.built(node.node("function"), place.column, place.depth + 1)
    renamed = {column.name: name for column, name in zip(variables.values(), names, strict=False)}
    return body, renamed


def _over(function: str, arrays: int, *names: str) -> Builder:
    """A function of so many arrays or maps and one lambda with these variables."""

    def build(place: Place) -> Expression:
        given = [place.arg(index) for index in range(arrays)]
        node = place.node.children[arrays]
        if len(_variables(node)) > len(names):
            raise ExpressionError(f"its lambda takes {len(names)} variables here")
        (body,), outer = closed_over([_body(place, node, names)])
        return call(function, *given, *outer, body=body)

    return build


def _aggregate(place: Place) -> Expression:
    array, zero = place.arg(0), place.arg(1)
    merge = _body(place, place.node.children[2], ("acc", "x"))
    finish = _body(place, place.node.children[3], ("acc",))
    (body, last), outer = closed_over([merge, finish])
    return call("aggregate", array, zero, *outer, body=body, finish=last)


def _array_sort(place: Place) -> Expression:
    """By the order that an array is sorted in where nobody says another one: nulls come last."""
    array, node = place.arg(0), place.node.children[1]
    body, _ = _body(place, node, ("x", "y"))
    left, right = map(_variable, _variables(node))
    compared = call(
        "if",
        call("lt", left, right),
        literal(-1, INT),
        call("if", call("gt", left, right), literal(1, INT), literal(0, INT)),
    )
    either = call(
        "if",
        call("is_null", left),
        literal(1, INT),
        call("if", call("is_null", right), literal(-1, INT), compared),
    )
    both = call("and", call("is_null", left), call("is_null", right))
    if body != call("if", both, literal(0, INT), either):
        raise ExpressionError("arrays are sorted only in their natural order here")
    return call("sort_array", array, nulls_last=True)


def _arrays_zip(place: Place) -> Expression:
    fields = _element(spark_type(place.read("dataType"))).fields
    return call("arrays_zip", *place.args(), names=[field.name for field in fields])


def _sequence(place: Place) -> Expression:
    """Of whole numbers, or of dates by days."""
    start, stop, *step = place.node.children
    ends = [place.read_node(start), place.read_node(stop)]
    if not step or ends[0].type.kind != "date":
        return call("sequence", *ends, *map(place.read_node, step))
    length = place.read_node(step[0])
    if not isinstance(length, Literal) or not length.type.is_interval or length.value is None:
        raise ExpressionError("dates follow each other by a constant number of days here")
    days, rest = divmod(length.value, INTERVAL_FIELDS_US["day"])
    if rest or not days:
        raise ExpressionError("dates follow each other by whole days here")
    return call("sequence", *ends, literal(days, INT))


# --- JSON -----------------------------------------------------------------------------------------

# Settings under which Spark reads JSON otherwise than here: their names, and their defaults.
_JSON_SETTINGS: Mapping[str, str] = {
    "spark.sql.columnNameOfCorruptRecord": "_corrupt_record",
    "spark.sql.json.enablePartialResults": "true",
    "spark.sql.jsonGenerator.ignoreNullFields": "true",
    "spark.sql.legacy.json.allowEmptyString.enabled": "false",
    "spark.sql.legacy.json.enableDateTimeParsingFallback": "true",
    "spark.sql.legacy.timeParserPolicy": "corrected",
}


def _check_json_settings(
    function: str, options: Mapping[str, str], plain: tuple[dict[str, str], ...]
) -> None:
    if {name.lower(): value.upper() for name, value in options.items()} not in plain:
        raise ExpressionError(f"{function}() with options is not known here: {sorted(options)}")
    settings = java_classes().org.apache.spark.sql.internal.SQLConf.get()
    for name, default in _JSON_SETTINGS.items():
        if settings.contains(name) and str(settings.getConfString(name)).lower() != default:
            raise ExpressionError(f"{function}() is known here only where {name} is as it was")


def _from_json(place: Place) -> Expression:
    _check_json_settings("from_json", scala_map(place.read("options")), _PLAIN_OPTIONS)
    target = spark_type(place.read("schema"))
    if any(field.name == "_corrupt_record" for field in target.fields):
        raise ExpressionError("a column for broken records is not known here")
    return call("from_json", place.arg(0), to=str(target), time_zone=place.zone())


def _invoke(place: Place) -> Expression:
    """Functions that Catalyst calls as methods of an object that stands in the plan."""
    target = place.node.node("targetObject")
    owner: Any = target.read("value") if target.kind == "Literal" else None
    name = "" if owner is None else str(owner.getClass().getSimpleName())
    if name != "StructsToJsonEvaluator":
        raise ExpressionError(f"{name or target.kind} is an object that is not known here")
    _check_json_settings("to_json", scala_map(owner.options()), ({},))
    (arg,) = (place.read_node(each) for each in place.node.nodes("arguments"))
    zone = str(scala_option(owner.timeZoneId()) or place.reader.session_zone)
    return call("to_json", arg, time_zone=zone)


def _get_json_object(place: Place) -> Expression:
    return call("get_json_object", place.arg(0), path=place.constant(1, "the path"))


_PLAIN_OPTIONS: tuple[dict[str, str], ...] = ({}, {"mode": "PERMISSIVE"})

NESTED_BUILDERS: Mapping[str, Builder] = {
    "CreateNamedStruct": _named_struct,
    "JsonToStructs": _from_json,
    "GetJsonObject": _get_json_object,
    "Invoke": _invoke,
    "GetStructField": _struct_field,
    "GetArrayStructFields": _fields_of_items,
    "CreateArray": _array,
    "GetArrayItem": _array_item,
    "ElementAt": _element_at,
    "Size": _size,
    "SortArray": _sort_array,
    "array_sort": _array_sort,
    "Concat": _concat,
    "Reverse": _reverse,
    "ArrayInsert": _array_insert,
    "ArrayJoin": _array_join,
    "GetMapValue": _map_value,
    "CreateMap": _map,
    "transform": _over("transform", 1, "x", "i"),
    "filter": _over("filter", 1, "x", "i"),
    "exists": _over("exists", 1, "x"),
    "forall": _over("forall", 1, "x"),
    "aggregate": _aggregate,
    "zip_with": _over("zip_with", 2, "x", "y"),
    "map_filter": _over("map_filter", 1, "x", "y"),
    "transform_values": _over("transform_values", 1, "x", "y"),
    "transform_keys": _over("transform_keys", 1, "x", "y"),
    "ArraysZip": _arrays_zip,
    "Sequence": _sequence,
}
