"""The tour holds what it shows, and a promise that does not hold makes it fail."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.tour import STOPS, Tour


def test_the_tour_holds_what_it_shows(tmp_path: Path) -> None:
    log = tmp_path / "log"
    answer = subprocess.run(
        [sys.executable, "-m", "penstock", "tour", "--keep", str(log)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    titles = re.findall(r"^(\d+)\. ", answer.stdout, re.MULTILINE)
    assert titles == [str(number) for number in range(1, len(STOPS) + 1)]
    held, checks = re.findall(r"^(\d+) of (\d+) checks held", answer.stdout, re.MULTILINE)[0]
    assert held == checks != "0"
    assert (log / "penstock-log.json").is_file()


def test_one_broken_promise_fails_the_tour(capsys: pytest.CaptureFixture[str]) -> None:
    tour = Tour()
    tour.check("water is wet", True)
    assert tour.close() == 0
    tour.check("water is dry", False)
    assert tour.close() == 1
    assert "THIS IS A BUG" in capsys.readouterr().out
