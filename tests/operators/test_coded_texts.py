"""Texts that come coded: the same results as plain ones, without being coded again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.expressions.evaluate import evaluate_with_failures
from penstock.expressions.tree import (
    Expression,
    call,
    cast,
    column,
    columns_of,
    literal,
    try_cast,
)
from penstock.expressions.types import Field, Schema, arrow_schema, parse_type
from penstock.kernels import coding
from penstock.operators.front import coded_columns
from penstock.operators.specs import (
    AggregateCall,
    AggregateSpec,
    FilterSpec,
    GenerateSpec,
    JoinKey,
    OperatorSpec,
    ProjectSpec,
    StaticJoinSpec,
    WatermarkSpec,
    WindowSpec,
)
from tests.expressions.test_functions import expressions
from tests.operators.chains import linear

SECOND_US = 1_000_000
SCHEMA: Schema = tuple(
    Field(name, parse_type(kind))
    for name, kind in (
        ("time", "timestamp"),
        ("user", "string"),
        ("country", "string"),
        ("n", "int"),
    )
)
time, user, country, n = (column(field.name, field.type) for field in SCHEMA)
USERS = [f"user-{number:03d}" for number in range(50)]
COUNTRIES = ["de", "fr", "", "é", "unused"]


def text(value: str) -> Any:
    return literal(value, "string")


def batch_of(rows: int, coded: bool, first_second: int = 0) -> pa.RecordBatch:
    places = np.arange(rows)
    users = pa.DictionaryArray.from_arrays(
        pa.array((places * 7 % 50).astype(np.int32), mask=places % 11 == 0), USERS
    )
    countries = pa.DictionaryArray.from_arrays(pa.array((places % 4).astype(np.int32)), COUNTRIES)
    seconds = first_second + places * 100 // rows
    columns = [
        pa.array(seconds * SECOND_US).cast(pa.timestamp("us", "UTC")),
        users if coded else users.dictionary_decode(),
        countries if coded else countries.dictionary_decode(),
        pa.array((places % 7).astype(np.int32)),
    ]
    if coded:
        return pa.RecordBatch.from_arrays(columns, names=[field.name for field in SCHEMA])
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(SCHEMA))


def aggregate(*keys: Any, mode: str = "append") -> AggregateSpec:
    calls = (
        AggregateCall("count", None, "rows"),
        AggregateCall("count", user, "users"),
        AggregateCall("sum", n, "total"),
    )
    window = WindowSpec(time, 10 * SECOND_US, 10 * SECOND_US)
    named = tuple((f"k{place}", key) for place, key in enumerate(keys))
    return AggregateSpec(named, window, calls, mode, is_watermarked=True)  # type: ignore[arg-type]


TIMED = WatermarkSpec("time", 0)
FAILING = FilterSpec(call("gt", call("int_divide", cast(n, "bigint"), cast(n, "bigint")),
                          literal(0, "bigint")))  # fmt: skip
CHAINS: dict[str, tuple[OperatorSpec, ...]] = {
    "key": (TIMED, aggregate(user)),
    "two keys": (TIMED, aggregate(user, country)),
    "part of a key": (TIMED, aggregate(call("substring", user, literal(2, "int"),
                                            literal(5, "int")))),
    "filter on the key": (FilterSpec(call("lt", user, text("user-020"))), TIMED, aggregate(user)),
    "few are left": (FilterSpec(call("eq", user, text("user-007"))), TIMED, aggregate(user)),
    "none is left": (FilterSpec(call("eq", user, text("nobody"))), TIMED, aggregate(user)),
    "filter on another": (FilterSpec(call("in", country, text("de"), text("é"))), TIMED,
                          aggregate(user)),
    "nulls": (FilterSpec(call("is_null", user)), TIMED, aggregate(user, country)),
    "rows that fail": (FAILING, TIMED, aggregate(user)),
    "rows": (FilterSpec(call("like", country, pattern="d%")),),
    "columns": (ProjectSpec((("upper", call("upper", user)), ("country", country),
                             ("both", call("concat", user, country)))),),
    "pieces": (GenerateSpec(call("split", user, pattern="-"), "piece"),
               FilterSpec(call("ne", country, text("fr")))),
}  # fmt: skip


LOOKED_UP = StaticJoinSpec("static_a", "semi", (JoinKey(user, user),), ())


def timed_by(found: Expression) -> tuple[OperatorSpec, ...]:
    """Counts of each user, without windows, and a watermark by an expression."""
    calls = (AggregateCall("count", None, "rows"),)
    counted = AggregateSpec((("user", user),), None, calls, "update")
    return ProjectSpec((("time", found), ("user", user))), TIMED, counted


def outcome(specs: tuple[OperatorSpec, ...], coded: bool) -> list[Any]:
    """All that comes out of a chain: rows, late ones, and those that failed."""
    chain = linear(specs, SCHEMA, None, want_late=True)
    found: list[Any] = []
    for first_second in (0, 60):
        done = chain.process(batch_of(700, coded, first_second), on_bad_row="reject")
        found += [batch.to_pylist() for batch in done.batches]
        found += [done.late_rows, done.max_event_time_us]
        found += [side and side.to_pylist() for side in (done.late, done.rejected)]
        assert all(b.schema == arrow_schema(chain.output_schema) for b in done.batches)
        for batch in chain.on_watermark((first_second + 90) * SECOND_US):
            found.append(batch.to_pylist())
    return found


@pytest.mark.parametrize("name", CHAINS)
def test_results_are_those_of_plain_texts(name: str) -> None:
    expected = outcome(CHAINS[name], coded=False)
    assert outcome(CHAINS[name], coded=True) == expected
    assert any(expected) or name == "none is left"


@pytest.mark.parametrize("name", ["key", "two keys", "filter on the key", "filter on another"])
def test_a_key_that_comes_coded_is_not_coded_again(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    coded_texts = []

    def distinct(texts: pa.Array, *rest: Any) -> pa.Array:
        coded_texts.append(len(texts))
        return code(texts, *rest)

    code = coding._distinct
    monkeypatch.setattr(coding, "_distinct", distinct)
    outcome(CHAINS[name], coded=True)
    assert not coded_texts
    outcome(CHAINS[name], coded=False)
    assert coded_texts


def test_only_values_that_rows_have_are_interned() -> None:
    chain = linear((TIMED, aggregate(user)), SCHEMA, None)
    some = batch_of(20, coded=True)
    chain.process(some)
    (state,) = chain.states.values()
    assert state.statistics().strings == len(some.column("user").unique().drop_null())


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        (CHAINS["key"], {"user"}),
        (CHAINS["two keys"], {"user", "country"}),
        (CHAINS["part of a key"], {"user"}),
        (CHAINS["filter on another"], {"user", "country"}),
        (CHAINS["rows"], {"country"}),
        (CHAINS["columns"], set()),  # both are read together
        (CHAINS["pieces"], set()),
        ((), set()),
        ((ProjectSpec((("user", user),)),), set()),  # passed through
        ((ProjectSpec((("name", user),)), aggregate(column("name", "string"))), {"user"}),
        ((FilterSpec(call("gt", cast(user, "int"), n)), aggregate(user)), set()),
        ((FilterSpec(call("gt", cast(user, "int"), literal(1, "int"))), aggregate(user)), set()),
        ((FilterSpec(call("and", call("eq", user, text("a")), call("eq", country, text("b")))),),
         {"user", "country"}),
        ((FilterSpec(call("or", call("eq", user, text("a")), call("eq", country, text("b")))),),
         set()),
        ((LOOKED_UP,), {"user"}),
        ((ProjectSpec((("user", call("upper", user)),)), LOOKED_UP), {"user"}),
        ((ProjectSpec((("user", call("concat", user, country)),)), LOOKED_UP), set()),
        (timed_by(cast(user, "timestamp", "UTC")), set()),
        (timed_by(try_cast(user, "timestamp", "UTC")), {"user"}),
    ],
)  # fmt: skip
def test_which_columns_are_worth_codes(specs: tuple[OperatorSpec, ...], expected: set[str]) -> None:
    """A failing expression needs the rows, and one of two columns their pairs."""
    named = aggregate(column("name", "string"))
    if named in specs:
        assert coded_columns(specs[:1], SCHEMA) == frozenset()
        specs = (ProjectSpec((("name", user), ("user", user), ("time", time), ("n", n))), named)
    assert coded_columns(specs, SCHEMA) == expected


def test_expressions_of_one_column_are_the_same_on_its_dictionary() -> None:
    values = ["a,b", "", " x ", "Éé", "user-1", "ß\0x", "12", "nobody has it"]
    places = np.arange(40)
    codes = pa.array((places % 7).astype(np.int32), mask=places % 5 == 0)
    texts = pa.DictionaryArray.from_arrays(codes, values)
    looked_at = 0
    for tree in expressions():
        names = {found.name for found in columns_of(tree)}
        if len(names) != 1 or any(found.type.kind != "string" for found in columns_of(tree)):
            continue
        looked_at += 1
        found, expected = (
            evaluate_with_failures([tree], pa.record_batch([column_], list(names)))
            for column_ in (texts, texts.dictionary_decode())
        )
        assert found[0][0].equals(expected[0][0]), str(tree)
        assert (found[1].bad == expected[1].bad).all()
    assert looked_at > 30
