"""`penstock sim`: run simulated failures by seed, and the broken engines that must be caught."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from penstock.kernels.cache import KernelCache
from penstock.sim.mutants import MUTANTS
from penstock.sim.runner import Campaign, Catch, SeedResult, catch, run_seed

SEEDS_FOR_EVERY_SITUATION = 1_000
SEEDS_FOR_TWO = 200  # processes; fewer are done before the second one has started
CHUNK_SEEDS = 5
PROGRESS_S = 10.0  # between two lines that say how far it is
QUIET = logging.CRITICAL  # the engine reports every fault that we make


def add_parser(subparsers: Any) -> None:
    """Add `penstock sim` to the command line."""
    parser = subparsers.add_parser(
        "sim",
        help="run the engine through simulated failures",
        description="Run the engine in virtual time, and let everything around it fail. A seed "
        "decides the query, its input, the schedule and every failure; the same seed is the same "
        "run.",
    )
    parser.add_argument("--seeds", type=_count, default=None, metavar="N", help="run N seeds")
    parser.add_argument(
        "--seed", type=_seed, default=None, metavar="S", help="begin at seed S; alone, run only it"
    )
    parser.add_argument(
        "--mutants", action="store_true", help="also run the broken engines: each must be caught"
    )
    parser.add_argument(
        "--processes", type=_count, default=None, metavar="P",
        help="share the work among P processes; two if there is much of it",
    )  # fmt: skip
    parser.add_argument("--trace", action="store_true", help="print the schedule of each seed")
    parser.add_argument("--json", action="store_true", help="print the line of JSON only")
    parser.add_argument(
        "--kernels", type=Path, default=None, metavar="FOLDER",
        help="keep compiled kernels here, for a faster next run",
    )  # fmt: skip
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Run the seeds; 1 if the engine broke a promise or a mutant got away."""
    logging.getLogger("penstock").setLevel(QUIET)
    with tempfile.TemporaryDirectory(prefix="penstock-sim-") as scratch:
        began_s = time.monotonic()
        with _workers(args, args.kernels or Path(scratch)) as workers:
            campaign = _run_seeds(args, workers)
            catches = _run_mutants(args, workers) if args.mutants else []
        seconds = time.monotonic() - began_s
    never = campaign.never if campaign.seeds >= SEEDS_FOR_EVERY_SITUATION else []
    if not args.json:
        _show(campaign, catches, never)
    print(json.dumps(_facts(campaign, catches, seconds)))
    missed = any(each.seed is None for each in catches)
    return 1 if campaign.violations or missed or never else 0


def _seeds(args: argparse.Namespace) -> range:
    first = args.seed or 0
    count = args.seeds if args.seeds is not None else (1 if args.seed is not None else 100)
    return range(first, first + count)


def _run_seeds(args: argparse.Namespace, workers: Executor) -> Campaign:
    seeds = _seeds(args)
    campaign = Campaign()
    progress = _Progress(args, "seeds", len(seeds))
    for result in workers.map(partial(_run, trace=args.trace), seeds, chunksize=CHUNK_SEEDS):
        campaign.add(result)
        if not args.json:
            _show_seed(result, always=len(seeds) == 1)
        progress.step(f"{len(campaign.violations)} violations")
    return campaign


def _run_mutants(args: argparse.Namespace, workers: Executor) -> list[Catch]:
    catches: list[Catch] = []
    progress = _Progress(args, "broken engines", len(MUTANTS))
    for found in workers.map(_catch, range(len(MUTANTS))):
        catches.append(found)
        progress.step(f"{sum(each.seed is not None for each in catches)} caught")
    return catches


class _Progress:
    """Says now and then how far a long run is, beside its results."""

    def __init__(self, args: argparse.Namespace, what: str, count: int) -> None:
        self._is_shown = not args.json
        self._what, self._count = what, count
        self._done = 0
        self._said_s = time.monotonic()

    def step(self, so_far: str) -> None:
        self._done += 1
        now_s = time.monotonic()
        if self._is_shown and now_s - self._said_s >= PROGRESS_S:
            self._said_s = now_s
            print(f"{self._done} of {self._count} {self._what}, {so_far}", file=sys.stderr)


# Processes that share the work ----------------------------------------------------------------

_kernels: KernelCache  # of this process


def _workers(args: argparse.Namespace, folder: Path) -> Executor:
    is_much = len(_seeds(args)) >= SEEDS_FOR_TWO or args.mutants
    processes = args.processes or (2 if is_much else 1)
    if processes == 1:
        _begin(folder)
        return _Here()
    return ProcessPoolExecutor(processes, get_context("spawn"), _begin, (folder,))


class _Here(Executor):
    """Does everything at once, in this process."""

    def map(
        self, fn: Any, *iterables: Any, timeout: float | None = None, chunksize: int = 1
    ) -> Any:
        return map(fn, *iterables)


def _begin(folder: Path) -> None:
    global _kernels  # noqa: PLW0603 (one for each process of the pool)
    logging.getLogger("penstock").setLevel(QUIET)
    _kernels = KernelCache(folder)


def _run(seed: int, trace: bool) -> SeedResult:
    return run_seed(seed, _kernels, trace=trace)


def _catch(number: int) -> Catch:
    return catch(MUTANTS[number], _kernels)


def _show_seed(result: SeedResult, always: bool) -> None:
    for line in result.lines:
        print(line)
    if result.violation is not None:
        print(f"seed {result.seed} ({result.shape}): VIOLATION {result.violation}")
        if result.details:
            print(result.details)
        print(f"  again: penstock sim --seed {result.seed} --trace")
    elif always:
        print(f"seed {result.seed} ({result.shape}): {result.steps} steps, {result.trace_hash}")


def _show(campaign: Campaign, catches: list[Catch], never: list[str]) -> None:
    print(f"{campaign.seeds} seeds, {campaign.steps} steps, {len(campaign.violations)} violations")
    _show_counts("faults", campaign.faults)
    _show_counts("sometimes", campaign.sometimes)
    for name in never:
        print(f"NEVER {name}: the run was not what it should be")
    for each in catches:
        found = f"seed {each.seed}: {each.violation}" if each.seed is not None else "NOT CAUGHT"
        print(f"mutant {each.mutant:28} {each.misfit or found}"[:160])


def _show_counts(title: str, counts: Counter[str]) -> None:
    print(f"{title}:")
    for name, count in sorted(counts.items()):
        print(f"  {count:8} {name}")


def _facts(campaign: Campaign, catches: list[Catch], seconds: float) -> dict[str, Any]:
    return {
        "seeds": campaign.seeds,
        "schedules": campaign.seeds,
        "steps": campaign.steps,
        "violations": len(campaign.violations),
        "violating_seeds": [result.seed for result in campaign.violations],
        "faults": dict(sorted(campaign.faults.items())),
        "sometimes": dict(sorted(campaign.sometimes.items())),
        "mutants": len(catches),
        "mutants_caught": sum(each.seed is not None for each in catches),
        "mutants_missed": [each.mutant for each in catches if each.seed is None],
        "seconds": round(seconds, 3),
    }


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 10_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seeds from 1 to 10,000,000")
    return int(text)


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a seed: a whole number from 0 on")
    return int(text)
