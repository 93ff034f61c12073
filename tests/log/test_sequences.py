"""Producers' sequences in the embedded log: what one handle knows while others append and trim."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from penstock.config import LogConfig
from penstock.errors import DiskFull, IndexDamaged, SequenceConflict, Trimmed
from penstock.log import Entry, LocalLog, Position, RecordKind, open_log
from penstock.log.fsck import fsck
from penstock.log.sequences import Sequences

CONFIG = LogConfig(durability="process")


def entry(sequence: int, producer: str = "p", tag: str = "t") -> Entry:
    return Entry(RecordKind.DATA, (tag,), producer, 1, sequence, b"body %d" % sequence)


def noted(log: LocalLog) -> dict[str, tuple[int, int]]:
    rows = log._index._execute("SELECT producer, sequence, trimmed FROM producer").fetchall()
    return {producer: (sequence, trimmed) for producer, sequence, trimmed in rows}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    open_log(tmp_path / "log", create=True, config=CONFIG).close()
    return tmp_path / "log"


def test_a_handle_hears_of_what_others_append(folder: Path) -> None:
    with open_log(folder) as log, open_log(folder) as other:
        log.append([entry(0)])
        other.append([entry(1)])
        with pytest.raises(SequenceConflict, match="other content"):
            log.append([entry(1, tag="u")])
        assert log.append([entry(1)]) == (2,)
        assert log.append([entry(2)]) == (3,)


@pytest.mark.parametrize("others", [1, 3, 40])
def test_a_handle_hears_of_what_others_append_and_trim(folder: Path, others: int) -> None:
    with open_log(folder) as log, open_log(folder) as other:
        log.append([entry(0, tag="kept")])
        for sequence in range(1, others + 1):
            other.append([entry(sequence)])
        other.append([entry(0, producer="q")])
        other.trim("t", Position(others + 1))
        assert other.append([entry(1, producer="q")]) == (others + 3,)
        for sequence in {1, others}:
            with pytest.raises(Trimmed):
                log.append([entry(sequence)])
        assert log.append([entry(others + 1)]) == (others + 4,)


def test_sequences_are_noted_now_and_then(folder: Path) -> None:
    with open_log(folder) as log:
        for sequence in range(4):
            log.append([entry(sequence)])
        assert noted(log) == {}
        log.append([entry(sequence, producer="q") for sequence in range(3)])
        assert noted(log) == {"p": (3, -1), "q": (2, -1)}
        log.trim("t", Position(2))
        assert noted(log) == {"p": (3, 1), "q": (2, -1)}
    with open_log(folder) as log:
        assert log.append([entry(3)]) == (4,)
        assert log.append([entry(4)]) == (8,)
        with pytest.raises(Trimmed):
            log.append([entry(1)])
    assert fsck(folder).is_clean


def test_what_was_rolled_back_is_not_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_log(folder) as log:
        log.append([entry(sequence) for sequence in range(4)])
        note = Sequences.note

        def fail(self: Sequences, tail: int) -> None:
            note(self, tail)
            raise apsw.FullError("no space")

        with monkeypatch.context() as patched:
            patched.setattr(Sequences, "note", fail)
            with pytest.raises(DiskFull):
                log.append([entry(4)])
        assert noted(log) == {}
        assert log.append([entry(4)]) == (5,)
        assert noted(log) == {"p": (4, -1)}


def test_all_that_was_ever_appended_can_be_repeated_in_any_order(folder: Path) -> None:
    with open_log(folder) as log:
        for sequence in range(0, 60, 2):
            log.append([entry(sequence), entry(sequence, producer="q")])
    with open_log(folder) as log:
        for sequence in (58, *range(0, 60, 2), *range(58, 0, -2)):
            assert log.append([entry(sequence)]) == (sequence + 1,)
            if sequence:
                with pytest.raises(SequenceConflict, match="not in the log"):
                    log.append([entry(sequence - 1)])
        assert log.tail() == 60


def test_a_damaged_row_of_a_producer_is_noticed(folder: Path) -> None:
    with open_log(folder) as log:
        log.append([entry(sequence) for sequence in range(8)])
        log._index._execute("UPDATE producer SET sequence = 2")
    with open_log(folder) as log, pytest.raises(IndexDamaged, match="producer 'p'"):
        log.append([entry(8)])
