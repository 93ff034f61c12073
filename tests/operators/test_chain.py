"""Chains as a vertex runs them: stateless steps, explode, aggregates, bad rows, several stages."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ExpressionError, RowError, StateOverflow
from penstock.expressions.tree import Expression, call, cast, column, literal
from penstock.expressions.types import Field, Schema, arrow_schema, parse_type
from penstock.json_codec import canonical_json, parse
from penstock.kernels.cache import KernelCache
from penstock.operators import reduction
from penstock.operators.chain import Chain
from penstock.operators.specs import (
    AggregateCall,
    AggregateSpec,
    FilterSpec,
    GenerateSpec,
    OperatorSpec,
    PartialAggregateSpec,
    ProjectSpec,
    WatermarkSpec,
    WindowSpec,
    chain_schema,
    spec_from_json,
)
from tests.operators.chains import linear


def fields(*pairs: tuple[str, str]) -> Schema:
    return tuple(Field(name, parse_type(kind)) for name, kind in pairs)


TEXT = fields(("line", "string"), ("n", "int"))
line, n = column("line", "string"), column("n", "int")
z = column("z", "timestamp")
words = call("split", line, pattern=" ")
word = column("word", "string")
WORD_COUNT: tuple[OperatorSpec, ...] = (
    ProjectSpec((("words", words),)),
    GenerateSpec(column("words", parse_type("array<string>")), "word"),
    FilterSpec(call("ne", word, literal("", "string"))),
    AggregateSpec((("word", word),), None, (AggregateCall("count", None, "n"),), "update"),
)


def text_batch(lines: list[str | None], numbers: list[int | None] | None = None) -> pa.RecordBatch:
    numbers = list(range(len(lines))) if numbers is None else numbers
    return pa.RecordBatch.from_arrays(
        [pa.array(lines, pa.string()), pa.array(numbers, pa.int32())], schema=arrow_schema(TEXT)
    )


def commit(chain: Chain) -> list[dict[str, Any]]:
    rows = [row for batch in chain.on_commit() for row in batch.to_pylist()]
    for state in chain.states.values():
        state.take_changes()
    return rows


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_word_count(kernels: KernelCache, mode: str) -> None:
    last = WORD_COUNT[-1]
    assert isinstance(last, AggregateSpec)
    counting = AggregateSpec(last.keys, None, last.aggregates, mode)
    chain = linear((*WORD_COUNT[:-1], counting), TEXT, kernels)
    assert commit(chain) == []
    random = Random(3)
    total: Counter[str] = Counter()
    for _ in range(20):
        lines = [" ".join(random.choices(["a", "b", "cc", "", "é"], k=4)) for _ in range(5)]
        seen = Counter(w for text in lines for w in text.split(" ") if w)
        total += seen
        assert chain.process(text_batch([*lines, None])).batches == ()
        shown = total if mode == "complete" else {w: total[w] for w in seen}
        expected = [{"word": w, "n": shown[w]} for w in sorted(shown, key=str.encode)]
        assert commit(chain) == expected
    assert commit(chain) == []


def test_stateless_chain_is_one_pass_and_keeps_order(kernels: KernelCache) -> None:
    specs: tuple[OperatorSpec, ...] = (
        FilterSpec(call("gt", n, literal(1, "int"))),
        ProjectSpec((("m", call("add", n, literal(1, "int"))), ("line", line))),
        FilterSpec(call("lt", column("m", "int"), literal(6, "int"))),
        ProjectSpec((("up", call("upper", line)), ("m", column("m", "int")))),
    )
    chain = linear(specs, TEXT, kernels)
    (batch,) = chain.process(text_batch(["a", "b", "c", "d", "e", "f"])).batches
    assert batch.schema == arrow_schema(chain.output_schema)
    assert batch.to_pydict() == {"up": ["C", "D", "E"], "m": [3, 4, 5]}
    assert chain.process(text_batch(["a"])).batches == ()
    assert dict(chain.explain())["upper(line)"] == "arrow"
    assert dict(chain.explain())["(n > 1)"] == "numba"
    assert chain.statistics().rows_out == 3


def test_a_chain_asks_for_all_its_kernels_before_it_has_a_batch(tmp_path: Path) -> None:
    asked: list[str] = []

    class Asked(KernelCache):
        def get(self, source: str) -> None:
            asked.append(source)

    more = AggregateCall("sum", column("m", "int"), "total")
    specs: tuple[OperatorSpec, ...] = (
        FilterSpec(call("gt", n, literal(1, "int"))),
        ProjectSpec((("m", call("add", n, literal(1, "int"))), ("words", words))),
        GenerateSpec(column("words", parse_type("array<string>")), "word"),
        AggregateSpec((("word", word),), None, (more,), "update"),
    )
    chain = linear(specs, TEXT, Asked(tmp_path))
    assert asked == []
    chain.ask_for_kernels()
    before = {*asked}
    asked.clear()
    chain.process(text_batch(["a b", "c"], [2, 3]))
    assert before == {*asked}
    assert len(before) == 3, "the filter, what is added, and the sum"


@pytest.mark.parametrize("outer", [False, True])
def test_explode(kernels: KernelCache, outer: bool) -> None:
    schema = fields(("k", "int"), ("items", "array<int>"))
    items = column("items", schema[1].type)
    chain = linear((GenerateSpec(items, "item", outer, "at"),), schema, kernels)
    lists = [[1, None], [], None, [3], [4, 5, 6]]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(range(5), pa.int32()), pa.array(lists, pa.list_(pa.int32()))],
        schema=arrow_schema(schema),
    )
    for first in (0, 1, 3):
        (output,) = chain.process(batch.slice(first)).batches
        expected = []
        for key, values in list(enumerate(lists))[first:]:
            for at, item in enumerate(values or []):
                expected.append((key, at, item))
            if outer and not values:
                expected.append((key, None, None))
        found = zip(*[output.column(name).to_pylist() for name in ("k", "at", "item")], strict=True)
        assert list(found) == expected


# --- bad rows -------------------------------------------------------------------------------------

RATIO = call("int_divide", literal(100, "int"), n)


def test_a_bad_row_raises_and_changes_nothing(kernels: KernelCache) -> None:
    total = AggregateCall("sum", RATIO, "total")
    chain = linear((AggregateSpec((), None, (total,), "update"),), TEXT, kernels)
    with pytest.raises(RowError, match="row 1: division by zero") as caught:
        chain.process(text_batch(["a", "b", "c"], [5, 0, 10]))
    assert caught.value.details["row"] == 1
    assert commit(chain) == []
    chain.process(text_batch(["a", "b"], [5, 10]))
    assert commit(chain) == [{"total": 30}]


def test_pieces_are_grouped_as_the_texts_that_they_are(kernels: KernelCache) -> None:
    """Split and coded in one, or split first: filters, late rows and bad rows see the same."""
    padded = call("lpad", line, n, literal(" ", "string"))  # more than a million are refused
    split = call("split", padded, pattern=" ")
    key = call("concat", word, literal("!", "string"))
    behind: tuple[OperatorSpec, ...] = (
        FilterSpec(call("ne", word, literal("b", "string"))),
        AggregateSpec(
            (("word", word), ("n", n), ("key", key)),
            None,
            (AggregateCall("count", word, "words"), AggregateCall("max", n, "most")),
            "update",
        ),
    )
    in_one = (GenerateSpec(split, "word", outer=True), *behind)
    first = (
        ProjectSpec((("line", line), ("n", n), ("words", split))),
        GenerateSpec(column("words", parse_type("array<string>")), "word", outer=True),
        *behind,
    )
    lines = ["a b", None, "", "c  a", "refused", "b"]
    batch = text_batch(lines, [3, 3, 2, 9, 2_000_000_000, None])
    found = []
    for specs in (in_one, first):
        chain = linear(specs, TEXT, kernels)
        output = chain.process(batch, on_bad_row="reject")
        assert output.rejected is not None
        assert output.rejected.column("line").to_pylist() == ["refused"]
        assert "row 4: a text longer" in output.rejected.column("error")[0].as_py()
        found.append(sorted(commit(chain), key=str))
    assert found[0] == found[1]
    assert {row["word"] for row in found[0]} == {"a", "", "c"}


def test_each_rejected_row_has_the_error_that_it_has_alone(kernels: KernelCache) -> None:
    number, half = cast(line, "int"), call("int_divide", cast(n, "bigint"), literal(2, "bigint"))
    second = call("timestamp_seconds", call("multiply", half, literal(1 << 40, "bigint")))
    specs = (
        FilterSpec(call("gt", number, literal(0, "int"))),
        ProjectSpec((("line", line), ("share", call("int_divide", number, n)), ("at", second))),
        PartialAggregateSpec(
            (("line", line),),
            WindowSpec(column("at", "timestamp"), 10_000_000, 10_000_000),
            (AggregateCall("sum", column("share", "bigint"), "s"),),
        ),
    )
    batch = text_batch(
        ["1", "x", "-1", "2", "y", None, "3", "4"], [1, 0, 0, 0, 5, 5, 2_000_000_000, 16_777_215]
    )

    def errors(rows: pa.RecordBatch) -> list[str]:
        rejected = linear(specs, TEXT, kernels).process(rows, on_bad_row="reject").rejected
        return [] if rejected is None else rejected.column("error").to_pylist()

    alone = [(row, errors(batch.slice(row, 1))) for row in range(batch.num_rows)]
    wanted = [text.replace("row 0:", f"row {row}:") for row, texts in alone for text in texts]
    assert errors(batch) == wanted
    reasons = ("cast", "division by zero", "overflow")
    assert all(any(reason in text for text in wanted) for reason in reasons), wanted


def test_rejected_rows_are_not_processed_and_the_others_are_once(kernels: KernelCache) -> None:
    """Errors in a filter, behind an explode and in an aggregate: each row is in or out, once."""
    negated = AggregateCall("sum", call("negate", column("v", "int")), "s")
    specs: tuple[OperatorSpec, ...] = (
        FilterSpec(call("lt", call("int_divide", literal(12, "int"), n), literal(7, "bigint"))),
        ProjectSpec((("words", words), ("n", n))),
        GenerateSpec(column("words", parse_type("array<string>")), "word"),
        ProjectSpec((("v", cast(word, "int")), ("n", n))),
        AggregateSpec((("n", n),), None, (negated,), "update"),
    )
    chain = linear(specs, TEXT, kernels)
    lines = ["1 2", "3 x", "4", "-2147483648 9", "7 8", None, "5"]
    numbers: list[int | None] = [2, 2, 0, 3, 3, 2, 1]
    output = chain.process(text_batch(lines, numbers), on_bad_row="reject")
    assert output.rejected is not None
    rejected = output.rejected.to_pydict()
    assert rejected["line"] == ["3 x", "4", "-2147483648 9"]
    assert rejected["n"] == [2, 0, 3]
    assert "CAST(word AS int)" in rejected["error"][0] or "CAST" in rejected["error"][0]
    assert "division by zero" in rejected["error"][1]
    assert "overflow" in rejected["error"][2]
    assert commit(chain) == [{"n": 2, "s": -3}, {"n": 3, "s": -15}]
    assert chain.statistics().rows_rejected == 3
    again = chain.process(text_batch(["6"], [2]), on_bad_row="reject")
    assert again.rejected is None


@pytest.mark.parametrize("compiled", [True, False])
def test_a_row_that_fails_in_one_column_is_missing_in_all(
    kernels: KernelCache, compiled: bool
) -> None:
    """Beside what a loop computes, Arrow computes other columns of the same rows."""
    shares = (("share", call("int_divide", literal(12, "int"), n)), ("low", call("lower", line)))
    chain = linear((ProjectSpec(shares),), TEXT, kernels if compiled else None)
    rows = text_batch(["A", "B", "C", None], [0, 3, 0, 4])
    output = chain.process(rows, on_bad_row="reject")
    (kept,) = output.batches
    assert kept.to_pydict() == {"share": [4, 3], "low": ["b", None]}
    assert output.rejected is not None
    assert output.rejected.column("line").to_pylist() == ["A", "C"]


def test_a_sum_that_overflows_is_not_a_bad_row(kernels: KernelCache) -> None:
    schema = fields(("v", "bigint"))
    total = AggregateCall("sum", column("v", "bigint"), "total")
    chain = linear((AggregateSpec((), None, (total,), "update"),), schema, kernels)
    big = pa.RecordBatch.from_pydict({"v": pa.array([1 << 62, 1 << 62], pa.int64())})
    with pytest.raises(StateOverflow):
        chain.process(big, on_bad_row="reject")
    chain.process(big.slice(1))
    with pytest.raises(StateOverflow):
        chain.process(big.slice(1))
    assert commit(chain) == [{"total": 1 << 62}], "the row that overflowed is not in"


# --- aggregates -----------------------------------------------------------------------------------

NUMBERS = fields(
    ("t", "tinyint"), ("b", "bigint"), ("d", "decimal(8,2)"), ("x", "double"), ("p", "boolean"),
    ("z", "timestamp"), ("day", "date"),
)  # fmt: skip


def test_types_and_values_of_aggregates(kernels: KernelCache) -> None:
    columns = {field.name: column(field.name, field.type) for field in NUMBERS}
    calls = [AggregateCall("count", None, "rows")]
    for name, argument in columns.items():
        for function in ("count", "min", "max"):
            calls.append(AggregateCall(function, argument, f"{function}_{name}"))
        if argument.type.is_numeric:
            calls.append(AggregateCall("sum", argument, f"sum_{name}"))
            calls.append(AggregateCall("avg", argument, f"avg_{name}"))
    chain = linear((AggregateSpec((), None, tuple(calls), "complete"),), NUMBERS, kernels)
    kinds = {field.name: str(field.type) for field in chain.output_schema}
    assert [kinds[name] for name in ("sum_t", "sum_d", "sum_x", "avg_b", "avg_d", "max_day")] == [
        "bigint", "decimal(18,2)", "double", "double", "decimal(12,6)", "date",
    ]  # fmt: skip
    most = (1 << 63) - 1
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([-128, 127, None], pa.int8()),
            pa.array([most, -most, 1], pa.int64()),
            pa.array([Decimal("0.01"), Decimal("0.01"), Decimal("-0.03")], pa.decimal128(8, 2)),
            pa.array([1.5, float("nan"), None], pa.float64()),
            pa.array([True, None, False], pa.bool_()),
            pa.array([5, -5, None], pa.int64()).cast(pa.timestamp("us", "UTC")),
            pa.array([9, None, 3], pa.int32()).cast(pa.date32()),
        ],
        schema=arrow_schema(NUMBERS),
    )
    chain.process(batch)
    (row,) = commit(chain)
    assert (row["rows"], row["count_t"], row["count_b"]) == (3, 2, 3)
    assert (row["sum_t"], row["avg_t"], row["min_t"], row["max_t"]) == (-1, -0.5, -128, 127)
    assert (row["sum_b"], row["min_b"], row["max_b"]) == (1, -most, most)
    assert row["avg_b"] == 1 / 3
    assert (row["sum_d"], row["avg_d"]) == (Decimal("-0.01"), Decimal("-0.003333"))
    assert (row["min_x"], str(row["max_x"]), str(row["sum_x"])) == (1.5, "nan", "nan")
    assert (row["min_p"], row["max_p"]) == (False, True)
    assert (row["min_z"].microsecond, row["max_z"].microsecond) == (999995, 5)
    assert (row["min_day"].day, row["max_day"].day) == (4, 10)


def test_averages_of_large_bigints_do_not_overflow(kernels: KernelCache) -> None:
    schema = fields(("v", "bigint"))
    mean = AggregateCall("avg", column("v", "bigint"), "mean")
    chain = linear((AggregateSpec((), None, (mean,), "update"),), schema, kernels)
    most = (1 << 63) - 1
    for _ in range(4):
        chain.process(pa.RecordBatch.from_pydict({"v": pa.array([most] * 5, pa.int64())}))
    assert commit(chain) == [{"mean": float(most)}]


def test_all_null_groups_and_null_keys(kernels: KernelCache) -> None:
    total = (
        AggregateCall("sum", n, "s"),
        AggregateCall("avg", n, "a"),
        AggregateCall("min", n, "m"),
    )
    chain = linear((AggregateSpec((("k", line),), None, total, "update"),), TEXT, kernels)
    chain.process(text_batch([None, "x", None], [None, None, 4]))
    assert commit(chain) == [
        {"k": None, "s": 4, "a": 4.0, "m": 4},
        {"k": "x", "s": None, "a": None, "m": None},
    ]


def test_partials_and_whole_agree_without_a_window(kernels: KernelCache) -> None:
    calls = (AggregateCall("avg", n, "a"), AggregateCall("count", None, "c"))
    keys: tuple[tuple[str, Expression], ...] = (("k", line),)
    up = linear((PartialAggregateSpec(keys, None, calls),), TEXT, kernels)
    down = linear(
        (AggregateSpec(keys, None, calls, "complete", merge_partials=True),),
        up.output_schema,
        kernels,
    )
    whole = linear((AggregateSpec(keys, None, calls, "complete"),), TEXT, kernels)
    random = Random(2)
    for _ in range(5):
        batch = text_batch([random.choice("abc") for _ in range(9)])
        whole.process(batch)
        for partial in up.process(batch).batches:
            assert down.process(partial).batches == ()
    assert commit(down) == commit(whole)


def test_what_is_passed_on_row_by_row_changes_no_result(
    kernels: KernelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Aggregated where rows share keys, passed on where they do not, and looked at again."""
    monkeypatch.setattr(reduction, "LOOK_ROWS", 10)
    monkeypatch.setattr(reduction, "PASS_ROWS", 15)
    calls = (AggregateCall("sum", n, "s"), AggregateCall("count", None, "c"))
    keys: tuple[tuple[str, Expression], ...] = (("k", line), ("m", n))
    up = linear((PartialAggregateSpec(keys, None, calls),), TEXT, kernels)
    down = linear(
        (AggregateSpec(keys, None, calls, "complete", merge_partials=True),),
        up.output_schema,
        kernels,
    )
    whole = linear((AggregateSpec(keys, None, calls, "complete"),), TEXT, kernels)
    distinct = text_batch([*"abcdefghi", None])
    equal = text_batch(["a", None] * 5, [None] * 10)
    exchanged = []
    for batch in (distinct, equal, distinct, equal, equal):
        whole.process(batch)
        partials = up.process(batch).batches
        exchanged.append(sum(partial.num_rows for partial in partials))
        for partial in partials:
            down.process(partial)
    assert exchanged == [10, 10, 10, 2, 2]  # the second batch could be two rows, had it been tried
    assert up.statistics().rows_passed == 20
    assert commit(down) == commit(whole)


