"""NEXMark q1 to q8 and their variants, each one DataFrame in plain PySpark, whoever runs it.

All read the merged events: `etype`, `dateTime` and a struct of each kind. The watermark is defined
once, before the kinds part ways, so both sides of a join have the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

EUR_PER_1000_USD = 908
DIVISOR = 123
CATEGORY = 10
STATES = ("OR", "ID", "CA")
LAST_AUCTIONS = HIGHEST_AUCTIONS = 10
WINDOW_S = 10
SLIDE_S = 2
APART_S = 1_800  # a bid and its auction in Impeller's q4

Output = Literal["append", "update"]


@dataclass(frozen=True)
class NexmarkQuery:
    """A query over timed events, how its rows are to be read, and what it needs of the events."""

    name: str
    meaning: str
    build: Callable[[DataFrame], DataFrame]
    columns: tuple[str, ...]  # of the generator, fields of structs one by one
    output: Output = "append"
    key: tuple[str, ...] = ()  # in update mode the last row of each counts
    on_spark: bool = True  # whether Structured Streaming takes it

    def over(self, events: DataFrame, delay_ms: int) -> DataFrame:
        """The query, with event time that many milliseconds behind the newest event."""
        return self.build(events.withWatermark("dateTime", f"{delay_ms} milliseconds"))


def _kind(events: DataFrame, number: int, name: str, *fields: str) -> DataFrame:
    own = [F.col(f"{name}.{field}").alias(field) for field in fields]
    return events.filter(F.col("etype") == number).select("dateTime", *own)


def _persons(events: DataFrame) -> DataFrame:
    return _kind(events, 0, "person", "id", "name", "city", "state")


def _auctions(events: DataFrame) -> DataFrame:
    return _kind(events, 1, "auction", "id", "seller", "category", "expires")


def _bids(events: DataFrame) -> DataFrame:
    return _kind(events, 2, "bid", "auction", "bidder", "price")


# --- the eight ------------------------------------------------------------------------------------


def _q1(events: DataFrame) -> DataFrame:
    bids = _kind(events, 2, "bid", "auction", "bidder", "price", "extra")
    price = F.expr(f"price * {EUR_PER_1000_USD} div 1000").alias("price")
    return bids.select("auction", "bidder", price, "dateTime", "extra")


def _q2(events: DataFrame) -> DataFrame:
    chosen = _bids(events).filter(F.col("auction") % DIVISOR == 0)
    return chosen.select("auction", "price", "dateTime")


def _q3(events: DataFrame) -> DataFrame:
    sold = _auctions(events).filter(F.col("category") == CATEGORY)
    people = _persons(events).filter(F.col("state").isin(*STATES))
    joined = sold.select(F.col("id").alias("auction"), "seller").join(
        people.select("id", "name", "city", "state"), F.col("seller") == F.col("id")
    )
    return joined.select("name", "city", "state", "auction")


def _valid_bids(events: DataFrame, more: str = "true") -> DataFrame:
    """Each bid with the auction that it was made for, while that was open."""
    auctions = _auctions(events).withColumnRenamed("dateTime", "opened")
    bids = _bids(events).withColumnRenamed("dateTime", "offered")
    is_valid = F.expr(f"auction = id AND offered BETWEEN opened AND expires AND {more}")
    return auctions.join(bids, is_valid)


def _means(valid: DataFrame) -> DataFrame:
    """Of the winning bids of each category: their sum and number, and of how many bids."""
    won = valid.groupBy("id", "category").agg(
        F.max("price").alias("final"), F.count("*").alias("bids")
    )
    return won.groupBy("category").agg(
        F.sum("final").alias("total"),
        F.count("final").alias("auctions"),
        F.sum("bids").alias("bids"),
        F.avg("final").alias("mean"),
    )


def _q4(events: DataFrame) -> DataFrame:
    return _means(_valid_bids(events))


def _q5(events: DataFrame) -> DataFrame:
    """In update mode also auctions that had the most bids for a while."""
    window = F.window("dateTime", f"{WINDOW_S} seconds", f"{SLIDE_S} seconds")
    counts = _bids(events).groupBy(window, "auction").agg(F.count("*").alias("number"))
    most = counts.groupBy("window").agg(F.max("number").alias("most"))
    hot = counts.join(most, "window").filter("number = most")
    return hot.select(
        F.col("window.start").alias("start"), F.col("window.end").alias("end"), "auction", "number"
    )


def _q6(events: DataFrame) -> DataFrame:
    valid = _valid_bids(events)
    won = valid.groupBy("expires", "id", "seller").agg(F.max("price").alias("final"))
    last = Window.partitionBy("seller").orderBy("expires", "id")
    last = last.rowsBetween(1 - LAST_AUCTIONS, Window.currentRow)
    mean = F.avg("final").over(last).alias("mean")
    return won.select("seller", F.col("id").alias("auction"), "expires", mean)


def _highest(events: DataFrame, size_s: int) -> DataFrame:
    timed = _bids(events).withColumn("window", F.window("dateTime", f"{size_s} seconds"))
    most = timed.groupBy("window").agg(F.max("price").alias("most"))
    bounds = [F.col(f"window.{name}").alias(name) for name in ("start", "end")]
    highest = timed.join(most, "window").filter("price = most")
    return highest.select("auction", "price", "bidder", "dateTime", *bounds)


def _q7(events: DataFrame) -> DataFrame:
    return _highest(events, WINDOW_S)


def _q7_minute(events: DataFrame) -> DataFrame:
    return _highest(events, 60)


def _q8(events: DataFrame) -> DataFrame:
    window = F.window("dateTime", f"{WINDOW_S} seconds")
    people = _persons(events).select("id", "name", window.alias("window"))
    sellers = _auctions(events).select("seller", window.alias("opened"))
    sellers = sellers.dropDuplicates(["seller", "opened"])
    same = (F.col("id") == F.col("seller")) & (F.col("window") == F.col("opened"))
    return people.join(sellers, same).select("id", "name", F.col("window.start").alias("start"))


# --- as Impeller runs them, where that is another result ------------------------------------------


def _q2_whole(events: DataFrame) -> DataFrame:
    fields = ("auction", "bidder", "price", "channel", "url", "extra")
    return _kind(events, 2, "bid", *fields).filter(F.col("auction") % DIVISOR == 0)


def _q3_latest(events: DataFrame) -> DataFrame:
    """Two tables by person: who sells, and their newest auction, which has the greatest id."""
    people = _persons(events).filter(F.col("state").isin(*STATES)).groupBy("id")
    facts = [F.max_by(name, "dateTime").alias(name) for name in ("name", "city", "state")]
    sold = _auctions(events).filter(F.col("category") == CATEGORY).groupBy("seller")
    joined = people.agg(*facts).join(
        sold.agg(F.max("id").alias("auction")), F.col("seller") == F.col("id")
    )
    return joined.select("id", "name", "city", "state", "auction")


def _q4_bounded(events: DataFrame) -> DataFrame:
    near = f"abs(unix_millis(offered) - unix_millis(opened)) <= {APART_S * 1_000}"
    return _means(_valid_bids(events, near))


def _q6_highest(events: DataFrame) -> DataFrame:
    """Nobody waits until an auction closes: its price so far counts, and rises."""
    won = _valid_bids(events).groupBy("id", "seller").agg(F.max("price").alias("final"))
    prices = F.sort_array(F.collect_list("final"), asc=False)
    highest = won.groupBy("seller").agg(F.slice(prices, 1, HIGHEST_AUCTIONS).alias("highest"))
    total = F.aggregate("highest", F.lit(0).cast("bigint"), lambda total, price: total + price)
    return highest.select("seller", (total / F.size("highest")).alias("mean"))


def _q8_pairs(events: DataFrame) -> DataFrame:
    people = _persons(events).select(F.col("dateTime").alias("joined"), "id", "name")
    sellers = _auctions(events).select(F.col("dateTime").alias("opened"), "seller")
    span = f"INTERVAL {WINDOW_S} SECONDS"
    near = F.expr(f"seller = id AND opened BETWEEN joined - {span} AND joined + {span}")
    start = F.window("joined", f"{WINDOW_S} seconds").start
    return people.join(sellers, near).select("id", "name", start.alias("start"))


_BID = ("etype", "dateTime", "bid.auction", "bid.bidder", "bid.price")
_AUCTION = ("auction.id", "auction.seller", "auction.category", "auction.expires")
_PERSON = ("person.id", "person.name", "person.city", "person.state")

QUERIES: Mapping[str, NexmarkQuery] = MappingProxyType(
    {
        query.name: query
        for query in (
            NexmarkQuery("q1", "prices from dollars to euros", _q1, (*_BID, "bid.extra")),
            NexmarkQuery("q2", "bids for some auctions", _q2, _BID),
            NexmarkQuery(
                "q3", "who sells in some states", _q3, ("etype", "dateTime", *_AUCTION, *_PERSON)
            ),
            NexmarkQuery(
                "q4", "mean winning bid of a category", _q4, (*_BID, *_AUCTION),
                "update", ("category",), on_spark=False,
            ),
            NexmarkQuery("q5", "auctions with the most bids", _q5, _BID),
            NexmarkQuery(
                "q6", "mean price of a seller's last ten", _q6, (*_BID, *_AUCTION), on_spark=False
            ),
            NexmarkQuery("q7", "highest bids of ten seconds", _q7, _BID, on_spark=False),
            NexmarkQuery(
                "q8", "new people who sell at once", _q8, ("etype", "dateTime", *_AUCTION, *_PERSON)
            ),
        )
    }
)  # fmt: skip
VARIANTS: Mapping[str, NexmarkQuery] = MappingProxyType(
    {
        query.name: query
        for query in (
            NexmarkQuery(
                "q2_whole", "bids for some auctions, all of each", _q2_whole,
                (*_BID, "bid.channel", "bid.url", "bid.extra"),
            ),
            NexmarkQuery(
                "q3_latest", "who sells in some states, and what last", _q3_latest,
                ("etype", "dateTime", *_AUCTION, *_PERSON), "update", ("id",), on_spark=False,
            ),
            NexmarkQuery(
                "q4_bounded", "q4 of bids within half an hour", _q4_bounded, (*_BID, *_AUCTION),
                "update", ("category",), on_spark=False,
            ),
            NexmarkQuery(
                "q5_updates", "q5 while it changes", _q5, _BID,
                "update", ("start", "end", "auction"), on_spark=False,
            ),
            NexmarkQuery(
                "q6_highest", "mean of a seller's ten highest prices", _q6_highest,
                (*_BID, *_AUCTION), "update", ("seller",), on_spark=False,
            ),
            NexmarkQuery(
                "q7_minute", "highest bids of a minute", _q7_minute, _BID, on_spark=False
            ),
            NexmarkQuery(
                "q8_pairs", "people and sales ten seconds apart", _q8_pairs,
                ("etype", "dateTime", *_AUCTION, *_PERSON),
            ),
        )
    }
)  # fmt: skip
