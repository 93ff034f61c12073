"""Files while they appear, beside Spark's batch over them, and its streams over files of no row."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from penstock.catalyst.translate import translate
from penstock.testing.memory_log import MemoryLog
from tests.oracle.engine import Manner, program_of, run
from tests.oracle.events import event_rows
from tests.oracle.verdict import as_mode, differences, plain, static_frame
from tests.thoroughness import some

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PLAIN = (
    "id bigint, url string, ts timestamp, fee decimal(8,2), flag boolean, n int, ratio double, "
    "day date"
)
# What a file of each format holds.
NESTED = f"{PLAIN}, tags array<string>, st struct<n:int,w:string>"
COLUMNS = {
    "parquet": f"{NESTED}, single float, tiny tinyint",
    "json": NESTED,
    "csv": PLAIN,
    "text": "value string",
}
FILES = 4
# JSON has no word for numbers that are not finite: lines with one are refused here.
_SHAPED = {
    "text": ["coalesce(url, '') AS value"],
    "json": ["* EXCEPT (ratio)", "if(abs(ratio) < 1e300, ratio, 0.5D) AS ratio"],
}


def _pieces(spark: SparkSession, name: str, seed: int) -> list[DataFrame]:
    """What the files hold, one piece of rows each."""
    rows = pa.Table.from_batches([event_rows(seed, 120)])
    names = [column.split()[0] for column in PLAIN.split(", ")]
    if "tags" in COLUMNS[name]:
        names += ["tags", "st"]
    if "tiny" in COLUMNS[name]:
        names += ["single", "tiny"]
    size = rows.num_rows // FILES
    frames = [
        static_frame(spark, rows.slice(size * number, size).select(names))
        for number in range(FILES)
    ]
    shape = _SHAPED.get(name)
    return frames if shape is None else [frame.selectExpr(*shape) for frame in frames]


@pytest.mark.parametrize("name", some(sorted(COLUMNS), every=2))
def test_files_that_spark_wrote(spark: SparkSession, tmp_path: Path, name: str) -> None:
    rng = random.Random(name)
    folder = tmp_path / "files"
    pieces = [
        piece.coalesce(1).write.mode("append").format(name)
        for piece in _pieces(spark, name, rng.randrange(1 << 30))
    ]
    pieces[0].save(str(folder))
    streaming = spark.readStream.schema(COLUMNS[name]).format(name).load(str(folder))
    translated = translate(streaming, query="files")
    manner = Manner.drawn(rng)
    feeds = [lambda: None, *(partial(piece.save, str(folder)) for piece in pieces[1:])]
    program = program_of(translated, manner)
    outcome = run(program, MemoryLog(), feeds, tmp_path / "checkpoints", manner)
    answer = spark.read.schema(COLUMNS[name]).format(name).load(str(folder)).toArrow()
    assert answer.num_rows == 120
    assert not differences(as_mode(plain(outcome.rows), "append", 0, 0), plain(answer))


@pytest.mark.parametrize("mode", some(["complete", "update"], every=2))
@pytest.mark.parametrize("name", some(["json", "parquet", "csv"], every=3))
def test_files_without_rows_are_input(
    spark: SparkSession, tmp_path: Path, name: str, mode: str
) -> None:
    """An aggregate without keys has a row after each file, as Spark has after each micro-batch."""
    rng = random.Random(f"{name} {mode}")
    folder = tmp_path / "files"
    folder.mkdir()
    options = {"header": "true"} if name == "csv" else {}
    reader = spark.readStream.schema("n bigint").format(name).options(**options)
    totals = reader.load(str(folder)).groupBy().agg(F.count("*").alias("c"), F.sum("n").alias("s"))
    theirs: list[tuple[int, int | None]] = []

    def put(number: int, numbers: list[int]) -> None:
        table, hidden = pa.table({"n": pa.array(numbers, pa.int64())}), folder / f".{number}"
        if name == "parquet":
            pq.write_table(table, hidden)
        else:
            lines = [str(n) if name == "csv" else f'{{"n":{n}}}' for n in numbers]
            hidden.write_text("".join(f"{line}\n" for line in ["n"][: name == "csv"] + lines))
        hidden.rename(folder / str(number))

    def feed(number: int, numbers: list[int]) -> None:
        put(number, numbers)
        writer = totals.writeStream.outputMode(mode).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / "spark"))
        query = writer.foreachBatch(
            lambda rows, _: theirs.extend((row["c"], row["s"]) for row in rows.collect())
        ).start()
        query.awaitTermination(120)

    feeds = [partial(feed, number, rows) for number, rows in enumerate([[], [1, 2], [], [3]])]
    manner = Manner.drawn(rng)
    program = program_of(translate(totals, output_mode=mode, query="files"), manner)
    outcome = run(program, MemoryLog(), [lambda: None, *feeds], tmp_path / "checkpoints", manner)
    ours = [(row["c"], row["s"]) for row in outcome.rows.to_pylist()]
    assert ours == theirs == [(0, None), (2, 3), (2, 3), (3, 6)]
