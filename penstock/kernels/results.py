"""What a loop over one batch gives back, compiled or not."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.arrays import Mask, Numbers, Vector


@dataclass(frozen=True, slots=True)
class LoopRows:
    """Projected rows: their numbers in the batch, and values with validity (None: all valid)."""

    kept_rows: Numbers
    outputs: list[tuple[Vector, Mask | None]]
    latest_us: int | None
    failed: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LoopGroups:
    """Groups in the order of their first row.

    `words` is groups × keys, `null_words` has bit i set where key i is null. `late_rows` are the
    numbers of late rows if they were asked for. `overflow_row` is the row at which a sum left
    64 bits: nothing else is to be trusted then.
    """

    words: Numbers
    null_words: Numbers
    panes: Numbers
    hashes: NDArray[np.uint32]
    rows: Numbers
    values: list[Vector]
    validity: list[Mask | None]
    late_count: int
    late_rows: Numbers | None
    latest_us: int | None
    failed: list[int] = field(default_factory=list)
    overflow_row: int | None = None
