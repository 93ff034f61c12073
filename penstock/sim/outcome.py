"""A finished run, as its committed records tell it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from penstock.operators.specs import WatermarkSpec
from penstock.runtime.instances import run_of
from penstock.sim.data import Feed, Row, watermarks_of
from penstock.sim.history import Seen
from penstock.sim.judge import (
    END_US,
    NONE_US,
    Deeds,
    Mark,
    Said,
    check_watermark,
    epoch_of,
    heard_time,
    own_time,
)
from penstock.sim.oracle import Committed, Reading, rows_of
from penstock.sim.scenario import Scenario
from penstock.sim.shapes import DELAY_US
from penstock.stages.tags import marker_tag

OutputRow = dict[str, Any]


class Taking(NamedTuple):
    """A delivery that a vertex took: its rows, and how far event time was before and after it."""

    rows: list[OutputRow]
    before_us: int
    after_us: int


@dataclass(frozen=True)
class Outcome:
    """A finished run, as its committed records tell it."""

    scenario: Scenario
    history: Sequence[Seen]
    deeds: Deeds

    @cached_property
    def marks(self) -> dict[str, list[Mark]]:
        """The markers of each vertex and producer, in order."""
        found: dict[str, list[Mark]] = {}
        for seen in self.history:
            if seen.kind == "MARKER":
                facts = seen.facts
                seen_us = facts["ports"][0][0] if facts["ports"] else NONE_US
                producers = {
                    name: Said(*said) for _, heard in facts["ports"] for name, said in heard.items()
                }
                mark = Mark(
                    seen.producer,
                    seen.instance,
                    seen.position,
                    facts["offset"] or 0,
                    facts["consumed"],
                    facts["watermark_us"],
                    seen_us,
                    facts["ended"],
                    run_of(seen.instance) if facts["caught_up"] else 0,
                    producers,
                    facts["behind_us"],
                    facts["rests"],
                )
                found.setdefault(seen.producer, []).append(mark)
        return found

    @cached_property
    def last_facts(self) -> dict[str, dict[str, Any]]:
        """What the last marker of each vertex says."""
        return {seen.producer: seen.facts for seen in self.history if seen.kind == "MARKER"}

    @property
    def idle_passes(self) -> int:
        """How many markers are ahead of a producer that has not ended: one that was silent."""
        passes = 0
        for seen in self.history:
            if seen.kind == "MARKER":
                facts = seen.facts
                heard = [said for _, producers in facts["ports"] for said in producers.values()]
                behind = [us for us, ended, *_ in heard if not ended]
                passes += bool(behind) and facts["watermark_us"] > min(behind)
        return passes

    def releases(self, stream: str) -> tuple[list[Committed], int]:
        """What each marker of a stream commits, and how many dead records were passed by."""
        substreams = 1
        for spec in self.scenario.program.streams:
            if spec.name == stream:
                substreams = spec.substreams
        tags = [f"S/{stream}/{index}" for index in range(substreams)]
        reading = Reading(self.history, [*tags, marker_tag(stream)])
        return list(reading.more()), reading.orphans

    def reading(self, stream: str) -> tuple[list[OutputRow], int]:
        """The committed rows of a stream in order, and how many dead records were passed by."""
        releases, orphans = self.releases(stream)
        return [
            row for each in releases for record in each.records for row in rows_of(record)
        ], orphans

    @cached_property
    def out(self) -> list[OutputRow]:
        return self.reading(self.scenario.output)[0]

    def aggregate_stages(self) -> list[int]:
        """The stages that keep state, in the order of the query."""
        return [index for index, stage in enumerate(self.scenario.program.stages) if stage.stateful]

    def vertices_of(self, stage: int) -> list[str]:
        return [v.name for v in self.scenario.program.vertices if v.stage == stage]

    @cached_property
    def failing(self) -> set[int]:
        """The rows that divide by zero."""
        if not self.scenario.shape.dead_letters:
            return set()
        return {row.rid for row in self.rows if row.v is not None and row.d == 0}

    @cached_property
    def dead(self) -> set[int]:
        """The rows that must be in the dead-letter stream.

        A row without a time is in no window, so whether its other columns are looked at is open.
        """
        if self.scenario.shape.window_us is None:
            return self.failing
        return {row.rid for row in self.rows if row.rid in self.failing and row.ts is not None}

    @cached_property
    def rows(self) -> list[Row]:
        return [row for feed in self.scenario.feeds for row in feed]

    @cached_property
    def living(self) -> list[Row]:
        """The rows that reach the end of their expressions, as the query sees them."""
        rows = [row for row in self.rows if row.rid not in self.failing]
        if self.scenario.shape.dead_letters:
            rows = [row._replace(v=_quotient(row.v, row.d)) for row in rows]
        return rows

    # Event time -------------------------------------------------------------------------------

    def judged(self, stage: int) -> dict[int, int]:
        """By row: how far event time had come in its vertex of a stage before its delivery."""
        readers = self.vertices_of(stage)
        feeds = self.scenario.fed
        if set(readers) == set(feeds):
            return self._judged_at_source(feeds)
        inputs = self.scenario.program.stages[stage].streams
        at = self._visible_at(feeds)
        first = self.scenario.program.stages[0]
        if not set(first.written).isdisjoint(inputs) and not set(feeds) & set(self.vertices_of(0)):
            at = self._passed_on_at(at)  # a stage in between has taken them first
        if stage == 0:
            return self._judged_by_own(readers[0], feeds, at)
        return self._judged_by_hearing(stage, at)

    def check_sources(self) -> None:
        """Raise WrongWatermark unless each marker of a source's vertex is where its rows are.

        A chain that defines event time goes by its own rows; others by what the source says.
        """
        for vertex in self.scenario.program.vertices:
            if (rows := self.scenario.fed.get(vertex.name)) is None:
                continue
            if self._defines_time(vertex.stage):
                self._source_time(vertex.name, rows)
                continue
            bounds = watermarks_of(rows)
            for mark in self.marks[vertex.name]:
                check_watermark(mark, bounds[mark.offset] if mark.offset else NONE_US)

    def check_hearing(self) -> None:
        """Raise WrongWatermark unless each vertex behind another one is where that one lets it."""
        program = self.scenario.program
        inner = {each.name for each in program.streams if each.role == "internal"}
        for vertex in program.vertices:
            streams = program.stage_of(vertex).streams
            hears = streams and inner.issuperset(streams)
            if hears and not self._defines_time(vertex.stage):
                self.heard_time(vertex.name, vertex.stage)

    def _defines_time(self, stage: int) -> bool:
        return self._delay_us(stage) is not None

    def _delay_us(self, stage: int) -> int | None:
        """Of the watermark that a stage defines, if it does."""
        specs = self.scenario.program.stages[stage].specs
        delays = [spec.delay_us for spec in specs if isinstance(spec, WatermarkSpec)]
        return delays[0] if delays else None

    def _source_time(self, name: str, rows: Feed) -> dict[int, int]:
        # A row that fails is gone before event time is looked at.
        by_offset = {index: (row,) for index, row in enumerate(rows) if row.rid not in self.failing}
        waits = self.scenario.settings.available_now
        vertices = self.scenario.program.vertices
        delay_us = self._delay_us(next(each.stage for each in vertices if each.name == name))
        assert delay_us is not None
        return own_time(self.marks[name], self.deeds, by_offset, delay_us, True, waits)

    def _judged_at_source(self, feeds: Mapping[str, Feed]) -> dict[int, int]:
        judged = {}
        for name, rows in feeds.items():
            time = self._source_time(name, rows)
            ends = sorted(time)
            for index, row in enumerate(rows):
                judged[row.rid] = time[ends[bisect_right(ends, index)]]
        return judged

    def _visible_at(self, feeds: Mapping[str, Feed]) -> dict[int, int]:
        """By row: the position of the marker with which its feed committed it."""
        return {
            row.rid: self.marks[name][epoch_of(self.marks[name], index)].position
            for name, rows in feeds.items()
            for index, row in enumerate(rows)
        }

    def _passed_on_at(self, at: Mapping[int, int]) -> dict[int, int]:
        """By row: the position of the marker of the first stage that covers it."""
        (name,) = self.vertices_of(0)
        consumed = [mark.consumed for mark in self.marks[name]]
        return {
            rid: self.marks[name][bisect_left(consumed, position)].position
            for rid, position in at.items()
        }

    def _judged_by_own(
        self, reader: str, feeds: Mapping[str, Feed], at: Mapping[int, int]
    ) -> dict[int, int]:
        rows: dict[int, list[Row]] = {}
        for feed in feeds.values():
            for row in feed:
                rows.setdefault(at[row.rid], []).append(row)
        waits = self.scenario.settings.available_now
        time = own_time(self.marks[reader], self.deeds, rows, DELAY_US, False, waits)
        return {rid: time[position] for rid, position in at.items()}

    def _judged_by_hearing(self, stage: int, at: Mapping[int, int]) -> dict[int, int]:
        time = {name: self.heard_time(name, stage) for name in self.vertices_of(stage)}
        reader = self._reader_of_keys(stage)
        keys = self.scenario.shape.keys
        return {
            row.rid: time[reader[tuple(getattr(row, key) for key in keys)]][at[row.rid]]
            for row in self.rows
            if row.rid in at and tuple(getattr(row, key) for key in keys) in reader
        }

    def heard_time(self, name: str, stage: int) -> dict[int, int]:
        """By delivery that a vertex took, which is a position: how far it was before it."""
        program = self.scenario.program
        writers = [
            [
                vertex.name
                for vertex in program.vertices
                if not set(program.stage_of(vertex).written).isdisjoint(port.streams)
            ]
            for port in program.stages[stage].ports
        ]
        heard = [mark for names in writers for name in names for mark in self.marks[name]]
        inputs = {mark.position: mark for mark in heard}
        timeout_ms = self.scenario.settings.idle_timeout_ms
        waits = self.scenario.settings.available_now
        return heard_time(
            self.marks[name], self.deeds, inputs, writers, timeout_ms, waits, self._shared,
            self._timeless,
        )  # fmt: skip

    @cached_property
    def _timeless(self) -> frozenset[str]:
        """The vertices that read nothing of which a watermark speaks."""
        program = self.scenario.program
        return frozenset(
            vertex.name
            for vertex in program.vertices
            if not any(port.is_timed for port in program.stage_of(vertex).ports)
        )

    @cached_property
    def _shared(self) -> dict[str, str]:
        """By vertex: the union that has its watermark above it, if one has."""
        program = self.scenario.program
        return {
            vertex.name: f"above {spec.union}"
            for vertex in program.vertices
            for spec in program.stage_of(vertex).specs
            if isinstance(spec, WatermarkSpec) and spec.union is not None
        }

    @property
    def rests(self) -> int:
        """How many markers say that a branch has nothing, when others were further."""
        found, reached = 0, dict.fromkeys(self._shared.values(), NONE_US)
        marks = sorted((m for name in self._shared for m in self.marks[name]), key=_position)
        for mark in marks:
            owner = self._shared[mark.vertex]
            found += mark.rests and mark.said_us < reached[owner]
            if not mark.ended:
                reached[owner] = max(reached[owner], mark.said_us)
        return found

    def takings(self, stage: int) -> Iterator[list[Taking]]:
        """Of each vertex of a stage what it took, in the order in which it did."""
        program = self.scenario.program
        for vertex in program.stage_vertices(stage):
            time = self.heard_time(vertex.name, stage)
            releases = Reading(self.history, vertex.input_tags).more()
            rows = {
                each.marker.position: [row for record in each.records for row in rows_of(record)]
                for each in releases
            }
            ends = sorted(time)
            after = [*(time[end] for end in ends[1:]), END_US]
            yield [
                Taking(rows.get(end, []), time[end], us)
                for end, us in zip(ends, after, strict=True)
            ]

    def _reader_of_keys(self, stage: int) -> dict[tuple[Any, ...], str]:
        """Which vertex of a stage gets the rows of a group, by the tags of what was exchanged."""
        program, keys = self.scenario.program, self.scenario.shape.keys
        found: dict[tuple[Any, ...], str] = {}
        for vertex in program.stage_vertices(stage):
            tags = set(vertex.input_tags)
            for seen in self.history:
                if seen.kind == "DATA" and not tags.isdisjoint(seen.tags):
                    for row in rows_of(seen):
                        found[tuple(_of_side(row, key) for key in keys)] = vertex.name
        return found


def _position(mark: Mark) -> int:
    return mark.position


def _of_side(row: OutputRow, key: str) -> Any:
    """A column of either side of a join."""
    return row[key] if key in row else row[f"r_{key}"]


def _quotient(v: int | None, d: int | None) -> int | None:
    """SQL's `div`: towards zero."""
    if v is None or d is None:
        return None
    return abs(v) // abs(d) * (1 if (v < 0) == (d < 0) else -1)
