"""Tables and joins with them, beside plain Python: what comes and goes, through restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ExpressionError, RowError
from penstock.expressions.tree import call, column, literal
from penstock.expressions.types import Field, Schema, arrow_schema, arrow_type, parse_type
from penstock.kernels.cache import KernelCache
from penstock.operators.chain import Chain
from penstock.operators.shown import same_values
from penstock.operators.specs import (
    WEIGHT_COLUMN,
    WEIGHT_FIELD,
    GenerateSpec,
    JoinKey,
    JoinMatch,
    JoinSpec,
    TableSpec,
)
from tests.operators.chains import linear
from tests.operators.lives import Life, Row
from tests.thoroughness import some

USERS: Schema = (
    Field("user", parse_type("string")),
    Field("city", parse_type("string")),
    Field("tags", parse_type("array<int>")),
    Field("gone", parse_type("boolean")),
)
user = column("user", "string")
Tuple = tuple[Any, ...]


NESTED = {
    "struct<a:bigint,b:string>": [{"a": 1, "b": "x"}, {"a": 1, "b": None}, {"a": None, "b": None}],
    "array<double>": [[0.0], [-0.0], [float("nan")], [], [None], [0.0, 1.0], [1.0, 0.0]],
    "array<array<string>>": [[["a"], []], [["a"]], [[], ["a"]], [None], [["a"], None]],
    "map<string,int>": [[("a", 1)], [("a", None)], [("b", 1)], [("a", 1), ("b", 2)], []],
    "array<struct<d:decimal(20,2),t:timestamp>>": [[], [{"d": 1, "t": 5}], [{"d": 2, "t": 5}]],
}


@pytest.mark.parametrize("kind", NESTED)
def test_nested_values_are_the_same_where_they_look_the_same(kind: str) -> None:
    rng, arrow = Random(kind), arrow_type(parse_type(kind))
    left, right = (pa.array(rng.choices([*NESTED[kind], None], k=200), arrow) for _ in range(2))
    left, right = left.slice(7), right.slice(7)
    pairs = list(zip(left.to_pylist(), right.to_pylist(), strict=True))
    expected = [repr(one) == repr(other) for one, other in pairs]
    assert same_values(left, right).tolist() == expected
    assert any(expected)
    assert not all(expected)


def users(rows: Iterable[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=arrow_schema(USERS))


def shown(row: Row) -> str:
    return repr(sorted(row.items()))


def random_user(random: Random) -> Row:
    return {
        "user": random.choice(["ann", "bo", "cy", None, "dée"]),
        "city": random.choice(["x", "y", None]),
        "tags": random.choice([None, [], [1, None]]),
        "gone": random.choice([True, False, False, None]),
    }


@pytest.mark.parametrize("seed", some(range(5), every=3))
@pytest.mark.parametrize("changes", [True, False])
def test_the_newest_row_of_each_key(kernels: KernelCache, seed: int, changes: bool) -> None:
    random = Random(seed)
    spec = TableSpec((user,), column("gone", "boolean"), changes)
    life = Life(lambda: linear((spec,), USERS, kernels), random)
    now: dict[Any, Row] = {}
    for _ in range(40):
        batch = [random_user(random) for _ in range(random.randint(0, 5))]
        emitted = life.chain.process(users(batch)).batches
        found = Counter(shown(row) for each in emitted for row in each.to_pylist())
        last = {row["user"]: row for row in batch}
        expected: Counter[str] = Counter()
        for key, row in last.items():
            if changes and key in now:
                expected[shown({**now[key], WEIGHT_COLUMN: -1})] += 1
            now.pop(key, None)
            if not row["gone"]:
                now[key] = row
                expected[shown({**row, WEIGHT_COLUMN: 1} if changes else row)] += 1
        assert found == expected
        assert life.commit() == []
        (table,) = life.chain.states.values()
        kept = Counter(shown(row) for row in table.scan().to_pylist())
        assert kept == Counter(map(shown, now.values()))


# --- joins ----------------------------------------------------------------------------------------

LEFT_ROWS: Schema = (Field("k", parse_type("string")), Field("a", parse_type("int")))
RIGHT_ROWS: Schema = (Field("j", parse_type("string")), Field("b", parse_type("int")))
MATCH = JoinMatch(
    (JoinKey(column("k", "string"), column("j", "string")),),
    call("ge", column("b", "int"), column("a", "int")),
)
HOWS = ("inner", "left", "right", "full", "semi", "anti")


def batch_of(schema: Schema, rows: Iterable[Tuple]) -> pa.RecordBatch:
    arrow = arrow_schema(schema)
    found = [dict(zip(arrow.names, row, strict=True)) for row in rows]
    return pa.RecordBatch.from_pylist(found, schema=arrow)


def matches(left: Tuple, right: Tuple) -> bool:
    if None in (left[0], right[0], left[1], right[1]):
        return False
    return bool(left[0] == right[0] and right[1] >= left[1])


def joined(
    how: str,
    lefts: list[Tuple],
    rights: list[Tuple],
    matches: Callable[[Tuple, Tuple], bool] = matches,
) -> Counter[Tuple]:
    """The join, written down."""
    pairs = [(left, right) for left in lefts for right in rights if matches(left, right)]
    lone = [left for left in lefts if not any(matches(left, right) for right in rights)]
    alone = [right for right in rights if not any(matches(left, right) for left in lefts)]
    if how in ("semi", "anti"):
        return Counter(lone if how == "anti" else [left for left in lefts if left not in lone])
    found = Counter((*left, *right) for left, right in pairs)
    if how in ("left", "full"):
        found.update((*left, None, None) for left in lone)
    if how in ("right", "full"):
        found.update((None, None, *right) for right in alone)
    return found


def random_row(random: Random) -> Tuple:
    return (random.choice(["u", "v", None]), random.choice([0, 1, 2, None]))


@pytest.mark.parametrize("seed", some(range(4), every=3))
@pytest.mark.parametrize("how", HOWS)
def test_two_tables_follow_each_other(kernels: KernelCache, how: str, seed: int) -> None:
    random = Random(seed)
    spec = JoinSpec(how, MATCH, tables=(True, True), changes=True)
    schemas = [(*LEFT_ROWS, WEIGHT_FIELD), (*RIGHT_ROWS, WEIGHT_FIELD)]

    def make() -> Chain:
        return Chain([(schema, ()) for schema in schemas], (spec,), kernels)

    life = Life(make, random)
    sides: list[list[Tuple]] = [[], []]
    result: Counter[Tuple] = Counter()
    for _ in range(40):
        port = random.randrange(2)
        batch: list[Tuple] = []
        for _ in range(random.randint(0, 5)):
            rows = sides[port]
            if rows and random.random() < 0.45:
                batch.append((*rows.pop(random.randrange(len(rows))), -1))
            else:
                rows.append(random_row(random))
                batch.append((*rows[-1], 1))
        for emitted in life.chain.process(batch_of(schemas[port], batch), port=port).batches:
            for *row, weight in (tuple(each.values()) for each in emitted.to_pylist()):
                result[tuple(row)] += weight
                assert result[tuple(row)] >= 0, "no row goes that has not come"
        assert +result == joined(how, *sides)
        life.commit()


# Zero as `a` fails beside any `b` that is not null.
DIVIDED = JoinMatch(
    MATCH.keys,
    call("ge", call("int_divide", column("b", "int"), column("a", "int")), literal(1, "bigint")),
)


def fails(left: Tuple, right: Tuple) -> bool:
    return left[0] is not None and left[0] == right[0] and left[1] == 0 and right[1] is not None


@pytest.mark.parametrize("seed", some(range(6), every=6))
@pytest.mark.parametrize("how", HOWS)
def test_a_pair_that_fails_costs_the_row_that_came_later(
    kernels: KernelCache, how: str, seed: int
) -> None:
    """It is rejected once, when it comes; that it goes says nothing more, whoever is there then."""
    random = Random(seed)
    spec = JoinSpec(how, DIVIDED, tables=(True, True), changes=True)
    schemas = [(*LEFT_ROWS, WEIGHT_FIELD), (*RIGHT_ROWS, WEIGHT_FIELD)]
    life = Life(lambda: Chain([(schema, ()) for schema in schemas], (spec,), kernels), random)
    given: list[list[Tuple]] = [[], []]
    kept: list[list[Tuple]] = [[], []]
    result: Counter[Tuple] = Counter()
    rejected = 0
    for _ in range(60):
        port = random.randrange(2)
        batch: list[Tuple] = []
        expected: list[Tuple] = []
        for _ in range(random.randint(0, 6)):
            rows = given[port]
            if rows and random.random() < 0.45:
                row = rows.pop(random.randrange(len(rows)))
                batch.append((*row, -1))
                if row in kept[port]:
                    kept[port].remove(row)
                continue
            row = random_row(random)
            rows.append(row)
            batch.append((*row, 1))
            pairs = [(row, other) if port == 0 else (other, row) for other in kept[1 - port]]
            (expected if any(fails(*pair) for pair in pairs) else kept[port]).append(row)
        output = life.chain.process(batch_of(schemas[port], batch), None, "reject", port)
        found = [] if output.rejected is None else output.rejected.to_pylist()
        assert [tuple(row.values())[:2] for row in found] == expected
        assert all("by zero" in row["error"] for row in found)
        rejected += len(found)
        for emitted in output.batches:
            for *values, weight in (tuple(each.values()) for each in emitted.to_pylist()):
                result[tuple(values)] += weight
                assert result[tuple(values)] >= 0, "no row goes that has not come"
        assert +result == joined(how, *kept, matches=divides)
        life.commit()
    assert rejected > 2


def divides(left: Tuple, right: Tuple) -> bool:
    return matches(left, right) and int(right[1] / left[1]) >= 1


def test_a_pair_that_fails_stops_the_chain_as_it_was(kernels: KernelCache) -> None:
    spec = JoinSpec("inner", DIVIDED, tables=(True, True), changes=True)
    schemas = [(*LEFT_ROWS, WEIGHT_FIELD), (*RIGHT_ROWS, WEIGHT_FIELD)]
    chain = Chain([(schema, ()) for schema in schemas], (spec,), kernels)
    chain.process(batch_of(schemas[0], [("u", 1, 1)]), port=0)
    chain.process(batch_of(schemas[1], [("u", 5, 1)]), port=1)
    turned = batch_of(schemas[0], [("u", 1, -1), ("v", 0, 1), ("u", 0, 1)])
    with pytest.raises(RowError, match="by zero") as raised:
        chain.process(turned, port=0)
    assert raised.value.details["row"] == 2  # of the batch, whatever comes and goes before it
    (pair,) = chain.process(batch_of(schemas[1], [("u", 7, 1)]), port=1).batches
    assert pair.to_pylist() == [{"k": "u", "a": 1, "j": "u", "b": 7, WEIGHT_COLUMN: 1}]


@pytest.mark.parametrize("seed", some(range(3), every=3))
@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_a_stream_meets_the_rows_of_the_moment(kernels: KernelCache, how: str, seed: int) -> None:
    random = Random(seed)
    spec = JoinSpec(how, MATCH, tables=(False, True))
    schemas = [LEFT_ROWS, (*RIGHT_ROWS, WEIGHT_FIELD)]

    def make() -> Chain:
        return Chain([(schema, ()) for schema in schemas], (spec,), kernels)

    life = Life(make, random)
    table: list[Tuple] = []
    for _ in range(40):
        if random.random() < 0.5:
            change = [(*random_row(random), 1)]
            if table and random.random() < 0.5:
                change.insert(0, (*table.pop(random.randrange(len(table))), -1))
            table.append(change[-1][:-1])
            assert life.chain.process(batch_of(schemas[1], change), port=1).batches == ()
        else:
            rows = [random_row(random) for _ in range(random.randint(1, 3))]
            emitted = life.chain.process(batch_of(schemas[0], rows), port=0).batches
            found = Counter(tuple(row.values()) for each in emitted for row in each.to_pylist())
            assert found == joined(how, rows, table)
        life.commit()


def test_a_table_on_the_left_of_a_stream(kernels: KernelCache) -> None:
    spec = JoinSpec("right", MATCH, tables=(True, False))
    chain = Chain([((*LEFT_ROWS, WEIGHT_FIELD), ()), (RIGHT_ROWS, ())], (spec,), kernels)
    chain.process(batch_of((*LEFT_ROWS, WEIGHT_FIELD), [("u", 1, 1)]), port=0)
    (pairs, lone) = chain.process(batch_of(RIGHT_ROWS, [("u", 5), ("u", 0)]), port=1).batches
    assert [tuple(row.values()) for row in pairs.to_pylist()] == [("u", 1, "u", 5)]
    assert [tuple(row.values()) for row in lone.to_pylist()] == [(None, None, "u", 0)]


def test_what_leaves_the_query_is_what_comes(kernels: KernelCache) -> None:
    spec = JoinSpec("left", MATCH, tables=(True, True))
    schemas = [(*LEFT_ROWS, WEIGHT_FIELD), (*RIGHT_ROWS, WEIGHT_FIELD)]
    chain = Chain([(schema, ()) for schema in schemas], (spec,), kernels)
    (lone,) = chain.process(batch_of(schemas[0], [("u", 1, 1)]), port=0).batches
    assert lone.to_pylist() == [{"k": "u", "a": 1, "j": None, "b": None}]
    (pair,) = chain.process(batch_of(schemas[1], [("u", 2, 1)]), port=1).batches
    assert pair.to_pylist() == [{"k": "u", "a": 1, "j": "u", "b": 2}]
    (lone,) = chain.process(batch_of(schemas[1], [("u", 2, -1)]), port=1).batches
    assert lone.to_pylist() == [{"k": "u", "a": 1, "j": None, "b": None}]


@pytest.mark.parametrize(
    ("how", "tables"),
    [
        ("full", (False, True)),
        ("anti", (True, False)),
        ("left", (True, False)),
        ("right", (False, True)),
    ],
)
def test_a_table_does_not_wait_for_a_stream(how: str, tables: tuple[bool, bool]) -> None:
    with pytest.raises(ExpressionError, match="of a table with a stream"):
        JoinSpec(how, MATCH, tables=tables)


def test_a_table_needs_keys_that_compare() -> None:
    tags = column("tags", "array<int>")
    with pytest.raises(ExpressionError, match="a table by tags of type array<int>"):
        TableSpec((tags,)).output_schema(USERS)
    with pytest.raises(ExpressionError, match="what removes a row is a boolean, city is string"):
        TableSpec((user,), column("city", "string")).output_schema(USERS)


def test_a_table_behind_an_explode_keeps_all_columns(kernels: KernelCache) -> None:
    explode = GenerateSpec(column("tags", "array<int>"), "tag")
    chain = linear((explode, TableSpec((column("tag", "int"),))), USERS, kernels)
    (shown,) = chain.process(batch_of(USERS, [("u", "Bern", [1, 2], False)])).batches
    common = {"user": "u", "city": "Bern", "tags": [1, 2], "gone": False}
    assert shown.to_pylist() == [common | {"tag": 1}, common | {"tag": 2}]
