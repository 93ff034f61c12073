"""Placement: histories of slots that come, die, freeze, hang and wake, with no thread in sight."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import Fenced, JobFailed, StreamError, TooFewSlots
from penstock.expressions.tree import Column
from penstock.expressions.types import BIGINT, Field
from penstock.log.contract import register
from penstock.operators.specs import SparkColumn, SparkSpec
from penstock.plan.nodes import StreamRef, step
from penstock.plan.optimizer import plan_program
from penstock.plan.query import Query, Write
from penstock.runtime import placement
from penstock.runtime.instances import InstanceNumbers
from penstock.runtime.placement import (
    CRASHED_MAX,
    PLACED_AGAIN_MAX,
    SLOT_ENDS_MAX,
    STUCK_MAX,
    Assign,
    Command,
    Finish,
    GiveUp,
    Launch,
    Patience,
    Placement,
    StopSlot,
)
from penstock.stages.program import Program
from penstock.testing.memory_log import MemoryLog, MemoryStore
from penstock.testing.plans import count, query, scan_source

PATIENCE = Patience(silence_s=3, step_s=60, recovery_s=600, start_s=120, stop_s=30)


def counting() -> Program:
    """Two vertices that read and two that count."""
    rows = scan_source("rate", "value bigint", partitions=None)
    counted = rows.group_by("value").agg(count().alias("n"), mode="update")
    return plan_program(query("q", counted.to_stream("out"), parallelism=2))


class Run:
    """One run of a query: its placement, the log, and slots that say what a test lets them say."""

    def __init__(
        self,
        store: MemoryStore,
        slots: int = 2,
        standbys: int = 1,
        program: Program | None = None,
    ) -> None:
        self.log = MemoryLog(store)
        program = program or counting()
        self.vertices = [vertex.name for vertex in program.vertices]
        self.numbers = InstanceNumbers(self.log, "q", self.vertices)
        self.placement = Placement(
            program, self.numbers, slots=slots, standbys=standbys, patience=PATIENCE
        )
        self.now_s = 100.0
        self.launched: list[int] = []
        self.on_driver: list[int] = []  # of these
        self.assigned: dict[int, dict[str, int]] = {}  # by connection: all it was ever told
        self.told_to_stop: list[int] = []
        self.given_up: list[GiveUp] = []
        self.is_finished = False
        self._connections = 0
        self._started: set[int] = set()
        self.do(self.placement.start(self.now_s))

    def do(self, commands: list[Command]) -> None:
        for command in commands:
            assert not self.is_finished, f"{command} after the end"
            if isinstance(command, Launch):
                self.launched.append(command.slot)
                self.on_driver.extend([command.slot] * command.on_driver)
            elif isinstance(command, Assign):
                self.assigned.setdefault(command.connection, {}).update(command.vertices)
            elif isinstance(command, StopSlot):
                self.told_to_stop.append(command.connection)
            elif isinstance(command, GiveUp):
                self.given_up.append(command)
            else:
                assert isinstance(command, Finish)
                self.is_finished = True

    def connect(self, slot: int) -> int:
        """A slot comes and gets ready; its connection."""
        connection, self._connections = self._connections, self._connections + 1
        self.do(self.placement.connected(connection, slot, 1_000 + slot, "here", self.now_s))
        self.say(connection, "ready")
        return connection

    def say(self, connection: int, kind: str, **facts: Any) -> None:
        self.do(self.placement.hear(connection, {"type": kind, **facts}, self.now_s))

    def end(self, connection: int, kind: str, vertex: str, instance: int) -> None:
        error = {"error_class": "LOG_BUSY", "message": "busy", "traceback": ""}
        self.say(connection, kind, vertex=vertex, instance=instance, **error)

    def start_all(self, connection: int) -> None:
        for vertex, instance in self.assigned[connection].items():
            if instance in self._started:
                continue
            self._started.add(instance)
            register(self.log, vertex, instance)
            self.say(connection, "started", vertex=vertex, instance=instance)

    def report(self, connection: int, state: str = "running", commits: int = 1) -> None:
        vertices = {
            vertex: {"state": state, "instance": instance, "commits": commits}
            for vertex, instance in self.assigned.get(connection, {}).items()
        }
        self.say(connection, "status", vertices=vertices)

    def beat(self, connection: int, moves: int, doing: str = "step", vertex: str = "") -> None:
        self.say(connection, "alive", moves=moves, doing=doing, vertex=vertex)

    def lose(self, connection: int) -> None:
        self.do(self.placement.lost(connection, self.now_s))

    def pass_time(self, seconds: int, *alive: int, moves: int | None = None, **doing: str) -> None:
        """Let time pass in small steps, during which some slots say that they are alive."""
        for _ in range(seconds):
            self.now_s += 1
            for connection in alive:
                self.beat(connection, int(self.now_s) if moves is None else moves, **doing)
            self.do(self.placement.tick(self.now_s))

    def owner(self, vertex: str) -> int:
        """The connection whose number for a vertex was handed out last."""
        return max(
            (c for c, had in self.assigned.items() if vertex in had),
            key=lambda c: self.assigned[c][vertex],
        )

    @property
    def error(self) -> StreamError | None:
        return self.placement.error


@pytest.fixture
def run() -> Run:
    """Two slots with two vertices each, and a standby (connections 0, 1 and 2)."""
    made = Run(MemoryStore())
    for slot in range(3):
        made.connect(slot)
    for connection in (0, 1):
        made.start_all(connection)
    return made


def test_vertices_are_spread_over_the_slots_and_one_stands_by(run: Run) -> None:
    assert run.launched == [0, 1, 2]
    assert [len(run.assigned.get(connection, {})) for connection in range(3)] == [2, 2, 0]
    assert {name for had in run.assigned.values() for name in had} == set(run.vertices)
    assert run.placement.is_running()


def test_of_many_recoveries_the_newest_are_kept_and_all_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placement, "REMEMBERED_MAX", 3)
    run = Run(MemoryStore(), slots=1, standbys=1)
    lost, standby = run.connect(0), run.connect(1)
    run.start_all(lost)
    for slot in range(2, 10):
        run.lose(lost)
        lost, standby = standby, run.connect(slot)
        if slot != 5:  # this one is lost again before its vertices have started
            run.start_all(lost)
    assert run.placement.recoveries_count == 8
    assert [each.slot for each in run.placement.recoveries] == [5, 6, 7]
    assert all(each.started_s == run.now_s for each in run.placement.recoveries)


def test_a_lost_slots_vertices_go_to_the_standby_under_greater_numbers(run: Run) -> None:
    before = dict(run.assigned[0])
    run.lose(0)
    assert run.assigned[2].keys() == before.keys()
    assert all(run.assigned[2][name] > before[name] for name in before)
    (recovery,) = run.placement.recoveries
    assert (recovery.reason, recovery.assigned_s, recovery.started_s) == (
        "connection closed",
        run.now_s,
        None,
    )
    run.start_all(2)
    assert run.placement.recoveries[0].started_s == run.now_s
    run.do(run.placement.task_over(0, "killed", run.now_s))
    assert run.launched == [0, 1, 2, 3]  # the standby is refilled
    assert run.connect(3) not in run.assigned


def test_a_frozen_slot_that_wakes_after_its_successor_can_do_nothing(run: Run) -> None:
    """It registers too late, is refused, and what it says about that is passed over."""
    vertex, stale = next(iter(run.assigned[0].items()))
    run.pass_time(4, 1, 2)
    assert [(lost.slot, lost.is_stuck) for lost in run.given_up] == [(0, False)]
    assert run.launched == [0, 1, 2, 3]
    run.start_all(2)
    with pytest.raises(Fenced):
        register(run.log, vertex, stale)
    run.end(0, "fenced", vertex, stale)
    run.report(0, "ended")
    run.lose(0)
    assert run.error is None
    assert not run.placement.ended
    assert len(run.placement.recoveries) == 1
    run.do(run.placement.task_over(0, None, run.now_s))
    assert run.launched == [0, 1, 2, 3]  # it was replaced when it was given up


def test_a_new_run_beside_an_old_slot_keeps_its_vertices() -> None:
    store = MemoryStore()
    old, new = Run(store, 1, 0), Run(store, 1, 0)
    old.connect(0)
    new.connect(0)
    new.start_all(0)
    vertex, stale = next(iter(old.assigned[0].items()))
    with pytest.raises(Fenced):  # the old slot was in a long recovery
        register(old.log, vertex, stale)
    assert new.error is None
    old.end(0, "fenced", vertex, stale)
    assert isinstance(old.error, JobFailed)
    assert "taken over by another run of query q" in old.error.message
    assert old.told_to_stop == [0]


def test_a_vertex_fenced_by_nobodys_run_is_placed_again(run: Run) -> None:
    vertex, instance = next(iter(run.assigned[0].items()))
    register(run.log, vertex, instance + 1)
    for _ in range(2):
        instance = run.assigned[run.owner(vertex)][vertex]
        run.end(0, "fenced", vertex, instance)
        run.pass_time(1, 0, 1, 2)
    assert run.error is None
    assert run.owner(vertex) == 0  # where its kernels are warm
    assert run.assigned[0][vertex] > instance


@pytest.mark.parametrize("kind", ["fenced", "returned"])
def test_a_vertex_that_comes_back_again_and_again_ends_the_query(run: Run, kind: str) -> None:
    vertex = next(iter(run.assigned[0]))
    for _ in range(PLACED_AGAIN_MAX + 1):
        assert run.error is None
        run.end(0, kind, vertex, run.assigned[0][vertex])
        run.pass_time(2, 0, 1, 2)
    assert isinstance(run.error, JobFailed)
    assert vertex in run.error.message
    assert "[LOG_BUSY] busy" in run.error.message


def test_a_vertex_may_come_back_any_number_of_times_in_its_life(run: Run) -> None:
    vertex = next(iter(run.assigned[0]))
    for _ in range(5 * PLACED_AGAIN_MAX):
        run.end(0, "returned", vertex, run.assigned[0][vertex])
        run.pass_time(20, 0, 1, 2)
    assert run.error is None


def test_a_vertex_that_keeps_coming_back_is_given_more_and_more_time(run: Run) -> None:
    vertex = next(iter(run.assigned[0]))
    first = run.assigned[0][vertex]
    run.end(0, "returned", vertex, first)
    second = run.assigned[0][vertex]
    assert second > first  # at once
    run.end(0, "returned", vertex, second)
    run.end(0, "returned", vertex, second)  # nobody's any more
    assert run.assigned[0][vertex] == second
    run.pass_time(1, 0, 1, 2)
    assert run.assigned[0][vertex] > second


def test_what_is_returned_for_an_old_number_is_passed_over(run: Run) -> None:
    vertex, stale = next(iter(run.assigned[0].items()))
    run.end(0, "returned", vertex, stale)
    newest = run.assigned[0][vertex]
    for kind in ("returned", "fenced", "failed", "started"):
        run.end(0, kind, vertex, stale)
    assert run.assigned[0][vertex] == newest
    assert run.error is None


def test_a_slot_that_is_lost_while_it_recovers_is_followed_by_the_next(run: Run) -> None:
    names = run.assigned[0].keys()
    run.lose(0)
    recovering = dict(run.assigned[2])
    run.lose(2)  # before it has started any
    assert all(run.owner(name) == 1 for name in names)
    assert all(run.assigned[1][name] > recovering[name] for name in names)
    run.start_all(1)
    assert [each.started_s for each in run.placement.recoveries] == [run.now_s, run.now_s]


def test_two_slots_lost_at_once(run: Run) -> None:
    run.lose(0)
    run.lose(1)
    assert all(run.owner(name) == 2 for name in run.vertices)
    assert len(set(run.assigned[2].values())) == len(run.vertices)


def test_vertices_wait_where_no_slot_is_left(run: Run) -> None:
    for connection in range(3):
        run.lose(connection)
    connection = run.connect(3)
    assert run.assigned[connection].keys() == set(run.vertices)


def test_a_task_that_spark_repeats_comes_under_the_same_number(run: Run) -> None:
    run.lose(0)
    again = run.connect(0)
    assert again not in run.assigned  # a standby
    run.lose(2)
    assert set(run.assigned[again]) == set(run.assigned[2])


def test_a_silent_job_does_not_take_its_slots_for_lost(run: Run) -> None:
    run.now_s += 1_000
    run.do(run.placement.tick(run.now_s))
    run.pass_time(2)
    assert run.given_up == []


def test_a_slot_whose_main_thread_hangs_is_given_up_and_its_task_ended(run: Run) -> None:
    vertex = next(iter(run.assigned[0]))
    run.beat(0, 7, "step", vertex)
    for _ in range(61):
        run.beat(0, 7, "step", vertex)
        run.pass_time(1, 1, 2)
    assert [(lost.slot, lost.is_stuck) for lost in run.given_up] == [(0, True)]
    assert run.placement.recoveries[0].reason == "stuck"
    assert run.owner(vertex) == 2
    assert run.launched == [0, 1, 2, 3]


def test_a_long_recovery_is_not_a_hanging_step(run: Run) -> None:
    vertex = next(iter(run.assigned[0]))
    for _ in range(300):
        run.beat(0, 7, "recover", vertex)
        run.pass_time(1, 1, 2)
    assert run.given_up == []


def test_a_vertex_that_hangs_on_every_slot_ends_the_query() -> None:
    run = Run(MemoryStore(), slots=1, standbys=0)
    for number in range(STUCK_MAX):
        assert run.error is None
        connection = run.connect(number)
        vertex = next(iter(run.assigned[connection]))
        run.pass_time(65, connection, moves=7, doing="step", vertex=vertex)
    assert isinstance(run.error, JobFailed)
    assert f"vertex {vertex} of query q was stuck {STUCK_MAX} times in a row" in run.error.message
    assert "stepTimeout" in run.error.message


def test_a_vertex_that_commits_between_two_hangs_may_hang_again() -> None:
    run = Run(MemoryStore(), slots=1, standbys=0)
    for number in range(3 * STUCK_MAX):
        connection = run.connect(number)
        run.report(connection)
        vertex = next(iter(run.assigned[connection]))
        run.pass_time(65, connection, moves=7, doing="step", vertex=vertex)
    assert run.error is None


def test_slots_that_do_not_come_end_the_query() -> None:
    run = Run(MemoryStore())
    connection = run.connect(0)
    run.pass_time(125, connection)
    assert isinstance(run.error, TooFewSlots)
    assert "1 of 3 task slots for query q came within 120 s, and 2 are needed" in run.error.message


def test_a_slot_that_never_gets_ready_is_replaced() -> None:
    run = Run(MemoryStore(), slots=1, standbys=0)
    run.do(run.placement.connected(9, 0, 1, "here", run.now_s))
    run.pass_time(125, 9, moves=0, doing="warm")
    assert [(lost.slot, lost.is_stuck) for lost in run.given_up] == [(0, True)]
    assert run.launched == [0, 1]


def test_slots_that_keep_ending_end_the_query(run: Run) -> None:
    for _ in range(SLOT_ENDS_MAX + 1):
        assert run.error is None
        run.do(run.placement.task_over(run.launched[-1], "no such module", run.now_s))
    assert isinstance(run.error, TooFewSlots)
    assert "keep ending (21 times in 60 s); the last one with: no such module" in run.error.message


@pytest.mark.parametrize("is_started", [True, False])
def test_what_nobody_expects_ends_the_query_if_it_happens_again_and_again(is_started: bool) -> None:
    """However long it takes: a slow machine may need minutes for some starts of slots."""
    run = Run(MemoryStore(), slots=1, standbys=0)
    error = {"error_class": "ValueError", "message": "1 vs 0", "traceback": "line 7"}
    for number in range(CRASHED_MAX):
        assert run.error is None
        connection, vertex = 70 + number, None
        if is_started:
            connection = run.connect(number)
            vertex = next(iter(run.assigned[connection]))
        else:
            run.do(run.placement.connected(connection, number, 1, "here", run.now_s))
        run.say(connection, "crashed", vertex=vertex, **error)
        run.lose(connection)
        run.now_s += 100
    assert isinstance(run.error, JobFailed)
    where = vertex if is_started else "slots that start"
    assert run.error.message == f"query q failed in {where}: [ValueError] 1 vs 0"
    assert run.error.details["traceback"] == "line 7"


def test_a_vertex_that_commits_between_two_crashes_may_crash_again() -> None:
    run = Run(MemoryStore(), slots=1, standbys=0)
    error = {"error_class": "ValueError", "message": "1 vs 0", "traceback": ""}
    for number in range(3 * CRASHED_MAX):
        connection = run.connect(number)
        run.report(connection)
        run.say(connection, "crashed", vertex=next(iter(run.assigned[connection])), **error)
        run.lose(connection)
    assert run.error is None


def test_what_ends_slots_that_got_ready_is_counted_too() -> None:
    """Outside of any vertex: where a standby loads kernels, or a status is sent."""
    run = Run(MemoryStore(), slots=1, standbys=1)
    error = {"error_class": "ValueError", "message": "1 vs 0", "traceback": ""}
    steady = run.connect(0)
    for number in range(1, CRASHED_MAX + 1):
        assert run.error is None
        connection = run.connect(number)
        run.report(steady)  # what it committed before all this
        run.say(connection, "crashed", vertex=None, **error)
        run.lose(connection)
        run.now_s += 100
    assert isinstance(run.error, JobFailed)
    where = "slots, outside of any vertex"
    assert run.error.message == f"query q failed in {where}: [ValueError] 1 vs 0"
    assert run.error.details["vertices"] == []


def test_slots_may_crash_again_and_again_while_vertices_commit() -> None:
    run = Run(MemoryStore(), slots=1, standbys=1)
    error = {"error_class": "ValueError", "message": "1 vs 0", "traceback": ""}
    steady = run.connect(0)
    for number in range(1, 3 * CRASHED_MAX):
        connection = run.connect(number)
        run.report(steady, commits=number)
        run.say(connection, "crashed", vertex=None, **error)
        run.lose(connection)
    assert run.error is None


def test_the_end_of_all_vertices_is_the_end_of_the_query(run: Run) -> None:
    run.report(0, "ended")
    assert run.told_to_stop == []
    run.lose(0)  # what has ended needs no other slot
    assert not run.placement.recoveries
    run.report(1, "ended")
    assert run.told_to_stop == [1, 2]
    run.lose(1)
    assert not run.is_finished
    run.lose(2)
    assert run.is_finished
    assert run.error is None


def test_a_stop_waits_for_its_slots_but_not_for_ever(run: Run) -> None:
    run.do(run.placement.stop(run.now_s))
    assert run.told_to_stop == [0, 1, 2]
    run.lose(0)
    assert run.assigned.keys() == {0, 1}  # nothing is placed any more
    late = run.connect(3)
    assert run.told_to_stop[-1] == late
    run.pass_time(29, 1, 2, late)
    assert not run.is_finished
    run.pass_time(2, 1, 2, late)
    assert run.is_finished


def test_an_error_of_a_vertex_is_the_querys(run: Run) -> None:
    vertex, instance = next(iter(run.assigned[0].items()))
    run.end(0, "failed", vertex, instance)
    assert isinstance(run.error, JobFailed)
    assert run.error.message == f"query q failed in {vertex}: [LOG_BUSY] busy"
    run.end(1, "failed", *next(iter(run.assigned[1].items())))
    assert run.error.details["vertices"] == [vertex]  # the first one counts


def test_a_slot_that_cannot_even_begin_ends_the_query(run: Run) -> None:
    run.say(2, "failed", vertex=None, error_class="INVALID_PROGRAM", message="?", traceback="")
    assert isinstance(run.error, JobFailed)
    assert "query q failed in a slot: [INVALID_PROGRAM]" in run.error.message


# --- what the driver hosts ------------------------------------------------------------------------


def test_what_only_the_driver_can_host_waits_for_its_slot_and_shares_no_other() -> None:
    """And nothing else is placed there, also when a slot is lost."""
    column = SparkColumn(Field("same", BIGINT), (Column("k", BIGINT, True),), "same(k)", "same")
    rows = step(SparkSpec((column,)), scan_source("table", "k bigint", 1).relation)
    program = plan_program(Query("q", (Write(rows, StreamRef("out")),)))
    (hosted,) = (v.name for v in program.vertices if program.is_on_driver(v))
    (other,) = (v.name for v in program.vertices if not program.is_on_driver(v))
    run = Run(MemoryStore(), slots=1, standbys=1, program=program)
    assert run.launched == [0, 1, 2]
    assert run.on_driver == [2]
    task, standby, driver = run.connect(0), run.connect(1), run.connect(2)
    assert {at: list(given) for at, given in run.assigned.items()} == {
        task: [other],
        driver: [hosted],
    }
    run.lose(task)
    run.lose(driver)
    assert list(run.assigned[standby]) == [other]
    run.do(run.placement.task_over(2, "it was killed", run.now_s))
    assert run.launched[-1] in run.on_driver
    again = run.connect(run.launched[-1])
    assert list(run.assigned[again]) == [hosted]
