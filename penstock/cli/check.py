"""`penstock check`: what would run where, if a PySpark program were taken over; nothing runs."""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path
from typing import Any

from penstock.cli.run import EXIT_FAILED, as_if_called, prepare_program, run_script, taken_over
from penstock.names import escape


def add_parser(subparsers: Any) -> None:
    """Add `penstock check` to the command line."""
    parser = subparsers.add_parser(
        "check",
        help="what of a PySpark program would run here; starts no query",
        description="Run a PySpark program up to each start of a streaming query, which is only "
        "planned: its stages, what is compiled, its state and when that goes, or why Structured "
        "Streaming would run it. All else that the program does is done. Exit code 1: a query "
        "would not run here, or the program failed.",
    )
    parser.add_argument("file", metavar="FILE.py", type=Path)
    parser.add_argument("args", nargs=argparse.REMAINDER, help="passed on to the program")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Run the program with its queries only planned, and sum up."""
    prepare_program(args.file)
    failed = False
    with taken_over(only_plans=True) as taken, as_if_called(str(args.file), args.args):
        try:
            failed = run_script(args.file) != 0
        except Exception:
            # It may well be that it wanted to read what a query has not written.
            failed = True
            for line in ("the program ended here:", *traceback.format_exc(limit=-1).splitlines()):
                print(escape(line), file=sys.stderr)
    for line in taken.summary().splitlines():
        print(escape(line))
    return EXIT_FAILED if failed or any(each.reason for each in taken.starts) else 0
