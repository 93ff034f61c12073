"""The rules that turn a query as written into stages and vertices, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.plan.combine_filters import combine_filters
from penstock.plan.cut_vertices import cut_vertices
from penstock.plan.dissolve_unions import dissolve_unions
from penstock.plan.filter_shared import filter_shared
from penstock.plan.fuse_branches import fuse_branches
from penstock.plan.fuse_projections import fuse_projections
from penstock.plan.fuse_stages import fuse_stages
from penstock.plan.host_spark_steps import host_spark_steps
from penstock.plan.lower import lower
from penstock.plan.persist_whole import persist_whole
from penstock.plan.place_exchanges import place_exchanges
from penstock.plan.prune_columns import prune_columns
from penstock.plan.push_up_persistence import push_up_persistence
from penstock.plan.query import Query
from penstock.plan.share_subplans import share_subplans
from penstock.plan.weigh_changes import weigh_changes
from penstock.stages.compare import compare
from penstock.stages.program import Program

Rule = Callable[[Query], Query]

RULES: tuple[Rule, ...] = (
    weigh_changes,  # first: what changes has other columns for who computes than for people
    share_subplans,  # before the rules that rewrite equal parts for their users, and apart
    combine_filters,  # fewer steps per chain
    persist_whole,  # before pruning: all columns are persisted
    prune_columns,  # before exchanges, so that they carry only what is needed
    fuse_projections,  # after pruning, which adds projections and makes others trivial
    dissolve_unions,  # before exchanges: partials are made per branch
    host_spark_steps,  # before the others: a state does not share a stage with such a step
    place_exchanges,  # what an exchange stores need not be stored before it
    push_up_persistence,  # the last rule that looks at whole trees
    fuse_stages,  # cuts trees at exchanges: from here on every write is one linear chain
    fuse_branches,  # then it shows which of them are one stage
    filter_shared,  # and which are still read by way of a stream
    cut_vertices,  # last: needs to know who writes and reads each stream
)


def optimize(query: Query, rules: Sequence[Rule] = RULES) -> Query:
    """Apply the rules, each a pure function from query to query."""
    for rule in rules:
        query = rule(query)
    return query


def plan_program(query: Query, rules: Sequence[Rule] = RULES) -> Program:
    """The program that runs a query.

    Where a result is gone for which watermarks were kept apart, the others could have theirs
    together now. Which it was only the stored program tells: what goes on from it is what fits.
    """
    planned = lower(optimize(query, rules))
    if query.stored is None or compare(query.stored, planned).is_compatible:
        return planned
    apart = lower(optimize(replace(query, times_apart=True), rules))
    return apart if compare(query.stored, apart).is_compatible else planned
