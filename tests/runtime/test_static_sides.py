"""Static sides in whole programs: which version each row meets, through crashes and refreshes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import Fenced, StaticSideLost
from penstock.expressions.tree import column
from penstock.log import open_log, punit
from penstock.log.contract import Log
from penstock.log.record import RecordKind
from penstock.operators.specs import JoinKey, StaticJoinSpec
from penstock.plan.nodes import step
from penstock.plan.optimizer import plan_program
from penstock.plan.query import Query
from penstock.runtime.markers import decode_marker
from penstock.runtime.static_sides import (
    describe_sides,
    forget_sides,
    goes_by,
    has_version,
    load_version,
    newest_version,
    static_readers,
    trim_versions,
    write_version,
)
from penstock.runtime.streams import StreamWriter, create_stream
from penstock.stages.program import Program
from penstock.stages.settings import Settings
from penstock.stages.tags import marker_tag, substream_tag, vertex_tag
from penstock.testing.plans import Draft, count, parse_schema, query, scan_source, scan_stream
from penstock.testing.single_process import SingleProcess
from tests.runtime.laboratory import UNSYNCED, Laboratory, multiset, table, table_source

SIDE = "static_a"
SCHEMA = pa.schema([("k", pa.int64()), ("version", pa.int64())])
KEY = JoinKey(column("k", "bigint"), column("k", "bigint"))
VERSION = column("version", "bigint")
SETTINGS = Settings(step_rows_max=10, commit_interval_ms=0, checkpoint_interval_commits=3)


def looked_up(rows: Draft, kind: str = "inner", side: str = SIDE) -> Draft:
    spec = StaticJoinSpec(side, kind, (KEY,), (("version", VERSION),))
    return Draft(step(spec, rows.relation))


def static_rows(number: int, keys: Sequence[int] = range(10)) -> pa.RecordBatch:
    columns = [pa.array(keys, pa.int64()), pa.array([number] * len(keys), pa.int64())]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def write(log: Log, number: int, rows: pa.RecordBatch | None = None, name: str = "q") -> int:
    """A version that says in each row which one it is."""
    given = static_rows(number) if rows is None else rows
    return write_version(log, name, SIDE, number, given, punit.Codec.LZ4).number


def over_a_stream(parallelism: int = 1) -> Query:
    read = scan_stream("rows", "k bigint, n bigint")
    return query("q", looked_up(read).to_stream("out"), parallelism=parallelism, settings=SETTINGS)


class _Fed:
    """A query over a stream that grows, in a process that may be lost."""

    def __init__(self, lab: Laboratory, tested: Query) -> None:
        self.lab = lab
        self.program = plan_program(tested)
        self.log = open_log(lab.folder, create=True, config=UNSYNCED)
        create_stream(self.log, "rows", parse_schema("k bigint, n bigint"))
        write(self.log, 1)
        self.process: SingleProcess = lab.open(self.program)
        self.writer = StreamWriter(self.log, "rows", "writer")
        self.rows = 0

    def feed(self, count: int = 20) -> None:
        ks = [n % 10 for n in range(self.rows, self.rows + count)]
        ns = list(range(self.rows, self.rows + count))
        batch = pa.RecordBatch.from_arrays([pa.array(ks), pa.array(ns)], ["k", "n"])
        self.writer.write(batch)
        self.rows += count


def epochs(log: Log, vertex: str) -> list[tuple[int, set[int]]]:
    """For each commit of a vertex that has rows: the version that the marker before it names, and
    the versions that its rows met. Before the first marker it may be any, and is one."""
    tags = [vertex_tag(vertex), substream_tag("out", 0)]
    found, rows, named = [], set(), None
    for record in log.read(tags, 0, 60_000):  # type: ignore[arg-type]
        if record.producer != vertex:
            continue
        if record.kind is RecordKind.DATA:
            rows |= set(punit.decode_record(record).column("version").to_pylist())
        else:
            if rows:
                found.append((min(rows) if named is None else named, rows))
            rows, named = set(), decode_marker(record).statics[SIDE]
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_every_row_meets_one_version_through_crashes(
    lab: Laboratory, parallelism: int, seed: int
) -> None:
    """The same rows as by hand, whoever dies; also in front of partial aggregates."""
    rng = random.Random(seed)
    rows = [(rng.choice([None, *range(14)]), n) for n in range(400)]
    read = scan_source("rows", "k bigint, n bigint", partitions=None)
    counted = looked_up(read).group_by("k").agg(count().alias("rows"), mode="update")
    tested = query(
        "q",
        looked_up(read, "left").to_stream("out"),
        counted.to_stream("counts"),
        parallelism=parallelism,
        settings=SETTINGS,
    )
    with open_log(lab.folder, create=True, config=UNSYNCED) as log:
        write(log, 1)
    sources = {"rows": table_source(table(rows, k=pa.int64(), n=pa.int64()))}
    lab.run_with_crashes(tested, sources, rng, crashes=6, steps_max=20)
    expected = [(k, n, 1 if k in range(10) else None) for k, n in rows]
    assert multiset(lab.rows("out")) == sorted(expected, key=repr)
    last = {row["k"]: row["rows"] for row in lab.rows("counts")}
    assert last == {
        k: sum(1 for j, _ in rows if j == k) for k in {k for k, _ in rows} & set(range(10))
    }


@pytest.mark.parametrize("seed", range(4))
def test_the_rows_of_a_commit_meet_the_version_that_the_marker_before_it_names(
    lab: Laboratory, seed: int
) -> None:
    """A crash at any step, a refresh at any other: rows that are processed again are no others."""
    rng = random.Random(seed)
    fed = _Fed(lab, over_a_stream())
    number = 1
    for _ in range(25):
        chosen = rng.random()
        if chosen < 0.5:
            fed.feed(rng.randrange(1, 30))
        elif chosen < 0.7:
            number += 1
            assert write(fed.log, number) == number
        elif chosen < 0.85:
            fed.process.abandon()
            fed.process = lab.open(fed.program)
        for _ in range(rng.randrange(4)):
            fed.process.host.step()
    fed.process.host.run_available()
    (vertex,) = fed.program.vertices
    found = epochs(fed.log, vertex.name)
    assert all(rows == {named} for named, rows in found)
    assert found[0][0] <= found[-1][0] <= number
    fed.process.abandon()
    assert sorted(row["n"] for row in lab.rows("out")) == list(range(fed.rows))


def test_a_restart_goes_on_with_the_version_of_its_marker(lab: Laboratory) -> None:
    """A version that came while nobody ran is taken with the first commit, before any row."""
    fed = _Fed(lab, over_a_stream())
    fed.feed()
    fed.process.host.run_available()
    fed.process.abandon()
    with open_log(lab.folder, create=True, config=UNSYNCED) as log:
        write(log, 2)
    (vertex,) = fed.program.vertices
    assert lab.markers(vertex.name)[-1].statics == {SIDE: 1}
    fed.process = lab.open(fed.program)
    fed.feed()
    fed.process.host.run_available()
    fed.process.abandon()
    assert {row["n"]: row["version"] for row in lab.rows("out")} == {
        n: 1 if n < 20 else 2 for n in range(40)
    }


def test_an_idle_query_takes_a_new_version_by_itself(lab: Laboratory) -> None:
    fed = _Fed(lab, over_a_stream())
    fed.feed()
    fed.process.host.run_available()
    write(fed.log, 2)
    readers = static_readers(fed.program)[SIDE]
    assert not goes_by(fed.log, SIDE, 2, readers)
    fed.process.host.run_available()
    assert goes_by(fed.log, SIDE, 2, readers)
    fed.process.abandon()


def test_versions_that_no_marker_needs_are_trimmed(lab: Laboratory) -> None:
    fed = _Fed(lab, over_a_stream())
    readers = static_readers(fed.program)[SIDE]
    trim_versions(fed.log, "q", SIDE, readers)  # nobody has said yet what it goes by
    assert has_version(fed.log, "q", SIDE)
    fed.feed()
    fed.process.host.run_available()
    write(fed.log, 2)
    trim_versions(fed.log, "q", SIDE, readers)
    assert load_version(fed.log, "q", SIDE, 1, SCHEMA).batch.num_rows == 10
    fed.process.host.run_available()
    trim_versions(fed.log, "q", SIDE, readers)
    with pytest.raises(StaticSideLost, match="version 1"):
        load_version(fed.log, "q", SIDE, 1, SCHEMA)
    assert load_version(fed.log, "q", SIDE, 2, SCHEMA).batch.equals(static_rows(2))
    fed.process.abandon()


def test_a_version_is_whole_or_not_there(lab: Laboratory) -> None:
    """What a driver left that died before its marker is no part of the next version."""
    with open_log(lab.folder, create=True, config=UNSYNCED) as log:
        write(log, 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("penstock.runtime.outputs.Outputs.commit", _die)
            with pytest.raises(KeyboardInterrupt):
                write(log, 2)
        assert newest_version(log, "q", SIDE).number == 1  # type: ignore[union-attr]
        assert write(log, 3, static_rows(3, [5])) == 2
        assert load_version(log, "q", SIDE, 2, SCHEMA).batch.equals(static_rows(3, [5]))
        with pytest.raises(Fenced):
            write(log, 2)


def _die(*_: Any) -> None:
    raise KeyboardInterrupt


def test_many_units_make_one_version(lab: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.runtime.static_sides.UNIT_BYTES_MAX", 64)
    rows = static_rows(1, range(1000))
    with open_log(lab.folder, create=True, config=UNSYNCED) as log:
        write(log, 1, rows)
        units = log.read([substream_tag(f"q.{SIDE}", 0)], 0, 1000)  # type: ignore[arg-type]
        assert len(units) == 250
        assert load_version(log, "q", SIDE, 1, SCHEMA).batch.equals(rows)
        assert (
            load_version(
                log, "q", SIDE, 1, SCHEMA.empty_table().select(["k"]).schema
            ).batch.num_columns
            == 1
        )


def test_an_empty_side_is_a_version_too(lab: Laboratory) -> None:
    with open_log(lab.folder, create=True, config=UNSYNCED) as log:
        write(log, 1, static_rows(1, []))
        assert load_version(log, "q", SIDE, 1, SCHEMA).batch.num_rows == 0
        assert has_version(log, "q", SIDE)


def test_a_vertex_without_any_version_says_so(lab: Laboratory) -> None:
    program = plan_program(over_a_stream())
    with open_log(lab.folder, create=True, config=UNSYNCED) as log:
        create_stream(log, "rows", parse_schema("k bigint, n bigint"))
    with pytest.raises(StaticSideLost, match="no version"):
        lab.open(program)


def test_a_side_that_the_query_lost_goes_once_no_marker_names_it(lab: Laboratory) -> None:
    fed = _Fed(lab, over_a_stream())
    fed.feed()
    fed.process.host.run_available()
    fed.process.abandon()
    read = scan_stream("rows", "k bigint, n bigint")
    other = plan_program(
        query("q", looked_up(read, side="static_b").to_stream("out"), settings=SETTINGS)
    )
    with open_log(lab.folder, create=True, config=UNSYNCED) as log:
        forget_sides(log, other)
        assert has_version(log, "q", SIDE)  # whoever goes back to the old query needs it
        write_version(log, "q", "static_b", 1, static_rows(7), punit.Codec.LZ4)
    with lab.open(other) as process:
        process.host.run_available()
        fed.feed()
        process.host.run_available()
        forget_sides(process.log, other)
        assert not has_version(process.log, "q", SIDE)
        assert has_version(process.log, "q", "static_b")
        assert write(process.log, 9) == 2
        assert len(process.log.read([marker_tag(f"q.{SIDE}")], 0, 9)) == 2  # type: ignore[arg-type]


def test_sides_in_words(lab: Laboratory) -> None:
    program: Program = plan_program(over_a_stream())
    with open_log(lab.folder, create=True, config=UNSYNCED) as log:
        assert "not computed yet" in describe_sides(log, program)[SIDE]
        write(log, 1)
        assert describe_sides(log, program)[SIDE].startswith("version 1: 10 rows, 160 bytes")
