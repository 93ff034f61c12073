"""Arguments that several benchmarks take; argparse turns the errors of types into its messages."""

from __future__ import annotations

import argparse
from pathlib import Path


def seconds(text: str) -> float:
    """A time to measure for."""
    value = float(text)
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not a time from 0 to 3,600 seconds")
    return value


def whole(text: str) -> int:
    """A rate or a number of turns."""
    value = int(text)
    if not 1 <= value <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 to 1,000,000")
    return value


def add_comparison(
    parser: argparse.ArgumentParser, *, seconds_default: float, warmup_default: float
) -> None:
    """What every comparison with Structured Streaming takes."""
    for name, default, meaning in (
        ("--seconds", seconds_default, "measured time of an engine"),
        ("--warmup", warmup_default, "time before it, not measured"),
    ):
        parser.add_argument(
            name,
            type=seconds,
            default=default,
            metavar="S",
            help=f"{meaning} (default {default:g})",
        )
    parser.add_argument(
        "--against", choices=("spark", "none"), default="spark", help="what to compare with"
    )
    parser.add_argument(
        "--dir", type=Path, default=Path(), help="a folder on the disk to use (default .)"
    )
