"""The rows of streams, for people: committed ones only, in the order in which they counted."""

from __future__ import annotations

import base64
import heapq
import json
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.cli.tables import moment
from penstock.errors import Trimmed
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


def given_streams(log: Log) -> list[str]:
    """The streams that people named; those with a dot are a query's own."""
    names = [key.split("/", 1)[1] for key in log.keys("stream")]
    return [name for name in names if "." not in name]


def show_rows(
    log: Log, folder: Path, streams: list[str], limit: int, *, follow: bool, as_json: bool
) -> None:
    """Print the newest rows of some streams; with `follow`, go on until interrupted."""
    tags = [describe_stream(log, stream).tags for stream in streams]
    rows_only = [tag for tag in chain(*tags) if parse_tag(tag).kind is TagKind.SUBSTREAM]
    newest: deque[Row] = deque(maxlen=limit)
    records = max(limit, 1)
    while True:
        begin = Position(position_before_newest(folder, rows_only, records))
        readers = [_reader(log, each, begin) for each in tags]
        newest.clear()
        try:
            for release in _releases(readers):
                newest.extend(_rows(release, limit))
        except Trimmed:
            continue  # a stream was cut just now: what is newest is not what it was
        if len(newest) == limit or not begin:
            break
        records *= 4  # no marker covers the newest ones
    for row in newest:
        _print(row, as_json)
    while follow:
        tail = log.tail()
        for release in _releases(readers):
            for row in _rows(release, None):
                _print(row, as_json)
        log.wait(tail, FOLLOW_WAIT_S)


def _reader(log: Log, tags: Sequence[str], begin: Position) -> CommittedReader:
    """A reader of one stream, which may be cut further than to where the newest rows begin."""
    is_cut = begin <= max(log.trimmed(tag) for tag in tags)
    return CommittedReader(log, tags, None if is_cut else begin)


def _releases(readers: Sequence[CommittedReader]) -> Iterator[Release]:
    """What is committed and not yet read in any of some streams, in order."""
    each = (iter(reader.take, None) for reader in readers)
    yield from heapq.merge(*each, key=lambda release: release.marker.position)


def plain_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as JSON can have them."""
    return [{name: _plain(value) for name, value in row.items()} for row in batch.to_pylist()]


def _rows(release: Release, limit: int | None) -> Iterator[Row]:
    """The last rows of each record that a marker released, at most `limit`."""
    for record in release.records:
        batch = punit.decode_record(record)
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
