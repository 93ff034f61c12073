"""Python functions in a chain: which rows fail and what is said of them, and what they may do."""

from __future__ import annotations

import os
import sys
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StringType, StructType

from penstock.errors import (
    ExpressionError,
    FunctionFailed,
    ProgramIncompatible,
    RecordTooLarge,
    RowError,
)
from penstock.expressions.tree import Column, call, literal
from penstock.expressions.types import BIGINT, STRING, Field
from penstock.json_codec import canonical_json, parse
from penstock.operators.python_functions import MAP_ARROW, TABLE, PythonCode, PythonFunctions
from penstock.operators.specs import (
    FilterSpec,
    OperatorSpec,
    ProjectSpec,
    PythonCall,
    PythonColumn,
    PythonRowsSpec,
    PythonSpec,
    spec_from_json,
)
from penstock.runtime.outputs import check_rows
from tests.operators.chains import linear
from tests.operators.python_code import ARROW, NUMBER, PANDAS, PICKLED, ROW_BY_ROW, code

SCHEMA = (Field("n", BIGINT), Field("text", STRING))
N = Column("n", BIGINT, True)
CALL = PythonCall((N,), "f(n)", "f")
SPEC = PythonSpec((PythonColumn(Field("y", BIGINT), CALL),))
MAP = PythonRowsSpec(CALL, (Field("y", BIGINT),), repeats=False)
TABLES = PythonRowsSpec(CALL, (Field("y", BIGINT),), repeats=True)
COUNT = 11
ROWS = pa.record_batch({"n": list(range(COUNT)), "text": [f"row {n}" for n in range(COUNT)]})


def chain(*specs: OperatorSpec, f: PythonCode | None = None, **others: Any) -> Any:
    python = None if f is None else PythonFunctions({"f": f})
    return linear(specs or (SPEC,), SCHEMA, None, python=python, **others)


def numbers(output: Any, name: str = "y") -> list[Any]:
    return [value for batch in output.batches for value in batch.column(name).to_pylist()]


def fails_for(*bad: int) -> dict[int, Callable[..., Any]]:
    """A function that fails for some numbers, as every kind of function."""

    def one(n: int) -> int:
        if n in bad:
            raise ValueError(f"no {n}")
        return n * 2

    def series(n: pd.Series) -> pd.Series:
        return n.map(one)

    def array(n: pa.Array) -> pa.Array:
        return pa.array([one(each) for each in n.to_pylist()])

    return {PICKLED: one, ROW_BY_ROW: one, PANDAS: series, ARROW: array}


@pytest.mark.parametrize("kind", [PICKLED, ROW_BY_ROW, PANDAS, ARROW])
def test_only_rows_that_fail_are_rejected(kind: int) -> None:
    made = chain(f=code(fails_for(0, 3, 4, 10)[kind], kind))
    output = made.process(ROWS, on_bad_row="reject")
    assert output.rejected.column("n").to_pylist() == [0, 3, 4, 10]
    errors = output.rejected.column("error").to_pylist()
    assert [f"ValueError: no {n} in Python function f(n)" in error for n, error in
            zip([0, 3, 4, 10], errors, strict=True)] == [True] * 4  # fmt: skip
    assert "in one\n    raise ValueError" in errors[0]
    assert "pyspark" not in errors[0]
    assert numbers(output) == [n * 2 for n in range(COUNT) if n not in (0, 3, 4, 10)]


def test_a_function_of_rows_is_called_once_for_each_whatever_fails() -> None:
    """A chain too: what the first one raises for does not reach the second."""
    calls = {"rows": 0}

    def first(n: int) -> int:
        calls["rows"] += 1
        if calls["rows"] % 3 == 1:
            raise ValueError(f"no {n}")
        return n

    def second(n: int) -> int:
        if n == 7:
            raise TypeError("never seven")
        return n

    for kind in (PICKLED, ROW_BY_ROW):
        parts = [code(function, kind) for function in (first, second)]
        chained = replace(parts[0], commands=tuple(part.commands[0] for part in parts))
        columns = PythonFunctions({"f": chained}).of(CALL)
        values, failures = columns.column(ROWS.select(["n"]), pa.int64(), first_only=False)
        found = {n: failure.reason for n, failure in failures.items()}
        assert found == {n: f"ValueError: no {n}" for n in (0, 3, 6, 9)} | {
            7: "TypeError: never seven"
        }
        assert values.to_pylist() == [None, 1, 2, None, 4, 5, None, None, 8, None, 10]


