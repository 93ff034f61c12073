"""A sample that comes again and again: a function of the row's number, however it is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.connectors.contract import Source
from penstock.connectors.repeating import RepeatingSource, Sample, read_sample, sample_digest
from penstock.errors import InvalidArgument, SourceError
from tests.connectors.contract import SourceContract

TIMES_US = [5, 5, 9, 20, 20, 20, 31]
NAMES = ["a", None, "", "dé", "e", "a", "g"]
PERIOD_US = 40


def rows(times_us: list[int | None] | None = None) -> pa.RecordBatch:
    times = pa.array(times_us or TIMES_US).cast(pa.timestamp("us", tz="UTC"))
    return pa.record_batch({"name": pa.array(NAMES[: len(times)]), "ts": times})


def sample() -> Sample:
    return Sample(rows(), "ts", PERIOD_US)


class TestContract(SourceContract):
    @pytest.fixture
    def make(self) -> Callable[[], Source]:
        return lambda: RepeatingSource(sample(), 100)


class TestPartContract(SourceContract):
    @pytest.fixture
    def make(self) -> Callable[[], Source]:
        return lambda: RepeatingSource(sample(), 200).split(4)[3]


@pytest.mark.parametrize("first", [0, 6, 7, 10**12 + 17])
@pytest.mark.parametrize("parts", [1, 2, 7, 14])
@pytest.mark.parametrize("coded", [False, True])
def test_values_follow_from_the_number(first: int, parts: int, coded: bool) -> None:
    texts = {"name"} if coded else set()
    whole = RepeatingSource(sample(), rows_at_once=50, coded=texts)
    source = whole if parts == 1 else whole.split(parts)[first % parts]
    answer = source.read(first, 40)
    numbers = range(first, first + 40 * parts, parts)
    batch = answer.batch
    assert pa.types.is_dictionary(batch.column("name").type) == coded
    assert batch.column("name").to_pylist() == [NAMES[n % 7] for n in numbers]
    times_us = batch.column("ts").cast("int64").to_pylist()
    assert times_us == [TIMES_US[n % 7] + n // 7 * PERIOD_US for n in numbers]
    following = first + 40 * parts
    assert answer.next_offset == following
    assert answer.watermark_us == TIMES_US[following % 7] + following // 7 * PERIOD_US


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: Sample(rows(), "name", PERIOD_US), "'name' of the sample is string"),
        (lambda: Sample(rows(), "time", PERIOD_US), "no column 'time'"),
        (lambda: Sample(rows(), "ts", 25), "spans 26"),
        (lambda: Sample(rows([2, 1]), "ts", PERIOD_US), "sort it"),
        (lambda: Sample(rows([2, None]), "ts", PERIOD_US), "has nulls"),
        (lambda: Sample(rows().slice(0, 0), "ts", PERIOD_US), "has 0"),
        (lambda: RepeatingSource(sample(), -1), "below 0"),
        (lambda: RepeatingSource(sample(), columns=["other"]), "no column 'other'"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: Callable[[], Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        wrong()


def test_the_sample_of_a_file_is_the_one_that_was_planned_with(tmp_path: Path) -> None:
    path = str(tmp_path / "sample.parquet")
    pq.write_table(pa.Table.from_batches([rows()]), path)
    digest = sample_digest(path)
    found = read_sample(path, "ts", digest=digest)
    assert found.rows.equals(rows())
    assert found.period_us == 26 + 1_000_000
    pq.write_table(pa.Table.from_batches([rows().slice(1)]), path)
    with pytest.raises(SourceError, match="not the sample that the query was planned with"):
        read_sample(path, "ts", digest=digest)


@pytest.mark.parametrize("content", [None, b"", b"PAR1 but no more", b"\0" * 1_000])
def test_a_file_that_is_no_sample_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "sample.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SourceError, match=r"sample\.parquet|cannot read"):
        read_sample(str(path), "ts")
