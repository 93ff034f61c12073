"""Markers: what one of them says, and its bytes.

A marker is the only thing that a vertex must remember. It commits the vertex's records before it
and tells the next instance where to go on. It is JSON with a version, because it is read back from
disk by programs that may be newer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from xxhash import xxh3_128_hexdigest

from penstock.errors import MarkerDamaged, StageVersionUnsupported
from penstock.log.contract import Log
from penstock.log.record import START, Position, Record
from penstock.names import check_any_name

MARKER_VERSION = 4
WATERMARK_END = 2**63 - 1  # nothing will come any more
WATERMARK_NONE = -(2**63)


class Said(NamedTuple):
    """What a producer has said about its rows so far."""

    watermark_us: int = WATERMARK_NONE
    ended: bool = False
    caught_up_run: int = 0  # the run of its query in which it had no more for now; 0: it may have


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
    watermark_us: int = WATERMARK_NONE  # no later output is older than this
    ended: bool = False  # there will be no later output
    caught_up: bool = False  # there is no more for now, so it holds nobody's watermark back
    whole: bool = False  # the rows of this epoch, if any, are all of the result: complete mode
    ports: tuple[PortMark, ...] = ()
    progress: tuple[Any, ...] = ()  # of the chain's operators
    late_rows: int = 0  # so far
    rejected_rows: int = 0  # so far
    # Says nothing about time and about the end: of a write that is over with its commit. Whoever
    # reads it need not remember its producer.
    timeless: bool = False

    def encode(self) -> bytes:
        facts = {
            "version": MARKER_VERSION,
            "vertex": self.vertex,
            "instance": self.instance,
            "epoch": self.epoch,
            "consumed": self.consumed,
            "resume": self.resume,
            "offset": self.offset,
            "watermark_us": self.watermark_us,
            "ended": self.ended,
            "caught_up": self.caught_up,
            "whole": self.whole,
            "ports": [
                [port.seen_us, {name: list(said) for name, said in port.producers.items()}]
                for port in self.ports
            ],
            "progress": self.progress,
            "late_rows": self.late_rows,
            "rejected_rows": self.rejected_rows,
            "timeless": self.timeless,
        }
        return json.dumps(facts, separators=(",", ":"), allow_nan=False).encode()


def marker_at(log: Log, task_tag: str, position: Position) -> Record | None:
    """The marker of a vertex at a position; None if there is none, or none any more."""
    found = log.read([task_tag], Position(position - 1), 1) if position > START else []
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
        facts: Any = json.loads(bytes(record.body))
        if facts["version"] != MARKER_VERSION:
            raise StageVersionUnsupported(
                f"the marker at position {record.position} has version {facts['version']}, this "
                f"Penstock reads {MARKER_VERSION}: run the one that wrote it, or begin a new log",
                position=record.position,
            )
        return Marker(
            vertex=check_any_name(facts["vertex"], "vertex"),
            instance=int(facts["instance"]),
            epoch=int(facts["epoch"]),
            consumed=Position(int(facts["consumed"])),
            resume=Position(int(facts["resume"])),
            offset=facts["offset"],
            watermark_us=int(facts["watermark_us"]),
            ended=bool(facts["ended"]),
            caught_up=bool(facts["caught_up"]),
            whole=bool(facts["whole"]),
            ports=tuple(_port(seen_us, said) for seen_us, said in facts["ports"]),
            progress=tuple(facts["progress"]),
            late_rows=int(facts["late_rows"]),
            rejected_rows=int(facts["rejected_rows"]),
            timeless=bool(facts["timeless"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MarkerDamaged(
            f"the marker of {record.producer} at position {record.position} cannot be read "
            f"({error}): run `penstock fsck`",
            position=record.position,
            producer=record.producer,
        ) from error


def _port(seen_us: Any, said: Any) -> PortMark:
    producers = {
        check_any_name(name, "producer"): Said(int(watermark_us), bool(ended), int(run))
        for name, (watermark_us, ended, run) in said.items()
    }
    return PortMark(int(seen_us), producers)
