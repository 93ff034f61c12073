"""Rule: where rows change below an operator with state, they come and go with a weight."""

from __future__ import annotations

from dataclasses import replace

from penstock.errors import UnsupportedPlan
from penstock.expressions.tree import Literal
from penstock.operators.specs import (
    WEIGHT_COLUMN,
    WEIGHT_FIELD,
    AggregateSpec,
    JoinSpec,
    ProjectSpec,
    PythonRowsSpec,
    PythonSpec,
    SessionSpec,
    SortSpec,
    TableSpec,
    column_of,
    is_stateful,
    is_weighted,
)
from penstock.plan.nodes import (
    Relation,
    Step,
    UnionAll,
    children,
    column_refs,
    step,
    with_children,
)
from penstock.plan.query import Query

_CAME = Literal(1, WEIGHT_FIELD.type)


def weigh_changes(query: Query) -> Query:
    """Let what changes its rows emit changes of them, where an operator with state reads them.

    So do aggregates that are not in append mode, tables, and joins of tables.

    Filters leave weights alone, projections hand them on, and in a union rows that only come have
    a weight too. What leaves the query is shown as its mode says, without weights, unless the write
    is one of changes.
    """
    writes = tuple(
        replace(write, child=_weighed(write.child, write.changes)) for write in query.writes
    )
    return replace(query, writes=writes)


def _weighed(node: Relation, is_computed_with: bool) -> Relation:
    """The relation, its rows with weights if they change and somebody computes with them."""
    reads = isinstance(node, Step) and is_stateful(node.spec)
    below = tuple(_weighed(child, is_computed_with or reads) for child in children(node))
    if isinstance(node, UnionAll) and any(is_weighted(side.schema) for side in below):
        return UnionAll(tuple(map(_with_weight, below)))
    if not isinstance(node, Step):
        return with_children(node, below)
    spec = node.spec
    if isinstance(spec, ProjectSpec) and is_weighted(below[0].schema):
        columns = (column for column in spec.columns if column[0] != WEIGHT_COLUMN)
        spec = ProjectSpec((*columns, (WEIGHT_COLUMN, column_of(WEIGHT_FIELD))))
    if isinstance(spec, AggregateSpec | TableSpec | JoinSpec) and spec.mode != "append":
        spec = replace(spec, changes=is_computed_with)
        _check_sessions(spec)
    if isinstance(spec, SortSpec) and is_computed_with:
        raise UnsupportedPlan(
            "sort: what sorts or limits a whole result stands below another operator with state; "
            "do it last",
            node="sort",
        )
    if isinstance(spec, PythonSpec | PythonRowsSpec) and is_weighted(below[0].schema):
        _check_repeatable(spec)
    return step(spec, *below)


def _check_sessions(spec: AggregateSpec | TableSpec | JoinSpec) -> None:
    """Sessions whose changes nobody computes with are final, or whole."""
    if not isinstance(spec, AggregateSpec) or not isinstance(spec.window, SessionSpec):
        return
    if spec.mode == "update" and not spec.changes:
        raise UnsupportedPlan(
            f"Aggregate: {spec.window.output}: a session that grows or joins another is another "
            "row, and the one that update mode has sent would stay; use outputMode append or "
            "complete. Structured Streaming asks for the same",
            node="Aggregate",
            expression=f"session_window({spec.window.event_time})",
            column=spec.window.output,
        )


def _check_repeatable(spec: PythonSpec | PythonRowsSpec) -> None:
    """What made a row that came must make the same of it when it goes."""
    by_batch = isinstance(spec, PythonRowsSpec) and not spec.repeats
    chance = next((call for call in spec.calls if not call.deterministic or by_batch), None)
    if chance is not None:
        what = "takes whole batches" if by_batch else "is not deterministic"
        raise UnsupportedPlan(
            f"Python function {chance.text:.200} {what} and stands on rows that come and go: it "
            "would make others of those that go; call it before what changes rows, or last",
            node="python",
            expression=chance.text[:200],
        )


def _with_weight(side: Relation) -> Relation:
    if is_weighted(side.schema):
        return side
    return step(ProjectSpec((*column_refs(side.schema), (WEIGHT_COLUMN, _CAME))), side)
