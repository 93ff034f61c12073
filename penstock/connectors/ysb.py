"""Advertisement events of the Yahoo streaming benchmark, as a function of the row's number.

Row i is about ad i mod 1000, of type i mod 5; what happened is i mod 3 (0 is a view). Its time is
i / rate after the start.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.connectors.contract import READ_ROWS_MAX
from penstock.connectors.repeating import RepeatingSource, Sample
from penstock.errors import InvalidArgument

ADS = 1000
AD_TYPES = 5
EVENT_TYPES = 3
PERIOD = ADS * EVENT_TYPES  # rows after which all columns but the time begin again
RATE = 10_000
RATE_MAX = 1_000_000
START_US = 1_600_002_000_000_000
TIME_COLUMN = "event_time"

YSB_SCHEMA = pa.schema(
    [
        pa.field("ad_id", pa.int32(), nullable=False),
        pa.field("ad_type", pa.int32(), nullable=False),
        pa.field("event_type", pa.int32(), nullable=False),
        pa.field(TIME_COLUMN, pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)


def ysb_source(
    rate: int = RATE,
    rows_total: int | None = None,
    columns: Sequence[str] | None = None,
    rows_at_once: int = READ_ROWS_MAX,
) -> RepeatingSource:
    """The events without end, or `rows_total` of them; `rate` is of event time, rows a second."""
    if not 1 <= rate <= RATE_MAX or 1_000_000 % rate:
        raise InvalidArgument(f"rate is {rate}, possible are divisors of {RATE_MAX:,}")
    numbers, row_us = np.arange(PERIOD), 1_000_000 // rate
    values = [(numbers % each).astype(np.int32) for each in (ADS, AD_TYPES, EVENT_TYPES)]
    times = pa.array(START_US + numbers * row_us).cast(YSB_SCHEMA.field(TIME_COLUMN).type)
    rows = pa.RecordBatch.from_arrays([*map(pa.array, values), times], schema=YSB_SCHEMA)
    sample = Sample(rows, TIME_COLUMN, PERIOD * row_us)
    return RepeatingSource(sample, rows_total, columns, rows_at_once)
