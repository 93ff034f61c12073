"""Random events for whole queries: disorder, late rows, nulls, few keys of every type."""

from __future__ import annotations

import datetime
import math
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa

from penstock.expressions.types import Schema, arrow_schema
from penstock.testing.plans import parse_schema
from tests.oracle.feeding import SECOND_US

EVENT_COLUMNS = (
    "id bigint, auction bigint, bidder bigint, price bigint, url string, ts timestamp, "
    "ntz timestamp_ntz, fee decimal(8,2), rate decimal(5,1), tags array<string>, flag boolean, "
    "tiny tinyint, small smallint, n int, ratio double, single float, day date, at timestamp, "
    "local timestamp_ntz, raw binary, st struct<n:int,w:string>"
)
EVENT_SCHEMA: Schema = parse_schema(EVENT_COLUMNS)

DELAY_S = 5
DISORDER_S = 4  # most rows are this much out of order: less than the delay
LATE_SHARE, LATE_S = 0.1, 40  # the others up to this much

# Two minutes before something that engines get wrong, in seconds since 1970.
_BEGINNINGS_S = (
    -120,  # 1970 itself
    1_710_054_000 - 120,  # clocks of New York go forward
    1_730_613_600 - 120,  # and back
    951_782_400 - 120,  # 29 February 2000
    -2_208_988_800,  # 1900, where zones have odd offsets
)


def event_rows(seed: int, count: int = 300) -> pa.RecordBatch:
    """Events of about half a second each, from a moment of the seed's choice on."""
    rng = random.Random(seed)
    beginning_us = rng.choice(_BEGINNINGS_S) * SECOND_US
    rows = [_event(rng, number, beginning_us) for number in range(count)]
    schema = arrow_schema(EVENT_SCHEMA)
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _event(rng: random.Random, number: int, beginning_us: int) -> dict[str, Any]:
    moment_us = beginning_us + number * SECOND_US // 2 + rng.randrange(SECOND_US)
    back_s = LATE_S if rng.random() < LATE_SHARE else DISORDER_S
    moment_us -= rng.randrange(back_s * SECOND_US)
    if rng.random() < 0.1:
        moment_us -= moment_us % SECOND_US  # on the edge of a window
    chosen = {name: rng.choice(values) for name, values in _CHOICES.items()}
    return {
        **chosen,
        "id": number,
        "bidder": rng.randrange(20),
        "price": None if rng.random() < 0.1 else rng.randrange(-1000, 1000),
        "ts": None if rng.random() < 0.03 else moment_us,
        "ntz": None if rng.random() < 0.03 else moment_us,
        "fee": None if rng.random() < 0.1 else Decimal(rng.randrange(10**6)) / 100,
        "ratio": _eighths(rng),
        "single": _eighths(rng),
    }


def _eighths(rng: random.Random) -> float | None:
    """Doubles whose sums are exact in every order, and the special ones."""
    if rng.random() < 0.1:
        return rng.choice((None, math.nan, math.inf, -math.inf, -0.0, 0.0))
    return rng.randrange(-8000, 8000) / 8


_CHOICES: dict[str, tuple[Any, ...]] = {
    "auction": (1, 2, 3, 5, 8, None, (1 << 63) - 1, -(1 << 63)),
    "url": (None, "", "a b", "b c c", "é", "日本 語", "A" * 300),
    "rate": (None, Decimal("0.0"), Decimal("-9999.9"), Decimal("1.5"), Decimal("9999.9")),
    "tags": (None, [], ["x"], ["x", None, "y"], ["", "é"]),
    "flag": (None, True, False),
    "tiny": (None, -128, 127, 0, 1),
    "small": (None, -(1 << 15), (1 << 15) - 1, 0),
    "n": (None, -(1 << 31), (1 << 31) - 1, 0, 7),
    "day": (None, datetime.date(1969, 12, 31), datetime.date(2024, 2, 29)),
    "at": (None, -1, 0, 1_710_054_000_000_000),
    "local": (None, -1, 0, 1_710_054_000_000_000),
    "raw": (None, b"", b"\xff\x00"),
    "st": (None, {"n": 1, "w": "one"}, {"n": None, "w": ""}),
}
