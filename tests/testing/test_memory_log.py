"""The in-memory backend's own promises: faults on demand, lagging views, freed memory."""

from __future__ import annotations

import random
import threading

import pytest

from penstock.errors import (
    Fenced,
    InvalidArgument,
    LogClosed,
    OutcomeUnknown,
    SequenceConflict,
    Trimmed,
)
from penstock.log.contract import Log, take_over
from penstock.log.record import START, Fence, Position
from penstock.testing.memory_log import (
    Effect,
    Fault,
    Faults,
    MemoryLog,
    MemoryStore,
    SimulatedCrash,
)
from tests.log.contract import PATIENCE_S, bodies, entry, everything, in_threads, positions

EFFECTS = {
    Effect.APPEND: lambda log: log.append([entry(0), entry(1)]),
    Effect.PUT: lambda log: log.put("k", b"new"),
    Effect.COMPARE_AND_SET: lambda log: log.compare_and_set("k", 1, b"new"),
    Effect.TRIM: lambda log: log.trim("old", Position(1)),
    Effect.FORGET: lambda log: log.forget({"before"}),
}


def prepared_store() -> MemoryStore:
    store = MemoryStore()
    log = MemoryLog(store)
    log.append([entry(0, ("old",), producer="before")])
    log.put("k", b"old")
    return store


def happened(store: MemoryStore, effect: Effect) -> bool:
    log = MemoryLog(store)
    if effect is Effect.APPEND:
        assert log.tail() in (1, 3)  # both entries or none
        return log.tail() == 3
    if effect is Effect.TRIM:
        return log.trimmed("old") == 1
    if effect is Effect.FORGET:
        try:
            return log.append([entry(0, ("new",), producer="before")]) == (2,)
        except Trimmed:
            return False
    found = log.get("k")
    assert found is not None
    return found.value == b"new"


class SteppingClock:
    """A wall clock that tells what it was given, also times that fall."""

    def __init__(self, *times_us: int) -> None:
        self._times_us = list(times_us)

    def now_us(self) -> int:
        return self._times_us.pop(0)

    def monotonic_s(self) -> float:
        raise AssertionError("the log measures no spans")


