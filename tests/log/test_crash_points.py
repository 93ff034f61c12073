"""Power cuts: after every I/O call of a run, what is left must hold all that was promised."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock.config import LogConfig
from penstock.errors import Fenced, LogError, LogNotFound, NotALog
from penstock.log import START, Entry, Fence, LocalLog, Position, RecordKind, open_log, take_over
from penstock.log.files import Files
from penstock.log.index import Index
from penstock.testing.disk import Trace, TracedFiles
from tests.thoroughness import SWEEP_PARTS, in_parts, some

CONFIG = LogConfig(segment_bytes_max=8_192, inline_bytes_max=512)
TAGS = ("S/a/0", "S/a/1", "S/a/m", "S/old/0")


@dataclass
class Promises:
    """What callers had been told at some moment of the run."""

    records: dict[int, Entry] = field(default_factory=dict)  # acknowledged, by position
    trimmed: dict[str, int] = field(default_factory=dict)  # asked for, whether or not done
    metadata: dict[str, bytes] = field(default_factory=dict)
    in_flight: list[Entry] = field(default_factory=list)
    setting: tuple[str, bytes] | None = None  # metadata in flight
    created: bool = False

    def copy(self) -> Promises:
        return Promises(
            dict(self.records),
            dict(self.trimmed),
            dict(self.metadata),
            list(self.in_flight),
            self.setting,
            self.created,
        )


class Run:
    """A workload over a traced disk that notes, call by call, what was promised by then."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.files = TracedFiles(folder)
        self.folder = folder
        self.chance = chance
        self.promises = Promises()
        self.history: list[tuple[int, Promises]] = []
        self.sequences: dict[tuple[str, int], int] = {}
        self.log = self.open(create=True)
        self.promises.created = True

    @property
    def trace(self) -> Trace:
        return self.files.trace

    def note(self) -> None:
        self.history.append((len(self.trace.calls), self.promises.copy()))

    def open(self, create: bool = False) -> LocalLog:
        self.note()
        log = open_log(self.folder, create=create, files=self.files, config=CONFIG)
        self.files.trace_rings(log._bell)
        return log

    def append(self, producer: str, instance: int, count: int, fence: Fence | None = None) -> None:
        entries = []
        for _ in range(count):
            sequence = self.sequences.get((producer, instance), -1) + 1
            self.sequences[producer, instance] = sequence
            size = self.chance.choice((0, 10, 300, 900, 3_000, 9_000))
            tags = tuple(sorted(self.chance.sample(TAGS, self.chance.randint(1, 2))))
            body = self.chance.randbytes(size)
            lasts = "S/a/0" in tags  # so that an append may go to two segments
            entries.append(Entry(RecordKind.DATA, tags, producer, instance, sequence, body, lasts))
        self.promises.in_flight = entries
        self.note()
        positions = self.log.append(entries, fence)
        self.promises.in_flight = []
        self.promises.records.update(zip(positions, entries, strict=True))
        self.note()

    def take_over(self, vertex: str) -> Fence:
        expected = self.promises.metadata.get(f"instance/{vertex}", b"0")
        self.promises.setting = (f"instance/{vertex}", b"%d" % (int(expected) + 1))
        self.note()
        fence = Fence(vertex, take_over(self.log, vertex))
        self.promises.setting = None
        self.promises.metadata[f"instance/{vertex}"] = b"%d" % fence.instance
        self.note()
        return fence

    def trim(self, tag: str, upto: int) -> None:
        self.promises.trimmed[tag] = max(upto, self.promises.trimmed.get(tag, 0))
        self.note()
        self.log.trim(tag, Position(upto))

    def fold(self, wait: bool) -> None:
        index = Index.open(
            self.folder / "index.db",
            self.log.identity.log_id,
            self.files.vfs,
            read_only=False,
        )
        index.fold(wait=wait)
        index.close()

    def reopen(self) -> None:
        self.log.close()
        self.log = self.open()

    def promised_after(self, calls: int) -> Promises:
        known = Promises()
        for at, promises in self.history:
            if at > calls:
                break
            known = promises
        return known


