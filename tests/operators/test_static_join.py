"""The join with a static side against loops over all pairs, and what a row that fails does."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ExpressionError, RowError, StaticSideTooLarge
from penstock.expressions.tree import Expression, call, column, literal
from penstock.expressions.types import Schema, arrow_schema
from penstock.json_codec import canonical_json, parse
from penstock.operators import static_join
from penstock.operators.specs import (
    STATIC_HOWS,
    FilterSpec,
    JoinKey,
    StaticJoinSpec,
    spec_from_json,
)
from penstock.operators.static_join import StaticJoin
from penstock.operators.static_rows import StaticRows
from penstock.testing.plans import parse_schema
from tests.operators.chains import linear

Row = dict[str, Any]

ROWS = parse_schema("id bigint, k bigint, t string, d double")
K = column("k", "bigint")
STATIC = parse_schema("k bigint, t string, d double, n int")
_VALUES: dict[str, tuple[Any, ...]] = {
    "k": (None, 0, 1, 2, -1, 7959390222997580908),  # the last one is the word of null
    "t": (None, "", "a", "aa", "é"),
    "d": (None, 0.0, -0.0, math.nan, 1.5),
    "n": (None, 1, 2, 3),
}


def batch(schema: Schema, rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, arrow_schema(schema))


def drawn(rng: random.Random, schema: Schema, count: int) -> list[Row]:
    names = [field.name for field in schema if field.name != "id"]
    rows = [{name: rng.choice(_VALUES[name]) for name in names} for _ in range(count)]
    if schema is ROWS:
        return [{"id": number, **row} for number, row in enumerate(rows)]
    return rows


def key(name: str, kind: str, null_safe: bool = False) -> JoinKey:
    return JoinKey(column(name, kind), column(name, kind), null_safe)


def spec(
    kind: str, *keys: JoinKey, condition: Expression | None = None, side: str = "static_a"
) -> StaticJoinSpec:
    added = tuple((f"s_{f.name}", column(f.name, str(f.type))) for f in STATIC)
    return StaticJoinSpec(
        side, kind, keys, added, condition, "found" if kind == "existence" else None
    )


def joined(
    spec: StaticJoinSpec, rows: list[Row], static: list[Row], collect_bad: bool = False
) -> Any:
    join = StaticJoin(spec, ROWS, {f.name for f in spec.output_schema(ROWS)})
    join.use(StaticRows(1, batch(STATIC, static)))
    return join.run(batch(ROWS, rows), collect_bad)


def _same(one: Any, other: Any) -> bool:
    return one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


def by_hand(
    spec: StaticJoinSpec, rows: list[Row], static: list[Row], holds: Callable[[Row, Row], bool]
) -> list[Row]:
    """What the join means, row by row."""
    found = []
    for row in rows:
        met = []
        for other in static:
            pairs = [(row[k.left.name], other[k.right.name], k.null_safe) for k in spec.keys]  # type: ignore[attr-defined]
            if all(
                (a is None and b is None) if (a is None or b is None) and safe
                else a is not None and b is not None and _same(a, b)
                for a, b, safe in pairs
            ) and holds(row, other):  # fmt: skip
                met.append({f"s_{name}": value for name, value in other.items()})
        if spec.how == "existence":
            found.append({**row, "found": bool(met)})
        elif spec.how in ("semi", "anti"):
            found += [row] if bool(met) == (spec.how == "semi") else []
        else:
            if not met and spec.how == "left":
                met = [dict.fromkeys((f"s_{f.name}" for f in STATIC), None)]
            found += [{**row, **other} for other in met]
    return found


KEYS = {
    "a number": (key("k", "bigint"),),
    "a text": (key("t", "string"),),
    "a double": (key("d", "double"),),
    "nulls alike": (key("t", "string", True), key("k", "bigint", True)),
    "all of them": (key("k", "bigint"), key("t", "string"), key("d", "double", True)),
    "none": (),
}


@pytest.mark.parametrize("pairs_max", [3, static_join.PAIRS_MAX])
@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("kind", STATIC_HOWS)
def test_a_join_gives_what_a_loop_over_all_pairs_gives(
    monkeypatch: pytest.MonkeyPatch, kind: str, keys: str, conditional: bool, pairs_max: int
) -> None:
    monkeypatch.setattr(static_join, "PAIRS_MAX", pairs_max)
    rng = random.Random(f"{kind} {keys} {conditional}")
    condition = call("gt", column("s_n", "int"), literal(1, "int")) if conditional else None
    tested = spec(kind, *KEYS[keys], condition=condition)
    for count in (0, 1, 13):
        rows, static = drawn(rng, ROWS, 40), drawn(rng, STATIC, count)
        made = joined(tested, rows, static)
        wanted = by_hand(
            tested,
            rows,
            static,
            lambda _, s: not conditional or (s["n"] is not None and s["n"] > 1),
        )
        assert repr(made.batch.to_pylist()) == repr(wanted)
        assert [made.origin(at) for at in range(len(wanted))] == [row["id"] for row in wanted]


@pytest.mark.parametrize("texts", [["a"], ["a", "é", None], ["", "a", "aa", "é"], ["a", "a", "é"]])
@pytest.mark.parametrize("kind", STATIC_HOWS)
def test_rows_find_by_codes_what_they_find_by_texts(kind: str, texts: list[str | None]) -> None:
    """Where each text has one static row only the distinct texts are looked up; in a chain too."""
    tested = spec(kind, key("t", "string"))
    static = [{"k": at, "t": text, "d": 0.5, "n": at} for at, text in enumerate(texts)]
    rng = random.Random(kind)
    for count in (0, 2, 40):  # of two rows more texts are known than they have
        rows = drawn(rng, ROWS, count)
        plain = batch(ROWS, rows)
        known = pa.array(["zz", *(each for each in _VALUES["t"] if each is not None)])
        codes = [None if row["t"] is None else known.to_pylist().index(row["t"]) for row in rows]
        codes_of = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), known)
        coded = plain.set_column(2, "t", codes_of)
        kept = FilterSpec(call("ge", column("id", "bigint"), literal(1, "bigint")))
        wanted = by_hand(tested, rows, static, lambda *_: True)
        for given in (plain, coded, coded):
            join = StaticJoin(tested, ROWS, {f.name for f in tested.output_schema(ROWS)})
            join.use(StaticRows(1, batch(STATIC, static)))
            made = join.run(given, collect_bad=False)
            assert repr(made.batch.to_pylist()) == repr(wanted)
            assert made.batch.schema == arrow_schema(tested.output_schema(ROWS))
            assert [made.origin(at) for at in range(len(wanted))] == [row["id"] for row in wanted]
            chain = linear([kept, tested], ROWS, None)
            chain.use_static("static_a", StaticRows(1, batch(STATIC, static)))
            out = [row for each in chain.process(given).batches for row in each.to_pylist()]
            assert repr(out) == repr([row for row in wanted if row["id"] >= 1])


@pytest.mark.parametrize("kind", STATIC_HOWS)
def test_a_spec_comes_back_from_its_text(kind: str) -> None:
    condition = call("gt", column("s_n", "int"), literal(1, "int"))
    tested = spec(kind, *KEYS["all of them"], condition=condition)
    assert spec_from_json(parse(canonical_json(tested.to_json()))) == tested


@pytest.mark.parametrize("kind", STATIC_HOWS)
def test_rows_that_fail_are_named_and_the_others_go_on(kind: str) -> None:
    one = literal(1, "int")
    failing = call("ge", call("remainder", one, column("s_n", "int")), literal(0, "int"))
    tested = spec(kind, key("k", "bigint"), condition=failing)
    rows = [{"id": i, "k": k, "t": "", "d": 0.0} for i, k in enumerate((1, 2, 3))]
    static = [{"k": k, "t": "", "d": 0.0, "n": n} for k, n in ((1, 1), (2, 1), (2, 0))]
    with pytest.raises(RowError, match="row 1"):
        joined(tested, rows, static)
    made = joined(tested, rows, static, collect_bad=True)
    assert made.bad_rows == (1,)
    assert {row["id"] for row in made.batch.to_pylist()} <= {0, 2}
    assert [made.origin(at) for at in range(made.batch.num_rows)] == [
        row["id"] for row in made.batch.to_pylist()
    ]


def test_a_join_that_gives_too_many_rows_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_join, "ROWS_OUT_MAX", 100)
    rows, static = drawn(random.Random(1), ROWS, 11), drawn(random.Random(2), STATIC, 10)
    with pytest.raises(StaticSideTooLarge, match="join on more keys"):
        joined(spec("inner"), rows, static)
    assert joined(spec("semi"), rows, static).batch.num_rows == 11


def test_a_chain_joins_with_the_version_it_was_given() -> None:
    chain = linear([spec("inner", key("k", "bigint"))], ROWS, None)
    rows = batch(ROWS, [{"id": 1, "k": 1, "t": "", "d": 0.0}])
    assert chain.process(rows).batches == ()
    for number in (1, 2):
        static = [{"k": 1, "t": f"version {number}", "d": 0.0, "n": number}]
        chain.use_static("static_a", StaticRows(number, batch(STATIC, static)))
        chain.use_static("static_b", StaticRows(9, batch(STATIC, [])))
        (out,) = chain.process(rows).batches
        assert out.column("s_n").to_pylist() == [number]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: spec("full"), "no static join"),
        (lambda: spec("inner", JoinKey(K, literal(1, "bigint"))), "not a column"),
        (lambda: spec("inner", JoinKey(K, column("n", "int"))), "looked up"),
        (lambda: spec("inner", condition=column("s_n", "int")), "needs a boolean"),
        (
            lambda: StaticJoinSpec("static_a", "inner", (), (("k", column("k", "bigint")),)),
            "distinct names",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(wrong: Callable[[], StaticJoinSpec], message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        wrong().output_schema(ROWS)
