"""Outputs: what is large goes out early and stays invisible, and nothing is too large for a log."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.kernels.hashing import hash_columns
from penstock.log import LocalLog, open_log, punit, take_over
from penstock.log.committed import CommittedReader
from penstock.log.contract import APPEND_ENTRIES_MAX
from penstock.log.record import START, Fence, RecordKind
from penstock.runtime.outputs import UNIT_BYTES_MAX, Outputs, partitioner
from penstock.stages.key_ranges import split_key_space
from penstock.stages.settings import Settings
from penstock.testing.columns import col
from penstock.testing.plans import count, query, scan_source
from tests.runtime.laboratory import UNSYNCED, Laboratory, multiset, table, table_source


@pytest.fixture
def log(tmp_path: Path) -> LocalLog:
    return open_log(tmp_path / "log", create=True, config=UNSYNCED)


def outputs(log: LocalLog, vertex: str = "v") -> Outputs:
    return Outputs(log, Fence(vertex, take_over(log, vertex)), punit.Codec.NONE)


def read(log: LocalLog, *tags: str) -> list[pa.RecordBatch]:
    reader = CommittedReader(log, tags)
    batches = []
    while (release := reader.take()) is not None:
        batches += [punit.decode(record.body) for record in release.records]
    return batches


def test_rows_that_went_out_early_are_invisible_until_their_marker(log: LocalLog) -> None:
    out = outputs(log)
    for number in range(3):
        out.add(RecordKind.DATA, "S/a/0", pa.record_batch({"x": [number]}))
        out.append_early()
        assert read(log, "S/a/0", "S/a/m") == []
    out.commit(("S/a/m",), b"marker")
    assert [b.column("x").to_pylist() for b in read(log, "S/a/0", "S/a/m")] == [[0], [1], [2]]
    log.close()


def test_what_a_dead_instance_left_behind_is_never_read(log: LocalLog) -> None:
    dead = outputs(log)
    dead.add(RecordKind.DATA, "S/a/0", pa.record_batch({"x": [666]}))
    dead.append_early()
    alive = outputs(log)
    alive.add(RecordKind.DATA, "S/a/0", pa.record_batch({"x": [1]}))
    alive.commit(("S/a/m",), b"marker")
    assert [b.column("x").to_pylist() for b in read(log, "S/a/0", "S/a/m")] == [[1]]
    log.close()


def test_small_batches_of_a_commit_share_a_unit(log: LocalLog) -> None:
    out = outputs(log)
    for number in range(50):
        out.add(RecordKind.DATA, "S/a/0", pa.record_batch({"x": [number]}))
    out.commit(("S/a/m",), b"marker")
    (unit,) = read(log, "S/a/0", "S/a/m")
    assert unit.column("x").to_pylist() == list(range(50))
    log.close()


def test_a_large_batch_becomes_several_units_in_order(log: LocalLog) -> None:
    numbers = np.arange(3 * UNIT_BYTES_MAX // 8 + 5)
    out = outputs(log)
    out.add(RecordKind.DATA, "S/a/0", pa.record_batch({"x": pa.array(numbers)}))
    out.commit(("S/a/m",), b"marker")
    units = read(log, "S/a/0", "S/a/m")
    assert len(units) == 4
    assert all(unit.nbytes <= UNIT_BYTES_MAX for unit in units)
    assert np.array_equal(np.concatenate([unit.column("x").to_numpy() for unit in units]), numbers)
    log.close()


def test_a_commit_of_more_entries_than_one_append_takes_is_still_one_commit(log: LocalLog) -> None:
    tags = [f"S/a/{index}" for index in range(APPEND_ENTRIES_MAX + 10)]
    out = outputs(log)
    for index, tag in enumerate(tags):
        out.add(RecordKind.DATA, tag, pa.record_batch({"x": [index]}))
    before = log.statistics().appends
    marker = out.commit(("S/a/m",), b"marker")
    assert log.statistics().appends - before == 2
    assert marker == log.tail() == len(tags) + 1
    for index in (0, APPEND_ENTRIES_MAX - 2, APPEND_ENTRIES_MAX - 1, len(tags) - 1):
        (unit,) = read(log, tags[index], "S/a/m")
        assert unit.column("x").to_pylist() == [index]
    log.close()


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_every_row_goes_to_the_substream_that_owns_its_hash(parts: int) -> None:
    tags = tuple(f"S/a/{index}" for index in range(parts))
    batch = pa.record_batch({"key": [None, *range(200)], "text": [str(i) for i in range(201)]})
    dealt = partitioner(tags, ("key", "text"))(batch)
    assert sum(part.num_rows for _, part in dealt) == batch.num_rows
    ranges = dict(zip(tags, split_key_space(parts), strict=True))
    for tag, part in dealt:
        assert sorted(rows := [int(text) for text in part.column("text").to_pylist()]) == rows
        low, high = ranges[tag]
        hashes = hash_columns(part.columns, part.num_rows)
        assert ((hashes >= low) & (hashes < high)).all() or parts == 1


@pytest.mark.parametrize(("seed", "parallelism"), [(1, 1), (2, 2)])
def test_early_appends_in_a_whole_query_change_nothing_but_the_number_of_appends(
    lab: Laboratory, seed: int, parallelism: int
) -> None:
    rng = random.Random(seed)
    values = [rng.randrange(50) for _ in range(500)]
    rows = table([(value,) for value in values], value=pa.int64())
    scanned = scan_source("rows", "value bigint not null", partitions=None)
    counts = scanned.group_by("value").agg(count().alias("n"), mode="update")
    tested = query(
        "early",
        scanned.select((col("value") + 1).alias("next")).to_stream("out"),
        counts.to_stream("counts"),
        parallelism=parallelism,
        settings=Settings(
            early_append_bytes_max=1, commit_interval_ms=200, step_rows_max=20,
            checkpoint_interval_commits=2,
        ),
    )  # fmt: skip
    sources = {"rows": table_source(rows)}
    process = lab.open(tested, sources)
    for _ in range(6):
        process.host.step()
    early = sum(facts.early_appends for facts in process.statistics().vertices.values())
    assert early > 0
    process.abandon()
    lab.run_with_crashes(tested, sources, rng, crashes=3)
    assert multiset(lab.rows("out")) == sorted(((value + 1,) for value in values), key=repr)
    assert {row["value"]: row["n"] for row in lab.rows("counts")} == Counter(values)


# --- texts with codes -----------------------------------------------------------------------------


def repeated(texts: list[str], times: int) -> pa.RecordBatch:
    return pa.record_batch({"key": pa.array(texts * times).dictionary_encode()})


def coded_texts(log: LocalLog, *tags: str) -> list[list[str] | None]:
    """The texts of each unit that has codes; None for one that has values."""
    columns = [
        punit.decode(record.body, coded={"key"}).column("key")
        for record in log.read(tags, after=START, limit=100)
        if record.kind is RecordKind.DATA
    ]
    return [c.dictionary.to_pylist() if pa.types.is_dictionary(c.type) else None for c in columns]


def test_texts_keep_their_codes_from_stage_to_stage_only(log: LocalLog) -> None:
    fence = Fence("v", take_over(log, "v"))
    out = Outputs(log, fence, punit.Codec.NONE, lambda tag: tag == "S/b/0")
    for tag in ("S/a/0", "S/b/0"):
        out.add(RecordKind.DATA, tag, repeated(["x", "y"], 3))
    out.commit(("S/a/m", "S/b/m"), b"marker")
    assert coded_texts(log, "S/a/0") == [["x", "y"]]
    assert coded_texts(log, "S/b/0") == [None]
    log.close()


def test_batches_of_a_commit_share_a_unit_whatever_their_codes(log: LocalLog) -> None:
    out = outputs(log)
    for texts in (["x", "y"], ["y", "z"], ["z", "x"]):
        out.add(RecordKind.DATA, "S/a/0", repeated(texts, 2))
    out.commit(("S/a/m",), b"marker")
    assert coded_texts(log, "S/a/0") == [["x", "y", "z"]]
    (rows,) = read(log, "S/a/0", "S/a/m")
    assert rows.column("key").to_pylist() == ["x", "y"] * 2 + ["y", "z"] * 2 + ["z", "x"] * 2
    log.close()


def test_texts_that_are_larger_than_a_unit_are_written_as_values(log: LocalLog) -> None:
    """Cut in two, a batch with codes would have all texts in both halves, and so on."""
    texts = [str(number) * (UNIT_BYTES_MAX // 4) for number in range(5)]
    out = outputs(log)
    out.add(RecordKind.DATA, "S/a/0", repeated(texts, 2))
    out.commit(("S/a/m",), b"marker")
    found = read(log, "S/a/0", "S/a/m")
    assert [text for unit in found for text in unit.column("key").to_pylist()] == texts * 2
    assert len(found) < 10
    log.close()


def test_codes_are_kept_where_rows_fill_several_units(log: LocalLog) -> None:
    out = outputs(log)
    rows = UNIT_BYTES_MAX // 2  # of four bytes each
    out.add(RecordKind.DATA, "S/a/0", repeated(["x", "y"], rows // 2))
    out.commit(("S/a/m",), b"marker")
    units = coded_texts(log, "S/a/0")
    assert len(units) > 1
    assert set(map(tuple, units)) == {("x", "y")}
    assert sum(unit.num_rows for unit in read(log, "S/a/0", "S/a/m")) == rows
    log.close()


@pytest.mark.parametrize("codec", [punit.Codec.NONE, punit.Codec.ADAPTIVE])
def test_long_texts_with_few_codes_fit_a_reader_that_wants_values(
    log: LocalLog, codec: punit.Codec
) -> None:
    """A few hundred kilobytes of codes and texts, which are more than a unit may hold as values."""
    texts = [letter * 20_000 for letter in "abc"]
    out = Outputs(log, Fence("v", take_over(log, "v")), codec)
    out.add(RecordKind.DATA, "S/a/0", repeated(texts, 5_000))
    out.commit(("S/a/m",), b"marker")
    assert len(coded_texts(log, "S/a/0")) > 4
    found = [len(unit) for unit in read(log, "S/a/0", "S/a/m")]
    assert sum(found) == 15_000
    log.close()
