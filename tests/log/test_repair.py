"""repair saves what can be saved, lists the rest, never deletes, and may be interrupted."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.config import LogConfig
from penstock.errors import (
    IndexForeign,
    IndexMissing,
    LogBusy,
    LogDamaged,
    LogNotFound,
    NotALog,
    RecordLost,
)
from penstock.log import open_log
from penstock.log.committed import CommittedReader
from penstock.log.files import Files
from penstock.log.fsck import fsck
from penstock.log.record import START, Entry, Position, RecordKind
from penstock.log.repair import RepairReport, repair, spans
from penstock.log.segments import ALIGNMENT
from tests.log.harm import CONFIG, TAGS, Content, Sample, content, files_of, flip, make_sample
from tests.thoroughness import SWEEP_PARTS, in_parts, some


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return make_sample(tmp_path_factory.mktemp("repair") / "log", folded=True)


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return make_sample(tmp_path_factory.mktemp("repair_crashed") / "log", folded=False)


@pytest.fixture
def folder(sample: Sample, tmp_path: Path) -> Path:
    return sample.lay_out(tmp_path / "log")


def kept(sample: Sample, folder: Path, lost: Sequence[int]) -> Content:
    """Check that everything but the lost records reads as acknowledged; return what was read."""
    with open_log(folder, read_only=True, skip_lost=True) as log:
        found = content(log)
    for tag in TAGS:
        expected = [row for row in sample.content.records[tag] if row[0] not in lost]
        assert found.records[tag] == expected
    assert found.tail == sample.content.tail
    assert found.trimmed == sample.content.trimmed
    return found


def check_usable(sample: Sample, folder: Path, report: RepairReport) -> None:
    """After a repair: fsck is clean, the rest is readable, appends go on behind the old tail."""
    assert report.is_clean, report.check
    found = kept(sample, folder, report.lost)
    assert found.metadata == sample.content.metadata
    with open_log(folder, config=CONFIG) as log:
        for sequence in (1, 2):
            body = b"after the repair " * 10 ** (2 * sequence)
            (position,) = log.append(
                [Entry(RecordKind.DATA, ("orders", "new"), "fresh", 1, sequence, body)]
            )
            assert position == sample.content.tail + sequence
    assert fsck(folder).is_clean


def digests(folder: Path, *changing: str) -> set[str]:
    """The contents of all files, wherever they lie, but for those that a repair may change."""
    return {
        hashlib.sha256(data).hexdigest()
        for name, data in files_of(folder).items()
        if name not in ("bell", *changing)
    }


def test_a_sound_log_is_left_alone(sample: Sample, folder: Path) -> None:
    report = repair(folder)
    assert report.actions == []
    assert report.is_clean
    kept(sample, folder, [])
    assert not (folder / "aside").exists()


# ------------------------------------------------------------------ segments

SEGMENT_HARMS: dict[str, Callable[[Path], Any]] = {
    "body": lambda path: flip(path, 2 * ALIGNMENT + 5),
    "frame header": lambda path: flip(path, ALIGNMENT + 9),
    "file header": lambda path: flip(path, 3),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:9_000]),
    "no header left": lambda path: path.write_bytes(b"PNST"),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("harm", SEGMENT_HARMS)
def test_a_damaged_segment(sample: Sample, folder: Path, harm: str) -> None:
    path = folder / sample.segment()
    SEGMENT_HARMS[harm](path)
    damaged = path.read_bytes() if path.exists() else None
    planned = repair(folder, dry_run=True)
    assert not (folder / "aside").exists()
    report = repair(folder)
    assert report.lost == planned.lost
    in_segment = [5, 10, 15, 20, 25, 30, 35, 40, 45, 50]
    expected = {"file header": [], "body": [5], "frame header": [5], "truncated": in_segment[4:]}
    assert report.lost == expected.get(harm, in_segment)
    (name,) = report.manifests
    manifest = json.loads((folder / name).read_bytes())
    assert manifest["lost_positions"] == [list(span) for span in spans(report.lost)]
    if damaged is not None:
        (move,) = manifest["moves"]
        assert ((folder / name).parent / move["to"]).read_bytes() == damaged
        assert move["from"] == sample.segment()
    warned = {f.position for f in fsck(folder).findings if f.severity == "warning"}
    assert warned == set(report.lost)
    check_usable(sample, folder, report)


def test_a_lost_record_is_never_passed_over_unasked(sample: Sample, folder: Path) -> None:
    flip(folder / sample.segment(), 2 * ALIGNMENT + 5)
    (lost,) = repair(folder).lost
    with open_log(folder) as log:
        with pytest.raises(RecordLost) as raised:
            log.read(["all"], START, 100)
        assert raised.value.details["position"] == lost
        assert (folder / raised.value.details["manifest"]).is_file()
        assert [each.position for each in log.read(["all"], Position(lost), 3)] == [6, 7, 8]
        with pytest.raises(RecordLost):
            CommittedReader(log, ["all"]).take()


def test_putting_the_bytes_back_takes_them_off_the_list(sample: Sample, folder: Path) -> None:
    (folder / sample.segment()).unlink()
    assert repair(folder).lost
    (folder / sample.segment()).write_bytes(sample.files[sample.segment()])
    kept(sample, folder, [])
    report = repair(folder)
    assert {action.what for action in report.actions} == {"restored"}
    assert report.check is not None
    assert report.check.findings == []
    check_usable(sample, folder, report)


def test_trimming_a_lost_record_forgets_the_loss(sample: Sample, folder: Path) -> None:
    (folder / sample.segment()).unlink()
    lost = repair(folder).lost
    with open_log(folder) as log:
        for tag in TAGS:
            log.trim(tag, Position(lost[-1]))
        assert log.read(["all"], START, 1)[0].position == lost[-1] + 1
    report = fsck(folder)
    assert report.is_clean
    assert report.counts["lost"] == 0


# ------------------------------------------------------------------ the index


@in_parts
def test_a_damaged_index_is_rebuilt_from_its_rows(
    sample: Sample, crashed: Sample, tmp_path: Path, part: int
) -> None:
    folder = tmp_path / "log"
    rebuilt = 0
    for each, name in ((sample, "index.db"), (crashed, "index.db"), (crashed, "index.db-wal")):
        size = len(each.files[name])
        for place, offset in list(enumerate(range(37, size, size // 7)))[part::SWEEP_PARTS]:
            each.lay_out(folder)
            flip(folder / name, offset, bit=place % 8)
            before = digests(folder)
            planned = repair(folder, dry_run=True)
            assert digests(folder) == before
            report = repair(folder)
            assert report.lost == planned.lost
            assert len(report.lost) <= 2
            if report.actions:
                rebuilt += 1
                assert before <= digests(folder), "every file is still somewhere"
            check_usable(each, folder, report)
    assert rebuilt > 1


@pytest.mark.parametrize("harm", [None, 3, 17, 40])
def test_a_short_round_of_the_write_ahead_log_before_a_long_old_one(
    tmp_path: Path, harm: int | None
) -> None:
    """The file is written from its start again after a fold; behind lie more, older frames."""
    live, folder = tmp_path / "live", tmp_path / "log"
    config = LogConfig(durability="process")
    with open_log(live, create=True, config=config) as log:
        for sequence in range(300):
            log.append([Entry(RecordKind.DATA, ("orders",), "w", 1, sequence, bytes(500))])
        index = log._open_index()
        assert index.fold(wait=True)
        index.close(fold=False)
        for sequence in range(300, 304):
            log.append([Entry(RecordKind.DATA, ("orders",), "w", 1, sequence, bytes(500))])
        shutil.copytree(live, folder)  # as after a crash
    flip(folder / "index.db", 2 * 4_096 + 50)
    if harm is not None:  # in the header of the write-ahead log, or of its first frame
        flip(folder / "index.db-wal", harm)
    report = repair(folder)
    assert report.is_clean, report.check
    with open_log(folder, read_only=True, skip_lost=True) as log:
        kept = [record.sequence for record in log.read(("orders",), START, 1_000)]
    assert kept == [n for n in range(304) if n + 1 not in report.lost]
    assert kept[-4:] == [300, 301, 302, 303]


def zero_page(path: Path, number: int) -> None:
    with path.open("r+b") as file:
        file.seek(number * 4_096)
        file.write(bytes(4_096))


@in_parts
def test_a_page_of_zeros_costs_only_the_rows_on_it(
    sample: Sample, tmp_path: Path, part: int
) -> None:
    """Each page in turn, page 1 with the schema included. Nothing is lost unseen."""
    folder = tmp_path / "log"
    lost_somewhere = 0
    for number in range(len(sample.files["index.db"]) // 4_096)[part::SWEEP_PARTS]:
        sample.lay_out(folder)
        zero_page(folder / "index.db", number)
        report = repair(folder)
        assert report.is_clean, report.check
        found = kept_or_trim_undone(sample, folder, report.lost)
        missing = sample.content.metadata.keys() - found.metadata.keys()
        assert len(report.lost) < 80
        assert not (missing and report.lost), "one page holds rows of one table"
        lost_somewhere += bool(report.lost)
        if report.lost:
            with open_log(folder) as log, pytest.raises(RecordLost):
                log.read(["rare"], START, 50)
    assert lost_somewhere


def kept_or_trim_undone(sample: Sample, folder: Path, lost: Sequence[int]) -> Content:
    """As `kept`, but a trim may have been undone, where the page that knew of it is gone."""
    with open_log(folder, read_only=True, skip_lost=True) as log:
        found = content(log)
    for tag in TAGS:
        expected = {row for row in sample.content.records[tag] if row[0] not in lost}
        assert expected <= set(found.records[tag])
        extra = {row[0] for row in set(found.records[tag]) - expected}
        assert all(position <= 40 for position in extra)  # type: ignore[operator]
    assert found.tail == sample.content.tail
    return found


def test_a_removed_write_ahead_log_is_an_accepted_loss(crashed: Sample, tmp_path: Path) -> None:
    folder = crashed.lay_out(tmp_path / "log")
    (folder / "index.db-wal").unlink()
    assert {f.code for f in fsck(folder).findings if f.severity == "error"} == {"tail_lost"}
    report = repair(folder)
    assert report.is_clean
    assert report.lost == list(range(81, 161))
    kept(crashed, folder, report.lost)
    with open_log(folder) as log:
        assert log.tail() == 160, "positions are never handed out twice"
        with pytest.raises(RecordLost):
            log.last("all")
        with pytest.raises(RecordLost):
            log.read(["all"], Position(70), 50)
        fresh = Entry(RecordKind.DATA, ("all",), "fresh", 1, 1, b"")
        assert log.append([fresh]) == (161,)
        newest = log.last("all")
        assert newest is not None
        assert newest.position == 161
        log.trim("all", Position(100))
    assert repair(folder).is_clean
    with open_log(folder) as log, pytest.raises(RecordLost):
        log.read(["orders"], Position(100), 50)


def test_an_index_that_was_repaired_can_be_repaired_again(sample: Sample, folder: Path) -> None:
    flip(folder / sample.segment(), 2 * ALIGNMENT + 5)
    first = repair(folder)
    assert len(first.lost) == 1
    for number in (3, 8):
        flip(folder / "index.db", number * 4_096 + 2_000)
        again = repair(folder)
        assert again.is_clean
    kept(sample, folder, [*first.lost, *again.lost])
    assert len(list((folder / "aside").iterdir())) >= 2


@pytest.mark.parametrize("harm", ["missing", "empty", "other log", "text"])
def test_an_index_that_cannot_be_made_up_is_not_touched(
    sample: Sample, folder: Path, tmp_path: Path, harm: str
) -> None:
    index = folder / "index.db"
    index.unlink()
    if harm == "empty":
        index.write_bytes(b"")
    elif harm == "text":
        index.write_bytes(b"some text" * 2_000)
    elif harm == "other log":
        make_sample(tmp_path / "other", folded=True)
        shutil.copy(tmp_path / "other" / "index.db", index)
    before = files_of(folder)
    with pytest.raises(IndexMissing if harm == "missing" else IndexForeign):
        repair(folder)
    assert files_of(folder).keys() - {"index.db-wal"} == before.keys()
    assert before.items() <= files_of(folder).items()
    index.write_bytes(sample.files["index.db"])
    assert sample.outcome(folder, read_only=False) is None


# ------------------------------------------------------------------ the format file


@pytest.mark.parametrize("harm", ["damaged", "missing", "process"])
def test_the_format_file_is_written_anew(
    sample: Sample, folder: Path, tmp_path: Path, harm: str
) -> None:
    path = folder / "penstock-log.json"
    old = path.read_bytes()
    if harm == "missing":
        path.unlink()
    else:
        content_ = old.replace(b'"synced"', b'"process"') if harm == "process" else old
        path.write_bytes(content_.replace(b"{", b"[", 1))
    report = repair(folder)
    facts = json.loads(path.read_bytes())
    assert facts["id"] == json.loads(old)["id"]
    assert facts["durability"] == ("process" if harm == "process" else "synced")
    if harm != "missing":
        assert (folder / "aside/000001/penstock-log.json").is_file()
    check_usable(sample, folder, report)


def test_format_file_and_index_damaged_at_once(sample: Sample, folder: Path) -> None:
    (folder / "penstock-log.json").write_bytes(b"")
    flip(folder / "index.db", 2 * 4_096 + 1_000)
    check_usable(sample, folder, repair(folder))


# ------------------------------------------------------------------ interruption and other users


class Crash(BaseException):
    """The process dies here."""


class DyingFiles(Files):
    """Dies before its n-th change of the disk."""

    def __init__(self, calls: int) -> None:
        self.calls_left = calls

    def _count(self) -> None:
        if self.calls_left == 0:
            raise Crash
        self.calls_left -= 1

    def write(self, fd: int, parts: Sequence[memoryview]) -> int:
        self._count()
        return super().write(fd, parts)

    def replace(self, source: Path, target: Path) -> None:
        self._count()
        super().replace(source, target)

    def unlink(self, path: Path) -> None:
        self._count()
        super().unlink(path)

    def make_folder(self, path: Path, mode: int = 0o777) -> None:
        self._count()
        super().make_folder(path, mode)


def harm_index(folder: Path, sample: Sample) -> None:
    flip(folder / "index.db", 4 * 4_096 + 1_000)


def harm_segments(folder: Path, sample: Sample) -> None:
    flip(folder / sample.segment(0), 2 * ALIGNMENT + 5)
    (folder / sample.segment(2)).unlink()


def harm_all(folder: Path, sample: Sample) -> None:
    harm_index(folder, sample)
    harm_segments(folder, sample)
    (folder / "penstock-log.json").write_bytes(b"")


@pytest.mark.parametrize("harm", some([harm_index, harm_segments, harm_all], every=3))
def test_a_repair_may_die_at_any_moment_and_be_run_again(
    sample: Sample, tmp_path: Path, harm: Callable[[Path, Sample], None]
) -> None:
    folder = sample.lay_out(tmp_path / "log")
    harm(folder, sample)
    undisturbed = repair(folder)
    deaths = 0
    while True:
        sample.lay_out(folder)
        harm(folder, sample)
        # A segment's repair is a transaction of the index: that file changes in place.
        changing = ("index.db", "index.db-wal") if harm is harm_segments else ()
        before = digests(folder, *changing)
        try:
            repair(folder, files=DyingFiles(deaths))
            break
        except Crash:
            deaths += 3 if harm is harm_all else 1
        assert before <= digests(folder, *changing), "nothing is deleted, whenever it dies"
        report = repair(folder)
        assert report.is_clean
        assert report.check is not None
        lost = {f.position for f in report.check.findings if f.code == "record_lost"}
        assert lost == set(undisturbed.lost)
        kept(sample, folder, sorted(lost))  # type: ignore[type-var]
        with open_log(folder) as log:
            log.append([Entry(RecordKind.DATA, ("new",), "fresh", 1, 1, b"x" * 40_000)])
    assert deaths >= 4


HOLDER = """
import sys
from penstock.log import open_log
with open_log(sys.argv[1], read_only=sys.argv[2] == "reader") as log:
    print("open", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("role", ["writer", "reader"])
def test_a_log_that_another_process_has_open_is_not_repaired(
    sample: Sample, folder: Path, role: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), role],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        flip(folder / sample.segment(), 2 * ALIGNMENT + 5)
        with pytest.raises(LogBusy) as raised:
            repair(folder)
        assert raised.value.details["holders"] in ([holder.pid], [])
        assert not (folder / "aside").exists()
        holder.communicate("done\n", timeout=60)
    check_usable(sample, folder, repair(folder))


def test_a_log_that_this_process_has_open_is_not_repaired(folder: Path) -> None:
    with open_log(folder), pytest.raises(LogBusy):
        repair(folder)


def test_a_manifest_cannot_move_files_from_elsewhere(sample: Sample, folder: Path) -> None:
    harm_index(folder, sample)
    shutil.copy(folder / "index.db", folder / "index.db.rebuilt")
    (folder / "aside/000001").mkdir(parents=True)
    manifest = {
        "format": "penstock-repair",
        "state": "moving",
        "moves": [{"from": "../../victim"}],
    }
    (folder / "aside/000001/manifest.json").write_text(json.dumps(manifest))
    victim = folder.parent.parent / "victim"
    victim.write_text("precious")
    with pytest.raises(LogDamaged, match="no repair moves"):
        repair(folder)
    assert victim.read_text() == "precious"


def test_nothing_to_repair(tmp_path: Path) -> None:
    with pytest.raises(LogNotFound):
        repair(tmp_path / "nowhere")
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(NotALog):
        repair(tmp_path)
    assert (tmp_path / "letter.txt").read_text() == "dear"


def test_spans() -> None:
    assert spans([9, 3, 4, 5]) == [(3, 5), (9, 9)]
    assert spans([]) == []
