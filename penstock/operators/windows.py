"""Which panes and windows belong together, and which a watermark has closed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from penstock.arrays import Mask, Numbers, validity_of, values_of
from penstock.errors import RowError
from penstock.expressions.frame import row_error
from penstock.expressions.tree import Expression
from penstock.expressions.types import arrow_type
from penstock.kernels.block import PANE_NONE, StepRows
from penstock.kernels.columns import plain
from penstock.operators.specs import SessionSpec, WindowSpec
from penstock.state.overlaps import Overlap

_INT64_MAX = (1 << 63) - 1
Pane = TypeVar("Pane", int, Numbers)


@dataclass(frozen=True, slots=True)
class Windows:
    """Window k covers the panes k*per_slide to k*per_slide + per_window - 1, both included."""

    spec: WindowSpec

    @property
    def is_tumbling(self) -> bool:
        return self.spec.size_us == self.spec.slide_us

    def last_closed(self, watermark_us: int) -> int:
        """The greatest k whose window ends at or before the watermark."""
        spec = self.spec
        return (watermark_us - spec.start_us - spec.size_us) // spec.slide_us

    def closed_pane(self, watermark_us: int | None) -> int:
        """The greatest pane all of whose windows have ended: a row in it or before it is late."""
        if watermark_us is None:
            return PANE_NONE
        pane = (self.last_closed(watermark_us) + 1) * self.spec.panes_per_slide - 1
        return max(min(pane, _INT64_MAX), PANE_NONE)

    def panes_of(self, window: int) -> tuple[int, int]:
        """The first and the last pane of a window."""
        first = window * self.spec.panes_per_slide
        return first, first + self.spec.panes_per_window - 1

    def windows_of(self, pane: Pane) -> tuple[Pane, Pane]:
        """The first and the last window that cover a pane; none if slides leave it out."""
        spec = self.spec
        return (pane - spec.panes_per_window) // spec.panes_per_slide + 1, (
            pane // spec.panes_per_slide
        )

    @property
    def overlap(self) -> Overlap:
        return Overlap(self.spec.panes_per_window, self.spec.panes_per_slide)

    def column(self, windows: Numbers) -> pa.Array:
        """The windows as structs of start and end."""
        spec = self.spec
        starts = windows * spec.slide_us + spec.start_us
        time = arrow_type(spec.type.fields[0].type)
        fields = list(arrow_type(spec.type))
        return pa.StructArray.from_arrays(
            [pa.array(starts).view(time), pa.array(starts + spec.size_us).view(time)],
            fields=fields,
        )


def panes_of_rows(
    window: WindowSpec | SessionSpec,
    made: StepRows,
    times: pa.Array,
    time: Expression,
    collect_bad: bool,
    bad: dict[int, RowError],
) -> tuple[Numbers, Mask]:
    """The pane of each row by its time, and which have one; times beyond all windows fail."""
    column = plain(times)
    times_us, valid = values_of(column), validity_of(column)
    first_us, last_us = window.times_us
    outside = valid & ((times_us < first_us) | (times_us > last_us))
    for row in np.flatnonzero(outside).tolist():
        reason = f"a window of the time {times_us[row]} us would lie beyond 64 bits"
        error = row_error(made.origin(row), reason, str(time))
        if not collect_bad:
            raise error
        bad.setdefault(made.origin(row), error)
    timed = valid & ~outside
    return (np.where(timed, times_us, 0) - window.start_us) // window.pane_us, timed


def overlap_of(window: WindowSpec | SessionSpec | None) -> Overlap | None:
    """How panes make windows, where windows overlap."""
    if not isinstance(window, WindowSpec) or Windows(window).is_tumbling:
        return None
    return Windows(window).overlap
