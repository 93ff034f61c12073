"""A query for a process that will be killed, and its verification in a process of its own."""

from __future__ import annotations

import random
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.connectors.producer import Producer
from penstock.kernels.cache import KernelCache
from penstock.plan.query import Query
from penstock.stages.settings import Settings
from penstock.testing.columns import col
from penstock.testing.plans import count, query, scan_source, sum_, window
from tests.connectors.nexmark_reference import Reference
from tests.runtime.laboratory import SECOND_US, Laboratory

EVENTS = 8_000
RATE = 100.0
SEED = 11
SIZE_US, SLIDE_US = 10 * SECOND_US, 2 * SECOND_US


def tested() -> Query:
    """Windows per auction through an exchange, and the bids themselves beside them."""
    bids = scan_source(
        "nexmark",
        "auction bigint not null, price bigint not null, dateTime timestamp not null",
        partitions=None,
        kind="bids",
        seed=SEED,
        events_max=EVENTS,
        rate=RATE,
    )
    counts = (
        bids.with_watermark("dateTime", 0)
        .group_by("auction", window=window("dateTime", SIZE_US, SLIDE_US))
        .agg(count().alias("bids"), sum_("price").alias("total"))
    )
    settings = Settings(step_rows_max=40, commit_interval_ms=5, checkpoint_interval_commits=7)
    return query(
        "killed", counts.to_stream("windows"), bids.to_stream("bids"), parallelism=2,
        settings=settings,
    )  # fmt: skip


def work(connection: Connection, folder: Path, kernels: KernelCache) -> None:
    """Run the query to its end, and say when it has begun and when it is over."""
    lab = Laboratory(folder, kernels)
    with lab.open(tested()) as process:
        connection.send("begun")
        process.run()
    connection.send("ended")


FILES, LINES = 500, 6


def cleaned(folder: Path, way: str) -> Query:
    """Numbers of files that are cleaned up behind their readers: as they are, and counted."""
    options: dict[str, Any] = {"clean": way}
    if way == "archive":
        options["archive"] = str(folder.parent / "archive")
    numbers = scan_source(
        "folder",
        "n bigint, k bigint",
        partitions=None,
        format="jsonl",
        path=str(folder.parent / "in"),
        bounded=True,
        settle_ms=0,
        **options,
    )
    counts = numbers.group_by("k").agg(count().alias("rows"), mode="update")
    settings = Settings(step_rows_max=40, commit_interval_ms=2, checkpoint_interval_commits=7)
    return query(
        "cleaned", numbers.to_stream("numbers"), counts.to_stream("counts"), parallelism=2,
        settings=settings,
    )  # fmt: skip


def clean(connection: Connection, folder: Path, kernels: KernelCache, way: str) -> None:
    lab = Laboratory(folder, kernels)
    with lab.open(cleaned(folder, way)) as process:
        connection.send("begun")
        process.run()
    connection.send("ended")


def verify_cleaned(connection: Connection, folder: Path, kernels: KernelCache) -> None:
    lab = Laboratory(folder, kernels)
    found = sorted(row["n"] for row in lab.rows("numbers"))
    last = {row["k"]: row["rows"] for row in lab.rows("counts")}
    connection.send((found == list(range(FILES * LINES)), sum(last.values())))


def verify(connection: Connection, folder: Path, kernels: KernelCache) -> None:
    """Compare what is committed with what plain Python makes of the same events."""
    lab = Laboratory(folder, kernels)
    reference = _Light(SEED, RATE)
    bids: Counter[tuple[int, int, int]] = Counter()
    windows: dict[tuple[int, int], tuple[int, int]] = {}
    for number in range(EVENTS):
        if reference.kind(number) != 2:
            continue
        row = reference.event(number)[1]
        time_us = round(row["dateTime"].timestamp() * 1000) * 1000
        bids[row["auction"], row["price"], time_us] += 1
        start_us = time_us // SLIDE_US * SLIDE_US
        while start_us > time_us - SIZE_US:
            n, total = windows.get((start_us, row["auction"]), (0, 0))
            windows[start_us, row["auction"]] = (n + 1, total + row["price"])
            start_us -= SLIDE_US
    found_bids = Counter(tuple(row.values()) for row in lab.rows("bids"))
    found = [
        (row["window"][0], row["auction"], row["bids"], row["total"]) for row in lab.rows("windows")
    ]
    expected = [(*key, *value) for key, value in windows.items()]
    connection.send((found_bids == bids, sorted(found) == sorted(expected), len(found)))


class _Light(Reference):
    def channel(self, e: int) -> tuple[str, str]:
        return "", ""

    def padding(self, average: int, counted: int, e: int, f: int) -> str:
        return ""


UNITS, UNIT_ROWS = 400, 5


def sent(folder: Path, port: int) -> Query:
    """Numbers that producers send, of which a filter drops one in three, counted by key."""
    columns = [["n", "bigint"], ["k", "bigint"]]
    numbers = scan_source(
        "producers", "n bigint, k bigint", partitions=1, port=port, columns=columns,
        token_file=str(folder.parent / "token"),
    )  # fmt: skip
    kept = numbers.filter(col("k") > 0)
    counts = kept.group_by("n").agg(count().alias("rows"), mode="update")
    settings = Settings(step_rows_max=40, commit_interval_ms=2, checkpoint_interval_commits=7)
    return query("sent", counts.to_stream("counts"), parallelism=2, settings=settings)


def take_in(connection: Connection, folder: Path, kernels: KernelCache, port: int) -> None:
    """Run the query for ever."""
    lab = Laboratory(folder, kernels)
    with lab.open(sent(folder, port)) as process:
        connection.send("begun")
        while True:
            process.run_available()


def send(connection: Connection, folder: Path, port: int, name: str, first: int) -> None:
    """Send the numbers from `first` on, in units that each life cuts for itself."""
    with Producer(name, port, token_file=folder.parent / "token") as producer:
        done = producer.offset or 0
        connection.send("begun")
        rng = random.Random()
        while done < UNITS * UNIT_ROWS:
            size = min(rng.randint(1, 2 * UNIT_ROWS), UNITS * UNIT_ROWS - done)
            numbers = [first + done + at for at in range(size)]
            rows = pa.record_batch({"n": numbers, "k": [n % 3 for n in numbers]})
            done += size
            producer.send(rows, done)
            time.sleep(0.0005)
    connection.send("ended")


def verify_sent(connection: Connection, folder: Path, kernels: KernelCache) -> None:
    lab = Laboratory(folder, kernels)
    rows = lab.rows("counts")
    connection.send((sorted(row["n"] for row in rows), {row["rows"] for row in rows}))
