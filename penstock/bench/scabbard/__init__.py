"""The benchmark of windows: eleven queries over six streams, judged by an oracle, beside Structured
Streaming.

Penstock's slots replay a sample that lies in memory, with times that go on rising; Structured
Streaming reads the same rows from Parquet files of the columns that the query needs.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.api.session import Attached, attach
from penstock.bench import arguments
from penstock.bench.report import QueriesReport, machine_facts, median, rounded, say
from penstock.bench.scabbard.engines import Input, on_penstock, on_spark, rows_of
from penstock.bench.scabbard.oracle import difference
from penstock.bench.scabbard.queries import QUERIES, WindowQuery
from penstock.bench.sessions import local_session

TITLE = "queries of windows over replayed samples, judged by an oracle, beside Structured Streaming"
ROWS = 20_000_000
ROWS_MAX = 10**11
CHECKED_SAMPLE = 8_192
CHECKED_CYCLES = 4
THIN_PER_SECOND = 20  # of the hour's query, so that its windows close in few rows
THREADS = 6
TIMES_SPARK_MIN = 10
SPARK_SETTINGS = {"spark.driver.memory": "4g"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--queries",
        type=_queries,
        default=list(QUERIES),
        help=f"names, comma separated (default all: {', '.join(QUERIES)})",
    )
    parser.add_argument(
        "--rows",
        type=_rows,
        default=ROWS,
        metavar="N",
        help=f"as fast as possible (default {ROWS:,})",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the samples (default 1)")
    parser.add_argument(
        "--verify", action="store_true", help=f"compare {CHECKED_CYCLES} cycles with the oracle"
    )
    parser.add_argument(
        "--repeats", type=arguments.whole, default=1, help="turns, medians are told (default 1)"
    )
    parser.add_argument(
        "--against", choices=("spark", "none"), default="spark", help="what to compare with"
    )
    parser.add_argument(
        "--dir", type=Path, default=Path(), help="a folder on the disk to use (default .)"
    )


def _queries(text: str) -> list[str]:
    names = text.lower().split(",")
    for name in names:
        if name not in QUERIES:
            raise argparse.ArgumentTypeError(f"there is no {name!r}; known: {', '.join(QUERIES)}")
    return names


def _rows(text: str) -> int:
    value = int(text)
    if not 1 <= value <= ROWS_MAX:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 to {ROWS_MAX:,}")
    return value


def measure(args: argparse.Namespace) -> QueriesReport:
    """Run every query every way that was asked for, and report."""
    report = QueriesReport(TITLE, facts=machine_facts())
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=args.dir) as name,
        local_session("scabbard", THREADS, SPARK_SETTINGS) as spark,
    ):
        folder = Path(name).absolute()
        attached = attach(spark, folder / "log")
        try:
            for query in (QUERIES[each] for each in args.queries):
                report.queries[query.name] = _figures(query, attached, folder / query.name, args)
        finally:
            attached.log.close()
    report.facts |= {"rows": args.rows, "seed": args.seed}
    report.judge(goals)
    return report


def _figures(
    query: WindowQuery, attached: Attached, folder: Path, args: argparse.Namespace
) -> dict[str, Any]:
    folder.mkdir()
    found: dict[str, Any] = {}
    if args.verify:
        say(f"{query.name}: {CHECKED_CYCLES} cycles beside the oracle")
        if differs := checked(query, attached, folder, args.seed):
            say(f"    {differs}")
            found["differences"] = differs
        found["identical"] = differs is None
    given = Input.of(query, folder, args.seed, query.sample_rows, args.rows)
    own, theirs = [], []
    for turn in range(args.repeats + 1):  # the first is not counted, for either
        say(f"{query.name}: turn {turn + 1} of {args.repeats + 1}, Penstock")
        own.append(args.rows / on_penstock(attached, query, f"{query.name}_{turn}", given).seconds)
        if args.against == "spark" and query.on_spark:
            say(f"{query.name}: {own[-1]:,.0f} rows/s; Structured Streaming")
            other = on_spark(attached.spark, query, given, folder / f"spark-{turn}")
            theirs.append(args.rows / other.seconds)
            say(f"{query.name}: {theirs[-1]:,.0f} rows/s")
    found["rows_per_s"] = rounded(median(own[1:]))
    found["bytes_in"] = args.rows * query.row_bytes
    if theirs:
        found["spark_rows_per_s"] = rounded(median(theirs[1:]))
        found["times_spark"] = rounded(median(own[1:]) / median(theirs[1:]))
    return found


def checked(query: WindowQuery, attached: Attached, folder: Path, seed: int) -> str | None:
    """How the answer over a few cycles of a small sample differs from the oracle's, None if not."""
    cycles, shape = CHECKED_CYCLES, {}
    if query.window_s > 1_000:
        shape = {"per_second": THIN_PER_SECOND}
        cycles = -(-2 * query.window_s * THIN_PER_SECOND // CHECKED_SAMPLE)
    given = Input.of(query, folder, seed, CHECKED_SAMPLE, CHECKED_SAMPLE * cycles, **shape)
    done = on_penstock(attached, query, f"{query.name}_checked", given)
    assert done.rows is not None
    return difference(query.name, given.expanded(), rows_of(done.rows))


def goals(name: str, figures: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield each goal whose figures are there, and whether it is reached."""
    del name
    if figures.get("identical") is not None:
        yield "identical", figures["identical"]
    if "times_spark" in figures:
        yield (
            f"{TIMES_SPARK_MIN}_times_structured_streaming",
            figures["times_spark"] >= TIMES_SPARK_MIN,
        )
