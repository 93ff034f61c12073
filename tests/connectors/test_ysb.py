"""The advertisement events: a function of the row's number, however they are read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.connectors.contract import Source
from penstock.connectors.ysb import START_US, YSB_SCHEMA, ysb_source
from penstock.errors import InvalidArgument
from tests.connectors.contract import SourceContract


class TestContract(SourceContract):
    @pytest.fixture
    def make(self) -> Callable[[], Source]:
        return lambda: ysb_source(rows_total=100)


class TestPartContract(SourceContract):
    @pytest.fixture
    def make(self) -> Callable[[], Source]:
        return lambda: ysb_source(rows_total=100).split(4)[3]


@pytest.mark.parametrize("first", [0, 2_999, 3_000, 10**12 + 17])
@pytest.mark.parametrize("parts", [1, 3])
def test_values_follow_from_the_number(first: int, parts: int) -> None:
    source = ysb_source(rate=100_000, rows_at_once=5_000)
    if parts > 1:
        source = source.split(parts)[first % parts]
    answer = source.read(first, 4_000)
    numbers = range(first, first + 4_000 * parts, parts)
    batch = answer.batch
    assert batch.column("ad_id").to_pylist() == [n % 1000 for n in numbers]
    assert batch.column("ad_type").to_pylist() == [n % 5 for n in numbers]
    assert batch.column("event_type").to_pylist() == [n % 3 for n in numbers]
    times = batch.column("event_time").cast("int64").to_pylist()
    assert times == [START_US + n * 10 for n in numbers]
    assert answer.next_offset == numbers[-1] + parts
    assert answer.watermark_us == START_US + answer.next_offset * 10
    assert not answer.ended


def test_only_the_columns_asked_for_are_there() -> None:
    batch = ysb_source(columns=["event_time", "ad_id"]).read(0, 3).batch
    assert batch.schema.names == ["event_time", "ad_id"]
    assert batch.schema.field("ad_id") == YSB_SCHEMA.field("ad_id")


@pytest.mark.parametrize(
    "wrong", [{"rate": 0}, {"rate": 7}, {"rows_total": -1}, {"columns": ["price"]}]
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        ysb_source(**wrong)
