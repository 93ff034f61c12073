"""The columns of NEXMark people, auctions and bids: schemas, field numbers and how each is built.

Which random number feeds what (`H(seed, stream, event, field)`):

    field   person          auction         bid             channel table
    1       first name      hot seller?     hot auction?    first path part
    2       last name       other seller    other auction   second path part
    3       mail user       category        hot bidder?     third path part
    4       mail domain     initialBid      other bidder    has a channel id?
    5       creditCard      reserve         price
    6       city            itemName        hot channel?
    7       state           description     channel
    8       extra           expires         extra
    9                       extra

The channel table is a stream of its own, CHANNEL_STREAM: its events are 4 hot and 10,000 cold
channels.
A choice "hot with probability (r - 1) / r" is `number mod r > 0`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import text_column
from penstock.connectors import nexmark_kernels as kernels

PERSON, AUCTION, BID = 0, 1, 2
KIND_NAMES = ("person", "auction", "bid")
CHANNEL_STREAM = 1 << 32
COLD_CHANNELS = 10_000
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
FIRST_CATEGORY, CATEGORIES = 10, 5
AUCTION_LIFE_EVENTS = 1666  # the events in which 100 auctions appear
PERSON_BYTES, AUCTION_BYTES, BID_BYTES = 200, 500, 100
PADDING_MAX = 640  # above 1.2 times the largest average size

FIRST_NAMES = [
    "Peter",
    "Paul",
    "Luke",
    "John",
    "Saul",
    "Vicky",
    "Kate",
    "Julie",
    "Sarah",
    "Deiter",
    "Walter",
]
LAST_NAMES = [
    "Shultz",
    "Abrams",
    "Spencer",
    "White",
    "Bartels",
    "Walton",
    "Smith",
    "Jones",
    "Noris",
]
CITIES = [
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
]
STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]

_TIME = pa.timestamp("us", tz="UTC")


def _schema(**types: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in types.items()])


SCHEMAS: tuple[pa.Schema, ...] = (
    _schema(
        id=pa.int64(),
        name=pa.string(),
        emailAddress=pa.string(),
        creditCard=pa.string(),
        city=pa.string(),
        state=pa.string(),
        dateTime=_TIME,
        extra=pa.string(),
    ),
    _schema(
        id=pa.int64(),
        itemName=pa.string(),
        description=pa.string(),
        initialBid=pa.int64(),
        reserve=pa.int64(),
        dateTime=_TIME,
        expires=_TIME,
        seller=pa.int64(),
        category=pa.int64(),
        extra=pa.string(),
    ),
    _schema(
        auction=pa.int64(),
        bidder=pa.int64(),
        price=pa.int64(),
        channel=pa.string(),
        url=pa.string(),
        dateTime=_TIME,
        extra=pa.string(),
    ),
)

# Not part of the benchmark's rows, built when asked for: which generator, and its event number.
ORIGIN_SCHEMA = _schema(source_id=pa.int32(), seq=pa.int64())


@dataclass(frozen=True)
class Axis:
    """What the values of all events of one generator have in common."""

    seed: int
    stream: int
    source_id: int
    first_event_id: int
    base_ms: int
    delay_us: float

    @cached_property
    def prefix(self) -> np.uint64:
        """H(seed, stream)."""
        return hash_words(self.seed, self.stream)

    @cached_property
    def channels(self) -> tuple[pa.Array, pa.Array]:
        """The channel table: names and addresses."""
        return _channel_table(hash_words(self.seed, CHANNEL_STREAM))

    def time_us(self, place: int) -> int:
        """Return the event time of an adjusted event number."""
        return int(kernels.event_time_ms(place, self.base_ms, self.delay_us)) * 1000


def hash_words(*numbers: int) -> np.uint64:
    """Return H of some words, as the compiled functions compute it."""
    state = np.uint64(0)
    for number in numbers:
        # Python would hand a compiled function's result back as an int of either sign.
        state = np.uint64(kernels.field_number(state, np.uint64(number)))
    return state


@dataclass
class Events:
    """Some events of one kind, whose columns are built when they are asked for, once."""

    axis: Axis
    kind: int
    numbers: np.ndarray
    places: np.ndarray  # adjusted numbers
    _built: dict[str, pa.Array] = field(default_factory=dict)

    @cached_property
    def ids(self) -> np.ndarray:
        """Event ids."""
        return self.places + self.axis.first_event_id if self.axis.first_event_id else self.places

    @cached_property
    def keys(self) -> np.ndarray:
        """H(seed, stream, event) of every event."""
        keys: np.ndarray = kernels.event_keys(self.axis.prefix, self.ids)
        return keys

    def column(self, name: str) -> pa.Array:
        """Return a column of the kind's schema or of the origin."""
        if name not in self._built:
            build = ORIGIN_COLUMNS.get(name) or COLUMNS[self.kind][name]
            self._built[name] = build(self)
        return self._built[name]


Build = Callable[[Events], pa.Array]


def _texts(parts: tuple[np.ndarray, np.ndarray]) -> pa.Array:
    data, offsets = parts
    return text_column(pa.string(), offsets, data)


def _bytes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


def _times(values_us: np.ndarray) -> pa.Array:
    return pa.array(values_us).view(_TIME)


def _date_times(events: Events) -> pa.Array:
    axis = events.axis
    return _times(kernels.event_times_us(events.places, axis.base_ms, axis.delay_us))


