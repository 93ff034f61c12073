"""Slots and their job in one thread: real vertices over a log in memory, orders by hand."""

from __future__ import annotations

import gc
import socket
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.clock import SystemClock
from penstock.errors import JobFailed, LogBusy
from penstock.kernels.cache import KernelCache
from penstock.log.contract import instance_key, take_over
from penstock.log.local import open_log
from penstock.log.record import Entry, Fence, Position
from penstock.plan.optimizer import plan_program
from penstock.runtime.assembly import Assembly
from penstock.runtime.checkpointing import CheckpointQueue
from penstock.runtime.control import Channel, Message
from penstock.runtime.host import Host
from penstock.runtime.instances import InstanceNumbers
from penstock.runtime.placement import Assign, Command, GiveUp, Launch, Placement, StopSlot
from penstock.runtime.slot import SETTLED_S, Slot, SlotOrder, _SlotProcess
from penstock.runtime.streams import StreamReader, register_streams
from penstock.stages.program import Program
from penstock.stages.settings import Settings
from penstock.testing.clock import ManualClock
from penstock.testing.memory_checkpoints import MemoryCheckpoints
from penstock.testing.memory_log import MemoryLog, MemoryStore
from penstock.testing.plans import count, max_, query, scan_source, window
from penstock.testing.standalone import RESTARTS_MAX, StandaloneHost
from tests.runtime.laboratory import TIMESTAMP, plain, table, table_source

ROWS = 200
TABLE = table([(i % 7,) for i in range(ROWS)], key=pa.int64())


def counting() -> Program:
    rows = scan_source("rows", "key bigint not null", partitions=1)
    counted = rows.group_by("key").agg(count().alias("n"), mode="update")
    settings = Settings(step_rows_max=10, commit_interval_ms=0)
    return plan_program(query("q", counted.to_stream("out"), settings=settings))


PROGRAM = counting()
VERTICES = [vertex.name for vertex in PROGRAM.vertices]


class BusyLog(MemoryLog):
    """A log that is busy for as many appends, or registrations, as a test says."""

    appends_busy = 0
    registrations_busy = 0

    def append(self, entries: Any, fence: Fence | None = None) -> tuple[Position, ...]:
        if self.appends_busy:
            self.appends_busy -= 1
            raise LogBusy("busy")
        return super().append(entries, fence)

    def compare_and_set(self, key: str, version: int, value: bytes) -> bool:
        if self.registrations_busy and key.startswith("instance/"):
            self.registrations_busy -= 1
            raise LogBusy("busy")
        return super().compare_and_set(key, version, value)


@dataclass
class Member:
    """One slot's process: it reads its orders when a test lets it."""

    slot: Slot
    log: BusyLog
    said: list[Message]
    orders: list[Message] = field(default_factory=list)
    is_heard: bool = True  # whether its connection still stands


