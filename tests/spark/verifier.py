"""A process that judges a query's committed output: `python -m tests.spark.verifier LOG STREAM …`.

It prints one JSON object; the exit code is 1 if anything is lost, doubled or wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.log import open_log
from penstock.runtime.streams import StreamReader
from tests.spark.expected import running_counts, window_counts

EXAMPLES = 5


def judge_windows(rows: list[dict[str, Any]], events: int, rate: float) -> dict[str, Any]:
    """Every window's row must be there once, with the right count."""
    found: Counter[tuple[int, int, int]] = Counter()
    for row in rows:
        start = row["window"]["start"]
        found[round(start.timestamp() * 1e6), row["auction"], row["count"]] += 1
    expected = window_counts(events, rate)
    lost, extra = expected - found, found - expected
    return _verdict(len(rows), sum(lost.values()), sum(extra.values()), [*lost, *extra])


class Counted:
    """Running counts as they come: the last one of each key, and any that fell."""

    def __init__(self) -> None:
        self.rows = 0
        self._last: dict[int, int] = {}
        self._fallen: list[tuple[int, int, int]] = []

    def take(self, rows: list[dict[str, Any]]) -> None:
        self.rows += len(rows)
        for row in rows:
            before = self._last.get(row["auction"], 0)
            if row["count"] < before:
                self._fallen.append((row["auction"], before, row["count"]))
            self._last[row["auction"]] = row["count"]

    def verdict(self, events: int, rate: float) -> dict[str, Any]:
        """The last value of each key must be right, and no key's count may ever have fallen."""
        last, expected = self._last, running_counts(events, rate)
        short = {key for key, count in expected.items() if last.get(key, 0) < count}
        over = {key for key, count in last.items() if count > expected.get(key, 0)}
        wrong = ((key, expected.get(key), last.get(key)) for key in short | over)
        examples = [*self._fallen, *wrong]
        return _verdict(self.rows, len(short), len(over) + len(self._fallen), examples)


def judge_counts(rows: list[dict[str, Any]], events: int, rate: float) -> dict[str, Any]:
    counted = Counted()
    counted.take(rows)
    return counted.verdict(events, rate)


def _verdict(rows: int, lost: int, extra: int, examples: list[Any]) -> dict[str, Any]:
    return {"rows": rows, "lost": lost, "extra": extra, "examples": examples[:EXAMPLES]}


JUDGES = {"windows": judge_windows, "counts": judge_counts}


def committed_rows(log_folder: str, stream: str) -> pa.Table:
    with open_log(Path(log_folder), read_only=True) as log:
        return StreamReader(log, stream).read_all()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("place", help="a log's folder, or one with Parquet files")
    parser.add_argument("stream", help="the stream, or 'parquet'")
    parser.add_argument("kind", choices=tuple(JUDGES))
    parser.add_argument("events", type=int)
    parser.add_argument("rate", type=float)
    args = parser.parse_args()
    if args.stream == "parquet":
        table = pa.concat_tables(
            pq.read_table(f) for f in sorted(Path(args.place).glob("*.parquet"))
        )
    else:
        table = committed_rows(args.place, args.stream)
    verdict = JUDGES[args.kind](table.to_pylist(), args.events, args.rate)
    print(json.dumps(verdict))
    return 1 if verdict["lost"] or verdict["extra"] else 0


if __name__ == "__main__":
    sys.exit(main())
