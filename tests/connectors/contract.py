"""What every source and every sink must pass: subclass, say how to make one, and run."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from penstock.connectors.contract import REJECTED_SCHEMA, BatchRows, Offset, Sink, Source
from penstock.errors import InvalidArgument, InvalidOffset
from penstock.log import punit

READS_MAX = 100_000


@dataclass
class Reading:
    """What a reader saw: rows, rejected input, and the rows and offset after every read."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    rejected: list[dict[str, Any]] = field(default_factory=list)
    stops: list[tuple[Offset, int, int]] = field(default_factory=list)
    watermarks_us: list[int | None] = field(default_factory=list)
    ended: bool = False


def rows_of(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """The rows as comparable tuples; floats by their text, so that NaN equals itself."""
    columns = [[repr(value) for value in column.to_pylist()] for column in batch.columns]
    return list(zip(*columns, strict=True))


def read_through(
    source: Source, rows_max: Callable[[], int], offset: Offset = None, reads_max: int = READS_MAX
) -> Reading:
    """Read until the source ends or has nothing, checking each answer's form."""
    seen = Reading()
    offset = source.initial_offset() if offset is None else offset
    seen.stops.append((offset, 0, 0))
    promised = False
    for _ in range(reads_max):
        limit = rows_max()
        answer = source.read(json.loads(json.dumps(offset)), limit)
        assert json.loads(json.dumps(answer.next_offset)) == answer.next_offset
        if answer.batch is not None:
            assert answer.batch.schema.equals(source.schema)
            assert 0 < answer.batch.num_rows <= limit
            answer.batch.validate(full=True)
            seen.rows += rows_of(answer.batch)
        if answer.rejected is not None:
            assert answer.rejected.schema.equals(REJECTED_SCHEMA)
            assert answer.rejected.num_rows > 0
            seen.rejected += answer.rejected.to_pylist()
        assert not (promised and answer.next_offset == offset), "there was to be more"
        promised = answer.more
        assert not (answer.more and (answer.ended or answer.idle))
        if answer.idle:
            assert answer.batch is None
            assert answer.rejected is None
            assert answer.next_offset == offset
            assert not answer.ended
        seen.watermarks_us.append(answer.watermark_us)
        offset = answer.next_offset
        seen.stops.append((offset, len(seen.rows), len(seen.rejected)))
        seen.ended = answer.ended
        if answer.ended or answer.idle:
            return seen
    return seen


class SourceContract:
    """Subclasses provide `make`, a bounded source of at least 20 rows, the same each time."""

    parts = 3
    splits_into_rows = True  # the parts together have the rows of the whole

    @pytest.fixture
    def make(self) -> Iterator[Callable[[], Source]]:
        raise NotImplementedError

    def test_any_batch_size_gives_the_same_rows(self, make: Callable[[], Source]) -> None:
        whole = read_through(make(), lambda: 1 << 20)
        assert len(whole.rows) >= 20
        assert whole.ended
        for seed in range(5):
            draw = random.Random(seed)
            cut = read_through(make(), lambda draw=draw: draw.choice((1, 2, 3, 7, 50, 1000)))
            assert cut.rows == whole.rows
            assert cut.rejected == whole.rejected
            assert cut.ended

    def test_replay_from_every_offset_gives_the_rest(self, make: Callable[[], Source]) -> None:
        draw = random.Random(11)
        whole = read_through(make(), lambda: draw.randint(1, 9))
        stops = whole.stops if len(whole.stops) < 40 else draw.sample(whole.stops, 40)
        for offset, rows, rejected in stops:
            rest = read_through(make(), lambda: draw.randint(1, 99), offset)
            assert rest.rows == whole.rows[rows:]
            assert rest.rejected == whole.rejected[rejected:]
            assert rest.ended

    def test_one_source_may_go_back(self, make: Callable[[], Source]) -> None:
        source = make()
        draw = random.Random(5)
        whole = read_through(source, lambda: 4)
        for offset, rows, _ in draw.sample(whole.stops, min(10, len(whole.stops))):
            answer = source.read(offset, 6)
            got = rows_of(answer.batch) if answer.batch is not None else []
            assert got == whole.rows[rows : rows + len(got)]
            assert source.read(offset, 6).next_offset == answer.next_offset

    def test_after_the_end_there_is_nothing(self, make: Callable[[], Source]) -> None:
        source = make()
        end = read_through(source, lambda: 1000).stops[-1][0]
        for _ in range(2):
            answer = source.read(end, 10)
            assert answer.batch is None
            assert answer.rejected is None
            assert answer.ended
            assert answer.next_offset == end

    def test_ended_means_that_all_was_delivered(self, make: Callable[[], Source]) -> None:
        source = make()
        total = len(read_through(make(), lambda: 1 << 20).rows)
        seen, offset, ended = 0, source.initial_offset(), False
        while not ended:
            answer = source.read(offset, 5)
            seen, offset, ended = seen + answer.rows, answer.next_offset, answer.ended
        assert seen == total

    def test_watermarks_rise_and_hold(self, make: Callable[[], Source]) -> None:
        seen = read_through(make(), lambda: 5)
        known = [mark for mark in seen.watermarks_us if mark is not None]
        assert known == sorted(known)

    def test_parts_are_disjoint_and_complete(self, make: Callable[[], Source]) -> None:
        parts = self._split(make())
        if parts is None:
            return
        again = self._split(make())
        assert again is not None
        readings = [read_through(part, lambda: 7) for part in parts]
        repeated = [read_through(part, lambda: 1000) for part in again]
        assert [reading.rows for reading in readings] == [reading.rows for reading in repeated]
        assert all(reading.ended for reading in readings)
        if self.splits_into_rows:
            whole = read_through(make(), lambda: 1000)
            together = Counter(row for reading in readings for row in reading.rows)
            assert together == Counter(whole.rows)
            rejected = [str(entry) for reading in readings for entry in reading.rejected]
            assert sorted(rejected) == sorted(str(entry) for entry in whole.rejected)

    def test_impossible_arguments_are_refused(self, make: Callable[[], Source]) -> None:
        source = make()
        for offset in (-1, "x", None, [1], {"who": 1}, 1.5, True):
            with pytest.raises(InvalidOffset):
                source.read(offset, 10)
        with pytest.raises(InvalidArgument):
            source.read(source.initial_offset(), 0)
        with pytest.raises(InvalidArgument):
            source.split(0)

    def test_closing_twice_is_harmless(self, make: Callable[[], Source]) -> None:
        source = make()
        source.read(source.initial_offset(), 3)
        source.close()
        source.close()

    def _split(self, source: Source) -> list[Source] | None:
        if source.partitions is not None and source.partitions < self.parts:
            with pytest.raises(InvalidArgument):
                source.split(self.parts)
            return None
        return source.split(self.parts)


SINK_SCHEMA = pa.schema([("value", pa.int64())])


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=SINK_SCHEMA)


