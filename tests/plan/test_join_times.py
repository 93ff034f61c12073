"""What follows for a join from what its condition says of times: kept until when, late by what."""

from __future__ import annotations

import pytest

from penstock.errors import UnsupportedPlan
from penstock.operators.specs import JoinSide, JoinSpec
from penstock.plan.nodes import Step
from tests.plan.text import parse_query

SECOND_US = 1_000_000
BIDS = """
watermark ts 1 second
  scan stream bids (auction bigint, price bigint, ts timestamp)
"""
AUCTIONS = """
watermark opened 1 second
  scan stream auctions (id bigint, opened timestamp, expires timestamp)
"""
EXPIRING = """
watermark expires 1 second
  scan stream auctions (id bigint, expires timestamp)
"""
COUNTS = """
aggregate append by id window opened 10 seconds as window: count(*) as n
  watermark opened 1 second
    scan stream auctions (id bigint, opened timestamp)
"""


def spec(line: str, left: str = BIDS, right: str = AUCTIONS) -> JoinSpec:
    below = ["\n".join(" " * 6 + row for row in side.strip().split("\n")) for side in (left, right)]
    text = "\n".join(["query q", "  write stream a", f"    {line}", *below])
    (write,) = parse_query(text).writes
    assert isinstance(write.child, Step)
    assert isinstance(write.child.spec, JoinSpec)
    return write.child.spec


def limits(side: JoinSide) -> dict[str, int]:
    return {str(limit.time): limit.plus_us for limit in side.limits}


def later(time: str, us: int) -> str:
    return f"timestamp_micros((unix_micros({time}) + {us}L))"


def test_a_range_of_time_ends_both_sides() -> None:
    found = spec(
        f"inner join on auction = id where ((opened >= {later('ts', -5 * SECOND_US)}) "
        f"AND (opened < {later('ts', 20 * SECOND_US)}))"
    )
    assert limits(found.left) == {"ts": 20 * SECOND_US - 1}
    assert limits(found.right) == {"opened": 5 * SECOND_US}
    assert (str(found.left.time), str(found.right.time)) == ("ts", "opened")
    assert found.times == ("ts", "opened")
    assert found.behind_us == 20 * SECOND_US - 1


def test_an_equal_time_ends_both_sides_at_once() -> None:
    found = spec("full join on auction = id, ts = opened")
    assert (limits(found.left), limits(found.right)) == ({"ts": 0}, {"opened": 0})
    assert (found.times, found.behind_us) == (("ts", "opened"), 0)


def test_a_column_of_the_other_side_may_end_a_row() -> None:
    """An auction is kept until it expires; when it was opened says nothing behind the join."""
    found = spec("inner join on auction = id where ((ts >= opened) AND (ts <= expires))")
    assert limits(found.left) == {"ts": 0}
    assert limits(found.right) == {"expires": 0}
    assert (found.times, found.behind_us) == (("ts", "expires"), 0)


def test_a_time_may_be_computed_before_its_watermark() -> None:
    read = """
watermark ts 1 second
  project auction as auction, timestamp_micros(micros) as ts
    scan stream bids (auction bigint, micros bigint)
"""
    found = spec(
        "full join on auction = id where "
        f"((opened >= ts) AND (opened <= {later('ts', SECOND_US)}))",
        read,
    )
    assert (limits(found.left), limits(found.right)) == ({"ts": SECOND_US}, {"opened": 0})
    assert str(found.left.time) == "ts"


def test_rows_that_match_nothing_have_only_their_own_times() -> None:
    found = spec("right join on auction = id where ((ts >= opened) AND (ts <= expires))")
    assert limits(found.right) == {"expires": 0}
    assert found.times == ("ts",)


def test_without_a_range_nothing_ends() -> None:
    found = spec("inner join on auction = id where (price > 3L)")
    assert (found.left.limits, found.right.limits, found.times) == ((), (), ())
    assert str(found.left.time) == "ts"


def test_half_a_range_ends_one_side() -> None:
    found = spec("inner join on auction = id where (ts <= expires)")
    assert found.left.limits == ()
    assert limits(found.right) == {"expires": 0}
    with pytest.raises(UnsupportedPlan, match=r"row of its left side.*define one on the other"):
        spec("left join on auction = id where (ts <= expires)")


