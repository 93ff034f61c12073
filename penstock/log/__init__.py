"""The shared log: one total order, many tags, atomic fenced appends."""

from penstock.log.contract import Log, LogStatistics, register, take_over
from penstock.log.local import LocalLog, open_log
from penstock.log.record import (
    START,
    Entry,
    Fence,
    Position,
    Record,
    RecordKind,
    Versioned,
)

__all__ = [
    "START",
    "Entry",
    "Fence",
    "LocalLog",
    "Log",
    "LogStatistics",
    "Position",
    "Record",
    "RecordKind",
    "Versioned",
    "open_log",
    "register",
    "take_over",
]
