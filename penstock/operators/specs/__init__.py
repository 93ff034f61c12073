"""What each operator of a chain does, as plain frozen values that travel as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard, get_args

from penstock.expressions.tree import Column, Expression, Literal, from_json
from penstock.expressions.types import Schema
from penstock.json_codec import record_of
from penstock.operators.specs.by_spark import SparkColumn, SparkSpec, inputs_of
from penstock.operators.specs.deduplicate import DeduplicateSpec
from penstock.operators.specs.grouping import (
    BEGIN_COLUMN,
    OBSERVED,
    OVERLAP_MAX,
    PANE_COLUMN,
    PLACE,
    ROWS_COLUMN,
    Accumulator,
    AggregateCall,
    AggregateSpec,
    Collection,
    ObserveSpec,
    PartialAggregateSpec,
    SessionSpec,
    WindowSpec,
    accumulators_of,
    all_arguments,
    collections_of,
    counted_arguments,
    counts_only,
    is_running,
    summed_arguments,
)
from penstock.operators.specs.join import (
    HOWS,
    LEFT,
    RIGHT,
    JoinKey,
    JoinMatch,
    JoinSide,
    JoinSpec,
    TimeLimit,
)
from penstock.operators.specs.over import RANKS, WHOLE, Frame, Order, OverCall, OverSpec
from penstock.operators.specs.python import (
    PythonCall,
    PythonColumn,
    PythonRowsSpec,
    PythonSpec,
)
from penstock.operators.specs.python_groups import InitialState, PythonGroupsSpec, StateVariable
from penstock.operators.specs.rows import (
    SPAN_US_MAX,
    FilterSpec,
    GenerateSpec,
    ProjectSpec,
    WatermarkSpec,
)
from penstock.operators.specs.sort import LimitSpec, SortSpec, SortStep
from penstock.operators.specs.spec import (
    MODES,
    WEIGHT_COLUMN,
    WEIGHT_FIELD,
    Binder,
    NamedExpression,
    Spec,
    check_columns,
    column_of,
    field_named,
    is_key_type,
    is_weighted,
    names_in,
    refuse,
    without_weight,
)
from penstock.operators.specs.static_join import (
    STATIC_HOWS,
    StaticJoinSpec,
    can_be_looked_up,
)
from penstock.operators.specs.table import TableSpec

__all__ = [
    "BEGIN_COLUMN",
    "HOWS",
    "LEFT",
    "MODES",
    "OBSERVED",
    "OVERLAP_MAX",
    "PANE_COLUMN",
    "PLACE",
    "RANKS",
    "RIGHT",
    "ROWS_COLUMN",
    "SPAN_US_MAX",
    "STATIC_HOWS",
    "WEIGHT_COLUMN",
    "WEIGHT_FIELD",
    "WHOLE",
    "Accumulator",
    "AggregateCall",
    "AggregateSpec",
    "Binder",
    "Collection",
    "DeduplicateSpec",
    "FilterSpec",
    "Frame",
    "GenerateSpec",
    "InitialState",
    "JoinKey",
    "JoinMatch",
    "JoinSide",
    "JoinSpec",
    "LimitSpec",
    "NamedExpression",
    "ObserveSpec",
    "OperatorSpec",
    "Order",
    "OverCall",
    "OverSpec",
    "PartialAggregateSpec",
    "ProjectSpec",
    "PythonCall",
    "PythonColumn",
    "PythonGroupsSpec",
    "PythonRowsSpec",
    "PythonSpec",
    "SessionSpec",
    "SortSpec",
    "SortStep",
    "SparkColumn",
    "SparkSpec",
    "Spec",
    "StateVariable",
    "StatefulSpec",
    "StatelessSpec",
    "StaticJoinSpec",
    "TableSpec",
    "TimeLimit",
    "WatermarkSpec",
    "WindowSpec",
    "accumulators_of",
    "all_arguments",
    "can_be_looked_up",
    "chain_schema",
    "check_columns",
    "collections_of",
    "column_of",
    "columns_read",
    "counted_arguments",
    "counts_only",
    "cut_at_state",
    "field_named",
    "inputs_of",
    "is_key_type",
    "is_running",
    "is_stateful",
    "is_weighted",
    "names_in",
    "operator_name",
    "spec_from_json",
    "summed_arguments",
    "without_weight",
]

StatelessSpec = (
    FilterSpec
    | ProjectSpec
    | GenerateSpec
    | WatermarkSpec
    | PythonSpec
    | PythonRowsSpec
    | SparkSpec
    | StaticJoinSpec
    | ObserveSpec
    | PartialAggregateSpec
)
StatefulSpec = (
    AggregateSpec
    | DeduplicateSpec
    | JoinSpec
    | LimitSpec
    | OverSpec
    | PythonGroupsSpec
    | SortSpec
    | TableSpec
)
OperatorSpec = StatelessSpec | StatefulSpec


def _window(node: Any) -> WindowSpec | SessionSpec:
    is_session = isinstance(node, Mapping) and "begin" in node
    window: WindowSpec | SessionSpec = (_SESSION if is_session else _WINDOW)(node)
    return window


# How the parts of an operator are read that say themselves what they are.
_EXPRESSIONS = tuple((kind, from_json) for kind in (Expression, Column, Literal))
_WINDOW, _SESSION = (record_of(kind, own=_EXPRESSIONS) for kind in (WindowSpec, SessionSpec))
_OWN = (*_EXPRESSIONS, (WindowSpec | SessionSpec, _window))
_READERS = {kind.op: record_of(kind, own=_OWN) for kind in get_args(OperatorSpec)}


def spec_from_json(node: Mapping[str, Any]) -> OperatorSpec:
    """The operator of a dictionary; an ExpressionError for one outside the closed table."""
    op = node.get("op") if isinstance(node, Mapping) else None
    if op not in _READERS:
        raise refuse(
            f"{op!r} is not an operator; known: {', '.join(_READERS)}; the program is damaged "
            "or was written by another version",
            op=str(op)[:200],
        )
    try:
        fields = {name: value for name, value in node.items() if name != "op"}
        spec: OperatorSpec = _READERS[op](fields)
    except (TypeError, ValueError) as error:
        raise refuse(
            f"the {op} operator of the program is malformed: {error}", op=str(op)
        ) from error
    return spec


def is_stateful(spec: OperatorSpec) -> TypeGuard[StatefulSpec]:
    """Whether an operator keeps something between batches that a result depends on."""
    return isinstance(spec, StatefulSpec)


def operator_name(spec: StatefulSpec, index: int) -> str:
    """What the operator with state at this place of a chain is called, and its state after it."""
    return f"{spec.word}{index}"


def cut_at_state(
    specs: Sequence[OperatorSpec],
) -> tuple[tuple[StatelessSpec, ...], tuple[OperatorSpec, ...]]:
    """What stands before the first operator with state, and the rest."""
    first = next((at for at, spec in enumerate(specs) if is_stateful(spec)), len(specs))
    front = tuple(spec for spec in specs[:first] if not isinstance(spec, StatefulSpec))
    return front, tuple(specs[first:])


def chain_schema(specs: Sequence[OperatorSpec], input_schema: Schema) -> Schema:
    """The schema after these operators, each checked against what the one before it gives."""
    schema = input_schema
    for spec in specs:
        schema = spec.output_schema(schema)
    return schema


def columns_read(specs: Sequence[OperatorSpec], schema: Schema, keep_late: bool) -> frozenset[str]:
    """Which of these columns the operators read, or hand on to whoever comes behind them.

    Where late rows are kept they leave an aggregate with all their columns.
    """
    read: set[str] = set()
    for spec in specs:
        if keep_late and isinstance(spec, AggregateSpec):
            break
        read.update(*map(names_in, spec.expressions()))
        if isinstance(spec, WatermarkSpec):
            read.add(spec.column)
        if not spec.hands_on:
            return frozenset(read)
    return frozenset(field.name for field in schema)