class TestFaults:
    @pytest.mark.parametrize("effect", Effect)
    @pytest.mark.parametrize("fault", Fault)
    def test_each_fault_of_each_effect_applies_it_or_not(
        self, effect: Effect, fault: Fault
    ) -> None:
        store = prepared_store()
        if effect is Effect.FORGET:
            MemoryLog(store).trim("old", Position(1))  # of whom records are left is remembered
        faults = Faults(lambda kind, _index: fault if kind is effect else None)
        crash = fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)
        with pytest.raises(SimulatedCrash if crash else OutcomeUnknown):
            EFFECTS[effect](MemoryLog(store, faults=faults))
        assert happened(store, effect) == (fault in (Fault.CRASH_AFTER, Fault.UNKNOWN_APPLIED))

    def test_a_schedule_sees_every_effect_in_order_across_handles(self) -> None:
        store = prepared_store()
        seen: list[tuple[Effect, int]] = []
        faults = Faults(lambda effect, index: seen.append((effect, index)))
        first, second = MemoryLog(store, faults=faults), MemoryLog(store, faults=faults)
        for index, act in enumerate(EFFECTS.values()):
            act((first, second)[index % 2])
        first.read(["old"], START, 1)
        with pytest.raises(InvalidArgument):
            first.append([])
        assert seen == list(zip(EFFECTS, range(5), strict=True))
        assert faults.effects_seen == 5

    def test_a_crashed_handle_stays_dead_and_its_waiters_wake(self) -> None:
        store = prepared_store()
        log = MemoryLog(store, faults=Faults.at({0: Fault.CRASH_BEFORE}))
        outcome: list[type[BaseException]] = []
        waiting = threading.Event()

        def wait() -> None:
            waiting.set()
            try:
                log.wait(Position(99), PATIENCE_S)
            except SimulatedCrash as crash:
                outcome.append(type(crash))

        def crash() -> None:
            assert waiting.wait(PATIENCE_S)
            with pytest.raises(SimulatedCrash):
                log.put("k", b"x")

        in_threads(wait, crash)
        assert outcome == [SimulatedCrash]
        for act in (log.tail, log.keys, lambda: log.put("k", b"x"), log.statistics, log.reveal):
            with pytest.raises(SimulatedCrash):
                act()
        log.close()
        assert MemoryLog(store).tail() == 1

    def test_a_crash_is_not_swallowed_by_handlers_of_errors(self) -> None:
        assert not issubclass(SimulatedCrash, Exception)

    def test_an_applied_append_with_an_unknown_outcome_is_found_by_its_retry(self) -> None:
        for fault, tail_after_fault in ((Fault.UNKNOWN_APPLIED, 3), (Fault.UNKNOWN_NOT_APPLIED, 1)):
            store = prepared_store()
            log = MemoryLog(store, faults=Faults.at({0: fault}))
            with pytest.raises(OutcomeUnknown):
                log.append([entry(0), entry(1)])
            assert MemoryLog(store).tail() == tail_after_fault
            assert log.append([entry(0), entry(1)]) == (2, 3)
            assert log.tail() == 3

    def test_a_fault_hides_that_the_append_was_refused(self) -> None:
        store = prepared_store()
        take_over(MemoryLog(store), "v")
        log = MemoryLog(store, faults=Faults.at({0: Fault.UNKNOWN_APPLIED, 2: Fault.CRASH_AFTER}))
        with pytest.raises(OutcomeUnknown):
            log.append([entry(0)], Fence("v", 7))
        with pytest.raises(Fenced):
            log.append([entry(0)], Fence("v", 7))
        with pytest.raises(SimulatedCrash):
            log.append([entry(0)], Fence("v", 7))
        assert MemoryLog(store).tail() == 1

    def test_a_take_over_survives_every_unknown_outcome(self) -> None:
        store = MemoryStore()
        log = MemoryLog(store, faults=Faults.at({0: Fault.UNKNOWN_APPLIED, 2: Fault.CRASH_AFTER}))
        with pytest.raises(OutcomeUnknown):
            take_over(log, "v")
        assert take_over(log, "v") == 2  # the first one was registered and belongs to nobody
        with pytest.raises(SimulatedCrash):
            take_over(log, "v")
        assert take_over(MemoryLog(store), "v") == 4


