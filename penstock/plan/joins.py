"""Building joins: keys as columns of their sides, and what event time does with the rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from penstock.errors import ExpressionError, PlanError, UnsupportedPlan
from penstock.expressions.tree import Column, Expression, call
from penstock.operators.specs import (
    JoinKey,
    JoinMatch,
    JoinSpec,
    NamedExpression,
    ProjectSpec,
    SparkColumn,
)
from penstock.plan.join_times import join_times
from penstock.plan.keys import as_key
from penstock.plan.nodes import Relation, changing, column_refs, step
from penstock.plan.place_exchanges import fresh_name

Equality = tuple[Expression, Expression, bool]  # of the left and of the right side; null-safe


def join(
    how: str,
    left: Relation,
    right: Relation,
    equal: Sequence[Equality],
    condition: Expression | None = None,
    decided: tuple[SparkColumn, ...] = (),
) -> Relation:
    """The join of two relations, whose columns have names of their own.

    Keys that are computed become columns. The result may have them, too. Of pairs that meet the
    condition Spark has `decided` which belong together.
    """
    sides, match = keyed(left, right, equal, condition)
    one, other = (changing(side) is not None for side in sides)
    try:
        if one or other:
            # Rows of a stream go on at once, as those of their time; what two tables give has none.
            timed = () if one and other else sides[one].event_time
            spec = JoinSpec(how, match, times=timed, tables=(one, other), decided=decided)
        else:
            times = join_times(how, match, *sides)
            spec = JoinSpec(
                how, match, times.left, times.right, times.times, times.behind_us, decided=decided
            )
    except ExpressionError as error:
        hint = "" if one or other else "; Structured Streaming asks for the same"
        message = f"{how} join: {error.message}{hint}"
        raise UnsupportedPlan(message, node=f"{how} join") from error
    return step(spec, *sides)


def keyed(
    left: Relation, right: Relation, equal: Sequence[Equality], condition: Expression | None
) -> tuple[tuple[Relation, Relation], JoinMatch]:
    """The sides with their keys as columns, and which rows of them belong together."""
    keys: list[Equality] = []
    conditions = [] if condition is None else [condition]
    for each in equal:
        more, rest = _flat(*each)
        keys += more
        conditions += rest
    taken = {f.name for f in (*left.schema, *right.schema)}
    added: tuple[list[NamedExpression], list[NamedExpression]] = ([], [])
    named: list[JoinKey] = []
    for one, other, null_safe in keys:
        named.append(
            JoinKey(_as_column(one, added[0], taken), _as_column(other, added[1], taken), null_safe)
        )
    both = reduce(lambda one, other: call("and", one, other), conditions) if conditions else None
    sides = (_with(left, added[0]), _with(right, added[1]))
    return sides, JoinMatch(tuple(named), both)


def _flat(
    left: Expression, right: Expression, null_safe: bool
) -> tuple[list[Equality], list[Expression]]:
    """An equality as keys, those of a struct its members, and as conditions where it has no key."""
    if left.type != right.type:
        raise PlanError(f"join: {left} is {left.type} and {right} is {right.type}", node="join")
    function = "eq_null_safe" if null_safe else "eq"
    if left.type.kind != "struct":
        if left.type.kind == "map":
            return [], [call(function, left, right)]
        return [(as_key(left), as_key(right), null_safe)], []
    keys: list[Equality] = []
    rest: list[Expression] = []
    for member in left.type.fields:
        pair = [call("get_field", side, name=member.name) for side in (left, right)]
        more, others = _flat(pair[0], pair[1], null_safe or not _is_window(left))
        keys += more
        rest += others
    if null_safe:  # a null is not what a struct of nulls is
        rest.append(call("eq", call("is_null", left), call("is_null", right)))
    elif not _is_window(left):
        rest += [call("is_not_null", side) for side in (left, right)]
    return keys, rest


def _is_window(struct: Expression) -> bool:
    """Whether it has its members whenever it is there."""
    return [f.name for f in struct.type.fields] == ["start", "end"] and all(
        f.type.kind in ("timestamp", "timestamp_ntz") for f in struct.type.fields
    )


def _as_column(key: Expression, added: list[NamedExpression], taken: set[str]) -> Expression:
    if isinstance(key, Column):
        return key
    known = next((name for name, expression in added if expression == key), None)
    if known is None:
        known = fresh_name(taken)
        added.append((known, key))
    return Column(known, key.type, key.nullable)


def _with(side: Relation, added: Sequence[NamedExpression]) -> Relation:
    return step(ProjectSpec((*column_refs(side.schema), *added)), side) if added else side
