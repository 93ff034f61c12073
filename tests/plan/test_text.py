"""Plans printed and read back are the same plans, and bad text is a PlanError."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.errors import PlanError, StreamError
from penstock.plan.optimizer import optimize
from penstock.plan.query import Query
from penstock.stages.settings import Settings
from penstock.testing.columns import ColumnExpression, apply
from penstock.testing.plans import (
    Draft,
    col,
    count,
    max_,
    query,
    scan_source,
    scan_stream,
    sum_,
    window,
)
from tests.plan.text import parse_query, print_query
from tests.thoroughness import examples

SCHEMA = "k bigint, v bigint, d double, t string, ts timestamp not null, tags array<string>"
NAMES = [part.split()[0] for part in SCHEMA.split(", ")]


def numbers() -> st.SearchStrategy[ColumnExpression]:
    leaves = st.one_of(
        st.sampled_from(["k", "v"]).map(col),
        st.integers(-(2**62), 2**62).map(lambda value: col("k") + value),
    )
    return st.recursive(
        leaves,
        lambda inner: st.builds(
            apply,
            st.sampled_from(["add", "subtract", "multiply", "int_divide", "remainder", "greatest"]),
            inner,
            inner,
        ),
        max_leaves=4,
    )


def conditions() -> st.SearchStrategy[ColumnExpression]:
    texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=5)
    leaves = st.one_of(
        st.builds(
            apply,
            st.sampled_from(["eq", "ne", "lt", "ge"]),
            numbers(),
            numbers(),
        ),
        st.builds(lambda text: col("t") == text, texts),
        st.builds(lambda value: col("d") > value, st.floats(allow_nan=False, allow_infinity=False)),
        st.sampled_from(NAMES).map(lambda name: col(name).is_null()),
    )
    return st.recursive(
        leaves, lambda inner: st.builds(lambda a, b: (a & b) | ~a, inner, inner), max_leaves=3
    )


@st.composite
def queries(draw: st.DrawFn) -> Query:
    def source() -> Draft:
        if draw(st.booleans()):
            return scan_stream(draw(st.sampled_from("ab")), SCHEMA, draw(st.integers(1, 3)))
        return scan_source("gen", SCHEMA, draw(st.sampled_from([None, 1, 4])), seed=1, path="a (b)")

    is_early = draw(st.booleans())  # the watermark stands near the sources, or before the windows

    def rows() -> Draft:
        made = source()
        for step in draw(st.lists(st.sampled_from("fp"), max_size=3)):
            if step == "f":
                made = made.filter(draw(conditions()))
            else:
                made = made.with_column("v", draw(numbers()))
        return made.with_watermark("ts", draw(st.integers(0, 10**9))) if is_early else made

    made = rows().union(rows()) if draw(st.booleans()) else rows()
    if draw(st.booleans()):
        made = made.explode("tags", "tag", draw(st.booleans()), draw(st.sampled_from([None, "at"])))
    writes = [made.to_stream("out")]
    if draw(st.booleans()):
        size = draw(st.sampled_from(["10 seconds", "90 ms"]))
        timed = made if is_early else made.with_watermark("ts", 5)
        grouped = timed.group_by("k", window=window("ts", size, "30 ms"))
        counted = grouped.agg(count().alias("n"), sum_("v").alias("s"), max_("d").alias("m"))
        writes.append(counted.to_stream("counts"))
        if draw(st.booleans()):
            writes.append(counted.filter(col("n") > 1).to_stream("few"))
    late = "late" if len(writes) > 1 and draw(st.booleans()) else None
    return query(
        "q", *writes, parallelism=draw(st.integers(1, 3)), settings=Settings(late_stream=late)
    )


@settings(max_examples=examples(60))
@given(queries())
def test_print_and_parse_are_inverse(made: Query) -> None:
    text = print_query(made)
    assert parse_query(text) == made
    assert print_query(parse_query(text)) == text


@settings(max_examples=examples(60))
@given(queries())
def test_optimized_plans_print_and_parse_too(made: Query) -> None:
    done = optimize(made)
    assert print_query(parse_query(print_query(done))) == print_query(done)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "starts with one line 'query"),
        ("write stream a\n", "starts with one line 'query"),
        ("query q\n", "writes nothing"),
        ("query q fast\n  write stream a\n    scan stream s (x int)\n", "no option 'fast'"),
        ("query q\n  write stream a\n", "needs one line below it"),
        ("query q\n   write stream a\n", "two spaces per level"),
        ("query q\n      write stream a\n", "two spaces per level"),
        ("query q\n  write river a\n    scan stream s (x int)\n", "write what"),
        ("query q\n  write stream a\n    sift x\n      scan stream s (x int)\n", "no node 'sift'"),
        ("query q\n  write stream a\n    scan stream s\n", "columns in brackets"),
        ("query q\n  write stream a\n    filter x >\n      scan stream s (x int)\n", "unexpected"),
        (
            "query q\n  write stream a\n    filter x ? 3\n      scan stream s (x int)\n",
            "unexpected",
        ),
        (
            "query q\n  write stream a\n    project x + 1\n      scan stream s (x int)\n",
            "'as <name>'",
        ),
        (
            "query q\n  write stream a\n    scan internal s (x)\n",
            "read before a line that writes it",
        ),
        (
            "query q\n  write stream a\n    merge partials append\n      scan source g (x int)\n",
            "no partial",
        ),
        ("query q parallelism 1.5\n  write stream a\n    scan stream s (x int)\n", "whole number"),
        ("query q\n  write stream a\n    scan source g (x int) partitions 4L\n", "whole number"),
        (
            "query q\n  write stream a\n    scan source g (x int) partitions some\n",
            "expected a number",
        ),
        (
            "query q\n  write stream a\n    filter x > "
            + "9" * 99
            + "\n      scan stream s (x int)\n",
            "digits",
        ),
        (
            "query q\n  write stream a\n    filter x > CAST('y' AS DOUBLE)\n"
            "      scan stream s (x double)\n",
            "not a number",
        ),
        ("query q\n  write stream a\n    scan source f {x} (x int)\n", "not JSON"),
        (
            "query q\n  write stream a\n    filter "
            + "(" * 200
            + "x\n      scan stream s (x int)\n",
            "nested",
        ),
    ],
)
def test_bad_text(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        parse_query(text)


GOOD = print_query(
    query("q", scan_stream("s", SCHEMA).filter(col("k") > 3).select("k", "t").to_stream("a"))
)


def read_or_named_error(text: str) -> Query | None:
    """The plan in a text that may be damaged; any other error than ours fails the test."""
    try:
        made = parse_query(text)
    except StreamError:
        assert text != GOOD
        return None
    assert parse_query(print_query(made)) == made
    return made


@given(st.integers(0, len(GOOD)), st.integers(0, 8), st.text(max_size=4))
@example(0, 0, "")
def test_damaged_text_is_a_named_error_or_another_plan(at: int, length: int, put: str) -> None:
    read_or_named_error(GOOD[:at] + put + GOOD[at + length :])


@pytest.mark.parametrize("put", ["", "1", "x", ")"])
def test_of_texts_with_one_letter_changed_some_are_plans_and_some_are_not(put: str) -> None:
    changed = [GOOD[:at] + put + GOOD[at + 1 :] for at in range(len(GOOD))]
    made = [read_or_named_error(text) for text in changed]
    assert {None} < set(made)
