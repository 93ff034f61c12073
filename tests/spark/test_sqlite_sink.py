"""Results that change, as current rows of a table of SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pyarrow as pa
import pytest

import penstock
from penstock.api.session import Attached
from penstock.errors import InvalidOption, ProgramIncompatible
from penstock.expressions.types import schema_from_arrow
from penstock.runtime.streams import StreamWriter, create_stream
from tests.spark_session import own_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

USERS = pa.schema([("user", pa.int64()), ("city", pa.string()), ("gone", pa.bool_())])


@pytest.fixture(scope="module")
def attached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attached]:
    with own_session() as session:
        yield penstock.attach(session, tmp_path_factory.mktemp("sqlite") / "log")


def run(df: DataFrame, path: Path, name: str, mode: str = "update", **options: str) -> None:
    """Bring all that there is to the table `name` of a file."""
    writer = penstock.writeStream(df).outputMode(mode).format("sqlite").queryName(name)
    query = writer.trigger(availableNow=True).options(**options).start(str(path), table=name)
    assert query.awaitTermination(120)


def rows(path: Path, table: str) -> list[Any]:
    read = f"SELECT * FROM {table} ORDER BY 1, 2"
    return apsw.Connection(str(path)).execute(read).fetchall()


RESULTS: dict[str, tuple[str, list[Any], list[Any]]] = {
    "people": ("user", [(1, "x"), (2, "x"), (3, None), (4, "y")], [(1, "z"), (2, "y"), (4, "y")]),
    "cities": ("city", [(None, 1), ("x", 2), ("y", 1)], [("y", 2), ("z", 1)]),
    "large": ("place", [("x", 20)], [("y", 20)]),
}


@pytest.mark.parametrize(
    "name",
    ["large", *(pytest.param(each, marks=pytest.mark.slow) for each in ("people", "cities"))],
)
def test_groups_and_table_rows_that_vanish_are_deleted(
    attached: Attached, tmp_path: Path, name: str
) -> None:
    stream, path = f"users_{name}", tmp_path / "results.db"
    create_stream(attached.log, stream, schema_from_arrow(USERS))
    writer = StreamWriter(attached.log, stream, "test")
    read = attached.spark.readStream.format("penstock").option("stream", stream)
    users = read.option("table", "user").option("deleteFlag", "gone").load()
    cities = users.groupBy("city").count()
    df = {
        "people": users.select("user", "city"),
        "cities": cities,
        "large": cities.where("count > 1").selectExpr("city AS place", "count * 10 AS tens"),
    }[name]
    key, first, second = RESULTS[name]

    def put(*given: tuple[int, str | None, bool]) -> list[Any]:
        names = dict(zip(USERS.names, zip(*given, strict=True), strict=True))
        writer.write(pa.RecordBatch.from_pydict(names, USERS))
        run(df, path, name, key=key)
        return rows(path, name)

    assert put((1, "x", False), (2, "x", False), (3, None, False), (4, "y", False)) == first
    assert put((2, "y", False), (3, None, True), (1, "z", False)) == second
    with pytest.raises(ProgramIncompatible, match=f"the sink of query {name} cannot go on: it was"):
        run(df, path, name, key=df.columns[1])
    with pytest.raises(InvalidOption, match="keeps the current row of each key"):
        run(df, path, "no_key")


@pytest.mark.slow
def test_rows_that_add_up_and_whole_results(attached: Attached, tmp_path: Path) -> None:
    create_stream(attached.log, "more", schema_from_arrow(USERS))
    writer = StreamWriter(attached.log, "more", "test")
    path = tmp_path / "results.db"
    df = attached.spark.readStream.format("penstock").option("stream", "more").load()
    for number in range(2):
        given = {"user": [number, number], "city": ["x", "y"], "gone": [False, None]}
        writer.write(pa.RecordBatch.from_pydict(given, USERS))
        run(df, path, "plain", "append")
        run(df, path, "newest", key="city")
        run(df.groupBy("user").count(), path, "whole", "complete")
    assert rows(path, "plain") == [(0, "x", 0), (0, "y", None), (1, "x", 0), (1, "y", None)]
    assert rows(path, "newest") == [(1, "x", 0), (1, "y", None)]
    assert rows(path, "whole") == [(0, 2), (1, 2)]
