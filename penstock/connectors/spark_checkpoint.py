"""What the file sources of a Structured Streaming query have read, by the query's checkpoint.

Spark notes a batch in `offsets/<n>` before it runs and in `commits/<n>` afterwards. The offset of a
file source is a number K; which files that was is in `sources/<i>/`: a line of JSON for each, with
the K of the batch that took it, in a file for each K or, of every tenth, one with all before it.
Files that are noted there under a larger number were found, and belong to no batch yet.

Only read: a checkpoint belongs to Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from penstock.errors import QueryMismatch

_VERSION = "v1"


def files_read(checkpoint: Path) -> list[frozenset[str]]:
    """By file source, in Spark's order: the files that committed batches have read.

    QueryMismatch if that cannot be known, or if a batch was begun and is not committed.
    """
    planned, committed = (_newest(checkpoint / name) for name in ("offsets", "commits"))
    if planned is None:
        raise _refused(checkpoint, "it holds no batch of a Structured Streaming query")
    if planned != committed:
        raise _refused(
            checkpoint,
            f"batch {planned} was begun there and is not committed: its rows may be in the result "
            "or not. Start the query once more on Structured Streaming, as it was, with "
            "trigger(availableNow=True), let it end, and start this one again",
        )
    try:
        offsets = _offsets(checkpoint / "offsets" / str(planned))
        found = [
            _files(checkpoint / "sources" / str(number), offset["logOffset"])
            for number, offset in enumerate(offsets)
            if isinstance(offset, dict) and offset.keys() == {"logOffset"}
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _refused(checkpoint, f"it cannot be read ({error})") from error
    if len(found) < len(offsets):
        raise _refused(checkpoint, "its query has sources that are not folders of files")
    return found


def _newest(folder: Path) -> int | None:
    """The largest number that a file of a folder is named by."""
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return None
    return max((int(name) for name in names if name.isdecimal()), default=None)


def _offsets(path: Path) -> list[Any]:
    version, _, *offsets = path.read_text(encoding="utf-8").splitlines()
    if version != _VERSION:
        raise ValueError(f"{path.name} is of version {version!r}")
    return [None if each == "-" else json.loads(each) for each in offsets]


def _files(folder: Path, upto: int) -> frozenset[str]:
    """The files that a source has taken up to a number, as paths of this machine."""
    return frozenset(
        _local(entry["path"]) for entry in _entries(folder) if entry["batchId"] <= upto
    )


def _entries(folder: Path) -> Iterator[dict[str, Any]]:
    for path in folder.iterdir():
        if path.name.isdecimal() or path.name.removesuffix(".compact").isdecimal():
            version, *lines = path.read_text(encoding="utf-8").splitlines()
            if version != _VERSION:
                raise ValueError(f"{path} is of version {version!r}")
            yield from map(json.loads, lines)


def _local(address: str) -> str:
    parts = urlsplit(address)
    if parts.scheme not in ("", "file"):
        raise ValueError(f"{address} is not on this machine")
    return unquote(parts.path)


def _refused(checkpoint: Path, why: str) -> QueryMismatch:
    return QueryMismatch(
        f"the query cannot start after the checkpoint {checkpoint}: {why}",
        location=str(checkpoint),
    )
