"""Whether two engines have made the same of the same files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.bench.files.queries import DELAY_S, FileQuery


def difference(query: FileQuery, found: pa.Table, expected: pa.Table, last_us: int) -> str | None:
    """Say how a streaming result differs from the batch job's over the same files; None if not.

    In append mode those windows count whose end the watermark has reached, which in the end is the
    newest time of all less the delay. In update mode the last row of a key counts.
    """
    if query.output == "append":
        ends_us = pc.struct_field(expected["window"], "end").cast(pa.int64())
        closed_us = last_us - DELAY_S * 1_000_000
        expected = expected.filter(pc.less_equal(ends_us, closed_us))
    else:
        found = _newest(found)
    ours, theirs = _sorted(found), _sorted(expected)
    if ours.equals(theirs):
        return None
    if ours.schema != theirs.schema:
        return f"columns are {ours.schema.names} and should be {theirs.schema.names}"
    if len(ours) != len(theirs):
        return f"{len(ours):,} rows where there should be {len(theirs):,}"
    pairs = zip(ours.to_pylist(), theirs.to_pylist(), strict=True)
    one, other = next(pair for pair in pairs if pair[0] != pair[1])
    return f"{one} where there should be {other}"


def read_result(folder: Path, schema: pa.Schema | None = None) -> pa.Table:
    """The rows of a folder of Parquet files, with times in whole microseconds.

    An engine may write no file where it has no rows: with a schema, that is an empty table.
    """
    files = sorted(path for path in folder.glob("*.parquet") if path.name[0] not in "._")
    if not files and schema is not None:
        return schema.empty_table()
    return pa.concat_tables([_plain(pq.read_table(file)) for file in files])


def _plain(table: pa.Table) -> pa.Table:
    """The same columns with the same types, whoever wrote them."""
    return pa.table({name: _plain_column(table[name]) for name in sorted(table.column_names)})


def _plain_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_struct(column.type):  # a window
        bounds = [pc.struct_field(column, name) for name in ("start", "end")]
        whole = [bound.cast(pa.timestamp("us", "UTC")).combine_chunks() for bound in bounds]
        return pa.chunked_array([pa.StructArray.from_arrays(whole, ["start", "end"])])
    if pa.types.is_dictionary(column.type) or pa.types.is_large_string(column.type):
        return column.cast(pa.string())
    return column


def _newest(rows: pa.Table) -> pa.Table:
    """The last row of each word: an update takes the place of those before it."""
    last = rows.group_by("word", use_threads=False).aggregate([("count", "last")])
    return last.rename_columns({"count_last": "count"})


def _sorted(rows: pa.Table) -> pa.Table:
    flat = rows.flatten()
    flat = flat.select(sorted(flat.column_names))
    return flat.sort_by([(name, "ascending") for name in flat.column_names]).combine_chunks()
