"""The same queries as Flink SQL, over CSV files of the same rows, in an environment of its own.

The package `apache-flink` brings its own Java libraries and other versions of what Spark needs, so
it is installed apart, and its python is named. It reads files of CSV: its connector for Parquet is
a library that the package does not have. A job begins with some seconds of starting its cluster;
they are measured with few rows, and subtracted.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv

from penstock.bench.scabbard.engines import SLOTS, Input
from penstock.bench.scabbard.queries import WindowQuery
from penstock.bench.scabbard.samples import wide
from penstock.connectors.repeating import RepeatingSource, Sample
from penstock.errors import InvalidArgument

HOW_TO_GET = "python3.11 -m venv flink && flink/bin/pip install apache-flink"
JOB = Path(__file__).with_name("flink_job.py")
JOB_S_MAX = 900
START_ROWS = 20_000
FILES = SLOTS  # each task reads one: the rows of a second one would be late
SETTINGS = MappingProxyType(
    {
        "parallelism.default": str(SLOTS),
        "table.local-time-zone": "UTC",
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
    }
)
_TYPES = {
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.binary(): "STRING",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP(3)",
}


class FlinkFailed(RuntimeError):
    """A job did not end well; the message has the end of what it said."""


def check_flink(python: Path | None) -> None:
    """Refuse to measure beside a Flink that is not there."""
    if python is None:
        raise InvalidArgument(
            "--against flink needs --flink-python, the python of an environment with Flink. Make "
            f"one: {HOW_TO_GET}; then name flink/bin/python"
        )
    try:
        command = [str(python), "-c", "import pyflink.table"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except OSError as error:
        raise InvalidArgument(f"--flink-python {python} cannot be run: {error}") from None
    if done.returncode:
        said = done.stderr.strip().rpartition("\n")[2]
        raise InvalidArgument(
            f"--flink-python {python} has no Flink ({said}). Make an environment that has it: "
            f"{HOW_TO_GET}; then name flink/bin/python"
        )


def flink_rows_per_s(python: Path, query: WindowQuery, given: Input, scratch: Path) -> float:
    """Rows a second of a job over the rows of `given`, without the time that starting takes."""
    scratch.mkdir(parents=True)
    try:
        few = replace(given, rows=START_ROWS)
        jobs = [_job(query, each, scratch / name) for name, each in (("few", few), ("all", given))]
        settings = {**SETTINGS, "execution.checkpointing.dir": (scratch / "checkpoints").as_uri()}
        # The first job also compiles what the second finds: what it takes again tells the start.
        order = {"settings": settings, "jobs": [jobs[0], jobs[0], jobs[1]]}
        _, start_s, all_s = _run(python, order)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if all_s <= start_s:
        raise FlinkFailed(f"{given.rows:,} rows take no longer than {START_ROWS:,}: give it more")
    return (given.rows - START_ROWS) / (all_s - start_s)


def _run(python: Path, order: Mapping[str, Any]) -> list[float]:
    done = subprocess.run(
        [str(python), str(JOB)],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        timeout=JOB_S_MAX,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        causes = [line for line in lines if line.startswith((": ", "Caused by")) or "Error" in line]
        raise FlinkFailed((causes or lines or ["it said nothing"])[-1].strip(": "))
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [each["seconds"] for each in told]


def _job(query: WindowQuery, given: Input, folder: Path) -> dict[str, Any]:
    columns = ["ts", *query.columns]
    schema = _write_csv(given, columns, folder / "rows")
    tables = [_table("given", schema, folder / "rows", ", WATERMARK FOR ts AS ts")]
    if query.name == "ysb":
        tables.append(_campaigns(given, folder / "ads"))
    select = SQL[query.name]
    tables.append(f"CREATE TABLE results ({_OUT[query.name]}) WITH ('connector'='blackhole')")
    return {"tables": tables, "insert": f"INSERT INTO results {select}"}


def _write_csv(given: Input, columns: list[str], folder: Path) -> pa.Schema:
    """The rows dealt to some files, each in order of time."""
    folder.mkdir(parents=True)
    made = given.made
    source = RepeatingSource(Sample(made.batch(), "ts", made.period_us), given.rows, columns)
    options = pc_csv.WriteOptions(include_header=False, quoting_style="none")
    for number, part in enumerate(source.split(FILES)):
        offset, ended = part.initial_offset(), False
        with (folder / f"{number}.csv").open("wb") as file:
            while not ended:
                read = part.read(offset, 1 << 18)
                offset, ended = read.next_offset, read.ended
                if read.batch is not None:
                    pc_csv.write_csv(_as_text(read.batch), file, options)
    return source.schema


def _as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Times as Flink reads them, numbers of 128 bits as digits."""
    arrays = []
    for column in batch.columns:
        if pa.types.is_timestamp(column.type):
            column = pc.strftime(column.cast(pa.timestamp("ms"), safe=False), "%Y-%m-%d %H:%M:%S")  # noqa: PLW2901
        elif pa.types.is_binary(column.type):
            column = _digits(column)  # noqa: PLW2901
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _digits(column: pa.Array) -> pa.Array:
    coded = column.dictionary_encode()
    texts = pa.array([each.hex() for each in coded.dictionary.to_pylist()])
    return texts.take(coded.indices)


