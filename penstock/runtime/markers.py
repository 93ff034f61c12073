"""Markers: what one of them says, and its bytes.

A marker is the only thing that a vertex must remember. It commits the vertex's records before it
and tells the next instance where to go on. It is JSON with a version, because it is read back from
disk by programs that may be newer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from xxhash import xxh3_128_hexdigest

from penstock.errors import MarkerDamaged, StageVersionUnsupported
from penstock.json_codec import compact_json, fields_of, parse, read_as
from penstock.log.contract import Log
from penstock.log.record import START, Position, Record
from penstock.names import check_any_name
from penstock.operators.contract import TIME_END, TIME_NONE, moved_back

MARKER_VERSION = 4
WATERMARK_END = TIME_END
WATERMARK_NONE = TIME_NONE


class Said(NamedTuple):
    """What a producer has said about its rows so far."""

    watermark_us: int = WATERMARK_NONE
    ended: bool = False
    caught_up_run: int = 0  # the run of its query in which it had no more for now; 0: it may have
    rests: bool = False  # it had taken all there was by then


class PortMark(NamedTuple):
    """What a vertex knew of one of its ports."""

    seen_us: int = WATERMARK_NONE  # the watermark by its rows so far, where the port defines one
    producers: Mapping[str, Said] = MappingProxyType({})  # what they had said, as of `consumed`


@dataclass(frozen=True, slots=True)
class Marker:
    """The progress of a vertex at a moment between two steps."""

    vertex: str
    instance: int
    epoch: int  # counts the vertex's markers over all instances, from 1
    consumed: Position = START  # the last input marker whose rows are in this state
    resume: Position = START  # where to read the input on
    offset: Any = None  # of a source: the next row to read
    watermark_us: int = WATERMARK_NONE  # how far event time has come here
    behind_us: int = 0  # no later output is older than that, but for so much
    ended: bool = False  # there will be no later output
    caught_up: bool = False  # there is no more for now, so it holds nobody's watermark back
    rests: bool = False  # all there was is taken, here and before; said where others may go on
    had_input: bool = False  # there was some, here or before, though it may have held no row
    whole: bool = False  # the rows of this epoch, if any, are all of the result: complete mode
    state_from: Position = START  # an earlier marker with which the state was empty; or nothing was
    ports: tuple[PortMark, ...] = ()
    statics: Mapping[str, int] = field(default_factory=dict)  # versions that rows behind it meet
    progress: tuple[Any, ...] = ()  # of the chain's operators
    late_rows: int = 0  # so far
    rejected_rows: int = 0  # so far
    # Says nothing about time and about the end: of a write that is over with its commit. Whoever
    # reads it need not remember its producer.
    timeless: bool = False

    @property
    def output_watermark_us(self) -> int:
        """No later output is older than this."""
        return moved_back(self.watermark_us, self.behind_us)

    def encode(self) -> bytes:
        return compact_json({"version": MARKER_VERSION, **fields_of(self)})


def marker_at(log: Log, vertex_tag: str, position: Position) -> Record | None:
    """The marker of a vertex at a position; None if there is none, or none any more."""
    found = log.read([vertex_tag], Position(position - 1), 1) if position > START else []
    return found[0] if found and found[0].position == position else None


def marker_digest(marker: Record) -> str:
    """A name for this very record.

    After a power cut that lost the end of a log, a position may be taken by another marker of the
    same vertex, instance and epoch. It was not taken at the same microsecond.
    """
    name = (marker.position, marker.producer, marker.instance, marker.sequence, marker.time_us)
    return xxh3_128_hexdigest(repr(name).encode() + marker.body)


def decode_marker(record: Record) -> Marker:
    """Read a marker back; whatever is not one is named with its position."""
    try:
        facts: Any = parse(record.body)
        version = facts.pop("version")
        if version != MARKER_VERSION:
            raise StageVersionUnsupported(
                f"the marker at position {record.position} has version {version}, this Penstock "
                f"reads {MARKER_VERSION}: run the one that wrote it, or begin a new log",
                position=record.position,
            )
        marker = read_as(Marker, facts, "marker")
        check_any_name(marker.vertex, "vertex")
        for port in marker.ports:
            for producer in port.producers:
                check_any_name(producer, "producer")
        return marker
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MarkerDamaged(
            f"the marker of {record.producer} at position {record.position} cannot be read "
            f"({error}): run `penstock fsck`",
            position=record.position,
            producer=record.producer,
        ) from error
