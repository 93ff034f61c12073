"""`penstock warm`: compile now what the first query, or the first start of one, would compile."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from penstock.kernels.background import compile_package
from penstock.kernels.cache import KernelCache
from penstock.kernels.private_folder import private_kernels_folder
from penstock.log.local import open_log
from penstock.runtime.assembly import warm_program
from penstock.runtime.queries import needed_query, stored_names


def add_parser(subparsers: Any) -> None:
    """Add `penstock warm` to the command line."""
    parser = subparsers.add_parser(
        "warm",
        help="compile the package's loops, and the kernels of a log's queries",
        description="Compile what queries on this machine would compile when they first start. "
        "Run it as the user that the executors run as.",
    )
    parser.add_argument(
        "dir", metavar="DIR", type=Path, nargs="?", help="a log: the kernels of its queries too"
    )
    parser.add_argument(
        "--kernels", type=Path, metavar="FOLDER", help="where to, if queries are told where"
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Compile, and say how much."""
    kernels = KernelCache(args.kernels or private_kernels_folder())
    compiled = compile_package(kernels)
    print(f"{compiled} loops and readers compiled; all others were there")
    if args.dir is not None:
        with open_log(args.dir, read_only=True) as log:
            names = stored_names(log)
            programs = [needed_query(log, name).program for name in names]
        for program in programs:
            warm_program(program, kernels)
            print(f"query {program.query}: kernels compiled")
    return 0
