"""The committed reader: pages are not ends, and nothing it was promised goes missing unsaid."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest

from penstock.errors import Trimmed
from penstock.log import committed
from penstock.log.committed import CommittedReader
from penstock.log.record import START, Entry, Position, Record, RecordKind
from penstock.testing.memory_log import MemoryLog

ROWS, MARKERS = "S/s/0", "S/s/m"
TAGS = (ROWS, MARKERS)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committed, "READ_RECORDS", 4)


class Interrupted(MemoryLog):
    """A log where something happens right before a read, or right after it."""

    before_read: Callable[[], object] = staticmethod(lambda: None)
    after_read: Callable[[], object] = staticmethod(lambda: None)

    def read(
        self,
        tags: Collection[str],
        after: Position,
        limit: int,
        *,
        untrimmed_after: Position | None = None,
    ) -> list[Record]:
        happens, self.before_read = self.before_read, lambda: None
        happens()
        records = super().read(tags, after, limit, untrimmed_after=untrimmed_after)
        happens, self.after_read = self.after_read, lambda: None
        happens()
        return records


def filled(epochs: int) -> Interrupted:
    """Epoch n has its rows at position 2n - 1 and its marker at 2n."""
    log = Interrupted()
    for epoch in range(epochs):
        commit(log, epoch)
    return log


def commit(log: MemoryLog, epoch: int) -> None:
    rows = Entry(RecordKind.DATA, (ROWS,), "p", 1, 2 * epoch, b"%d" % epoch)
    log.append([rows, Entry(RecordKind.MARKER, (MARKERS,), "p", 1, 2 * epoch + 1, b"")])


def cut(log: MemoryLog, upto: int) -> None:
    for tag in TAGS:
        log.trim(tag, Position(upto))


def take_all(reader: CommittedReader) -> list[int]:
    taken = []
    while (release := reader.take()) is not None:
        taken += [int(bytes(record.body)) for record in release.records]
    return taken


def test_everything_is_taken_whatever_the_size_of_a_page() -> None:
    assert take_all(CommittedReader(filled(50), TAGS)) == list(range(50))


@pytest.mark.parametrize("epochs", [1, 2, 3])
@pytest.mark.parametrize("moment", ["before_read", "after_read"])
def test_what_is_committed_while_a_page_is_read_is_not_passed_by(moment: str, epochs: int) -> None:
    """The tail by which a short page is the last one is that of before the read."""
    log = filled(epochs)
    setattr(log, moment, lambda: commit(log, epochs))
    assert take_all(CommittedReader(log, TAGS)) == list(range(epochs + 1))


@pytest.mark.parametrize("moment", ["before_read", "after_read"])
def test_nor_is_it_where_tags_may_become_more(moment: str) -> None:
    log = filled(1)
    setattr(log, moment, lambda: commit(log, 1))
    assert take_all(CommittedReader(log, lambda: TAGS)) == [0, 1]


def test_a_new_reader_begins_with_what_is_still_there() -> None:
    log = filled(50)
    cut(log, 40)
    assert take_all(CommittedReader(log, TAGS)) == list(range(20, 50))


def test_a_new_reader_accepts_a_cut_that_was_made_by_halves() -> None:
    """Tags are trimmed one after the other: markers may stay whose rows are gone."""
    log = filled(50)
    log.trim(ROWS, Position(40))
    reader = CommittedReader(log, TAGS)
    first = reader.take()
    assert first is not None
    log.trim(MARKERS, Position(40))
    assert [int(bytes(first.records[0].body)), *take_all(reader)] == list(range(20, 50))


def test_a_new_reader_gets_no_part_of_an_epoch_that_was_cut_by_halves() -> None:
    """Rows of one substream are gone, those of the other and the marker are still there."""
    log = MemoryLog()
    for epoch in range(3):
        entries = [
            Entry(kind, (tag,), "p", 1, 3 * epoch + at, b"%d" % epoch)
            for at, (kind, tag) in enumerate(
                [(RecordKind.DATA, ROWS), (RecordKind.DATA, "S/x/1"), (RecordKind.MARKER, MARKERS)]
            )
        ]
        log.append(entries)
    log.trim(ROWS, Position(3))
    assert take_all(CommittedReader(log, (*TAGS, "S/x/1"))) == [1, 1, 2, 2]


def test_a_new_reader_accepts_a_cut_right_before_its_first_page() -> None:
    log = filled(50)
    log.before_read = lambda: cut(log, 40)
    assert take_all(CommittedReader(log, TAGS)) == list(range(20, 50))


@pytest.mark.parametrize("after", [START, Position(38)])
def test_a_reader_that_says_where_it_stood_is_told_what_it_missed(after: Position) -> None:
    log = filled(50)
    cut(log, 40)
    with pytest.raises(Trimmed) as caught:
        CommittedReader(log, TAGS, after, after).take()
    assert caught.value.details["after"] == after
    assert caught.value.details["upto"] == 40


def test_a_reader_is_told_of_a_trim_between_two_of_its_pages() -> None:
    log = filled(50)
    reader = CommittedReader(log, TAGS)
    first = reader.take()
    assert first is not None
    assert first.marker.position == 2
    cut(log, 40)
    with pytest.raises(Trimmed, match="come to 4"):
        take_all(reader)


def test_a_trim_of_what_its_reader_is_done_with_harms_nobody() -> None:
    log = filled(50)
    reader = CommittedReader(log, TAGS)
    taken = []
    while (release := reader.take()) is not None:
        taken += [int(bytes(record.body)) for record in release.records]
        cut(log, reader.resume)
        reader = CommittedReader(log, TAGS, reader.resume, reader.consumed)
    assert taken == list(range(50))
