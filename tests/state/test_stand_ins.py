"""What stands in for compiled loops, beside a plain loop over the same values."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.state.stand_ins import fold_greatest, fold_least

VALUES = st.sampled_from([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan])
GROUPS = 2


def _key(value: float) -> tuple[bool, float]:
    """By which values are ordered: NaN is the greatest, and zeros are equal."""
    return (True, 0.0) if math.isnan(value) else (False, value)


@given(
    begun=st.lists(VALUES, min_size=GROUPS, max_size=GROUPS),
    rows=st.lists(st.tuples(st.integers(0, GROUPS - 1), VALUES), max_size=8),
)
@example(begun=[math.nan, math.nan], rows=[(0, 0.0), (1, -0.0), (0, -0.0), (1, 0.0)])
@example(begun=[-0.0, 0.0], rows=[(0, 0.0), (1, -0.0)])
def test_of_equal_values_the_first_stays(begun: list[float], rows: list[tuple[int, float]]) -> None:
    targets = np.array([group for group, _ in rows], np.int64)
    numbers = np.array([value for _, value in rows], np.float64)
    for fold, choose in ((fold_least, min), (fold_greatest, max)):
        totals = np.array(begun)
        fold(totals, targets, numbers)
        for group in range(GROUPS):
            # Python's min and max keep the first of those that are equal.
            mine = [begun[group], *(value for owner, value in rows if owner == group)]
            assert repr(float(totals[group])) == repr(choose(mine, key=_key))
