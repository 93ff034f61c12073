"""Into how many substreams a stream is cut by now: the one fact about it that may change.

The number only rises, and nobody writes to a substream before the description names it. So whoever
looks here after it has read the log's tail misses no record up to that tail, and readers that are
under way need not be told.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import StreamNotFound
from penstock.json_codec import parse
from penstock.log.contract import Log
from penstock.stages.tags import SUBSTREAMS_MAX, marker_tag, substream_tag


def stream_key(stream: str) -> str:
    """Where a stream is described in the log's metadata."""
    return f"stream/{stream}"


def count_substreams(log: Log, stream: str) -> int:
    """How many substreams a stream has by now; one if nobody has described it."""
    found = log.get(stream_key(stream))
    if found is None:
        return 1
    try:
        count: Any = parse(found.value)["substreams"]
        if type(count) is not int or not 1 <= count <= SUBSTREAMS_MAX:
            raise ValueError(f"{count!r:.80} substreams")
    except (ValueError, KeyError, TypeError) as error:
        raise StreamNotFound(
            f"the description of stream {stream!r} cannot be read ({error}): run `penstock fsck`",
            stream=stream,
        ) from error
    return count


def stream_tags(log: Log, stream: str, part: int = 0, parts: int = 1) -> tuple[str, ...]:
    """The tags that a reader of one part of a stream follows: every so many-th substream."""
    substreams = range(part, count_substreams(log, stream), parts)
    return (*(substream_tag(stream, index) for index in substreams), marker_tag(stream))
