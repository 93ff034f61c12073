"""Evaluation as a caller sees it: errors with their row, dead-lettering, wrong schemas."""

from __future__ import annotations

import pickle
from decimal import Decimal

import pyarrow as pa
import pytest

from penstock.errors import ExpressionError, RowError
from penstock.expressions.evaluate import evaluate, evaluate_rows
from penstock.expressions.tree import Expression, call, cast, column, literal, may_fail

A, B, S = column("a", "int"), column("b", "int"), column("s", "string")
BATCH = pa.record_batch(
    {
        "a": pa.array([1, 2, 3, None], pa.int32()),
        "b": pa.array([1, 0, 0, 0], pa.int32()),
        "s": pa.array(["1", "2", "x", "y"]),
    }
)


def test_an_error_names_the_row_the_reason_and_the_expression() -> None:
    with pytest.raises(RowError, match="row 1: division by zero") as caught:
        evaluate(call("int_divide", A, B), BATCH)
    assert caught.value.details["row"] == 1
    assert caught.value.details["expression"] == "(a div b)"
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.details == caught.value.details


def test_rows_of_a_slice_count_from_the_slice() -> None:
    with pytest.raises(RowError) as caught:
        evaluate(call("int_divide", A, B), BATCH.slice(2))
    assert caught.value.details["row"] == 0


def test_bad_rows_are_found_in_one_pass_and_the_others_are_final() -> None:
    trees: list[Expression] = [call("int_divide", A, B), cast(S, "int"), A]
    arrays, bad, first = evaluate_rows(trees, BATCH)
    assert bad.tolist() == [False, True, True, True]
    assert first is not None
    assert first.details["row"] == 1
    good = pa.array(~bad)
    kept, none_bad, no_error = evaluate_rows(trees, BATCH.filter(good))
    assert not none_bad.any()
    assert no_error is None
    assert [array.filter(good).to_pylist() for array in arrays] == [k.to_pylist() for k in kept]


def test_the_first_error_is_the_lowest_row_of_all_expressions() -> None:
    _, _, first = evaluate_rows([cast(S, "int"), call("int_divide", A, B)], BATCH)
    assert first is not None
    assert first.details["row"] == 1


def test_errors_inside_a_branch_carry_the_row_of_the_batch() -> None:
    guarded = call("if", call("eq", A, literal(3, "int")), cast(S, "int"), literal(0, "int"))
    _, bad, first = evaluate_rows([guarded], BATCH)
    assert bad.tolist() == [False, False, True, False]
    assert first is not None
    assert first.details["row"] == 2


def test_an_empty_batch_gives_empty_arrays() -> None:
    empty = BATCH.slice(0, 0)
    for tree in (call("int_divide", A, B), cast(S, "int"), call("split", S, pattern=",")):
        assert len(evaluate(tree, empty)) == 0


def test_a_missing_column_is_named() -> None:
    with pytest.raises(ExpressionError, match="'z' is not in the batch"):
        evaluate(column("z", "int"), BATCH)


def test_a_column_that_appears_twice_is_refused() -> None:
    twice = pa.RecordBatch.from_arrays([BATCH.column(0), BATCH.column(0)], names=["a", "a"])
    with pytest.raises(ExpressionError, match="twice"):
        evaluate(A, twice)


def test_a_column_of_another_type_is_refused() -> None:
    with pytest.raises(ExpressionError, match="int32 in the batch, the plan says int64"):
        evaluate(column("a", "bigint"), BATCH)


def test_timestamps_of_another_zone_are_the_same_instants() -> None:
    micros = pa.array([0], pa.timestamp("us", "Asia/Kolkata"))
    batch = pa.record_batch({"t": micros})
    hour = call("hour", column("t", "timestamp"), time_zone="UTC")
    assert evaluate(hour, batch).to_pylist() == [0]


def test_what_may_fail_is_known_beforehand() -> None:
    assert may_fail(call("add", A, B))
    assert may_fail(call("coalesce", call("floor", column("d", "double")), literal(1, "bigint")))
    assert not may_fail(call("upper", S))
    assert not may_fail(call("try_cast", S, to="int"))