def test_a_stop_iteration_is_an_error_of_its_row() -> None:
    """PySpark says so: as itself it would end the loop over the rows, and they would be lost."""

    def stops(n: int) -> int:
        if n in (2, 7):
            raise StopIteration(f"at {n}")
        return n

    output = chain(f=code(stops)).process(ROWS, on_bad_row="reject")
    assert numbers(output) == [0, 1, 3, 4, 5, 6, 8, 9, 10]
    assert output.rejected.column("n").to_pylist() == [2, 7]
    errors = output.rejected.column("error").to_pylist()
    assert ["STOP_ITERATION_OCCURRED" in error for error in errors] == [True, True]
    assert "at 7" in errors[1]


def test_a_vectorised_function_that_fails_for_many_rows_ends_the_query() -> None:
    rows = pa.record_batch({"n": list(range(3_000)), "text": ["x"] * 3_000})
    bad = fails_for(*range(1_500))
    with pytest.raises(FunctionFailed, match=r"more than 1,000 of 3,000 rows, .*make it a udf"):
        chain(f=code(bad[ARROW], ARROW)).process(rows, on_bad_row="reject")
    udf = chain(f=code(bad[ROW_BY_ROW], ROW_BY_ROW))
    assert udf.process(rows, on_bad_row="reject").rejected.num_rows == 1_500


@pytest.mark.parametrize("kind", [PICKLED, ROW_BY_ROW, PANDAS, ARROW])
def test_the_first_row_that_fails_ends_the_query(kind: int) -> None:
    keeps = FilterSpec(call("ne", N, literal(1, BIGINT)))
    made = chain(keeps, SPEC, f=code(fails_for(6, 8)[kind], kind))
    with pytest.raises(RowError, match=r"ValueError: no 6 in Python function f\(n\)") as caught:
        made.process(ROWS)
    assert caught.value.details["row"] == 5  # of what the filter let through
    assert "raise ValueError" in caught.value.details["traceback"]


def test_a_batch_is_cut_as_the_session_says_and_computed_once() -> None:
    calls = {"rows": 0}

    def seen(n: pd.Series) -> pd.Series:
        calls["rows"] += len(n)
        return n * 0 + 100 * calls["rows"] + len(n)

    made = chain(f=code(seen, PANDAS))
    assert numbers(made.process(ROWS)) == [404] * 4 + [804] * 4 + [1103] * 3


def test_rows_that_are_made_up_reach_no_function() -> None:
    def never(n: Any) -> Any:
        raise AssertionError("it was called")

    for specs in ((SPEC,), (TABLES,), (MAP,)):
        made = chain(*specs, f=code(never, PICKLED), is_rehearsal=True)
        made.process(ROWS)
    assert numbers(chain(f=code(never), is_rehearsal=True).process(ROWS)) == [None] * COUNT


def test_without_code_nothing_runs() -> None:
    with pytest.raises(ExpressionError, match="there is no code here"):
        chain().process(ROWS)
    other = PythonFunctions({"g": code(lambda n: n)})
    with pytest.raises(ProgramIncompatible, match="planned by another driver") as caught:
        linear((SPEC,), SCHEMA, None, python=other).process(ROWS)
    assert caught.value.details["digest"] == "f"


# --- bad functions --------------------------------------------------------------------------------


def test_a_missing_module_is_named_with_its_function() -> None:
    pickled = cloudpickle.dumps((os.path.basename, NUMBER)).replace(b"posixpath", b"nosuchmod")
    missing = code(lambda n: n)
    broken = PythonCode(**{**_facts(missing), "commands": (pickled,), "name": "price"})
    with pytest.raises(FunctionFailed, match=r"price needs module nosuchmod, .*addPyFile"):
        PythonFunctions({"f": broken}).load()


def test_a_module_that_is_missing_inside_fails_no_row() -> None:
    def late(n: int) -> int:
        import nosuchmodule  # type: ignore[import-not-found]  # noqa: PLC0415

        return int(nosuchmodule.f(n))

    for kind in (PICKLED, ROW_BY_ROW):
        with pytest.raises(FunctionFailed, match="late needs module nosuchmodule"):
            chain(f=code(late, kind)).process(ROWS, on_bad_row="reject")


