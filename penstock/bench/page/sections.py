"""What each measurement says on the page: its words, plots and tables, all from its JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from penstock.bench.page.html import details, paragraph, table
from penstock.bench.plots import Axis, Bar, Series, bars, lines, points, short

Found = Mapping[str, Any]
COLOURS = (
    "#08519c", "#e6550d", "#31a354", "#756bb1", "#8c6d31", "#d6616b", "#17becf", "#636363",
)  # fmt: skip
PALE = ("#9ecae1", "#fdae6b", "#a1d99b")
ENGINES = (
    Bar("rows_per_s", "#08519c", "exactly-once, replayed"),
    Bar("persisted_rows_per_s", "#4292c6", "exactly-once, persisted"),
    Bar("unsafe_rows_per_s", "#9ecae1", "unsafe"),
    Bar("spark_rows_per_s", "#e6550d", "Structured Streaming"),
    Bar("flink_rows_per_s", "#fdae6b", "Flink SQL"),
    Bar("loop_rows_per_s", "#969696", "loop by hand"),
)
LATENCIES = (Bar("p50_ms", "#08519c", "median"), Bar("p95_ms", "#9ecae1", "95th percentile"))
CONFIGURATIONS = {
    "no_opt": "no optimisation",
    "push_up": "push-up only",
    "compression": "compression only",
    "lossless": "both, lossless",
    "lossy": "both, floats to two digits",
    "no_disk": "both, nothing synced",
}
KEEPERS = {
    "needed": "what the query needs",
    "whole": "all that arrives",
    "prototype": "flushes first, Snappy",
}
DECIDING = {"adaptive": "every interval", "once": "once", "none": "not compressed"}
# Of the codecs: the shapes of the paper's figure, and the disk for which a choice is told.
SHAPES = {
    "timestamps_steady": "timestamps, fixed interval",
    "timestamps_repeated": "timestamps, many at a time",
    "ints_small": "integers, random",
    "ints_runs": "integers, in runs",
    "doubles_walk": "floats, all bits",
    "floats_two_digits": "floats, two digits",
    "texts_few": "texts, few distinct",
}
DISK_MB_S = "400"
_MOMENTS = {
    "driver": "driver starts again",
    "session": "Spark is there",
    "placed": "slots have vertices",
    "committed": "all have committed",
}


@dataclass(frozen=True)
class Section:
    """One measurement on the page."""

    title: str
    command: tuple[str, ...]
    key: str  # in the JSON
    words: str
    show: Callable[[Found], Iterator[str]]
    marker: str = ""  # what a figure of it has that others under the same key have not
    has_queries: bool = True

    def is_in(self, found: Found) -> bool:
        """Whether a line of JSON has such figures."""
        figures = found.get(self.key)
        if not isinstance(figures, dict) or not figures:
            return False
        return not self.marker or any(self.marker in each for each in figures.values())

    def of(self, found: Found) -> dict[str, Any]:
        """Of such a line what is about this."""
        others = {each.key for each in SECTIONS.values()} - {self.key}
        return {key: value for key, value in found.items() if key not in others}


def _columns(figures: Mapping[str, Found], key: str) -> dict[str, dict[str, float]]:
    """By query and configuration, one figure."""
    return {
        query: {name: each[key] for name, each in ways.items() if each.get(key) is not None}
        for query, ways in figures.items()
    }


def _named(names: Mapping[str, str], colours: Sequence[str] = COLOURS) -> list[Bar]:
    return [
        Bar(key, colour, name) for (key, name), colour in zip(names.items(), colours, strict=False)
    ]


def _queries(figures: Mapping[str, Found]) -> Iterator[str]:
    yield bars("rows per second, logarithmic", figures, ENGINES)
    yield bars(
        "milliseconds from a row's read to its committed window, logarithmic", figures, LATENCIES
    )
    keys = (
        "rows_per_s", "persisted_rows_per_s", "unsafe_rows_per_s", "spark_rows_per_s",
        "flink_rows_per_s", "loop_rows_per_s", "times_spark", "replayed_of_unsafe",
        "persisted_of_unsafe", "p50_ms", "p95_ms", "bytes_in", "bytes_persisted",
        "checkpoint_mb", "checkpoint_ms", "identical",
    )  # fmt: skip
    yield _table_of(figures, keys)


def _table_of(figures: Mapping[str, Found], keys: Sequence[str], first: str = "query") -> str:
    known = [key for key in keys if any(key in each for each in figures.values())]
    return table(
        [first, *known],
        [[name, *(_cell(each.get(key)) for key in known)] for name, each in figures.items()],
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return short(value) if isinstance(value, int | float) else str(value)


def _reduction(figures: Mapping[str, Found]) -> Iterator[str]:
    named = _named(CONFIGURATIONS)
    yield bars("rows per second, logarithmic", _columns(figures, "rows_per_s"), named)
    per_row = _columns(figures, "bytes_per_row")
    yield bars("bytes persisted of each row, logarithmic", per_row, named)
    pairs = {query: (each["lossless"], each["no_opt"]) for query, each in figures.items()}
    times = {
        query: {
            "times fewer bytes": less["bytes_per_row"] / both["bytes_per_row"],
            "times more rows": both["rows_per_s"] / less["rows_per_s"],
        }
        for query, (both, less) in pairs.items()
    }
    yield paragraph("Both, lossless, against no optimisation:")
    yield _table_of(times, ("times fewer bytes", "times more rows"))


def _persistence(figures: Mapping[str, Found]) -> Iterator[str]:
    named = _named(KEEPERS)
    rates = _columns(figures, "rows_per_s")
    yield bars("rows acknowledged per second, logarithmic", rates, named)
    late = _columns(figures, "p50_ms")
    yield bars("milliseconds from send to acknowledgement, median, logarithmic", late, named)
    rows = {
        f"{query}, {KEEPERS.get(name, name)}": each
        for query, ways in figures.items()
        for name, each in ways.items()
    }
    yield _table_of(rows, ("rows_per_s", "mb_per_s", "p50_ms", "p95_ms", "bytes_per_row"), "way")


def _phases(figures: Mapping[str, Found]) -> Iterator[str]:
    for data, ways in figures.items():
        (change_s,) = {each["change_s"] for each in ways.values()}
        interval_s = next(iter(ways.values()))["interval_s"]
        for key, words in (("rows_per_s", "rows per second"), ("bytes_per_s", "bytes per second")):
            series = [
                Series(
                    DECIDING.get(name, name),
                    colour,
                    [(step["s"], step[key]) for step in each["over_time"]],
                )
                for (name, each), colour in zip(ways.items(), COLOURS, strict=False)
            ]
            is_log = key == "bytes_per_s"
            scale = " persisted, logarithmic" if is_log else ""
            yield lines(
                f"{data}: {words}{scale}; codecs are decided on",
                series,
                Axis("seconds"),
                Axis(words, is_log),
                marks=[(change_s, "other values")],
            )
        keys = (
            "rows_per_s_before", "rows_per_s_after", "bytes_per_row_before", "bytes_per_row_after",
            "follow_s", "broken_s",
        )  # fmt: skip
        yield _table_of(ways, keys, "decided")
        yield paragraph(f"The codec of each column over time, decided every {interval_s:g} s:")
        yield table(
            ["column", "from (s)", "codec", "fits", "why"],
            [
                [
                    column,
                    f"{each['s']:.2f}",
                    each["codec"],
                    _cell(not each["broken"]),
                    each["reason"],
                ]
                for column, changes in ways["adaptive"]["codecs"].items()
                for each in changes
            ],
        )


def _checkpoints(figures: Mapping[str, Found]) -> Iterator[str]:
    shares = {query: {"overhead": 100 * each["overhead"]} for query, each in figures.items()}
    named = [Bar("overhead", COLOURS[0], "share of the rows that a checkpoint each second costs")]
    yield bars("percent of the rows per second without checkpoints", shares, named, is_log=False)
    keys = ("checkpoint_mb", "checkpoint_ms", "overhead", "rows_per_s", "without_rows_per_s")
    yield _table_of(figures, keys)


def _scaling(figures: Mapping[str, Found]) -> Iterator[str]:
    named = [
        Bar("rows_per_s_1", PALE[0], "replayed, one slot"),
        Bar("rows_per_s_2", COLOURS[0], "two slots"),
        Bar("persisted_rows_per_s_1", PALE[1], "persisted, one slot"),
        Bar("persisted_rows_per_s_2", COLOURS[1], "two slots"),
    ]
    yield bars("rows per second", figures, named, is_log=False)
    yield _table_of(figures, ("times", "persisted_times"))


def _restart(figures: Mapping[str, Found]) -> Iterator[str]:
    for query, told in figures.items():
        marks = [(0.0, "all killed")]
        marks += [
            (told["moments_s"][key], words)
            for key, words in _MOMENTS.items()
            if key in told["moments_s"]
        ]
        for key, words in (
            ("rows_per_s", "rows whose windows are committed, per second"),
            ("latency_ms", "milliseconds from when a row was due until its windows are committed"),
        ):
            steps = [(each["s"], each[key]) for each in told["over_time"] if key in each]
            series = [Series(words, COLOURS[0], steps)]
            axis = Axis("", is_log=key == "latency_ms")
            title = f"{query}: {words}"
            yield lines(title, series, Axis("seconds after the kill"), axis, marks=marks)
        keys = (
            "full_rows_per_s", "rows_per_s", "p50_ms", "p95_ms", "processes_killed", "spark_ms",
            "initialisation_ms", "recovery_ms", "together_ms", "away_ms", "latency_back_s",
        )  # fmt: skip
        yield _table_of({query: told}, keys)


def _codecs(figures: Mapping[str, Found]) -> Iterator[str]:
    shown = {name: figures[name] for name in SHAPES if name in figures}
    for key, words in (("encode_mb_s", "MB/s in"), ("decode_mb_s", "MB/s out")):
        series = [
            Series(
                SHAPES[name],
                colour,
                [
                    (each["ratio"], each[key])
                    for codec, each in found["codecs"].items()
                    if codec != "none"
                ],
            )
            for (name, found), colour in zip(shown.items(), COLOURS, strict=False)
        ]
        yield points(
            f"every codec of a shape: {words} against how many times smaller",
            series,
            Axis("times smaller, logarithmic", is_log=True),
            Axis(f"{words}, logarithmic", is_log=True),
        )
    chosen = [
        [
            name,
            each["chosen"][DISK_MB_S]["codec"],
            each["chosen"][DISK_MB_S]["best"],
            f"{each['chosen'][DISK_MB_S]['cost_ratio']:.2f}",
        ]
        for name, each in figures.items()
        if DISK_MB_S in each["chosen"]
    ]
    yield paragraph(f"What is chosen for a disk of {DISK_MB_S} MB/s, and what it costs:")
    yield table(["shape", "chosen", "best", "cost, times the best"], chosen)
    rows = [
        [name, codec, short(of["ratio"]), short(of["encode_mb_s"]), short(of["decode_mb_s"])]
        for name, each in figures.items()
        for codec, of in each["codecs"].items()
    ]
    yield details("all codecs", table(["shape", "codec", "ratio", "MB/s in", "MB/s out"], rows))


def _scabbard(name: str) -> tuple[str, ...]:
    return ("scabbard", "--measure", name)


SECTIONS: Mapping[str, Section] = MappingProxyType(
    {
        "queries": Section(
            "Every query beside other engines",
            _scabbard("queries"),
            "queries",
            "Rows whose windows are committed. Two slots replay a sample from memory; the others "
            "read the same rows from files.",
            _queries,
            "rows_per_s",
        ),
        "reduction": Section(
            "Less data (Fig. 11)",
            _scabbard("reduction"),
            "reduction",
            "Rows of a source that cannot be read again are persisted: whole and as they are, "
            "behind what the query does without, compressed, or both.",
            _reduction,
        ),
        "codecs": Section(
            "Codecs: ratio against speed (Fig. 6)",
            ("codecs",),
            "queries",
            "Each codec alone over columns of some shapes, in one thread.",
            _codecs,
            "codecs",
            has_queries=False,
        ),
        "persistence": Section(
            "Persisting alone (Fig. 8)",
            _scabbard("persistence"),
            "persistence",
            "A program sends rows over a connection until they are acknowledged; nothing is "
            "computed. The prototype compresses with Snappy and flushes before it acknowledges.",
            _persistence,
        ),
        "checkpoints": Section(
            "Checkpoints (Table 4)",
            _scabbard("checkpoints"),
            "checkpoints",
            "No rows are persisted, a checkpoint is begun about every second.",
            _checkpoints,
        ),
        "restart": Section(
            "All processes killed (Fig. 10)",
            _scabbard("restart"),
            "restart",
            "Driver, Spark's Java process and slots are killed with SIGKILL under half of the load "
            "that they take, and started again at once.",
            _restart,
            has_queries=False,
        ),
        "phases": Section(
            "Codecs follow the data (Fig. 12)",
            _scabbard("phases"),
            "phases",
            "The values of three columns change while rows are persisted.",
            _phases,
            has_queries=False,
        ),
        "scaling": Section(
            "One slot and two",
            _scabbard("scaling"),
            "scaling",
            "The same query with one slot and parallelism 1, and with two.",
            _scaling,
        ),
    }
)
