"""Whether codecs follow the data (Fig. 12): the means of three sensors while their values change.

They are the readings modulo 16 at first, after two and a half decision intervals modulo 4,095. Each
is held for 14 rows (`sm`), where runs are stored, whose values may widen; or for one (`sm_single`),
where the width that was known no longer holds them. The whole engine runs in this process over a
source that cannot be read again, so its columns are persisted: with a decision every interval
(`adaptive`), with one at the start (`once`: all that a default can know), and as they are (`none`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.bench.report import rounded, say
from penstock.bench.scabbard.samples import SECOND_US, START_S, STREAMS
from penstock.bench.scabbard.setting import Setting
from penstock.connectors.contract import (
    Offset,
    Source,
    SourceBatch,
    check_offset,
    check_rows_max,
)
from penstock.log import punit
from penstock.log.record import START, Record, RecordKind
from penstock.plan.optimizer import plan_program
from penstock.plan.query import Query
from penstock.runtime.sources import SourceRequest
from penstock.stages.program import Program
from penstock.stages.settings import Settings
from penstock.testing.plans import avg, query, scan_source, window
from penstock.testing.single_process import SingleProcess

INTERVAL_S = 4.0
CHANGE_AT, END_AT = 2.5, 4.0  # in intervals: the change falls between two decisions
MEASURED = ("mf01", "mf02", "mf03")
MODULI = (16, 4_095)
HELD_ROWS: Mapping[str, int] = MappingProxyType({"sm": 14, "sm_single": 1})
BUFFER_ROWS = 14 * (1 << 14)
ROW_US = 10_000
BUCKETS = 16  # of an interval
LOOK_S = 0.05
PAGE = 1_024
NEVER_MS = 86_400_000
WARMUP_S = 1.0
UNIT_S_MAX = 60.0
WARM_INTERVAL_S = 0.5  # of a run that does not count: it compiles
BROKEN = "values broke"  # what a unit says whose values did not fit what was decided
WAYS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"adaptive": {}, "once": {"codec_interval_ms": NEVER_MS}, "none": {"codec": "none"}}
)
Codecs = dict[str, tuple[str, str]]  # by column: which, and why
_COLUMNS = ", ".join(["ts timestamp not null", *(f"{name} int not null" for name in MEASURED)])


class ChangingSource(Source):
    """Readings whose values are others from a moment on; what was read is gone."""

    replayable = False

    def __init__(self, schema: pa.Schema, change_s: float, held_rows: int) -> None:
        self.schema = schema
        self.rows = 0
        self._change_s = change_s
        self._begun_s: float | None = None
        sample = STREAMS["sensors"](np.random.default_rng(1), BUFFER_ROWS // held_rows).columns
        held = np.arange(BUFFER_ROWS) // held_rows
        self._phases = [
            {name: pa.array((sample[name] % modulus)[held]) for name in MEASURED}
            for modulus in MODULI
        ]
        self._times = np.arange(BUFFER_ROWS) * ROW_US

    def initial_offset(self) -> Offset:
        return 0

    def begin(self) -> None:
        """From now on the time counts."""
        self._begun_s = time.perf_counter()

    def read(self, offset: Offset, rows_max: int) -> SourceBatch:
        first = check_offset(offset, 0, None)
        cycle, row = divmod(first, BUFFER_ROWS)
        count = min(check_rows_max(rows_max), BUFFER_ROWS - row)
        has_begun = self._begun_s is not None
        is_changed = has_begun and time.perf_counter() >= self._begun_s + self._change_s  # type: ignore[operator]
        columns = {name: each.slice(row, count) for name, each in self._phases[is_changed].items()}
        later_us = START_S * SECOND_US + cycle * BUFFER_ROWS * ROW_US
        times = pa.array(self._times[row : row + count] + later_us)
        columns["ts"] = times.view(self.schema.field("ts").type)
        arrays = [columns[name] for name in self.schema.names]
        self.rows += count
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        return SourceBatch(batch, first + count, more=True)


def means(settings: Settings) -> Query:
    """The query of the sensors."""
    rows = scan_source("changing", _COLUMNS, partitions=1, replayable=False)
    grouped = rows.with_watermark("ts", 0).group_by(window=window("ts", "60 seconds", "1 second"))
    found = grouped.agg(*(avg(name).alias(name) for name in MEASURED))
    return query("sm", found.to_stream("means"), settings=settings)


def measure(setting: Setting) -> dict[str, Any]:
    """Rows, bytes and codecs over time, each way."""
    found: dict[str, dict[str, Any]] = {}
    for data, held_rows in HELD_ROWS.items():
        folder = setting.scratch(f"phases-{data}")
        _run(folder / "warm", WAYS["adaptive"], WARM_INTERVAL_S, held_rows)
        found[data] = {}
        for name, more in WAYS.items():
            each = _run(folder / name, more, setting.args.interval, held_rows)
            say(f"{data}: {name} {each['rows_per_s_before']:,.0f} rows/s before the change")
            found[data][name] = each
    return found


def _run(
    folder: Path, more: Mapping[str, Any], interval_s: float, held_rows: int
) -> dict[str, Any]:
    chosen: dict[str, Any] = {"codec": "adaptive", "codec_interval_ms": round(interval_s * 1e3)}
    settings = Settings(commit_interval_ms=100, step_rows_max=BUFFER_ROWS, **{**chosen, **more})
    made: list[ChangingSource] = []

    def source(request: SourceRequest) -> Source:
        made.append(ChangingSource(request.schema, interval_s * CHANGE_AT, held_rows))
        return made[-1]

    program = plan_program(means(settings))
    with SingleProcess(program, folder, sources={"changing": source}, trim_commits=16) as process:
        trace = _Trace(process, program, interval_s)
        _step(process, trace, WARMUP_S)
        _step_to_next_unit(process, trace)
        made[-1].begin()
        trace.begin(made[-1])
        _step(process, trace, interval_s * END_AT)
        _step_to_next_unit(process, trace)
    return trace.figures()


def _step(process: SingleProcess, trace: _Trace, seconds: float) -> None:
    end_s = time.perf_counter() + seconds
    look_s = 0.0
    while (now_s := time.perf_counter()) < end_s:
        process.host.step()
        if now_s >= look_s:
            trace.look()
            look_s = now_s + LOOK_S


def _step_to_next_unit(process: SingleProcess, trace: _Trace) -> None:
    """Step until one more unit is stored: a loop that is in no cache is compiled before."""
    units, until_s = trace.units, time.perf_counter() + UNIT_S_MAX
    while trace.units == units and time.perf_counter() < until_s:
        _step(process, trace, LOOK_S)


class _Trace:
    """What is read and persisted, and in which codecs, since it began."""

    def __init__(self, process: SingleProcess, program: Program, interval_s: float) -> None:
        self._log = process.log
        (reader,) = (v for v in program.vertices if program.stage_of(v).source is not None)
        self._tags = reader.written_tags
        self._after = START
        self._interval_s = interval_s
        self._source: ChangingSource | None = None
        self._begun_s, self._first_rows = 0.0, 0
        self.units = 0  # seen, before it began too
        self.read: list[tuple[float, int]] = []
        self.stored: list[tuple[float, int]] = []
        self.codecs: list[tuple[float, Codecs]] = []

    def begin(self, source: ChangingSource) -> None:
        self.look()
        self._source, self._begun_s = source, time.time()
        self._first_rows = source.rows

    def look(self) -> None:
        """At what has come since the last look."""
        records = self._log.read(self._tags, self._after, PAGE)
        if records:
            self._after = records[-1].position
        units = [each for each in records if each.kind is RecordKind.DATA]
        self.units += len(units)
        if self._source is None:
            return
        self.read.append((time.time() - self._begun_s, self._source.rows - self._first_rows))
        for unit in units:
            self.stored.append((unit.time_us / 1e6 - self._begun_s, len(unit.body)))
        for unit in (*units[:1], *units[1:][-1:]):
            self.codecs.append((unit.time_us / 1e6 - self._begun_s, codecs_of(unit)))

    def figures(self) -> dict[str, Any]:
        return told(self.read, self.stored, self.codecs, self._interval_s)


def codecs_of(record: Record) -> Codecs:
    """The codec of each column of a unit, and why it is that one."""
    facts = punit.describe_columns(record.body, punit.inspect(record.body))
    return {each.name: (each.codec, each.reason) for each in facts or ()}


# --- what readings say ----------------------------------------------------------------------------


def told(
    read: Sequence[tuple[float, int]],
    stored: Sequence[tuple[float, int]],
    codecs: Sequence[tuple[float, Codecs]],
    interval_s: float,
) -> dict[str, Any]:
    """From rows read so far, bytes of units and their codecs, each with its time."""
    change_s, end_s = interval_s * CHANGE_AT, interval_s * END_AT
    spans = {
        "before": (interval_s * (CHANGE_AT - 1), change_s),
        "after": (interval_s * (CHANGE_AT + 1), end_s),
    }
    figures: dict[str, Any] = {"interval_s": interval_s, "change_s": change_s}
    for name, (begin_s, until_s) in spans.items():
        rows = _rows_at(read, until_s) - _rows_at(read, begin_s)
        taken = sum(size for at_s, size in stored if begin_s <= at_s < until_s)
        figures[f"rows_per_s_{name}"] = rounded(rows / (until_s - begin_s))
        figures[f"bytes_per_row_{name}"] = rounded(taken / max(1.0, rows))
    figures["follow_s"] = _follow_s(codecs, change_s)
    figures["broken_s"] = _broken_s(codecs)
    bucket_s = interval_s / BUCKETS
    edges = [bucket_s * number for number in range(round(end_s / bucket_s) + 1)]
    figures["over_time"] = [
        {
            "s": rounded(begin_s),
            "rows_per_s": rounded((_rows_at(read, until_s) - _rows_at(read, begin_s)) / bucket_s),
            "bytes_per_s": rounded(
                sum(size for at_s, size in stored if begin_s <= at_s < until_s) / bucket_s
            ),
        }
        for begin_s, until_s in pairwise(edges)
    ]
    figures["codecs"] = {
        column: _changes([(at_s, found[column]) for at_s, found in codecs if column in found])
        for column in ("ts", *MEASURED)
    }
    return figures


def _rows_at(read: Sequence[tuple[float, int]], at_s: float) -> float:
    times, rows = zip(*read, strict=True)
    return float(np.interp(at_s, times, rows))


def _broken_s(codecs: Sequence[tuple[float, Codecs]]) -> float | None:
    """When a unit first told of values that its codec could not hold."""
    broken = (at_s for at_s, found in codecs if _is_broken(found))
    return next((rounded(at_s) for at_s in broken if at_s > 0), None)


def _follow_s(codecs: Sequence[tuple[float, Codecs]], change_s: float) -> float | None:
    """How long after the change the last form was found that stayed to the end."""
    after = [(at_s, found) for at_s, found in codecs if at_s >= change_s]
    if not after or not after[-1][1]:
        return None
    last = _forms(after[-1][1])
    others = [at_s for at_s, found in after if _is_broken(found) or _forms(found) != last]
    found_s = next((at_s for at_s, _ in after if not others or at_s > others[-1]), None)
    return None if found_s is None else rounded(max(0.0, found_s - change_s))


def _is_broken(found: Codecs) -> bool:
    return any(BROKEN in found[name][1] for name in MEASURED if name in found)


def _forms(found: Codecs) -> list[str]:
    return [found[name][0] for name in MEASURED if name in found]


def _changes(seen: Sequence[tuple[float, tuple[str, str]]]) -> list[dict[str, Any]]:
    """One line for as long as a codec, or that it was broken, holds."""
    told: list[dict[str, Any]] = []
    for at_s, (codec, reason) in seen:
        is_broken = BROKEN in reason
        if not told or (told[-1]["codec"], told[-1]["broken"]) != (codec, is_broken):
            told.append({"s": rounded(at_s), "codec": codec, "broken": is_broken, "reason": reason})
    return told


def goals(found: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield whether the codec follows the data in time, and whether that is worth bytes."""
    for name, ways in found.items():
        adaptive = ways["adaptive"]
        follow_s = adaptive["follow_s"]
        yield (
            f"{name}_codec_follows_within_one_interval",
            follow_s is not None and follow_s <= adaptive["interval_s"],
        )
