"""Who does the work of the loops over a state's arrays: machine code, or what stands in for it."""

from __future__ import annotations

from penstock.loops import loops_of
from penstock.state import tables
from penstock.state.stand_ins import STAND_INS


def let_work(stand_ins: bool) -> None:
    """From here on, in this process."""
    for loop in loops_of(tables):
        loop.use(STAND_INS.get(loop.name) if stand_ins else None)
