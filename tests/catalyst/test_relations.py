"""Sources of Spark as scans: their options, one by one, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.catalyst.relations import ScanOrigin
from penstock.catalyst.translate import translate
from penstock.errors import UnsupportedPlan
from penstock.operators.specs import ProjectSpec
from penstock.plan.nodes import Step, StreamRef
from tests.catalyst.conftest import stream
from tests.plan.text import print_relation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def origin(df: DataFrame) -> ScanOrigin:
    (found,) = translate(df, query="read").scans
    return found


def options(df: DataFrame) -> dict[str, Any]:
    connector = origin(df).connector
    assert connector is not None
    return connector.options


def refusal(df: DataFrame) -> str:
    with pytest.raises(UnsupportedPlan) as caught:
        translate(df, query="read")
    assert "Structured Streaming can run it" in str(caught.value)
    return str(caught.value)


def test_a_table_that_is_refused_is_not_sent_to_structured_streaming(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedPlan, match="option 'table' names 'absent'") as caught:
        translate(files(spark, "parquet", tmp_path, table="absent"), query="read")
    assert str(caught.value).endswith("Structured Streaming reads no tables")


def source(spark: SparkSession, name: str, **given: Any) -> DataFrame:
    return spark.readStream.format(name).options(**given).load()


def files(spark: SparkSession, name: str, path: Path | str, **given: Any) -> DataFrame:
    reader = spark.readStream.format(name).options(**given)
    return reader.schema("k bigint, at timestamp, s string").load(str(path))


# --- streams --------------------------------------------------------------------------------------


def test_a_stream_of_the_log(spark: SparkSession) -> None:
    found = origin(stream(spark, "k bigint not null, v string", "orders", path="somewhere"))
    assert found.scan.relation == (StreamRef("orders", 1),)
    assert found.stream == "orders"
    assert dict(found.options) == {"stream": "orders", "path": "somewhere"}
    assert [str(field.type) for field in found.scan.schema] == ["bigint", "string"]


def test_how_micro_batches_would_be_cut_is_no_matter(spark: SparkSession) -> None:
    frame = stream(spark, "k bigint", maxRowsPerTrigger=5, startingPosition="earliest")
    assert origin(frame).stream == "bids"


@pytest.mark.parametrize(
    ("name", "value"),
    [("startingPosition", "latest"), ("includeMetadata", "true"), ("asOf", "7"), ("strem", "x")],
)
def test_an_option_that_would_change_the_rows_is_refused(
    spark: SparkSession, name: str, value: str
) -> None:
    assert f"option '{name}'" in refusal(stream(spark, "k bigint", **{name: value}))


@pytest.mark.parametrize("name", ["", "a/b", "x" * 65])
def test_a_stream_needs_a_name(spark: SparkSession, name: str) -> None:
    assert "option 'stream'" in refusal(stream(spark, "k bigint", name))


def test_a_column_of_an_unknown_type_is_refused_by_name(spark: SparkSession) -> None:
    text = refusal(stream(spark, "k bigint, gap interval"))
    assert "column 'gap'" in text
    assert "use make_dt_interval()" in text
    assert "column 's'" in refusal(stream(spark, "s variant"))
    assert "column 'n'" in refusal(stream(spark, "n struct<s:variant>"))


# --- generators -----------------------------------------------------------------------------------


def test_rate(spark: SparkSession) -> None:
    frame = source(spark, "rate", rowsPerSecond=50, numPartitions=3)
    assert options(frame) == {"rows_per_s": 50}
    assert origin(frame).format == "rate"
    text = print_relation(translate(source(spark, "rate"), query="read").relation)
    assert text == (
        'scan source rate {"rows_per_s":1} (timestamp timestamp, value bigint) partitions any\n'
    )


def test_rate_with_a_ramp_is_refused(spark: SparkSession) -> None:
    assert "option 'rampUpTime'" in refusal(source(spark, "rate", rampUpTime="5s"))


def test_nexmark(spark: SparkSession) -> None:
    reader = spark.readStream.format("nexmark").schema("auction bigint, price bigint")
    plain = reader.load()
    assert options(plain) == {"kind": "bids", "paced": True}
    chosen = reader.options(seed=7, rate=2.5, events=100, kind="all", unpaced="true").load()
    assert options(chosen) == {
        "kind": "all", "paced": False, "seed": 7, "rate": 2.5, "events_max": 100,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "zone", "base_ms"),
    [
        ("2024-01-01T00:00:00Z", "UTC", 1_704_067_200_000),
        ("2024-01-01 00:00:00.5", "UTC", 1_704_067_200_500),
        ("2024-01-01", "Asia/Kolkata", 1_704_047_400_000),
    ],
)
def test_nexmark_starts_at_a_time(spark: SparkSession, given: str, zone: str, base_ms: int) -> None:
    reader = spark.readStream.format("nexmark").schema("auction bigint")
    frame = reader.options(startingTime=given, timeZone=zone).load()
    assert options(frame)["base_ms"] == base_ms


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", "x"), ("startingTime", "soon"), ("speed", "1")],
)
def test_nexmark_refuses_options_by_name(spark: SparkSession, name: str, value: str) -> None:
    reader = spark.readStream.format("nexmark").schema("auction bigint")
    assert f"option '{name}'" in refusal(reader.option(name, value).load())


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("rate-micro-batch", {"rowsPerBatch": 3}),
    ],
)
def test_other_sources_are_refused_by_name(
    spark: SparkSession, name: str, given: dict[str, Any]
) -> None:
    assert f"source {name}" in refusal(source(spark, name, **given))


def test_a_socket(spark: SparkSession) -> None:
    found = origin(source(spark, "socket", host="h", port="99", includeTimestamp="true"))
    assert found.connector is not None
    assert (found.connector.connector, found.connector.options) == (
        "socket", {"host": "h", "port": 99},
    )  # fmt: skip
    assert [(f.name, str(f.type)) for f in found.scan.schema] == [
        ("value", "string"), ("timestamp", "timestamp"),
    ]  # fmt: skip
    assert len(origin(source(spark, "socket", host="h", port="99")).scan.schema) == 1


# --- files ----------------------------------------------------------------------------------------

COLUMNS = [["k", "bigint"], ["at", "timestamp"], ["s", "string"]]


@pytest.mark.parametrize(("name", "shown"), [("parquet", "parquet"), ("json", "jsonl")])
def test_files(spark: SparkSession, tmp_path: Path, name: str, shown: str) -> None:
    found = options(files(spark, name, tmp_path))
    assert found == {"format": shown, "path": str(tmp_path), "columns": COLUMNS}


def test_csv(spark: SparkSession, tmp_path: Path) -> None:
    frame = files(spark, "csv", tmp_path, header="true", sep=";", pathGlobFilter="*.csv")
    assert options(frame) == {
        "format": "csv", "path": str(tmp_path), "columns": COLUMNS, "header": True,
        "delimiter": ";", "pattern": "*.csv",
    }  # fmt: skip
    doubled = options(files(spark, "csv", tmp_path, escape='"', enforceSchema="false"))
    assert (doubled["escape"], doubled["check_header"]) == ('"', True)


def test_text(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.readStream.text(str(tmp_path))
    assert options(frame) == {
        "format": "text", "path": str(tmp_path), "columns": [["value", "string"]],
    }  # fmt: skip


def test_a_path_may_be_an_address_of_a_file(spark: SparkSession, tmp_path: Path) -> None:
    """Not encoded as in an address of the web: Hadoop takes the characters as they are."""
    folder = tmp_path / "with%20 space"
    folder.mkdir()
    for given in (f"file:{folder}", f"file://{folder}"):
        assert options(files(spark, "parquet", given))["path"] == str(folder)


def test_what_only_cuts_micro_batches_is_accepted(spark: SparkSession, tmp_path: Path) -> None:
    frame = files(spark, "parquet", tmp_path, maxFilesPerTrigger=1, latestFirst="false")
    assert options(frame)["format"] == "parquet"


def test_when_files_are_begun_and_what_becomes_of_changed_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    found = options(files(spark, "json", tmp_path, settleTime="2 seconds", changedFiles="skip"))
    assert (found["settle_ms"], found["changed"]) == (2_000, "skip")


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("json", "changedFiles", "ignore"),
        ("json", "settleTime", "soon"),
        ("csv", "comment", "#"),
        ("csv", "mode", "PERMISSIVE"),
        ("csv", "multiLine", "true"),
        ("csv", "quote", "'"),
        ("csv", "escape", "|"),
        ("csv", "sep", "||"),
        ("csv", "nullValue", "NA"),
        ("csv", "dateFormat", "dd.MM.yyyy"),
        ("csv", "lineSep", ";"),
        ("csv", "header", "maybe"),
        ("json", "mode", "DROPMALFORMED"),
        ("json", "multiLine", "true"),
        ("json", "allowComments", "true"),
        ("parquet", "mergeSchema", "true"),
        ("parquet", "latestFirst", "maybe"),
        ("parquet", "maxFilesPerTrigger", "0"),
        ("parquet", "maxFileAge", "old"),
        ("parquet", "modifiedAfter", "2024-01-01T00:00:00"),
        ("parquet", "cleanSource", "sometimes"),
    ],
)
def test_files_refuse_options_by_name(
    spark: SparkSession, tmp_path: Path, name: str, option: str, value: str
) -> None:
    text = refusal(files(spark, name, tmp_path, **{option: value}))
    assert text.startswith(f"source {name}: option '{option}'")


@pytest.mark.parametrize(
    ("name", "schema", "column"),
    [
        ("csv", "k bigint, _corrupt_record string", "_corrupt_record"),
        ("json", "k bigint, _corrupt_record string", "_corrupt_record"),
        ("json", "k bigint, m array<map<string,int>>", "m"),
        ("csv", "k bigint, b binary", "b"),
        ("csv", "k bigint, g interval day", "g"),
        ("json", "k bigint, g struct<d:interval day to second>", "g"),
    ],
)
def test_files_refuse_columns_by_name(
    spark: SparkSession, tmp_path: Path, name: str, schema: str, column: str
) -> None:
    frame = spark.readStream.format(name).schema(schema).load(str(tmp_path))
    assert f"column '{column}'" in refusal(frame)


def test_names_of_parquet_columns_are_compared_as_the_session_does(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.caseSensitive", "true")
    assert options(files(spark, "parquet", tmp_path))["case_sensitive"] is True


def test_files_of_another_format_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    assert "source orc" in refusal(files(spark, "orc", tmp_path))


def test_a_folder_with_partitions(spark: SparkSession, tmp_path: Path) -> None:
    inner = tmp_path / "day=2024-01-31" / "s=x"
    inner.mkdir(parents=True)
    (inner / "f.json").write_text('{"k": 1}')
    found = origin(files(spark, "parquet", tmp_path))
    assert found.connector is not None
    given = found.connector.options
    assert given["columns"] == [["k", "bigint"], ["at", "timestamp"]]
    assert given["partitions"] == [["day", "date"], ["s", "string"]]
    assert [field.name for field in found.scan.schema] == ["k", "at", "day", "s"]
    flat = options(files(spark, "parquet", tmp_path, recursiveFileLookup="true"))
    assert flat["recursive"]
    assert "partitions" not in flat


def test_a_partition_column_of_a_type_that_no_name_says(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "gap=1").mkdir()
    (tmp_path / "gap=1" / "f.json").write_text("{}")
    frame = spark.readStream.schema("k bigint, gap interval year").json(str(tmp_path))
    assert "column 'gap'" in refusal(frame)


def test_a_pattern_of_folders(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    given = options(files(spark, "parquet", f"{tmp_path}/{{a,b}}/*", basePath=str(tmp_path)))
    assert given["path"] == f"{tmp_path}/{{a,b}}/*"
    assert given["glob"] is True
    assert "there is no folder" in refusal(files(spark, "parquet", f"{tmp_path}/gone/*"))


@pytest.mark.parametrize(
    ("text", "age_ms"), [("7d", 604_800_000), ("90", 90), ("2 hours", 7_200_000)]
)
def test_how_old_files_may_be(spark: SparkSession, tmp_path: Path, text: str, age_ms: int) -> None:
    assert options(files(spark, "parquet", tmp_path, maxFileAge=text))["age_ms_max"] == age_ms


def test_a_folder_that_is_gone_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    frame = files(spark, "parquet", folder)
    folder.rmdir()
    assert "there is no folder" in refusal(frame)


@pytest.mark.parametrize("shape", ["parquet", "json", "csv", "text"])
def test_what_spark_knows_of_a_file_is_columns_of_the_source(
    spark: SparkSession, tmp_path: Path, shape: str
) -> None:
    reader = spark.readStream.format(shape)
    reader = reader if shape == "text" else reader.schema("value string")
    frame = reader.load(str(tmp_path)).selectExpr("value", "_metadata.file_name AS f")
    facts = options(frame)["facts"]
    assert "_metadata.file_name" in facts
    assert ("_metadata.row_index" in facts) == (shape == "parquet")
    project = translate(frame, query="files").relation
    assert isinstance(project, Step)
    assert isinstance(project.spec, ProjectSpec)
    assert [str(column) for _, column in project.spec.columns] == ["value", "_metadata.file_name"]
    assert options(reader.load(str(tmp_path)).select("value")).get("facts") is None


@pytest.mark.parametrize("name", ["csv", "json"])
def test_times_without_a_zone_are_refused_where_they_would_not_be_utc(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    text = refusal(files(spark, name, tmp_path))
    assert "column 'at'" in text
    assert "Europe/Berlin" in text
