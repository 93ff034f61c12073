"""Values that are others each time: the clock and random numbers, as functions of a batch.

They are called like any Python function of the query: once for a row, before the marker that
commits what came of it. Their argument only says how many rows there are.
"""

from __future__ import annotations

import uuid as standard

import numpy as np
import pyarrow as pa

from penstock.clock import SystemClock
from penstock.expressions.zones import DAY_US, load_zone

_DRAWN = np.random.default_rng()
_UUID_BYTES = 16


def rand(rows: pa.Array) -> pa.Array:
    """Evenly between 0 and 1."""
    return pa.array(_DRAWN.random(len(rows)))


def randn(rows: pa.Array) -> pa.Array:
    """Of the normal distribution."""
    return pa.array(_DRAWN.standard_normal(len(rows)))


def uuid(rows: pa.Array) -> pa.Array:
    """Of version 4, as texts."""
    drawn = _DRAWN.bytes(_UUID_BYTES * len(rows))
    starts = range(0, len(drawn), _UUID_BYTES)
    parts = (drawn[start : start + _UUID_BYTES] for start in starts)
    return pa.array([str(standard.UUID(bytes=each, version=4)) for each in parts], pa.string())


def current_timestamp(rows: pa.Array) -> pa.Array:
    """Now; one time for all rows of a batch."""
    return pa.repeat(pa.scalar(_now_us(), pa.timestamp("us", "UTC")), len(rows))


def local_timestamp(zones: pa.Array) -> pa.Array:
    """Now, as a clock in the zone shows it that is given for each row."""
    return pa.repeat(pa.scalar(_local_us(zones), pa.timestamp("us")), len(zones))


def current_date(zones: pa.Array) -> pa.Array:
    """Today in that zone."""
    return pa.repeat(pa.scalar(_local_us(zones) // DAY_US, pa.date32()), len(zones))


def _now_us() -> int:
    return SystemClock().now_us()


def _local_us(zones: pa.Array) -> int:
    return int(load_zone(zones[0].as_py()).to_local(np.array([_now_us()]))[0])
