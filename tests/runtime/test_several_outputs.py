"""Several outputs of one stage: one read, one marker, and the same prefix of the input in all."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count as numbers
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import RowError, StreamConflict
from penstock.kernels.cache import KernelCache
from penstock.log import LocalLog, open_log, punit
from penstock.log.committed import CommittedReader
from penstock.log.record import Entry, Fence, Position
from penstock.plan.optimizer import plan_program
from penstock.plan.query import Query, Write, going_on
from penstock.runtime.markers import decode_marker
from penstock.runtime.sources import SourceBuilder
from penstock.runtime.streams import check_new_results, describe_stream, register_streams
from penstock.stages.compare import compare
from penstock.stages.program import Program
from penstock.stages.settings import Settings
from penstock.stages.tags import marker_tag
from penstock.testing.columns import col
from penstock.testing.plans import Draft, count, query, scan_source, sum_
from tests.runtime.laboratory import Laboratory, table, table_source
from tests.thoroughness import some

ROWS = 120


def events(rows: int = ROWS) -> pa.Table:
    return table(
        [(number, number % 7, number % 5) for number in range(rows)],
        id=pa.int64(), key=pa.int64(), value=pa.int64(),
    )  # fmt: skip


def scanned() -> Draft:
    return scan_source("rows", "id bigint not null, key bigint, value bigint", partitions=None)


def even() -> Write:
    return scanned().filter(col("id") % 2 == 0).select("id", "key").to_stream("even")


def small() -> Write:
    return scanned().filter(col("value") < 3).select("id", "value").to_stream("small")


def counted(mode: str = "update") -> Write:
    return scanned().group_by("key").agg(count().alias("n"), mode=mode).to_stream("counts")


def sums() -> Write:
    summed = scanned().group_by("value").agg(sum_("id").alias("s"), mode="update")
    return summed.to_stream("sums")


def together(*writes: Write, parallelism: int = 1, **settings: Any) -> Query:
    given = {"step_rows_max": 13, "commit_interval_ms": 0, "checkpoint_interval_commits": 2}
    return query("q", *writes, parallelism=parallelism, settings=Settings(**(given | settings)))


def everything(rows: int = ROWS) -> dict[str, Any]:
    made = list(events(rows).to_pylist())
    return {
        "even": [row["id"] for row in made if row["id"] % 2 == 0],
        "small": [row["id"] for row in made if row["value"] < 3],
        "counts": Counter(row["key"] for row in made),
        "sums": {v: sum(row["id"] for row in made if row["value"] == v) for v in range(5)},
    }


def found(lab: Laboratory, *streams: str) -> dict[str, Any]:
    """What streams hold: ids of rows, or the last value of each group."""
    values: dict[str, Any] = {}
    for stream in streams:
        rows = lab.rows(stream)
        if stream in ("even", "small"):
            values[stream] = sorted(row["id"] for row in rows)
        else:
            values[stream] = dict(tuple(row.values()) for row in rows)
    return values


def check_prefixes(lab: Laboratory, program: Program) -> int:
    """Up to each marker both streams hold just what the committed offsets say; how many there are.

    This is what a reader of both sees that reads up to some position of the log.
    """
    stage = program.stages[0]
    vertices = program.stage_vertices(0)
    assert {"even", "small"} <= set(stage.written)
    parts = len(vertices)
    with open_log(lab.folder, read_only=True) as log:
        seen: dict[str, list[tuple[int, int]]] = {}  # (marker, id)
        for stream in ("even", "small"):
            reader = CommittedReader(log, describe_stream(log, stream).tags)
            while (release := reader.take()) is not None:
                for record in release.records:
                    ids = punit.decode_record(record).column("id").to_pylist()
                    seen.setdefault(stream, []).extend((release.marker.position, i) for i in ids)
        parts_of = {vertex.name: vertex.index for vertex in vertices}
        marks = [
            (record.position, parts_of[record.producer], decode_marker(record).offset)
            for record in log.read([marker_tag("even"), marker_tag("small")], Position(0), 10_000)
        ]
    reached = [0] * parts
    for position, part, offset in sorted(marks):
        reached[part] = offset
        read = {i for number, upto in enumerate(reached) for i in _of_part(number, parts, upto)}
        for stream, rule in (("even", lambda i: i % 2 == 0), ("small", lambda i: i % 5 < 3)):
            ids = sorted(i for marker, i in seen.get(stream, []) if marker <= position)
            assert ids == sorted(filter(rule, read)), (stream, position)
    return len(marks)


def _of_part(part: int, parts: int, upto: int) -> range:
    """The ids of a part of the source up to an offset, which counts the rows of the whole."""
    return range(ROWS * part // parts, min(upto, ROWS * (part + 1) // parts))


@pytest.mark.parametrize("seed", some(range(6), every=2))
def test_outputs_of_one_stage_show_the_same_rows_at_every_marker(
    lab: Laboratory, seed: int
) -> None:
    rng = random.Random(seed)
    early = rng.choice((1, 1 << 20))
    program = plan_program(
        together(even(), small(), counted(), sums(), parallelism=1 + seed % 2,
                 early_append_bytes_max=early)
    )  # fmt: skip
    assert sum(stage.source is not None for stage in program.stages) == 1
    lab.run_with_crashes(program, {"rows": table_source(events())}, rng, crashes=7, steps_max=9)
    assert found(lab, *everything()) == everything()
    assert check_prefixes(lab, program) > 3


class Killed(BaseException):
    """Ends a process where it stands."""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_between_any_two_appends_loses_and_doubles_nothing(
    tmp_path: Path, kernels: KernelCache, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    program = plan_program(together(even(), small(), counted(), early_append_bytes_max=1))
    sources = {"rows": table_source(events(60))}
    append = LocalLog.append
    for last in numbers(1):
        lab = Laboratory(tmp_path / f"{last}", kernels)
        calls = numbers(1)

        def dying(
            self: LocalLog,
            entries: Sequence[Entry],
            fence: Fence | None = None,
            *,
            calls: Any = calls,
            last: int = last,
        ) -> tuple[Position, ...]:
            is_last = next(calls) == last
            if is_last and when == "before":
                raise Killed
            positions = append(self, entries, fence)
            if is_last:
                raise Killed
            return positions

        monkeypatch.setattr(LocalLog, "append", dying)
        process = lab.open(program, sources)
        try:
            process.run()
            is_over = True
        except Killed:
            is_over = False
        process.abandon()
        monkeypatch.setattr(LocalLog, "append", append)
        lab.run(program, sources)
        expected = everything(60)
        assert found(lab, "even", "small", "counts") == {
            name: expected[name] for name in ("even", "small", "counts")
        }
        if is_over:
            break
    assert last > 8


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("first", [even, counted])
def test_a_result_that_is_added_begins_at_the_beginning_and_the_others_go_on(
    lab: Laboratory, parallelism: int, first: Any
) -> None:
    """Nothing of either is lost or doubled; then a result goes, and the rest goes on again."""
    sources = {"rows": table_source(events())}
    stored = plan_program(together(first(), parallelism=parallelism))
    run_some(lab, stored, sources)
    more = going_on(together(small(), first(), sums(), parallelism=parallelism), stored)
    program = plan_program(more)
    verdicts = {each.stage: each.verdict for each in compare(stored, program).stages}
    assert [verdicts[stage.name] for stage in stored.stages] == ["kept"] * len(stored.stages)
    assert set(verdicts.values()) == {"kept", "added"}
    run_some(lab, program, sources)
    fewer = plan_program(going_on(together(first(), sums(), parallelism=parallelism), program))
    left = {each.stage: each.verdict for each in compare(program, fewer).stages}
    assert "refused" not in left.values(), left
    lab.run(fewer, sources)
    with open_log(lab.folder) as log, pytest.raises(StreamConflict, match="small holds rows"):
        check_new_results(log, fewer, plan_program(going_on(more, fewer)))
    name = first().stream
    assert found(lab, name, "sums") == {each: everything()[each] for each in (name, "sums")}
    ids = found(lab, "small")["small"]
    assert len(set(ids)) == len(ids)


def run_some(lab: Laboratory, program: Program, sources: Mapping[str, SourceBuilder]) -> None:
    """Commit something, and not all."""
    with lab.open(program, sources) as process:
        steps = numbers()
        process.run(until=lambda: next(steps) >= 3)


def test_a_row_that_fails_for_one_output_is_there_for_the_others(lab: Laboratory) -> None:
    failing = scanned().select("id", (col("id") % col("value")).alias("rest")).to_stream("rests")
    tested = together(failing, even(), dead_letter_stream="dead")
    program = plan_program(tested)
    assert len(program.stages) == 1
    lab.run(program, {"rows": table_source(events())})
    assert found(lab, "even")["even"] == everything()["even"]
    zeros = [number for number in range(ROWS) if number % 5 == 0]
    assert sorted(row["id"] for row in lab.rows("rests")) == [
        number for number in range(ROWS) if number % 5
    ]
    dead = lab.rows("dead")
    assert sorted(row["id"] for row in dead) == zeros
    assert all("zero" in row["error"].lower() for row in dead)
    assert {row["result"] for row in dead} == {"rests"}


def test_a_row_that_fails_before_several_results_says_which_lack_it(lab: Laboratory) -> None:
    read = scanned().select("id", "key", (col("id") % (col("id") - 40)).alias("rest"))
    sums = read.group_by("key").agg(count().alias("n"), mode="update")
    tested = together(
        read.to_stream("rests"),
        read.filter(col("rest") > 3).to_stream("high"),
        sums.to_stream("counts"),
        dead_letter_stream="dead",
    )
    lab.run(tested, {"rows": table_source(events())})
    letters = lab.rows("dead")
    missing = [name for row in letters for name in row["result"].split(", ")]
    assert {row["id"] for row in letters} == {40}
    assert sorted(missing) == ["counts", "high", "rests"]


def test_dead_letters_of_a_query_that_gets_a_result_more_are_read_with_those_before(
    lab: Laboratory,
) -> None:
    """The letters get a column, and those of before have none; another query's do not fit then."""
    failing = scanned().select("id", (col("id") % col("value")).alias("rest")).to_stream("rests")
    sources = {"rows": table_source(events())}
    stored = plan_program(together(failing, dead_letter_stream="dead"))
    run_some(lab, stored, sources)
    before = lab.rows("dead")
    assert before
    assert all("result" not in row for row in before)
    lab.run(
        plan_program(going_on(together(failing, even(), dead_letter_stream="dead"), stored)),
        sources,
    )
    letters = lab.rows("dead")
    assert sorted(row["id"] for row in letters) == list(range(0, ROWS, 5))
    assert Counter(row["result"] for row in letters) == {
        None: len(before),
        "rests": len(letters) - len(before),
    }
    alone = replace(together(failing, dead_letter_stream="dead"), name="other")
    with open_log(lab.folder) as log, pytest.raises(StreamConflict) as refused:
        register_streams(log, plan_program(alone))
    assert "result string" in str(refused.value)
    assert str(refused.value).endswith("choose another name in its option deadLetterStream")


def test_without_dead_letters_it_stops_the_vertex_and_neither_output_has_it(
    lab: Laboratory,
) -> None:
    failing = scanned().select("id", (col("id") % (col("id") - 40)).alias("x")).to_stream("xs")
    tested = together(failing, even())
    with pytest.raises(RowError, match="vertex q"):
        lab.run(tested, {"rows": table_source(events())})
    ids = found(lab, "even")["even"]
    assert ids == [i for i in range(0, ROWS, 2) if i <= max(ids, default=-1)]
    assert 40 not in ids


def test_complete_results_of_one_aggregate_are_whole_in_both(lab: Laboratory) -> None:
    groups = scanned().group_by("key").agg(count().alias("n"), mode="complete")
    tested = together(
        groups.to_stream("all_groups"), groups.filter(col("key") > 3).to_stream("high")
    )
    program = plan_program(tested)
    assert [stage.written for stage in program.stages] == [("all_groups", "high")]
    lab.run(program, {"rows": table_source(events())})
    last = {row["key"]: row["n"] for row in lab.rows("all_groups")}
    assert last == everything()["counts"]
    assert {row["key"]: row["n"] for row in lab.rows("high")} == {
        key: n for key, n in last.items() if key > 3
    }