def test_an_aggregate_of_an_aggregate(kernels: KernelCache) -> None:
    """The most frequent word per window: the second aggregate takes windows as they close."""
    schema = fields(("time", "timestamp"), ("word", "string"))
    time = column("time", "timestamp")
    window = column("window", parse_type("struct<start:timestamp,end:timestamp>"))
    counted, found = AggregateCall("count", None, "n"), column("n", "bigint")
    specs: tuple[OperatorSpec, ...] = (
        WatermarkSpec("time", 0),
        AggregateSpec((("word", word),), WindowSpec(time, 10, 10), (counted,), is_watermarked=True),
        ProjectSpec((("start", call("get_field", window, name="start")), ("n", found))),
        AggregateSpec(
            (),
            WindowSpec(column("start", "timestamp"), 20, 20),
            (AggregateCall("max", found, "most"), AggregateCall("count", None, "rows")),
            is_watermarked=True,
        ),
    )
    chain = linear(specs, schema, kernels)
    assert list(chain.states) == ["aggregate0", "aggregate1"]
    rows = [(1, "a"), (2, "a"), (3, "b"), (12, "a"), (15, "b"), (16, "b"), (18, "b"), (25, "c")]
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([at for at, _ in rows], pa.int64()).cast(pa.timestamp("us", "UTC")),
            pa.array([text for _, text in rows]),
        ],
        schema=arrow_schema(schema),
    )
    assert chain.process(batch).max_event_time_us == 25
    assert chain.on_watermark(19) == ()
    (closed,) = chain.on_watermark(25)
    assert closed.column("most").to_pylist() == [3]
    assert closed.column("rows").to_pylist() == [4]
    (rest,) = chain.on_watermark((1 << 63) - 1)
    assert rest.column("rows").to_pylist() == [1]
    assert chain.statistics().rows_late == 0