def test_sys_exit_is_an_error_of_its_row() -> None:
    def leaves(n: int) -> int:
        if n == 2:
            sys.exit(3)
        return n

    for kind in (PICKLED, ROW_BY_ROW):
        with pytest.raises(RowError, match=r"the function called sys.exit\(3\)") as caught:
            chain(f=code(leaves, kind)).process(ROWS)
        assert caught.value.details["row"] == 2


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (KeyboardInterrupt("now"), "KeyboardInterrupt: now"),
        (CancelledError(), "CancelledError: "),
        (GeneratorExit(), "GeneratorExit: "),
        (Speechless(), r"Speechless: \(its text cannot be made: ValueError\)"),
    ],
)
def test_whatever_a_function_raises_is_an_error_of_its_row(
    raised: BaseException, told: str
) -> None:
    """Also what is no Exception, by which the slot would end, and the next one, and so on."""

    def one(n: int) -> int:
        if n == 2:
            raise raised
        return n

    def series(n: pd.Series) -> pd.Series:
        return n.map(one)

    for function, kind in ((one, PICKLED), (one, ROW_BY_ROW), (series, PANDAS)):
        with pytest.raises(RowError, match=told) as caught:
            chain(f=code(function, kind)).process(ROWS)
        assert caught.value.details["row"] == 2


def test_a_function_that_forks_comes_back_once() -> None:
    def forks(n: int) -> int:
        if n == 3 and os.fork() == 0:
            return -1  # the copy returns into the slot's own code
        return n

    assert numbers(chain(f=code(forks)).process(ROWS)) == list(range(COUNT))
    assert os.waitpid(-1, 0)[1] == 256  # it ended by itself, with 1


def test_a_result_of_another_length_is_an_error() -> None:
    short = code(lambda n: n[:1] if len(n) > 1 else pd.Series([1, 2]), PANDAS)
    with pytest.raises(RowError, match="RESULT_ROWS_MISMATCH"):
        chain(f=short).process(ROWS)
    # Of single rows it gives what it should: no row is to blame, and their values are not it.
    first = code(lambda n: n[:1], PANDAS)
    for on_bad_row in ("reject", "stop"):
        with pytest.raises(FunctionFailed, match="does not give a value for each of"):
            chain(f=first).process(ROWS, on_bad_row=on_bad_row)


def test_a_result_of_another_type_is_what_spark_makes_of_it() -> None:
    texts = code(lambda n: "7" if n else None, PICKLED)
    assert numbers(chain(f=texts).process(ROWS)) == [None] * COUNT  # as in Spark
    with pytest.raises(RowError, match="row 1: "):
        chain(f=code(lambda n: "x" if n == 1 else 1, ROW_BY_ROW)).process(ROWS)


def test_a_function_that_changes_its_input_changes_no_row() -> None:
    def changes(n: pd.Series) -> pd.Series:
        n.to_numpy()[:] = 0
        return n

    output = chain(f=code(changes, PANDAS)).process(ROWS)
    assert numbers(output) == [0] * COUNT
    assert numbers(output, "n") == list(range(COUNT))


def test_a_function_that_prints_a_lot_gives_its_results(capfd: pytest.CaptureFixture[str]) -> None:
    def talks(n: int) -> int:
        print("x" * 100_000)
        return n

    assert numbers(chain(f=code(talks)).process(ROWS)) == list(range(COUNT))
    assert len(capfd.readouterr().out) > COUNT * 100_000


# --- rows of rows ---------------------------------------------------------------------------------


class Down:
    """Each number below n that is even."""

    def eval(self, n: int) -> Iterator[tuple[int]]:
        if n == 9:
            raise ValueError("no 9")
        for each in range(n):
            if each % 2 == 0:
                yield (each,)


ELEMENT = StructType().add("y", NUMBER)


@pytest.mark.parametrize("kind", [TABLE, 301])
def test_a_table_function_gives_rows_beside_each_row(kind: int) -> None:
    made = chain(TABLES, f=code(Down, kind, ELEMENT))
    output = made.process(ROWS, on_bad_row="reject")
    found = [(row["n"], row["y"]) for b in output.batches for row in b.to_pylist()]
    assert found == [
        (n, each) for n in range(COUNT) if n != 9 for each in range(n) if each % 2 == 0
    ]
    assert output.rejected.column("n").to_pylist() == [9]
    assert "no 9" in output.rejected.column("error")[0].as_py()
    with pytest.raises(RowError, match="no 9") as caught:
        made.process(ROWS)
    assert caught.value.details["row"] == 9