def reference_run(folder: Path, seed: int) -> Run:
    """Every kind of operation, small segments, folding, trimming, two handles after each other."""
    run = Run(folder, random.Random(seed))
    run.append("plain", 0, 1)
    fence = run.take_over("v")
    run.append("v", fence.instance, 3, fence)
    run.append("plain", 0, 2)
    run.fold(wait=False)
    run.append("v", fence.instance, 1, fence)
    run.append("plain", 0, 4)
    run.trim("S/old/0", 8)
    run.append("v", fence.instance, 2, fence)
    run.fold(wait=True)
    run.append("plain", 0, 1)
    run.reopen()
    newer = run.take_over("v")
    with pytest.raises(Fenced):
        run.log.append([Entry(RecordKind.DATA, ("S/a/0",), "v", 1, 99, b"zombie")], fence)
    run.append("v", newer.instance, 3, newer)
    run.trim("S/a/0", 6)
    run.trim("S/a/1", 6)
    run.append("plain", 0, 1)
    run.log.close()
    run.note()
    run.files.unregister()
    return run


def lay_out(disk: dict[str, bytes | None], folder: Path) -> None:
    folder.mkdir()
    for path, content in disk.items():
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)


def check_survivor(folder: Path, promises: Promises) -> None:
    """Open what a power cut left, and hold it against what had been promised."""
    try:
        log = open_log(folder, config=CONFIG)
    except (LogNotFound, NotALog):
        assert not promises.created, "a created log is gone"
        log = open_log(folder, create=True, config=CONFIG)  # an unfinished creation can be repeated
    with log:
        check_records(log, promises)
        check_metadata(log, promises)
        check_goes_on(log, promises)


def read_all(log: LocalLog) -> dict[int, Entry]:
    found: dict[int, Entry] = {}
    for record in log.read(TAGS, START, 10_000):
        assert record.position not in found
        found[record.position] = Entry(
            record.kind,
            record.tags,
            record.producer,
            record.instance,
            record.sequence,
            bytes(record.body),
        )
    return found


def check_records(log: LocalLog, promises: Promises) -> None:
    found = read_all(log)
    for position, entry in promises.records.items():
        if all(position <= promises.trimmed.get(tag, 0) for tag in entry.tags):
            assert found.get(position, entry) == entry  # a trim in flight may be done or not
        else:
            assert found.get(position) == entry, f"position {position} was acknowledged"
    extra = [found[position] for position in sorted(found) if position not in promises.records]
    assert extra in ([], promises.in_flight), "a record that nobody appended, or half an append"
    newest = max([*promises.records, *found], default=0)
    assert log.tail() == newest


def check_metadata(log: LocalLog, promises: Promises) -> None:
    setting = dict([promises.setting] if promises.setting else [])
    for key in {*promises.metadata, *setting}:
        value = log.get(key)
        allowed = {promises.metadata.get(key), setting.get(key, promises.metadata.get(key))}
        assert (value.value if value else None) in allowed


def check_goes_on(log: LocalLog, promises: Promises) -> None:
    """The writer that got no answer repeats its append; then a new one follows at the end."""
    if promises.in_flight and promises.in_flight[0].producer == "plain":
        first = log.append(promises.in_flight)
        assert log.append(promises.in_flight) == first
    tail = log.tail()
    after = log.append([Entry(RecordKind.DATA, ("S/a/0",), "after", 1, 0, b"x" * 2_000)])
    assert after == (tail + 1,)
    assert bytes(log.read(["S/a/0"], tail, 10)[0].body) == b"x" * 2_000


@pytest.fixture(scope="module", params=some((1, 2), every=2))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("reference") / "log"
    return reference_run(folder, request.param)


@in_parts
def test_a_power_cut_after_every_call_loses_nothing(run: Run, part: int, tmp_path: Path) -> None:
    """Exhaustive over the calls: at each, the disk keeps, drops or tears what was not synced."""
    calls = len(run.trace.calls)
    assert calls > 250
    for at in range(calls + 1)[part::SWEEP_PARTS]:
        chance = random.Random(f"{calls} {at}")
        folder = tmp_path / str(at)
        lay_out(run.trace.disk_after(at, chance), folder)
        try:
            check_survivor(folder, run.promised_after(at))
        except (AssertionError, LogError) as error:
            raise AssertionError(f"power cut after call {at} of {calls}: {error}") from error


