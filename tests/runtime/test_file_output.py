"""Files that vertices write for a sink themselves: each row in one of them, whoever dies."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.api import sink_runner
from penstock.api.sink_runner import SinkRunner
from penstock.connectors.folder_sink import FolderSink, StagedFile
from penstock.connectors.hidden_files import NamedFile, named_file
from penstock.errors import Fenced, SinkError, StreamInputError
from penstock.expressions.types import arrow_schema
from penstock.kernels.cache import KernelCache
from penstock.log import open_log, punit
from penstock.log.local import LocalLog
from penstock.log.record import Entry, Fence, Position, Record, RecordKind
from penstock.plan.optimizer import plan_program
from penstock.runtime import file_output
from penstock.runtime.file_output import FileOutput
from penstock.runtime.left_files import LeftFiles
from penstock.runtime.streams import StreamReader, describe_stream
from penstock.stages.program import Program
from penstock.stages.settings import Settings
from penstock.testing.plans import query, scan_source
from penstock.testing.single_process import SingleProcess
from tests.runtime.laboratory import UNSYNCED, table, table_source

ROWS = 400
ID = "id-1"


class Killed(BaseException):
    """A process is gone: nobody cleans up behind it."""


class Files(FolderSink):
    """Hands over at once, and may die at some moments."""

    patience_s = 0.0
    dies: Callable[[], bool] = staticmethod(lambda: False)

    def stage_file(self, epoch: int, file: NamedFile) -> StagedFile:
        self._perhaps()
        return super().stage_file(epoch, file)

    def publish(self, epoch: int, staged: StagedFile) -> None:
        self._perhaps()
        super().publish(epoch, staged)
        self._perhaps()

    def _clear(self, path: Path) -> None:
        self._perhaps()  # the file has its name, and the other one too
        super()._clear(path)

    def _perhaps(self) -> None:
        if self.dies():
            raise Killed


def program(commit_interval_ms: int = 0) -> Program:
    """Numbers with texts that are long here and short there, as they are."""
    rows = scan_source("rows", "n bigint not null, t string", None)
    settings = Settings(step_rows_max=20, commit_interval_ms=commit_interval_ms)
    result = rows.to_stream("q.out")
    return plan_program(query("q", result, parallelism=2, settings=settings))


SOURCES = {
    "rows": table_source(
        table(
            [(n, str(n) * (1 + n % 7 if n // 50 % 2 else 12)) for n in range(ROWS)],
            n=pa.int64(),
            t=pa.string(),
        )
    )
}


class Life:
    """A driver and its vertices."""

    def __init__(self, folder: Path, kernels: KernelCache) -> None:
        self.sink = Files(folder / "out", "q", ID)
        files = {"q.out": self.sink.files}
        self.process = SingleProcess(
            program(), folder / "log", sources=SOURCES, kernels=kernels, log_config=UNSYNCED,
            files=files,
        )  # fmt: skip
        facts = describe_stream(self.process.log, "q.out")
        run = self.process.host._numbers.run
        of_stream = (facts.tags, facts.schema, self.sink)
        self.runner = SinkRunner(self.process.log, "q", *of_stream, run=run)
        self.has_begun = False

    def feed(self) -> bool | None:
        if not self.has_begun:
            self.has_begun = True
            self.runner.begin()
        return self.runner.turn()

    def end(self) -> None:
        """Run to the end of the input, and deliver all of it."""
        self.process.run()
        self.runner.stop()
        while self.feed() is not None:
            pass
        assert self.runner.failure is None
        self.process.close()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_output, "FILE_BYTES_MIN", 600)
    monkeypatch.setattr(sink_runner, "LEFT_FILES_S", 0.0)


def numbers(folder: Path) -> list[int]:
    """What whoever lists the folder now reads."""
    found = [each for each in (folder / "out").iterdir() if each.name[0] not in "._"]
    return sorted(n for file in found for n in pq.read_table(file).column("n").to_pylist())


def data(life: Life) -> list[Record]:
    tags = describe_stream(life.process.log, "q.out").tags
    found = life.process.log.read(tags, Position(0), 1_000)
    return [each for each in found if each.kind is RecordKind.DATA]


def hidden(folder: Path) -> list[str]:
    return [each.name for each in (folder / "out").glob(".*")]


def test_much_is_in_files_and_little_in_the_log(tmp_path: Path, kernels: KernelCache) -> None:
    life = Life(tmp_path, kernels)
    life.process.run()
    records = data(life)
    named = [named_file(each.body) for each in records]
    files = [each for each in named if each is not None]
    assert files
    assert len(files) < len(named)  # short texts are left to the sink
    in_log = sum(punit.inspect(r.body).rows for r, f in zip(records, named, strict=True) if not f)
    assert sum(each.rows for each in files) + in_log == ROWS
    assert numbers(tmp_path) == []
    assert sorted(hidden(tmp_path)) == sorted(each.name for each in files)
    written = {each.name: (tmp_path / "out" / each.name).read_bytes() for each in files}
    life.end()
    assert numbers(tmp_path) == list(range(ROWS))
    assert hidden(tmp_path) == []
    published = {each.read_bytes() for each in (tmp_path / "out").glob("q-*.parquet")}
    assert published.issuperset(written.values())  # they are linked as they are
    schemas = {str(pq.read_schema(f)) for f in (tmp_path / "out").glob("q-*.parquet")}
    assert len(schemas) == 1  # whoever has written them


def test_who_reads_the_stream_of_a_sink_is_told_of_rows_that_are_in_files(
    tmp_path: Path, kernels: KernelCache
) -> None:
    """The record that names the file is no row."""
    life = Life(tmp_path, kernels)
    life.process.run()
    with pytest.raises(StreamInputError, match=r"position \d+ of stream q\.out are in a file"):
        StreamReader(life.process.log, "q.out").read_all()
    life.process.abandon()


@pytest.mark.parametrize("seed", range(6))
def test_each_row_is_in_one_file_whoever_dies(
    tmp_path: Path, kernels: KernelCache, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Killed before and after an append, a link and what follows it; some wake up again."""
    rng = random.Random(seed)
    chance = 0.0

    def dies() -> bool:
        return rng.random() < chance

    append = LocalLog.append

    def appended(log: LocalLog, entries: Sequence[Entry], fence: Fence | None = None) -> Any:
        if fence is not None and dies():
            raise Killed
        positions = append(log, entries, fence)
        if fence is not None and dies():
            raise Killed
        return positions

    monkeypatch.setattr(LocalLog, "append", appended)
    monkeypatch.setattr(FileOutput, "abandon", lambda self: None)
    monkeypatch.setattr(Files, "dies", staticmethod(dies))
    seen: list[int] = []
    zombies: list[Life] = []
    for _ in range(8):
        chance = 0.0
        life = Life(tmp_path, kernels)
        chance = 0.04
        for old in zombies:
            _haunt(old, rng)
        zombies.clear()
        try:
            for _ in range(rng.randrange(30)):
                life.process.host.step()
                if rng.random() < 0.5:
                    life.feed()
        except Killed:
            pass
        if rng.random() < 0.4:
            zombies.append(life)
        else:
            life.process.abandon()
        now = numbers(tmp_path)
        assert len(now) == len(set(now))
        assert set(now).issuperset(seen)
        seen = now
    chance = 0.0
    Life(tmp_path, kernels).end()
    for old in zombies:
        _haunt(old, rng)
    assert numbers(tmp_path) == list(range(ROWS))
    Life(tmp_path, kernels).end()  # what the last ones left goes, too
    assert numbers(tmp_path) == list(range(ROWS))
    assert [name for name in hidden(tmp_path) if name.endswith(".tmp")] == []


