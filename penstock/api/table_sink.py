"""Tables of Spark's catalog as sinks: made where they are missing, and added to as they allow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.api.files_sink import FilesSink, Layout, check_partitions
from penstock.api.session_sinks import TableAppendSink, frame_of
from penstock.api.spark_errors import CannotAnalyze
from penstock.catalyst.jvm import scala_items, scala_map, scala_option
from penstock.connectors.contract import Sink
from penstock.options import is_elsewhere, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILES = ("parquet", "orc", "csv", "json", "text")  # formats whose tables are nothing but files


@dataclass(frozen=True, slots=True)
class WantedTable:
    """A table by its name, and how to make it where it is missing."""

    name: str
    layout: Layout
    cluster_by: tuple[str, ...] = ()
    path: str | None = None


def open_table(
    spark: SparkSession, wanted: WantedTable, query: str, query_id: str, schema: pa.Schema
) -> Sink:
    """The sink of a table, which is made if it is missing.

    A table that is a folder of files of this machine gets them by name, each once. To any other,
    Spark appends what a batch holds.
    """
    if not spark.catalog.tableExists(wanted.name):
        _make(spark, wanted, schema)
    elif spark.catalog.getTable(wanted.name).tableType in ("VIEW", "TEMPORARY"):
        raise CannotAnalyze(
            f"{wanted.name} is a view, and rows are added to tables: give toTable another name",
            table=wanted.name,
        )
    _check_columns(spark, wanted.name, schema)
    facts = _files_of(spark, wanted.name)
    if facts is None:
        return TableAppendSink(spark, wanted.name)
    folder, layout, keeps_partitions = facts
    on_published = partial(_tell_catalog, spark, wanted.name, keeps_partitions)
    return FilesSink(folder, query, query_id, spark, layout, on_published)


def _make(spark: SparkSession, wanted: WantedTable, schema: pa.Schema) -> None:
    check_partitions(spark, wanted.layout.partition_by, schema)
    writer: Any = frame_of(spark, schema.empty_table()).write.options(**dict(wanted.layout.options))
    if wanted.layout.format:
        writer = writer.format(wanted.layout.format)
    if wanted.layout.partition_by:
        writer = writer.partitionBy(*wanted.layout.partition_by)
    if wanted.cluster_by:
        writer = writer.clusterBy(*wanted.cluster_by)
    if wanted.path is not None:
        writer = writer.option("path", wanted.path)
    writer.mode("ignore").saveAsTable(wanted.name)


def _check_columns(spark: SparkSession, table: str, schema: pa.Schema) -> None:
    """Rows go to columns of the same name and type: files would hold whatever they are given."""
    fold = str if spark.conf.get("spark.sql.caseSensitive") == "true" else str.lower
    there = {fold(each.name): each.dataType for each in spark.table(table).schema}
    rows = frame_of(spark, schema.empty_table()).schema
    given = {fold(each.name): each.dataType for each in rows}
    if given != there:
        raise CannotAnalyze(
            f"the rows do not fit table {table}: they are {rows.simpleString()}, and its columns "
            f"are {spark.table(table).schema.simpleString()}; select the columns by name and cast "
            "them first",
            table=table,
        )


def _files_of(spark: SparkSession, table: str) -> tuple[str, Layout, bool] | None:
    """Folder and layout of a table that is only files, and whether its catalog lists partitions.

    None for every other table.
    """
    session: Any = spark._jsparkSession
    state = session.sessionState()
    try:
        name = state.sqlParser().parseTableIdentifier(table)
        facts = state.catalog().getTableMetadata(name)
    except Exception:  # a name or a table of another catalog: Spark knows how to write it
        return None
    kind = str(scala_option(facts.provider()) or "").lower()
    storage = facts.storage()
    location = str(scala_option(storage.locationUri()) or "")
    if kind not in _FILES or not location or is_elsewhere(location):
        return None
    partitions = tuple(str(each) for each in scala_items(facts.partitionColumnNames()))
    if scala_option(facts.bucketSpec()) is not None:
        return None
    options = tuple(sorted(scala_map(storage.properties()).items()))
    kept = tuple((key, text) for key, text in options if key.lower() != "path")
    return local_path(location), Layout(kind, kept, partitions), facts.tracksPartitionsInCatalog()


def _tell_catalog(
    spark: SparkSession, table: str, keeps_partitions: bool, folders: list[str]
) -> None:
    """Let Spark look again at what it remembers of the table's files."""
    if keeps_partitions and folders != ["."]:
        spark.catalog.recoverPartitions(table)
    spark.catalog.refreshTable(table)
