"""What each query must answer, from the set of events alone: dictionaries and lists, no engine.

Nothing here looks at the order in which events came, at a watermark, or at a query's DataFrame.
Times are microseconds, as in the rows of an answer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

SECOND_US = 1_000_000
Row = tuple[Any, ...]
Events = Mapping[str, list[Any]]  # of one kind: its columns


@dataclass(frozen=True)
class World:
    """All that happened, by kind."""

    persons: Events
    auctions: Events
    bids: Events


def rows_of(events: Events, *names: str) -> Iterator[Row]:
    """Some columns of events, row by row."""
    return zip(*(events[name] for name in names), strict=True)


def _q1(world: World) -> Iterable[Row]:
    for auction, bidder, price, time, extra in rows_of(
        world.bids, "auction", "bidder", "price", "dateTime", "extra"
    ):
        yield auction, bidder, price * 908 // 1000, time, extra


def _q2(world: World) -> Iterable[Row]:
    for auction, price, time in rows_of(world.bids, "auction", "price", "dateTime"):
        if auction % 123 == 0:
            yield auction, price, time


def _q2_whole(world: World) -> Iterable[Row]:
    names = ("dateTime", "auction", "bidder", "price", "channel", "url", "extra")
    return (row for row in rows_of(world.bids, *names) if row[1] % 123 == 0)


def _q3(world: World) -> Iterable[Row]:
    people: dict[int, list[Row]] = defaultdict(list)
    for person, *facts in rows_of(world.persons, "id", "name", "city", "state"):
        if facts[-1] in ("OR", "ID", "CA"):
            people[person].append(tuple(facts))
    for auction, seller, category in rows_of(world.auctions, "id", "seller", "category"):
        if category == 10:
            for facts_of in people.get(seller, ()):
                yield *facts_of, auction


def _q3_latest(world: World) -> Iterable[Row]:
    latest: dict[int, tuple[int, int]] = {}
    for auction, seller, category, time in rows_of(
        world.auctions, "id", "seller", "category", "dateTime"
    ):
        if category == 10:
            latest[seller] = max((time, auction), latest.get(seller, (time, auction)))
    for row in rows_of(world.persons, "id", "name", "city", "state"):
        if row[3] in ("OR", "ID", "CA") and row[0] in latest:
            yield *row, latest[row[0]][1]


def _won(world: World, apart_us: int | None = None) -> dict[int, tuple[Row, list[int]]]:
    """The prices of the valid bids of every auction that has one; and the auction."""
    auctions = {
        row[0]: row
        for row in rows_of(world.auctions, "id", "seller", "category", "dateTime", "expires")
    }
    won: dict[int, tuple[Row, list[int]]] = {}
    for auction, price, time in rows_of(world.bids, "auction", "price", "dateTime"):
        found = auctions.get(auction)
        if found is None or not found[3] <= time <= found[4]:
            continue
        if apart_us is None or abs(time - found[3]) <= apart_us:
            won.setdefault(auction, (found, []))[1].append(price)
    return won


def _means(won: Mapping[int, tuple[Row, list[int]]]) -> Iterable[Row]:
    finals: dict[int, list[int]] = defaultdict(list)
    bids: Counter[int] = Counter()
    for auction, prices in won.values():
        finals[auction[2]].append(max(prices))
        bids[auction[2]] += len(prices)
    for category, prices in finals.items():
        total = sum(prices)
        yield category, total, len(prices), bids[category], total / len(prices)


def _q4(world: World) -> Iterable[Row]:
    return _means(_won(world))


def _q4_bounded(world: World) -> Iterable[Row]:
    return _means(_won(world, 1_800 * SECOND_US))


def _q5(world: World) -> Iterable[Row]:
    size, slide = 10 * SECOND_US, 2 * SECOND_US
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for auction, time in rows_of(world.bids, "auction", "dateTime"):
        start = time // slide * slide
        while start > time - size:
            counts[start][auction] += 1
            start -= slide
    for start, of_window in counts.items():
        most = max(of_window.values())
        for auction, number in of_window.items():
            if number == most:
                yield start, start + size, auction, number


def _q6(world: World) -> Iterable[Row]:
    closed = sorted(
        (auction[4], number, auction[1], max(prices))
        for number, (auction, prices) in _won(world).items()
    )
    sold: dict[int, list[int]] = defaultdict(list)
    for expires, auction, seller, price in closed:
        sold[seller].append(price)
        last = sold[seller][-10:]
        yield seller, auction, expires, sum(last) / len(last)


def _q6_highest(world: World) -> Iterable[Row]:
    sold: dict[int, list[int]] = defaultdict(list)
    for auction, prices in _won(world).values():
        sold[auction[1]].append(max(prices))
    for seller, prices in sold.items():
        highest = sorted(prices)[-10:]
        yield seller, sum(highest) / len(highest)


def _highest(world: World, size: int) -> Iterable[Row]:
    bids = list(rows_of(world.bids, "auction", "price", "bidder", "dateTime"))
    most: dict[int, int] = {}
    for _, price, _, time in bids:
        start = time // size * size
        most[start] = max(price, most.get(start, price))
    for auction, price, bidder, time in bids:
        start = time // size * size
        if price == most[start]:
            yield auction, price, bidder, time, start, start + size


def _q7(world: World) -> Iterable[Row]:
    return _highest(world, 10 * SECOND_US)


def _q7_minute(world: World) -> Iterable[Row]:
    return _highest(world, 60 * SECOND_US)


def _q8(world: World) -> Iterable[Row]:
    size = 10 * SECOND_US
    sellers = {
        (seller, time // size) for seller, time in rows_of(world.auctions, "seller", "dateTime")
    }
    for person, name, time in rows_of(world.persons, "id", "name", "dateTime"):
        if (person, time // size) in sellers:
            yield person, name, time // size * size


def _q8_pairs(world: World) -> Iterable[Row]:
    size = 10 * SECOND_US
    sales: dict[int, list[int]] = defaultdict(list)
    for seller, time in rows_of(world.auctions, "seller", "dateTime"):
        sales[seller].append(time)
    for person, name, time in rows_of(world.persons, "id", "name", "dateTime"):
        for sold in sales.get(person, ()):
            if abs(sold - time) <= size:
                yield person, name, time // size * size


ANSWERS: Mapping[str, Callable[[World], Iterable[Row]]] = MappingProxyType(
    {
        "q1": _q1,
        "q2": _q2,
        "q2_whole": _q2_whole,
        "q3": _q3,
        "q3_latest": _q3_latest,
        "q4": _q4,
        "q4_bounded": _q4_bounded,
        "q5": _q5,
        "q5_updates": _q5,
        "q6": _q6,
        "q6_highest": _q6_highest,
        "q7": _q7,
        "q7_minute": _q7_minute,
        "q8": _q8,
        "q8_pairs": _q8_pairs,
    }
)


def _most_of_windows(rows: list[Row]) -> list[Row]:
    """Updates do not say what goes: an auction that another one has passed is still among them."""
    most: Counter[Row] = Counter()
    for start, end, _, number in rows:
        most[start, end] = max(most[start, end], number)
    return [row for row in rows if row[3] == most[row[:2]]]


def difference(name: str, world: World, found: Iterable[Row], key_width: int = 0) -> str | None:
    """Say how rows differ from the answer, None if not.

    With `key_width` the first so many columns are a key, whose last row counts.
    """
    rows = list(found)
    if key_width:
        rows = list({row[:key_width]: row for row in rows}.values())
    if name == "q5_updates":
        rows = _most_of_windows(rows)
    surplus, expected = Counter(rows), Counter(ANSWERS[name](world))
    if surplus == expected:
        return None
    more, less = surplus - expected, expected - surplus
    parts = [f"{surplus.total():,} rows where there should be {expected.total():,}"]
    if more:
        parts.append(f"{more.total():,} too many such as {next(iter(more))}")
    if less:
        parts.append(f"{less.total():,} missing such as {next(iter(less))}")
    return "; ".join(parts)
