"""Every tag that a running query puts on records, built and parsed in one place.

    S/<stream>/<i>   rows of substream i of a stream
    S/<stream>/m     markers of everyone who writes the stream: each reader subscribes to it
    T/<vertex>       a vertex's own markers, where recovery starts
    C/<vertex>       changes of a vertex's state

Streams for late and dead-lettered rows are streams like any other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from penstock.errors import InvalidName
from penstock.names import check_any_name

SUBSTREAMS_MAX = 65_536

_INDEX = re.compile(r"0|[1-9][0-9]{0,4}")


class TagKind(Enum):
    """What the records under a tag are for; the value is the first part of the tag's text."""

    SUBSTREAM = "S"
    STREAM_MARKERS = "S/m"
    VERTEX = "T"
    CHANGES = "C"


OF_STREAMS = (TagKind.SUBSTREAM, TagKind.STREAM_MARKERS)  # the others are named after a vertex


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag taken apart: `name` is a stream or a vertex, `index` is set for a substream only."""

    kind: TagKind
    name: str
    index: int | None = None

    def __str__(self) -> str:
        if self.kind is TagKind.SUBSTREAM:
            assert self.index is not None
            return substream_tag(self.name, self.index)
        if self.kind is TagKind.STREAM_MARKERS:
            return marker_tag(self.name)
        return vertex_tag(self.name) if self.kind is TagKind.VERTEX else change_tag(self.name)


def substream_tag(stream: str, index: int) -> str:
    """The tag on the rows of one substream."""
    if not 0 <= index < SUBSTREAMS_MAX:
        raise InvalidName(
            f"substream {index} of stream {stream!r} is not allowed: use 0 to {SUBSTREAMS_MAX - 1}",
            stream=stream,
            index=index,
        )
    return f"S/{check_any_name(stream, 'stream')}/{index}"


def substream_tags(stream: str, count: int) -> tuple[str, ...]:
    """The tags of all substreams of a stream."""
    return tuple(substream_tag(stream, index) for index in range(count))


def marker_tag(stream: str) -> str:
    """The tag on every marker that commits rows of a stream."""
    return f"S/{check_any_name(stream, 'stream')}/m"


def vertex_tag(vertex: str) -> str:
    """The tag on a vertex's markers."""
    return f"T/{check_any_name(vertex, 'vertex')}"


def change_tag(vertex: str) -> str:
    """The tag on the changes of a vertex's state."""
    return f"C/{check_any_name(vertex, 'vertex')}"


def parse_tag(text: str) -> Tag:
    """Take a tag apart; raise InvalidName for anything that the builders above do not make."""
    parts = text.split("/") if isinstance(text, str) else []
    if len(parts) == 3 and parts[0] == "S":
        stream = check_any_name(parts[1], "stream")
        if parts[2] == "m":
            return Tag(TagKind.STREAM_MARKERS, stream)
        if _INDEX.fullmatch(parts[2]) and int(parts[2]) < SUBSTREAMS_MAX:
            return Tag(TagKind.SUBSTREAM, stream, int(parts[2]))
    if len(parts) == 2 and parts[0] in ("T", "C"):
        return Tag(TagKind(parts[0]), check_any_name(parts[1], "vertex"))
    raise InvalidName(
        f"tag {text!r} is not one of S/<stream>/<i>, S/<stream>/m, T/<vertex>, C/<vertex>",
        name=str(text)[:200],
        what="tag",
    )
