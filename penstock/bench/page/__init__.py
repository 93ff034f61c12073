"""The report: what `penstock bench scabbard` and `codecs` print, as one page with plots.

Each measurement is a command of its own, whose line of JSON is kept beside the page. Figures come
from these lines alone, taken now or given by file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.bench import arguments
from penstock.bench.page.html import page
from penstock.bench.page.machine import machine
from penstock.bench.page.sections import SECTIONS
from penstock.bench.report import say
from penstock.errors import InvalidArgument

TITLE = "a page with plots of all that scabbard and codecs measure"
FOLDER = Path("report")
PAGE = "index.html"
COMMAND_S_MAX = 1_800
JSON_BYTES_MAX = 64 << 20


@dataclass(frozen=True)
class Taken:
    """One measurement: by which command, and the JSON that it printed; or why there is none."""

    section: str
    command: str
    found: dict[str, Any] | None
    failure: str = ""


class PageReport:
    """Where the page is, and which goals are reached."""

    def __init__(self, path: Path, taken: Sequence[Taken]) -> None:
        self._path = path
        self._reach = {
            goal: reached
            for each in taken
            for goal, reached in (each.found or {}).get("reach", {}).items()
        }
        self._failed = {each.section: each.failure for each in taken if each.failure}

    def as_json(self) -> str:
        return json.dumps({"page": str(self._path), "reach": self._reach, "failed": self._failed})

    def as_table(self) -> str:
        lines = [f"  {'reached' if ok else 'MISSED '}  {goal}" for goal, ok in self._reach.items()]
        lines += [f"  failed   {name}: {why}" for name, why in self._failed.items()]
        return "\n".join([*lines, "", f"the page: {self._path}"])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--to", type=Path, default=FOLDER, metavar="DIR", help=f"its folder (default {FOLDER})"
    )
    parser.add_argument(
        "--from",
        type=Path,
        nargs="+",
        default=[],
        dest="given",
        metavar="FILE",
        help="files with lines of JSON that such commands printed, or that an earlier report kept",
    )
    parser.add_argument(
        "--measure",
        type=_sections,
        default=None,
        metavar="PARTS",
        help=f"comma separated, of {', '.join(SECTIONS)}, or none (default: all without a file)",
    )
    parser.add_argument(
        "--seconds",
        type=arguments.seconds,
        default=1.0,
        metavar="S",
        help="measured time of each way of a query (default 1)",
    )
    parser.add_argument(
        "--repeats", type=arguments.whole, default=1, help="turns, medians are told (default 1)"
    )
    parser.add_argument(
        "--queries", default="", help="of those parts that have queries (default: all of theirs)"
    )
    parser.add_argument(
        "--flink-python", metavar="PATH", help="compare with Flink too; see bench scabbard"
    )
    parser.add_argument(
        "--dir", type=Path, default=Path(), help="a folder on the disk to measure (default .)"
    )


def _sections(text: str) -> list[str]:
    names = [] if text == "none" else text.split(",")
    for name in names:
        if name not in SECTIONS:
            known = ", ".join(SECTIONS)
            raise argparse.ArgumentTypeError(f"there is no {name!r}; known: {known}")
    return names


def measure(args: argparse.Namespace) -> PageReport:
    """Take what is to be taken, and write the page."""
    args.to.mkdir(parents=True, exist_ok=True)
    taken = {each.section: each for path in args.given for each in read_given(path)}
    names = args.measure if args.measure is not None else [] if args.given else list(SECTIONS)
    facts = machine(args.dir)
    for name in names:
        say(f"== {name}")
        taken[name] = _take(name, args)
        kept = args.to / f"{name}.json"
        if (found := taken[name].found) is not None:
            found |= {"machine": facts["processor"]}
            kept.write_text(json.dumps({"command": taken[name].command, **found}) + "\n", "utf-8")
    every = [taken[name] for name in SECTIONS if name in taken]
    path = args.to / PAGE
    path.write_text(page(every, facts, time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())), "utf-8")
    say(f"the page is {path}")
    return PageReport(path, every)


def command_of(name: str, args: argparse.Namespace) -> list[str]:
    """What takes a section's figures, behind `penstock bench`."""
    words = [*SECTIONS[name].command, "--json"]
    if words[0] == "scabbard":
        words += ["--seconds", f"{args.seconds:g}", "--repeats", str(args.repeats)]
        words += ["--dir", str(args.dir)]
        if args.queries and SECTIONS[name].has_queries:
            words += ["--queries", args.queries]
        if name == "queries" and args.flink_python:
            words += ["--against", "spark,loop,flink", "--flink-python", args.flink_python]
    return words


def _take(name: str, args: argparse.Namespace) -> Taken:
    words = command_of(name, args)
    command = " ".join(["penstock bench", *words])
    try:
        done = subprocess.run(
            [sys.executable, "-m", "penstock", "bench", *words],
            stdout=subprocess.PIPE,
            timeout=COMMAND_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Taken(name, command, None, f"it was not over after {COMMAND_S_MAX} s")
    if done.returncode:
        return Taken(name, command, None, f"it ended with {done.returncode}; it said why on stderr")
    return Taken(name, command, json.loads(done.stdout.splitlines()[-1]))


def read_given(path: Path) -> list[Taken]:
    """The measurements of a file: a line of JSON each, among other lines."""
    try:
        if path.stat().st_size > JSON_BYTES_MAX:
            raise InvalidArgument(f"{path} has more than {JSON_BYTES_MAX:,} bytes: it is no report")
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error}") from None
    taken = []
    for line in lines:
        if not line.startswith("{"):
            continue
        try:
            found = json.loads(line)
        except ValueError as error:
            raise InvalidArgument(f"{path} has a line that is no JSON: {error}") from None
        for name, section in SECTIONS.items():
            if section.is_in(found):
                command = found.get("command", f"penstock bench {' '.join(section.command)} ...")
                taken.append(Taken(name, command, section.of(found)))
    if not taken:
        raise InvalidArgument(
            f"{path} has no line of JSON of penstock bench scabbard or codecs: give the file that "
            "their standard output went to"
        )
    return taken
