"""Sources that are not read here: Structured Streaming brings their rows into a stream."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.catalyst.jvm import JvmNode, scala_items, scala_map
from penstock.catalyst.relations import ScanOrigin, SubstreamCount, field_of_attribute
from penstock.errors import UnsupportedPlan
from penstock.expressions.types import Schema
from penstock.json_codec import canonical_json
from penstock.plan.nodes import StreamRef, scan
from penstock.stages.program import fed_stream

# Options that a later start may change: how much comes at once, where a first start begins, and
# what only lets Spark in. All others say what is read.
_NOT_IDENTITY = re.compile(
    r"(max|min|starting)\w*|numpartitions|latestfirst|failondataloss|"
    r".*(password|secret|token|credential|jaas).*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class FedSource:
    """A source that Spark reads for a query."""

    stream: str  # that its rows are brought into
    text: str  # what people call it
    reason: str  # why it is not read here
    leaf: Any  # of Spark's plan, in the JVM
    schema: Schema


def fed_source(
    node: JvmNode, query: str, refusal: UnsupportedPlan, substreams: SubstreamCount
) -> tuple[FedSource, ScanOrigin]:
    """What Spark is to read, all of its columns, and the scan of the stream that it brings."""
    source, options = _asked(node)
    facts = sorted((k.lower(), v) for k, v in options.items() if not _NOT_IDENTITY.fullmatch(k))
    stream = fed_stream(query, canonical_json([source, facts]))
    schema = tuple(field_of_attribute(node, attribute) for attribute in node.output)
    if any(each.is_months for field in schema for each in field.type.walk()):
        raise refusal  # Spark hands no such intervals over
    paths = [value for name, value in options.items() if name.lower().startswith("path")]
    fed = FedSource(stream, " ".join([source, *paths]), refusal.message, node.handle, schema)
    found = scan((StreamRef(stream, substreams(stream)),), schema)
    return fed, ScanOrigin(found, source)


def _asked(node: JvmNode) -> tuple[str, Mapping[str, str]]:
    """The source and what it was told."""
    if node.kind != "StreamingRelation":
        return str(node.read("sourceName")), dict(node.read("extraOptions").asCaseSensitiveMap())
    data_source = node.read("dataSource")
    paths = {f"path{n}": str(path) for n, path in enumerate(scala_items(data_source.paths()))}
    return str(data_source.className()).lower(), scala_map(data_source.options()) | paths
