"""The arithmetic of Spark's windows, and arithmetic that is nearly that of a window."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.catalyst.jvm import JvmNode, scala_items
from penstock.catalyst.session import plans_of
from penstock.catalyst.windows import Span, sliding_span, tumbling_span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SECOND_US = 1_000_000


def structs(bids: DataFrame, *window: str | None) -> list[JvmNode]:
    """What Spark makes of a window: one struct for each that a row falls into."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    grouped = bids.groupBy(F.window("ts", *window)).count()  # type: ignore[arg-type]
    for node in plans_of(grouped).optimized.walk():
        if node.kind == "Expand":
            projections = scala_items(node.read("projections"))
            return [JvmNode(projection.apply(0)) for projection in projections]
        if node.kind == "Project" and node.nodes("projectList")[0].kind == "Alias":
            return [node.nodes("projectList")[0].children[0]]
    raise AssertionError("Spark's plan has no window")


def test_windows_side_by_side(bids: DataFrame) -> None:
    (struct,) = structs(bids, "10 seconds", None, "3 seconds")
    found = tumbling_span(struct)
    assert found is not None
    assert found[0] == Span(10 * SECOND_US, 10 * SECOND_US, 3 * SECOND_US)
    assert found[1].kind == "AttributeReference"
    assert sliding_span([struct]) is not None  # a family of one


@pytest.mark.parametrize(("slide", "count"), [("5 seconds", 2), ("2 seconds", 5), ("3 seconds", 4)])
def test_windows_that_overlap(bids: DataFrame, slide: str, count: int) -> None:
    family = structs(bids, "10 seconds", slide)
    assert len(family) == count
    found = sliding_span(family)
    assert found is not None
    assert found[0] == Span(10 * SECOND_US, int(slide[0]) * SECOND_US, 0)


def test_a_family_that_is_not_whole_is_no_window(bids: DataFrame) -> None:
    family = structs(bids, "10 seconds", "2 seconds")
    assert sliding_span(family[:-1]) is None
    assert sliding_span([*family, family[-1]]) is None
    assert sliding_span(family[::-1]) is None
    assert sliding_span([family[0], family[0], *family[2:]]) is None


def test_a_family_of_two_kinds_is_no_window(bids: DataFrame) -> None:
    one, other = structs(bids, "10 seconds", "5 seconds"), structs(bids, "12 seconds", "6 seconds")
    assert sliding_span([one[0], other[1]]) is None
    shifted = structs(bids, "10 seconds", "5 seconds", "1 second")
    assert sliding_span([one[0], shifted[1]]) is None


def test_one_of_several_windows_is_not_one_beside_others(bids: DataFrame) -> None:
    first, second = structs(bids, "10 seconds", "5 seconds")
    assert tumbling_span(first) is None
    assert tumbling_span(second) is None


@pytest.mark.parametrize(
    "sql",
    [
        "named_struct('start', ts, 'end', ts)",
        "named_struct('end', ts, 'start', ts)",
        "named_struct('start', ts, 'end', ts + interval 10 seconds)",
        "named_struct('start', date_trunc('MINUTE', ts), 'end', ts)",
        "named_struct('a', price, 'b', url)",
        "named_struct('start', timestamp_micros(unix_micros(ts) - unix_micros(ts) % 10000000), "
        "'end', timestamp_micros(unix_micros(ts) - unix_micros(ts) % 10000000 + 10000000))",
    ],
)
def test_what_a_user_writes_is_no_window(bids: DataFrame, sql: str) -> None:
    plan = plans_of(bids.selectExpr(f"{sql} AS window")).optimized
    assert tumbling_span(plan.nodes("projectList")[0].children[0]) is None
