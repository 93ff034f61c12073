"""The benchmark of codecs: ratio against speed for each, by shape of data, and who is chosen."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.bench.report import QueriesReport, machine_facts, median
from penstock.clock import SystemClock
from penstock.log.codecs.choosing import Chooser, Speeds
from penstock.log.codecs.columns import ColumnReader, column_node, schemes_for
from penstock.log.codecs.nodes import Budget, Unfit

TITLE = "codecs of columns: ratio, speed, and which one is chosen"
ROWS = 500_000
READINGS = 5
DISKS_MB_S = (100, 400, 2_000, 1_000_000)
WITHIN = 1.1  # of the cost of the best
DIGITS = {"floats_two_digits": 2}  # of shapes whose floats may lose the others
SCALED = tuple(f"scaled.{name}" for name in ("pack", "delta.pack", "blocks", "delta.blocks"))


def _shapes(rows: int) -> dict[str, pa.Array]:
    rng = np.random.default_rng(1)
    words = np.array(["view", "click", "purchase", "refund"])
    steady = 1_700_000_000_000_000 + np.arange(rows) * 1_000
    jitter = np.cumsum(rng.integers(0, 2_000, rows)) + steady[0]
    random = rng.integers(97, 123, (rows, 12), np.uint8)
    random_words = np.ascontiguousarray(random).view("S12")[:, 0]
    small = rng.integers(0, 1_000, rows)
    thousandths = np.repeat(rng.integers(0, 400, rows // 5 + 1), 5)[:rows] / 1_000
    outliers = np.where(rng.random(rows) < 0.001, 1 << 40, small)
    return {
        "constant": pa.array(np.full(rows, 7, np.int64)),
        "timestamps_steady": pa.array(steady).cast(pa.timestamp("us")),
        "timestamps_jitter": pa.array(jitter).cast(pa.timestamp("us")),
        "timestamps_repeated": pa.array(np.repeat(steady[:: 100], 100)[:rows]),
        "ints_few_values": pa.array(rng.choice(rng.integers(0, 1 << 60, 8), rows)),
        "ints_small": pa.array(small),
        "ints_small_32": pa.array(small.astype(np.int32)),
        "ints_outliers": pa.array(outliers),
        "ints_runs": pa.array(np.repeat(rng.integers(0, 1 << 20, rows // 20 + 1), 20)[:rows]),
        "ints_random": pa.array(rng.integers(-(1 << 62), 1 << 62, rows)),
        "doubles_walk": pa.array(np.cumsum(rng.normal(size=rows))),
        "doubles_cents": pa.array(np.round(100 + np.cumsum(rng.normal(size=rows)), 2)),
        "floats_two_digits": pa.array(thousandths.astype(np.float32)),
        "texts_few": pa.array(words[rng.integers(0, 4, rows)]),
        "texts_random": pa.array(random_words.astype(str)),
    }  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=ROWS, metavar="N", help="of a column")


class CodecsReport(QueriesReport):
    """Codecs by shape."""

    def as_table(self) -> str:
        return _table(self)


def measure(args: argparse.Namespace) -> CodecsReport:
    """Every codec over every shape, and what is chosen for disks of some speeds."""
    facts = machine_facts() | {"rows": args.rows, "disks_mb_s": list(DISKS_MB_S)}
    report = CodecsReport(TITLE, facts)
    for name, column in _shapes(args.rows).items():
        digits = DIGITS.get(name)
        schemes = (*schemes_for(column.type), *(SCALED if digits is not None else ()))
        codecs = {s: found for s in schemes if (found := _codec(column, s, digits or 0))}
        report.queries[name] = {"codecs": codecs, "chosen": _chosen(column, codecs, digits)}
    within = [each["within"] for of in report.queries.values() for each in of["chosen"].values()]
    report.reach = {"chosen_within_10_percent": all(within)}
    report.facts |= {"choices": len(within), "choices_within": sum(within)}
    return report


def _codec(column: pa.Array, scheme: str, digits: int) -> dict[str, float] | None:
    try:
        node = column_node(column, scheme, None, digits)
    except Unfit:
        return None
    write_s = _median_s(lambda: column_node(column, scheme, None, digits))
    read_s = _median_s(
        lambda: ColumnReader(len(column), Budget(1 << 40), _no_message).column(node, column.type)
    )
    return {
        "ratio": round(column.nbytes / node.bytes, 3),
        "encode_mb_s": round(column.nbytes / write_s / 1e6, 1),
        "decode_mb_s": round(column.nbytes / read_s / 1e6, 1),
    }


def _no_message(message: pa.Buffer, schema: pa.Schema, rows: int) -> pa.RecordBatch:
    raise NotImplementedError


def _median_s(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(READINGS):
        start_s = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start_s)
    return median(taken)


def _chosen(
    column: pa.Array, codecs: dict[str, dict[str, float]], digits: int | None
) -> dict[str, Any]:
    """For each disk: what is chosen, what was best over the whole column, and how they compare."""
    speeds = Speeds(SystemClock())
    chosen: dict[str, Any] = {}
    for disk in DISKS_MB_S:
        store = speeds.store + 1 / (disk * 1e6)

        def cost(name: str, store: float = store) -> float:
            found = codecs[name]
            busy = 0.0
            if name != "none":
                busy = 1 / found["encode_mb_s"] + 1 / found["decode_mb_s"]
            return busy / 1e6 + store / found["ratio"]

        speed = float(disk * 1e6)
        clock = SystemClock()
        chooser = Chooser(lambda speed=speed: speed, speeds, clock, digits=digits)  # type: ignore[misc]
        chooser.nodes([column])
        picked, best = chooser.plans[0].scheme, min(codecs, key=cost)
        ratio = cost(picked) / cost(best) if picked in codecs else float("inf")
        chosen[str(disk)] = {
            "codec": picked,
            "best": best,
            "cost_ratio": round(ratio, 3),
            "within": ratio <= WITHIN,
        }
    return chosen


def _table(report: CodecsReport) -> str:
    lines = [TITLE]
    for name, found in report.queries.items():
        lines += ["", name]
        for codec, of in found["codecs"].items():
            lines.append(
                f"  {codec:<16} {of['ratio']:>10.2f} times smaller"
                f" {of['encode_mb_s']:>10,.0f} MB/s in {of['decode_mb_s']:>10,.0f} MB/s out"
            )
        for disk, of in found["chosen"].items():
            lines.append(
                f"  at {int(disk):>9,} MB/s: {of['codec']} (best {of['best']}, "
                f"{of['cost_ratio']:.2f} of its cost)"
            )
    return "\n".join([*lines, "", *(f"  {name}: {ok}" for name, ok in report.reach.items())])
