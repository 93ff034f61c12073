"""A chain whose operator takes two ports, each with steps of its own in front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from penstock.expressions.tree import call, column, literal
from penstock.expressions.types import BIGINT, TIMESTAMP, Field, Schema, arrow_schema
from penstock.operators import chain as chain_module
from penstock.operators.chain import Chain
from penstock.operators.contract import Batches, Operator, Prepared
from penstock.operators.specs import DeduplicateSpec, FilterSpec, ProjectSpec, WatermarkSpec
from penstock.state.contract import State

LEFT: Schema = (Field("n", BIGINT),)
RIGHT: Schema = (Field("m", BIGINT), Field("at", BIGINT))
BOTH: Schema = (Field("m", BIGINT), Field("before", BIGINT))
n, m = column("n", "bigint"), column("m", "bigint")


@dataclass(frozen=True, slots=True)
class RunningSumSpec(DeduplicateSpec):
    """Of each row of the right the sum of what the left had by then; a toy."""

    ports: ClassVar[int] = 2

    def output_schema(self, *schemas: Schema) -> Schema:
        assert [[field.name for field in schema] for schema in schemas] == [["n"], ["m"]]
        return BOTH


class RunningSum(Operator):
    """Sums what comes on port 0, and shows it on what comes on port 1."""

    states: Mapping[str, State] = {}

    def __init__(self, *parts: Any) -> None:
        self.total = 0
        self.marks: list[tuple[int, tuple[int, ...]]] = []

    def prepare(self, port: int, batch: pa.RecordBatch, *rest: Any) -> Prepared:
        return Prepared(batch)

    def process(self, port: int, prepared: Prepared) -> Batches:
        if port == 0:
            self.total += sum(prepared.rows.column("n").to_pylist())
            return ()
        shown = pa.array([self.total] * prepared.rows.num_rows)
        columns = [prepared.rows.column("m"), shown]
        return (pa.RecordBatch.from_arrays(columns, schema=arrow_schema(BOTH)),)

    def on_watermark(self, watermark_us: int, of_ports_us: Sequence[int]) -> Batches:
        self.marks.append((watermark_us, tuple(of_ports_us)))
        return ()

    def progress(self) -> int:
        return self.total

    def restore_progress(self, progress: Any) -> None:
        self.total = progress


def rows(schema: Schema, *columns: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(c) for c in columns], schema=arrow_schema(schema))


@pytest.fixture
def chain(monkeypatch: pytest.MonkeyPatch) -> Chain:
    known = {**chain_module.OPERATORS, RunningSumSpec: RunningSum}
    monkeypatch.setattr(chain_module, "OPERATORS", known)
    left = (FilterSpec(call("gt", n, literal(0, "bigint"))),)
    right = (ProjectSpec((("m", m),)),)
    doubled = ProjectSpec((("m", call("multiply", m, literal(2, "bigint"))),
                           ("before", column("before", "bigint"))))  # fmt: skip
    return Chain([(LEFT, left), (RIGHT, right)], (RunningSumSpec(()), doubled), None)


def test_rows_of_both_ports_meet_in_the_order_in_which_they_come(chain: Chain) -> None:
    assert chain.process(rows(LEFT, [1, -5, 2]), port=0).batches == ()
    (first,) = chain.process(rows(RIGHT, [10, 11], [0, 0]), port=1).batches
    assert first.to_pydict() == {"m": [20, 22], "before": [3, 3]}
    chain.process(rows(LEFT, [4]), port=0)
    (second,) = chain.process(rows(RIGHT, [12], [0]), port=1).batches
    assert second.to_pydict() == {"m": [24], "before": [7]}
    assert [field.name for field in chain.output_schema] == ["m", "before"]
    assert (chain.statistics().rows_in, chain.statistics().rows_out) == (7, 3)


def test_an_operator_hears_the_time_of_each_port(chain: Chain) -> None:
    chain.on_watermark(5, (5, 9))
    (operator,) = chain._operators
    assert isinstance(operator, RunningSum)
    assert operator.marks == [(5, (5, 9))]


def test_progress_is_that_of_each_operator(chain: Chain) -> None:
    chain.process(rows(LEFT, [1, 2]), port=0)
    assert chain.progress() == (3,)
    chain.restore_progress((40,))
    (found,) = chain.process(rows(RIGHT, [1], [0]), port=1).batches
    assert found.to_pydict() == {"m": [2], "before": [40]}


def test_rows_that_fail_are_rejected_with_the_columns_of_their_port(chain: Chain) -> None:
    broken = ProjectSpec((("m", call("int_divide", literal(1, "bigint"), m)),))
    ports = [(LEFT, ()), (RIGHT, (broken,))]
    made = Chain(ports, (RunningSumSpec(()),), None)
    done = made.process(rows(RIGHT, [0, 1], [7, 8]), on_bad_row="reject", port=1)
    assert done.rejected is not None
    assert done.rejected.column_names == ["m", "at", "error"]
    assert done.rejected.column("at").to_pylist() == [7]
    assert done.batches[0].to_pydict() == {"m": [1], "before": [0]}


def test_each_port_may_define_its_own_watermark(chain: Chain) -> None:
    timed: Schema = (*LEFT, Field("ts", TIMESTAMP))
    port = (WatermarkSpec("ts", 5), ProjectSpec((("n", n),)))
    made = Chain([(timed, port), (RIGHT, (ProjectSpec((("m", m),)),))], (RunningSumSpec(()),), None)
    assert made.delays_us == (5, None)
