"""What a stage is called: a word for people, and a digest of what its state and positions mean.

The digest is that of what the stage reads, of what its states are made of and of where its rows go.
A query that goes on from a stored program has its stages, and the streams between them, under the
names that they have there, with results that are gone by now or with other filters: so it finds the
state of what did not change, and what stands under a name always has one meaning.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from penstock.json_codec import canonical_json
from penstock.names import own_name
from penstock.operators.specs import PartialAggregateSpec, StatefulSpec
from penstock.stages.program import (
    ConnectorSpec,
    Port,
    Program,
    Stage,
    StageOutput,
    is_inner,
    shape,
)

# Options that say which rows a source has: under others, an offset means other rows.
IDENTITY_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "folder": ("path", "format"),
    "nexmark": ("kind", "seed", "base_ms"),
    "socket": ("host", "port"),
}
WORD_MAX = 40
_DIGEST_CHARACTERS = 8


def named_stages(
    query: str, stages: Sequence[Stage], internal: Mapping[str, str], stored: Program | None = None
) -> list[Stage]:
    """Stages under their names, writers before readers; `internal` streams are named after theirs.

    `internal` has a word for each such stream. `stored` is the program that they go on from.
    """
    naming = _Naming(query, stages, internal, stored)
    placed = [naming.placed(stage) for stage in stages]
    return [naming.finished(stage) for stage in placed]


class _Naming:
    """Names given so far."""

    def __init__(
        self,
        query: str,
        stages: Sequence[Stage],
        internal: Mapping[str, str],
        stored: Program | None,
    ) -> None:
        self._query = query
        self._internal = internal
        self._planned = stages
        self._stored = () if stored is None else stored.stages
        self._reach, self._stored_reach = results_of(stages), results_of(self._stored)
        self._names: dict[str, str] = {}  # of stages, by those they were planned under
        self._streams: dict[str, str] = {}  # of internal ones

    def placed(self, stage: Stage) -> Stage:
        """A stage under its name, reading what it reads under theirs."""
        for stream in stage.streams:
            if stream in self._internal and stream not in self._streams:
                self._streams[stream] = self._stream_name(stream)
        ports = tuple(
            replace(port, streams=tuple(self._streams.get(name, name) for name in port.streams))
            for port in stage.ports
        )
        placed = replace(stage, ports=ports)
        self._names[stage.name] = self._stage_name(placed)
        return replace(placed, name=self._names[stage.name])

    def finished(self, stage: Stage) -> Stage:
        """A placed stage, writing what it writes under its name."""
        outputs = tuple(
            replace(output, stream=self._streams.get(output.stream, output.stream))
            for output in stage.outputs
        )
        return replace(stage, outputs=outputs)

    def _stage_name(self, stage: Stage) -> str:
        taken = set(self._names.values())
        named = [None if o.stream in self._internal else o.stream for o in stage.outputs]
        fresh = _unused(_called(_word(stage), (identity(stage), named)), taken)
        reached = results_behind(stage, self._reach)
        there = [
            old
            for old in self._stored
            if old.name not in taken
            and position_of(old) == position_of(stage)
            and reached <= results_behind(old, self._stored_reach)
        ]
        return _of_these(fresh, [old.name for old in there])

    def _stream_name(self, stream: str) -> str:
        writers = [
            (stage, output)
            for stage in self._planned
            for output in stage.outputs
            if output.stream == stream
        ]
        who = sorted({self._names[stage.name] for stage, _ in writers})
        kind = output_kind(*writers[0])
        reached = self._reach[stream]
        taken = set(self._streams.values())
        fresh = self._called(stream, (who, kind))
        if fresh in taken:
            fresh = _unused(self._called(stream, (who, kind, sorted(reached))), taken)
        there: dict[str, set[str]] = {}  # of stored streams: who writes them
        for old in self._stored:
            for output in old.outputs:
                is_alike = output_kind(old, output) == kind
                if is_alike and reached <= self._stored_reach[output.stream]:
                    there.setdefault(output.stream, set()).add(old.name)
        fits = [name for name, its in there.items() if sorted(its) == who and name not in taken]
        return _of_these(fresh, fits)

    def _called(self, stream: str, facts: Any) -> str:
        return own_name(self._query, _called(self._internal[stream], facts))


def _of_these(fresh: str, stored: Sequence[str]) -> str:
    """The stored name that is meant; a fresh one where that cannot be told."""
    return stored[0] if len(stored) == 1 and fresh not in stored else fresh


def _unused(name: str, taken: Container[str]) -> str:
    """A name for one of several that do the same to the same rows, but for their filters."""
    numbered = (name if number == 1 else f"{name}_{number}" for number in count(1))
    return next(each for each in numbered if each not in taken)


def results_of(stages: Sequence[Stage]) -> dict[str, frozenset[str]]:
    """By stream that stages write: the streams for others that its rows lead to."""
    found: dict[str, frozenset[str]] = {}
    for stage in reversed(stages):  # readers before writers
        behind = {
            name: frozenset().union(
                *(results_behind(each, found) for each in stages if name in each.streams)
            )
            for name in stage.written
        }
        found |= {n: its if is_inner(n) else its | {n} for n, its in behind.items()}
    return found


def results_behind(stage: Stage, found: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The streams for others that a stage's rows lead to; `found` are those of each stream."""
    return frozenset().union(*(found[name] for name in stage.written))


def position_of(stage: Stage) -> Any:
    """What its state and its positions mean, wherever its rows go."""
    return {
        "ports": [_port(port) for port in stage.ports],
        "states": [spec.meaning for spec in stage.stateful],
        "cohort": stage.cohort,
        **_columns(stage),
    }


def identity(stage: Stage) -> Any:
    """What its state and its positions mean, and what its outputs are for."""
    return {**position_of(stage), "outputs": [output_kind(stage, each) for each in stage.outputs]}


def output_kind(stage: Stage, output: StageOutput) -> Any:
    """What the rows of an output are for those who read them, whichever they are."""
    way = stage.way_to(output)
    partials = [spec.meaning for spec in way if isinstance(spec, PartialAggregateSpec)]
    return [partials, list(output.partition_by)]


def _columns(stage: Stage) -> dict[str, Any]:
    """Of the rows that its state keeps whole, port by port."""
    if not any(spec.keeps_rows for spec in stage.stateful):
        return {}
    return {"columns": [shape(port.output_schema) for port in stage.ports]}


def _port(port: Port) -> Any:
    return sorted(port.streams) if port.source is None else source_identity(port.source)


def source_identity(source: ConnectorSpec) -> Any:
    """Which rows its offsets mean."""
    options = source.options
    kept = {name: options.get(name) for name in IDENTITY_OPTIONS.get(source.connector, ())}
    return {"connector": source.connector, **kept}


def _called(word: str, facts: Any) -> str:
    digest = hashlib.sha256(canonical_json(facts).encode()).hexdigest()
    return f"{re.sub('[^A-Za-z0-9]+', '_', word)[:WORD_MAX]}_{digest[:_DIGEST_CHARACTERS]}"


def _word(stage: Stage) -> str:
    """What people would call it."""
    grouping: list[StatefulSpec | PartialAggregateSpec] = [*stage.stateful]
    if not grouping and len(stage.outputs) == 1:
        grouping += (spec for spec in stage.specs if isinstance(spec, PartialAggregateSpec))
    if grouping:
        return grouping[-1].title
    if stage.is_on_driver:
        return "by_spark"
    if stage.source is not None:
        return f"read_{stage.source.connector}"
    return f"from_{stage.streams[0].rpartition('.')[2]}"
