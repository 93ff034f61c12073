"""The queries that this process has started: how to get hold of one again, as from another cell."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.arguments import check_folder, check_type
from penstock.errors import InvalidArgument, QueryNotFound

if TYPE_CHECKING:
    from penstock.api.query import StreamingQuery

ENDED_MAX = 100  # runs that are kept after their end


class StartedQueries:
    """The newest run of each query, by log and name.

    Runs are kept after their end, the newest of them, so that how they ended can be asked; the next
    start of a query takes its place.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[tuple[Path, str], StreamingQuery] = {}

    def add(self, query: StreamingQuery) -> None:
        key = (query.folder, query.stored_name)
        with self._lock:
            self._runs.pop(key, None)  # the newest run comes last
            self._runs[key] = query
            ended = [key for key, run in self._runs.items() if not run.isActive]
            for key in ended[:-ENDED_MAX]:
                del self._runs[key]

    def find(self, folder: Path, name: str) -> StreamingQuery | None:
        with self._lock:
            return self._runs.get((folder, name))

    def all(self) -> list[StreamingQuery]:
        with self._lock:
            return list(self._runs.values())

    def named(self, name: str) -> dict[Path, StreamingQuery]:
        """The runs of a name, by the folders of their logs."""
        with self._lock:
            runs = list(self._runs.items())
        return {folder: run for (folder, each), run in runs if name in (each, run.name)}


STARTED = StartedQueries()  # a process has one Spark context, and shares it out among its queries


def queries() -> list[StreamingQuery]:
    """The queries of this process that are running, in the order of their start."""
    return [query for query in STARTED.all() if query.isActive]


def query(name: str, log: str | os.PathLike[str] | None = None) -> StreamingQuery:
    """The newest run of a query that this process has started, also if it has ended.

    `log` is the folder of its log, for a name that queries of two logs have.
    """
    check_type(name, str, "name", "a text")
    found = STARTED.named(name)
    if log is not None:
        wanted = check_folder(log, "log")
        found = {folder: run for folder, run in found.items() if folder == wanted}
    if not found:
        known = ", ".join(sorted(run.title for run in STARTED.all())) or "none"
        raise QueryNotFound(
            f"this process has started no query {name!r}; known: {known}. What other processes run "
            "is shown by `penstock queries DIR`",
            query=name,
        )
    if len(found) > 1:
        folders = ", ".join(str(folder) for folder in found)
        raise InvalidArgument(
            f"queries of {len(found)} logs are called {name!r}: say which one with log=..., one of "
            f"{folders}",
            query=name,
        )
    return next(iter(found.values()))
