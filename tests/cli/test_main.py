"""The entry point of the command line: what a person sees when things go well and when not."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from penstock import __version__
from penstock.cli.main import COMMANDS, EXIT_BROKEN_PIPE, main
from penstock.errors import LogNotFound

SAMPLE = {"sample": "tests.cli.sample_command", "absent": "tests.cli.no_such_module"}
ROOT = Path(__file__).parents[2]
RUN_SAMPLE = f"import sys; from penstock.cli.main import main; sys.exit(main(commands={SAMPLE!r}))"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_in_the_table_explains_itself(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(import_module(COMMANDS[command]).add_parser)
    with pytest.raises(SystemExit) as exit_:
        main([command, "--help"])
    assert exit_.value.code == 0
    assert f"penstock {command}" in capsys.readouterr().out


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert all(f"\n    {command} " in shown for command in COMMANDS)


@pytest.mark.parametrize("argv", [[], ["no-such-command"], ["--no-such-option"]])
def test_a_wrong_call_exits_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    assert exit_.value.code == 2
    assert "usage: penstock" in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 1])
def test_the_exit_code_is_the_commands(code: int) -> None:
    assert main(["sample", str(code)], commands=SAMPLE) == code


def test_a_stream_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "stream-error"], commands=SAMPLE) == 2
    captured = capsys.readouterr()
    assert captured.err == "penstock: [LOG_NOT_FOUND] there is no log at orders: create one\n"
    assert captured.out == ""


def test_a_stream_error_shows_its_traceback_on_request() -> None:
    with pytest.raises(LogNotFound):
        main(["--traceback", "sample", "stream-error"], commands=SAMPLE)


def test_a_bug_is_not_dressed_up() -> None:
    with pytest.raises(RuntimeError, match="this is a bug"):
        main(["sample", "bug"], commands=SAMPLE)


def test_an_interrupt_is_quiet() -> None:
    assert main(["sample", "interrupt"], commands=SAMPLE) == 130


def test_a_reader_that_leaves_early_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUN_SAMPLE, "sample", "much-output"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "0\n"
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(timeout=60) == EXIT_BROKEN_PIPE
    assert errors == ""


def test_python_dash_m_is_the_same_command() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "penstock", "--version"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert answer.stdout == f"penstock {__version__}\n"
