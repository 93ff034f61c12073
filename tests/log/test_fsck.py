"""fsck finds every kind of damage, says where, and never writes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa
import pytest

from penstock.errors import LogNotFound, LogVersionUnsupported, NotALog
from penstock.log import open_log, punit
from penstock.log.fsck import Report, fsck
from penstock.log.index import connect, content_seal, seal_at
from penstock.log.record import Entry, RecordKind
from penstock.log.segments import ALIGNMENT
from tests.log.harm import CONFIG, Sample, files_of, flip, make_sample


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return make_sample(tmp_path_factory.mktemp("fsck") / "log", folded=True)


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return make_sample(tmp_path_factory.mktemp("fsck_crashed") / "log", folded=False)


@pytest.fixture
def folder(sample: Sample, tmp_path: Path) -> Path:
    return sample.lay_out(tmp_path / "log")


def codes(report: Report, severity: str = "error") -> set[str]:
    return {finding.code for finding in report.findings if finding.severity == severity}


def tamper(folder: Path, statement: str, values: tuple[Any, ...] = ()) -> None:
    """Change the index through SQLite: its pages stay sound, their content does not."""
    connection = connect(folder / "index.db", None, read_only=False)
    connection.execute(statement, values)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    connection.close()


def test_a_sound_log_is_clean_and_untouched(sample: Sample, folder: Path) -> None:
    report = fsck(folder)
    assert report.is_clean
    assert report.findings == []
    assert report.counts["records"] == sample.content.tail
    assert report.counts["frames"] > 20
    assert report.counts["tags"] == 6
    assert files_of(folder) == sample.files
    assert not (folder / "index.db-shm").exists()


def test_a_log_that_crashed_is_clean_and_untouched(crashed: Sample, tmp_path: Path) -> None:
    folder = crashed.lay_out(tmp_path / "log")
    report = fsck(folder)
    assert report.is_clean
    assert report.counts["tail"] == crashed.content.tail
    assert files_of(folder) == crashed.files


def test_an_empty_log_is_clean(tmp_path: Path) -> None:
    open_log(tmp_path / "log", create=True).close()
    report = fsck(tmp_path / "log")
    assert report.is_clean
    assert report.counts["records"] == 0


def test_whatever_a_reader_notices_fsck_finds(
    sample: Sample, crashed: Sample, tmp_path: Path
) -> None:
    folder = tmp_path / "log"
    for each in (sample, crashed):
        names = [name for name in each.files if not name.endswith(".seg")]
        for name in (*names, each.segment(2)):
            size = len(each.files[name])
            for place, offset in enumerate(range(size // 7, size, max(1, size // 8))):
                each.lay_out(folder)
                flip(folder / name, offset, bit=place % 8)
                noticed = each.outcome(folder, read_only=True)
                each.lay_out(folder)
                flip(folder / name, offset, bit=place % 8)
                harmed = files_of(folder)
                try:
                    clean = fsck(folder).is_clean
                except (NotALog, LogVersionUnsupported):
                    clean = False
                assert clean <= (noticed is None), (name, offset, noticed)
                assert files_of(folder) == harmed


TAMPERED: list[tuple[str, str]] = [
    ("UPDATE record SET time_us = time_us + 1 WHERE position = 7", "row_damaged"),
    ("UPDATE record SET kind = 9 WHERE position = 7", "row_damaged"),
    ("UPDATE record SET body = x'00' WHERE position = 7", "body_damaged"),
    ("UPDATE record SET tags_live = 1 WHERE position = 70", "tags_live_wrong"),
    ("DELETE FROM record WHERE position = 7", "tag_extra"),
    ("DELETE FROM tag WHERE tag = 'rare' AND position = 150", "tag_missing"),
    ("DELETE FROM tag WHERE tag = 'all' AND position = 9", "chain_broken"),
    ("INSERT INTO tag VALUES('rare', 151, 150)", "tag_extra"),
    ("UPDATE tag SET previous = 3 WHERE tag = 'all' AND position = 9", "chain_broken"),
    ("UPDATE trim SET upto = upto - 1 WHERE tag = 'old'", "trim_damaged"),
    ("INSERT INTO producer VALUES('nobody', 1, 5, 5, 1)", "producer_damaged"),
    ("UPDATE log SET noted = 100", "producer_damaged"),
    ("UPDATE metadata SET value = x'00' WHERE key = 'settings/k09'", "metadata_damaged"),
    ("UPDATE metadata SET key = '../k' WHERE key = 'settings/k09'", "name_invalid"),
    ("UPDATE segment SET live = live - 1 WHERE id = 1", "live_wrong"),
    ("UPDATE segment SET end = end - 1 WHERE id = 1", "end_wrong"),
    ("CREATE INDEX extra ON record(time_us)", "index_damaged"),
    ("UPDATE log SET changes = changes - 1", "tail_lost"),
    ("DELETE FROM record WHERE position = 160", "tail_lost"),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "code"), TAMPERED)
def test_each_check_finds_what_it_is_for(folder: Path, statement: str, code: str) -> None:
    tamper(folder, statement)
    report = fsck(folder)
    assert code in codes(report)
    files = {finding.file for finding in report.findings if finding.code == code}
    assert files == {"index.db-wal" if code == "tail_lost" else "index.db"}


def test_a_sequence_that_falls_is_found(folder: Path) -> None:
    connection = connect(folder / "index.db", None, read_only=True)
    row = connection.execute(
        "SELECT position, kind, producer, instance, sequence, tags, time_us, NULL, offset, length, "
        "checksum FROM record WHERE position = 154"
    ).fetchall()[0]
    connection.close()
    fields = [*row]
    fields[4] = 1_000  # above every sequence that follows
    tamper(
        folder,
        "UPDATE record SET sequence = 1000, seal = ? WHERE position = 154",
        (seal_at(content_seal(*fields[1:]), fields[0]),),
    )
    assert codes(fsck(folder)) == {"sequence_damaged"}


def test_damage_in_a_segment_is_found_with_its_place(sample: Sample, folder: Path) -> None:
    flip(folder / sample.segment(), 2 * ALIGNMENT + 5)
    (finding,) = fsck(folder).findings
    assert (finding.code, finding.file) == ("segment_damaged", sample.segment())
    assert finding.offset == ALIGNMENT
    assert finding.position == 5


HARMS: list[tuple[Callable[[Path], Any], str]] = [
    (lambda path: path.unlink(), "segment_missing"),
    (lambda path: path.write_bytes(path.read_bytes()[:-1]), "segment_truncated"),
    (lambda path: path.write_bytes(b""), "segment_truncated"),
    (lambda path: flip(path, 3), "segment_damaged"),
    (lambda path: flip(path, ALIGNMENT + 9), "segment_damaged"),
    (lambda path: shutil.move(path, path.with_suffix(".txt")), "segment_missing"),
]


@pytest.mark.parametrize(("harm", "code"), HARMS)
def test_a_harmed_segment_is_found(
    sample: Sample, folder: Path, harm: Callable[[Path], Any], code: str
) -> None:
    harm(folder / sample.segment(2))
    assert codes(fsck(folder)) == {code}


def test_a_symlinked_segment_is_found(sample: Sample, folder: Path, tmp_path: Path) -> None:
    path = folder / sample.segment()
    shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert codes(fsck(folder)) == {"segment_missing"}


@pytest.mark.parametrize("name", ["index.db", "penstock-log.json"])
def test_a_missing_file_is_found(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert codes(fsck(folder)) == {"index_missing" if name == "index.db" else "format_missing"}


def test_a_foreign_index_is_found(folder: Path, tmp_path: Path) -> None:
    make_sample(tmp_path / "other", folded=True)
    shutil.copy(tmp_path / "other" / "index.db", folder / "index.db")
    assert codes(fsck(folder)) == {"index_foreign"}


def test_what_a_dead_writer_left_is_no_damage(sample: Sample, folder: Path) -> None:
    with (folder / sample.segment(-1)).open("ab") as file:
        file.write(b"half a frame")
    (folder / "segments" / "00ff_00000001.seg").write_bytes(b"just begun")
    (folder / "bell").write_bytes(bytes(64))
    report = fsck(folder)
    assert report.is_clean
    assert codes(report, "note") == {"bytes_unindexed", "segment_unindexed", "bell_unsound"}


def test_deep_decodes_punits(tmp_path: Path) -> None:
    unit = bytearray(punit.encode(pa.record_batch({"a": list(range(1_000))})))
    good = bytes(unit)
    unit[-3] ^= 1  # written damaged: the log's own checksum holds
    folder = tmp_path / "log"
    with open_log(folder, create=True, config=CONFIG) as log:
        bodies = (good, bytes(unit), b"PNPU", b"not a unit", good[:600])
        for n, body in enumerate(bodies, 1):
            log.append([Entry(RecordKind.DATA, ("units",), "p", 1, n, body)])
    assert fsck(folder).is_clean
    report = fsck(folder, deep=True)
    assert report.counts["punits"] == 4
    assert codes(report) == {"punit_damaged"}
    assert {finding.position for finding in report.findings} == {2, 3, 5}


def test_progress_is_told(folder: Path) -> None:
    told: list[tuple[str, int, int]] = []
    fsck(folder, lambda what, done, total: told.append((what, done, total)))
    assert {what for what, _, _ in told} >= {"records", "tags", "segments"}
    assert all(0 <= done <= total for _, done, total in told)


def test_nothing_to_check(tmp_path: Path) -> None:
    with pytest.raises(LogNotFound):
        fsck(tmp_path / "nowhere")
    with pytest.raises(NotALog):
        fsck(tmp_path)


WRITER = """
import sys
from penstock.config import LogConfig
from penstock.log import open_log
from penstock.log.record import Entry, Position, RecordKind
with open_log(sys.argv[1], config=LogConfig(inline_bytes_max=500, segment_bytes_max=8192,
                                            wal_bytes_max=65536)) as log:
    sequence = 0
    while not log.get("stop"):
        sequence += 1
        body = b"x" * (200 if sequence % 3 else 900)
        log.append([Entry(RecordKind.DATA, ("busy", "all"), "busy", 1, sequence, body)])
        if sequence % 50 == 0:
            for tag in ("busy", "all"):
                log.trim(tag, Position(log.tail() - 20))
        if sequence == 60:
            print("going", flush=True)
"""


def test_a_log_in_use_is_checked_without_false_alarm(tmp_path: Path) -> None:
    """A writer appends, trims, rolls, collects and folds while fsck looks again and again."""
    folder = tmp_path / "log"
    open_log(folder, create=True).close()
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True
    ) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "going\n"
            tails: list[int] = []
            while len(tails) < 30 or tails[-1] == tails[0]:  # a timeout ends the test
                report = fsck(folder)
                assert report.is_clean, report.findings
                tails.append(report.counts["tail"])
            with open_log(folder) as log:
                log.put("stop", b"please")
            assert writer.wait(timeout=60) == 0
        finally:
            writer.kill()
    assert tails == sorted(tails)
    assert tails[-1] > tails[0]
    assert fsck(folder).is_clean
