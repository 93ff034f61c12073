"""Settings, one frozen object per layer, built at the edge, checked when built and passed down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from penstock.errors import InvalidConfig

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

Durability = Literal["synced", "process"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """How one handle of a shared log writes, and what it refuses.

    `durability` is fixed when the log is created; the other settings belong to the handle.
    """

    durability: Durability = "synced"
    """`synced`: on disk before an append returns. `process`: survives any crash of processes, but
    a power cut may take the newest records, and nothing else."""

    segment_bytes_max: int = 64 * MIB
    """A segment that has reached this size is closed and the next one begun."""

    inline_bytes_max: int = 32 * KIB
    """Bodies up to this size sit in the index, where they cost no sync of their own; 0: none do."""

    body_bytes_max: int = 64 * MIB
    """The largest body of a record."""

    append_bytes_max: int = 256 * MIB
    """The largest sum of bodies in one append."""

    wal_bytes_max: int = 32 * MIB
    """How far the index's write-ahead log grows before it is folded into the index."""

    punit_raw_bytes_max: int = 1 * GIB
    """The most memory that one p-unit may take once decompressed."""

    def __post_init__(self) -> None:
        levels = get_args(Durability)
        if self.durability not in levels:
            raise InvalidConfig(
                f"durability is {self.durability!r}; it is one of {', '.join(levels)}",
                setting="durability",
                value=str(self.durability)[:200],
            )
        # Lengths inside a segment are 32-bit; 4 KiB is the smallest file worth its directory entry.
        _check_range("segment_bytes_max", self.segment_bytes_max, 4 * KIB, 4 * GIB)
        _check_range("append_bytes_max", self.append_bytes_max, 1, 4 * GIB)
        _check_range("body_bytes_max", self.body_bytes_max, 1, min(self.append_bytes_max, GIB))
        _check_range("inline_bytes_max", self.inline_bytes_max, 0, min(self.body_bytes_max, MIB))
        _check_range("wal_bytes_max", self.wal_bytes_max, 64 * KIB, 4 * GIB)
        _check_range("punit_raw_bytes_max", self.punit_raw_bytes_max, 1, 64 * GIB)


def _check_range(setting: str, value: int, least: int, most: int) -> None:
    """Raise InvalidConfig unless the value is an int (True is not) from least to most."""
    if type(value) is not int or not least <= value <= most:
        raise InvalidConfig(
            f"{setting} is {value!r}; it is a whole number from {least:,} to {most:,}",
            setting=setting,
            value=str(value)[:200],
            least=least,
            most=most,
        )
