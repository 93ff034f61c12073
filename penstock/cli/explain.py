"""`penstock explain`: what a stored query does, keeps and promises."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from penstock.api.promises import explain_with_ends
from penstock.log.local import LocalLog, open_log
from penstock.names import escape
from penstock.runtime.queries import StoredQuery, needed_query


def add_parser(subparsers: Any) -> None:
    """Add `penstock explain` to the command line."""
    parser = subparsers.add_parser(
        "explain", help="what a stored query does, keeps and promises; never writes"
    )
    parser.add_argument("dir", metavar="DIR", type=Path)
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--json", action="store_true", help="print the program itself, as JSON")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Explain a query."""
    with open_log(args.dir, read_only=True) as log:
        query = needed_query(log, args.name)
        print(_as_json(query) if args.json else _as_text(query, log))
    return 0


def _as_json(query: StoredQuery) -> str:
    facts = {
        "name": query.name,
        "id": query.id,
        "output": query.output,
        "sink": query.sink,
        "beside": dict(query.beside),
        "fed": dict(query.fed),
        "checkpoint_location": query.location,
        "program": json.loads(query.program.to_json()),
    }
    return json.dumps(facts)


def _as_text(query: StoredQuery, log: LocalLog) -> str:
    text = explain_with_ends(query.program, log, query.sinks.values(), query.fed)
    return "\n".join(escape(line) for line in text.splitlines())
