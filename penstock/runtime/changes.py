"""The committed changes of a vertex's states, as its commits left them in the log."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pyarrow as pa

from penstock.errors import ChangeLogBroken
from penstock.log import punit
from penstock.log.committed import CommittedReader
from penstock.log.contract import Log
from penstock.log.record import Position

STATE_NAME = b"penstock.state"  # schema metadata of a change: which state it belongs to

Changes = list[tuple[str, pa.RecordBatch]]


def committed_changes(
    log: Log, change_tag: str, after: Position, upto: Position, known: Collection[str]
) -> Iterator[Changes]:
    """What each commit after a marker and up to another changed, by state, in order.

    Whoever does not own the vertex looks afterwards whether some were trimmed meanwhile.
    """
    reader = CommittedReader(log, [change_tag], after)
    while reader.consumed < upto and (release := reader.take()) is not None:
        if release.marker.position > upto:
            return
        changes: Changes = []
        for record in release.records:
            batch = punit.decode_record(record)
            name = (batch.schema.metadata or {}).get(STATE_NAME, b"").decode()
            if name not in known:
                raise ChangeLogBroken(
                    f"the change at position {record.position} belongs to state {name!r}, which "
                    f"the program of {record.producer} does not have: plan the query again",
                    position=record.position,
                    state=name,
                )
            changes.append((name, batch.replace_schema_metadata(None)))
        yield changes
