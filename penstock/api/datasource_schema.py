"""Columns on both sides of a data source: Spark's schema and a stream's, compared and converted."""

from __future__ import annotations

import json

import pyarrow as pa
from pyspark.sql import types as spark

from penstock.catalyst.spark_types import handed_over_json, parse_json_type
from penstock.errors import ExpressionError, SchemaMismatch
from penstock.expressions.types import (
    INTERVAL_FIELDS_US,
    MONTHS_KINDS,
    DataType,
    Field,
    Schema,
    arrow_schema,
)

_SPARK_KINDS: dict[str, type[spark.DataType]] = {
    "boolean": spark.BooleanType,
    "tinyint": spark.ByteType,
    "smallint": spark.ShortType,
    "int": spark.IntegerType,
    "bigint": spark.LongType,
    "float": spark.FloatType,
    "double": spark.DoubleType,
    "string": spark.StringType,
    "binary": spark.BinaryType,
    "date": spark.DateType,
    "timestamp": spark.TimestampType,
    "timestamp_ntz": spark.TimestampNTZType,
    "void": spark.NullType,
}
_MONTHS_FIELDS = dict(zip(MONTHS_KINDS, ((0, 0), (1, 1), (0, 1)), strict=True))
_WIDENINGS = {("int", "bigint"), ("float", "double")}


def spark_schema(schema: Schema) -> spark.StructType:
    """The Spark schema of these columns."""
    return spark.StructType(
        [spark.StructField(f.name, _spark_type(f.type), f.nullable) for f in schema]
    )


def handed_over(schema: spark.StructType) -> spark.StructType:
    """The schema of rows on their way to Spark, whose Arrow knows neither months nor void."""
    return spark.StructType.fromJson(json.loads(handed_over_json(schema.json())))


def _spark_type(of: DataType) -> spark.DataType:
    if of.kind == "decimal":
        return spark.DecimalType(of.precision, of.scale)
    if of.kind == "array":
        assert of.element is not None
        return spark.ArrayType(_spark_type(of.element))
    if of.kind == "map":
        assert of.key is not None
        assert of.value is not None
        return spark.MapType(_spark_type(of.key), _spark_type(of.value))
    if of.kind == "struct":
        return spark_schema(of.fields)
    if of.is_collated:
        return spark.StringType(of.kind.split()[-1])
    if of.is_months:
        return spark.YearMonthIntervalType(*_MONTHS_FIELDS[of.kind])
    if of.is_interval:
        fields = list(INTERVAL_FIELDS_US)
        return spark.DayTimeIntervalType(*(fields.index(name) for name in of.interval_fields))
    return _SPARK_KINDS[of.kind]()


def schema_of_spark(schema: spark.StructType) -> Schema:
    """The columns of a Spark schema; one of a type that no stream holds is named."""
    names = [field.name for field in schema.fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaMismatch(
            f"the rows have several columns named {', '.join(twice)}: rename them", columns=twice
        )
    return tuple(Field(field.name, _our_type(field), field.nullable) for field in schema.fields)


def _our_type(column: spark.StructField) -> DataType:
    try:
        # As a schema of its own: collations stand in the column's metadata, not in its type.
        return parse_json_type(spark.StructType([column]).json()).fields[0].type
    except ExpressionError as error:
        kind = column.dataType.simpleString()
        raise ExpressionError(
            f"column {column.name!r} is of type {kind}, which a stream does not hold "
            f"({error.message}): cast it, for example to string",
            column=column.name,
            type=kind,
        ) from error


def check_writable(stream: str, have: Schema, wanted: Schema) -> None:
    """Refuse rows whose columns are not the stream's, before anything is written.

    Order does not matter, a column that may be null may be absent, and int and float widen.
    """
    columns = {field.name: field for field in have}
    problems = [f"{name} is not a column of the stream" for name in _extra(have, wanted)]
    for field in wanted:
        given = columns.get(field.name)
        if given is None:
            if not field.nullable:
                problems.append(f"{field.name} ({field.type} NOT NULL) is missing")
        elif given.type != field.type and (given.type.kind, field.type.kind) not in _WIDENINGS:
            problems.append(f"{field.name} is {given.type} and must be {field.type}")
    if problems:
        raise SchemaMismatch(
            f"the rows do not fit stream {stream!r}: {'; '.join(problems)}. Select and cast the "
            f"stream's columns: {shown(wanted)}",
            stream=stream,
            problems=problems,
        )


def check_readable(stream: str, asked: Schema, there: Schema) -> None:
    """Refuse a schema given by the user that is not some of the stream's columns."""
    there = schema_of_spark(handed_over(spark_schema(there)))
    columns = {field.name: field for field in there}
    problems = [f"{name} is not there" for name in _extra(asked, there)]
    for field in asked:
        found = columns.get(field.name)
        if found is not None and found.type != field.type:
            problems.append(f"{field.name} is {found.type}, not {field.type}")
        elif found is not None and found.nullable and not field.nullable:
            problems.append(f"{field.name} may be null")
    if problems:
        raise SchemaMismatch(
            f"the schema that was asked for does not fit {stream!r}: {'; '.join(problems)}. "
            f"Its columns are {shown(there)}; leave .schema(...) out to read all of them",
            stream=stream,
            problems=problems,
        )


def _extra(some: Schema, others: Schema) -> list[str]:
    names = {field.name for field in others}
    return [field.name for field in some if field.name not in names]


def shown(schema: Schema) -> str:
    """Columns as people write them."""
    return ", ".join(
        f"{field.name} {field.type}{'' if field.nullable else ' NOT NULL'}" for field in schema
    )


def into_stream(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """Rows from Spark with a stream's columns: zones and large layouts unified, order and width."""
    target = arrow_schema(schema)
    columns = []
    for field in target:
        place = batch.schema.get_field_index(field.name)
        column = pa.nulls(batch.num_rows, field.type) if place < 0 else batch.column(place)
        column = column if column.type.equals(field.type) else column.cast(field.type)
        if column.null_count and not field.nullable:
            raise SchemaMismatch(
                f"column {field.name!r} has {column.null_count} nulls, and the stream says NOT "
                "NULL: filter them out",
                column=field.name,
            )
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=target)


def into_spark(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows with exactly the Arrow schema that Spark checks, columns by name."""
    columns = []
    for field in schema:
        column = batch.column(batch.schema.get_field_index(field.name))
        columns.append(column if column.type.equals(field.type) else column.cast(field.type))
    if not columns:
        return batch.select([])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def spark_arrow_schema(schema: spark.StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of rows of this schema."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 (loads pandas: tasks only)

    return to_arrow_schema(schema, timezone="UTC")