def _haunt(old: Life, rng: random.Random) -> None:
    """Let a life go on that another one has followed."""
    try:
        for _ in range(5):
            old.process.host.step()
            if rng.random() < 0.5:
                old.feed()
    except (Killed, Exception):
        pass
    old.process.abandon()


def test_a_file_of_nobody_goes_once_its_writer_is_fenced(
    tmp_path: Path, kernels: KernelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileOutput, "abandon", lambda self: None)
    first = Life(tmp_path, kernels)
    (stage,) = program().stages
    vertex = first.process.host.vertex(f"q.{stage.name}.0")
    outputs = vertex._parts.outputs
    schema = arrow_schema(describe_stream(first.process.log, "q.out").schema)
    rows = pa.record_batch({"n": [1] * 100, "t": ["x" * 20] * 100}, schema=schema)
    outputs.add(RecordKind.DATA, "S/q.out/0", rows)
    outputs._end_files()  # and dies before the append
    (left,) = hidden(tmp_path)
    # A run that begins beside it, and has not come to fence its vertices, lets it be.
    with open_log(tmp_path / "log") as log:
        facts = describe_stream(log, "q.out")
        sink = Files(tmp_path / "out", "q", ID)
        beside = SinkRunner(log, "q", facts.tags, facts.schema, sink, run=100)
        beside.begin()
        beside.turn()
        assert hidden(tmp_path) == [left]
        second = Life(tmp_path, kernels)  # which fences them
        beside.turn()
        assert hidden(tmp_path) == []
        with pytest.raises(Fenced):
            outputs.commit(("S/q.out/m",), b"{}")
        second.process.abandon()
    first.process.abandon()


