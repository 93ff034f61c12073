"""Pages of the embedded log: a short one is the end, whatever was lost or trimmed within it."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config import LogConfig
from penstock.errors import Trimmed
from penstock.log import START, Entry, LocalLog, Position, RecordKind, open_log
from penstock.log.repair import repair
from penstock.log.segments import SegmentReader

RECORDS = 100
CONFIG = LogConfig(durability="process", inline_bytes_max=0, segment_bytes_max=4_096)


def fill(folder: Path) -> LocalLog:
    log = open_log(folder, create=True, config=CONFIG)
    for sequence in range(RECORDS):
        log.append([Entry(RecordKind.DATA, ("t",), "p", 1, sequence, b"%300d" % sequence)])
    return log


def walk(log: LocalLog, limit: int) -> list[int]:
    """Read as every reader does that takes a short page for the end."""
    walked: list[int] = []
    after = START
    while True:
        page = log.read(["t"], after, limit)
        walked += [record.position for record in page]
        if len(page) < limit:
            return walked
        after = page[-1].position


@pytest.mark.parametrize("limit", [1, 7, RECORDS])
def test_lost_records_shorten_no_page(limit: int, tmp_path: Path) -> None:
    log = fill(tmp_path / "log")
    row = log._index.read(["t"], Position(3), Position(4), 1)[0]
    log.close()
    assert row.offset is not None
    segment = tmp_path / "log" / "segments" / f"{row.segment}.seg"
    content = bytearray(segment.read_bytes())
    content[row.offset + 70] ^= 1
    segment.write_bytes(content)
    assert repair(tmp_path / "log").lost == [4]
    with open_log(tmp_path / "log", skip_lost=True) as log:
        assert walk(log, limit) == [p for p in range(1, RECORDS + 1) if p != 4]


@pytest.fixture
def trim_within_a_read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[LocalLog, LocalLog, int]]:
    """(reader, other, upto): `other` trims once `reader` has rows and before it has a body."""
    due: list[tuple[LocalLog, LocalLog, int]] = []
    body = SegmentReader.body

    def interrupted(
        self: SegmentReader, name: str, offset: int, length: int, checksum: int
    ) -> memoryview:
        if due and due[0][0]._reader is self:
            _, other, upto = due.pop()
            other.trim("t", Position(upto))
        return body(self, name, offset, length, checksum)

    monkeypatch.setattr(SegmentReader, "body", interrupted)
    return due


@pytest.mark.parametrize("limit", [1, 7, RECORDS - 1])
def test_a_trim_within_a_read_shortens_no_page(
    limit: int, tmp_path: Path, trim_within_a_read: list[tuple[LocalLog, LocalLog, int]]
) -> None:
    fill(tmp_path / "log").close()  # whoever writes a segment keeps it
    with open_log(tmp_path / "log") as other, open_log(tmp_path / "log") as log:
        trim_within_a_read.append((log, other, 60))
        walked = walk(log, limit)
        assert not trim_within_a_read, "nothing was trimmed within a read"
        assert [p for p in walked if p > 60] == list(range(61, RECORDS + 1))


def test_a_reader_that_was_promised_all_is_told_of_a_trim_within_its_read(
    tmp_path: Path, trim_within_a_read: list[tuple[LocalLog, LocalLog, int]]
) -> None:
    fill(tmp_path / "log").close()
    with open_log(tmp_path / "log") as other, open_log(tmp_path / "log") as log:
        trim_within_a_read.append((log, other, 60))
        with pytest.raises(Trimmed):
            log.read(["t"], Position(10), 5, untrimmed_after=Position(10))
        assert len(log.read(["t"], Position(60), 5, untrimmed_after=Position(60))) == 5
