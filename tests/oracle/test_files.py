"""The stored answers of Spark about files are Spark's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.oracle.file_cases import GROUPS, Group, answers, spark_answers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.campaign  # another version of Spark may give others
@pytest.mark.parametrize(
    ("number", "group"), list(enumerate(GROUPS)), ids=[group.name for group in GROUPS]
)
def test_the_stored_answers_are_those_of_spark(
    spark: SparkSession, number: int, group: Group
) -> None:
    assert list(spark_answers(spark, group)) == answers()[f"{number} {group.name}"]
