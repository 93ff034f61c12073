"""What every backend checks before it touches the log, and how it tells a retry from a conflict."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.errors import Fenced, InvalidArgument, RecordTooLarge, SequenceConflict, Trimmed
from penstock.log.contract import (
    APPEND_ENTRIES_MAX,
    METADATA_BYTES_MAX,
    READ_LIMIT_MAX,
    TAGS_PER_RECORD_MAX,
    Log,
    instance_key,
)
from penstock.log.record import START, Body, Entry, Fence, Position, RecordKind
from penstock.names import check_any_name, check_path

NUMBER_MAX = 2**63 - 1  # instances, sequences and positions fit a signed 64-bit column
TAGS_CACHED_TOGETHER_MAX = 8  # longer lists are checked tag by tag: the cache stays small

# The same few names come by 20,000 times a second: each is matched once. Failures are not cached.
_known_producer = lru_cache(maxsize=16_384)(check_any_name)
_known_tag = lru_cache(maxsize=65_536)(check_path)


def check_append(entries: Sequence[Entry], body_bytes_max: int, append_bytes_max: int) -> int:
    """Refuse entries that no log may hold; return the bytes of their bodies.

    `SequenceConflict` is raised for a (producer, instance) whose sequences do not rise within the
    append; `RecordTooLarge` for what is over a bound; `InvalidName` or `InvalidArgument` else.
    """
    if not entries:
        raise InvalidArgument(
            "an append needs at least one entry: skip the call when there are none"
        )
    if len(entries) > APPEND_ENTRIES_MAX:
        raise RecordTooLarge(
            f"an append of {len(entries)} entries is over the bound of {APPEND_ENTRIES_MAX}: "
            "split it, or put more rows into one body",
            entries=len(entries),
            entries_max=APPEND_ENTRIES_MAX,
        )
    bytes_total = 0
    for entry in entries:
        bytes_total += _check_entry(entry, body_bytes_max)
    if bytes_total > append_bytes_max:
        raise RecordTooLarge(
            f"an append of {bytes_total} bytes is over the bound of {append_bytes_max}: split it",
            bytes=bytes_total,
            bytes_max=append_bytes_max,
        )
    if len(entries) > 1:
        _check_rising(entries)
    return bytes_total


def _check_entry(entry: Entry, body_bytes_max: int) -> int:
    if type(entry) is not Entry:
        raise InvalidArgument(f"an append takes Entry objects, not {type(entry).__name__}")
    tags = entry.tags
    if type(tags) is not tuple:
        raise InvalidArgument(f"an entry's tags are a tuple, not {type(tags).__name__}")
    try:
        _known_producer(entry.producer, "producer")
        if len(tags) <= TAGS_CACHED_TOGETHER_MAX:
            _known_tags(tags)
        else:
            _check_tags(tags)
    except TypeError:  # something that has no hash, where a string was expected
        raise InvalidArgument(
            "a producer and tags are strings", producer=repr(entry.producer)[:200]
        ) from None
    if type(entry.kind) is not RecordKind:
        raise InvalidArgument(f"an entry's kind is a RecordKind, not {entry.kind!r}")
    if type(entry.instance) is not int or not 0 <= entry.instance <= NUMBER_MAX:
        raise _not_a_number("an entry's instance", entry.instance)
    if type(entry.sequence) is not int or not 0 <= entry.sequence <= NUMBER_MAX:
        raise _not_a_number("an entry's sequence", entry.sequence)
    body = entry.body
    size_bytes = len(body) if type(body) is bytes else body_bytes(body)
    if size_bytes > body_bytes_max:
        raise RecordTooLarge(
            f"a body of {size_bytes} bytes is over the bound of {body_bytes_max}: "
            "cut the batch into smaller units",
            bytes=size_bytes,
            bytes_max=body_bytes_max,
        )
    return size_bytes


def body_bytes(body: Body) -> int:
    """Return a body's length in bytes, whichever of the four kinds it is."""
    if isinstance(body, (bytes, bytearray)):
        return len(body)
    if isinstance(body, memoryview):
        if not body.c_contiguous:
            raise InvalidArgument("a body's memoryview is one run of bytes: copy the slice first")
        return body.nbytes
    if isinstance(body, pa.Buffer):
        return int(body.size)
    raise InvalidArgument(
        f"a body is bytes, bytearray, memoryview or pyarrow.Buffer, not {type(body).__name__}"
    )