@pytest.mark.parametrize("mode", ["update", "complete"])
@pytest.mark.parametrize("is_exchanged", [False, True])
def test_a_global_aggregate_has_a_row_once_there_was_input(
    kernels: KernelCache, mode: str, is_exchanged: bool
) -> None:
    """As in Structured Streaming: one of no rows where input holds none, or all are dropped."""
    calls = tuple(AggregateCall(name, n, name) for name in ("count", "sum", "avg", "max"))
    nobody = FilterSpec(call("gt", n, literal(100, "int")))
    partial = PartialAggregateSpec((), None, calls)
    last = AggregateSpec((), None, calls, mode, merge_partials=is_exchanged)
    specs: tuple[OperatorSpec, ...] = (nobody, partial, last) if is_exchanged else (nobody, last)
    first = linear(specs[:-1] if is_exchanged else specs, TEXT, kernels)
    second = linear((last,), partial.schema, kernels) if is_exchanged else first

    def rows_after(numbers: list[int | None]) -> list[dict[str, Any]]:
        output = first.process(text_batch([None] * len(numbers), numbers))
        for batch in output.batches if is_exchanged else ():
            second.process(batch)
        emitted = [row for batch in second.on_commit() for row in batch.to_pylist()]
        second.states["aggregate0"].take_changes()
        return emitted

    nothing = {"count": 0, "sum": None, "avg": None, "max": None}
    assert second.on_commit() == ()
    assert rows_after([]) == [nothing]
    assert rows_after([1, None]) == [nothing]
    one = {"count": 1, "sum": 101, "avg": 101.0, "max": 101}
    assert rows_after([101, 2]) == [one]
    assert rows_after([]) == [one]