class TestLaggingView:
    def test_a_lagging_handle_sees_nothing_until_it_is_shown(self) -> None:
        store = MemoryStore()
        writer, reader = MemoryLog(store), MemoryLog(store, lagging=True)
        writer.append([entry(0), entry(1, ("b",))])
        assert (reader.tail(), everything(reader, "S/a/0", "b"), reader.last("b")) == (0, [], None)
        assert reader.wait(START, 0.01) == 0
        assert reader.reveal() == 2
        assert positions(everything(reader, "S/a/0", "b")) == [1, 2]
        writer.append([entry(2)])
        last = reader.last("S/a/0")
        assert last is not None
        assert last.position == 1
        assert reader.tail() == 2

    def test_a_reveal_shows_whole_appends_and_never_goes_back(self) -> None:
        store = MemoryStore()
        writer, reader = MemoryLog(store), MemoryLog(store, lagging=True)
        for first in (0, 3, 6):
            writer.append([entry(first + part) for part in range(3)])
        assert [reader.reveal(Position(upto)) for upto in (0, 1, 3, 2, 4, 6, 1, 99)] == (
            [0, 3, 3, 3, 6, 6, 6, 9]
        )
        assert reader.reveal(Position(99)) == 9

    def test_a_reveal_does_not_show_records_that_come_later(self) -> None:
        store = MemoryStore()
        writer, reader = MemoryLog(store), MemoryLog(store, lagging=True)
        reader.reveal(Position(10))
        writer.append([entry(0)])
        assert reader.tail() == 0

    def test_a_reveal_wakes_a_waiting_reader(self) -> None:
        store = MemoryStore()
        writer, reader = MemoryLog(store), MemoryLog(store, lagging=True)
        writer.append([entry(0)])
        seen: list[int] = []
        in_threads(lambda: seen.append(reader.wait(START, PATIENCE_S)), reader.reveal)
        assert seen == [1]

    @pytest.mark.parametrize("effect", Effect)
    def test_each_effect_shows_everything_before_it(self, effect: Effect) -> None:
        store = prepared_store()
        log = MemoryLog(store, lagging=True)
        assert log.tail() == 0
        EFFECTS[effect](log)
        assert log.tail() == MemoryLog(store).tail() >= 1
        MemoryLog(store).append([entry(9, producer="after")])
        assert log.tail() == MemoryLog(store).tail() - 1

    def test_refused_effects_show_everything_before_them_too(self) -> None:
        refused = (
            (Fenced, lambda log: log.append([entry(5)], Fence("v", 3))),
            (SequenceConflict, lambda log: log.append([entry(0, producer="before")])),
        )
        for error, act in refused:
            log = MemoryLog(prepared_store(), lagging=True)
            with pytest.raises(error):
                act(log)
            assert log.tail() == 1
        log = MemoryLog(prepared_store(), lagging=True)
        assert not log.compare_and_set("k", 9, b"x")
        assert log.tail() == 1

    def test_a_retry_shows_its_first_positions(self) -> None:
        store = MemoryStore()
        MemoryLog(store).append([entry(0)])
        log = MemoryLog(store, lagging=True)
        assert log.append([entry(0)]) == (1,)
        assert positions(everything(log)) == [1]

    @pytest.mark.parametrize("fault", [Fault.UNKNOWN_APPLIED, Fault.UNKNOWN_NOT_APPLIED])
    def test_a_fault_shows_nothing(self, fault: Fault) -> None:
        log = MemoryLog(prepared_store(), lagging=True, faults=Faults.at({0: fault}))
        with pytest.raises(OutcomeUnknown):
            log.append([entry(0)])
        assert log.tail() == 0

    def test_the_last_marker_after_a_take_over_is_current(self) -> None:
        """What recovery relies on: fence first, then the last marker cannot be outdated."""
        store = MemoryStore()
        old, new = MemoryLog(store, lagging=True), MemoryLog(store, lagging=True)
        instance = take_over(old, "v")
        for sequence in range(5):
            old.append([entry(sequence, ("T/v",), b"%d" % sequence)], Fence("v", instance))
        assert new.last("T/v") is None
        take_over(new, "v")
        marker = new.last("T/v")
        assert marker is not None
        assert bytes(marker.body) == b"4"
        with pytest.raises(Fenced):
            old.append([entry(5, ("T/v",))], Fence("v", instance))

    def test_metadata_is_current_and_shows_what_it_may_speak_of(self) -> None:
        store = MemoryStore()
        writer = MemoryLog(store)
        writer.append([entry(0)])
        writer.put("checkpoint/v", b"1")
        writer.append([entry(1)])
        by_get, by_keys, other = (MemoryLog(store, lagging=True) for _ in range(3))
        found = by_get.get("checkpoint/v")
        assert found is not None
        assert found.value == b"1"
        assert by_keys.keys("checkpoint") == ["checkpoint/v"]
        assert other.get("nothing") is None
        assert other.keys("nothing") == []
        assert (by_get.tail(), by_keys.tail(), other.tail()) == (1, 1, 0)

    def test_how_far_a_tag_is_trimmed_is_never_ahead_of_the_tail(self) -> None:
        store = MemoryStore()
        writer, reader = MemoryLog(store), MemoryLog(store, lagging=True)
        writer.append([entry(0), entry(1)])
        writer.trim("S/a/0", Position(1))
        writer.append([entry(2)])
        assert reader.trimmed("S/a/0") == 1
        assert reader.tail() == 2
        assert positions(everything(reader)) == [2]

    @pytest.mark.parametrize("seed", range(30))
    def test_random_schedules_show_growing_prefixes_of_the_one_order(self, seed: int) -> None:
        choose = random.Random(seed)
        store = MemoryStore()
        judge = MemoryLog(store)
        handles = [MemoryLog(store, lagging=True) for _ in range(3)]
        tags = ("S/a/0", "S/a/1")
        ends = {0}
        seen = [0, 0, 0]
        for step in range(60):
            number = choose.randrange(3)
            log = handles[number]
            match choose.randrange(4):
                case 0:
                    count = choose.randint(1, 4)
                    batch = [
                        entry(step * 4 + part, (choose.choice(tags),), producer=f"w{number}")
                        for part in range(count)
                    ]
                    assert log.append(batch)[-1] == log.tail() == judge.tail()
                    ends.add(judge.tail())
                case 1:
                    log.reveal(Position(log.tail() + choose.randrange(4)))
                case 2:
                    take_over(log, "v")
                    assert log.tail() == judge.tail()
                case 3:
                    log.get("instance/v")
            for index, handle in enumerate(handles):
                tail = handle.tail()
                assert seen[index] <= tail <= judge.tail()
                assert tail in ends
                seen[index] = tail
                assert positions(everything(handle, *tags)) == list(range(1, tail + 1))


