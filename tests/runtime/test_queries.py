"""Whole queries against plain Python, with random batch boundaries, disorder and crashes."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock.config import LogConfig
from penstock.plan.query import Query, Write
from penstock.runtime.sources import SourceBuilder
from penstock.stages.settings import Settings
from penstock.testing.columns import apply, col, lit
from penstock.testing.plans import Draft, count, max_, min_, query, scan_source, sum_, window
from tests.connectors.nexmark_reference import Reference
from tests.runtime.laboratory import (
    SECOND_US,
    TIMESTAMP,
    Laboratory,
    Row,
    multiset,
    table,
    table_source,
)
from tests.thoroughness import some

BID = "auction bigint not null, bidder bigint not null, price bigint not null, dateTime timestamp"
EVENTS = 3_000


def random_settings(rng: random.Random, rows: int) -> Settings:
    """Few or many steps, commits after each or after some, frequent checkpoints."""
    return Settings(
        step_rows_max=max(1, rows // rng.choice((1, 4, 11, 37))),
        commit_interval_ms=rng.choice((0, 0, 1, 5)),
        checkpoint_interval_commits=rng.choice((1, 3, 10)),
        codec=rng.choice(("none", "lz4", "zstd")),
    )


def planned(rng: random.Random, rows: int, *writes: Write, parallelism: int = 1) -> Query:
    return query("tested", *writes, parallelism=parallelism, settings=random_settings(rng, rows))


def check(found: list[Row], expected: list[Row]) -> None:
    assert multiset(found) == multiset(expected)


# --- word count -----------------------------------------------------------------------------------

WORDS = ("water", "pen", "Stock", "über", "", "a", "日本", "x" * 40, "pen,stock")


def sentences(rng: random.Random, count: int) -> list[str | None]:
    texts: list[str | None] = [
        " ".join(rng.choices(WORDS, k=rng.randrange(0, 8))) for _ in range(count)
    ]
    texts[rng.randrange(count)] = None
    return texts


@pytest.mark.parametrize("seed", range(4))
def test_word_count_ends_at_the_exact_count_of_every_word(lab: Laboratory, seed: int) -> None:
    rng = random.Random(seed)
    texts = sentences(rng, 400)
    words = scan_source("lines", "line string", partitions=None).explode(
        apply("split", col("line"), pattern=" ").alias("words"), "word"
    )
    counted = words.group_by("word").agg(count().alias("n"), mode="update")
    tested = planned(rng, 400, counted.to_stream("counts"), parallelism=1 + seed % 3)
    lines = table([(text,) for text in texts], line=pa.string())
    lab.run_with_crashes(tested, {"lines": table_source(lines)}, rng)

    expected = Counter(word for text in texts if text is not None for word in text.split(" "))
    rows = lab.rows("counts")
    assert {row["word"]: row["n"] for row in rows} == expected
    for word in expected:  # each update is later than, and above, the one before it
        seen = [row["n"] for row in rows if row["word"] == word]
        assert seen == sorted(set(seen))


# --- NEXMark --------------------------------------------------------------------------------------


class LightReference(Reference):
    """The reference without the long texts, which no query here reads."""

    def channel(self, e: int) -> tuple[str, str]:
        return "", ""

    def padding(self, average: int, counted: int, e: int, f: int) -> str:
        return ""


def reference_bids(seed: int, events: int = EVENTS) -> Iterator[Row]:
    """The bids in the order of their numbers; a group arrives in another order, with the same."""
    reference = LightReference(seed)
    for number in range(events):
        if reference.kind(number) == 2:
            row = reference.event(number)[1]
            time_us = round(row["dateTime"].timestamp() * 1000) * 1000
            yield {k: row[k] for k in ("auction", "bidder", "price")} | {"dateTime": time_us}


def bids(seed: int, group: int = 1, events: int = EVENTS) -> Draft:
    return scan_source(
        "nexmark", BID, partitions=None, kind="bids", seed=seed, events_max=events, group=group
    )


@pytest.mark.parametrize("seed", range(3))
def test_q1_converts_every_bid_once(lab: Laboratory, seed: int) -> None:
    rng = random.Random(seed)
    euros = apply("int_divide", col("price") * 908, lit(1000, "bigint")).alias("price")
    rows = bids(seed, group=rng.choice((1, 1000))).select("auction", "bidder", euros, "dateTime")
    lab.run_with_crashes(
        planned(rng, EVENTS, rows.to_stream("q1"), parallelism=1 + seed % 3), {}, rng
    )
    expected = [row | {"price": row["price"] * 908 // 1000} for row in reference_bids(seed)]
    assert len(expected) == EVENTS // 50 * 46
    check(lab.rows("q1"), expected)


@pytest.mark.parametrize("seed", range(2))
def test_q2_finds_the_bids_of_every_123rd_auction(lab: Laboratory, seed: int) -> None:
    rng = random.Random(seed)
    found = bids(seed).filter(col("auction") % 123 == 0).select("auction", "price", "dateTime")
    lab.run_with_crashes(planned(rng, EVENTS, found.to_stream("q2"), parallelism=1 + seed), {}, rng)
    expected = [
        {k: row[k] for k in ("auction", "price", "dateTime")}
        for row in reference_bids(seed)
        if row["auction"] % 123 == 0
    ]
    assert expected
    check(lab.rows("q2"), expected)


def hopping_counts(
    rows: Iterator[tuple[int, Any]], size_us: int, slide_us: int
) -> dict[tuple[int, Any], int]:
    counts: Counter[tuple[int, Any]] = Counter()
    for time_us, key in rows:
        start_us = time_us // slide_us * slide_us
        while start_us > time_us - size_us:
            counts[start_us, key] += 1
            start_us -= slide_us
    return counts


@pytest.mark.parametrize(
    ("seed", "group", "parallelism"),
    [(1, 1, 1), (2, 1, 3), (3, 1000, 1), (4, 1000, 2)],
)
def test_q5_counts_bids_per_auction_in_hopping_windows(
    lab: Laboratory, seed: int, group: int, parallelism: int
) -> None:
    rng = random.Random(seed)
    size_us, slide_us, rate = 10 * SECOND_US, 2 * SECOND_US, 100.0
    scanned = scan_source(
        "nexmark", BID, partitions=None, kind="bids", seed=seed, events_max=EVENTS, group=group,
        rate=rate,
    )  # fmt: skip
    counted = (
        scanned.with_watermark("dateTime", "10 seconds")  # as far as a group of 1000 is shuffled
        .group_by("auction", window=window("dateTime", size_us, slide_us))
        .agg(count().alias("bids"))
    )
    tested = planned(rng, EVENTS, counted.to_stream("q5"), parallelism=parallelism)
    lab.run_with_crashes(tested, {}, rng)
    reference = LightReference(seed, rate)
    arrived = (
        (round(row["dateTime"].timestamp() * 1000) * 1000, row["auction"])
        for number in range(EVENTS)
        for row in [reference.event(number)[1]]
        if reference.kind(number) == 2
    )
    expected = [
        {"window": (start_us, start_us + size_us), "auction": auction, "bids": bids}
        for (start_us, auction), bids in hopping_counts(arrived, size_us, slide_us).items()
    ]
    check(lab.rows("q5"), expected)
    assert sum(row["bids"] for row in expected) == 5 * EVENTS // 50 * 46


# --- other shapes ---------------------------------------------------------------------------------


def measurements(rng: random.Random, rows: int) -> list[tuple[int | None, int, int]]:
    """(key, value, time): keys with a null among them, times within 5 s of their order."""
    return [
        (
            rng.choice((None, 1, 2, 3, 40)),
            rng.randrange(-100, 100),
            i * 20_000 + rng.randrange(5 * SECOND_US),
        )
        for i in range(rows)
    ]


def measured(
    rng: random.Random, rows: int
) -> tuple[list[tuple[int | None, int, int]], SourceBuilder]:
    made = measurements(rng, rows)
    chunks = table(made, key=pa.int64(), value=pa.int64(), ts=TIMESTAMP)
    cut = sorted(rng.sample(range(1, rows), 5))
    pieces = [chunks.slice(a, b - a) for a, b in zip([0, *cut], [*cut, rows], strict=True)]
    return made, table_source(pa.concat_tables(pieces))


def scanned(source: str, partitions: int | None = None) -> Draft:
    return scan_source(source, "key bigint, value bigint, ts timestamp", partitions=partitions)


@pytest.mark.parametrize("seed", some(range(3), every=3))
def test_a_union_of_two_sources_counts_the_rows_of_both(lab: Laboratory, seed: int) -> None:
    rng = random.Random(seed)
    (left, left_source), (right, right_source) = measured(rng, 300), measured(rng, 500)
    both = scanned("left").union(scanned("right").filter(col("value") >= 0))
    grouped = both.with_watermark("ts", "5 seconds").group_by("key", window=window("ts", 4_000_000))
    summed = grouped.agg(count().alias("n"), sum_("value").alias("s"), min_("value").alias("low"))
    tested = planned(rng, 500, summed.to_stream("out"), parallelism=1 + seed % 3)
    lab.run_with_crashes(tested, {"left": left_source, "right": right_source}, rng)

    groups: dict[tuple[int, Any], list[int]] = defaultdict(list)
    for key, value, time_us in left + [row for row in right if row[1] >= 0]:
        groups[time_us // 4_000_000 * 4_000_000, key].append(value)
    expected = [
        {
            "window": (start_us, start_us + 4_000_000),
            "key": key,
            "n": len(values),
            "s": sum(values),
            "low": min(values),
        }
        for (start_us, key), values in groups.items()
    ]
    check(lab.rows("out"), expected)


@pytest.mark.parametrize("seed", range(3))
def test_an_aggregate_over_the_windows_of_another(lab: Laboratory, seed: int) -> None:
    rng = random.Random(seed)
    rows, source = measured(rng, 500)
    small = (
        scanned("rows")
        .with_watermark("ts", "5 seconds")
        .group_by("key", window=window("ts", SECOND_US))
        .agg(count().alias("n"))
    )
    ends = small.select(col("window")["end"].alias("at"), "n")
    large = ends.group_by(window=window("at", 5 * SECOND_US)).agg(
        max_("n").alias("most"), count().alias("windows")
    )
    tested = planned(rng, 500, large.to_stream("out"), parallelism=1 + seed % 3)
    lab.run_with_crashes(tested, {"rows": source}, rng)

    counts = hopping_counts(((t, key) for key, _, t in rows), SECOND_US, SECOND_US)
    groups: dict[int, list[int]] = defaultdict(list)
    for (start_us, _), n in counts.items():
        end_us = start_us + SECOND_US
        groups[end_us // (5 * SECOND_US) * 5 * SECOND_US].append(n)
    expected = [
        {"window": (start_us, start_us + 5 * SECOND_US), "most": max(ns), "windows": len(ns)}
        for start_us, ns in groups.items()
    ]
    check(lab.rows("out"), expected)


@pytest.mark.parametrize("seed", range(2))
def test_complete_mode_ends_with_every_group(lab: Laboratory, seed: int) -> None:
    rng = random.Random(seed)
    rows, source = measured(rng, 300)
    totals = scanned("rows").group_by("key").agg(sum_("value").alias("s"), mode="complete")
    tested = planned(rng, 300, totals.to_stream("out"), parallelism=1 + seed % 2)
    lab.run_with_crashes(tested, {"rows": source}, rng)
    expected: Counter[int | None] = Counter()
    for key, value, _ in rows:
        expected[key] += value
    found = {row["key"]: row["s"] for row in lab.rows("out")}
    assert found == expected
    if tested.parallelism == 1:  # the last commit alone has them all
        last = lab.rows("out")[-len(expected) :]
        assert {row["key"]: row["s"] for row in last} == expected


@pytest.mark.parametrize("seed", range(2))
def test_two_streams_of_one_query_share_what_they_have_in_common(
    lab: Laboratory, seed: int
) -> None:
    rng = random.Random(seed)
    rows, source = measured(rng, 400)
    shared = scanned("rows").filter(col("value") > 0).with_column("double", col("value") * 2)
    counted = shared.group_by("key").agg(count().alias("n"), mode="update")
    tested = planned(
        rng,
        400,
        shared.select("key", "double").to_stream("rows_out"),
        counted.to_stream("counts_out"),
        parallelism=1 + seed % 2,
    )
    lab.run_with_crashes(tested, {"rows": source}, rng)
    positive = [(key, value) for key, value, _ in rows if value > 0]
    check(lab.rows("rows_out"), [{"key": k, "double": 2 * v} for k, v in positive])
    assert {row["key"]: row["n"] for row in lab.rows("counts_out")} == Counter(
        key for key, _ in positive
    )


def test_a_run_without_crashes_gives_the_same_on_a_synced_log(lab: Laboratory) -> None:
    rng = random.Random(9)
    rows, source = measured(rng, 300)
    totals = scanned("rows").group_by("key").agg(sum_("value").alias("s"), mode="update")
    tested = planned(rng, 300, totals.to_stream("out"))
    with lab.open(tested, {"rows": source}, log_config=LogConfig()) as process:
        process.run()
    expected: Counter[int | None] = Counter()
    for key, value, _ in rows:
        expected[key] += value
    assert {row["key"]: row["s"] for row in lab.rows("out")} == expected
