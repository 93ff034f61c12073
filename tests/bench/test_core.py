"""`penstock bench core`: it runs, ends with JSON, and what it measures computes the right thing."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.bench.core import ADS, CAMPAIGNS, sliding, ysb
from penstock.bench.replay import BUFFER_ROWS, BUFFERS, ROW_US, Ads, KeySource, ReplaySource
from penstock.cli.main import main
from penstock.kernels.cache import KernelCache
from penstock.plan.optimizer import plan_program
from penstock.plan.query import Query
from penstock.testing.single_process import SingleProcess

STEPS = 30  # 78 s of event time: every window of 60 s closes at least once


@pytest.fixture(scope="module")
def ads() -> Ads:
    return Ads(seed=3, ads=ADS)


def committed(query: Query, stream: str, ads: Ads, folder: Path, kernels: KernelCache) -> pa.Table:
    sources = {"replay": lambda request: ReplaySource(ads, request.schema)}
    with SingleProcess(plan_program(query), folder, sources=sources, kernels=kernels) as process:
        for _ in range(STEPS):
            process.host.step()
        for name in process.statistics().vertices:
            process.host.vertex(name).flush()
        return process.read(stream)


def replayed(ads: Ads) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Campaign, event, price and time of every row of the steps."""
    index = np.arange(STEPS) % BUFFERS
    campaign = ads.ad[index].ravel() * CAMPAIGNS // ADS
    times = np.arange(STEPS * BUFFER_ROWS) * ROW_US
    return campaign, ads.event[index].ravel(), ads.price[index].ravel(), times


def starts_us(rows: pa.Table) -> list[int]:
    return rows.column("window").combine_chunks().field("start").cast(pa.int64()).to_pylist()


def test_the_ysb_query_counts_the_views_of_every_campaign(
    tmp_path: Path, kernels: KernelCache, ads: Ads
) -> None:
    rows = committed(ysb(), "campaign_views", ads, tmp_path, kernels)
    campaign, event, _, times = replayed(ads)
    views = event == 0
    closed = times[views][-1] // 10_000_000
    expected = Counter(zip(times[views] // 10_000_000, campaign[views], strict=True))
    found = dict(
        zip(
            zip([s // 10_000_000 for s in starts_us(rows)], rows["campaign"].to_pylist(),
                strict=True),
            rows["views"].to_pylist(),
            strict=True,
        )
    )  # fmt: skip
    assert found == {key: n for key, n in expected.items() if key[0] < closed}
    assert len(found) == rows.num_rows == closed * CAMPAIGNS


@pytest.mark.slow
def test_the_sliding_query_sums_what_every_campaign_cost(
    tmp_path: Path, kernels: KernelCache, ads: Ads
) -> None:
    rows = committed(sliding(), "campaign_cost", ads, tmp_path, kernels)
    campaign, _, price, times = replayed(ads)
    seconds = times // 1_000_000
    per_second = np.zeros((int(seconds[-1]) + 1, CAMPAIGNS), np.int64)
    np.add.at(per_second, (seconds, campaign), price)
    found = {
        (start // 1_000_000, key): cost
        for start, key, cost in zip(
            starts_us(rows), rows["campaign"].to_pylist(), rows["cost"].to_pylist(), strict=True
        )
    }
    last_closed = int(times[-1]) // 1_000_000 - 60
    for start in range(-59, last_closed + 1):
        window = per_second[max(0, start) : start + 60].sum(axis=0)
        assert [found.pop((start, key)) for key in range(CAMPAIGNS)] == window.tolist()
    assert found == {}


def test_sources_are_functions_of_the_offset(ads: Ads) -> None:
    schema = pa.schema(
        [
            pa.field("ad", pa.int32(), nullable=False),
            pa.field("ts", pa.timestamp("us", tz="UTC"), nullable=False),
        ]
    )
    source = ReplaySource(ads, schema)
    first = BUFFERS * BUFFER_ROWS + 5  # in the second cycle
    whole = source.read(first, 1000).batch
    parts = [source.read(first + begin, 100).batch for begin in range(0, 1000, 100)]
    assert pa.Table.from_batches(parts).combine_chunks().to_batches() == [whole]
    assert whole.column("ad").to_numpy().tolist() == ads.ad[0][5:1005].tolist()
    assert whole.column("ts").cast(pa.int64())[0].as_py() == first * ROW_US
    keys = KeySource(7, pa.schema([pa.field("key", pa.int64()), schema.field("ts")]))
    assert keys.read(5, 4).batch.column("key").to_pylist() == [5, 6, 0, 1]


@pytest.mark.slow
def test_a_short_run_measures_everything_and_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "core", "--seconds", "0.9", "--dir", str(tmp_path)]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    figures = json.loads(last)
    keys = {
        "ysb_rows_per_s", "sliding_rows_per_s", "loop_rows_per_s", "ysb_of_loop", "sliding_of_ysb",
        "commit_us_1_key", "commit_us_10000_keys",
    }  # fmt: skip
    assert keys <= figures.keys()
    assert all(figures[key] > 0 for key in keys)
    assert figures["samples"]["loop_rows_per_s"] >= 3
    assert set(figures["reach"]) == {
        "ysb_at_least_half_the_loop",
        "sliding_at_least_a_quarter_of_ysb",
    }
    assert any("loop_rows_per_s" in line for line in table)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("--seconds", "0"), ("--seconds", "x"), ("--rows", "1")])
def test_a_wrong_call_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["bench", "core", *words])
    assert exit.value.code == 2
