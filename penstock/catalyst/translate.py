"""From a streaming DataFrame to our plan: Spark analyses and optimises it, we read the result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.catalyst.by_spark import SparkExpressions
from penstock.catalyst.fed_sources import FedSource
from penstock.catalyst.jvm import JvmNode
from penstock.catalyst.observed import Observation
from penstock.catalyst.plans import PlanReader
from penstock.catalyst.python_functions import PythonBundle
from penstock.catalyst.refusals import WAY_OUT, placed, unsupported
from penstock.catalyst.relations import ScanOrigin, SubstreamCount
from penstock.catalyst.rows import made
from penstock.catalyst.session import Plans, SessionFacts, plans_of, refused_by_spark
from penstock.catalyst.static_sides import StaticSide
from penstock.errors import InvalidArgument, UnsupportedPlan
from penstock.names import check_name
from penstock.operators.specs import MODES, AggregateSpec
from penstock.plan.nodes import Relation, changing, spec_of, walk
from penstock.stages.settings import WatermarkPolicy


@dataclass(frozen=True)
class Translated:
    """A query as our plan: the relation to write, and what it reads."""

    query: str
    relation: Relation
    output_mode: str
    scans: tuple[ScanOrigin, ...]
    time_zone: str
    watermark_policy: WatermarkPolicy
    spark: SparkExpressions  # what Spark computes, by digest
    statics: tuple[StaticSide, ...] = ()
    python: PythonBundle = field(default_factory=PythonBundle)
    observed: tuple[Observation, ...] = ()
    fed: tuple[FedSource, ...] = ()  # what Spark reads for it

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams of the log that are read, each once."""
        found = [scan.stream for scan in self.scans if scan.stream is not None]
        return tuple(dict.fromkeys(found))


def translate(
    df: Any,
    *,
    output_mode: str = "append",
    query: str,
    substreams: SubstreamCount = lambda stream: 1,
    feeds: bool = False,
) -> Translated:
    """Read a streaming DataFrame into our plan; UnsupportedPlan for what is not run here.

    `substreams` says how many substreams a stream of the log has. With `feeds` a source that is not
    read here is the stream that Spark will bring it into. No Spark job is run.
    """
    check_name(query, "query")
    if output_mode not in MODES:
        raise InvalidArgument(
            f"output mode is {output_mode!r:.80}; it is one of {', '.join(MODES)}",
            output_mode=str(output_mode)[:80],
        )
    plans = plans_of(df)
    reader = PlanReader(plans.session, output_mode, substreams, query if feeds else None)
    try:
        relation = _read(plans, reader, output_mode)
    except UnsupportedPlan as refusal:
        raise _with_true_way_out(refusal, plans, output_mode) from refusal.__cause__
    session = plans.session
    facts = (tuple(reader.scans), session.time_zone, session.watermark_policy, reader.spark)
    statics = tuple(reader.statics.values())
    observed = tuple(reader.observed.values())
    fed = tuple(reader.fed.values())
    return Translated(query, relation, output_mode, *facts, statics, reader.python, observed, fed)


def _read(plans: Plans, reader: PlanReader, output_mode: str) -> Relation:
    root = plans.optimized
    rows = reader.read(root)
    names = _output_names(plans)
    relation = made(root, lambda: reader.exact(rows, root.output, names))
    _check_mode(output_mode, relation, root)
    return relation


def _with_true_way_out(refusal: UnsupportedPlan, plans: Plans, output_mode: str) -> UnsupportedPlan:
    """The refusal, which sends nobody to Structured Streaming where that refuses the query too."""
    if not refusal.message.endswith(WAY_OUT):
        return refusal
    if (reason := refused_by_spark(plans, output_mode)) is None:
        return refusal
    message = refusal.message.removesuffix(WAY_OUT)
    return UnsupportedPlan(
        f"{message}Structured Streaming refuses the query too: {reason}", **refusal.details
    )


def _output_names(plans: Plans) -> list[str]:
    """The names that the user sees, checked to be distinct as Spark would tell them apart."""
    names = [str(attribute.read("name")) for attribute in plans.analyzed.output]
    seen: dict[str, str] = {}
    for name in names:
        folded = _folded(name, plans.session)
        if folded in seen:
            raise unsupported(
                plans.analyzed.kind,
                f"two columns of the result are called {seen[folded]!r} and {name!r}; "
                "rename one with alias()",
                column=name,
            )
        seen[folded] = name
    if not names:
        raise unsupported(plans.analyzed.kind, "the result has no column")
    return names


def _folded(name: str, session: SessionFacts) -> str:
    return name if session.case_sensitive else name.lower()


def _check_mode(output_mode: str, relation: Relation, root: JvmNode) -> None:
    aggregates = any(isinstance(spec_of(node), AggregateSpec) for node in walk(relation))
    if output_mode == "append" and (what := changing(relation)) is not None:
        refusal = UnsupportedPlan(
            f"{root.kind}: the result stands on {what}, whose rows come and go, and append mode "
            "shows rows once; use outputMode update, or complete above an aggregate",
            node=root.kind,
        )
        raise placed(refusal, root)
    if output_mode == "complete" and not aggregates:
        refusal = UnsupportedPlan(
            f"{root.kind}: complete mode needs an aggregate, in Structured Streaming too; use "
            "append mode for rows as they come",
            node=root.kind,
        )
        raise placed(refusal, root)
