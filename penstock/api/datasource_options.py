"""The options of format "penstock", by what is asked of it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from penstock.log import punit
from penstock.options import (
    MAX_ROWS_PER_TRIGGER,
    NUM_PARTITIONS,
    TIME_ZONE,
    Option,
    choice,
    flag,
    is_whole,
    local_path,
    moment,
    names,
    whole,
)
from penstock.stages.tags import SUBSTREAMS_MAX


def log_folder(text: str) -> str:
    """An absolute path, since tasks run in other folders; none if the text is empty."""
    return text and str(Path(local_path(text)).expanduser().absolute())


def _position_or_moment(text: str) -> int | datetime:
    try:
        return whole(0)(text) if is_whole(text) else moment(text)
    except ValueError:
        raise ValueError("it is a position, or a time like 2030-01-31 12:00:00.5") from None


def _start(text: str) -> int | str:
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return word
    try:
        return whole(0)(text)
    except ValueError:
        raise ValueError("it is a position, earliest or latest") from None


PATH = Option("path", log_folder, None)
STREAM = Option("stream", str, None)
STATE = Option("state", str, None)
STATE_VARIABLE = Option("stateVarName", str, None, "variable")  # this and the next are Spark's own
FLATTEN = Option("flattenCollectionTypes", flag, True, "flatten")
AS_OF = Option("asOf", _position_or_moment, None)
AFTER = Option("after", whole(0), None)
STARTING_POSITION: Option[int | str] = Option("startingPosition", _start, "earliest")
INCLUDE_METADATA = Option("includeMetadata", flag, False)
COMPRESSION = Option("compression", choice(*punit.CODECS), "none")
SUBSTREAMS = Option("substreams", whole(1, SUBSTREAMS_MAX), None)
SUBSTREAMS_BY: Option[tuple[str, ...]] = Option("substreamsBy", names, ())

TABLE = Option("table", names, None)
DELETE_FLAG = Option("deleteFlag", str, None)

STATE_READ = (PATH, STATE, STATE_VARIABLE, FLATTEN)
BATCH_READ = (
    PATH, STREAM, STATE, STATE_VARIABLE, FLATTEN, AS_OF, AFTER, INCLUDE_METADATA, NUM_PARTITIONS,
    TIME_ZONE,
)  # fmt: skip
STREAM_READ = (
    PATH, STREAM, STARTING_POSITION, MAX_ROWS_PER_TRIGGER, INCLUDE_METADATA, NUM_PARTITIONS,
    TABLE, DELETE_FLAG,
)  # fmt: skip
BATCH_WRITE = (PATH, STREAM, COMPRESSION, SUBSTREAMS, SUBSTREAMS_BY)
# What belongs to the query, Spark hands to its sink as well.
CHECKPOINT_LOCATION: Option[str | None] = Option("checkpointLocation", str, None)
STREAM_WRITE = (*BATCH_WRITE, CHECKPOINT_LOCATION, Option("queryName", str, None))
