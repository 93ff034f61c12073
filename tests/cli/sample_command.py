"""A subcommand with one ending of each kind, to run the entry point with."""

from __future__ import annotations

import argparse
from typing import Any

from penstock.errors import LogNotFound


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("sample", help="end in a chosen way")
    parser.add_argument("ending")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    if args.ending == "stream-error":
        raise LogNotFound("there is no log\nat orders: create one", path="orders")
    if args.ending == "bug":
        raise RuntimeError("this is a bug")
    if args.ending == "interrupt":
        raise KeyboardInterrupt
    if args.ending == "much-output":
        for line in range(100_000):
            print(line)
        return 0
    return int(args.ending)
