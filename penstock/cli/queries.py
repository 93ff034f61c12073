"""`penstock queries`: the queries that a log keeps, who runs them, and how far they have come."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.cli.tables import moment, table
from penstock.log.contract import Log
from penstock.log.local import open_log
from penstock.runtime.markers import WATERMARK_END, WATERMARK_NONE
from penstock.runtime.queries import (
    QueryProgress,
    RunState,
    StoredQuery,
    needed_query,
    query_progress,
    run_state,
    running_process,
    stored_names,
)

HEADINGS = (
    "query", "state", "process", "output", "stages", "vertices", "epoch", "watermark", "late",
    "rejected", "id",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class QueryView:
    """A stored query, who runs it, and where it stands."""

    stored: StoredQuery
    progress: QueryProgress
    process: int | None
    run: RunState | None

    @property
    def state(self) -> str:
        """Running, ended (its input has), stopped, failed, died, or new: never started."""
        if self.process is not None:
            return "running"
        if self.progress.has_ended:
            return "ended"
        if self.run is None:
            return "new"
        return "died" if self.run is RunState.RUNNING else self.run.value

    @property
    def watermark(self) -> str:
        watermark_us = self.progress.watermark_us
        if watermark_us == WATERMARK_END:
            return "end"
        return "-" if watermark_us == WATERMARK_NONE else moment(watermark_us)


def add_parser(subparsers: Any) -> None:
    """Add `penstock queries` to the command line."""
    parser = subparsers.add_parser(
        "queries", help="the queries of a log and how far they are; never writes"
    )
    parser.add_argument("dir", metavar="DIR", type=Path)
    parser.add_argument("--json", action="store_true", help="print JSON, one object per line")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """List the stored queries."""
    with open_log(args.dir, read_only=True) as log:
        views = [look_at(log, args.dir, name) for name in stored_names(log)]
    if args.json:
        for view in views:
            print(json.dumps(encode(view)))
    elif views:
        print(table(HEADINGS, [_row(view) for view in views]))
    else:
        print("no queries")
    return 0


def look_at(log: Log, folder: Path, name: str) -> QueryView:
    """Put together what is known about a query."""
    stored = needed_query(log, name)
    run = run_state(log, name)  # asked first: a run that ends meanwhile has not died
    process = running_process(folder, name)
    return QueryView(stored, query_progress(log, stored.program), process, run)


def encode(view: QueryView) -> dict[str, Any]:
    """A query as JSON, with each of its vertices."""
    stored, progress = view.stored, view.progress
    return {
        "name": stored.name,
        "id": stored.id,
        "state": view.state,
        "process": view.process,
        "output": stored.output,
        "sink": stored.sink,
        "checkpoint_location": stored.location,
        "stages": len(stored.program.stages),
        "epoch": progress.epoch,
        "watermark_us": _known_time(progress.watermark_us),
        "late_rows": progress.late_rows,
        "rejected_rows": progress.rejected_rows,
        "vertices": {
            name: None
            if marker is None
            else {
                "instance": marker.instance,
                "epoch": marker.epoch,
                "watermark_us": _known_time(marker.watermark_us),
                "ended": marker.ended,
                "late_rows": marker.late_rows,
                "rejected_rows": marker.rejected_rows,
            }
            for name, marker in progress.markers.items()
        },
    }


def _row(view: QueryView) -> tuple[object, ...]:
    stored, progress = view.stored, view.progress
    process = "-" if view.process is None else str(view.process)
    return (
        stored.name,
        view.state,
        process,
        stored.output,
        len(stored.program.stages),
        len(stored.program.vertices),
        progress.epoch,
        view.watermark,
        progress.late_rows,
        progress.rejected_rows,
        stored.id,
    )


def _known_time(watermark_us: int) -> int | None:
    return None if watermark_us in (WATERMARK_NONE, WATERMARK_END) else watermark_us