class Cluster:
    """One run of the query, with slots that come as soon as they are asked for."""

    def __init__(
        self, store: MemoryStore, kernels: KernelCache, slots: int = 1, standbys: int = 1
    ) -> None:
        self.store, self._kernels = store, kernels
        self.clock = ManualClock()
        log = MemoryLog(store)
        register_streams(log, PROGRAM)
        numbers = InstanceNumbers(log, "q", VERTICES)
        self.placement = Placement(PROGRAM, numbers, slots=slots, standbys=standbys)
        self.members: list[Member] = []  # by connection
        self.do(self.placement.start(self.now_s))

    @property
    def now_s(self) -> float:
        return self.clock.monotonic_s()

    def do(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Launch):
                self._launch(command.slot)
            elif isinstance(command, Assign):
                vertices = [list(each) for each in command.vertices]
                order = {"type": "assign", "vertices": vertices}
                self.members[command.connection].orders.append(order)
            elif isinstance(command, StopSlot):
                self.members[command.connection].orders.append({"type": "stop"})
            elif isinstance(command, GiveUp):
                self.members[command.connection].is_heard = False

    def turn(self, member: Member) -> bool:
        """What a slot's main thread does in one round; whether it goes on."""
        goes_on = True
        while member.orders and goes_on:
            goes_on = member.slot.obey(member.orders.pop(0))
        if goes_on:
            member.slot.work()
        else:
            member.slot.close()
        self._hear(member)
        return goes_on

    def pass_time(self, seconds: int, *alive: Member) -> None:
        for _ in range(seconds):
            self.clock.advance(1)
            for member in alive:
                member.said.append(member.slot.beat())
                self._hear(member)
            self.do(self.placement.tick(self.now_s))

    def finish(self, *members: Member) -> None:
        """Let these slots work until the query is over."""
        working = list(members)
        for _ in range(500):
            for member in tuple(working):
                member.said.append(member.slot.beat())
                if not self.turn(member):
                    working.remove(member)
                    self.do(self.placement.lost(self.members.index(member), self.now_s))
            self.clock.advance(0.05)
            self.do(self.placement.tick(self.now_s))
            if self.placement.is_over:
                return
        raise AssertionError("the query does not end")

    def owner(self) -> int:
        found = MemoryLog(self.store).get(instance_key(VERTICES[0]))
        return 0 if found is None else int(found.value)

    def counts(self) -> dict[int, int]:
        """The last count of each key; each count must come once."""
        rows = plain(StreamReader(MemoryLog(self.store), "out").read_all())
        seen = [(row["key"], row["n"]) for row in rows]
        assert len(seen) == len(set(seen))
        return dict(sorted(seen))

    def _launch(self, number: int) -> None:
        log = BusyLog(self.store)
        checkpoints = MemoryCheckpoints()
        said: list[Message] = []
        assembly = Assembly(
            program=PROGRAM,
            log=log,
            clock=self.clock,
            checkpoints=checkpoints,
            checkpointer=CheckpointQueue(checkpoints, log),
            kernels=self._kernels,
            sources={"rows": table_source(TABLE)},
        )
        self.members.append(Member(Slot(assembly, said.append), log, said))
        connection = len(self.members) - 1
        self.do(self.placement.connected(connection, number, number, "here", self.now_s))
        self.do(self.placement.hear(connection, {"type": "ready"}, self.now_s))

    def _hear(self, member: Member) -> None:
        connection = self.members.index(member)
        said, member.said[:] = list(member.said), []
        for message in said:
            if member.is_heard:
                self.do(self.placement.hear(connection, message, self.now_s))


EXPECTED = {key: len(range(key, ROWS, 7)) for key in range(7)}


@pytest.fixture
def cluster(kernels: KernelCache) -> Cluster:
    """A slot that has an order in its hands, and a standby."""
    return Cluster(MemoryStore(), kernels)


def test_a_query_runs_to_its_end(cluster: Cluster) -> None:
    cluster.finish(*cluster.members)
    assert cluster.placement.error is None
    assert cluster.counts() == EXPECTED


def test_a_slot_that_froze_in_its_recovery_wakes_and_its_successor_goes_on(
    cluster: Cluster,
) -> None:
    frozen, standby = cluster.members
    cluster.pass_time(5, standby)
    assert not frozen.is_heard
    for _ in range(5):
        cluster.turn(standby)
    owner = cluster.owner()
    cluster.turn(frozen)  # wakes with its order in its hands, and registers
    assert cluster.owner() == owner
    cluster.finish(*cluster.members[1:])
    assert cluster.placement.error is None
    assert cluster.counts() == EXPECTED


def test_a_new_driver_is_not_disturbed_by_a_slot_of_the_old_one(
    cluster: Cluster, kernels: KernelCache
) -> None:
    late = cluster.members[0]  # the old driver is gone, and its slot still recovers
    new = Cluster(cluster.store, kernels)
    for _ in range(5):
        new.turn(new.members[0])
    owner = new.owner()
    cluster.turn(late)
    assert new.owner() == owner
    new.finish(*new.members)
    assert new.placement.error is None
    assert new.counts() == EXPECTED
    assert isinstance(cluster.placement.error, JobFailed)
    assert "another run of query q" in cluster.placement.error.message


def test_a_vertex_whose_recovery_fails_for_a_while_is_placed_again(cluster: Cluster) -> None:
    cluster.members[0].log.registrations_busy = 3
    cluster.finish(*cluster.members)
    assert cluster.placement.error is None
    assert cluster.counts() == EXPECTED


def test_a_vertex_whose_commit_fails_begins_again_under_a_new_number(cluster: Cluster) -> None:
    (first, *_) = cluster.members
    for _ in range(5):
        cluster.turn(first)
    before = cluster.owner()
    first.log.appends_busy = 2
    cluster.finish(*cluster.members)
    assert cluster.owner() > before
    assert cluster.placement.error is None
    assert cluster.counts() == EXPECTED


def test_a_slot_with_nothing_but_trouble_ends_the_query_by_name(cluster: Cluster) -> None:
    cluster.members[0].log.appends_busy = 100
    cluster.finish(*cluster.members)
    assert isinstance(cluster.placement.error, JobFailed)
    assert "[LOG_BUSY] busy" in cluster.placement.error.message
    cluster.members[0].log.appends_busy = 0


