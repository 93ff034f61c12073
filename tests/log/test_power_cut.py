"""Power cuts in the level `process`: the newest records may go, and nothing else may."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import apsw
import pytest

from penstock.config import LogConfig
from penstock.errors import LogDamaged, LogError
from penstock.log import START, Entry, LocalLog, Position, RecordKind, local, open_log
from penstock.log.fsck import fsck
from penstock.log.index import RESERVED_POSITIONS, Index
from penstock.log.power_cut import PowerCut, power_cuts
from penstock.log.repair import repair
from penstock.testing.disk import Call, Trace, TracedFiles

CONFIG = LogConfig(durability="process", segment_bytes_max=8_192, inline_bytes_max=512)
TAGS = ("a", "b", "old")


@dataclass
class Promises:
    """What somebody knew at a moment of the run."""

    records: dict[int, Entry] = field(default_factory=dict)  # acknowledged, by position
    floor: int = 0  # everything up to here was on disk, by a fold or by the kernel
    trims: list[tuple[str, int, int]] = field(default_factory=list)  # tag, upto, tail at the time
    values: int = 0  # of the metadata: 1, 2, 3 were set
    values_floor: int = 0
    in_flight: list[Entry] = field(default_factory=list)


class Run:
    """A workload over a traced disk that notes, call by call, what was known by then."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.files = TracedFiles(folder)
        self.chance = random.Random(seed)
        self.promises = Promises()
        self.history: list[tuple[int, Promises]] = []
        self.log = open_log(folder, create=True, files=self.files, config=CONFIG)
        self.files.trace_rings(self.log._bell)
        self.sequence = 0
        self.note()

    @property
    def trace(self) -> Trace:
        return self.files.trace

    def note(self) -> None:
        now = self.promises
        copied = replace(now, records=dict(now.records), trims=list(now.trims))
        self.history.append((len(self.trace.calls), copied))

    def append(self, count: int) -> None:
        entries = []
        for _ in range(count):
            body = self.chance.randbytes(self.chance.choice((0, 300, 900, 3_000, 9_000)))
            tags = tuple(sorted(self.chance.sample(TAGS, self.chance.randint(1, 2))))
            entries.append(Entry(RecordKind.DATA, tags, "p", 1, self.sequence, body))
            self.sequence += 1
        self.promises.in_flight = entries
        self.note()
        self.promises.records.update(zip(self.log.append(entries), entries, strict=True))
        self.promises.in_flight = []
        self.note()

    def put(self) -> None:
        self.promises.values += 1
        self.note()
        self.log.put("value", b"%d" % self.promises.values)

    def trim(self, tag: str, upto: int) -> None:
        self.promises.trims.append((tag, upto, self.log.tail()))
        self.note()
        self.log.trim(tag, Position(upto))

    def fold(self) -> None:
        floor, values = self.log.tail(), self.promises.values
        assert self.log._fold()
        self.promises.floor, self.promises.values_floor = floor, values
        self.note()

    def sync(self) -> None:
        floor, values = self.log.tail(), self.promises.values
        self.log.sync()
        self.promises.floor, self.promises.values_floor = floor, values
        self.note()

    def kernel_writes_back(self) -> None:
        """A minute passes."""
        for path in self.files.root.rglob("*"):
            name = str(path.relative_to(self.files.root))
            if path.is_file() and not name.endswith("-shm"):
                self.trace.calls.append(Call("sync", name))
        for folder in ("", "segments"):
            self.trace.calls.append(Call("sync_folder", folder))
        self.promises.floor, self.promises.values_floor = self.log.tail(), self.promises.values
        self.note()

    def known_after(self, calls: int) -> Promises:
        return [promises for at, promises in self.history if at <= calls][-1]