@pytest.mark.parametrize("is_exchanged", [False, True])
def test_input_without_rows_makes_no_other_groups(kernels: KernelCache, is_exchanged: bool) -> None:
    """Of a key, or of a window, nothing is known before there is a row."""
    calls = (AggregateCall("count", None, "count"),)
    window = WindowSpec(z, 60, 10)
    for keys, panes in (((("n", n),), None), ((), window)):
        partial = PartialAggregateSpec(keys, panes, calls)
        last = AggregateSpec(keys, panes, calls, "update", merge_partials=is_exchanged)
        specs: tuple[OperatorSpec, ...] = (partial if is_exchanged else last,)
        schema = fields(("n", "int"), ("z", "timestamp"))
        first = linear(specs, schema, kernels)
        nothing = pa.RecordBatch.from_pylist([], arrow_schema(schema))
        assert first.process(nothing).batches == ()
        assert first.on_commit() == ()


# --- specs ----------------------------------------------------------------------------------------


def test_specs_survive_json() -> None:
    window = WindowSpec(z, 60, 10, 3, "w")
    calls = (
        AggregateCall("avg", column("d", "decimal(8,2)"), "a"),
        AggregateCall("count", None, "c"),
    )
    keys = (("k", call("add", column("t", "tinyint"), literal(1, "tinyint"))),)
    specs: tuple[OperatorSpec, ...] = (
        *WORD_COUNT,
        WatermarkSpec("z", 5),
        PartialAggregateSpec(keys, window, calls),
        AggregateSpec(keys, window, calls, "update", merge_partials=True, is_watermarked=True),
        GenerateSpec(words, "w", True, "at"),
    )
    for spec in specs:
        assert spec_from_json(parse(canonical_json(spec))) == spec


