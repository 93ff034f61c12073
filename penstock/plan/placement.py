"""Which rows that come out of a join are in one vertex already: those that share its keys."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.expressions.tree import Column
from penstock.operators.specs import (
    LEFT,
    RIGHT,
    AggregateSpec,
    FilterSpec,
    JoinSpec,
    ProjectSpec,
    StatefulSpec,
)
from penstock.plan.nodes import Relation, Step

# By how a join is: the sides whose keys a row always has.
_WHOSE_KEYS: Mapping[str, tuple[int, ...]] = {
    "inner": (LEFT, RIGHT),
    "left": (LEFT,),
    "semi": (LEFT,),
    "anti": (LEFT,),
    "right": (RIGHT,),
    "full": (),
}


def are_together(spec: StatefulSpec, child: Relation) -> bool:
    """Whether an aggregate finds the rows of each of its groups where a join has made them."""
    if not isinstance(spec, AggregateSpec):
        return False
    keys = {key.name for _, key in spec.keys if isinstance(key, Column)}
    return any(columns <= keys for columns in _together_by(child))


def _together_by(relation: Relation) -> list[frozenset[str]]:
    """Sets of columns: rows in which all of one are equal are in one vertex."""
    if not isinstance(relation, Step):
        return []
    match relation.spec:
        case JoinSpec() as spec:
            names = [spec.match.key_names(side) for side in _WHOSE_KEYS[spec.how]]
            return [frozenset(each) for each in names if each]
        case FilterSpec():
            return _together_by(relation.child)
        case ProjectSpec(columns=columns):
            new = {each.name: name for name, each in columns if isinstance(each, Column)}
            found = [each for each in _together_by(relation.child) if each <= new.keys()]
            return [frozenset(new[name] for name in each) for each in found]
        case _:
            return []
