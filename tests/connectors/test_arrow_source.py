"""The source over record batches in memory."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from penstock.connectors.contract import Source
from penstock.errors import InvalidArgument, InvalidOffset, SchemaMismatch
from tests.connectors.arrow_source import ArrowSource
from tests.connectors.contract import SourceContract, read_through, rows_of


def numbers(first: int, end: int) -> pa.RecordBatch:
    values = pa.array(range(first, end), pa.int64())
    return pa.record_batch({"value": values, "text": values.cast(pa.string())})


class TestContract(SourceContract):
    @pytest.fixture
    def make(self) -> Callable[[], Source]:
        return lambda: ArrowSource(
            [numbers(0, 10), numbers(10, 10), numbers(10, 31), numbers(31, 32)]
        )


class TestPartContract(SourceContract):
    @pytest.fixture
    def make(self) -> Callable[[], Source]:
        return lambda: ArrowSource([numbers(0, 40), numbers(40, 90)]).split(3)[1]


def test_a_table_keeps_its_schema_when_it_is_empty() -> None:
    schema = numbers(0, 1).schema
    source = ArrowSource(schema.empty_table())
    assert source.schema.equals(schema)
    assert source.read(0, 10).ended


def test_parts_are_even_and_contiguous() -> None:
    parts = ArrowSource(pa.Table.from_batches([numbers(0, 11)])).split(4)
    found = [read_through(part, lambda: 2).rows for part in parts]
    assert [len(rows) for rows in found] == [2, 3, 3, 3]
    assert [row for rows in found for row in rows] == rows_of(numbers(0, 11))


def test_a_growing_source_waits_until_it_is_finished() -> None:
    source = ArrowSource([], schema=numbers(0, 1).schema, growing=True)
    assert source.read(0, 5).idle
    source.append(numbers(0, 3))
    answer = source.read(0, 5)
    assert (answer.rows, answer.ended) == (3, False)
    assert source.read(3, 5).idle
    source.append(numbers(3, 4))
    source.finish()
    assert source.read(3, 5).ended
    with pytest.raises(InvalidArgument):
        source.append(numbers(4, 5))


def test_a_batch_of_another_schema_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="other"):
        ArrowSource([numbers(0, 1), pa.record_batch({"other": [1]})])
    with pytest.raises(InvalidArgument, match="schema"):
        ArrowSource([])


def test_an_offset_behind_the_end_is_refused() -> None:
    with pytest.raises(InvalidOffset):
        ArrowSource([numbers(0, 3)]).read(4, 1)
