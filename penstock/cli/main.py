"""The entry point of `penstock`: the table of subcommands, and what becomes of their errors.

Exit codes: 0 all is well; 1 the command ran and found something wrong; 2 it was called wrongly or
ended in one of our own errors; 130 interrupted; 141 the reader of the output went away.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType

from penstock import __version__
from penstock.errors import StreamError
from penstock.names import escape

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

# Word on the command line → module. A module is imported only when its word is used or when help
# lists them all, so that a quick command does not wait for the imports of a heavy one.
COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "bench": "penstock.cli.bench",
        "check": "penstock.cli.check",
        "demo": "penstock.cli.hot_items",
        "explain": "penstock.cli.explain",
        "fsck": "penstock.cli.fsck",
        "log": "penstock.cli.log",
        "queries": "penstock.cli.queries",
        "run": "penstock.cli.run",
        "sim": "penstock.cli.sim",
        "tour": "penstock.cli.tour",
        "warm": "penstock.cli.warm",
    }
)


def main(argv: Sequence[str] | None = None, commands: Mapping[str, str] = COMMANDS) -> int:
    """Run one command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    args = build_parser(words, commands).parse_args(words)
    try:
        code: int = args.func(args)
        sys.stdout.flush()  # here, where a broken pipe is still handled
        return code
    except StreamError as error:
        if args.traceback:
            raise
        line = escape(" ".join(str(error).split()))
        print(f"penstock: [{error.error_class}] {line}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_BROKEN_PIPE


def build_parser(words: Sequence[str], commands: Mapping[str, str]) -> argparse.ArgumentParser:
    """Return the parser, with the subcommand that `words` names, or with all of them."""
    parser = argparse.ArgumentParser(
        prog="penstock",
        description="An exactly-once continuous stream engine for PySpark, over one shared log.",
    )
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    parser.add_argument(
        "--traceback", action="store_true", help="show where an error was raised, not only what"
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in _modules(words, commands):
        import_module(module).add_parser(subparsers)
    return parser


def _modules(words: Sequence[str], commands: Mapping[str, str]) -> Iterable[str]:
    """Return the module of the first word that is no option, or every module if it names none."""
    for word in words:
        if word == "--version":
            return ()
        if not word.startswith("-"):
            return (commands[word],) if word in commands else commands.values()
    return commands.values()


def _silence_stdout() -> None:
    """Point stdout at nothing: the interpreter flushes it once more at exit, and would complain."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
