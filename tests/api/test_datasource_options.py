"""What a user may write behind .option(...), and what is said about the rest."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource, DataSourceReader
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from penstock.api.datasource import PenstockDataSource, data_source_for
from penstock.api.datasource_options import AS_OF
from penstock.api.datasource_schema import schema_of_spark, spark_schema
from penstock.api.nexmark_source import NexmarkDataSource
from penstock.errors import (
    InvalidArgument,
    InvalidOption,
    LogNotFound,
    NotALog,
    SchemaMismatch,
    StreamNotFound,
    UnsupportedPlan,
)
from penstock.options import TIME_ZONE, Options, since_1970_us
from tests.api.datasource_logs import EVENTS, Scenario


def source(**options: object) -> PenstockDataSource:
    return PenstockDataSource(
        CaseInsensitiveDict({name: str(value) for name, value in options.items()})
    )


def planned(of: DataSource) -> DataSourceReader:
    """What Spark does with a source before it reads."""
    schema = of.schema()
    assert isinstance(schema, StructType)
    return of.reader(schema)


def test_the_schema_is_the_stream_s(scenario: Scenario) -> None:
    schema = source(PATH=scenario.path, Stream="events").schema()
    assert schema == spark_schema(EVENTS)
    assert schema_of_spark(schema) == EVENTS
    more = source(path=f"file:{scenario.path}", stream="events", includeMetadata="TRUE").schema()
    assert more.fieldNames() == [*schema.fieldNames(), "_position", "_time", "_producer"]


def test_an_attached_source_knows_its_path(scenario: Scenario) -> None:
    attached = data_source_for(scenario.path)(CaseInsensitiveDict({"stream": "events"}))
    assert attached.schema() == spark_schema(EVENTS)
    assert attached.name() == "penstock"


def test_what_is_not_there_is_named(scenario: Scenario, tmp_path: Path) -> None:
    with pytest.raises(StreamNotFound, match=r"no stream 'nope'.*known: events, other"):
        source(path=scenario.path, stream="nope").schema()
    with pytest.raises(LogNotFound, match="there is no log at"):
        source(path=tmp_path / "absent", stream="events").schema()
    (tmp_path / "file").touch()
    with pytest.raises(NotALog):
        source(path=tmp_path, stream="events").schema()
    with pytest.raises(StreamNotFound, match="no query or vertex 'q' in this log whose state"):
        source(path=scenario.path, state="q").schema()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stream": "events"}, "option 'path' is missing"),
        ({"stream": "events", "path": ""}, "option 'path' is missing"),
        ({"path": "P"}, "option 'stream' is missing"),
        ({"path": "hdfs://host/log", "stream": "events"}, "option 'path' is 'hdfs://host/log'"),
        ({"path": "P", "stream": "events", "asof": "soon"}, "option 'asOf' is 'soon'"),
        ({"path": "P", "stream": "events", "asOf": "-1"}, "option 'asOf' is '-1'"),
        ({"path": "P", "stream": "events", "asOf": "99999999"}, "the log ends at"),
        ({"path": "P", "stream": "events", "after": "x"}, "option 'after' is 'x'"),
        ({"path": "P", "stream": "events", "numPartitions": "0"}, "option 'numPartitions' is '0'"),
        ({"path": "P", "stream": "events", "includeMetadata": "si"}, "true or false"),
        ({"path": "P", "stream": "events", "asOf": "2024-01-01", "timeZone": "Mars"}, "'timeZone'"),
        ({"path": "P", "stream": "events", "as_of": "1"}, "option 'as_of' is not one for reading"),
        ({"path": "P", "stream": "events", "startingPosition": "1"}, "is not one for a batch read"),
        ({"path": "P", "stream": "events", "state": "q"}, "exclude each other"),
    ],
)
def test_bad_options_are_refused_by_name(
    scenario: Scenario, options: dict[str, str], message: str
) -> None:
    given = {k: scenario.path if v == "P" else v for k, v in options.items()}
    with pytest.raises(InvalidOption, match=message):
        planned(source(**given))


def test_options_of_a_streaming_read(scenario: Scenario) -> None:
    for options, message in (
        ({"asOf": "1"}, "'asof' is not one for a streaming read"),
        ({"maxRowsPerTrigger": "0"}, "option 'maxRowsPerTrigger' is '0'"),
        ({"startingPosition": "here"}, "option 'startingPosition' is 'here'"),
    ):
        bad = source(path=scenario.path, stream="events", **options)
        with pytest.raises(InvalidOption, match=message):
            bad.streamReader(bad.schema())


def test_times_with_and_without_a_zone() -> None:
    def micros(text: str, **more: str) -> int:
        options = Options("a test", (AS_OF, TIME_ZONE), {"asOf": text} | more)
        moment = options[AS_OF]
        assert isinstance(moment, datetime)
        return since_1970_us(moment, options[TIME_ZONE])

    assert micros("1970-01-01 00:00:01.000002") == 1_000_002
    assert micros("1970-01-01T01:00:01+01:00") == 1_000_000
    assert micros("1970-01-01T00:00:01Z", timeZone="Asia/Tokyo") == 1_000_000
    assert micros("1970-01-01 09:00:01", timeZone="Asia/Tokyo") == 1_000_000
    assert micros("1969-12-31 23:59:59.999999") == -1


def test_a_schema_given_by_the_user(scenario: Scenario) -> None:
    some = StructType([StructField("name", StringType()), StructField("id", LongType(), False)])
    asked = source(path=scenario.path, stream="events")
    asked.reader(some)
    for field, message in (
        (StructField("nome", StringType()), "nome is not there"),
        (StructField("id", IntegerType()), "id is bigint, not int"),
        (StructField("name", StringType(), False), "name may be null"),
    ):
        with pytest.raises(SchemaMismatch, match=message):
            asked.reader(StructType([field]))


def test_rows_that_do_not_fit_are_refused_before_anything_is_written(scenario: Scenario) -> None:
    target = source(path=scenario.path, stream="other")
    for schema, message in (
        (StructType([StructField("id", StringType())]), "id is string and must be bigint"),
        (
            StructType([StructField("id", LongType()), StructField("more", LongType())]),
            "more is not a column of the stream",
        ),
    ):
        with pytest.raises(SchemaMismatch, match=message):
            target.writer(schema, False)
        with pytest.raises(SchemaMismatch, match=message):
            target.streamWriter(schema, False)
    with pytest.raises(SchemaMismatch, match="several columns named id"):
        target.writer(StructType([StructField("id", LongType())] * 2), False)
    with pytest.raises(SchemaMismatch, match="id \\(bigint NOT NULL\\) is missing"):
        source(path=scenario.path, stream="events").writer(
            StructType([StructField("name", StringType())]), False
        )
    target.writer(StructType([StructField("id", IntegerType())]), False)


def test_what_a_stream_cannot_do_is_refused(scenario: Scenario) -> None:
    schema = StructType([StructField("id", LongType())])
    target = source(path=scenario.path, stream="other")
    with pytest.raises(UnsupportedPlan, match="cannot be overwritten"):
        target.writer(schema, True)
    with pytest.raises(UnsupportedPlan, match="outputMode"):
        target.streamWriter(schema, True)
    with pytest.raises(InvalidOption, match="option 'compression' is 'rar'"):
        source(path=scenario.path, stream="other", compression="rar").writer(schema, False)
    from pyspark.sql.types import YearMonthIntervalType  # noqa: PLC0415

    with pytest.raises(SchemaMismatch, match="id is interval year to month and must be bigint"):
        target.writer(StructType([StructField("id", YearMonthIntervalType())]), False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "option 'events' is missing"),
        ({"events": "10", "kind": "offers"}, "option 'kind' is 'offers'"),
        ({"events": "-1"}, "option 'events' is '-1'"),
        ({"events": "1", "rate": "fast"}, "option 'rate' is 'fast'"),
        ({"events": "1", "rate": "0"}, "rate is 0.0"),
        ({"events": "1", "columns": "prize"}, "no column 'prize'"),
        ({"events": "1", "startingTime": "noon"}, "option 'startingTime' is 'noon'"),
        ({"events": "1", "sead": "1"}, r"'sead' is not one for this read \(did you mean seed\?\)"),
        ({"events": "1", "unpaced": "true"}, "option 'unpaced' is not one"),
    ],
)
def test_bad_options_of_the_generator(options: dict[str, str], message: str) -> None:
    with pytest.raises((InvalidOption, InvalidArgument), match=message):
        planned(NexmarkDataSource(CaseInsensitiveDict(options)))


def test_an_endless_generator_cannot_be_unpaced() -> None:
    endless = NexmarkDataSource(CaseInsensitiveDict({"unpaced": "true"}))
    with pytest.raises(InvalidOption, match="needs option 'events'"):
        endless.streamReader(endless.schema())
