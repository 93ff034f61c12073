"""Instance numbers: a later one is greater, whoever hands it out; the registered one rises."""

from __future__ import annotations

import pytest

from penstock.errors import Fenced, OutcomeUnknown
from penstock.log.contract import instance_key, register
from penstock.runtime import instances
from penstock.runtime.instances import COUNTER_BITS, InstanceNumbers, next_instance, run_key
from penstock.testing.memory_log import Fault, Faults, MemoryLog, MemoryStore


def registered(log: MemoryLog, vertex: str) -> int:
    found = log.get(instance_key(vertex))
    assert found is not None
    return int(found.value)


def test_numbers_rise_within_a_run_and_from_run_to_run() -> None:
    store = MemoryStore()
    first = InstanceNumbers(MemoryLog(store), "q", ["v"])
    early = [first.next(), first.next()]
    second = InstanceNumbers(MemoryLog(store), "q", ["v"])
    late = second.next()
    assert early == sorted(set(early))
    # Whatever the older run hands out from now on is smaller than what the newer one has.
    assert early[-1] < first.next() < late < second.next()
    assert second.is_newest_run()
    assert not first.is_newest_run()


def test_runs_of_other_queries_are_counted_apart() -> None:
    log = MemoryLog(MemoryStore())
    numbers = InstanceNumbers(log, "q", ["v"])
    InstanceNumbers(log, "p", ["w"])
    assert numbers.is_newest_run()


def test_a_run_that_has_no_numbers_left_takes_a_new_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "COUNTER_MAX", 3)
    numbers = InstanceNumbers(MemoryLog(MemoryStore()), "q", ["v"])
    handed = [numbers.next() for _ in range(10)]
    assert handed == sorted(set(handed))
    assert {number >> COUNTER_BITS for number in handed} == {1, 2, 3, 4}
    assert numbers.is_newest_run()


def test_a_log_that_has_lost_the_number_of_runs_hands_out_greater_numbers_all_the_same() -> None:
    log = MemoryLog(MemoryStore())
    register(log, "v", 7 << COUNTER_BITS | 5)
    assert InstanceNumbers(log, "q", ["u", "v"]).next() >> COUNTER_BITS == 8


def test_a_run_number_of_unknown_outcome_is_nobodys() -> None:
    store = MemoryStore()
    log = MemoryLog(store, faults=Faults.at({0: Fault.UNKNOWN_APPLIED}))
    with pytest.raises(OutcomeUnknown):
        InstanceNumbers(log, "q", ["v"])
    assert InstanceNumbers(log, "q", ["v"]).next() >> COUNTER_BITS == 2
    assert log.get(run_key("q")) is not None


def test_only_a_greater_number_is_registered() -> None:
    log = MemoryLog(MemoryStore())
    register(log, "v", 5)
    for late in (5, 4):
        with pytest.raises(Fenced) as refused:
            register(log, "v", late)
        assert refused.value.details == {"vertex": "v", "instance": late, "newest": "5"}
    assert registered(log, "v") == 5
    register(log, "v", 6)
    assert registered(log, "v") == 6


def test_a_registration_held_up_between_look_and_act_is_refused() -> None:
    """The living owner keeps its vertex, however late the stale one comes."""
    store = MemoryStore()
    owner = MemoryLog(store)

    class HeldUp(MemoryLog):
        def compare_and_set(self, key: str, version: int, value: bytes) -> bool:
            if version == 0:  # the first time: there was none when it looked
                register(owner, "v", 9)
            return super().compare_and_set(key, version, value)

    with pytest.raises(Fenced):
        register(HeldUp(store), "v", 8)
    assert registered(owner, "v") == 9


def test_a_lone_producer_held_up_never_takes_it_from_a_later_one() -> None:
    log = MemoryLog(MemoryStore())
    stale = next_instance(log, "shop")
    register(log, "shop", next_instance(log, "shop"))
    with pytest.raises(Fenced):
        register(log, "shop", stale)