def sink_rows(*batches: pa.RecordBatch) -> BatchRows:
    return BatchRows(tuple(punit.encode(each) for each in batches), SINK_SCHEMA)


def write(sink: Sink, epoch: int, *batches: pa.RecordBatch) -> None:
    """Both steps, one after the other."""
    sink.publish(epoch, sink.stage(epoch, sink_rows(*batches)))


class BrokenRows(BatchRows):
    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield batch(1)
        raise RuntimeError("upstream broke")


class SinkContract:
    """What a sink passes that knows which epochs it has.

    Subclasses provide `open_sink`, which opens the same sink again, and `contents` of it.
    """

    @pytest.fixture
    def open_sink(self) -> Callable[[], Sink]:
        raise NotImplementedError

    @pytest.fixture
    def contents(self) -> Callable[[], list[int]]:
        raise NotImplementedError

    def test_an_epoch_is_there_once(
        self, open_sink: Callable[[], Sink], contents: Callable[[], list[int]]
    ) -> None:
        sink = open_sink()
        assert sink.last_epoch() is None
        for _ in range(2):
            write(sink, 1, batch(1, 2), batch(3))
            assert sink.last_epoch() == 1
            assert sorted(contents()) == [1, 2, 3]

    def test_what_is_staged_is_seen_once_it_is_published(
        self, open_sink: Callable[[], Sink], contents: Callable[[], list[int]]
    ) -> None:
        sink = open_sink()
        second = sink.stage(2, sink_rows(batch(3)))
        first, dropped = (sink.stage(1, sink_rows(batch(1, 2))) for _ in range(2))
        assert (contents(), first.num_rows) == ([], 2)
        sink.publish(1, first)
        assert sorted(contents()) == [1, 2]
        sink.publish(2, second)
        sink.discard(dropped)
        assert sorted(contents()) == [1, 2, 3]

    def test_a_new_handle_knows_the_last_epoch(
        self, open_sink: Callable[[], Sink], contents: Callable[[], list[int]]
    ) -> None:
        first = open_sink()
        write(first, 7, batch(1))
        write(first, 12, batch(2))
        first.close()
        second = open_sink()
        assert second.last_epoch() == 12
        write(second, 12, batch(99))
        write(second, 8, batch(99))
        write(second, 13, batch(3))
        assert sorted(contents()) == [1, 2, 3]

    def test_two_who_publish_one_epoch_store_it_once(
        self, open_sink: Callable[[], Sink], contents: Callable[[], list[int]]
    ) -> None:
        zombie, heir = open_sink(), open_sink()
        assert zombie.last_epoch() is heir.last_epoch() is None
        write(zombie, 0, batch(1))
        write(heir, 0, batch(1))
        assert contents() == [1]

    def test_nothing_to_write_leaves_nothing(
        self, open_sink: Callable[[], Sink], contents: Callable[[], list[int]]
    ) -> None:
        sink = open_sink()
        write(sink, 1)
        write(sink, 2, batch())
        assert sink.last_epoch() is None
        assert contents() == []

    def test_a_failing_epoch_leaves_nothing(
        self, open_sink: Callable[[], Sink], contents: Callable[[], list[int]]
    ) -> None:
        sink = open_sink()
        with pytest.raises(RuntimeError, match="upstream broke"):
            sink.stage(1, BrokenRows((b"",), SINK_SCHEMA))
        assert contents() == []
        assert sink.last_epoch() is None
        write(sink, 1, batch(1))
        assert contents() == [1]

    def test_impossible_epochs_are_refused(self, open_sink: Callable[[], Sink]) -> None:
        with pytest.raises(InvalidArgument):
            write(open_sink(), -1, batch(1))
