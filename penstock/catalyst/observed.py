"""What `df.observe` asks for: the aggregates to keep of rows, and what is computed from them."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.operators.specs import AggregateSpec, ObserveSpec, OperatorSpec
from penstock.plan.nodes import Relation, Step


@dataclass(frozen=True)
class Observation:
    """One observation: what is kept of rows where it stands, and how the driver ends it."""

    spec: ObserveSpec
    ended_by: tuple[OperatorSpec, ...]  # an aggregate of what was kept, and what follows it
    metrics: tuple[str, ...]  # what its results are called

    @property
    def name(self) -> str:
        return self.spec.name


def observation(
    name: str, metrics: tuple[str, ...], shown: Relation, below: Relation
) -> Observation:
    """The observation of rows, of a relation that aggregates all of them."""
    specs: list[OperatorSpec] = []
    while shown != below:
        assert isinstance(shown, Step), "an aggregate without keys stands above its rows"
        specs.insert(0, shown.spec)
        shown = shown.child
    aggregate, *steps = specs
    assert isinstance(aggregate, AggregateSpec), "nothing stands between the rows and it"
    spec = ObserveSpec(name, aggregate.aggregates)
    parts = (aggregate.keys, aggregate.window, aggregate.aggregates, aggregate.mode)
    return Observation(spec, (AggregateSpec(*parts, spec.partial.in_loop), *steps), metrics)
