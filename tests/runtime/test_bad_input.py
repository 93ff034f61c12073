"""Bad input: a named error that says where, nothing committed lost, and a way to go on."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import (
    InvalidOffset,
    MalformedInput,
    RowError,
    SourceChanged,
    SourceShrunk,
    SourceVanished,
    StageVersionUnsupported,
    StateTooLarge,
    StreamConflict,
    StreamError,
    StreamInputError,
    StreamNotFound,
    UnsupportedPlan,
)
from penstock.log import open_log, punit
from penstock.log.record import Entry, Fence, RecordKind
from penstock.plan.optimizer import plan_program
from penstock.plan.query import Query
from penstock.runtime.markers import Marker
from penstock.runtime.streams import StreamWriter, create_stream
from penstock.stages.program import Program
from penstock.stages.settings import MIB, Settings
from penstock.testing.columns import apply, col
from penstock.testing.plans import Draft, count, parse_schema, query, scan_source, scan_stream
from tests.runtime.laboratory import Laboratory, table, table_source

NUMBERS = "id bigint not null, a bigint, b bigint, word string"


def copied(rows: Draft, name: str = "copy", **settings: Any) -> Query:
    return query(name, rows.to_stream("out"), settings=Settings(**settings))


def ids(lab: Laboratory, stream: str = "out") -> list[int]:
    return sorted(row["id"] for row in lab.rows(stream))


# --- streams --------------------------------------------------------------------------------------


def test_a_stream_that_nobody_described_is_refused_by_name(lab: Laboratory) -> None:
    with open_log(lab.folder, create=True) as log:
        create_stream(log, "orders", parse_schema(NUMBERS))
    with pytest.raises(StreamNotFound, match=r"no stream 'oders'.*known: orders"):
        lab.open(copied(scan_stream("oders", NUMBERS)))
    with open_log(lab.folder) as log:
        assert log.keys("stream") == ["stream/orders"]  # the refused query left nothing


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("id bigint not null, a string", "a"),
        ("id bigint not null, total bigint", "no column total"),
        ("id int not null", "id"),
    ],
)
def test_a_stream_with_other_columns_is_refused_before_anything_runs(
    lab: Laboratory, schema: str, reason: str
) -> None:
    with open_log(lab.folder, create=True) as log:
        create_stream(log, "orders", parse_schema(NUMBERS))
    with pytest.raises(StreamInputError, match=reason) as caught:
        lab.open(copied(scan_stream("orders", schema)))
    assert caught.value.details["stream"] == "orders"


def test_another_number_of_substreams_is_refused(lab: Laboratory) -> None:
    with open_log(lab.folder, create=True) as log:
        create_stream(log, "orders", parse_schema(NUMBERS))
    with pytest.raises(StreamInputError, match="1 substreams, the query reads 3"):
        lab.open(copied(scan_stream("orders", NUMBERS, substreams=3)))


def test_an_output_stream_of_somebody_else_with_other_columns_is_refused(lab: Laboratory) -> None:
    with open_log(lab.folder, create=True) as log:
        create_stream(log, "orders", parse_schema(NUMBERS))
        create_stream(log, "out", parse_schema("name string"))
    with pytest.raises(StreamConflict, match="out is there already"):
        lab.open(copied(scan_stream("orders", NUMBERS)))


def write_rows(lab: Laboratory, rows: list[tuple[Any, ...]], ended: bool = False) -> None:
    batch = table(rows, id=pa.int64(), a=pa.int64(), b=pa.int64(), word=pa.string())
    with open_log(lab.folder, create=True) as log:
        create_stream(log, "orders", parse_schema(NUMBERS))
        writer = StreamWriter(log, "orders", "shop")
        for part in batch.to_batches():
            writer.write(part, ended=ended)


def test_a_unit_that_breaks_the_streams_promise_stops_the_vertex_at_its_position(
    lab: Laboratory,
) -> None:
    write_rows(lab, [(1, 1, 1, "x"), (2, 2, 2, "y")])
    with open_log(lab.folder) as log:
        rogue = punit.encode(pa.RecordBatch.from_pydict({"id": ["not a number"]}))
        marker = Marker(vertex="rogue", instance=1, epoch=1)
        log.put("instance/rogue", b"1")
        (position, _) = log.append(
            [
                Entry(RecordKind.DATA, ("S/orders/0",), "rogue", 1, 0, rogue),
                Entry(RecordKind.MARKER, ("S/orders/m",), "rogue", 1, 1, marker.encode()),
            ],
            Fence("rogue", 1),
        )
    process = lab.open(
        copied(scan_stream("orders", NUMBERS), step_rows_max=1, commit_interval_ms=0)
    )
    with pytest.raises(StreamInputError, match=f"position {position} .*written by rogue") as caught:
        process.run()
    process.abandon()
    assert caught.value.details["position"] == position
    assert ids(lab) == [1, 2]  # what came before it is committed and stays so


# --- rows -----------------------------------------------------------------------------------------

BIG = 2**63 - 1
FAILING = {
    "overflow": ((col("a") + col("b")).alias("r"), (7, BIG, 1, "7")),
    "division": (apply("int_divide", col("a"), col("b")).alias("r"), (7, 7, 0, "7")),
    "cast": (col("word").cast("bigint").alias("r"), (7, 7, 1, "seven")),
}


def numbers(rows: list[tuple[Any, ...]]) -> pa.Table:
    return table(rows, id=pa.int64(), a=pa.int64(), b=pa.int64(), word=pa.string())


def failing_query(kind: str, dead: str | None = None) -> Query:
    expression, _ = FAILING[kind]
    rows = scan_source("rows", NUMBERS, partitions=1).select("id", expression)
    return copied(rows, step_rows_max=3, commit_interval_ms=0, dead_letter_stream=dead)


@pytest.mark.parametrize("kind", FAILING)
def test_a_row_that_fails_is_named_and_what_came_before_stays(lab: Laboratory, kind: str) -> None:
    rows: list[tuple[Any, ...]] = [(i, i, 1, str(i)) for i in range(10)]
    rows[7] = FAILING[kind][1]
    sources = {"rows": table_source(numbers(rows))}
    process = lab.open(failing_query(kind), sources)
    with pytest.raises(RowError) as caught:
        process.run()
    process.abandon()
    details = caught.value.details
    assert (details["row"], details["origin"]) == (1, "source offset 6")
    assert details["vertex"].startswith("copy.read_rows_")
    assert "dead-letter stream" in caught.value.message
    assert ids(lab) == list(range(6))
    # It is no use to try again: the same row fails in the same way.
    process = lab.open(failing_query(kind), sources)
    with pytest.raises(RowError):
        process.run()
    process.abandon()
    assert ids(lab) == list(range(6))
    # With a dead-letter stream the query goes on where it stopped.
    lab.run(failing_query(kind, dead="dead"), sources)
    assert ids(lab) == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    (dead,) = lab.rows("dead")
    used = [name for name in ("id", "a", "b", "word") if name in dead]
    given = dict(zip(("id", "a", "b", "word"), rows[7], strict=True))
    assert {name: dead[name] for name in used} == {name: given[name] for name in used}
    assert set(used) >= ({"id", "word"} if kind == "cast" else {"id", "a", "b"})
    assert dead["error"]


def test_a_failing_row_of_a_stream_is_named_by_stream_and_position(lab: Laboratory) -> None:
    write_rows(lab, [(1, 4, 2, ""), (2, 4, 0, "")], ended=True)
    rows = scan_stream("orders", NUMBERS).select("id", FAILING["division"][0])
    process = lab.open(copied(rows))
    with pytest.raises(RowError, match=r"row 1 of S/orders/0 position 1"):
        process.run()
    process.abandon()


def test_a_failing_row_is_named_by_the_write_that_it_came_with(lab: Laboratory) -> None:
    for rows in ([(1, 4, 2, "")] * 3, [(2, 4, 2, ""), (3, 4, 0, "")]):
        write_rows(lab, rows, ended=False)
    rows = scan_stream("orders", NUMBERS).select("id", FAILING["division"][0])
    process = lab.open(copied(rows))
    with pytest.raises(RowError, match=r"row 1 of S/orders/0 position 3 fails: row 1: "):
        process.run_available()
    process.abandon()


@pytest.mark.parametrize(("seed", "parallelism"), [(1, 1), (2, 2), (3, 3)])
def test_each_row_is_processed_or_dead_lettered_exactly_once(
    lab: Laboratory, seed: int, parallelism: int
) -> None:
    rng = random.Random(seed)
    rows = [(i, rng.randrange(100), rng.choice((0, 1, 2)), "") for i in range(300)]
    divided = scan_source("rows", NUMBERS, partitions=None).select(
        "id", "b", apply("int_divide", col("a"), col("b")).alias("r")
    )
    counts = divided.group_by("b").agg(count("r").alias("n"), mode="update")
    tested = query(
        "letters",
        divided.to_stream("out"),
        counts.to_stream("counts"),
        parallelism=parallelism,
        settings=Settings(
            step_rows_max=17,
            commit_interval_ms=rng.choice((0, 2)),
            dead_letter_stream="dead",
            checkpoint_interval_commits=4,
        ),
    )
    lab.run_with_crashes(tested, {"rows": table_source(numbers(rows))}, rng)
    bad = [row[0] for row in rows if row[2] == 0]
    assert ids(lab) == [row[0] for row in rows if row[2]]
    assert ids(lab, "dead") == bad
    found = {row["b"]: row["n"] for row in lab.rows("counts")}
    assert found == {b: sum(row[2] == b for row in rows) for b in (1, 2)}


def test_a_dead_letter_has_all_columns_of_its_row_whatever_else_has_their_names(
    lab: Laboratory,
) -> None:
    """A column of another type elsewhere, and one that is called as what is told of the row."""
    schema = "id bigint not null, b bigint, word string, error string"
    divided = scan_source("rows", schema, partitions=None).select(
        "b", "word", "error", apply("int_divide", col("id"), col("b")).alias("r")
    )
    counts = divided.group_by("b", "error", "r").agg(count("word").alias("word"), mode="update")
    failing = counts.select(
        "b", apply("int_divide", col("word"), apply("subtract", col("b"), 1)).alias("x")
    )
    tested = query(
        "letters", failing.to_stream("out"), settings=Settings(dead_letter_stream="dead")
    )
    rows = table(
        [(1, 0, "zero", "e"), (2, 1, "one", "f")],
        id=pa.int64(), b=pa.int64(), word=pa.string(), error=pa.string(),
    )  # fmt: skip
    with lab.open(tested, {"rows": table_source(rows)}) as process:
        process.run_available()
    found = [{k: v for k, v in row.items() if v is not None} for row in lab.rows("dead")]
    came, made = sorted(found, key=lambda row: row["b"])
    assert "in (id div b)" in came.pop("error")
    assert "in (word div (b - 1L))" in made.pop("error")
    assert came == {"id": 1, "b": 0, "word#string": "zero", "error#string": "e"}
    assert made.pop("operator").startswith("aggregate")
    assert made == {"b": 1, "word#bigint": 1, "error#string": "f", "r": 2}


# --- files ----------------------------------------------------------------------------------------


def write_lines(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def folder_query(folder: Path, dead: str | None = None, **options: Any) -> Query:
    rows = scan_source(
        "folder",
        "id bigint",
        partitions=1,
        format="jsonl",
        path=str(folder),
        bounded=True,
        settle_ms=0,
        **options,
    )
    return copied(rows, step_rows_max=5, commit_interval_ms=0, dead_letter_stream=dead)


def test_a_malformed_line_is_named_with_its_file_and_line(lab: Laboratory, tmp_path: Path) -> None:
    lines = [json.dumps({"id": i}) for i in range(20)]
    lines[12] = '{"id": oops'
    write_lines(tmp_path / "in" / "one.jsonl", lines)
    process = lab.open(folder_query(tmp_path / "in"))
    with pytest.raises(MalformedInput, match=r"line 13 of one\.jsonl"):
        process.run()
    process.abandon()
    assert ids(lab) == list(range(10))


@pytest.mark.parametrize("seed", range(2))
def test_malformed_lines_go_to_the_dead_letters_exactly_once(
    lab: Laboratory, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    lines = [json.dumps({"id": i}) if rng.random() < 0.8 else f"broken {i}" for i in range(60)]
    write_lines(tmp_path / "in" / "one.jsonl", lines)
    lab.run_with_crashes(folder_query(tmp_path / "in", dead="dead"), {}, rng)
    assert ids(lab) == [i for i, line in enumerate(lines) if line.startswith("{")]
    dead = sorted(row["line"] for row in lab.rows("dead"))
    assert dead == [i + 1 for i, line in enumerate(lines) if line.startswith("broken")]


def _shrink(path: Path) -> None:
    path.write_text('{"id": 0}\n')


@pytest.mark.parametrize(
    ("harm", "error"), [(Path.unlink, SourceVanished), (_shrink, SourceShrunk)]
)
def test_a_file_that_vanishes_or_shrinks_between_steps(
    lab: Laboratory, tmp_path: Path, harm: Any, error: type[StreamError]
) -> None:
    path = tmp_path / "in" / "one.jsonl"
    lines = [json.dumps({"id": i}) for i in range(40)]
    write_lines(path, lines)
    process = lab.open(folder_query(tmp_path / "in"))
    for _ in range(3):
        process.host.step()
    process.abandon()
    before = ids(lab)
    assert before == list(range(len(before)))
    assert 0 < len(before) < 40
    aside = path.read_text()
    stat = path.stat()
    harm(path)
    process = lab.open(folder_query(tmp_path / "in"))
    with pytest.raises(error, match=r"one\.jsonl"):
        process.run()
    process.abandon()
    assert ids(lab) == before
    path.write_text(aside)  # put back as it was: the query goes on as if nothing had been
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    lab.run(folder_query(tmp_path / "in"))
    assert ids(lab) == list(range(40))


@pytest.mark.parametrize(("way", "last"), [("skip", None), ("continue", 50)])
def test_a_file_that_grew_stops_the_query_until_it_is_told_how_to_go_on(
    lab: Laboratory, tmp_path: Path, way: str, last: int | None
) -> None:
    path = tmp_path / "in" / "one.jsonl"
    write_lines(path, [json.dumps({"id": i}) for i in range(40)])
    process = lab.open(folder_query(tmp_path / "in"))
    for _ in range(3):
        process.host.step()
    process.abandon()
    before = ids(lab)
    assert 0 < len(before) < 40
    write_lines(path, [json.dumps({"id": i}) for i in range(50)])
    for _ in range(2):
        process = lab.open(folder_query(tmp_path / "in"))
        with pytest.raises(SourceChanged, match=r"one\.jsonl.*changedFiles"):
            process.run()
        process.abandon()
    lab.run(folder_query(tmp_path / "in", changed=way))
    assert ids(lab) == list(range(last if last is not None else len(before)))


# --- state, programs, connectors ------------------------------------------------------------------


def test_more_keys_than_memory_is_a_named_error_and_the_log_stays_usable(lab: Laboratory) -> None:
    rows = numbers([(i, i % 50_000, 1, "") for i in range(60_000)])
    sources = {"rows": table_source(rows)}

    def tested(bytes_max: int) -> Query:
        counted = scan_source("rows", NUMBERS, partitions=1).group_by("a")
        settings = Settings(step_rows_max=5_000, commit_interval_ms=0, state_bytes_max=bytes_max)
        return query("wide", counted.agg(count().alias("n"), mode="update").to_stream("out"),
                     settings=settings)  # fmt: skip

    process = lab.open(tested(2 * MIB), sources)
    with pytest.raises(StateTooLarge, match="aggregate0") as told:
        process.run()
    process.abandon()
    for said in (
        "query wide, stage count_by_a",
        "wide.count_by_a",
        "bound of 2097152",
        "watermark",
    ):
        assert said in told.value.message
    with pytest.raises(StateTooLarge, match=r"stage count_by_a.*larger stateBytesMax"):
        lab.open(tested(1 * MIB), sources).run()
    some = lab.rows("out")
    assert some
    assert all(row["n"] == 1 for row in some)
    lab.run(tested(64 * MIB), sources)
    last = {row["a"]: row["n"] for row in lab.rows("out")}
    assert last == {key: 2 if key < 10_000 else 1 for key in range(50_000)}


def test_a_program_of_a_newer_version_is_refused(lab: Laboratory) -> None:
    program = plan_program(copied(scan_source("rows", NUMBERS)))
    facts = json.loads(program.to_json())
    facts["version"] += 1
    with pytest.raises(StageVersionUnsupported):
        Program.from_json(json.dumps(facts))


def test_an_unknown_connector_is_refused_and_the_known_ones_are_listed(lab: Laboratory) -> None:
    with pytest.raises(UnsupportedPlan, match=r"'carrier_pigeon'; known here: .*nexmark"):
        lab.open(copied(scan_source("carrier_pigeon", NUMBERS)))


def test_an_offset_of_another_source_is_refused(lab: Laboratory) -> None:
    rows = numbers([(i, i, 1, "") for i in range(20)])
    tested = copied(scan_source("rows", NUMBERS, partitions=1), step_rows_max=10)
    process = lab.open(tested, {"rows": table_source(rows)})
    process.host.step()
    process.close()
    with pytest.raises(InvalidOffset, match="not one of this source"):
        lab.run(
            replace(tested, settings=Settings(step_rows_max=5)),
            {"rows": table_source(rows.slice(0, 3))},
        )
