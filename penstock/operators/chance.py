"""Values that are others each time: the clock and random numbers, as functions of a batch.

They are called like any Python function of the query: once for a row, before the marker that
commits what came of it. The argument of most only says how many rows there are.
"""

from __future__ import annotations

import string
import uuid as standard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.clock import SystemClock
from penstock.expressions.zones import DAY_US, load_zone

_DRAWN = np.random.default_rng()
_UUID_BYTES = 16
_LETTERS = np.frombuffer((string.digits + string.ascii_letters).encode("ascii"), np.uint8)


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


def randstr(lengths: pa.Array) -> pa.Array:
    """Letters and digits, as many as is given for each row."""
    sizes = lengths.to_numpy().astype(np.int64)
    ends = np.cumsum(sizes)
    drawn = _DRAWN.choice(_LETTERS, int(sizes.sum())).tobytes().decode("ascii")
    spans = zip(ends - sizes, ends, strict=True)
    return pa.array([drawn[begin:end] for begin, end in spans], pa.string())


def shuffle(arrays: pa.Array) -> pa.Array:
    """The items of each array in another order."""
    rows = pc.list_parent_indices(arrays).to_numpy()
    order = np.lexsort((_DRAWN.random(len(rows)), rows))
    ends = np.cumsum(pc.list_value_length(arrays).fill_null(0).to_numpy())
    offsets = pa.array(np.append(0, ends).astype(np.int32))
    items = arrays.flatten().take(pa.array(order))
    return pa.ListArray.from_arrays(offsets, items, type=arrays.type, mask=pc.is_null(arrays))


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
