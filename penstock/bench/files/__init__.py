"""The benchmark of files: five queries over what users have, on four engines, in one run.

Each query is one DataFrame. Its files are written once; Penstock, Structured Streaming, a Spark
batch job and pyarrow alone read them one after the other, each in processes of its own. The result
of Penstock and of Structured Streaming is compared with the batch job's, row by row.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from penstock.bench.crew import ENGINE_S_MAX, Crew
from penstock.bench.files.chart import chart
from penstock.bench.files.data import Rows, write_rows
from penstock.bench.files.engines import (
    SLOTS,
    TURNS,
    Place,
    Turn,
    read_seconds,
    result_folder,
    run_batch,
    run_penstock,
    run_spark,
)
from penstock.bench.files.profile import profile_query
from penstock.bench.files.queries import QUERIES, FileQuery
from penstock.bench.files.results import difference, read_result
from penstock.bench.footprint import MemoryPeak
from penstock.bench.report import QueriesReport, machine_facts, median, rounded, say

TITLE = "five queries over files, beside Structured Streaming, a Spark job and bare reading"
ENGINES = ("spark", "batch", "read")
ROWS_MAX = 1_000_000_000

TIMES_SPARK_MIN = 5
SHARE_OF_READING_MIN = 0.5
TIMES_SLIDING_MAX = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--query",
        type=_some_of(QUERIES),
        default=list(QUERIES),
        help=f"some of {','.join(QUERIES)} (default all)",
    )
    parser.add_argument(
        "--rows",
        type=_rows,
        metavar="N",
        help="of every query (default: 40 M for ysb, 5 M for strkey, 1 M for the others)",
    )
    parser.add_argument(
        "--against",
        type=_some_of(ENGINES, "none"),
        default=list(ENGINES),
        help=f"some of {','.join(ENGINES)}, or none (default all)",
    )
    parser.add_argument(
        "--warm", action="store_true", help="leave out the first start, which compiles everything"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the rates as bars")
    parser.add_argument(
        "--profile",
        action="store_true",
        help="measure nothing, but tell where a single process spends its time",
    )
    parser.add_argument(
        "--repeats", type=int, default=1, metavar="N", help="runs, medians are told (default 1)"
    )
    parser.add_argument(
        "--dir", type=Path, default=Path(), help="a folder on the disk to use (default .)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="keep files and right results here, and use what is there (default: none is kept)",
    )


def _some_of(known: Any, none: str = "") -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        words = [] if none and text == none else text.split(",")
        for word in words:
            if word not in known:
                raise argparse.ArgumentTypeError(f"there is no {word!r}; known: {', '.join(known)}")
        return words

    return read


def _rows(text: str) -> int:
    value = int(text)
    if not 1_000 <= value <= ROWS_MAX:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1,000 to {ROWS_MAX:,}")
    return value


def measure(args: argparse.Namespace) -> QueriesReport:
    """Run every query on every engine, and report."""
    report = QueriesReport(TITLE, facts=machine_facts())
    with _work_folder(args.dir) as work:
        for name in args.query:
            query = QUERIES[name]
            wanted = args.rows or query.rows
            kept = args.folder.absolute() if args.folder else work / "kept"
            say(f"{name}: writing {wanted:,} rows, unless they are there")
            rows = write_rows(kept / name / "rows", name, wanted)
            if args.profile:
                place = Place(kept / name / "rows", work)
                report.queries[name] = {"rows": wanted, "profile": _profile(name, place)}
                continue
            run = _Run(query, rows, kept / name, work, args)
            for number in range(args.repeats):
                run.repeat(number)
            report.queries[name] = run.figures()
    report.judge(goals)
    if args.plot is not None:
        args.plot.write_text(chart(report.queries), encoding="utf-8")
    return report


def _profile(name: str, place: Place) -> list[dict[str, Any]]:
    scratch = place.scratch / f"profile-{name}"
    scratch.mkdir()
    with Crew(1, answer_s_max=ENGINE_S_MAX) as crew:
        (top,) = crew.run([(profile_query, name, Place(place.input, scratch), SLOTS)])
    for line in top:
        share, called_s = f"{line['share']:6.1%}", f"{line['with_called_s']:8.3f}"
        say(f"  {share} {line['own_s']:8.3f} s {called_s} s {line['calls']:>9,} {line['function']}")
    assert isinstance(top, list)
    return top


@contextmanager
def _work_folder(parent: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=parent) as name:
        yield Path(name).absolute()


class _Run:
    """The readings of one query."""

    def __init__(
        self, query: FileQuery, rows: Rows, kept: Path, work: Path, args: argparse.Namespace
    ) -> None:
        self._query = query
        self._rows = rows
        self._kept = kept
        self._work = work
        self._against: list[str] = args.against
        self._is_warm: bool = args.warm
        self._readings: dict[str, list[float]] = {}
        self._differences: list[str] = []
        self._is_compared = False

    def repeat(self, number: int) -> None:
        """Every engine once, one after the other."""
        name = self._query.name
        if "read" in self._against:
            self._tell(number, "reading alone")
            seconds = read_seconds(self._query, Place(self._kept / "rows", self._work))
            self._add("read_rows_per_s", self._rows.rows / seconds)
        if "batch" in self._against:
            with self._engine(number, "a Spark job", run_batch) as (turns, _, place):
                self._add_turns("batch_", turns[name])
                self._keep_right(result_folder(place, name, 0))
        if "spark" in self._against:
            with self._engine(number, "Structured Streaming", run_spark) as (turns, peak_mb, place):
                self._add_turns("spark_", turns[name])
                self._add("spark_peak_mb", peak_mb)
                self._compare("Structured Streaming", place)
        own = partial(run_penstock, is_first=not self._is_warm)
        with self._engine(number, "Penstock", own) as (turns, peak_mb, place):
            self._add_turns("", turns[name][-1:] if self._is_warm else turns[name])
            self._add("peak_mb", peak_mb)
            if "tumbling" in turns:
                self._add("tumbling_rows_per_s", self._rows.rows / turns["tumbling"][-1].seconds)
            self._compare("Penstock", place)

    @contextmanager
    def _engine(
        self, number: int, title: str, task: Callable[..., Any]
    ) -> Iterator[tuple[dict[str, list[Turn]], float, Place]]:
        """An engine's run in a process of its own; what it wrote is there within the block."""
        self._tell(number, title)
        place = Place(self._kept / "rows", self._work / "engine")
        place.scratch.mkdir()
        try:
            with Crew(1, answer_s_max=ENGINE_S_MAX) as crew, MemoryPeak(crew.pids[0]) as peak:
                (turns,) = crew.run([(task, self._query.name, place)])
            for name, done in turns.items():
                rates = ", ".join(f"{self._rows.rows / turn.seconds:,.0f}" for turn in done)
                say(f"    {name}: {rates} rows/s, first and second start")
            yield turns, peak.mb, place
        finally:
            shutil.rmtree(place.scratch)

    def _add_turns(self, prefix: str, turns: list[Turn]) -> None:
        """The second start under plain names, the first one as `cold`; of one, it is the second."""
        rows = self._rows.rows
        for kind, turn in zip(("", "cold_"), reversed(turns), strict=False):
            self._add(f"{prefix}{kind}rows_per_s", rows / turn.seconds)
            self._add(f"{prefix}{kind}cpu_us_per_row", turn.cpu_s * 1e6 / rows)
            if turn.first_row_s is not None:
                name = "first_row_ms" if kind else "warm_first_row_ms"
                self._add(f"{prefix}{name}", turn.first_row_s * 1e3)

    def _add(self, key: str, value: float) -> None:
        self._readings.setdefault(key, []).append(value)

    def _right(self) -> Path:
        return self._kept / f"right-{self._rows.version}-{self._rows.rows}"

    def _keep_right(self, result: Path) -> None:
        if not self._right().exists():
            shutil.copytree(result, self._right())

    def _compare(self, engine: str, place: Place) -> None:
        if not self._right().exists():
            say("    not compared: the batch job has not run over these files")
            return
        right = read_result(self._right())
        for turn in range(TURNS):
            folder = result_folder(place, self._query.name, turn)
            found = read_result(folder, right.schema)
            self._is_compared = True
            differs = difference(self._query, found, right, self._rows.last_us)
            if differs is not None:
                self._differences.append(f"{engine}, start {turn + 1}: {differs}")
                say(f"    {self._differences[-1]}")

    def figures(self) -> dict[str, Any]:
        """Medians of the repeats, and whether all results were right; None: nobody looked."""
        figures: dict[str, Any] = {
            key: rounded(median(values)) for key, values in self._readings.items()
        }
        figures["identical"] = not self._differences if self._is_compared else None
        if self._differences:
            figures["differences"] = self._differences
        return {"rows": self._rows.rows, **figures}

    def _tell(self, number: int, what: str) -> None:
        say(f"{self._query.name}, run {number + 1}: {what}")


def goals(name: str, figures: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield each goal whose figures are there, and whether it is reached."""
    if "profile" in figures:
        return
    own = figures["rows_per_s"]
    if figures["identical"] is not None:
        yield "identical", figures["identical"]
    if "spark_rows_per_s" in figures:
        times = own / figures["spark_rows_per_s"]
        yield f"{TIMES_SPARK_MIN}_times_structured_streaming", times >= TIMES_SPARK_MIN
        if "first_row_ms" in figures:
            sooner = figures["first_row_ms"] <= figures["spark_first_row_ms"]
            yield "first_row_not_after_structured_streaming", sooner
    if "batch_rows_per_s" in figures:
        yield "as_fast_as_a_spark_job", own >= figures["batch_rows_per_s"]
    if name == "ysb" and "read_rows_per_s" in figures:
        share = own / figures["read_rows_per_s"]
        yield "half_as_fast_as_reading", share >= SHARE_OF_READING_MIN
    if "tumbling_rows_per_s" in figures:
        times = figures["tumbling_rows_per_s"] / own
        yield f"within_{TIMES_SLIDING_MAX}_times_of_tumbling", times <= TIMES_SLIDING_MAX
