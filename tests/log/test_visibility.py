"""What is visible: to whoever was refused because of it, and to whoever asks for the tail."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import LogBusy, SequenceConflict
from penstock.log import open_log
from penstock.log.record import START, Entry, RecordKind


def entry(sequence: int, body: bytes) -> Entry:
    return Entry(RecordKind.DATA, ("orders",), "shop", 1, sequence, body)


def test_a_conflict_with_a_record_that_its_writer_has_not_shown_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two drivers of one sink race: the slower one looks for what the faster one has committed."""
    folder = tmp_path / "log"
    with open_log(folder, create=True) as fast, open_log(folder) as slow:
        with monkeypatch.context() as stopped:
            stopped.setattr(fast, "_make_visible", lambda position: None)
            fast.append([entry(0, b"mine")])
        assert slow.last("orders") is None
        with pytest.raises(SequenceConflict):
            slow.append([entry(0, b"another")])
        seen = slow.last("orders")
        assert seen is not None
        assert bytes(seen.body) == b"mine"


def test_the_tail_asks_neither_the_index_nor_a_file(tmp_path: Path) -> None:
    """So it cannot fail where other calls do, and the simulator lets no call to it fail."""

    class Gone:
        def __getattr__(self, name: str) -> object:
            raise LogBusy(f"somebody asks for {name}")

    with open_log(tmp_path / "log", create=True) as log:
        log.append([entry(0, b"a"), entry(1, b"b")])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(log, "_index", Gone())
            patch.setattr(log, "_files", Gone())
            assert log.tail() == 2
            with pytest.raises(LogBusy):
                log.read(["orders"], START, 1)