def _chosen(number: int, values: list[str]) -> Build:
    table = cache(lambda: pa.array(values))
    return lambda events: table().take(pa.array(kernels.choices(events.keys, number, len(values))))


def _words(number: int, length_max: int) -> Build:
    return lambda events: _texts(kernels.words(events.keys, number, length_max))


def _prices(number: int) -> Build:
    return lambda events: pa.array(kernels.prices(events.keys, number))


def _names(events: Events) -> pa.Array:
    first = kernels.choices(events.keys, 1, len(FIRST_NAMES))
    last = kernels.choices(events.keys, 2, len(LAST_NAMES))
    return _full_names().take(pa.array(first * len(LAST_NAMES) + last))


@cache
def _full_names() -> pa.Array:
    return pa.array([f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES])


def _emails(events: Events) -> pa.Array:
    return _texts(kernels.emails(events.keys, 3, 4, 7, 5, _bytes("@"), _bytes(".com")))


def _padding(number: int, average: int, counted_bytes: int, *counted_columns: str) -> Build:
    def build(events: Events) -> pa.Array:
        counted = np.full(events.ids.size, counted_bytes, np.int64)
        for name in counted_columns:
            counted += pc.binary_length(events.column(name)).to_numpy()
        return _texts(kernels.paddings(events.keys, number, counted, average, PADDING_MAX))

    return build


def _reserves(events: Events) -> pa.Array:
    return pa.array(events.column("initialBid").to_numpy() + kernels.prices(events.keys, 5))


def _expiries(events: Events) -> pa.Array:
    axis = events.axis
    return _times(
        kernels.expiries_us(
            events.keys, 8, events.places, axis.base_ms, axis.delay_us, AUCTION_LIFE_EVENTS
        )
    )


def _channel_rows(events: Events) -> pa.Array:
    return pa.array(kernels.channels(events.keys, 6, 7, len(HOT_CHANNELS), COLD_CHANNELS))


def _channel_table(prefix: np.uint64) -> tuple[pa.Array, pa.Array]:
    """Return the names and addresses of all channels, each fixed by the seed."""
    cold = np.arange(COLD_CHANNELS, dtype=np.int64)
    keys = kernels.event_keys(prefix, np.arange(len(HOT_CHANNELS) + COLD_CHANNELS))
    plain = _texts(
        kernels.addresses(
            keys,
            np.array([1, 2, 3]),
            5,
            np.uint8(ord("_")),
            _bytes("https://www.nexmark.com/"),
            _bytes("/"),
            _bytes("/item.htm?query=1"),
        )
    )
    has_id = kernels.choices(keys, 4, 10) > 0
    has_id[: len(HOT_CHANNELS)] = False
    ids = np.concatenate([np.zeros(len(HOT_CHANNELS), np.int64), np.abs(_reversed_bits(cold))])
    with_id = pc.binary_join_element_wise(plain, "&channel_id=", pc.cast(ids, pa.string()), "")
    names = pa.concat_arrays(
        [
            pa.array(HOT_CHANNELS),
            pc.binary_join_element_wise("channel-", pc.cast(cold, pa.string()), ""),
        ]
    )
    return names, pc.if_else(pa.array(has_id), with_id, plain)


def _reversed_bits(numbers: np.ndarray) -> np.ndarray:
    """Mirror 32-bit integers, seen as signed again afterwards."""
    mirrored = np.zeros_like(numbers)
    for bit in range(32):
        mirrored |= ((numbers >> bit) & 1) << (31 - bit)
    return np.where(mirrored >= 1 << 31, mirrored - (1 << 32), mirrored)


COLUMNS: tuple[Mapping[str, Build], ...] = (
    {
        "id": lambda events: pa.array(kernels.person_ids(events.ids)),
        "name": _names,
        "emailAddress": _emails,
        "creditCard": lambda events: _texts(kernels.card_numbers(events.keys, 5)),
        "city": _chosen(6, CITIES),
        "state": _chosen(7, STATES),
        "dateTime": _date_times,
        "extra": _padding(
            8, PERSON_BYTES, 8, "name", "emailAddress", "creditCard", "city", "state"
        ),
    },
    {
        "id": lambda events: pa.array(kernels.auction_ids(events.ids)),
        "itemName": _words(6, 20),
        "description": _words(7, 100),
        "initialBid": _prices(4),
        "reserve": _reserves,
        "dateTime": _date_times,
        "expires": _expiries,
        "seller": lambda events: pa.array(kernels.sellers(events.keys, events.ids, 1, 2)),
        "category": lambda events: pa.array(
            FIRST_CATEGORY + kernels.choices(events.keys, 3, CATEGORIES)
        ),
        "extra": _padding(9, AUCTION_BYTES, 8 + 40, "itemName", "description"),
    },
    {
        "auction": lambda events: pa.array(kernels.bid_auctions(events.keys, events.ids, 1, 2)),
        "bidder": lambda events: pa.array(kernels.bidders(events.keys, events.ids, 3, 4)),
        "price": _prices(5),
        "channel_row": _channel_rows,  # shared by the next two
        "channel": lambda events: events.axis.channels[0].take(events.column("channel_row")),
        "url": lambda events: events.axis.channels[1].take(events.column("channel_row")),
        "dateTime": _date_times,
        "extra": _padding(8, BID_BYTES, 32),
    },
)

ORIGIN_COLUMNS: Mapping[str, Build] = {
    "source_id": lambda events: pa.array(np.full(events.ids.size, events.axis.source_id, np.int32)),
    "seq": lambda events: pa.array(events.numbers),
}
