"""What a stage is called: a word for people, and a digest of what its state and positions mean.

The digest is that of what the stage reads, of what its states are made of and of where its rows go.
So a query that is planned anew, with a branch more or with other filters, finds the state of what
did not change under the same name; and what stands under a name always has one meaning.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.json_codec import canonical_json
from penstock.names import own_name
from penstock.operators.specs import PartialAggregateSpec, StatefulSpec, is_stateful
from penstock.stages.program import ConnectorSpec, Port, Stage, shape

# Options that say which rows a source has: under others, an offset means other rows.
IDENTITY_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "folder": ("path", "format"),
    "nexmark": ("kind", "seed", "base_ms"),
    "socket": ("host", "port"),
}
WORD_MAX = 40
_DIGEST_CHARACTERS = 8


def named_stages(query: str, stages: Sequence[Stage], internal: Mapping[str, str]) -> list[Stage]:
    """Stages under their names, writers before readers; `internal` streams are named after theirs.

    `internal` has a word for each such stream.
    """
    names: Counter[str] = Counter()
    streams: dict[str, str] = {}  # new names of internal ones
    writers: dict[str, list[str]] = {}
    done: list[Stage] = []
    for stage in stages:
        for old in stage.streams:
            if old in internal and old not in streams:
                name = _called(internal[old], writers[old])
                streams[old] = own_name(query, name)
        ports = tuple(
            replace(port, streams=tuple(streams.get(name, name) for name in port.streams))
            for port in stage.ports
        )
        placed = replace(stage, ports=ports)
        output = stage.output.stream
        facts = (identity(placed), None if output in internal else output)
        name = _called(_word(placed), facts)
        names[name] += 1
        if names[name] > 1:  # two that do the same to the same rows, but for their filters
            name = f"{name}_{names[name]}"
        writers.setdefault(output, []).append(name)
        done.append(replace(placed, name=name))
    return [_writing(stage, streams) for stage in done]


def _writing(stage: Stage, renamed: Mapping[str, str]) -> Stage:
    stream = stage.output.stream
    return replace(stage, output=replace(stage.output, stream=renamed.get(stream, stream)))


def identity(stage: Stage) -> Any:
    """What its state and its positions mean."""
    return {
        "ports": [_port(port) for port in stage.ports],
        "groups": [spec.meaning for spec in _grouping(stage)],
        "by": stage.output.partition_by,
        **_columns(stage),
    }


def _columns(stage: Stage) -> dict[str, Any]:
    """Of the rows that its state keeps whole, port by port."""
    if not any(spec.keeps_rows for spec in stage.stateful):
        return {}
    return {"columns": [shape(port.output_schema) for port in stage.ports]}


def _port(port: Port) -> Any:
    return sorted(port.streams) if port.source is None else _source(port.source)


def _source(source: ConnectorSpec) -> Any:
    options = source.options
    kept = {name: options.get(name) for name in IDENTITY_OPTIONS.get(source.connector, ())}
    return {"connector": source.connector, **kept}


def _called(word: str, facts: Any) -> str:
    digest = hashlib.sha256(canonical_json(facts).encode()).hexdigest()
    return f"{re.sub('[^A-Za-z0-9]+', '_', word)[:WORD_MAX]}_{digest[:_DIGEST_CHARACTERS]}"


def _word(stage: Stage) -> str:
    """What people would call it."""
    if grouping := _grouping(stage):
        return grouping[-1].title
    if stage.is_on_driver:
        return "by_spark"
    if stage.source is not None:
        return f"read_{stage.source.connector}"
    return f"from_{stage.streams[0].rpartition('.')[2]}"


def _grouping(stage: Stage) -> list[StatefulSpec | PartialAggregateSpec]:
    """The operators that make groups, here or for a stage behind it."""
    specs = stage.specs
    return [spec for spec in specs if is_stateful(spec) or isinstance(spec, PartialAggregateSpec)]