def test_the_beat_says_what_the_main_thread_is_at(cluster: Cluster) -> None:
    (first, *_) = cluster.members
    beats = [first.slot.beat()]
    cluster.turn(first)
    beats.append(first.slot.beat())
    assert beats[0]["moves"] < beats[1]["moves"]
    seen: list[Message] = []
    append = first.log.append

    def look(entries: list[Entry], fence: Fence | None = None) -> tuple[Position, ...]:
        seen.append(first.slot.beat())
        return append(entries, fence)

    first.log.append = look  # type: ignore[method-assign]
    cluster.turn(first)
    assert [(beat["doing"], beat["vertex"]) for beat in seen][:1] == [("step", VERTICES[0])]


# Without a job --------------------------------------------------------------------------------


@pytest.fixture
def standalone(kernels: KernelCache) -> tuple[StandaloneHost, BusyLog, ManualClock]:
    log, clock, checkpoints = BusyLog(MemoryStore()), ManualClock(), MemoryCheckpoints()
    assembly = Assembly(
        program=PROGRAM,
        log=log,
        clock=clock,
        checkpoints=checkpoints,
        checkpointer=CheckpointQueue(checkpoints, log),
        kernels=kernels,
        sources={"rows": table_source(TABLE)},
    )
    return StandaloneHost(assembly), log, clock


def test_a_standalone_host_survives_any_number_of_failures_that_pass(
    standalone: tuple[StandaloneHost, BusyLog, ManualClock],
) -> None:
    host, log, clock = standalone
    for _ in range(3 * RESTARTS_MAX):
        log.appends_busy = 1
        host.step()
        clock.advance(20)
    clock.advance(60)
    log.registrations_busy = 2  # and so does one that meets another in its recovery
    log.appends_busy = 1
    host.run()
    host.close()
    assert host.statistics().restarts == 3 * RESTARTS_MAX + 3
    rows = plain(StreamReader(log, "out").read_all())
    assert {row["key"]: row["n"] for row in rows} == EXPECTED


def test_a_standalone_host_gives_up_what_fails_all_the_time(
    standalone: tuple[StandaloneHost, BusyLog, ManualClock],
) -> None:
    host, log, _ = standalone
    log.appends_busy = 1_000
    with pytest.raises(LogBusy):
        host.run()
    assert host.statistics().restarts == RESTARTS_MAX
    host.abandon()


def test_closing_a_standalone_host_lets_every_vertex_go_and_tells_what_failed(
    standalone: tuple[StandaloneHost, BusyLog, ManualClock],
) -> None:
    host, log, _ = standalone
    host.step()
    host.vertex(VERTICES[0])._mark_dirty()
    log.appends_busy = 1
    with pytest.raises(LogBusy):
        host.close()
    assert host.is_empty()


# The end of a run over what is there --------------------------------------------------------------


@pytest.mark.parametrize("available_now", [True, False])
def test_a_slot_says_at_once_that_all_that_was_there_is_done(
    available_now: bool, kernels: KernelCache
) -> None:
    """The driver waits for it; where more may come, the next report is soon enough."""
    rows = scan_source("rate", "timestamp timestamp, value bigint", rows_per_s=10)
    counted = rows.group_by("value").agg(count().alias("n"), mode="update")
    settings = Settings(commit_interval_ms=0, available_now=available_now)
    program = plan_program(query("q", counted.to_stream("out"), parallelism=2, settings=settings))
    log, clock, checkpoints = MemoryLog(), ManualClock(), MemoryCheckpoints()
    register_streams(log, program)
    checkpointer = CheckpointQueue(checkpoints, log)
    assembly = Assembly(program, log, clock, checkpoints, checkpointer, kernels)
    said: list[Message] = []
    slot = Slot(assembly, said.append)
    names = [vertex.name for vertex in program.vertices]
    numbers = InstanceNumbers(log, "q", names)
    slot.obey({"type": "assign", "vertices": [[name, numbers.next()] for name in names]})
    for _ in range(20):  # no time passes: a periodic report is due once, at the beginning
        slot.work()
    reports = [message["vertices"] for message in said if message["type"] == "status"]
    assert len(reports) == 1 + available_now
    through = [all(facts["is_through"] for facts in report.values()) for report in reports]
    assert through == [False, True][: len(reports)]


# What is loaded -----------------------------------------------------------------------------------


