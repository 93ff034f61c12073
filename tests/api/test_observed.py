"""What a query observes of its rows: each row once over all entries, wherever it is observed."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.api.observed import Observed, json_of
from penstock.catalyst.observed import Observation, observation
from penstock.errors import QueryActive
from penstock.kernels.cache import KernelCache
from penstock.log import open_log
from penstock.operators.specs import AggregateCall, PartialAggregateSpec
from penstock.plan.nodes import aggregate, step
from penstock.plan.optimizer import plan_program
from penstock.plan.query import going_on
from penstock.runtime.queries import StoredQuery, begin_run
from penstock.stages.compare import compare
from penstock.stages.program import Program, observed_stream
from penstock.stages.settings import Settings
from penstock.stages.tags import substream_tag
from penstock.testing.plans import Draft, col, count, query, scan_source, sum_
from tests.runtime.laboratory import Laboratory, table, table_source

ROWS = 600
EVENTS = table(
    [(number, number % 7, f"t{number:03}") for number in range(ROWS)],
    id=pa.int64(), key=pa.int64(),
    word=pa.string(),
)  # fmt: skip
SOURCES = {"rows": table_source(EVENTS)}


@pytest.fixture
def lab(tmp_path: Path, kernels: KernelCache) -> Laboratory:
    return Laboratory(tmp_path / "log", kernels)


def scanned() -> Draft:
    return scan_source("rows", "id bigint, key bigint, word string", partitions=None)


def observed(rows: Draft, name: str, **calls: tuple[str, str | None]) -> tuple[Draft, Observation]:
    """Rows that are observed under a name: each metric a function of a column."""
    columns = {field.name: rows._typed(col(field.name), "observe") for field in rows.schema}
    asked = tuple(
        AggregateCall(function, None if of is None else columns[of], metric)
        for metric, (function, of) in calls.items()
    )
    shown = aggregate(PartialAggregateSpec((), None, asked), rows.relation, "complete")
    found = observation(name, tuple(calls), shown, rows.relation)
    return Draft(step(found.spec, rows.relation)), found


class Told:
    """Drivers, one after the other, that tell entries; what all of them have told."""

    def __init__(self, lab: Laboratory, program: Program, asked: list[Observation]) -> None:
        self._lab, self._program, self._asked = lab, program, asked
        self._stored = StoredQuery(
            "11111111-1111-1111-1111-111111111111", "q", program, "out", None
        )
        self.entries: list[dict[str, Any]] = []

    def tell(self, *, is_noted: bool = True) -> None:
        """A new driver tells an entry; one that is killed before it notes so has told nothing."""
        with open_log(self._lab.folder) as log:
            run = begin_run(log, self._stored).run
            driver = Observed(log, self._program, self._asked, run)
            driver.take()
            rows = driver.rows()
            if is_noted:
                driver.told()
                self.entries.append(json_of(rows))


def lines(found: list[dict[str, Any]], name: str, metric: str) -> list[Any]:
    return [entry[name][metric] for entry in found]


@pytest.mark.parametrize("seed", range(4))
def test_each_row_counts_once_over_all_entries(lab: Laboratory, seed: int) -> None:
    """Before, between and behind operators, in two vertices, while slots and drivers die."""
    rng = random.Random(seed)
    rows, all_rows = observed(
        scanned(), "all", n=("count", None), total=("sum", "id"), last=("max", "id"),
        words=("collect_set", "word"),
    )  # fmt: skip
    kept, even = observed(
        rows.filter(col("id") % 2 == 0), "even", n=("count", None), a=("avg", "id")
    )
    counted = kept.group_by("word", "key").agg(
        count().alias("n"), sum_("id").alias("s"), mode="update"
    )
    counted, groups = observed(counted, "groups", n=("count", None))
    early = rng.choice((1, 1 << 20))
    settings = Settings(early_append_bytes_max=early, step_rows_max=rng.choice((40, 1000)))
    program = plan_program(
        query("q", counted.to_stream("out"), parallelism=1 + seed % 2, settings=settings)
    )
    told = Told(lab, program, [all_rows, even, groups])
    for _ in range(6):
        process = lab.open(program, SOURCES)
        steps = itertools.count()
        stop_at = rng.randrange(9)
        process.run(until=lambda steps=steps, stop_at=stop_at: next(steps) >= stop_at)
        process.abandon()
        told.tell(is_noted=rng.random() < 0.7)
    lab.run(program, SOURCES)
    told.tell()
    assert sum(lines(told.entries, "all", "n")) == ROWS
    assert sum(filter(None, lines(told.entries, "all", "total"))) == ROWS * (ROWS - 1) // 2
    assert max(filter(None, lines(told.entries, "all", "last"))) == ROWS - 1
    words = [word for each in lines(told.entries, "all", "words") for word in each]
    assert sorted(words) == [f"t{number:03}" for number in range(ROWS)]
    assert sum(lines(told.entries, "even", "n")) == ROWS // 2
    assert sum(lines(told.entries, "groups", "n")) == len(lab.rows("out"))
    told.tell()
    assert told.entries[-1] == {
        "all": {"n": 0, "total": None, "last": None, "words": []},
        "even": {"n": 0, "a": None},
        "groups": {"n": 0},
    }
    assert lab.records(substream_tag(observed_stream("q"), 0)) == []


def test_a_row_that_fails_behind_counts_as_the_dead_letters_say(lab: Laboratory) -> None:
    rows, seen = observed(scanned(), "seen", n=("count", None))
    failing = rows.select("id", (col("id") % col("key")).alias("rest"))
    behind, left = observed(failing, "left", n=("count", None))
    program = plan_program(
        query("q", behind.to_stream("out"), settings=Settings(dead_letter_stream="dead"))
    )
    told = Told(lab, program, [seen, left])
    lab.run(program, SOURCES)
    told.tell()
    dead = len(lab.rows("dead"))
    assert dead == sum(number % 7 == 0 for number in range(ROWS))
    assert told.entries == [{"seen": {"n": ROWS - dead}, "left": {"n": ROWS - dead}}]


def test_observing_is_added_and_left_out_where_the_query_is(lab: Laboratory) -> None:
    """It changes no state and no position: the query goes on."""
    plain = scanned().group_by("key").agg(count().alias("n"), mode="update").to_stream("out")
    rows, seen = observed(scanned(), "seen", n=("count", None))
    watched = rows.group_by("key").agg(count().alias("n"), mode="update").to_stream("out")
    few = Settings(step_rows_max=50)
    stored = plan_program(query("q", plain, settings=few))
    program = plan_program(going_on(query("q", watched, settings=few), stored))
    for before, after in itertools.permutations((stored, program)):
        assert compare(before, after).is_compatible
        assert {each.verdict for each in compare(before, after).stages} <= {"kept", "rebuilt"}
    assert Program.from_json(program.to_json()) == program
    process = lab.open(stored, SOURCES)
    steps = itertools.count()
    process.run(until=lambda: next(steps) >= 3)
    process.close()
    lab.run(program, SOURCES)
    told = Told(lab, program, [seen])
    told.tell()
    assert 0 < told.entries[0]["seen"]["n"] < ROWS
    assert sum(row["n"] for row in lab.rows("out")) >= ROWS


def test_a_driver_that_was_followed_by_another_notes_nothing(lab: Laboratory) -> None:
    rows, seen = observed(scanned(), "seen", n=("count", None))
    program = plan_program(query("q", rows.to_stream("out")))
    lab.run(program, SOURCES)
    stored = StoredQuery("11111111-1111-1111-1111-111111111111", "q", program, "out", None)
    with open_log(lab.folder) as log:
        old = Observed(log, program, [seen], begin_run(log, stored).run)
        new = Observed(log, program, [seen], begin_run(log, stored).run)
        assert old.take()
        assert new.take()
        assert old.rows() == new.rows()
        with pytest.raises(QueryActive):
            old.told()
        new.told()
