"""Python functions over groups with states: beside Structured Streaming, and killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.api.session import Attached
from penstock.api.state_metadata import state_metadata
from penstock.catalyst.session import plans_of
from penstock.errors import ProgramIncompatible
from penstock.runtime.streams import StreamReader
from tests.spark import group_cases
from tests.spark.waiting import wait_for
from tests.spark_session import shared_session
from tests.thoroughness import some

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Steps = list[list[str]]  # the rows that each file gave
ANSWERS = Path(__file__).parent / "group_answers.json"  # what Structured Streaming gave


@pytest.fixture(scope="module")
def attached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attached]:
    shared = shared_session()
    session = shared.newSession()
    found = penstock.attach(session, tmp_path_factory.mktemp("groups") / "log")
    session._jvm.SparkSession.setActiveSession(session._jsparkSession)
    yield found
    session._jvm.SparkSession.setActiveSession(shared._jsparkSession)


def put(folder: Path, number: int, rows: group_cases.Rows) -> None:
    keys, numbers, seconds = zip(*rows, strict=True)
    times = [(group_cases.START_S + second) * 1_000_000 for second in seconds]
    columns = {
        "k": pa.array(keys, pa.string()),
        "n": pa.array(numbers, pa.int64()),
        "ts": pa.array(times, pa.timestamp("us", "UTC")),
    }
    pq.write_table(pa.table(columns), folder.parent / "new")
    os.rename(folder.parent / "new", folder / f"{number}.parquet")


def stream_of(spark: SparkSession, folder: Path) -> DataFrame:
    folder.mkdir()
    return spark.readStream.schema(group_cases.SCHEMA).parquet(str(folder))


def shown(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))


def by_spark(spark: SparkSession, case: group_cases.Case, place: Path) -> Steps:
    """What each file gives, batches without data included, which follow it."""
    found: list[dict[str, Any]] = []

    def keep(batch: DataFrame, number: int) -> None:
        found.extend(row.asDict(recursive=True) for row in batch.collect())

    place.mkdir()
    df = case.define(stream_of(spark, place / "in"))
    writer = df.writeStream.outputMode(case.mode).foreachBatch(keep)
    query = writer.option("checkpointLocation", str(place / "checkpoint")).start()
    steps: Steps = []
    try:
        for number, rows in enumerate(group_cases.FILES):
            put(place / "in", number, rows)
            if case.settled is None:
                query.processAllAvailable()
            else:  # while there may be timers by the clock, it has one empty batch after the other
                wait_for("what the clock brings", lambda: case.settled(found))
            steps.append(shown(found))
            found.clear()
    finally:
        query.stop()
    return steps


def by_penstock(
    attached: Attached,
    name: str,
    case: group_cases.Case,
    place: Path,
    after: Callable[[int, list[dict[str, Any]]], None] = lambda number, rows: None,
    **options: Any,
) -> Steps:
    place.mkdir()
    df = case.define(stream_of(attached.spark, place / "in"))
    writer = penstock.writeStream(df).queryName(name).outputMode(case.mode).options(**options)
    query = writer.toStream(f"{name}_out").start()
    reader = StreamReader(attached.log, f"{name}_out")
    steps: Steps = []
    try:
        for number, rows in enumerate(group_cases.FILES):
            put(place / "in", number, rows)
            query.processAllAvailable()
            found = settled_rows(reader, case)
            after(number, found)
            steps.append(shown([{k: v for k, v in row.items() if k != "pid"} for row in found]))
    finally:
        query.stop()
    return steps


def settled_rows(reader: StreamReader, case: group_cases.Case) -> list[dict[str, Any]]:
    """All rows that the newest file leads to."""
    found: list[dict[str, Any]] = []

    def is_settled() -> bool:
        found.extend(row for batch in reader.read() for row in in_session(batch))
        return case.settled is None or case.settled(found)

    wait_for("what the clock brings", is_settled)
    return found


def in_session(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as `collect()` shows them: times without a zone, in that of this process."""
    return [_naive(row) for row in batch.to_pylist()]


