"""The benchmark of producers: rows that one program outside sends, until they are committed.

The query drops two rows of three, and sums the others by key; what passes its filter is persisted
in the log before the program hears that all is safe. The floor is the same bytes over a connection
to a process that only receives them and checks their checksums, and keeps nothing.
"""

from __future__ import annotations

import argparse
import socket
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F
from xxhash import xxh3_64_intdigest

from penstock.api.query import StreamingQuery
from penstock.api.session import attach
from penstock.api.writer import writeStream
from penstock.bench.arguments import whole
from penstock.bench.arrivals import RowsDiffer
from penstock.bench.crew import Crew
from penstock.bench.report import Report, machine_facts, median, say
from penstock.bench.sessions import local_session, wait_compiled
from penstock.connectors import producer_wire as wire
from penstock.connectors.producer import Producer
from penstock.runtime.streams import StreamReader

TITLE = "producers: rows that one program outside sends, until they are committed"
BATCH_ROWS = 1 << 16
KEYS, KEYS_KEPT = 1_000, 333
SLOTS = 2
SCHEMA = "id BIGINT, sensor INT, value DOUBLE, at TIMESTAMP"
STREAM = "sums"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--batches", type=whole, default=300, metavar="N", help="of 65,536 rows (default 300)"
    )
    parser.add_argument(
        "--repeats", type=whole, default=3, metavar="N", help="how often (default 3)"
    )
    parser.add_argument(
        "--dir", type=Path, default=Path(), help="a folder on the disk to use (default .)"
    )


def measure(args: argparse.Namespace) -> Report:
    """Send all rows, as often as asked, beside the bare connection."""
    report = Report(TITLE, facts=machine_facts() | {"batch_rows": BATCH_ROWS})
    rows = args.batches * BATCH_ROWS
    sent_s, bare_s = [], []
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=args.dir) as name,
        local_session("producers", SLOTS + 1) as spark,
        Crew(1) as crew,
    ):
        folder = Path(name).absolute()
        attached = attach(spark, folder / "log")
        with socket.create_server((wire.HOST, 0)) as free:
            port = free.getsockname()[1]
        reader = spark.readStream.format("producers").schema(SCHEMA).option("port", port)
        sent = reader.option("tokenFile", str(folder / "token")).load()
        kept = sent.where(f"sensor < {KEYS_KEPT}").groupBy("sensor")
        sums = kept.agg(F.count("*").alias("rows"), F.sum("value").alias("total"))
        writer = writeStream(sums).outputMode("update").queryName("sums").toStream(STREAM)
        query: StreamingQuery = writer.options(slots=SLOTS, standbySlots=0).start()
        for turn in range(args.repeats + 1):
            say(f"turn {turn} of {args.repeats}")
            token = str(folder / "token")
            (taken_s,) = crew.run([(send, port, token, f"turn_{turn}", args.batches)])
            bare = _bare_seconds(crew, args.batches)
            if turn:
                sent_s.append(taken_s)
                bare_s.append(bare)
            else:
                wait_compiled(None)  # the first turn does not count
        query.processAllAvailable()
        query.stop()
        counts = StreamReader(attached.log, STREAM).read_all()
        newest = dict(zip(counts["sensor"].to_pylist(), counts["rows"].to_pylist(), strict=True))
        wanted = (args.repeats + 1) * args.batches * _rows_kept()
        if sum(newest.values()) != wanted:
            raise RowsDiffer(f"{sum(newest.values())} rows were counted of {wanted}")
        attached.log.close()
    speed, floor = rows / median(sent_s), rows / median(bare_s)
    report.add("rows_per_s", speed, "from the first send to the last acknowledgement", len(sent_s))
    report.add("mb_per_s", speed * _row_bytes() / 1e6, "of Arrow IPC, so sent", len(sent_s))
    report.add("bare_rows_per_s", floor, "the same bytes received and checked", len(bare_s))
    return report


def batch() -> pa.RecordBatch:
    number = np.arange(BATCH_ROWS)
    return pa.record_batch(
        {
            "id": number,
            "sensor": (number * 7_919 % KEYS).astype(np.int32),
            "value": number * 31 % 10_007 / 4,
            "at": pa.array(number * 100, pa.timestamp("us", "UTC")),
        }
    )


def _rows_kept() -> int:
    return int(np.count_nonzero(batch().column("sensor").to_numpy() < KEYS_KEPT))


def _row_bytes() -> float:
    return float(wire.encode_rows(batch()).size) / BATCH_ROWS


def send(start_s: float, port: int, token: str, name: str, batches: int) -> float:
    """Seconds until all is acknowledged."""
    del start_s
    rows = batch()
    with Producer(name, port, token_file=token) as producer:
        begun_s = time.perf_counter()
        for number in range(1, batches + 1):
            producer.send(rows, number)
        producer.flush()
        return time.perf_counter() - begun_s


def _bare_seconds(crew: Crew, batches: int) -> float:
    with socket.create_server((wire.HOST, 0)) as server:
        threading.Thread(target=_receive, args=(server, batches), daemon=True).start()
        return float(crew.run([(send_bare, server.getsockname()[1], batches)])[0])


def send_bare(start_s: float, port: int, batches: int) -> float:
    """The same bytes and checksums, and one word at the end."""
    del start_s
    rows = batch()
    with socket.create_connection((wire.HOST, port)) as connection:
        begun_s = time.perf_counter()
        for number in range(1, batches + 1):
            payload = wire.encode_rows(rows)
            connection.sendall(wire.frame(wire.UNIT, payload, number, wire.FORMATS["arrow"]))
            connection.sendall(payload)
        connection.recv(1)
        return time.perf_counter() - begun_s


def _receive(server: socket.socket, batches: int) -> None:
    connection, _ = server.accept()
    with connection, connection.makefile("rb") as stream:
        for _ in range(batches):
            head = wire.read_frame(stream.read(wire.FRAME_BYTES), wire.UNIT_BYTES_MAX)
            if xxh3_64_intdigest(stream.read(head.size)) != head.checksum:
                raise RowsDiffer("a checksum differs")
        connection.sendall(b"x")
