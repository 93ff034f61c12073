"""Static sides in a run: versions that somebody writes now and then, and which rows meet them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.log import punit
from penstock.log.contract import Log
from penstock.names import own_name
from penstock.operators.specs import StaticJoinSpec
from penstock.runtime.instances import numbered
from penstock.runtime.static_sides import has_version, write_version
from penstock.sim.graphs import Feeds
from penstock.sim.history import Seen, Trim
from penstock.sim.oracle import Reading, rows_of
from penstock.sim.outcome import Outcome
from penstock.sim.shapes import STATIC_SIDE
from penstock.sim.violation import Violation, check_equal
from penstock.stages.program import Program
from penstock.stages.tags import marker_tag, substream_tag

KEYS = ("ann", "bob", "cyd")  # not all that rows have


class StaticContent:
    """Writes versions, each of which tells by its rows that it is no other."""

    def __init__(self) -> None:
        self._contents = 0

    def write(self, log: Log, program: Program, run: int, again: bool) -> None:
        """Write a version for a run, if there is none yet or it is time for another."""
        if not again and has_version(log, program.query, STATIC_SIDE):
            return
        self._contents += 1
        rows = pa.RecordBatch.from_pydict(
            {"k": KEYS, "content": [self._contents] * len(KEYS)},
            schema=pa.schema([("k", pa.string()), ("content", pa.int64())]),
        )
        instance = numbered(run, self._contents)
        codec = punit.CODECS[program.settings.codec]
        write_version(log, program.query, STATIC_SIDE, instance, rows, codec)


def contents_of(history: Sequence[Seen], query: str) -> dict[int, tuple[int, int]]:
    """By version: what its rows tell, and where its marker is."""
    stream = own_name(query, STATIC_SIDE)
    found = {}
    for release in Reading(history, [substream_tag(stream, 0), marker_tag(stream)]).more():
        (content,) = {row["content"] for record in release.records for row in rows_of(record)}
        found[release.facts["epoch"]] = (content, release.marker.position)
    return found


def check_static_trim(history: Sequence[Seen], trim: Trim, program: Program) -> None:
    """No version goes that the last marker of a vertex names, or that one may begin with."""
    versions = contents_of(history, program.query)
    gone = [number for number, (_, position) in versions.items() if position <= trim.upto]
    for vertex in program.vertices:
        if not any(isinstance(spec, StaticJoinSpec) for spec in program.stage_of(vertex).specs):
            continue
        marks = [
            seen.facts
            for seen in history
            if seen.kind == "MARKER" and seen.producer == vertex.name and seen.position <= trim.tail
        ]
        named = marks[-1]["statics"][STATIC_SIDE] if marks else 0
        if gone and max(gone) >= named:
            raise Violation(f"trim of {trim.tag} up to {trim.upto}: {vertex.name} goes by {named}")


def check_static_rows(outcome: Outcome) -> None:
    """Rows of a commit meet the version that the marker before it names, and all the same."""
    program = outcome.scenario.program
    versions = contents_of(outcome.history, program.query)
    named: dict[str, int | None] = {}  # by vertex, as of its last marker
    found: Counter[tuple[Any, ...]] = Counter()
    releases = {each.marker.position: each for each in outcome.releases(outcome.scenario.output)[0]}
    for seen in outcome.history:
        if seen.kind != "MARKER" or not seen.facts["statics"]:
            continue
        release = releases.get(seen.position)
        rows = [row for record in release.records for row in rows_of(record)] if release else []
        contents = {row["content"] for row in rows if row["k"] in KEYS}
        number = named.get(seen.producer)
        expected = contents if number is None else {versions[number][0]}
        if len(contents) > 1 or not contents <= expected:
            raise Violation(
                f"static rows: those of the marker at {seen.position} meet {contents}, by the "
                f"marker before it they should meet {expected}"
            )
        if any((row["content"] is None) != (row["k"] not in KEYS) for row in rows):
            raise Violation(f"static rows: some match what they should not: {rows}")
        found.update(tuple(row.values())[:-1] for row in rows)
        named[seen.producer] = seen.facts["statics"][STATIC_SIDE]
    check_equal(found, _expected(outcome.scenario.shape.name, outcome.scenario.feeds), "rows")


def _expected(shape: str, feeds: Feeds) -> Counter[tuple[Any, ...]]:
    """The rows without what the static side has given them."""
    if shape == "static_rows":
        return Counter((row.rid, row.k) for row in feeds[0])
    return Counter(
        (row.rid, row.k, other.rid if other.v is None else other.v)
        for row in feeds[0]
        for other in feeds[1]
        if row.k is not None and row.k == other.k
    )
