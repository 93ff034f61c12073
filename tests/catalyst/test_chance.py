"""The clock and random numbers in Spark's plan: each a Python function, wherever it stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from penstock.catalyst.translate import Translated, translate
from penstock.operators.specs import PythonSpec
from penstock.plan.nodes import spec_of, walk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def drawn(translated: Translated) -> list[str]:
    """Which functions are called, from the last to the first."""
    specs = map(spec_of, walk(translated.relation))
    calls = [call for spec in specs if isinstance(spec, PythonSpec) for call in spec.calls]
    assert not any(call.deterministic for call in calls)
    assert {call.digest for call in calls} <= set(translated.python.codes)
    return [call.text.partition("(")[0] for call in calls]


def definitions() -> dict[str, tuple[list[str], Callable[[DataFrame], Any]]]:
    from pyspark.sql import functions as F  # noqa: PLC0415

    return {
        "nested": (
            ["current_timestamp"],
            lambda df: df.selectExpr("price + unix_seconds(now()) % 7 AS y"),
        ),
        "condition": (["rand"], lambda df: df.where("rand(5) < 0.1").select("price")),
        "key": (["randn"], lambda df: df.groupBy((F.randn() > 0).alias("k")).count()),
        "watermark": (
            ["current_timestamp"],
            lambda df: (
                df.withColumn("now", F.current_timestamp())
                .withWatermark("now", "1 minute")
                .groupBy(F.window("now", "1 minute"))
                .count()
            ),
        ),
        "arguments": (
            ["randstr", "shuffle"],
            lambda df: df.selectExpr("upper(randstr(5)) AS s", "shuffle(tags)[0] AS t"),
        ),
        "argument by chance": (
            ["shuffle", "uuid"],
            lambda df: df.selectExpr("shuffle(array(uuid(), url)) AS s"),
        ),
        "uniform": (["rand"], lambda df: df.selectExpr("uniform(10, 20) AS u")),
        "no partition": ([], lambda df: df.where("spark_partition_id() = 0").select("price")),
        "two": (["uuid", "uuid"], lambda df: df.selectExpr("uuid() AS a", "uuid() AS b")),
        "branches": (
            ["current_date", "local_timestamp"],
            lambda df: df.selectExpr(
                "case when price > 3 then localtimestamp() end AS a", "current_date() AS b"
            ),
        ),
        "static side": (
            [],
            lambda df: df.join(
                df.sparkSession.range(3).withColumn("r", F.rand()), F.expr("id = auction")
            ).select("price", "r"),
        ),
    }


NAMES = (
    "nested", "condition", "key", "watermark", "arguments", "argument by chance", "uniform",
    "no partition", "two", "branches", "static side",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_it_is_a_function_of_its_own(bids: DataFrame, name: str) -> None:
    functions, define = definitions()[name]
    assert sorted(drawn(translate(define(bids), output_mode="update", query="q"))) == functions