def reference_run(folder: Path, seed: int) -> Run:
    run = Run(folder, seed)
    for round_ in range(3):
        run.append(1)
        run.put()
        run.append(3)
        run.trim("old", run.log.tail() - 2)
        run.append(2)
        if round_ == 1:
            run.kernel_writes_back()
            run.append(2)
        run.fold()
        run.append(4)
        run.put()
        run.append(1)
        run.sync()
        run.append(1)
        for tag in TAGS:  # so that whole segments go
            run.trim(tag, run.log.tail() - 3)
    run.append(2)
    run.log.close()
    run.files.unregister()
    return run


def lay_out(disk: dict[str, bytes | None], folder: Path) -> None:
    folder.mkdir()
    for path, content in disk.items():
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)


def read_all(log: LocalLog) -> dict[int, Entry]:
    return {
        int(r.position): Entry(r.kind, r.tags, r.producer, r.instance, r.sequence, bytes(r.body))
        for r in log.read(TAGS, START, 10_000)
    }


def check_survivor(folder: Path, known: Promises) -> None:
    with open_log(folder, config=CONFIG) as log:
        found = read_all(log)
        check_is_prefix(log, found, known)
        value = log.get("value")
        assert known.values_floor <= int(value.value if value else 0) <= known.values
        tail = log.tail()
        assert tail > max(known.records, default=0), "a position that was seen may come again"
        (position,) = log.append([Entry(RecordKind.DATA, ("a",), "after", 1, 0, b"x" * 2_000)])
        assert position == tail + 1
    with open_log(folder, config=CONFIG) as log:
        assert log.tail() == position, "it was cut once more"
        assert read_all(log).keys() == {*found, int(position)}
    assert fsck(folder).is_clean


def check_is_prefix(log: LocalLog, found: dict[int, Entry], known: Promises) -> None:
    def asked_to_go(position: int, entry: Entry) -> bool:
        upto = {tag: position for tag, position, _ in known.trims}
        return all(position <= upto.get(tag, 0) for tag in entry.tags)

    kept = {p: e for p, e in known.records.items() if not asked_to_go(p, e)}
    lost = [p for p in kept if p not in found]
    first_lost = min(lost, default=max(known.records, default=0) + 1)
    assert first_lost > known.floor, f"position {first_lost} was on disk"
    assert not [p for p in found if p > first_lost and p in known.records], "a hole"
    assert all(found[p] == e for p, e in known.records.items() if p in found)
    extra = [found[p] for p in sorted(found) if p not in known.records]
    assert extra in ([], known.in_flight), "half an append, or one that nobody made"
    for tag, upto, tail in known.trims:
        if log.trimmed(tag) >= upto:
            assert first_lost > tail, f"a trim of {tag} outlived records that it was made for"


def problems(run: Run, folder: Path, part: int = 0, parts: int = 1) -> Iterator[str]:
    """Cut the power after each call, and say what came of it where that was not right."""
    for at in range(run.history[0][0] + part, len(run.trace.calls) + 1, parts):
        left = folder / str(at)
        lay_out(run.trace.disk_after(at, random.Random(f"{at}")), left)
        try:
            check_survivor(left, run.known_after(at))
        except (AssertionError, LogError) as error:
            yield f"power cut after call {at}: {type(error).__name__} {error}"
        shutil.rmtree(left)


@pytest.fixture(scope="module", params=(1, pytest.param(2, marks=pytest.mark.slow)))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return reference_run(tmp_path_factory.mktemp("reference") / "log", request.param)


SLOW = pytest.mark.slow
PARTS = [0, *(pytest.param(part, marks=SLOW) for part in range(1, 5))]


@pytest.mark.parametrize("part", PARTS)
def test_a_power_cut_after_any_call_takes_the_newest_records_only(
    run: Run, part: int, tmp_path: Path
) -> None:
    assert next(problems(run, tmp_path, part, len(PARTS)), None) is None