def test_bytes_that_are_not_text_fail_their_row() -> None:
    batch = pa.record_batch({"x": pa.array([b"ok", b"\xff", None], pa.binary())})
    _, bad, _ = evaluate_rows([cast(column("x", "binary"), "string")], batch)
    assert bad.tolist() == [False, True, False]


def test_a_bare_time_of_day_fails_because_replay_could_not_repeat_it() -> None:
    batch = pa.record_batch({"s": pa.array(["10:11:12", "T10:11"])})
    _, bad, _ = evaluate_rows([cast(S, "timestamp", time_zone="UTC")], batch)
    assert bad.all()


def test_padding_without_bound_fails_its_row() -> None:
    wide = call("lpad", S, literal(2_000_000_000, "int"), literal("x", "string"))
    _, bad, _ = evaluate_rows([wide], BATCH)
    assert bad.all()


def test_concat_ws_keeps_rows_where_everything_is_null() -> None:
    """Arrow's own join leaves such rows out when it skips nulls."""
    batch = pa.record_batch(
        {
            "s": pa.array([None, "a", None], pa.string()),
            "u": pa.array([None, None, "b"], pa.string()),
        }
    )
    joined = evaluate(call("concat_ws", S, column("u", "string"), separator="-"), batch)
    assert joined.to_pylist() == ["", "a", "b"]


def test_nested_columns_pass_through_and_open() -> None:
    point = column("p", "struct<x:int,y:array<string>>")
    batch = pa.record_batch({"p": [{"x": 1, "y": ["a", "b"]}, None, {"x": None, "y": []}]})
    batch = batch.cast(
        pa.schema([("p", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))]))])
    )
    for rows in (batch, batch.slice(1)):
        y = call("get_field", point, name="y")
        assert (
            evaluate(call("get_field", point, name="x"), rows).to_pylist()
            == [1, None, None][-rows.num_rows :]
        )
        assert evaluate(call("size", y), rows).to_pylist() == [2, None, 0][-rows.num_rows :]


@pytest.mark.parametrize("scale", [0, 10])
def test_a_decimal_that_is_the_least_of_64_bits_has_a_magnitude(scale: int) -> None:
    """-2**63 as a scaled integer: its opposite has 65 bits."""
    least = Decimal(-(2**63)).scaleb(-scale)
    kind = f"decimal(30,{scale})"
    batch = pa.record_batch({"x": pa.array([least, None, Decimal(1)], pa.decimal128(30, scale))})
    x = column("x", kind)
    for tree, wanted in (
        (cast(x, "string"), f"{least:f}"),
        (call("abs", x), -least),
        (call("negate", x), -least),
        (cast(x, "double"), float(least)),
        (call("round", x, scale=0), Decimal(f"{least:.0f}")),
    ):
        assert evaluate(tree, batch).to_pylist()[0] == wanted, str(tree)


def test_a_try_division_by_zero_asks_for_no_dividend() -> None:
    """Spark looks at the divisor first, so what fails in the dividend does not matter."""
    batch = pa.record_batch({"x": pa.array([0, 0, 2, 0]), "y": pa.array([0, 1, 3, None])})
    failing = call("int_divide", literal(6, "bigint"), column("x", "bigint"))
    tree = call("null_on_error", call("int_divide", failing, column("y", "bigint")))
    values, bad, _ = evaluate_rows([tree], batch)
    assert bad.tolist() == [False, True, False, False]
    assert values[0].to_pylist()[2] == 1
    assert values[0].to_pylist()[0] is values[0].to_pylist()[3] is None


def test_a_constant_array_has_no_rows_where_there_are_none() -> None:
    kept = evaluate(literal([1, 2], "array<int>"), pa.record_batch({"n": pa.array([], pa.int32())}))
    assert kept.to_pylist() == []
    assert kept.type == pa.list_(pa.int32())