def _table(name: str, schema: pa.Schema, folder: Path, more: str = "") -> str:
    columns = ", ".join(f"`{field.name}` {_TYPES[field.type]}" for field in schema)
    options = f"'connector'='filesystem', 'path'='{folder.as_uri()}', 'format'='csv'"
    return f"CREATE TABLE {name} ({columns}{more}) WITH ({options})"


def _campaigns(given: Input, folder: Path) -> str:
    folder.mkdir(parents=True)
    keys = wide(np.arange(given.campaigns.size))
    lines = (
        f"{key.tobytes().hex()},{campaign}\n"
        for key, campaign in zip(keys, given.campaigns, strict=True)
    )
    (folder / "ads.csv").write_text("".join(lines), encoding="utf-8")
    schema = pa.schema({"ad_id": pa.binary(), "campaign": pa.int64()})
    return _table("ads", schema, folder)


# --- the queries ----------------------------------------------------------------------------------


def _hop(size_s: int, rows: str = "TABLE given") -> str:
    # Flink counts at most 99 of a unit with two digits, unless more are asked for.
    size = f"INTERVAL '{size_s}' SECOND(4)"
    return f"TABLE(HOP({rows}, DESCRIPTOR(ts), INTERVAL '1' SECOND, {size}))"


_BY = "GROUP BY window_start, window_end"
_PLUG = "plug, household, house"
_SEGMENT = "highway, direction, `position` / 5280"
_PLUGS = f"SELECT window_start, window_end, {_PLUG}, AVG(`value`) m FROM {_hop(128)} {_BY}, {_PLUG}"
_EVERYWHERE = f"SELECT window_start, window_end, AVG(`value`) m FROM {_hop(128)} {_BY}"
_VEHICLES = (
    "SELECT window_start, window_end, vehicle, highway, direction, `position` / 5280 segment, "
    f"COUNT(*) n FROM {_hop(30)} {_BY}, vehicle, {_SEGMENT}"
)
_IDS = f"SELECT window_start, window_end, id, COUNT(*) n FROM {_hop(60)} {_BY}, id"
_MOST = f"SELECT window_start, window_end, MAX(n) n FROM ({_IDS}) {_BY}"
_SAME = "l.window_start = r.window_start AND l.window_end = r.window_end"
# A joined row has lost its time: so ads are counted by window before their campaign is looked up.
_ADS = (
    "SELECT window_start, ad_id, COUNT(*) n FROM TABLE(TUMBLE(TABLE given, DESCRIPTOR(ts), "
    f"INTERVAL '10' SECOND)) WHERE event_type = 0 {_BY}, ad_id"
)
SQL: Mapping[str, str] = MappingProxyType(
    {
        "cm1": f"SELECT window_start, category, SUM(cpu) FROM {_hop(60)} {_BY}, category",
        "cm2": f"SELECT window_start, jobId, AVG(cpu) FROM {_hop(60)} WHERE eventType = 3 {_BY}, "
        "jobId",
        "sg1": f"SELECT window_start, AVG(`value`) FROM {_hop(3_600)} {_BY}",
        "sg2": f"SELECT window_start, {_PLUG}, m FROM ({_PLUGS})",
        "sg3": f"SELECT l.window_start, {_PLUG}, l.m, r.m FROM ({_PLUGS}) l JOIN ({_EVERYWHERE}) r "
        f"ON {_SAME} WHERE l.m > r.m",
        "lrb1": f"SELECT window_start, {_SEGMENT}, AVG(speed) FROM {_hop(300)} {_BY}, {_SEGMENT} "
        "HAVING AVG(speed) < 40",
        "lrb2": f"SELECT window_start, vehicle, highway, direction, segment, n FROM ({_VEHICLES})",
        "lrb3": f"SELECT window_start, highway, direction, segment, COUNT(*) FROM ({_VEHICLES}) "
        f"{_BY}, highway, direction, segment",
        "ysb": f"SELECT window_start, campaign, SUM(n) FROM ({_ADS}) c JOIN ads ON c.ad_id = "
        "ads.ad_id GROUP BY window_start, campaign",
        "nq": f"SELECT l.window_start, l.id, l.n FROM ({_IDS}) l JOIN ({_MOST}) r ON {_SAME} "
        "WHERE l.n = r.n",
        "sm": f"SELECT window_start, AVG(mf01), AVG(mf02), AVG(mf03) FROM {_hop(60)} {_BY}",
    }
)
_START = "a TIMESTAMP(3)"
_OUT: Mapping[str, str] = MappingProxyType(
    {
        "cm1": f"{_START}, b INT, c FLOAT",
        "cm2": f"{_START}, b BIGINT, c FLOAT",
        "sg1": f"{_START}, b FLOAT",
        "sg2": f"{_START}, b INT, c INT, d INT, e FLOAT",
        "sg3": f"{_START}, b INT, c INT, d INT, e FLOAT, f FLOAT",
        "lrb1": f"{_START}, b INT, c INT, d INT, e FLOAT",
        "lrb2": f"{_START}, b INT, c INT, d INT, e INT, f BIGINT",
        "lrb3": f"{_START}, b INT, c INT, d INT, e BIGINT",
        "ysb": f"{_START}, b BIGINT, c BIGINT",
        "nq": f"{_START}, b BIGINT, c BIGINT",
        "sm": f"{_START}, b INT, c INT, d INT",
    }
)