def test_a_query_of_the_same_name_in_another_log_does_not_clear_what_is_not_its_own(
    tmp_path: Path, kernels: KernelCache
) -> None:
    """Neither has published anything yet, so nothing in the folder says whose it is."""
    life = Life(tmp_path, kernels)
    life.process.run()
    there = sorted(hidden(tmp_path))
    assert there
    Life(tmp_path / "other", kernels).process.abandon()
    other = Life(tmp_path / "other", kernels)  # has newer instances of vertices of these names
    facts = describe_stream(other.process.log, "q.out")
    sink = Files(tmp_path / "out", "q", "id-2")
    runner = SinkRunner(other.process.log, "q", facts.tags, facts.schema, sink, run=100)
    runner.begin()
    runner.turn()
    other.process.abandon()
    assert sorted(hidden(tmp_path)) == there
    life.end()
    assert hidden(tmp_path) == []
    assert numbers(tmp_path) == list(range(ROWS))


def test_a_file_that_is_not_as_it_was_written_is_not_published(
    tmp_path: Path, kernels: KernelCache
) -> None:
    life = Life(tmp_path, kernels)
    life.process.run()
    file = next(found for each in data(life) if (found := named_file(each.body)))
    path = tmp_path / "out" / file.name
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:-40] + bytes(40), b""):
        path.write_bytes(damaged)
        with pytest.raises(SinkError, match="is not the file that was written"):
            life.sink.stage_file(7, file)
    path.unlink()
    with pytest.raises(SinkError, match="cannot read"):
        life.sink.stage_file(7, file)
    path.write_bytes(whole)
    life.sink.publish(7, life.sink.stage_file(7, file))
    assert len(numbers(tmp_path)) == file.rows
    assert not path.exists()
    life.process.abandon()


def test_what_is_staged_and_not_published_stays_for_the_next_run(
    tmp_path: Path, kernels: KernelCache
) -> None:
    life = Life(tmp_path, kernels)
    life.process.run()
    before = hidden(tmp_path)
    for name in before:
        staged = StagedFile(str(tmp_path / "out" / name), 1, is_named=True)
        life.sink.discard(staged)
    assert hidden(tmp_path) == before
    life.end()


def test_a_file_that_a_record_names_is_left_to_the_sink(
    tmp_path: Path, kernels: KernelCache
) -> None:
    """Its writer is fenced, and what it has committed counts."""
    first = Life(tmp_path, kernels)
    first.process.run()
    log, sink = first.process.log, first.sink
    facts = describe_stream(log, "q.out")
    second = Life(tmp_path, kernels)
    files = hidden(tmp_path)
    assert files
    left = LeftFiles(log, sink, facts.tags, second.process.host._numbers.run)
    left.clear(Position(0))
    assert hidden(tmp_path) == files
    left.clear(
        log.tail()
    )  # the sink is past them: they have another name by then, or are not needed
    assert hidden(tmp_path) == []
    first.process.abandon()
    second.process.abandon()


def test_a_commit_of_a_file_and_more_is_refused(tmp_path: Path, kernels: KernelCache) -> None:
    """Rows beside the file would be passed over."""
    life = Life(tmp_path, kernels)
    (stage,) = program().stages
    outputs = life.process.host.vertex(f"q.{stage.name}.0")._parts.outputs
    schema = arrow_schema(describe_stream(life.process.log, "q.out").schema)
    rows = pa.record_batch({"n": [1] * 100, "t": ["x" * 20] * 100}, schema=schema)
    outputs.add(RecordKind.DATA, "S/q.out/0", rows)
    outputs._end_files()
    outputs.add(RecordKind.DATA, "S/q.out/0", rows)
    outputs.commit(("S/q.out/m",), b"{}")
    with pytest.raises(SinkError, match="commits a file and more"):
        life.feed()
    life.process.abandon()


def test_of_two_that_publish_a_file_the_second_finds_it_done(
    tmp_path: Path, kernels: KernelCache
) -> None:
    life = Life(tmp_path, kernels)
    life.process.run()
    file = next(found for each in data(life) if (found := named_file(each.body)))
    sinks = [life.sink, Files(tmp_path / "out", "q", ID)]
    staged = [sink.stage_file(7, file) for sink in sinks]
    for sink, each in zip(sinks, staged, strict=True):
        sink.publish(7, each)
    assert sinks[0].stage_file(7, file).path is None
    assert len(numbers(tmp_path)) == file.rows
    life.process.abandon()