class Counted:
    """Gives nothing before its end; a new one is made for each batch."""

    def __init__(self) -> None:
        self._seen = 0

    def eval(self, n: int) -> None:
        self._seen += 1

    def terminate(self) -> Iterator[tuple[int]]:
        yield (self._seen,)


@pytest.mark.parametrize("kind", [TABLE, 301])
def test_what_a_table_function_gives_at_its_end_is_the_last_rows(kind: int) -> None:
    made = chain(TABLES, f=code(Counted, kind, ELEMENT))
    for rows in (ROWS, ROWS.slice(0, 3)):
        (batch,) = made.process(rows).batches
        assert batch.select(["n", "y"]).to_pylist() == [
            {"n": rows.num_rows - 1, "y": rows.num_rows}
        ]


def test_a_batch_that_fails_though_no_row_does_is_computed_in_parts() -> None:
    def small(n: pd.Series) -> pd.Series:
        if len(n) > 2:
            raise MemoryError("too many")
        return n

    assert numbers(chain(f=code(small, PANDAS)).process(ROWS)) == list(range(COUNT))


def test_a_row_behind_a_table_function_is_that_of_its_input() -> None:
    quotient = call("int_divide", literal(12, BIGINT), Column("y", BIGINT, True))
    made = chain(TABLES, ProjectSpec((("n", N), ("z", quotient))), f=code(Down, 301, ELEMENT))
    rows = ROWS.slice(0, 9)
    output = made.process(rows, on_bad_row="reject")
    assert output.rejected.column("n").to_pylist() == list(range(1, 9))  # each has a zero


def test_a_function_that_gives_far_more_than_it_got_gives_all_of_it() -> None:
    """A million rows for one, and rows of which one alone is more than a log takes."""

    def many(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"y": pa.array(np.arange(1_000_000))})
            yield batch.rename_columns(["y"])

    made = chain(MAP, f=code(many, MAP_ARROW, ELEMENT)).process(ROWS.slice(7, 1))
    assert sum(batch.num_rows for batch in made.batches) == 1_000_001
    assert numbers(made)[-2:] == [999_999, 7]
    text = PythonSpec((PythonColumn(Field("y", STRING), CALL),))
    long = code(lambda n: "x" * (70_000_000 if n == 2 else 30_000_000), PICKLED, StringType())
    (rows,) = chain(text, f=long).process(ROWS.slice(0, 3)).batches
    check_rows(rows.slice(0, 2))  # a unit for each
    with pytest.raises(RecordTooLarge, match=r"a row of 70,000,0.* keep such values outside"):
        check_rows(rows)


def test_a_function_of_batches_fails_as_a_whole() -> None:
    def some(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if 9 in batch.column(0).to_pylist():
                raise ValueError("no 9")
            yield batch.filter(pc.greater(batch.column(0), 2))

    made = chain(MAP, f=code(some, MAP_ARROW, ELEMENT))
    assert numbers(made.process(ROWS.slice(0, 8))) == [3, 4, 5, 6, 7]
    with pytest.raises(FunctionFailed, match="fails for a batch of 11 rows: ValueError: no 9"):
        made.process(ROWS, on_bad_row="reject")


def test_what_a_function_of_batches_gives_must_be_what_is_declared() -> None:
    def texts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"y": batch.column(0).cast(pa.string())})

    with pytest.raises(FunctionFailed, match="y is declared as bigint, and string was returned"):
        chain(MAP, f=code(texts, MAP_ARROW, ELEMENT)).process(ROWS)


def test_a_row_that_fails_behind_a_function_of_batches_cannot_be_told_apart() -> None:
    quotient = call("int_divide", literal(12, BIGINT), Column("y", BIGINT, True))
    same = code(lambda batches: batches, MAP_ARROW, ELEMENT)
    made = chain(MAP, ProjectSpec((("z", quotient),)), f=same)
    with pytest.raises(FunctionFailed, match="nobody knows of which input"):
        made.process(ROWS, on_bad_row="reject")


@pytest.mark.parametrize("spec", [SPEC, MAP, TABLES])
def test_a_spec_is_the_same_after_json(spec: OperatorSpec) -> None:
    assert spec_from_json(parse(canonical_json(spec))) == spec


def _facts(made: PythonCode) -> dict[str, Any]:
    return {name: getattr(made, name) for name in PythonCode.__slots__}
