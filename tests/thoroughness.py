"""How much of what has no end is tried: little in `make test`, much in `make test-deep`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest

IS_DEEP = os.environ.get("PENSTOCK_TESTS") == "deep"
IS_CAMPAIGN = os.environ.get("PENSTOCK_TESTS") == "campaign"


def examples(many: int) -> int:
    """How many examples Hypothesis makes up, of a test that is worth so many."""
    return many if IS_DEEP else max(5, many // 6)


def some(values: Sequence[Any], *, every: int) -> list[Any]:
    """Parameters of a test: one in so many for `make test`, the others for the deep part."""
    return [
        value if at % every == 0 else pytest.param(value, marks=pytest.mark.slow)
        for at, value in enumerate(values)
    ]


def few(values: Sequence[Any], *, every: int) -> list[Any]:
    """Parameters of a slow test: one in so many for the deep part, the others for a campaign."""
    return [
        value if at % every == 0 else pytest.param(value, marks=pytest.mark.campaign)
        for at, value in enumerate(values)
    ]


def of_campaign(values: Sequence[Any]) -> Sequence[Any]:
    """Parameters of a test of `make campaign`; elsewhere one stands for thousands, which each
    process would gather only to leave them out."""
    return values if IS_CAMPAIGN else values[:1]


# Of a sweep over many places, each fourth is enough for `make test`: `places[part::SWEEP_PARTS]`.
SWEEP_PARTS = 4
in_parts = pytest.mark.parametrize("part", some(range(SWEEP_PARTS), every=SWEEP_PARTS))
