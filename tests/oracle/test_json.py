"""JSON texts, whole and with a character changed, read here and by Spark's functions."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.expressions.evaluate import evaluate
from penstock.expressions.tree import call, column
from penstock.expressions.types import arrow_type, parse_type
from tests.oracle.edges import JSON_TEXTS
from tests.thoroughness import IS_DEEP, some

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ZONE = "Europe/Berlin"
CHANGED = 1_500
MARKS = "{}[],:\"'\\ntfx0123-+.eE \t"
PATHS = (
    "$", "$.a", "$.a.b", "$.l[1]", "$.a[0].b", "$['s'].n", "$[0]", "$[1][0]", "$.é", "$.b.c[0]"
)  # fmt: skip
MEMBERS = ("a", "b", "l", "é", "")
NAMES = ('"a"', '"b"', '"l"', '"s"', '"n"', '"\\u0061"', "'a'", '"é"', '""')
LEAVES = (
    "true", "false", "null", "0", "-0", "-17", "123456789012345678901234567890", "1e400", "0.5",
    "-0.5", "0.0", "-0.0", "1.50", "1.5", "100.25", "0.0001", "12345678.5", "1e3", "1E-7", "5e-324",
    "3.141592653589793", "1.0", "123456.789012345", '""', '"x y"', '"\\n"', '"\\u00e4"',
    '"\\ud83d\\ude00"', '"\\ud83d"', '"\\ude00"', '"é"', '"😀"', '"a\\/b"', '"\\\\"', '"\\""',
    "'q'", '"\\x"', '"\\u12"', '"\x01"', '"日本"', '"NaN"', '"\\u0001\\u0022"',
)  # fmt: skip
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


def _made_up(rng: random.Random, depth: int = 0) -> str:
    """A text of a few names at all depths, most of it JSON by the letter."""
    kind = rng.randrange(8 if depth < 4 else 5)
    if kind < 5:
        return rng.choice(LEAVES)
    gap = rng.choice(("", "", " ", "\n "))
    items = [_made_up(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 5:
        return f"[{gap}{f',{gap}'.join(items)}{gap}]"
    members = (f"{rng.choice(NAMES)}{gap}:{gap}{item}" for item in items)
    return f"{{{gap}{f'{gap},'.join(members)}{gap}}}"


def _texts(rng: random.Random) -> list[str | None]:
    changed, made_up = (CHANGED, 3 * CHANGED) if IS_DEEP else (CHANGED // 4, CHANGED // 8)
    return [
        None,
        *JSON_TEXTS,
        *(_changed(rng) for _ in range(changed)),
        *(_made_up(rng) for _ in range(made_up)),
    ]


@pytest.mark.parametrize("seed", some(range(4), every=4))
def test_values_are_found_where_spark_finds_them(spark: SparkSession, seed: int) -> None:
    """At a path, and as members: broken texts, escapes, names twice, numbers of any size."""
    texts = _texts(random.Random(seed))
    batch = pa.record_batch({"t": pa.array(texts)})
    given = spark.createDataFrame([(text,) for text in texts], "t string").coalesce(1)
    asked = [f'get_json_object(t, "{path}") AS c{at}' for at, path in enumerate(PATHS)]
    names = ", ".join(f"'{name}'" for name in MEMBERS)
    judged = given.selectExpr(*asked, f"json_tuple(t, {names})").toArrow().columns
    text = column("t", "string")
    trees = [
        *(call("get_json_object", text, path=path) for path in PATHS),
        *(call("json_field", text, name=name, names=list(MEMBERS)) for name in MEMBERS),
    ]
    for tree, wanted in zip(trees, judged, strict=True):
        found = evaluate(tree, batch).to_pylist()
        pairs = zip(texts, found, wanted.to_pylist(), strict=True)
        assert [row for row in pairs if row[1] != row[2]] == [], str(tree)


@pytest.mark.slow
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