@pytest.mark.parametrize(
    "node",
    [{}, {"op": "join"}, {"op": "filter"}, {"op": "watermark", "column": "z", "delay_us": "soon"}],
)
def test_damaged_specs_are_refused_by_name(node: dict[str, Any]) -> None:
    with pytest.raises(ExpressionError):
        spec_from_json(node)


def projected(expression: Expression) -> Schema:
    return chain_schema((ProjectSpec((("a", expression),)),), TEXT)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: chain_schema((FilterSpec(n),), TEXT), "needs a boolean"),
        (lambda: projected(column("no", "int")), "no column 'no'"),
        (lambda: projected(column("n", "bigint")), "read as bigint"),
        (lambda: chain_schema((ProjectSpec((("a", n), ("a", line))),), TEXT), "distinct names"),
        (lambda: chain_schema((GenerateSpec(n, "x"),), TEXT), "needs an array"),
        (lambda: chain_schema((WatermarkSpec("n", 1),), TEXT), "needs a timestamp"),
        (lambda: AggregateCall("medium", n, "s"), "no aggregate 'medium'"),
        (lambda: AggregateCall("max", column("a", "map<int,int>"), "s"), "not supported"),
        (lambda: AggregateCall("max_by", n, "s"), "another number of arguments"),
        (lambda: AggregateCall("corr", n, "s", n), "needs a double"),
        (lambda: AggregateSpec((), None, (), "append"), "needs a window"),
        (lambda: AggregateSpec((), WindowSpec(z, 1, 1), (), "append"), "needs a watermark"),
        (lambda: AggregateSpec((), None, (), "update", is_watermarked=True), "it has none"),
        (lambda: WindowSpec(z, 5, 10), "slide <= size"),
        (lambda: linear((WORD_COUNT[-1], WORD_COUNT[-1]), TEXT, None), "no column 'word'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_a_reason(make: Any, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        make()


def test_what_is_exploded_twice_with_a_filter_between(kernels: KernelCache) -> None:
    """The column that the first explode reads is gone when the filter behind it is computed."""
    schema = fields(("a", "array<string>"), ("b", "array<string>"), ("n", "int"))
    a, b = (column(name, parse_type("array<string>")) for name in "ab")
    one, other = column("one", "string"), column("other", "string")
    specs: tuple[OperatorSpec, ...] = (
        GenerateSpec(a, "one"),
        FilterSpec(call("ne", one, literal("x", "string"))),
        GenerateSpec(b, "other"),
        FilterSpec(call("ne", other, literal("x", "string"))),
        AggregateSpec((("one", one), ("other", other)), None,
                      (AggregateCall("count", None, "n"),), "update"),
    )  # fmt: skip
    rows = [{"a": ["p", "x"], "b": ["q", "r", "x"], "n": 1}, {"a": ["p"], "b": ["q"], "n": 2}]
    chain = linear(specs, schema, kernels)
    chain.process(pa.RecordBatch.from_pylist(rows, schema=arrow_schema(schema)))
    found = {(row["one"], row["other"]): row["n"] for row in commit(chain)}
    assert found == {("p", "q"): 2, ("p", "r"): 1}
