"""Functions over groups in a chain: what fails and what is said of it, time, and many lives."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.stateful_processor_util import TransformWithStateInPandasUdfUtils
from pyspark.sql.types import LongType, StringType, StructType

from penstock.errors import FunctionFailed, RowError, StateTooLarge
from penstock.expressions.tree import Column
from penstock.expressions.types import BIGINT, STRING, Field, parse_type
from penstock.json_codec import canonical_json, parse
from penstock.operators.chain import Chain
from penstock.operators.group_functions import make_of, stacked
from penstock.operators.python_functions import (
    INITIAL_ROWS,
    STATE_PANDAS,
    TRANSFORM_PANDAS,
    TRANSFORM_ROWS,
    PythonCode,
    PythonFunctions,
)
from penstock.operators.specs import (
    InitialState,
    PythonCall,
    PythonGroupsSpec,
    StateVariable,
    spec_from_json,
)
from penstock.operators.static_rows import StaticRows
from tests.operators.chains import linear
from tests.operators.lives import Life
from tests.operators.python_code import code

SCHEMA = (Field("k", STRING), Field("n", BIGINT))
K, N = Column("k", STRING, True), Column("n", BIGINT, True)
CALL = PythonCall((K, K, N), "f(k, n)", "f")
RESULT = StructType().add("k", StringType()).add("n", LongType())
NUMBERS = StructType().add("n", LongType())
OUTPUTS = (Field("k", STRING), Field("n", BIGINT))
MS = 1_000

Rows = list[tuple[str | None, int]]


def variable(name: str, kind: str = "value", ttl_ms: int | None = None) -> StateVariable:
    key = (Field("p", BIGINT),) if kind == "map" else ()
    return StateVariable(name, kind, (Field("n", BIGINT),), key, ttl_ms)


def function_code(function: Any, kind: int, variables: tuple[StateVariable, ...]) -> PythonCode:
    given = StructType().add("k", StringType()).add("k", StringType()).add("n", LongType())
    facts: dict[str, dict[str, Any]] = {
        each.name: {
            "kind": each.kind,
            "value": NUMBERS.jsonValue(),
            "ttl_ms": each.ttl_ms,
            **({"key": StructType().add("p", LongType()).jsonValue()} if each.key else {}),
        }
        for each in variables
    }
    return replace(code(function, kind, RESULT, given), variables=json.dumps(facts))


def counting(function: Callable[..., Any], clock: str = "none", **others: Any) -> Chain:
    """A chain with a function that has one state."""
    variables = (variable("state"),)
    spec = PythonGroupsSpec((K,), CALL, OUTPUTS, variables, clock, watermarked=clock == "event")
    python = PythonFunctions({"f": function_code(function, STATE_PANDAS, variables)})
    return linear((spec,), SCHEMA, None, python=python, **others)


def processing(
    processor: StatefulProcessor,
    clock: str,
    *variables: StateVariable,
    kind: int = TRANSFORM_PANDAS,
    **others: Any,
) -> Chain:
    """A chain with a processor."""
    mode = {"none": "None", "processing": "ProcessingTime", "event": "EventTime"}[clock]
    method = TransformWithStateInPandasUdfUtils(processor, mode).transformWithStateUDF
    spec = PythonGroupsSpec((K,), CALL, OUTPUTS, variables, clock, is_processor=True)
    python = PythonFunctions({"f": function_code(method, kind, variables)})
    return linear((spec,), SCHEMA, None, python=python, **others)


def batch(rows: Rows) -> pa.RecordBatch:
    keys, numbers = zip(*rows, strict=True)
    return pa.record_batch({"k": pa.array(keys, pa.string()), "n": pa.array(numbers, pa.int64())})


def found(batches: Any) -> Rows:
    return [(row["k"], row["n"]) for each in batches for row in each.to_pylist()]


def sums(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    total = state.get[0] if state.exists else 0
    for frame in frames:
        if (frame["n"] < 0).any():
            raise ValueError(f"no {frame['n'].min()}")
        total += int(frame["n"].sum())
    state.update((total,))
    yield pd.DataFrame({"k": [key[0]], "n": [total]})


def test_rows_of_a_key_come_together_in_their_order() -> None:
    def lists(key: Any, frames: Any, state: Any) -> Any:
        numbers = [n for frame in frames for n in frame["n"].tolist()]
        yield pd.DataFrame({"k": [key[0]] * len(numbers), "n": numbers})

    chain = counting(lists)
    rows: Rows = [("b", 3), (None, 1), ("a", 9), ("b", 1), ("a", 2), ("b", 2), (None, 0)]
    assert found(chain.process(batch(rows)).batches) == [
        (None, 1), (None, 0), ("a", 9), ("a", 2), ("b", 3), ("b", 1), ("b", 2),
    ]  # fmt: skip


def test_only_the_rows_of_a_key_that_fails_are_rejected() -> None:
    chain = counting(sums)
    chain.process(batch([("a", 1), ("b", 2)]))
    output = chain.process(batch([("b", 5), ("a", 1), ("b", -1), ("c", 7)]), on_bad_row="reject")
    assert found(output.batches) == [("a", 2), ("c", 7)]
    assert output.rejected is not None
    assert output.rejected.column("n").to_pylist() == [5, -1]
    error = output.rejected.column("error").to_pylist()[0]
    assert "ValueError: no -1 in Python function f(k, n) for key 'b'" in error
    assert "in sums\n    raise ValueError" in error
    assert found(chain.process(batch([("b", 1)])).batches) == [("b", 3)]  # it was left as it was


def test_without_a_dead_letter_stream_the_error_names_row_and_key() -> None:
    chain = counting(sums)
    with pytest.raises(RowError, match=r"row 1: ValueError: no -4 .* for key 'b'") as raised:
        chain.process(batch([("a", 1), ("b", -4)]))
    assert raised.value.details["key"] == "'b'"
    assert raised.value.details["row"] == 1


def test_what_is_no_exception_is_an_error_of_its_key_too() -> None:
    def leaves(key: Any, frames: Any, state: Any) -> Any:
        if key[0] == "b":
            raise KeyboardInterrupt("enough")
        yield pd.DataFrame({"k": [key[0]], "n": [1]})

    output = counting(leaves).process(batch([("a", 1), ("b", 2)]), on_bad_row="reject")
    assert found(output.batches) == [("a", 1)]
    assert output.rejected is not None
    assert "KeyboardInterrupt: enough" in output.rejected.column("error").to_pylist()[0]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (pd.DataFrame({"k": ["x"]}), "RESULT_COLUMN_SCHEMA_MISMATCH"),
        (7, "expected.*iterator of pandas.DataFrame|UDF_RETURN_TYPE|iterator of int"),
        (pd.DataFrame({"k": ["x"], "n": ["no number"]}), "no number"),
    ],
)
def test_results_that_do_not_fit_are_of_their_key(result: Any, message: str) -> None:
    def odd(key: Any, frames: Any, state: Any) -> Any:
        yield result if key[0] == "b" else pd.DataFrame({"k": [key[0]], "n": [1]})

    output = counting(odd).process(batch([("a", 1), ("b", 2), ("c", 3)]), on_bad_row="reject")
    assert found(output.batches) == [("a", 1), ("c", 1)]
    assert output.rejected is not None
    assert output.rejected.column("k").to_pylist() == ["b"]


def test_no_function_sees_rows_that_are_made_up() -> None:
    chain = counting(sums, is_rehearsal=True)
    assert found(chain.process(batch([("a", -1)])).batches) == []


def timeouts(key: Any, frames: Any, state: Any) -> Any:
    if state.hasTimedOut:
        state.remove()
        yield pd.DataFrame({"k": [key[0]], "n": [-state.getCurrentProcessingTimeMs()]})
        return
    (frame,) = frames
    state.update((1,))
    state.setTimeoutDuration(int(frame["n"].iloc[0]))


def test_timeouts_by_the_clock_come_in_order_and_survive() -> None:
    """What is due follows from the state alone, so another life has the same."""
    chain = counting(timeouts, "processing")
    chain.tell_time(1_000 * MS)
    chain.process(batch([("b", 50), ("a", 50), ("c", 20), ("d", 500)]))
    assert chain.due_us() == 1_021 * MS
    changes = {name: state.take_changes() for name, state in chain.states.items()}
    heir = counting(timeouts, "processing")
    for name, taken in changes.items():
        assert taken is not None
        heir.states[name].apply_changes(taken)
    heir.restore_progress(chain.progress())
    for each in (chain, heir):
        each.tell_time(1_020 * MS)
        assert found(each.on_time()) == []
        each.tell_time(1_200 * MS)
        each.tell_time(900 * MS)  # a clock that was put back
        assert found(each.on_time()) == [("c", -1_200), ("a", -1_200), ("b", -1_200)]
        assert each.due_us() == 1_501 * MS
        assert each.progress()[0][1] == 1_200 * MS


def test_a_key_that_leaves_its_time_as_it_was_is_asked_again_but_not_at_once() -> None:
    def stays(key: Any, frames: Any, state: Any) -> Any:
        if state.hasTimedOut:
            yield pd.DataFrame({"k": [key[0]], "n": [state.getCurrentProcessingTimeMs()]})
            return
        state.setTimeoutDuration(10)

    chain = counting(stays, "processing")
    chain.process(batch([("a", 1)]))
    chain.tell_time(20 * MS)
    assert found(chain.on_time()) == [("a", 20)]
    assert chain.due_us() == 120 * MS
    chain.tell_time(120 * MS)
    assert found(chain.on_time()) == [("a", 120)]


def test_a_timeout_that_fails_ends_the_query_and_names_its_key() -> None:
    def fails(key: Any, frames: Any, state: Any) -> Any:
        if state.hasTimedOut:
            raise KeyError("gone")
        state.setTimeoutDuration(1)
        return iter([])

    chain = counting(fails, "processing")
    chain.process(batch([("a", 1)]))
    chain.tell_time(10 * MS)
    with pytest.raises(FunctionFailed, match=r"fails for key 'a', whose time 1 ms .*KeyError"):
        chain.on_time()


class Watching(StatefulProcessor):
    """Sums numbers, forgets maps after a while, and sets timers by the clock."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n bigint")
        self.parts = handle.getMapState("parts", "p bigint", "n bigint", 100)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        numbers = [n for frame in rows for n in frame["n"].tolist()]
        before = self.total.get()
        self.total.update(((0 if before is None else before[0]) + sum(numbers),))
        for n in numbers:
            self.parts.updateValue((n % 10,), (n,))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 30)
        yield pd.DataFrame({"k": [key[0]], "n": [sum(v for (v,) in self.parts.values())]})

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        (total,) = self.total.get()
        yield pd.DataFrame({"k": [f"timer {key[0]}"], "n": [total]})


