"""What tests of a state share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.state.working import let_work

STANDING_IN = pytest.param(True, id="standing-in", marks=pytest.mark.slow)


@pytest.fixture(params=[pytest.param(False, id="compiled"), STANDING_IN])
def loops(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test runs twice: with compiled loops, and with what stands in for them."""
    let_work(stand_ins=request.param)
    yield
    let_work(stand_ins=False)
