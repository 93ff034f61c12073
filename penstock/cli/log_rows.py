"""The rows of streams, for people: committed ones only, in the order in which they counted."""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.cli.tables import moment
from penstock.log import punit
from penstock.log.committed import CommittedReader, Release
from penstock.log.contract import Log
from penstock.log.record import Position
from penstock.log.survey import position_before_newest
from penstock.names import escape
from penstock.runtime.streams import describe_stream
from penstock.stages.tags import TagKind, parse_tag

FOLLOW_WAIT_S = 1.0

Row = tuple[str, int, dict[str, Any]]  # stream, time of its commit, values


def own_streams(log: Log) -> list[str]:
    """The streams that people named; those with a dot are a query's own."""
    names = [key.split("/", 1)[1] for key in log.keys("stream")]
    return [name for name in names if "." not in name]


def show_rows(
    log: Log, folder: Path, streams: list[str], limit: int, *, follow: bool, as_json: bool
) -> None:
    """Print the newest rows of some streams; with `follow`, go on until interrupted."""
    tags = [tag for stream in streams for tag in describe_stream(log, stream).tags]
    rows_only = [tag for tag in tags if parse_tag(tag).kind is TagKind.SUBSTREAM]
    newest: deque[Row] = deque(maxlen=limit)
    records = max(limit, 1)
    while True:
        begin = Position(position_before_newest(folder, rows_only, records))
        reader = CommittedReader(log, tags, begin or None)
        newest.clear()
        while (release := reader.take()) is not None:
            newest.extend(_rows(release, limit))
        if len(newest) == limit or not begin:
            break
        records *= 4  # no marker covers the newest ones
    for row in newest:
        _print(row, as_json)
    while follow:
        tail = log.tail()
        while (release := reader.take()) is not None:
            for row in _rows(release, None):
                _print(row, as_json)
        log.wait(tail, FOLLOW_WAIT_S)


def plain_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as JSON can have them."""
    return [{name: _plain(value) for name, value in row.items()} for row in batch.to_pylist()]


def _rows(release: Release, limit: int | None) -> Iterator[Row]:
    """The last rows of each record that a marker released, at most `limit`."""
    for record in release.records:
        batch = punit.decode(record.body)
        if limit is not None:
            batch = batch.slice(max(0, batch.num_rows - limit))
        stream = parse_tag(record.tags[0]).name
        for row in plain_rows(batch):
            yield stream, release.marker.time_us, row


def _print(row: Row, as_json: bool) -> None:
    stream, time_us, values = row
    if as_json:
        print(json.dumps({"stream": stream, "time_us": time_us, "row": values}), flush=True)
        return
    shown = json.dumps(values, ensure_ascii=False)
    print(escape(f"{moment(time_us)}  {stream}  {shown}"), flush=True)


def _plain(value: object) -> object:
    """A value of a row as JSON can have it."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return value if isinstance(value, str | int | float | bool | None) else str(value)
