"""What a seed decides before anything runs: the query, its input, its settings and its troubles."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import pyarrow as pa

from penstock.sim.data import SECOND_US, Disorder, Feed, make_feed, part_of, to_arrow
from penstock.sim.more_shapes import drawn_shape
from penstock.sim.shapes import (
    CONNECTOR,
    DEAD,
    DELAY_US,
    OUT,
    SHAPES,
    Shape,
    Variant,
    programs_of,
)
from penstock.stages.program import Program
from penstock.stages.settings import Settings

BatchKind = Literal["batch", "micro-batches"]  # of jobs of Spark's that write a feed
READERS = ("committed", "stream", "batch", "micro-batches")  # kinds of readers outside


# Shapes whose queries are changed while they run; not all, as each change needs its own kernels.
CHANGED = frozenset(
    {"filter_map", "running", "complete", "tumbling", "late_side_one", "published_rows",
     "chained_running"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Troubles:
    """How often things go wrong; a gap is the mean number of chances between two."""

    point_gap: int  # between two faults at the points of processes
    effect_gap: int  # between two faults of effects on the log
    read_gap: int  # between two reads of the log that fail
    event_share: float  # of the world's actions that are a fault from outside
    lagging: bool
    actions: int  # of the world before it heals
    arrive_at_once: bool  # the input is there from the start


@dataclass(frozen=True)
class Scenario:
    """One simulated run, fixed but for its schedule."""

    seed: int
    shape: Shape
    programs: tuple[Program, ...]  # the one that answers is the last
    changed: tuple[Program, ...]  # which the next start may bring instead; none: it never changes
    refused: Program | None  # which somebody tries to start in between
    feeds: tuple[Feed, ...]
    has_stragglers: bool
    stalled_feed: int | None  # comes late and slowly: others must not wait for it
    trim_commits: int
    retained: tuple[str, ...]  # streams that are cut now and then
    observed: tuple[str, str] | None  # a stream, and the kind of reader that follows it
    batches: BatchKind | None  # jobs of Spark's write the last of the feeds that are published
    sink_keeps_record: bool | None  # None: there is no sink outside the log
    slots: int
    standbys: int
    page_records: int  # that a reader gets at once, far less than the log has
    appends_beside: bool  # a thread of each slot appends for its vertices
    loses_tail: bool  # a power cut takes the end of the log, as at the level `process`
    inline_bytes_max: int | None  # of the embedded log; None: the log is in memory
    troubles: Troubles

    @property
    def program(self) -> Program:
        """The program that answers."""
        return self.programs[-1]

    @property
    def output(self) -> str:
        """The stream that holds the answer."""
        return next(each.name for each in self.program.streams if each.role == "output")

    @property
    def settings(self) -> Settings:
        return self.program.settings

    @cached_property
    def named_streams(self) -> list[str]:
        """The streams that people named: those that no query made for itself."""
        streams = [s.name for p in self.programs for s in p.streams if s.role != "internal"]
        if self.sink_keeps_record is not None:
            streams.remove(self.output)
        dead = [DEAD] if self.shape.dead_letters else []
        return list(dict.fromkeys([*streams, *dead]))

    @cached_property
    def parts(self) -> dict[tuple[int, int], tuple[Feed, pa.RecordBatch]]:
        """By (feed, part): the rows, plain and as Arrow."""
        found = {}
        for number, feed in enumerate(self.feeds):
            for part in range(self.shape.parts):
                rows = part_of(feed, part, self.shape.parts)
                found[number, part] = (rows, to_arrow(rows))
        return found

    @cached_property
    def fed(self) -> dict[str, Feed]:
        """By vertex or producer that brings rows in: these rows, in its order."""
        sources = {name: self.parts[part][0] for name, part in self.source_parts.items()}
        published = {name: self.parts[part][0] for name, part in self.published_parts.items()}
        return {**sources, **published}

    @cached_property
    def published_parts(self) -> dict[str, tuple[int, int]]:
        """By producer outside: which part of which feed it publishes; jobs are the last one."""
        return {f"producer{number}": (number, 0) for number in range(self.shape.producers)}

    @cached_property
    def source_parts(self) -> dict[str, tuple[int, int]]:
        """By vertex that reads a source: which part of which feed."""
        found = {}
        for program in self.programs:
            for vertex in program.vertices:
                source = program.stage_of(vertex).source
                if source is not None:
                    assert source.connector == CONNECTOR
                    found[vertex.name] = (int(source.options["feed"]), vertex.index)
        return found

    def quietly(self) -> Scenario:
        """The same, with several slots and nothing that goes wrong from outside."""
        troubles = replace(self.troubles, event_share=0.0, lagging=False)
        return replace(self, troubles=troubles, slots=2, standbys=1)


def make_scenario(seed: int) -> Scenario:
    """Everything that follows from a seed alone."""
    rng = random.Random(f"scenario {seed}")
    shape = drawn_shape(seed)
    may_be_late = shape.window_us is not None or shape.has_late_rows
    has_stragglers = may_be_late and rng.random() < 0.6
    idles = shape.may_idle and rng.random() < 0.4
    disorder = Disorder(
        jitter_us=min(rng.choice((0, SECOND_US, DELAY_US)), shape.jitter_us_max),
        stragglers=0.12 if has_stragglers else 0.0,
    )
    rows = rng.choice((30, 30, 40, 60))
    feeds = tuple(make_feed(rng, number, rows, disorder) for number in range(shape.feeds))
    more = random.Random(f"log {seed}")
    is_embedded = more.random() < 0.3
    has_sink = shape.first is None and (more.random() < 0.35 or shape.upserts)
    programs = programs_of(shape, has_sink)
    settings = replace(
        programs[-1].settings,
        commit_interval_ms=rng.choice((0, 5, 20, 20, 60)),
        step_rows_max=rng.choice((2, 5, 5, 11, 40)),
        early_append_bytes_max=rng.choice((1, 1, 1, 1_500, 1 << 20)),
        checkpoint_interval_commits=rng.choice((1, 1, 2, 3, 1_000)),
        idle_timeout_ms=rng.choice((5, 40)) if idles else None,
        undelivered_bytes_max=more.choice((1_000, 1 << 20)),
        codec=rng.choice(("none", "lz4", "zstd")),
        available_now=shape.window_us is not None and more.random() < 0.25,
    )
    is_changed = shape.name in CHANGED and random.Random(f"changes {seed}").random() < 0.8
    # What carries rows to a sink may change with a start: there it is the sink that refuses.
    is_refused = is_changed and not has_sink
    later = replace(settings, step_rows_max=7, checkpoint_interval_commits=2)
    troubles = Troubles(
        point_gap=rng.choice((100, 250, 250, 700)),
        effect_gap=rng.choice((8, 20, 20, 60)),
        read_gap=rng.choice((40, 150, 400)),
        event_share=rng.choice((0.02, 0.06, 0.12)),
        lagging=rng.random() < 0.7,
        actions=rng.choice((200, 300, 300, 450)),
        arrive_at_once=rng.random() < 0.4,
    )
    stalled = rng.randrange(shape.feeds) if idles and shape.feeds > 1 else None
    whole = Scenario(
        seed=seed,
        shape=shape,
        programs=tuple(replace(program, settings=settings) for program in programs),
        changed=_planned(shape, has_sink, "changed", later) if is_changed else (),
        refused=_planned(shape, has_sink, "refused", settings)[-1] if is_refused else None,
        feeds=feeds,
        has_stragglers=has_stragglers,
        stalled_feed=stalled,
        trim_commits=random.Random(f"trims {seed}").choice((1, 1, 2, 3, 1_000)),
        retained=(),
        observed=None,
        batches=_batches(shape, random.Random(f"batches {seed}")),
        sink_keeps_record=more.random() < 0.5 if has_sink else None,
        slots=more.choice((1, 2, 2, 3)),
        standbys=more.choice((0, 1)),
        page_records=more.choice((1, 2, 3, 7, 1_024)),
        appends_beside=seed // len(SHAPES) % 5 == 2,  # of each shape one in five
        loses_tail=not has_sink and more.random() < 0.25 and not shape.once,
        inline_bytes_max=more.choice((0, 0, 400, 100_000)) if is_embedded else None,
        troubles=troubles,
    )
    return _with_readers(whole, random.Random(f"readers {seed}"))


def _batches(shape: Shape, rng: random.Random) -> BatchKind | None:
    """Where event time matters there are none: their rows speak of no time."""
    if not shape.producers or shape.window_us is not None:
        return None
    return rng.choice((None, "batch", "micro-batches"))


def _planned(
    shape: Shape, has_sink: bool, variant: Variant, settings: Settings
) -> tuple[Program, ...]:
    programs = programs_of(shape, has_sink, variant)
    return tuple(replace(program, settings=settings) for program in programs)


def _with_readers(scenario: Scenario, rng: random.Random) -> Scenario:
    """With somebody who cuts some streams, and somebody who reads one of them."""
    streams = scenario.named_streams
    if not streams:
        return scenario
    retained = tuple(streams) if rng.random() < 0.5 else ()
    stream = OUT if OUT in streams and rng.random() < 0.8 else rng.choice(streams)
    return replace(scenario, retained=retained, observed=(stream, rng.choice(READERS)))
