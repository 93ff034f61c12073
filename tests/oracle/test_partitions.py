"""Folders whose names are values, and patterns of folders, beside Spark's batch over them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.catalyst.translate import translate
from penstock.testing.memory_log import MemoryLog
from tests.oracle.engine import Manner, program_of, run
from tests.oracle.verdict import as_mode, differences, plain
from tests.thoroughness import some

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Case:
    """Files, each with its number in column v, and how they are read."""

    name: str
    files: tuple[str, ...]
    schema: str = "v bigint"
    path: str = ""
    options: dict[str, str] = field(default_factory=dict)
    has_base: bool = False
    zone: str = "UTC"
    where: str = "true"
    select: str = "*"
    format: str = "json"


def _typed(name: str, kind: str, *texts: str, zone: str = "UTC") -> Case:
    return Case(name, tuple(f"k={text}/f" for text in texts), f"v bigint, k {kind}", zone=zone)


FACTS = ", ".join(
    f"_metadata.file_{name}"
    for name in ("path", "name", "size", "block_start", "block_length", "modification_time")
)
DAYS = ("day=2024-01-01/h=3/f", "day=2024-01-02/h=04/f", "day=__HIVE_DEFAULT_PARTITION__/h=5/f")
CASES = [
    Case("inferred types", DAYS),
    Case("types of the schema", DAYS, "v bigint, h string, day string"),
    Case("a type of the schema, in other letters", DAYS, "H bigint, v bigint"),
    Case("columns that are not wanted", DAYS, select="h"),
    Case("partitions that a filter leaves out", DAYS, where="day = date'2024-01-02'"),
    Case("partitions that a filter on two leaves out", DAYS, where="h > 3 AND day IS NULL"),
    Case("one of the folders", DAYS, path="day=2024-01-01"),
    Case("one of the folders with its base", DAYS, path="day=2024-01-01", has_base=True),
    Case("a pattern of partitions", DAYS, path="*/h=*"),
    Case("a pattern of partitions with a base", DAYS, path="day=2024*", has_base=True),
    Case("a pattern of files", DAYS, path="*/{h=3,h=5}/?", has_base=True),
    Case("flat", DAYS, options={"recursiveFileLookup": "true"}),
    Case("a name as a partition that is in the files", ("v=7/f", "v=8/f"), "w bigint, v string"),
    Case("no other column", ("v=7/f", "v=8/f"), "v bigint"),
    Case("a file beside partitions", ("f", "k=1/f", "k=2/f")),
    Case("a folder above partitions", ("r/k=1/f", "r/k=2/f")),
    Case("a folder below partitions", ("k=1/r/f", "k=2/f")),
    Case("folders that are none", ("f", "r/f", "_r/f")),
    Case("patterns of folders that are none", ("f", "r/f", "_r/f", "r/_f", "s/t/f"), path="*"),
    Case("a pattern across folders", ("a/f", "b/c/f", "b/d/f"), path="{a,b/c}"),
    Case("sets of characters", ("d1/f", "d2/f", "d3/f", "dx/f"), path="d[1-3]"),
    Case("sets of other characters", ("d1/f", "d2/f", "dx/f"), path="d[^1-3]"),
    Case("a pattern of names", ("a.x", "b.x", "c.y"), options={"pathGlobFilter": "{a,c}.[xy]"}),
    Case("hidden names", ("_k=1/f", "_k=2/_f", ".k=3/f", "_k=4/f._COPYING_")),
    Case("escapes", ("k=a%2Fb/f", "k=%41%zz/f", "k=x=y/f", "K=%C3%A4/f", "k=ä/f", "k=a%/f")),
    Case("mixed types", ("k=1/f", "k=a/f", "k=2.5/f")),
    Case("larger numbers", ("k=1/f", "k=12345678901/f")),
    Case("fractions", ("k=1/f", "k=2.5/f", "k=NaN/f")),
    Case("times", ("k=2024-01-01 10%3A11%3A12.5/f", "k=2024-01-01 10%3A11%3A12/f")),
    Case("times elsewhere", ("k=2024-01-01 10%3A11%3A12/f",), zone="Asia/Tokyo"),
    Case("days and times", ("k=2024-07-01 10%3A11%3A12/f", "k=2024-07-02/f"), zone="Asia/Tokyo"),
    Case("what is known of files", ("f", "a b/ü %41#f", "~x+y&z=,;@!$'()*.json"), select=FACTS),
    Case("a pattern of what is known of files", ("a/f", "b/g?[1]"), path="*", select=FACTS),
    Case("all that is known of files", ("f", "r/f"), select="v, _metadata", format="json"),
    Case("some that is known of files", ("f", "g"), where="_metadata.file_name = 'f'"),
    Case(
        "rows of Parquet files",
        ("f", "g"),
        select=f"{FACTS}, _metadata.row_index",
        format="parquet",
    ),
    Case("all that is known of Parquet files", ("f", "g"), select="_metadata.*", format="parquet"),
    Case("names of files", ("f", "a b/ü %41#f"), select="v, upper(input_file_name())"),
    Case("some names of files", ("f", "g"), where="input_file_name() like '%/g'", format="csv"),
    Case("what is known of CSV files", ("f", "g"), select=f"v, {FACTS}", format="csv"),
    _typed("decimals", "decimal(10,2)", "1.5", "2", "-3.25", "1.555", "-1.555", "1e2", "123456789"),
    _typed("small integers", "tinyint", "300", "-1", "+7"),
    _typed("booleans", "boolean", "True", "FALSE"),
    _typed("zones", "timestamp", "2024-01-01", "2024-01-01T10%3A00%3A00Z", zone="Asia/Tokyo"),
    _typed("no zones", "timestamp_ntz", "2024-01-01 10%3A00%3A00", "2024-01-01"),
    _typed("days", "date", "2024-1-1", "2024", "2024-01-01 10%3A00%3A00"),
    _typed("bytes", "binary", "a%2Fb", "x"),
    _typed("floats", "float", "1e3", "NaN", "0.1", "-Infinity", "1d", " 2 ", "0x1p3", "1e99"),
]


@pytest.mark.parametrize("case", some(CASES, every=4), ids=[case.name for case in CASES])
def test_folders_are_what_they_are_to_spark(
    spark: SparkSession, tmp_path: Path, case: Case
) -> None:
    spark.conf.set("spark.sql.session.timeZone", case.zone)
    rng = random.Random(case.name)
    folder = tmp_path / "files"

    def put(number: int) -> None:
        path = folder / case.files[number]
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.parent / ".new"
        if case.format == "parquet":
            pq.write_table(pa.table({"v": np.arange(number, 500)}), new, row_group_size=90)
        else:
            new.write_text(f'{{"v": {number}}}\n' if case.format == "json" else f"{number}\n")
        new.rename(path)

    for number in range(len(case.files)):  # which columns there are is seen in what is there
        put(number)
    given = dict(case.options)
    if case.has_base:
        given["basePath"] = str(folder)
    where = f"{folder}/{case.path}"
    reader = spark.readStream.schema(case.schema).options(**given).format(case.format)
    streaming = reader.load(where)
    batch = spark.read.schema(case.schema).options(**given).format(case.format).load(where)
    assert streaming.schema == batch.schema
    translated = translate(
        streaming.where(case.where).selectExpr(*case.select.split(", ")), query="files"
    )
    answer = batch.where(case.where).selectExpr(*case.select.split(", ")).toArrow()
    feeds = [lambda: None]
    if case.files[-1].count("=") and rng.random() < 0.5:  # a file may also come later
        (folder / case.files[-1]).unlink()
        feeds.append(partial(put, len(case.files) - 1))
    manner = Manner.drawn(rng)
    outcome = run(
        program_of(translated, manner), MemoryLog(), feeds, tmp_path / "checkpoints", manner
    )
    assert not differences(as_mode(plain(outcome.rows), "append", 0, 0), plain(answer))