def test_a_processor_has_timers_and_states_with_a_time_to_live() -> None:
    chain = processing(Watching(), "processing", variable("total"), variable("parts", "map", 100))
    chain.tell_time(1_000 * MS)
    assert found(chain.process(batch([("a", 1), ("a", 12)])).batches) == [("a", 13)]
    chain.tell_time(1_090 * MS)
    assert found(chain.on_time()) == [("timer a", 13)]
    assert found(chain.process(batch([("a", 23)])).batches) == [("a", 36)]
    chain.tell_time(1_100 * MS)  # the first two are over, the third is not
    assert found(chain.process(batch([("b", 4)])).batches) == [("b", 4)]
    kept = chain.states["groups0_parts"].scan()
    assert kept.column("name").to_pylist() == [{"p": 3}, {"p": 4}]
    assert chain.due_us() == 1_120 * MS


def test_a_timer_without_a_clock_is_an_error_of_its_key() -> None:
    chain = processing(Watching(), "none", variable("total"), variable("parts", "map", 100))
    with pytest.raises(RowError, match="a processor has timers with timeMode ProcessingTime"):
        chain.process(batch([("a", 1)]))


class Gathering(StatefulProcessor):
    """Keeps all numbers of a key in a list, the greatest alone after more than five."""

    def init(self, handle: Any) -> None:
        self.numbers = handle.getListState("numbers", "n bigint")
        self.counts = handle.getMapState("counts", "p bigint", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        new = [row.n for row in rows]
        if 13 in new:
            self.numbers.clear()
            raise ValueError("thirteen")
        self.numbers.appendList([(n,) for n in new])
        kept = [n for (n,) in self.numbers.get()]
        if len(kept) > 5:
            self.numbers.put([(max(kept),)])
        for n in new:
            (before,) = self.counts.getValue((n % 3,)) or (0,)
            self.counts.updateValue((n % 3,), (before + 1,))
        for place, n in enumerate(kept):
            yield Row(k=key[0], n=n * 100 + place)
        yield Row(k=key[0], n=-sum(n for (n,) in self.counts.values()))


def gathered(batches: list[Rows]) -> list[list[tuple[Any, int]]]:
    """What Gathering gives, in plain Python."""
    numbers: dict[Any, list[int]] = {}
    counts: dict[Any, int] = {}
    answers = []
    for rows in batches:
        answer = []
        for key in sorted({key for key, _ in rows}, key=lambda key: (key is not None, key)):
            new = [n for k, n in rows if k == key]
            if 13 in new:
                continue
            kept = numbers.setdefault(key, [])
            kept += new
            counts[key] = counts.get(key, 0) + len(new)
            answer += [(key, n * 100 + place) for place, n in enumerate(kept)]
            answer.append((key, -counts[key]))
            if len(kept) > 5:
                numbers[key] = [max(kept)]
        answers.append(answer)
    return answers


@pytest.mark.parametrize("seed", range(6))
def test_a_processor_of_many_lives_answers_as_one_of_a_single_life(seed: int) -> None:
    rng = random.Random(seed)
    variables = (variable("numbers", "list"), variable("counts", "map"))
    life = Life(lambda: processing(Gathering(), "none", *variables, kind=TRANSFORM_ROWS), rng)
    batches = [
        [
            (rng.choice(["a", "b", None, "c"]), rng.randrange(1, 40))
            for _ in range(rng.randrange(1, 9))
        ]
        for _ in range(20)
    ]
    answers = []
    for rows in batches:
        output = life.chain.process(batch(rows), on_bad_row="reject")
        answers.append(found(output.batches))
        if rng.random() < 0.6:  # several batches may be under one marker
            life.commit()
    assert answers == gathered(batches)


def test_rows_are_those_of_pyspark() -> None:
    """They know their names, can be sent on, and may be given back in any order of columns."""

    class Telling(StatefulProcessor):
        def init(self, handle: Any) -> None:
            pass

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            for row in rows:
                assert (row.k, row["n"], tuple(row)) == (key[0], row[1], (row.k, row.n))
                assert repr(row) == repr(Row(k=row.k, n=row.n))
                assert isinstance(row, Row)
                assert type(pickle.loads(pickle.dumps(row))) is Row
                assert pickle.loads(pickle.dumps(row)).asDict() == {"k": row.k, "n": row.n}
                yield row
                yield Row(n=row.n + 1, k=row.k)
                yield Row("k", "n")(row.k, row.n + 2)
                yield Row(k=row.k, n=row.n + 3, more=1)

    chain = processing(Telling(), "none", kind=TRANSFORM_ROWS)
    given = found(chain.process(batch([("b", 5), (None, 0)])).batches)
    assert given == [(None, n) for n in range(4)] + [("b", n) for n in range(5, 9)]


FRAMES = [
    {"k": ["x", "y"], "n": [1, 2]},
    {"k": ["x"], "n": [3]},
    {"n": [4], "k": ["z"]},
    {"k": [None], "n": [5.0]},
    {"k": pd.to_datetime(["2024-01-02"]), "n": [6]},
    {"k": pd.Categorical(["c"]), "n": pd.array([7], "Int64")},
]


@pytest.mark.parametrize("chosen", [(0, 1), (0, 1, 1), (2, 2), (3, 3, 3), (4, 4), (5, 5), (1,)])
def test_frames_of_one_make_are_stacked_as_pandas_does_it(chosen: tuple[int, ...]) -> None:
    frames = [pd.DataFrame(FRAMES[at]) for at in chosen]
    (make,) = set(map(make_of, frames))
    pd.testing.assert_frame_equal(stacked(frames), pd.concat(frames, ignore_index=True))
    assert make not in {make_of(pd.DataFrame(FRAMES[at])) for at in {*range(2, 6)} - {*chosen}}


def test_a_function_may_keep_and_change_its_frames() -> None:
    kept: list[pd.DataFrame] = []

    def keeping(key: Any, frames: Any, state: Any) -> Any:
        for frame in frames:
            assert list(frame.index) == list(range(len(frame)))
            frame["more"] = frame["n"] * 2
            frame.loc[:, "n"] += 100
            kept.append(frame)
            yield pd.DataFrame({"k": [key[0]], "n": [int(frame["more"].sum())]})

    chain = counting(keeping)
    operator: Any = chain._operators[0]
    operator._calls.loaded.function = keeping  # itself, not a copy
    assert found(chain.process(batch([("b", 1), ("a", 2), ("b", 3), ("a", 4)])).batches) == [
        ("a", 12),
        ("b", 8),
    ]
    assert [frame["n"].tolist() for frame in kept] == [[102, 104], [101, 103]]


def test_states_have_a_bound() -> None:
    class Hoarding(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.numbers = handle.getListState("numbers", "n bigint")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            self.numbers.appendList([(n,) for n in range(10_000)])
            return iter([])

    chain = processing(Hoarding(), "none", variable("numbers", "list"), state_bytes_max=100_000)
    with pytest.raises(StateTooLarge):
        chain.process(batch([("a", 1)]))


def test_rows_that_would_be_late_behind_a_processor_are_an_error() -> None:
    class Timing(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            for frame in rows:
                yield pd.DataFrame({"k": [key[0]], "n": frame["n"].iloc[:1]})

    method = TransformWithStateInPandasUdfUtils(Timing(), "EventTime").transformWithStateUDF
    spec = PythonGroupsSpec((K,), CALL, OUTPUTS, (), "event", True, True, None, "n")
    python = PythonFunctions({"f": function_code(method, TRANSFORM_PANDAS, ())})
    chain = linear((spec,), SCHEMA, None, python=python)
    chain.on_watermark(5)
    assert found(chain.process(batch([("a", 5)])).batches) == [("a", 5)]
    with pytest.raises(FunctionFailed, match="n is 4 us, and the watermark is at 5 us"):
        chain.process(batch([("a", 4)]))


def test_a_spec_is_the_same_behind_its_json() -> None:
    spec = PythonGroupsSpec(
        (K,), CALL, OUTPUTS, (variable("m", "map", 5),), "event", True, True,
        Column("t", parse_type("timestamp"), True), "t",
    )  # fmt: skip
    assert spec_from_json(parse(canonical_json(spec.to_json()))) == spec


class Beginning(StatefulProcessor):
    """Keeps all numbers of a key, of which some were there before any row."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.numbers = handle.getListState("numbers", "n bigint")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        if initialState.m < 0:
            raise ValueError(f"no {initialState.m}")
        self.numbers.appendValue((initialState.m,))
        self.handle.registerTimer(50)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        self.numbers.appendList([(row.n,) for row in rows])
        yield Row(k=key[0], n=sum(n for (n,) in self.numbers.get()))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield Row(k=f"timer {key[0]}", n=sum(n for (n,) in self.numbers.get()))


INITIAL_SCHEMA = (Field("k", STRING), Field("m", BIGINT))
INITIAL = InitialState("static_initial_0", INITIAL_SCHEMA, (K,), ("k",), ("k", "m"))


def beginning(rows: Rows, keys: tuple[int, int] | None = None) -> Chain:
    """A chain with a processor whose keys begin with rows; `keys` is the range of its vertex."""
    method = TransformWithStateInPandasUdfUtils(
        Beginning(), "ProcessingTime"
    ).transformWithStateWithInitStateUDF
    numbers = (variable("numbers", "list"),)
    spec = PythonGroupsSpec(
        (K,), CALL, OUTPUTS, numbers, "processing", is_processor=True, initial=INITIAL
    )
    assert spec_from_json(parse(canonical_json(spec.to_json()))) == spec
    first = StructType().add("k", StringType()).add("m", LongType())
    found = replace(function_code(method, INITIAL_ROWS, numbers), initial_type=first.json())
    chain = linear((spec,), SCHEMA, None, python=PythonFunctions({"f": found}))
    names, first_numbers = zip(*rows, strict=True)
    begin = {"k": pa.array(names, pa.string()), "m": pa.array(first_numbers, pa.int64())}
    chain.use_static(INITIAL.side, StaticRows(1, pa.record_batch(begin)), keys)
    return chain


BEGIN: Rows = [("a", 1), (None, 10), ("a", 2), ("c", 100)]


@pytest.mark.parametrize("seed", range(4))
def test_keys_begin_once_with_what_they_are_given_in_many_lives(seed: int) -> None:
    rng = random.Random(seed)
    life = Life(lambda: beginning(BEGIN), rng)
    life.commit()  # nothing has come yet: whoever follows begins too
    life.chain.tell_time(1 * MS)
    sums = {"a": 3, None: 10, "c": 100}
    for _ in range(15):
        key, number = rng.choice(["a", "b", "c", None]), rng.randrange(9)
        sums[key] = sums.get(key, 0) + number
        assert found(life.chain.process(batch([(key, number)])).batches) == [(key, sums[key])]
        life.commit()
    life.chain.tell_time(50 * MS)
    fired = found(life.chain.on_time())
    assert sorted(fired) == sorted((f"timer {key}", sums[key]) for key in ("a", "c", None))


def test_keys_begin_without_rows_after_a_while_and_in_their_own_vertex() -> None:
    fired: Rows = []
    for keys in ((0, 1 << 31), (1 << 31, 1 << 32)):
        chain = beginning(BEGIN, keys)
        chain.tell_time(100 * MS)
        due_us = chain.due_us()
        assert due_us is not None
        assert due_us > 100 * MS
        chain.tell_time(due_us)
        fired += found(chain.on_time())
        assert chain.due_us() is None
    assert sorted(fired) == [("timer None", 10), ("timer a", 3), ("timer c", 100)]


def test_what_fails_of_an_initial_state_names_its_key() -> None:
    chain = beginning([("a", 1), ("b", -1)])
    with pytest.raises(FunctionFailed, match=r"key 'b' and the initial state: ValueError: no -1"):
        chain.process(batch([("a", 1)]), on_bad_row="reject")


def test_a_state_that_is_given_up_is_empty_and_of_no_use() -> None:
    class GivingUp(StatefulProcessor):
        def __init__(self, gives_up: bool) -> None:
            self.gives_up = gives_up

        def init(self, handle: Any) -> None:
            self.handle = handle
            self.total = handle.getValueState("total", "n bigint")
            if self.gives_up:
                handle.deleteIfExists("total")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            if key[0] == "late":
                self.handle.deleteIfExists("total")
            if key[0] == "none":
                return iter([])
            (before,) = self.total.get() or (0,)
            self.total.update((before + 1,))
            return iter([])

    chain = processing(GivingUp(False), "none", variable("total"))
    chain.process(batch([("a", 1), ("b", 1)]))
    with pytest.raises(RowError, match=r"gives up 'total' in init\(\)"):
        chain.process(batch([("late", 1)]))
    changes = chain.states["groups0_total"].take_changes()
    assert changes is not None
    assert changes.num_rows == 2
    heir = processing(GivingUp(True), "none", variable("total"))
    heir.states["groups0_total"].apply_changes(changes)
    with pytest.raises(RowError, match=r"Error checking value state exists.*was given up"):
        heir.process(batch([("b", 1)]))
    heir.process(batch([("none", 1)]))
    assert len(heir.states["groups0_total"]) == 0
