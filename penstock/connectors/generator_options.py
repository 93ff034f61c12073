"""The options of generators and producers, as Spark's readers and Penstock's queries know them."""

from __future__ import annotations

from typing import Any

from penstock.connectors.nexmark import EVENT_ID_MAX, KINDS
from penstock.connectors.producer_wire import UNIT_BYTES_MAX
from penstock.connectors.ysb import RATE_MAX
from penstock.options import (
    MAX_ROWS_PER_TRIGGER,
    NUM_PARTITIONS,
    TIME_ZONE,
    Option,
    Options,
    choice,
    flag,
    local_path,
    moment,
    names,
    number,
    since_1970_us,
    whole,
)

# Whether rows may be asked for again: if not, they are persisted like those of a socket.
REPLAYABLE = Option("replayable", flag, True, "replayable")
EVENTS = Option("events", whole(0, EVENT_ID_MAX), None, "events_max")
KIND = Option("kind", choice("all", *KINDS), "bids")
COLUMNS = Option("columns", names, None)
UNPACED = Option("unpaced", flag, False)
_STARTING_TIME = Option("startingTime", moment, None)
NEXMARK_BATCH: tuple[Option[Any], ...] = (
    Option("seed", whole(0), None, "seed"),
    Option("rate", number, None, "rate"),
    Option("group", whole(1, 10**9), None, "group"),
    *(EVENTS, KIND, COLUMNS, _STARTING_TIME, TIME_ZONE, NUM_PARTITIONS),
)
NEXMARK_STREAM = (*NEXMARK_BATCH, UNPACED, REPLAYABLE, MAX_ROWS_PER_TRIGGER)

ROWS = Option("rows", whole(0, 1 << 52), None, "rows_total")
YSB_RATE = Option("rate", whole(1, RATE_MAX), None, "rate")
YSB = (ROWS, YSB_RATE, REPLAYABLE, NUM_PARTITIONS)


def _micros(text: str) -> int:
    return round(number(text) * 1_000_000)


_REPLAY_PATH: Option[str | None] = Option("path", local_path, None)
_REPLAY_TIME: Option[str | None] = Option("timeColumn", str, None)
REPLAY_PERIOD: Option[int | None] = Option("periodSeconds", _micros, None, "period_us")
REPLAY = (_REPLAY_PATH, _REPLAY_TIME, REPLAY_PERIOD, ROWS, REPLAYABLE, NUM_PARTITIONS)


def replayed(options: Options) -> tuple[str, str]:
    """The path of a sample, and its column of time."""
    path = options.needed(_REPLAY_PATH, "sample.parquet")
    return path, options.needed(_REPLAY_TIME, "ts")


_PORT: Option[int | None] = Option("port", whole(1, 65_535), None)
_TOKEN_FILE: Option[str | None] = Option("tokenFile", local_path, None)
PRODUCERS: tuple[Option[Any], ...] = (
    _PORT,
    _TOKEN_FILE,
    Option("bufferBytes", whole(UNIT_BYTES_MAX, 1 << 32), None, "buffer_bytes"),
)


def listening(options: Options) -> tuple[int, str]:
    """The port that producers send to, and the file with the token that they prove to have."""
    return options.needed(_PORT, "9100"), options.needed(_TOKEN_FILE, "producers.token")


def nexmark_settings(options: Options) -> dict[str, Any]:
    """What was given of what decides the events, by the names of `NexmarkSettings`."""
    settings = options.arguments()
    settings.pop("replayable", None)
    if (first := options[_STARTING_TIME]) is not None:
        settings["base_ms"] = since_1970_us(first, options[TIME_ZONE]) // 1_000
    return settings
