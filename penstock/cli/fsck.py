"""`penstock fsck`: check a log and say what was found.

Exit codes: 0 no damage, 1 damage, 2 it could not be checked.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from penstock.cli.tables import table
from penstock.log.fsck import Finding, Progress, Report, fsck
from penstock.names import escape

EXIT_DAMAGED = 1


def add_parser(subparsers: Any) -> None:
    """Add `penstock fsck` to the command line."""
    parser = subparsers.add_parser(
        "fsck",
        help="check a log for damage; never writes",
        description="Check every file of a log. Exit code 0: no damage, 1: damage, 2: not checked.",
    )
    parser.add_argument("dir", metavar="DIR", type=Path)
    parser.add_argument("--deep", action="store_true", help="also decode every p-unit")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Check a log."""
    report = fsck(args.dir, progress_on_terminal(), deep=args.deep)
    print(json.dumps(encode(report)) if args.json else describe(report))
    return 0 if report.is_clean else EXIT_DAMAGED


def encode(report: Report) -> dict[str, Any]:
    """A report as JSON."""
    return {
        "path": report.path,
        "clean": report.is_clean,
        "counts": report.counts,
        "findings": [asdict(finding) for finding in report.findings],
        "findings_left_out": report.left_out,
    }


def describe(report: Report) -> str:
    """A report for people."""
    counts = ", ".join(
        f"{report.counts[name]:,} {name}"
        for name in ("records", "tags", "segments", "metadata", "punits", "lost")
        if report.counts.get(name)
    )
    lines = [f"{escape(report.path)}: {counts or 'nothing could be counted'}"]
    if report.findings:
        lines += ["", findings_table(report.findings)]
    if report.left_out:
        lines.append(f"… and {report.left_out:,} more")
    lines.append("")
    if report.is_clean:
        lines.append("no damage")
    else:
        lines.append(
            f"DAMAGED: {report.counts['errors']:,} errors. Copy the folder, then see what "
            "`penstock log repair --dry-run` would do"
        )
    return "\n".join(lines)


def findings_table(findings: Sequence[Finding]) -> str:
    """Findings below each other."""
    rows = [
        (each.severity, each.code, each.file, each.offset, each.position, each.message)
        for each in findings
    ]
    return table(("severity", "code", "file", "offset", "position", "what"), rows)


def progress_on_terminal() -> Progress | None:
    """Show what is being checked, if somebody is looking."""
    if not sys.stderr.isatty():
        return None

    def show(what: str, done: int, total: int) -> None:
        share = 100 * done // max(total, 1)
        end = "\r" if done < total else "\r\033[K"
        print(f"checking {what}: {share:3d} %", end=end, file=sys.stderr, flush=True)

    return show