def test_what_vertices_have_loaded_is_frozen_once_they_have_settled(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Really frozen, everything that the other tests leave behind would stay."""
    frozen: list[None] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(None))
    slot = cluster.members[0].slot
    with socket.socket() as nobody:
        process = _SlotProcess(Channel(nobody), SlotOrder("", 0, "", 0, "", ""))
        process._orders.put({"type": "assign", "vertices": []})
        assert process._obey(slot)
    now_s = SystemClock().monotonic_s()
    process._freeze_if_due(slot, now_s)
    assert not frozen
    for _ in range(2):
        process._freeze_if_due(slot, now_s + SETTLED_S)
    assert len(frozen) == 1


def test_a_crash_outside_of_any_vertex_is_put_down_to_none(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(kernels: KernelCache) -> bool:
        raise ValueError("1 vs 0")

    assembly = cluster.members[0].slot._assembly
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(KernelCache, "tend", refuse)
    monkeypatch.setattr(_SlotProcess, "_assembly", lambda *_: assembly)
    open_log(tmp_path, create=True).close()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = _SlotProcess(Channel(ours), SlotOrder("", 0, "", 0, "", str(tmp_path)))
        with pytest.raises(ValueError, match="1 vs 0"):
            process.run()
        ours.shutdown(socket.SHUT_RDWR)
        said = [each for each in Channel(theirs).messages() if each["type"] == "crashed"]
    assert [each["vertex"] for each in said] == [None]


# What is left of vertices that leave ----------------------------------------------------------

TIMED = table([(i % 7, i * 1_000_000) for i in range(ROWS)], key=pa.int64(), at=TIMESTAMP)


def hopping() -> Program:
    rows = scan_source("rows", "key bigint not null, at timestamp not null", partitions=1)
    hops = window("at", "1 minute", "1 second")
    late = rows.with_watermark("at", "5 seconds").group_by("key", window=hops)
    settings = Settings(step_rows_max=10, commit_interval_ms=0, checkpoint_interval_commits=2)
    grouped = late.agg(count().alias("n"), max_("key").alias("most"))
    return plan_program(query("q", grouped.to_stream("out"), settings=settings))


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("way", ["abandoned", "closed", "failed", "fenced"])
@pytest.mark.parametrize("program", [counting(), hopping()], ids=["counting", "hopping"])
def test_what_a_vertex_had_is_gone_when_it_has_left(
    program: Program, way: str, kernels: KernelCache
) -> None:
    """No later than that: what the collector would find has been frozen in a slot."""
    log, clock, checkpoints = BusyLog(MemoryStore()), ManualClock(), MemoryCheckpoints()
    register_streams(log, program)
    names = [vertex.name for vertex in program.vertices]
    numbers = InstanceNumbers(log, "q", names)
    host = Host(
        Assembly(
            program=program,
            log=log,
            clock=clock,
            checkpoints=checkpoints,
            checkpointer=CheckpointQueue(checkpoints, log),
            kernels=kernels,
            sources={"rows": table_source(TIMED)},
        )
    )
    for name in names:
        assert host.add(name, numbers.next())
    for _ in range(6):
        host.step()
    had = [weakref.ref(each) for name in names for each in _parts_of(host, name)]
    if way == "abandoned":
        host.abandon()
    elif way == "closed":
        host.close()
    else:
        if way == "failed":
            log.appends_busy = 1_000
        else:
            for name in names:
                take_over(log, name)
        for name in names:
            host.vertex(name)._mark_dirty()
        host.step()
        assert len(host.take_ends()) == len(names)
    assert host.is_empty()
    assert [each() for each in had if each() is not None] == []


def _parts_of(host: Host, name: str) -> list[Any]:
    vertex = host.vertex(name)
    parts = vertex._parts
    return [vertex, parts.input, parts.chain, parts.outputs, *parts.chain.states.values()]


def test_what_was_frozen_is_looked_through_again_once_a_vertex_has_left(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    for what in ("unfreeze", "collect", "freeze"):
        monkeypatch.setattr(gc, what, lambda what=what: done.append(what))
    (first, *_) = cluster.members
    cluster.turn(first)
    with socket.socket() as nobody:
        process = _SlotProcess(Channel(nobody), SlotOrder("", 0, "", 0, "", ""))
    process._freeze_if_due(first.slot, 0)
    assert done == []
    first.log.appends_busy = 1
    cluster.turn(first)
    for now_s in (0, SETTLED_S / 2, SETTLED_S, 2 * SETTLED_S):
        process._freeze_if_due(first.slot, now_s)
    assert done == ["unfreeze", "collect", "freeze"]
