"""Every query in three ways beside Structured Streaming, Flink and a loop written by hand.

Penstock's slots replay a sample that lies in memory, with times that go on rising; Structured
Streaming and Flink read the same rows from files of the columns that the query needs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from penstock.bench.report import median, rounded, say
from penstock.bench.scabbard.engines import (
    Input,
    Way,
    answer_of_penstock,
    rows_of,
    spark_rows_per_s,
)
from penstock.bench.scabbard.flink import FlinkFailed, flink_rows_per_s
from penstock.bench.scabbard.loops import loop_rows_per_s
from penstock.bench.scabbard.oracle import difference
from penstock.bench.scabbard.queries import WindowQuery
from penstock.bench.scabbard.runs import Measured, run_measured, warm
from penstock.bench.scabbard.setting import Setting

CHECKED_SAMPLE = 8_192
CHECKED_CYCLES = 4
THIN_PER_SECOND = 20  # of the hour's query, so that its windows close in few rows
SPARK_ROWS_MAX = 8_000_000
FLINK_ROWS = 2_000_000
WAYS: Mapping[str, Way] = MappingProxyType(
    {
        "rows_per_s": Way(),
        "persisted_rows_per_s": Way(replayable=False),
        "unsafe_rows_per_s": Way("unsafe"),
    }
)
YSB_ROWS_PER_S_MIN = 150_000_000
YSB_LOOP_SHARE_MIN = 0.5
YSB_TIMES_SPARK_MIN = 30
TIMES_SPARK_MIN = 10
UNSAFE_SHARE_MIN = 0.9
UNSAFE_SHARE_PERSISTED_MIN = 0.7


def measure(setting: Setting) -> dict[str, Any]:
    """The figures of every query."""
    found = {}
    for query in setting.queries():
        folder = setting.scratch(query.name)
        found[query.name] = _Bench(setting.spark, query, folder, setting.args).figures()
    return found


class _Bench:
    """One query, every way that is asked for."""

    def __init__(
        self, spark: SparkSession, query: WindowQuery, folder: Path, args: argparse.Namespace
    ) -> None:
        self.spark = spark
        self.query = query
        self.folder = folder
        self.args = args
        self.given = Input.of(query, folder, args.seed, query.sample_rows, query.sample_rows)

    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.args.verify:
            found |= self._verdict()
        found |= self._of_penstock()
        if "spark" in self.args.against:
            found |= self._of_spark()
            if "spark_rows_per_s" in found:
                found["times_spark"] = rounded(found["rows_per_s"] / found["spark_rows_per_s"])
        if "flink" in self.args.against:
            found |= self._of_flink()
        if "loop" in self.args.against:
            per_row = found["bytes_persisted"] / found["rows"]
            given = self.given
            found["loop_rows_per_s"] = rounded(
                loop_rows_per_s(
                    self.query.name,
                    given.made,
                    given.campaigns,
                    self.args.seconds,
                    self.folder,
                    per_row,
                )
            )
        return found

    def _verdict(self) -> dict[str, Any]:
        say(f"{self.query.name}: {CHECKED_CYCLES} cycles beside the oracle")
        differs = checked(self.spark, self.query, self.folder, self.args.seed)
        if differs is None:
            return {"identical": True}
        say(f"    {differs}")
        return {"identical": False, "differences": differs}

    def _of_penstock(self) -> dict[str, Any]:
        done: dict[str, list[Measured]] = {key: [] for key in WAYS}
        for key in ("rows_per_s", "persisted_rows_per_s"):
            warm(self.spark, self.query, self.given, self._way(key), self.folder / f"warm-{key}")
        for turn in range(self.args.repeats):
            for key in WAYS:
                log = self.folder / f"{key}-{turn}"
                of_way = run_measured(
                    self.spark, self.query, self.given, self._way(key), log, self.args.seconds
                )
                done[key].append(of_way)
                say(f"{self.query.name}: {key} {of_way.rows_per_s:,.0f}")
        found: dict[str, Any] = {
            key: rounded(median([each.rows_per_s for each in of_way]))
            for key, of_way in done.items()
        }
        found["persisted_of_unsafe"] = rounded(
            found["persisted_rows_per_s"] / found["unsafe_rows_per_s"]
        )
        found["replayed_of_unsafe"] = rounded(found["rows_per_s"] / found["unsafe_rows_per_s"])
        persisted = done["persisted_rows_per_s"][-1]
        assert persisted.bytes_per_row is not None
        found["rows"] = persisted.rows
        found["bytes_in"] = persisted.rows * self.query.row_bytes
        found["bytes_persisted"] = round(persisted.rows * persisted.bytes_per_row)
        for key in ("p50_ms", "p95_ms", "checkpoint_mb", "checkpoint_ms"):
            told = [getattr(each, key) for each in done["rows_per_s"]]
            if known := [each for each in told if each is not None]:
                found[key] = rounded(median(known))
        return found

    def _way(self, key: str) -> Way:
        return replace(WAYS[key], codec=self.args.codec)

    def _of_spark(self) -> dict[str, Any]:
        rows = min(SPARK_ROWS_MAX, self.query.spark_windows // self.query.windows_per_row)
        rates = []
        try:
            for turn, count in enumerate((rows // 8, *(rows,) * self.args.repeats)):
                given = replace(self.given, rows=count)
                scratch = self.folder / f"spark-{turn}"
                rates.append(spark_rows_per_s(self.spark, self.query, given, scratch))
        except AnalysisException as error:
            say(f"{self.query.name}: Structured Streaming refuses it: {error.getCondition()}")
            return {}
        say(f"{self.query.name}: Structured Streaming {rates[-1]:,.0f}")
        return {"spark_rows_per_s": rounded(median(rates[1:])), "spark_rows": rows}

    def _of_flink(self) -> dict[str, Any]:
        given = replace(self.given, rows=FLINK_ROWS)
        try:
            rate = flink_rows_per_s(
                self.args.flink_python, self.query, given, self.folder / "flink"
            )
        except FlinkFailed as error:
            say(f"{self.query.name}: Flink fails: {error}")
            return {"flink_failed": str(error)}
        say(f"{self.query.name}: Flink {rate:,.0f}")
        return {"flink_rows_per_s": rounded(rate), "flink_rows": FLINK_ROWS}


def checked(spark: SparkSession, query: WindowQuery, folder: Path, seed: int) -> str | None:
    """How the answers over a few cycles of a small sample differ from the oracle's, None if not."""
    cycles, shape = CHECKED_CYCLES, {}
    if query.window_s > 1_000:
        shape = {"per_second": THIN_PER_SECOND}
        cycles = -(-2 * query.window_s * THIN_PER_SECOND // CHECKED_SAMPLE)
    given = Input.of(query, folder, seed, CHECKED_SAMPLE, CHECKED_SAMPLE * cycles, **shape)
    for key, way in WAYS.items():
        answer = answer_of_penstock(spark, query, given, way, folder / f"checked-{key}")
        if differs := difference(query.name, given.expanded(), rows_of(answer)):
            return f"{key}: {differs}"
    return None


def goals_of_query(name: str, figures: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield each goal whose figures are there, and whether it is reached."""
    if figures.get("identical") is not None:
        yield "identical", figures["identical"]
    persisted = figures.get("persisted_rows_per_s", 0)
    if name == "ysb" and persisted:
        yield "150_million_persisted", persisted >= YSB_ROWS_PER_S_MIN
        if loop := figures.get("loop_rows_per_s"):
            yield "persisted_at_least_half_the_loop", persisted >= YSB_LOOP_SHARE_MIN * loop
        if spark := figures.get("spark_rows_per_s"):
            yield (
                f"persisted_{YSB_TIMES_SPARK_MIN}_times_structured_streaming",
                persisted >= YSB_TIMES_SPARK_MIN * spark,
            )
    elif "times_spark" in figures:
        yield (
            f"{TIMES_SPARK_MIN}_times_structured_streaming",
            figures["times_spark"] >= TIMES_SPARK_MIN,
        )
    for key, least in (
        ("replayed_of_unsafe", UNSAFE_SHARE_MIN),
        ("persisted_of_unsafe", UNSAFE_SHARE_PERSISTED_MIN),
    ):
        if key in figures:
            yield f"{key}_at_least_{least}", figures[key] >= least


def goals(found: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """The goals of all queries."""
    for name, figures in found.items():
        for goal, is_reached in goals_of_query(name, figures):
            yield f"{name}_{goal}", is_reached
