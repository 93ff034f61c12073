"""Rule: what Spark computes is a stage of its own, because the driver hosts it."""

from __future__ import annotations

from penstock.operators.specs import (
    FilterSpec,
    GenerateSpec,
    PythonRowsSpec,
    PythonSpec,
    is_stateful,
)
from penstock.plan.nodes import (
    Exchange,
    Relation,
    Scan,
    SourceRef,
    Step,
    UnionAll,
    in_one_stage,
    is_on_driver,
    step,
)
from penstock.plan.query import Query, rewrite_query


def host_spark_steps(query: Query) -> Query:
    """Put an exchange below a Spark step, so that only the rows that Spark must see go there.

    Sources are read, states kept and rows thrown away by executors. A stream of the log is read by
    the driver's stage itself, and so is what another Spark step has made. A state whose rows are
    sent again when they change is kept there too: what one commit sends must stay one commit.
    Python functions run where their code is sent to, which is to executors.
    """
    return rewrite_query(query, _hosted)


def _hosted(node: Relation) -> Relation:
    if isinstance(node, Step) and isinstance(node.spec, PythonSpec | PythonRowsSpec):
        return step(node.spec, Exchange(node.child, ())) if _is_hosted(node.child) else node
    if not isinstance(node, Step) or not node.spec.is_on_driver or is_stateful(node.spec):
        return node  # a state has exchanges of its own
    return step(node.spec, Exchange(node.child, ())) if _is_for_executors(node.child) else node


def _is_hosted(below: Relation) -> bool:
    """Whether the driver hosts the stage of a relation."""
    return any(is_on_driver(node) for node in in_one_stage(below))


def _is_for_executors(below: Relation) -> bool:
    """Whether there is anything between the driver's stage and the log that others can do."""
    thrown_away = False
    while isinstance(below, Step):
        if below.spec.is_on_driver:
            return False
        if is_stateful(below.spec):
            return below.spec.mode == "append"
        if isinstance(below.spec, PythonSpec | PythonRowsSpec):
            return True
        thrown_away |= isinstance(below.spec, FilterSpec | GenerateSpec)
        below = below.child
    if isinstance(below, Scan):
        return thrown_away or isinstance(below.relation, SourceRef)
    return isinstance(below, UnionAll)