class TestStore:
    def test_trimming_frees_records_and_bytes(self) -> None:
        store = MemoryStore()
        log = MemoryLog(store)
        log.append([entry(index, ("a", "b"), bytes(1_000)) for index in range(10)])
        log.trim("a", Position(10))
        assert store.retained() == (10, 10_000)
        log.trim("b", Position(7))
        assert store.retained() == (3, 3_000)
        log.trim("b", Position(10))
        assert store.retained() == (0, 0)

    def test_endless_append_and_trim_keeps_a_bounded_store(self) -> None:
        store = MemoryStore()
        log = MemoryLog(store)
        for sequence in range(3_000):
            (position,) = log.append([entry(sequence, ("a", f"b/{sequence % 3}"))])
            log.trim("a", Position(position - 10 if position > 10 else 0))
            log.trim(f"b/{sequence % 3}", Position(position - 10 if position > 10 else 0))
            assert store.retained()[0] <= 15

    def test_time_comes_from_the_clock_and_never_falls(self) -> None:
        log = MemoryLog(clock=SteppingClock(50, 40, 60))
        log.append([entry(0), entry(1)])
        log.append([entry(2)])
        log.append([entry(3)])
        assert [record.time_us for record in everything(log)] == [50, 50, 50, 60]

    def test_without_a_clock_time_counts_records(self) -> None:
        log = MemoryLog()
        log.append([entry(0), entry(1)])
        log.append([entry(2)])
        assert [record.time_us for record in everything(log)] == [1, 2, 3]

    def test_handles_without_a_store_share_nothing(self) -> None:
        first, second = MemoryLog(), MemoryLog()
        first.append([entry(0)])
        assert second.tail() == 0

    def test_closing_wakes_a_waiting_thread(self) -> None:
        log: Log = MemoryLog()
        waiting = threading.Event()

        def wait() -> None:
            waiting.set()
            with pytest.raises(LogClosed):
                log.wait(START, float("inf"))

        def close() -> None:
            assert waiting.wait(PATIENCE_S)
            log.close()

        in_threads(wait, close)

    def test_a_read_looks_at_no_more_than_it_returns(self) -> None:
        """Counted, not timed: a page from the end of a long log builds only its own records."""
        store = MemoryStore()
        log = MemoryLog(store)
        for start in range(0, 20_000, 4_000):
            log.append(
                [entry(index, (f"S/a/{index % 4}", "m")) for index in range(start, start + 4_000)]
            )
        built = 0
        build = store.record

        def counting(position: Position):  # type: ignore[no-untyped-def]
            nonlocal built
            built += 1
            return build(position)

        store.record = counting  # type: ignore[method-assign]
        assert positions(log.read(["S/a/1", "m", "S/a/3"], Position(19_990), 4)) == (
            [19_991, 19_992, 19_993, 19_994]
        )
        assert positions(log.read(["S/a/1"], Position(15_000), 2)) == [15_002, 15_006]
        assert built == 6

    def test_an_append_of_a_view_keeps_its_own_copy(self) -> None:
        log = MemoryLog()
        source = bytearray(b"before")
        log.append([entry(0, body=memoryview(source))])
        source[:] = b"AFTER!"
        assert bodies(everything(log)) == [b"before"]
