"""Samples of the six streams: a few thousand rows each, to be replayed in cycles.

They are made from a seed, to the marginals of the traces that such streams were measured on: how
many values a column has, with which shares, and how long equal ones stay together. Times are whole
seconds, but for advertisements (100 µs apart) and sensors (10 ms).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

START_S = 1_600_000_000
SECOND_US = 1_000_000
ADS = 1000
CAMPAIGNS = 100
CAMPAIGN_ID_END = 1_000_000

Columns = dict[str, NDArray[Any]]  # u128 as arrays of bytes
Random = np.random.Generator


@dataclass(frozen=True)
class Made:
    """Rows in order of time, the time of each, and when the next cycle begins after the first."""

    times_us: NDArray[np.int64]
    columns: Columns
    period_us: int

    def batch(self) -> pa.RecordBatch:
        """The rows as Arrow has them, with their time in `ts`."""
        times = pa.array(self.times_us).cast(pa.timestamp("us", tz="UTC"))
        arrays = {"ts": times} | {name: _arrow(values) for name, values in self.columns.items()}
        fields = [pa.field(name, each.type, nullable=False) for name, each in arrays.items()]
        return pa.RecordBatch.from_arrays(list(arrays.values()), schema=pa.schema(fields))


def _arrow(values: NDArray[Any]) -> pa.Array:
    if values.dtype.kind != "V":
        return pa.array(values)
    return pa.array([each.tobytes() for each in values], pa.binary())


def _held(
    rng: Random, rows: int, values: Iterable[int], shares: Sequence[float], run: float
) -> NDArray[np.int64]:
    """Values with these shares, of which equal ones stay together for `run` rows on average."""
    chances = np.asarray(shares) / np.sum(shares)
    alone = max(1.0, run * (1 - float(np.sum(chances**2))))  # neighbours may be equal by chance
    lengths = rng.geometric(1 / alone, rows)
    drawn = rng.choice(np.fromiter(values, np.int64), rows, p=chances)
    return np.repeat(drawn, lengths)[:rows]


def _tail(count: int, head: Sequence[float]) -> list[float]:
    """Shares of so many values: the first as given, the others what is left, ever less."""
    rest = 1 / np.arange(2, count - len(head) + 2)
    return [*head, *(rest / rest.sum() * (1 - sum(head)))]


def _whole_seconds(seconds: NDArray[np.int64], columns: Columns) -> Made:
    """Rows of sorted seconds; the next cycle begins in the second after the last."""
    times_us = (START_S + seconds) * SECOND_US
    return Made(times_us, columns, int(seconds[-1] - seconds[0] + 1) * SECOND_US)


def _i32(values: NDArray[Any]) -> NDArray[np.int32]:
    return values.astype(np.int32)


def cluster(rng: Random, rows: int) -> Made:
    """Events of the tasks of a cluster: 64 bytes, 12 columns."""
    spread = np.sort(rng.choice(np.arange(1, 648), 619, replace=False))
    burst = rows // 4
    weights = rng.lognormal(0, 0.5, spread.size)
    each = rng.multinomial(rows - burst - spread.size, weights / weights.sum()) + 1
    each[rng.integers(spread.size)] += burst
    jobs = np.sort(rng.integers(500_000_000, 6_300_000_000, 240))
    users = np.arange(74)
    machines = np.append(-1, rng.integers(1, 5_000_000_000, 5_041))
    columns: Columns = {
        "jobId": _held(rng, rows, jobs, _tail(240, (0.19, 0.19, 0.13, 0.12, 0.06, 0.06)), 4.7),
        "taskId": rng.integers(0, 1_526, rows),
        "machineId": _held(rng, rows, machines, _tail(5_042, (0.37,)), 1.5),
        "eventType": _i32(
            _held(rng, rows, range(6), (0.327, 0.324, 0.012, 0.005, 0.273, 0.060), 4.7)
        ),
        "userId": _i32(_held(rng, rows, users, _tail(74, (0.63,)), 5.7)),
        "category": _i32(_held(rng, rows, range(4), (0.8125, 0.036, 0.149, 0.003), 7.3)),
        "priority": _i32(
            _held(rng, rows, (2, 0, 9, 1, 8, 10), (0.728, 0.240, 0.015, 0.013, 0.004, 0.001), 7.5)
        ),
        "cpu": _thousandths(_held(rng, rows, _levels(33, 25, 406), _tail(33, (0.3,)), 5.6)),
        "ram": _thousandths(_held(rng, rows, _levels(45, 28, 300), _tail(45, (0.2,)), 5.3)),
        "disk": _thousandths(_held(rng, rows, (0, 1, 2), (0.991, 0.006, 0.003), 5.0)),
        "constraints": _i32(_held(rng, rows, (1, 0), (0.638, 0.362), 8.2)),
    }
    return _whole_seconds(np.repeat(spread, each), columns)


def _levels(count: int, usual: int, most: int) -> NDArray[np.int64]:
    """Distinct thousandths: the usual one, then others up to the greatest."""
    others = np.unique(np.geomspace(1, most, 2_000).astype(np.int64))
    others = others[others != usual]
    return np.append(usual, others[np.linspace(0, others.size - 1, count - 1).astype(int)])


def _thousandths(values: NDArray[np.int64]) -> NDArray[np.float32]:
    return (values / 1000).astype(np.float32)


def grid(rng: Random, rows: int, per_second: int = 400) -> Made:
    """Measurements of smart plugs: 32 bytes, 7 columns."""
    plugs = sorted(
        {(int(h), int(a), int(p)) for h, a, p in rng.integers(0, (10, 14, 14), (1_200, 3))}
    )[:470]
    order = np.arange(rows)
    which = np.asarray(plugs)[(order // 2) % len(plugs)]
    is_load = order % 2 == 1
    work = rng.choice(np.linspace(160, 174_000, 28).astype(int), rows, p=_falling(28))
    load = np.where(rng.random(rows) < 0.63, 0, np.minimum(rng.exponential(60_000, rows), 667_000))
    columns: Columns = {
        "value": _thousandths(np.where(is_load, load.astype(int), work)),
        "property": _i32(is_load),
        "plug": _i32(which[:, 2]),
        "household": _i32(which[:, 1]),
        "house": _i32(which[:, 0]),
        "padding": np.zeros(rows, np.int32),
    }
    return _whole_seconds(order // per_second, columns)


def _falling(count: int) -> NDArray[np.float64]:
    shares = np.exp(-np.arange(count) / 5)
    fractions: NDArray[np.float64] = shares / shares.sum()
    return fractions


def road(rng: Random, rows: int) -> Made:
    """Reports of vehicles on a highway, about every 30 s each: 32 bytes, 7 columns."""
    vehicles = 1_499
    seconds = np.sort(rng.integers(0, max(1, round(rows / 31.5)), rows))
    vehicle = np.concatenate([rng.permutation(vehicles) for _ in range(-(-rows // vehicles))])[
        :rows
    ]
    direction = (np.arange(vehicles) % 2)[vehicle]
    usual = rng.choice((27, 34, 55), vehicles)[vehicle]
    speed = np.clip(usual + rng.integers(-12, 13, rows), 0, 75)
    begin = rng.integers(0, 528_000, vehicles)[vehicle]
    moved = (usual * seconds * 1.4667).astype(np.int64)
    columns: Columns = {
        "vehicle": _i32(vehicle),
        "speed": speed.astype(np.float32),
        "highway": np.zeros(rows, np.int32),
        "lane": _i32(_held(rng, rows, range(5), (0.367, 0.164, 0.343, 0.122, 0.004), 1.5)),
        "direction": _i32(direction),
        "position": _i32((begin + np.where(direction == 0, moved, -moved)) % 528_000),
    }
    return _whole_seconds(seconds, columns)


def ads(rng: Random, rows: int) -> Made:
    """Advertisement events: 128 bytes, 7 columns, of which four are numbers of 128 bits."""
    order = np.arange(rows)
    numbers = {
        "user_id": np.zeros(rows, np.int64) + 7,
        "page_id": np.zeros(rows, np.int64) + 11,
        "ad_id": order % ADS,
    }
    columns: Columns = {name: wide(values) for name, values in numbers.items()}
    columns |= {"ad_type": order % 5, "event_type": order % 3, "ip_address": wide(order * 0 + 13)}
    return Made(START_S * SECOND_US + order * 100, columns, rows * 100)


def wide(numbers: NDArray[np.int64]) -> NDArray[np.void]:
    """Numbers of 128 bits, the greatest byte first."""
    halves = np.zeros((numbers.size, 2), ">u8")
    halves[:, 1] = numbers
    return halves.view("V16").reshape(-1)


def campaigns(rng: Random) -> NDArray[np.int64]:
    """The campaign of each ad: ten ads each, under distinct numbers that say nothing."""
    ids = rng.choice(CAMPAIGN_ID_END, CAMPAIGNS, replace=False)
    return np.repeat(ids, ADS // CAMPAIGNS)


def bids(rng: Random, rows: int) -> Made:
    """Auctions and bids as rows of numbers: 128 bytes, 9 columns and padding."""
    order = np.arange(rows)
    epoch, place = np.divmod(order, 50)
    last = np.where(place == 0, 3 * epoch - 1, 3 * epoch + np.minimum(place - 1, 2))
    prices = {
        name: np.exp(rng.uniform(0, np.log(10**8), rows)).astype(np.int64)
        for name in ("initialBid", "reserve")
    }
    seconds = order // 1000
    columns: Columns = {
        "id": 1000 + last,
        "itemName": rng.integers(0, 10**6, rows),
        "description": rng.integers(0, 10**6, rows),
        **prices,
        "expires": START_S + seconds + rng.integers(1, 100, rows),
        "seller": np.where(
            rng.random(rows) < 0.75, 1000 + last // 100, rng.integers(0, 1000, rows)
        ),
        "category": rng.integers(10, 15, rows),
    }
    return _whole_seconds(seconds, columns)


def sensors(rng: Random, rows: int) -> Made:
    """Readings of a machine, a hundred a second: 64 bytes, 14 columns."""
    walks = {
        "mf01": _walk(rng, rows, 13_053, 12_466, 18_224),
        "mf02": _walk(rng, rows, 14_378, 13_698, 20_331),
        "mf03": _walk(rng, rows, 8_089, 7_275, 9_388),
        "pc13": _walk(rng, rows, 70, 53, 86),
        "pc14": _walk(rng, rows, 189, 172, 206),
        "pc15": _walk(rng, rows, 153, 136, 171),
    }
    quiet = ("pc25", "pc26", "pc27", "res", "bm05", "bm06")
    columns: Columns = {"messageIndex": np.arange(rows), **walks}
    columns |= {name: np.zeros(rows, np.int32) for name in quiet}
    times_us = START_S * SECOND_US + np.arange(rows) * 10_000
    return Made(times_us, columns, rows * 10_000)


def _walk(rng: Random, rows: int, mean: int, least: int, most: int) -> NDArray[np.int32]:
    """A slow walk that is drawn back to its mean."""
    step = max(1.0, mean / 300)
    noise = rng.normal(0, step, rows)
    value, walked = float(mean), np.empty(rows)
    for row in range(rows):
        if row % 6:  # about one in six readings is the one before
            value += noise[row] - (value - mean) / 50
        walked[row] = value
    return _i32(np.clip(walked, least, most))


STREAMS: Mapping[str, Callable[..., Made]] = MappingProxyType(
    {
        "cluster": cluster,
        "grid": grid,
        "road": road,
        "ads": ads,
        "bids": bids,
        "sensors": sensors,
    }
)
