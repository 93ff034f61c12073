"""Compiled filters and projections give what Arrow's evaluation gives, row by row."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings

from penstock.errors import RowError
from penstock.expressions.evaluate import evaluate
from penstock.expressions.tree import Expression, call, cast, column, literal
from penstock.expressions.types import Field, Schema, arrow_type, parse_type
from penstock.kernels.block import Block, BlockSpec
from penstock.kernels.cache import KernelCache
from penstock.kernels.support import loosened, numba_supported
from tests.kernels.batches import SEEDED, batches, bits_of, decimals
from tests.thoroughness import IS_DEEP, examples, some

SCHEMA: Schema = tuple(
    Field(name, parse_type(kind))
    for name, kind in (
        ("a", "bigint"), ("b", "bigint"), ("i", "int"), ("j", "int"), ("t", "tinyint"),
        ("u", "tinyint"), ("x", "double"), ("y", "double"), ("f", "float"), ("p", "boolean"),
        ("q", "boolean"), ("d", "decimal(8,2)"), ("e", "decimal(6,3)"), ("z", "timestamp"),
        ("k", "date"), ("s", "string"), ("g", "interval day to second"),
    )
)  # fmt: skip
COLUMNS = {field.name: column(field.name, field.type) for field in SCHEMA}
a, b, i, j, t, u, x, y, f, p, q, d, e, z, k, s, g = COLUMNS.values()


def big(value: int | None) -> Expression:
    return literal(value, "bigint")


def whole(value: int | None) -> Expression:
    return literal(value, "int")


SPARSE = call("lookup", a, table=[(0, 5), (1 << 40, None), (-7, 1 << 50)], value_type="bigint")
DENSE = call("lookup", i, table=[(1, 2.5), (2, -0.0), (3, 7.0)], value_type="double")
HOLES = call("lookup", i, table=[(-1, True), (2, None), (7, False)], value_type="boolean")
EMPTY = call("lookup", i, table=[], value_type="int")

SAFE: list[Expression] = [
    *[call(name, x, y) for name in ("eq", "ne", "lt", "le", "gt", "ge", "eq_null_safe")],
    call("lt", a, b), call("ge", a, b), call("eq_null_safe", a, b), call("ne", p, q),
    call("le", d, literal(decimals("1.00"), "decimal(8,2)")),
    call("eq", f, literal(float("nan"), "float")),
    call("in", i, whole(1), whole(-1), whole(7)),
    call("in", i, whole(1), whole(None)),
    call("in", x, y, literal(float("nan"), "double")),
    call("greatest", a, b, big(3)), call("least", x, y), call("greatest", x, y),
    call("nullif", i, j), call("nullif", x, y), call("coalesce", a, b), call("coalesce", x, y, x),
    call("and", p, q), call("or", p, q), call("not", p), call("and", p, literal(None, "boolean")),
    call("is_null", a), call("is_not_null", x), call("is_nan", x),
    call("if", p, a, b), call("case", p, x, q, y), call("case", p, x, q, y, literal(1.0, "double")),
    call("add", x, y), call("subtract", x, y), call("multiply", x, y), call("negate", x),
    call("add", f, f), call("multiply", f, literal(0.1, "float")), call("abs", x),
    call("add", d, e), call("subtract", d, e), call("multiply", d, e), call("negate", d),
    call("abs", d), call("sqrt", x), call("pmod", i, whole(7)), call("pmod", a, big(10)),
    call("unix_seconds", z), call("unix_millis", z), call("unix_micros", z),
    cast(i, "double"), cast(a, "double"), cast(i, "bigint"), cast(p, "int"), cast(i, "boolean"),
    cast(x, "float"), cast(f, "double"), cast(d, "double"), cast(z, "bigint"), cast(t, "float"),
    SPARSE, DENSE, HOLES, EMPTY, literal(None, "bigint"), literal(5, "smallint"),
    literal(decimals("-1.25"), "decimal(5,2)"), call("add", literal(None, "double"), x), a, d, p, k,
    call("eq", k, literal(0, "date")), call("lt", g, literal(5, "interval day to second")), g,
    call("interval_of_micros", call("coalesce", a, call("interval_micros", g)), to="interval hour"),
]  # fmt: skip

FAILING: dict[str, list[Expression]] = {
    "wide": [call("add", a, b), call("subtract", a, b), call("multiply", a, b)],
    "narrow": [call("add", i, j), call("multiply", i, j), call("subtract", t, u),
               call("multiply", t, u), call("negate", t), call("abs", u)],
    "divide": [call("divide", x, y), call("int_divide", a, b), call("remainder", i, j),
               call("remainder", a, b), call("remainder", x, y), call("int_divide", t, u)],
    "casts": [cast(a, "int"), cast(i, "tinyint"), cast(i, "decimal(6,2)"),
              call("timestamp_millis", a), call("timestamp_seconds", b)],
    "decimals": [cast(d, "decimal(9,3)"), cast(e, "decimal(5,1)"), cast(d, "decimal(6,0)")],
    "lazy": [
        call("if", call("ne", j, whole(0)), call("int_divide", i, j), big(-1)),
        call("and", call("gt", j, whole(0)), call("gt", call("remainder", i, j), whole(1))),
        call("or", p, call("lt", call("add", i, j), whole(5))),
        call("case", q, call("negate", a), call("lt", a, big(0)), call("abs", a)),
        call("coalesce", b, call("multiply", a, a)),
    ],
    "skipped": [call("add", i, call("add", j, j)), call("int_divide", call("add", a, b), b)],
}  # fmt: skip


# Code for columns without nulls is a part of the other: it is compiled in the deep part only.
ANY_BATCH = batches(SCHEMA, null_shares=(0.0, 0.2, 0.8) if IS_DEEP else (0.2, 0.8))


def block_pair(
    outputs: list[Expression], filters: list[Expression], cache: KernelCache
) -> tuple[Block, Block]:
    named = tuple((f"o{index}", expression) for index, expression in enumerate(outputs))
    spec = BlockSpec(SCHEMA, tuple(filters), named, None)
    return Block(spec, cache), Block(spec, None)


def assert_same(compiled: Block, twin: Block, batch: pa.RecordBatch) -> None:
    ours, theirs = (block.run(batch, collect_bad=True) for block in (compiled, twin))
    assert ours.bad_rows == theirs.bad_rows
    assert ours.max_event_time_us == theirs.max_event_time_us
    assert ours.batch.schema == theirs.batch.schema
    for (_, expression), left, right in zip(
        compiled.spec.outputs, ours.batch.columns, theirs.batch.columns, strict=True
    ):
        assert bits_of(left) == bits_of(right), str(expression)
        left.validate(full=True)


@pytest.fixture(scope="module")
def safe_blocks(kernels: KernelCache) -> list[tuple[Block, Block]]:
    """Several blocks: compile time grows faster than the number of expressions."""
    expressions = SAFE if IS_DEEP else SAFE[::3]
    blocks = len(expressions) // 12 + 1
    return [block_pair(expressions[first::blocks], [], kernels) for first in range(blocks)]


@settings(SEEDED, max_examples=examples(60))
@given(batch=ANY_BATCH)
def test_expressions_that_cannot_fail(
    safe_blocks: list[tuple[Block, Block]], batch: pa.RecordBatch
) -> None:
    for compiled, twin in safe_blocks:
        assert_same(compiled, twin, batch)


@pytest.mark.parametrize("name", some(sorted(FAILING), every=3))
@settings(SEEDED, max_examples=examples(25))
@given(batch=ANY_BATCH)
def test_expressions_that_fail_rows(kernels: KernelCache, name: str, batch: pa.RecordBatch) -> None:
    """The same rows fail, compiled or not, and the error of each names row and expression."""
    compiled, twin = block_pair(FAILING[name], [], kernels)
    assert_same(compiled, twin, batch)
    bad = compiled.run(batch, collect_bad=True).bad_rows
    if bad:
        with pytest.raises(RowError) as caught:
            compiled.run(batch)
        assert caught.value.details["row"] == bad[0]
        assert "compiled expression failed" not in caught.value.message


def test_all_cases_are_compiled_ones() -> None:
    every = [*SAFE, *(expression for group in FAILING.values() for expression in group)]
    assert [str(expression) for expression in every if not numba_supported(expression)] == []


@pytest.mark.slow
def test_all_cases_are_compiled_where_there_are_no_nulls(
    safe_blocks: list[tuple[Block, Block]],
) -> None:
    for compiled, _ in safe_blocks:
        compiled.ask_for_kernels()
        assert compiled.is_compiled


FILTERED = {
    "cheap": [call("gt", i, whole(0)), call("and", call("le", x, y), call("is_not_null", a))],
    "failing": [call("gt", call("add", i, j), whole(0)), call("lt", i, whole(9))],
    "arrow": [call("starts_with", s, literal("a", "string")), call("gt", i, whole(0))],
    "turns": [
        call("gt", i, whole(-5)),
        call("gt", cast(s, "int"), whole(-1)),
        call("gt", call("add", i, j), whole(0)),
    ],
    "null": [literal(None, "boolean")],
    "readers": [
        call(
            "or",
            call("and", call("eq", i, whole(1)), call("gt", a, big(0))),
            call("and", call("ne", i, j), call("starts_with", s, literal("a", "string"))),
        )
    ],
}
OUTPUTS = [a, s, d, call("concat", s, s), call("negate", x), call("length", s)]


@pytest.fixture(scope="module")
def filter_blocks(kernels: KernelCache) -> dict[str, tuple[Block, Block]]:
    blocks = {}
    for name, filters in FILTERED.items():
        named = tuple((f"o{index}", expression) for index, expression in enumerate(OUTPUTS))
        spec = BlockSpec(SCHEMA, tuple(filters), named, (z, min(1, len(filters))))
        blocks[name] = (Block(spec, kernels), Block(spec, None))
    return blocks


@pytest.mark.parametrize("name", sorted(FILTERED))
@settings(SEEDED, max_examples=examples(25))
@given(batch=ANY_BATCH)
def test_filters(
    filter_blocks: dict[str, tuple[Block, Block]], name: str, batch: pa.RecordBatch
) -> None:
    assert_same(*filter_blocks[name], batch)


@settings(SEEDED, max_examples=examples(25))
@given(batch=ANY_BATCH)
def test_what_a_loop_drops_before_arrow_looks_would_not_have_passed(
    filter_blocks: dict[str, tuple[Block, Block]], batch: pa.RecordBatch
) -> None:
    (condition,) = FILTERED["readers"]
    passed = batch.filter(evaluate(condition, batch))
    assert filter_blocks["readers"][0].run(batch).batch.column(1).equals(passed.column("s"))


IS_A = call("starts_with", s, literal("a", "string"))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (call("and", p, IS_A), p),
        (call("or", p, IS_A), None),
        (call("or", call("and", p, IS_A), call("and", IS_A, q)), call("or", p, q)),
        (call("and", call("or", p, IS_A), q), q),
        (call("not", call("and", p, IS_A)), None),
        (call("or", p, call("not", q)), call("or", p, call("not", q))),
        (IS_A, None),
    ],
)
def test_what_a_loop_can_say_of_a_condition_of_arrow(
    condition: Expression, expected: Expression | None
) -> None:
    assert loosened(condition) == expected


def test_explain_says_what_computes_each_expression(
    filter_blocks: dict[str, tuple[Block, Block]],
) -> None:
    chosen = dict(filter_blocks["turns"][0].explain())
    assert chosen["(i > -5)"] == "numba"
    assert chosen["(CAST(s AS int) > -1)"] == "arrow"
    assert chosen["length(s)"] == "arrow"


def test_fields_of_structs_are_columns_to_a_loop(kernels: KernelCache) -> None:
    """Also those inside others; where the struct is null they are, and the whole is still there."""
    kind = parse_type("struct<id:bigint,name:string,deep:struct<n:int>>")
    row, (n, m) = column("r", kind), (column(name, "bigint") for name in ("n", "m"))
    ident, name, deep = (call("get_field", row, name=each) for each in ("id", "name", "deep"))
    number = call("get_field", deep, name="n")
    outputs = (("o", call("add", ident, n)), ("t", name), ("d", number), ("w", row))
    filters = (call("gt", ident, literal(1, "bigint")), call("lt", number, whole(9)))
    schema = (Field("r", kind), Field("n", n.type), Field("m", m.type))
    rows = [
        None,
        {"id": 1, "name": "a", "deep": {"n": 1}},
        {"id": 2, "name": None, "deep": {"n": 2}},
        {"id": 3, "name": "c", "deep": None},
        {"id": 2**63 - 1, "name": "d", "deep": {"n": 4}},
        {"id": 5, "name": "e", "deep": {"n": 9}},
        {"id": 6, "name": "f", "deep": {"n": -1}},
    ]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(rows, arrow_type(kind)), pa.array([7] * 7), pa.array(range(7))], ["r", "n", "m"]
    )
    for block in (Block(BlockSpec(schema, filters, outputs), each) for each in (kernels, None)):
        found = block.run(batch, collect_bad=True)
        assert found.batch.to_pydict() == {
            "o": [9, 13], "t": [None, "f"], "d": [2, -1], "w": [rows[2], rows[6]],
        }  # fmt: skip
        assert found.bad_rows == (4,)
        with pytest.raises(RowError, match=r"row 4: .*r\.id"):
            block.run(batch)
        told = dict(block.explain())
        assert told[str(filters[0])] == told[str(filters[1])] == told[str(outputs[0][1])] == "numba"


def test_a_filter_after_a_failing_one_does_not_hide_its_error(kernels: KernelCache) -> None:
    """Filters keep their order where one of them can fail; here the first one does."""
    filters = [call("gt", cast(s, "int"), whole(0)), call("gt", i, whole(0))]
    block = Block(BlockSpec(SCHEMA[2:3] + SCHEMA[15:], tuple(filters), (("i", i),)), kernels)
    batch = pa.RecordBatch.from_pydict(
        {"i": pa.array([-1, 1], pa.int32()), "s": pa.array(["no number", "3"])}
    )
    with pytest.raises(RowError, match="row 0"):
        block.run(batch)
    assert block.run(batch.slice(1)).batch.to_pydict() == {"i": [1]}
