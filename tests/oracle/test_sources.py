"""Files as Spark writes them: streaming here while they appear, and in Spark's batch."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.catalyst.translate import translate
from penstock.log.memory import MemoryLog
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