def _naive(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _naive(each) for name, each in value.items()}
    if hasattr(value, "astimezone"):
        return value.astimezone().replace(tzinfo=None)
    return value


def answer(name: str) -> Steps:
    found: dict[str, Steps] = json.loads(ANSWERS.read_text(encoding="utf-8"))
    return found[group_cases.SAME.get(name, name)]


@pytest.mark.parametrize(
    "name",
    [
        *some([*group_cases.NAMES], every=3),
        *(pytest.param(name, marks=pytest.mark.slow) for name in group_cases.MORE_NAMES),
    ],
)
def test_each_file_gives_what_spark_gave(attached: Attached, tmp_path: Path, name: str) -> None:
    case = group_cases.cases()[name]
    assert by_penstock(attached, name, case, tmp_path / "penstock") == answer(name)


@pytest.mark.campaign
@pytest.mark.parametrize("name", group_cases.cases())
def test_spark_still_gives_these_answers(attached: Attached, tmp_path: Path, name: str) -> None:
    """Where Structured Streaming can run them: processors need protobuf there."""
    if name in group_cases.PROCESSORS:
        pytest.importorskip("google.protobuf.descriptor")
    attached.spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    case = group_cases.cases()[name]
    assert by_spark(attached.spark, case, tmp_path / "spark") == answer(name)


def test_every_node_of_the_plan_is_judged(attached: Attached, tmp_path: Path) -> None:
    rows = stream_of(attached.spark, tmp_path / "in")
    kinds = set()
    for case in group_cases.cases().values():
        kinds |= {node.kind for node in plans_of(case.define(rows)).optimized.walk()}
    assert kinds >= group_cases.GROUP_NODES


def test_keys_are_shared_by_vertices(attached: Attached, tmp_path: Path) -> None:
    case = group_cases.cases()["counts"]
    found = by_penstock(attached, "shared", case, tmp_path / "penstock", parallelism=2)
    assert found == answer("counts")


