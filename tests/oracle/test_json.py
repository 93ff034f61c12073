"""JSON texts, whole and with a character changed, read here and by Spark's from_json."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.expressions.evaluate import evaluate
from penstock.expressions.tree import call, column
from penstock.expressions.types import arrow_type, parse_type
from tests.oracle.edges import JSON_TEXTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

ZONE = "Europe/Berlin"
CHANGED = 1_500
MARKS = "{}[],:\"'\\ntfx0123-+.eE \t"
SCHEMAS = (
    "struct<a:int,b:string,d:double,l:array<int>>",
    "struct<a:tinyint,t:timestamp,c:decimal(10,2),s:struct<n:int,w:string>,l:array<date>>",
    "struct<m:map<string,date>,a:bigint,d:float>",
    "array<struct<a:int>>",
    "map<string,string>",
)


def _changed(rng: random.Random) -> str:
    text = rng.choice(JSON_TEXTS)
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(("", rng.choice(MARKS))) + text[at + rng.randrange(2) :]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_changed_texts_are_read_as_spark_reads_them(spark: SparkSession, schema: str) -> None:
    from pyspark.sql import functions as F  # noqa: PLC0415 (Spark is loaded where it is used)

    rng = random.Random(schema)
    texts = [*JSON_TEXTS, *(_changed(rng) for _ in range(CHANGED))]
    spark.conf.set("spark.sql.session.timeZone", ZONE)
    given = spark.createDataFrame([(text,) for text in texts], "t string").coalesce(1)
    judged = given.select(F.from_json("t", schema).alias("r")).toArrow().column(0)
    wanted = judged.combine_chunks().cast(arrow_type(parse_type(schema)))
    tree = call("from_json", column("t", "string"), to=schema, time_zone=ZONE)
    found = evaluate(tree, pa.record_batch({"t": pa.array(texts)}))
    assert found.type == wanted.type
    pairs = zip(texts, map(str, found), map(str, wanted), strict=True)
    assert [row for row in pairs if row[1] != row[2]] == []