class ForgetfulFiles(TracedFiles):
    """Deliberately broken: says that files are synced and syncs nothing of one kind."""

    def __init__(self, root: Path, forgets: str) -> None:
        super().__init__(root)
        self._forgets = forgets

    def sync(self, fd: int) -> None:
        if self._forgets not in self._paths[fd]:
            super().sync(fd)

    def sync_folder(self, path: Path) -> None:
        if self._forgets != "folder" or path == self.root:
            super().sync_folder(path)


@pytest.mark.parametrize("forgets", ["index.db-wal", ".seg", "folder"])
def test_the_sweep_finds_a_missing_sync(
    forgets: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof that the sweep can fail: leave out one of the log's syncs, and it does."""
    monkeypatch.setattr(
        "tests.log.test_crash_points.TracedFiles", lambda root: ForgetfulFiles(root, forgets)
    )
    run = reference_run(tmp_path / "log", 1)
    found = 0
    for at in range(len(run.trace.calls) + 1):
        folder = tmp_path / str(at)
        lay_out(run.trace.disk_after(at, random.Random(at)), folder)
        try:
            check_survivor(folder, run.promised_after(at))
        except (AssertionError, LogError):
            found += 1
            break
    assert found


def closed(log: LocalLog | None) -> None:
    if log is not None:
        log.close()


def failing_run(folder: Path, number: int, at: int) -> tuple[Promises, list[LogError], int]:
    """A small workload in which call `at` fails; each failed operation is repeated once."""
    files = TracedFiles(folder)
    files._fail = lambda kind, path, index: number if index == at and kind != "ring" else None
    promises = Promises()
    failures: list[LogError] = []
    log: LocalLog | None = None
    sequence = 0

    def attempt(entries: list[Entry] | None) -> tuple[Position, ...]:
        nonlocal log
        for last in (False, True):
            try:
                if log is None:
                    log = open_log(folder, create=True, files=files, config=CONFIG)
                return log.append(entries) if entries else ()
            except LogError as error:
                failures.append(error)
                if last:
                    raise
                log = closed(log)
        raise AssertionError("not reached")

    attempt(None)
    for size in (10, 3_000, 600, 9_000, 5, 7_000, 40):
        entries = [
            Entry(RecordKind.DATA, ("S/a/0",), "plain", 0, sequence + i, bytes([i]) * size)
            for i in range(2)
        ]
        sequence += 2
        promises.records.update(zip(attempt(entries), entries, strict=True))
    assert log is not None
    for last in (False, True):
        try:
            log.trim("S/a/0", Position(4))
            break
        except LogError as error:
            failures.append(error)
            assert not last
            closed(log)
            log = open_log(folder, files=files, config=CONFIG)
    promises.trimmed["S/a/0"] = 4
    try:
        log.close()
    except LogError as error:  # folding the write-ahead log failed, which is in it all the same
        failures.append(error)
    files.unregister()
    return promises, failures, files.calls_seen


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(28, id="ENOSPC"),
        pytest.param(5, id="EIO", marks=pytest.mark.slow),
        pytest.param(30, id="EROFS", marks=pytest.mark.slow),
    ],
)
@in_parts
def test_any_single_failing_call_is_a_named_error_and_loses_nothing(
    number: int, tmp_path: Path, part: int
) -> None:
    """Fail the k-th I/O call for all k, until a run passes untouched."""
    failed = 0
    at = part
    while True:
        folder = tmp_path / str(at)
        promises, failures, calls = failing_run(folder, number, at)
        failed += bool(failures)
        with open_log(folder, files=Files(), config=CONFIG) as log:
            found = read_all(log)
            kept = {p: e for p, e in promises.records.items() if p > 4}
            assert {p: e for p, e in found.items() if p > 4} == kept, f"call {at}"
        if at >= calls:
            break
        at += SWEEP_PARTS
    assert failed > 30 // SWEEP_PARTS