def test_a_side_without_a_watermark_ends_by_that_of_the_other() -> None:
    untimed = BIDS.strip().split("\n", 1)[1].strip()
    found = spec("left join on auction = id, ts = opened", untimed)
    assert limits(found.left) == {"ts": 0}
    assert (found.right.limits, found.left.time) == ((), None)
    assert found.times == ()


def test_ranges_follow_from_each_other() -> None:
    found = spec(
        "inner join on auction = id where (((ts >= opened) AND (ts <= expires)) "
        f"AND (expires <= {later('opened', 60 * SECOND_US)}))"
    )
    assert limits(found.right) == {"opened": 60 * SECOND_US, "expires": 0}
    assert set(found.times) == {"ts", "opened", "expires"}
    assert found.behind_us == 60 * SECOND_US


def test_windows_of_an_aggregate_have_two_ends() -> None:
    inside = "inner join on auction = id where ((ts >= window.start) AND (ts < window.end))"
    found = spec(inside, right=COUNTS)
    assert limits(found.left) == {"ts": 10 * SECOND_US}
    assert limits(found.right) == {"window.end": -1}
    assert (found.times, found.behind_us) == (("ts", "window"), 10 * SECOND_US)


def test_the_last_instant_of_a_window_is_known_as_such() -> None:
    instants = f"""
project id, timestamp_micros((unix_micros(window.end) - 1L)) as last
  {COUNTS.strip().replace(chr(10), chr(10) + "  ")}
"""
    found = spec("inner join on auction = id, ts = last", right=instants)
    assert found.right.is_instant
    assert not found.left.is_instant
    # A count of the window that ends at 10 comes when the watermark is there: then 9.999999 is not
    # behind it.
    assert limits(found.left) == {"ts": 1}
    assert limits(found.right) == {"last": 0}


def test_windows_of_both_sides() -> None:
    def windowed(side: str, time: str, name: str) -> str:
        start = f"(unix_micros({time}) - pmod(unix_micros({time}), 10000000L))"
        end = f"({start} + 10000000L)"
        ends = f"timestamp_micros({start}) as {name}_start, timestamp_micros({end}) as {name}_end"
        return f"""
project {time}, {ends}
  {side.strip().replace(chr(10), chr(10) + "  ")}
"""

    found = spec(
        "full join on l_start = r_start, l_end = r_end",
        windowed(BIDS, "ts", "l"),
        windowed(AUCTIONS, "opened", "r"),
    )
    for side, time in ((found.left, "ts"), (found.right, "opened")):
        assert limits(side)[time] == 10 * SECOND_US - 1
    assert min(limits(found.left).values()) <= 10 * SECOND_US


def test_two_uses_of_one_stream_are_two_times() -> None:
    """Nothing is known of a row's time by that of another row of the same stream."""
    other = BIDS.replace("ts", "at").replace("auction", "id").replace("price", "cost")
    found = spec("inner join on auction = id where (ts <= at)", right=other)
    assert found.left.limits == ()
    assert limits(found.right) == {"at": 0}


def test_a_window_that_all_inputs_of_a_union_compute_alike_ends_a_side() -> None:
    """Spark takes what a query computes behind a union to each of its inputs."""
    end = "timestamp_micros(((unix_micros(ts) - pmod(unix_micros(ts), 5000000L)) + 5000000L))"
    part = f"""
  project price as price, ts as ts, {end} as until
    watermark ts 1 second
      scan stream bids (auction bigint, price bigint, ts timestamp)"""
    alike = spec("inner join on price = id, until = expires", f"union{part}{part}", EXPIRING)
    assert limits(alike.left) == {"until": 0, "ts": 5 * SECOND_US}
    assert alike.times == ("ts", "until", "expires")
    other = part.replace("5000000L", "7000000L")
    differing = spec("inner join on price = id, until = expires", f"union{part}{other}", EXPIRING)
    assert "ts" not in differing.times


def test_a_time_that_inputs_of_a_union_hand_on_twice_is_one() -> None:
    part = """
  project price as price, ts as ts, ts as same
    watermark ts 1 second
      scan stream bids (auction bigint, price bigint, ts timestamp)"""
    found = spec("inner join on price = id, same = expires", f"union{part}{part}", EXPIRING)
    assert limits(found.right) == {"expires": 0}
    assert found.times[0] == "ts"