def _check_tags(tags: tuple[str, ...]) -> None:
    if not tags:
        raise InvalidArgument("an entry needs at least one tag: nobody could read it")
    if len(tags) > TAGS_PER_RECORD_MAX:
        raise RecordTooLarge(
            f"{len(tags)} tags on one record are over the bound of {TAGS_PER_RECORD_MAX}: "
            "use a tag that all of its readers share",
            tags=len(tags),
            tags_max=TAGS_PER_RECORD_MAX,
        )
    for tag in tags:
        _known_tag(tag, "tag")
    if len(set(tags)) != len(tags):
        raise InvalidArgument("an entry names a tag twice: each tag once", tags=list(tags)[:20])


_known_tags = lru_cache(maxsize=4_096)(_check_tags)


def names_read_back(producer: str, tags: str) -> tuple[str, ...]:
    """A record row's tags, held to the same rule as on their way in, and so its producer."""
    _known_producer(producer, "producer")
    return _tags_read_back(tags)


@lru_cache(maxsize=4_096)
def _tags_read_back(tags: str) -> tuple[str, ...]:
    return tuple(check_path(tag) for tag in tags.split(" "))


def _check_rising(entries: Sequence[Entry]) -> None:
    highest: dict[tuple[str, int], int] = {}
    for entry in entries:
        writer = (entry.producer, entry.instance)
        if entry.sequence <= highest.get(writer, -1):
            raise SequenceConflict(
                f"sequence {entry.sequence} of {entry.producer}, instance {entry.instance}, comes "
                f"after {highest[writer]} in the same append: sequences must rise",
                producer=entry.producer,
                instance=entry.instance,
                sequence=entry.sequence,
            )
        highest[writer] = entry.sequence


class Prior(NamedTuple):
    """What a log already knows about one entry's (producer, instance, sequence).

    A sequence above `highest` is new; no other field is looked at then, so a backend need not
    search for such an entry at all.
    """

    highest: int  # of this (producer, instance), trimmed ones included; -1 if there is none
    highest_trimmed: int  # of those whose record is gone; -1 if there is none
    position: Position | None  # where the entry is, None if it is not (or no longer) there
    same_content: bool  # whether kind, tags and body at `position` equal the entry's


def first_positions(
    entries: Sequence[Entry], priors: Sequence[Prior]
) -> tuple[Position, ...] | None:
    """Return None if all the entries are new, or the positions that they already have.

    A mix of old and new, other content, or a sequence that was passed over raises
    `SequenceConflict`; entries that were there and are trimmed raise `Trimmed`. A sequence that was
    passed over, but below one that is trimmed, cannot be told from a trimmed one: `Trimmed` too.

    A backend asks this before it looks at the fence, so that the retry of an append that went
    through gets its positions even when the instance was fenced in between.
    """
    positions: list[Position] = []
    new: Entry | None = None
    trimmed: Entry | None = None
    for entry, prior in zip(entries, priors, strict=True):
        if entry.sequence > prior.highest:
            new = entry
        elif prior.position is not None:
            if not prior.same_content:
                raise _conflict(entry, f"is at position {prior.position} with other content")
            positions.append(prior.position)
        elif entry.sequence <= prior.highest_trimmed:
            trimmed = entry
        else:
            raise _conflict(entry, f"is not in the log, which already has {prior.highest}")
    if new is not None:
        if positions or trimmed is not None:
            raise _conflict(new, "is new, but other entries of this append are not")
        return None
    if trimmed is not None:
        raise Trimmed(
            f"sequence {trimmed.sequence} of {trimmed.producer}, instance {trimmed.instance}, was "
            "appended before and has been trimmed: its position is no longer known; do not retry",
            producer=trimmed.producer,
            instance=trimmed.instance,
            sequence=trimmed.sequence,
        )
    return tuple(positions)


def _conflict(entry: Entry, why: str) -> SequenceConflict:
    return SequenceConflict(
        f"sequence {entry.sequence} of {entry.producer}, instance {entry.instance}, {why}; nothing "
        "was appended: give each entry its own, rising sequence, and retry an append unchanged",
        producer=entry.producer,
        instance=entry.instance,
        sequence=entry.sequence,
    )


def check_fence_argument(fence: Fence) -> None:
    """Refuse a fence that no vertex could ever hold."""
    if type(fence) is not Fence:
        raise InvalidArgument(f"a fence is a Fence, not {type(fence).__name__}")
    check_any_name(fence.vertex, "vertex")
    if type(fence.instance) is not int or not 0 <= fence.instance <= NUMBER_MAX:
        raise _not_a_number("a fence's instance", fence.instance)


def check_fence(fence: Fence, registered: bytes | None) -> None:
    """Raise `Fenced` unless the fence's instance is the one registered in the metadata."""
    if (refusal := fence_refusal(fence, registered)) is not None:
        raise refusal