def fold_unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    open_index = Index.open.__func__  # type: ignore[attr-defined]

    def unsynced(cls: type[Index], *args: object, **options: object) -> Index:
        index: Index = open_index(cls, *args, **options)
        index._connection.pragma("synchronous", "off")
        return index

    monkeypatch.setattr(Index, "open", classmethod(unsynced))


def write_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.log.power_cut._sync", lambda path, files: None)


def reserve_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.log.index.RESERVED_POSITIONS", 0)
    monkeypatch.setattr(local, "RESERVED_POSITIONS", 0)
    monkeypatch.setattr(LocalLog, "_reserve", lambda self, position: None)


def unlink_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalLog, "_sync_wal", lambda self: None)


def sync_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalLog, "sync", lambda self: None)


@pytest.mark.parametrize(
    "broken", [fold_unsynced, write_nothing_back, reserve_nothing, unlink_early, sync_nothing]
)
def test_the_sweep_finds_what_is_left_out(
    broken: Callable[[pytest.MonkeyPatch], None], tmp_path: Path
) -> None:
    """The proof that the sweep can fail: leave out one of the rules, and it does."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        broken(monkeypatch)
        run = reference_run(tmp_path / "log", 1)
    assert next(problems(run, tmp_path, parts=3), None) is not None


def record(sequence: int, size: int = 10, tag: str = "a") -> Entry:
    return Entry(RecordKind.DATA, (tag,), "p", 1, sequence, bytes([sequence]) * size)


def positions(log: LocalLog) -> list[int]:
    return list(read_all(log))


class Machine:
    """A folder that can be put back to an earlier moment, file by file, under an open handle."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "log"
        self.kept = folder / "kept"
        self.log = open_log(self.folder, create=True, config=CONFIG)

    def append(self, first: int, count: int, size: int = 10) -> None:
        for sequence in range(first, first + count):
            self.log.append([record(sequence, size)])

    def keep(self, *names: str) -> None:
        for name in names:
            target = self.kept / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.folder / name, target)

    def cut_power(self) -> None:
        """All processes are gone; files that were kept are as they were then."""
        whole = self.folder.with_name("disk")
        shutil.copytree(self.folder, whole)
        self.log.close()
        shutil.rmtree(self.folder)
        whole.rename(self.folder)
        (self.folder / "index.db-shm").unlink()
        if self.kept.exists():
            shutil.copytree(self.kept, self.folder, dirs_exist_ok=True)

    def start_anew(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in ("local", "fsck"):
            monkeypatch.setattr(f"penstock.log.{module}.boot_id", lambda: b"another boot....")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_bell_that_outlives_the_write_ahead_log_is_no_damage(machine: Machine) -> None:
    machine.append(0, 5)
    machine.keep("index.db", "index.db-wal")
    machine.append(5, 7)
    machine.cut_power()
    report = fsck(machine.folder)
    assert report.is_clean
    assert [f.code for f in report.findings if f.severity == "warning"] == ["newest_lost"]
    assert repair(machine.folder).actions == []
    with open_log(machine.folder, read_only=True) as log:
        assert positions(log) == [1, 2, 3, 4, 5]
    with open_log(machine.folder, config=CONFIG) as log:
        assert positions(log) == [1, 2, 3, 4, 5]
        assert log.tail() > 12
        ((cut,)) = power_cuts(log)
        assert cut.after == 5
        assert cut.upto >= 12
        assert log.append([record(5)]) == (log.tail(),)  # not there any more, so it is new
        assert log.read(["a"], Position(12), 10)[0].sequence == 5, "who had read 12 reads on"


@pytest.mark.parametrize(("harm", "last"), [("missing", 4), ("short", 5), ("zeros", 5)])
def test_the_log_ends_before_an_append_whose_bodies_did_not_survive(
    harm: str, last: int, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.append(0, 3, 2_000)
    machine.log._fold()
    machine.append(3, 2, 2_000)
    machine.log.append([record(5), record(6, 9_000), record(7)])
    machine.append(8, 4)
    (row,) = machine.log._index.bodies_within(Position(6), Position(7), 1)
    machine.cut_power()
    assert row.offset is not None
    segment = machine.folder / "segments" / f"{row.segment}.seg"
    content = segment.read_bytes()[: row.offset + 5_000]
    if harm == "missing":  # with the record before, which lies in it too
        segment.unlink()
    else:
        segment.write_bytes(content.ljust(0 if harm == "short" else 20_000, b"\0"))
    machine.start_anew(monkeypatch)
    assert fsck(machine.folder).is_clean
    with open_log(machine.folder, read_only=True) as only_reads:
        assert positions(only_reads) == list(range(1, last + 1)), "as the next writer leaves it"
        assert only_reads.tail() == last
        with open_log(machine.folder, config=CONFIG) as log:
            assert only_reads.tail() == log.tail()
            assert positions(only_reads) == positions(log)
    with open_log(machine.folder, config=CONFIG) as log:
        assert positions(log) == list(range(1, last + 1))
        assert [cut.after for cut in power_cuts(log)] == [last]
        assert log.append([record(5)]) == (log.tail(),)
    assert fsck(machine.folder).is_clean


def test_damage_that_no_power_cut_made_is_still_damage(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written back is not given up, and nothing is while the machine runs."""
    machine.append(0, 2, 2_000)
    machine.log._fold()
    machine.cut_power()
    for segment in (machine.folder / "segments").iterdir():
        segment.write_bytes(segment.read_bytes()[:100])
    for starts_anew in (False, True):
        if starts_anew:
            machine.start_anew(monkeypatch)
        with open_log(machine.folder, config=CONFIG) as log, pytest.raises(LogDamaged):
            log.read(["a"], START, 10)
        assert not fsck(machine.folder).is_clean


def test_a_crash_of_processes_alone_leaves_no_position_out(machine: Machine) -> None:
    machine.append(0, 5, 2_000)
    machine.cut_power()  # nothing is lost, and the machine was not started anew
    with open_log(machine.folder, config=CONFIG) as log:
        assert power_cuts(log) == []
        assert log.append([record(5)]) == (6,)


def test_positions_are_reserved_on_disk_before_they_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "RESERVED_POSITIONS", 4)
    monkeypatch.setattr("penstock.log.index.RESERVED_POSITIONS", 4)
    machine = Machine(tmp_path)
    syncs = []
    for sequence in range(12):
        machine.append(sequence, 1)
        syncs.append(machine.log.statistics().syncs)
    assert syncs == [0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2]
    machine.log.close()


def test_an_append_syncs_nothing(tmp_path: Path) -> None:
    files = TracedFiles(tmp_path / "log")
    with open_log(tmp_path / "log", create=True, files=files, config=CONFIG) as log:
        log.append([record(0)])
        before = sum(call.kind == "sync" for call in files.trace.calls)
        for sequence in range(1, 50):
            log.append([record(sequence, 100 * sequence)])
        assert sum(call.kind == "sync" for call in files.trace.calls) == before
    files.unregister()


def test_a_rebuilt_index_does_not_miss_the_positions_that_were_left_out(
    machine: Machine,
) -> None:
    machine.append(0, 5)
    machine.keep("index.db", "index.db-wal")
    machine.append(5, 2)
    machine.cut_power()
    with open_log(machine.folder, config=CONFIG) as log:
        log.append([record(5)])
        tail = log.tail()
    index = apsw.Connection(str(machine.folder / "index.db"))
    index.execute("DELETE FROM tag WHERE position = 3")
    index.close()
    assert repair(machine.folder).lost == []
    with open_log(machine.folder, config=CONFIG) as log:
        assert positions(log) == [1, 2, 3, 4, 5, tail]
        assert power_cuts(log) == [PowerCut(Position(5), Position(RESERVED_POSITIONS))]
        assert log._index.on_disk().reserved == tail - 1 + RESERVED_POSITIONS
