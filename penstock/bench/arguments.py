"""Arguments that several benchmarks take; argparse turns their errors into its messages."""

from __future__ import annotations

import argparse


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