def fence_refusal(fence: Fence, registered: bytes | None) -> Fenced | None:
    """As `check_fence`, with the error returned."""
    if registered == b"%d" % fence.instance:
        return None
    newest = "none" if registered is None else registered[:40].decode("ascii", "replace")
    return Fenced(
        f"instance {fence.instance} of vertex {fence.vertex} may neither append nor trim: the "
        f"registered instance is {newest}; nothing was changed, this instance must stop",
        vertex=fence.vertex,
        instance=fence.instance,
        newest=newest,
    )


def check_newest(log: Log, fence: Fence) -> None:
    """Raise `Fenced` if a newer instance is registered by now.

    For who has lost something and wants to know whether it was still his; an append or a trim that
    depends on it carries the fence itself.
    """
    newest = log.get(instance_key(fence.vertex))
    check_fence(fence, None if newest is None else newest.value)


def check_read(tags: Collection[str], limit: int, after: Position = START) -> tuple[str, ...]:
    """Refuse a read that cannot be right; return its tags, each once, in a fixed order."""
    if type(limit) is not int or not 1 <= limit <= READ_LIMIT_MAX:
        raise InvalidArgument(
            f"a read's limit is 1 to {READ_LIMIT_MAX}, not {limit!r}", limit_max=READ_LIMIT_MAX
        )
    if type(after) is not int or not 0 <= after <= NUMBER_MAX:
        raise _not_a_number("the position to read after", after)
    if isinstance(tags, (str, bytes)):
        raise InvalidArgument(f"a read takes a collection of tags, not the one string {tags!r}")
    if not tags:
        raise InvalidArgument("a read needs at least one tag")
    if len(tags) > TAGS_PER_RECORD_MAX:
        raise RecordTooLarge(
            f"a read of {len(tags)} tags is over the bound of {TAGS_PER_RECORD_MAX}: "
            "read in several calls",
            tags=len(tags),
            tags_max=TAGS_PER_RECORD_MAX,
        )
    for tag in tags:
        check_tag(tag)
    return tuple(tags) if len(tags) == 1 else tuple(sorted(set(tags)))


def check_tag(tag: str) -> str:
    """Return a tag, or raise `InvalidName`."""
    return _known_tag(tag, "tag") if type(tag) is str else check_path(tag)


def check_position(position: Position, what: str) -> Position:
    """Return a position, or raise `InvalidArgument` for what can never be one."""
    if type(position) is not int or not 0 <= position <= NUMBER_MAX:
        raise _not_a_number(what, position)
    return position


def check_untrimmed(after: Position, trims: Iterable[tuple[str, Position]]) -> None:
    """Raise `Trimmed` if a tag is trimmed beyond what a reader of it has read."""
    check_position(after, "the position that a reader has come to")
    for tag, upto in trims:
        if upto > after:
            raise Trimmed(
                f"the records of tag {tag!r} were trimmed up to position {upto}, and this reader "
                f"has come to {after}: what it had still to read of them is gone. Begin anew with "
                "what is left, or restore the log from a copy",
                tag=tag,
                after=int(after),
                upto=int(upto),
            )


def check_timeout(timeout_s: float) -> float:
    """Return a time to wait in seconds; a deadline that has passed means not at all."""
    if (
        isinstance(timeout_s, bool)
        or not isinstance(timeout_s, (int, float))
        or math.isnan(timeout_s)
    ):
        raise InvalidArgument(f"a timeout is a number of seconds, not {timeout_s!r}")
    return max(0.0, timeout_s)


def check_metadata(key: str, value: bytes) -> None:
    """Refuse a metadata key outside the rule for names, and a value of another type or too long."""
    check_key(key)
    if type(value) is not bytes:
        raise InvalidArgument(f"a metadata value is bytes, not {type(value).__name__}", key=key)
    if len(value) > METADATA_BYTES_MAX:
        raise RecordTooLarge(
            f"a metadata value of {len(value)} bytes is over the bound of {METADATA_BYTES_MAX}: "
            "keep the bytes in a record and its position in the metadata",
            key=key,
            bytes=len(value),
            bytes_max=METADATA_BYTES_MAX,
        )


def check_version(version: int) -> int:
    """Return a metadata version, 0 standing for a key that does not exist."""
    if type(version) is not int or not 0 <= version <= NUMBER_MAX:
        raise _not_a_number("a metadata version", version)
    return version


def check_key(key: str) -> str:
    """Return a metadata key, or raise `InvalidName`."""
    return check_path(key, "metadata key")


def check_prefix(prefix: str) -> str:
    """Return a prefix of metadata keys: whole parts, or nothing for all keys."""
    return prefix if prefix == "" else check_path(prefix, "metadata prefix")


def _not_a_number(what: str, value: Any) -> InvalidArgument:
    return InvalidArgument(f"{what} is a whole number from 0 to {NUMBER_MAX}, not {value!r}")