def test_keys_begin_with_their_rows_and_what_they_keep_can_be_read(
    attached: Attached, tmp_path: Path
) -> None:
    """With the columns of Spark's reader of states."""
    case = group_cases.cases()["begins_rows"]
    assert by_penstock(attached, "begun", case, tmp_path / "penstock") == answer("begins_rows")

    def read(variable: str, **options: Any) -> Any:
        reader = attached.spark.read.format("penstock").option("state", "begun")
        rows = reader.option("stateVarName", variable).options(**options).load()
        shown = (row.asDict(recursive=True) for row in rows.drop("_vertex").collect())
        return sorted(shown, key=lambda row: (row["key"]["k"] or "", repr(row)))

    last = [("b", 14, 2), ("e", 13, 1)]  # the others were cleared, but for what "z" began with
    assert read("total") == [
        {"key": {"k": k}, "value": {"n": -1, "last": None}} for k in ("b", "e", "z")
    ]
    assert read("seen", flattenCollectionTypes="false") == [
        *({"key": {"k": k}, "list_value": [{"n": n}, {"n": -n}]} for k, n, _ in last),
        {"key": {"k": "z"}, "list_value": [{"n": 9}]},
    ]
    assert read("seen") == [
        {"key": {"k": k}, "list_element": {"n": each}}
        for k, numbers in (("b", (-14, 14)), ("e", (-13, 13)), ("z", (9,)))
        for each in numbers
    ]
    parts = [
        {"user_map_key": {"part": part}, "user_map_value": {"count": 1, "names": [str(n)]}}
        for _, n, part in last
    ]
    assert read("parts") == [
        {"key": {"k": k}, **entry} for (k, *_), entry in zip(last, parts, strict=True)
    ]
    assert read("timers") == [
        {"key": {"k": k}, "expiration_timestamp_ms": (group_cases.START_S + 78) * 1_000 + 1}
        for k, *_ in last
    ]
    with pytest.raises(Exception, match="has the states total, seen, parts, given_up, timers"):
        read("totals")
    (told,) = state_metadata(attached.spark, attached.log, "begun").collect()
    assert (told.operatorId, told.numPartitions, told.minBatchId) == (0, 1, told.maxBatchId)
    kept = json.loads(told.operatorProperties)["stateVariables"]
    assert {each["stateName"]: each["stateVariableType"] for each in kept} == {
        "total": "ValueState",
        "seen": "ListState",
        "parts": "MapState",
        "$eventTimers_keyToTimestamp": "TimerState",
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pandas", "timeouts", "begins_rows"])
def test_a_killed_slot_goes_on_with_the_states(
    attached: Attached, tmp_path: Path, name: str
) -> None:
    from pyspark.sql.functions import udf  # noqa: PLC0415

    case = group_cases.cases()[name]
    where = udf(lambda k: os.getpid(), "bigint", useArrow=False)
    with_pid = group_cases.Case(lambda df: case.define(df).withColumn("pid", where("k")), case.mode)
    pids: set[int] = set()

    def kill(number: int, rows: list[dict[str, Any]]) -> None:
        pids.update(row["pid"] for row in rows)
        if rows and number < len(group_cases.FILES) - 1:
            os.kill(rows[-1]["pid"], signal.SIGKILL)

    wanted = by_penstock(attached, f"{name}_whole", case, tmp_path / "whole")
    found = by_penstock(
        attached, f"{name}_killed", with_pid, tmp_path / "killed", kill, standbySlots=1
    )
    assert found == wanted
    assert len(pids) > 2


@pytest.mark.slow
def test_a_slot_is_killed_before_the_timers_of_its_clock_and_they_come_once(
    attached: Attached, tmp_path: Path
) -> None:
    """Each time between the rows of a file and what the clock brings; states end there too."""
    from pyspark.sql.functions import udf  # noqa: PLC0415

    case = group_cases.cases()["clocked"]
    where = udf(lambda k: os.getpid(), "bigint", useArrow=False)
    killed: list[int] = []
    files_seen = 0

    def settled(found: list[dict[str, Any]]) -> bool:
        nonlocal files_seen
        if found and len(killed) == files_seen:
            os.kill(found[-1]["pid"], signal.SIGKILL)
            killed.append(found[-1]["pid"])
        return bool(case.settled and case.settled(found))

    def after(number: int, rows: list[dict[str, Any]]) -> None:
        nonlocal files_seen
        files_seen += 1

    with_pid = group_cases.Case(
        lambda df: case.define(df).withColumn("pid", where("k")), case.mode, settled
    )
    found = by_penstock(attached, "clocked_killed", with_pid, tmp_path / "killed", after,
                        standbySlots=1)  # fmt: skip
    assert found == answer("clocked")
    assert len(set(killed)) == len(group_cases.FILES)


def test_what_is_kept_gets_and_loses_columns_with_a_new_start(
    attached: Attached, tmp_path: Path
) -> None:
    rows = stream_of(attached.spark, tmp_path / "in")

    def written(schema: str, *more: Any) -> Any:
        df = group_cases.keeping(rows, schema, more)
        writer = penstock.writeStream(df).queryName("grown").trigger(availableNow=True)
        return writer.toStream("grown_out")

    def run(number: int, schema: str, *more: Any) -> list[str]:
        put(tmp_path / "in", number, [("a", number, 10), ("b", number, 11)])
        assert written(schema, *more).start().awaitTermination(100)
        found = StreamReader(attached.log, "grown_out").read_all().to_pylist()
        return [row["text"] for row in found[-2:]]

    assert run(1, "n int") == ["None", "None"]
    assert run(2, "n int") == ["(1,)", "(1,)"]
    assert run(3, "last string, n bigint", "three") == ["(None, 2)", "(None, 2)"]
    for schema, more in (("m bigint", ()), ("last string, n int", (None,))):
        with pytest.raises(ProgramIncompatible, match="state 'kept' of the function was a value"):
            written(schema, *more).start()
    assert run(4, "last string, n bigint", "four") == ["('three', 3)", "('three', 3)"]
    assert run(5, "n bigint") == ["(4,)", "(4,)"]
