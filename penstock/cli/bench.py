"""`penstock bench NAME`: run a benchmark, show its table, and end with one line of JSON."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any

from penstock.bench import BENCHMARKS


def add_parser(subparsers: Any) -> None:
    """Add `penstock bench` to the command line, with one word per benchmark."""
    parser = subparsers.add_parser("bench", help="measure a part of Penstock beside its floors")
    names = parser.add_subparsers(title="benchmarks", metavar="NAME", required=True)
    for name, path in BENCHMARKS.items():
        module = import_module(path)
        benchmark = names.add_parser(name, help=module.TITLE, description=f"Measure {module.TITLE}")
        benchmark.add_argument(
            "--json", action="store_true", help="print the line of JSON only, no table"
        )
        module.add_arguments(benchmark)
        benchmark.set_defaults(func=run, benchmark=module)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark; a goal that is missed is shown, not an error: machines differ."""
    report = args.benchmark.measure(args)
    if not args.json:
        print(report.as_table())
    print(report.as_json())
    return 0
