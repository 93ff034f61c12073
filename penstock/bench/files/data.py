"""The files that the queries read: a function of the query, the number of rows and nothing else.

Each file holds the next stretch of event time, as folders that grow by the hour do. Times are not
in order: a row is up to a second older than its place says, and no query waits less than two.
Amounts are whole quarters, so that sums of doubles are exact, whatever order they are added in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from string import ascii_lowercase
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

VERSION = 1  # of the rows: folders that hold others are written anew
FILES = 8
START_US = 1_600_000_000_000_000
ROW_US = 100  # 10,000 rows are a second of event time
DISORDER_US = 1_000_000
GROUP_ROWS = 1 << 20  # of a row group: pyarrow's default
CAMPAIGNS = 100
USERS = 20_000
DEVICES = 1_000
WORDS = 50_000
WORDS_PER_LINE = 8
_NOTE = "_rows.json"

Made = tuple[pa.Table, int]  # the rows of a file, and their newest time


@dataclass(frozen=True)
class Rows:
    """What a folder of input holds; `last_us` is the newest event time, 0 where there is none."""

    version: int
    rows: int
    last_us: int


def write_rows(folder: Path, query: str, rows: int) -> Rows:
    """Write the files of a query, unless the folder has just these; return what they hold."""
    note = folder / _NOTE
    if note.exists():
        known = json.loads(note.read_text(encoding="utf-8"))
        if (known["version"], known["rows"]) == (VERSION, rows):
            return Rows(**known)
        for file in folder.iterdir():
            file.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    make, write, suffix = _FORMS[query]
    bounds = [rows * number // FILES for number in range(FILES + 1)]
    last_us = 0
    for number, (first, end) in enumerate(pairwise(bounds)):
        table, newest_us = make(np.random.default_rng([VERSION, number]), first, end - first)
        write(table, folder / f"part-{number:04d}.{suffix}")
        last_us = max(last_us, newest_us)
    done = Rows(VERSION, rows, last_us)
    note.write_text(json.dumps(asdict(done)), encoding="utf-8")
    return done


def _times(random: np.random.Generator, first: int, count: int) -> tuple[pa.Array, int]:
    places_us = START_US + (first + np.arange(count)) * ROW_US
    times_us = places_us - random.integers(0, DISORDER_US, count)
    array = pa.array(times_us, pa.timestamp("us", tz="UTC"))
    return array, int(times_us.max(initial=0))


def _quarters(random: np.random.Generator, count: int) -> pa.Array:
    return pa.array(random.integers(0, 40_000, count) / 4)


def _names(random: np.random.Generator, prefix: str, names: int, count: int) -> pa.Array:
    """So many of some names, drawn evenly; as plain strings."""
    width = len(str(names - 1))
    known = pa.array([f"{prefix}-{number:0{width}d}" for number in range(names)])
    return known.take(pa.array(random.integers(0, names, count)))


def _ad_events(random: np.random.Generator, first: int, count: int) -> Made:
    times, last_us = _times(random, first, count)
    columns = {
        "user_id": pa.array(random.integers(0, 1_000_000, count)),
        "campaign_id": pa.array(random.integers(0, CAMPAIGNS, count, np.int32)),
        "ad_type": pa.array(random.integers(0, 5, count, np.int32)),
        "event_type": pa.array(random.integers(0, 3, count, np.int32)),
        "event_time": times,
    }
    return pa.table(columns), last_us


def _purchases(random: np.random.Generator, first: int, count: int) -> Made:
    times, last_us = _times(random, first, count)
    columns = {
        "user": _names(random, "user", USERS, count),
        "country": _names(random, "country", 50, count),
        "amount": _quarters(random, count),
        "event_time": times,
    }
    return pa.table(columns), last_us


def _readings(random: np.random.Generator, first: int, count: int) -> Made:
    times, last_us = _times(random, first, count)
    columns = {
        "sensor": pa.array(random.integers(0, DEVICES, count, np.int32)),
        "battery": pa.array(random.random(count)),
        "reading": _quarters(random, count),
        "event_time": times,
    }
    return pa.table(columns), last_us


def _json_lines(random: np.random.Generator, first: int, count: int) -> Made:
    times, last_us = _times(random, first, count)
    stamps = pc.strftime(times, "%Y-%m-%dT%H:%M:%SZ")
    values = pa.array(random.integers(0, 1_000_000, count)).cast(pa.string())
    parts = (
        '{"device":"',
        _names(random, "device", DEVICES, count),
        '","firmware":"4.1.17","value":',
        values,
        ',"event_time":"',
        stamps,
        '"}\n',
    )
    return pa.table({"line": pc.binary_join_element_wise(*parts, "")}), last_us


def _text_lines(random: np.random.Generator, first: int, count: int) -> Made:
    """Lines of words; those at the beginning of the list come more often, as in any text."""
    del first
    known = pa.array([_word(number) for number in range(WORDS)])
    words = [
        known.take(pa.array((random.random(count) ** 2 * WORDS).astype(np.int32)))
        for _ in range(WORDS_PER_LINE)
    ]
    lines = pc.binary_join_element_wise(*words, " ")
    return pa.table({"line": pc.binary_join_element_wise(lines, "\n", "")}), 0


def _word(number: int) -> str:
    """The number in three letters or four, with an ending: another word for each number."""
    ending = ("", "ing", "ation")[number % 3]  # the length tells them apart
    number += 26**2
    letters = ""
    while number:
        number, place = divmod(number, 26)
        letters = ascii_lowercase[place] + letters
    return letters + ending


def _write_parquet(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, row_group_size=GROUP_ROWS)  # Snappy, as pyarrow and Spark do


def _write_lines(table: pa.Table, path: Path) -> None:
    with path.open("wb") as file:
        for chunk in table["line"].chunks:
            _, offsets, text = chunk.buffers()
            ends = np.frombuffer(offsets, np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
            file.write(text.slice(int(ends[0]), int(ends[-1] - ends[0])))


_Form = tuple[
    Callable[[np.random.Generator, int, int], Made], Callable[[pa.Table, Path], None], str
]
_FORMS: Mapping[str, _Form] = MappingProxyType(
    {
        "ysb": (_ad_events, _write_parquet, "parquet"),
        "strkey": (_purchases, _write_parquet, "parquet"),
        "json": (_json_lines, _write_lines, "json"),
        "words": (_text_lines, _write_lines, "txt"),
        "sliding": (_readings, _write_parquet, "parquet"),
    }
)
