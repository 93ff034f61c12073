"""A Spark driver in a process of its own, so that it can be killed: it obeys lines of JSON.

`python -m tests.spark.driver MASTER LOG KERNELS` makes a session, attaches it to the log and then
reads commands from standard input. Each answer is one line on standard output that begins with @.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.api.query import StreamingQuery
from penstock.api.session import attach
from penstock.api.writer import DataStreamWriter, writeStream
from penstock.errors import StreamError


def new_session(master: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_HOME"] = os.path.dirname(pyspark.__file__)
    session = (
        SparkSession.builder.master(master)
        .appName("penstock-kills")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session


class Driver:
    """The queries of one session by name; each public method is a command."""

    def __init__(self, spark: SparkSession, log: str, kernels: str) -> None:
        self._spark = spark
        self._queries: dict[str, StreamingQuery] = {}
        attach(spark, log, kernels=kernels)  # compiled once for all tests

    def start(self, name: str, kind: str, events: int, rate: float, **more: Any) -> dict[str, Any]:
        """Start a query over `events` bids that come at a rate, or all at once."""
        paced = more.pop("paced", True)
        rows = self._bids(events, rate, paced)
        if more.pop("by_spark", False):  # the same number, by a way that only Spark knows
            same = F.expr("cast(format_string('%1$d', auction) AS bigint)")
            rows = rows.withColumn("auction", same)
        if kind == "windows":
            grouped = rows.withWatermark("dateTime", "1 second").groupBy(
                F.window("dateTime", "10 seconds", "2 seconds"), "auction"
            )
            return self._run(writeStream(grouped.count()), name, more)
        writer = writeStream(rows.groupBy("auction").count()).outputMode("update")
        return self._run(writer, name, more)

    def chance(self, name: str, path: str, events: int, rate: float) -> dict[str, Any]:
        """Start a query that gives each bid what chance gives, by Spark and by a function."""
        token = F.udf(lambda price: f"{price}-{uuid.uuid4()}", "string").asNondeterministic()
        rows = self._bids(events, rate, True).select(
            "auction", F.rand().alias("r"), F.expr("uuid()").alias("u"), token("price").alias("t")
        )
        more = {"sink": "parquet", "path": path, "standbySlots": 0}
        return self._run(writeStream(rows), name, more)

    def copy(self, name: str, stream: str, **more: Any) -> dict[str, Any]:
        """Start a query that copies a stream's even numbers."""
        rows = self._spark.readStream.format("penstock").option("stream", stream).load()
        return self._run(writeStream(rows.where("number % 2 = 0")), name, more)

    def listen(self, name: str, port: int, token: str, **more: Any) -> dict[str, Any]:
        """Start a query that counts by number what producers send, of the rows a filter leaves."""
        reader = self._spark.readStream.format("producers").schema("n BIGINT, k BIGINT, pad STRING")
        rows = reader.option("port", port).option("tokenFile", token).load()
        counts = rows.where("k > 0").select("n").groupBy("n").count()
        return self._run(writeStream(counts).outputMode("update"), name, more)

    def _run(self, writer: DataStreamWriter, name: str, more: dict[str, Any]) -> dict[str, Any]:
        sink, path = more.pop("sink", "stream"), more.pop("path", None)
        if more.pop("available_now", False):
            writer.trigger(availableNow=True)
        writer.queryName(name).options(**more)
        if sink == "foreach":
            writer.foreachBatch(_Notes(Path(path)))
        elif sink == "stuck":
            writer.foreachBatch(_Stuck(Path(path)))
        elif sink == "stream":
            writer.toStream(name)
        else:
            writer.format(sink)
        query = writer.start(path if sink == "parquet" else None)
        self._queries[name] = query
        return {"id": query.id, "runId": query.runId, "name": query.name}

    def _bids(self, events: int, rate: float, paced: bool) -> DataFrame:
        reader = self._spark.readStream.format("nexmark").option("kind", "bids")
        reader = reader.option("events", events).option("rate", rate)
        return reader.option("unpaced", str(not paced).lower()).load()

    def slots(self, name: str) -> list[tuple[int, list[str]]]:
        processes = self._queries[name].job.slot_processes().values()
        return [(pid, list(vertices)) for pid, _, vertices in processes]

    def standbys(self, name: str) -> int:
        return self._queries[name].job.standbys_ready()

    def wait_running(self, name: str) -> bool:
        return self._queries[name].job.wait_running(100)

    def epochs(self, name: str) -> dict[str, int]:
        status = self._queries[name].job.vertex_status()
        return {vertex: facts.get("epoch", 0) for vertex, facts in status.items()}

    def recoveries(self, name: str) -> list[dict[str, Any]]:
        return [
            {"pid": each.pid, "reason": each.reason, "started": each.started_s is not None}
            for each in self._queries[name].job.recoveries()
        ]

    def is_over(self, name: str) -> dict[str, Any]:
        query = self._queries[name]
        error = query.exception()
        text = None if error is None else f"[{error.error_class}] {error.message}"
        return {"over": not query.isActive, "error": text}

    def stop(self, name: str) -> None:
        self._queries[name].stop()

    def process_all(self, name: str) -> None:
        self._queries[name].processAllAvailable()

    def progress(self, name: str) -> dict[str, Any] | None:
        progress = self._queries[name].lastProgress
        return None if progress is None else json.loads(progress.json)

    def rows_of_view(self, name: str) -> list[dict[str, Any]]:
        table = self._spark.table(name).toArrow()
        return json.loads(json.dumps(table.to_pylist(), default=str))

    def job_beside(self) -> int:
        """A Spark job of the user's own, with a shuffle."""
        rows = self._spark.range(1000).groupBy((F.col("id") % 7).alias("k")).sum("id")
        return int(rows.agg(F.sum("sum(id)")).collect()[0][0])

    def await_end(self, name: str) -> bool | None:
        return self._queries[name].awaitTermination(100)

    def threads(self) -> list[str]:
        return [thread.name for thread in threading.enumerate() if "penstock" in thread.name]

    def stop_session(self) -> None:
        self._spark.stop()


class _Notes:
    """A foreachBatch function that writes each call down, in one line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, frame: DataFrame, epoch: int) -> None:
        rows = json.loads(json.dumps(frame.toArrow().to_pylist(), default=str))
        with self._path.open("a") as notes:
            notes.write(json.dumps([epoch, rows]) + "\n")


class _Stuck:
    """A foreachBatch function that never returns, as one in a job that Spark has lost."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, frame: DataFrame, epoch: int) -> None:
        self._path.touch()
        threading.Event().wait()


def answer(driver: Driver, line: str) -> dict[str, Any]:
    command, arguments = json.loads(line)
    try:
        return {"value": getattr(driver, command)(**arguments)}
    except StreamError as error:
        details = {key: str(value) for key, value in error.details.items()}
        return {"error": error.error_class, "message": error.message, "details": details}


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    master, log, kernels = sys.argv[1:]
    driver = Driver(new_session(master), log, kernels)
    print("@ready", flush=True)
    for line in sys.stdin:
        print("@" + json.dumps(answer(driver, line)), flush=True)
    os._exit(0)  # nobody is there any more: end as a killed process does


if __name__ == "__main__":
    main()
