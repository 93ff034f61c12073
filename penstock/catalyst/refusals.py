"""What is not run here, and the error that says so: node, expression, column, and the way out."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.catalyst.jvm import TEXT_CHARACTERS_MAX, JvmNode
from penstock.errors import UnsupportedPlan

WAY_OUT = "Structured Streaming can run it: start it with df.writeStream"
# Catalyst's nodes and expressions that Structured Streaming refuses too, always or nearly so.
OTHER_WAYS_OUT: Mapping[str, str] = {
    "Sort": "Structured Streaming sorts only behind an aggregate, in complete mode",
    "Offset": "Structured Streaming leaves out no first rows at all",
    "Window": "Structured Streaming does not run window functions at all",
    "DeduplicateWithinWatermark": "Structured Streaming asks for the same",
    "Sample": "Structured Streaming takes no samples of a stream either",
    "PythonUDAF": "Structured Streaming does not run them on a stream either",
}

_PYTHON = (
    "Python functions that aggregate groups are run over no stream, in Structured Streaming too; "
    "write the aggregate with Spark's own functions, or collect_list() the values and give them to "
    "a function of rows"
)
_GROUPED = "functions of the JVM over groups are not run here"
_STATIC = (
    "rows that do not stream are not read here yet; put them into a stream, or join them in "
    "Structured Streaming"
)
_ORDER = (
    "a stream has no end to sort at; sort a whole result, behind an aggregate in complete mode, or "
    "what you read from the result"
)
_LIMIT = (
    "rows are counted off a whole result, behind an aggregate in complete mode; limit() also takes "
    "the first rows of a stream in append mode"
)

# Catalyst's nodes that are refused, with what to do instead.
NODE_REASONS: Mapping[str, str] = {
    "Join": "joins with rows that do not stream are not run here yet",
    "MapPartitions": "functions on typed rows are not run here",
    "MapElements": "functions on typed rows are not run here",
    "TypedFilter": "functions on typed rows are not run here",
    "DeserializeToObject": "functions on typed rows are not run here",
    "SerializeFromObject": "functions on typed rows are not run here",
    "FlatMapGroupsWithState": _GROUPED,
    "FlatMapCoGroupsInPandas": "groups of two streams together are not run here",
    "FlatMapCoGroupsInArrow": "groups of two streams together are not run here",
    "TransformWithState": _GROUPED,
    "Sort": _ORDER,
    "GlobalLimit": _LIMIT,
    "Offset": _LIMIT,
    "Tail": _LIMIT,
    "Sample": "a random sample would differ after a recovery; filter by pmod(number, n)",
    "LocalRelation": _STATIC,
    "LogicalRelation": _STATIC,
    "DataSourceV2Relation": _STATIC,
    "Range": _STATIC,
    "OneRowRelation": _STATIC,
}

_NOT_REPEATABLE = (
    "it gives another value each time it is computed; rand(), randn(), uniform(), randstr(), "
    "shuffle(), uuid(), the clock and Python functions marked asNondeterministic() are computed "
    "once for each row here: use one of these"
)
_NO_STREAM = "its rows are made of no column of a stream; join them as static rows"
_SKETCH = (
    "the bytes of a sketch depend on how Spark's tasks have dealt and merged the rows, so there is "
    "no one answer to be equal to: aggregate the values (approx_count_distinct, percentile_approx, "
    "mode)"
)
SUBQUERY = (
    "the value of a subquery is known here in filters, columns and aggregates that need nothing "
    "else of Spark: compute it in a column of its own first"
)
# Catalyst's expressions that are refused for a reason that deserves its own words.
EXPRESSION_REASONS: Mapping[str, str] = {
    "CurrentTime": "type time is not known here; use current_timestamp()",
    "CurrentTimestampNanos": _NOT_REPEATABLE,
    "LocalTimestampNanos": _NOT_REPEATABLE,
    "CurrentBatchTimestamp": _NOT_REPEATABLE,
    "CurrentDateExpressionBuilder": _NOT_REPEATABLE,
    "HistogramNumeric": (
        "its bins depend on how Spark's tasks have dealt and merged the rows, so there is no one "
        "answer to be equal to: use percentile(), or count groups of width_bucket()"
    ),
    **dict.fromkeys(
        (
            "ApproxTopK",
            "ApproxTopKAccumulate",
            "ApproxTopKCombine",
            "CountMinSketchAgg",
            "HllSketchAgg",
            "HllUnionAgg",
            "KllMergeAggBigint",
            "KllMergeAggDouble",
            "KllMergeAggFloat",
            "KllSketchAggBigint",
            "KllSketchAggDouble",
            "KllSketchAggFloat",
            "ThetaIntersectionAgg",
            "ThetaSketchAgg",
            "ThetaUnionAgg",
            "TupleIntersectionAggDouble",
            "TupleIntersectionAggInteger",
            "TupleSketchAggDouble",
            "TupleSketchAggInteger",
            "TupleUnionAggDouble",
            "TupleUnionAggInteger",
        ),
        _SKETCH,
    ),
    "Collations": _NO_STREAM,
    "SQLKeywords": _NO_STREAM,
    "JsonTable": "JSON_TABLE is not known here; read the text by from_json() and use inline()",
    "Unnest": "UNNEST is not known here; use explode(), or inline(arrays_zip(...)) of several",
    "ReplicateRows": "only EXCEPT ALL and INTERSECT ALL use it, which no stream can do",
    "UserDefinedGenerator": "functions on typed rows are not run here",
    "VariantExplode": "columns of the type variant are not known here",
    "PythonUDTF": _PYTHON,
    "PythonUDF": _PYTHON,
    "PythonUDAF": _PYTHON,
    "ScalarSubquery": SUBQUERY,
    "InSubquery": "subqueries are not run here",
    "Exists": "subqueries are not run here",
}
# What the optimizer would freeze into a constant: looked for in the plan before it runs.
CLOCK_KINDS = frozenset({"CurrentTime", "CurrentTimestampNanos", "LocalTimestampNanos"})


def unsupported(
    node: str,
    reason: str,
    *,
    expression: JvmNode | str | None = None,
    column: str | None = None,
    way_out: str | None = None,
) -> UnsupportedPlan:
    """The error for one thing that is not run here."""
    where = node
    site = None
    shown = expression.text if isinstance(expression, JvmNode) else expression
    if column is not None:
        where += f", column {column!r}"
    if shown is not None:
        where += f", expression {shown}"
    known = OTHER_WAYS_OUT.get(node, WAY_OUT)
    if isinstance(expression, JvmNode):
        site = expression.call_site
        known = OTHER_WAYS_OUT.get(expression.kind, known)
    if site is not None:
        where += f" (written at {site})"
    details = {"node": node, "expression": shown, "column": column, "call_site": site}
    return UnsupportedPlan(
        f"{where}: {reason}. {way_out or known}",
        **{name: value for name, value in details.items() if value is not None},
    )


def refused_node(node: JvmNode) -> UnsupportedPlan:
    """The error for a plan node outside the table of those that are read."""
    reason = NODE_REASONS.get(node.kind, "this node is not run here")
    inside = node.nodes("expressions")
    first = inside[0] if inside else None
    column = None if first is None else _column(first) or None
    return unsupported(node.kind, reason, expression=first, column=column)


def placed(refusal: UnsupportedPlan, node: JvmNode) -> UnsupportedPlan:
    """A refusal that says which expressions of its node, and which columns, it is about.

    Where it does not know them it is about all that the node computes, or by which it does so.
    What a source refuses is about its options.
    """
    details = refusal.details
    if "node" not in details or "expression" in details or not node.children:
        return refusal
    inside = [(_column(each), each) for each in node.nodes("expressions")]
    if (known := details.get("column")) is not None:
        inside = [each for each in inside if each[0] == known]
    elif any(each.kind == "Alias" for _, each in inside):
        inside = [each for each in inside if each[1].kind == "Alias"]
    if not inside and known is None:  # it is about whole rows
        inside = [(_column(each), each) for each in node.output]
    values = (each.children[0] if each.kind == "Alias" else each for _, each in inside)
    shown = ", ".join(dict.fromkeys(value.text for value in values))[:TEXT_CHARACTERS_MAX]
    columns = ", ".join(dict.fromkeys(name for name, _ in inside if name))[:TEXT_CHARACTERS_MAX]
    where = f", column {columns!r}" if columns and known is None else ""
    where += f", expression {shown}" if shown else ""
    if not where:
        return refusal
    label, message = str(details["node"]), refusal.message
    if message.startswith(f"{label}: "):
        message = f"{label}{where}{message[len(label) :]}"
    else:
        message = f"{message} ({node.kind}{where})"
    found = {name: text for name, text in (("expression", shown), ("column", columns)) if text}
    return UnsupportedPlan(message, **(found | details))


def _column(expression: JvmNode) -> str:
    """What a column is called that an expression is, or is read of."""
    if expression.kind in ("Alias", "AttributeReference"):
        return str(expression.read("name"))
    names = (str(e.read("name")) for e in expression.walk() if e.kind == "AttributeReference")
    return ", ".join(dict.fromkeys(names))


def draws_lots(expression: JvmNode) -> bool:
    """Whether an expression draws random bytes although Spark says that it is deterministic."""
    if expression.kind != "StaticInvoke" or expression.read("functionName") != "aesEncrypt":
        return False
    mode, _, start = expression.children[2:5]  # how, the padding, and the bytes that it begins with
    known = mode.kind == "Literal" and str(mode.read("value")) == "ECB"
    return not known and start.kind == "Literal" and not start.read("value")


def reason_for(expression: JvmNode) -> str:
    """Why an expression outside the table of those that are read is refused."""
    if draws_lots(expression):
        return f"without an iv of its own {_NOT_REPEATABLE}"
    known = EXPRESSION_REASONS.get(expression.kind)
    if known is not None:
        return known
    if not expression.read("deterministic"):
        return _NOT_REPEATABLE
    return f"{expression.kind} is not among the expressions that are run here"
