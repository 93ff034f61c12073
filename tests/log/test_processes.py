"""Real processes on one log, killed with -9 at any moment: nothing lost, doubled or out of order.

`make torture MINUTES=n` runs the same for longer, with new seeds.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.config import Durability
from tests.log import process_checker
from tests.log.process_torture import Outcome, Torture

SEEDS = {"synced": 11, "process": 12}


@pytest.mark.parametrize(
    ("level", "seconds"),  # beyond one torment of each kind
    [
        ("synced", 0.0),
        pytest.param("synced", 7.0, marks=pytest.mark.slow),
        pytest.param("process", 7.0, marks=pytest.mark.slow),
    ],
)
def test_killed_processes_lose_and_double_nothing(
    tmp_path: Path, level: Durability, seconds: float
) -> None:
    outcome = Torture(tmp_path, level, SEEDS[level]).run(seconds)
    print(f"{level}: {dict(outcome.done)} {outcome.verdict}")
    check(outcome)


def check(outcome: Outcome) -> None:
    assert outcome.errors == []
    assert outcome.verdict["findings"] == []
    assert outcome.done["writers killed"] >= 2
    assert outcome.done["readers killed"] >= 1
    assert outcome.done["zombies fenced"] >= 1
    for something in ("records", "trimmed", "inline", "in_segments", "acknowledged"):
        assert outcome.verdict[something] > 0, f"no {something}: the run proves nothing"
    assert outcome.verdict["instances"] > 3


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run that the checker has found to be in order."""
    folder = tmp_path_factory.mktemp("finished")
    check(Torture(folder, "process", 13).run(0.0))
    return folder


def _drop_line(side: Path, pattern: str) -> None:
    path = max(side.glob(pattern), key=lambda path: path.stat().st_size)
    lines = path.read_text().splitlines(keepends=True)
    middle = len(lines) // 2
    path.write_text("".join(lines[:middle] + lines[middle + 1 :]))


def a_reader_skipped_a_record(side: Path) -> None:
    _drop_line(side, "reader-a")


def a_reader_saw_a_record_twice(side: Path) -> None:
    path = side / "reader-a"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:3], *lines[2:]]))


def a_reader_saw_two_records_swapped(side: Path) -> None:
    path = side / "reader-b"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[1], lines[0], *lines[2:]]))


def _edit_ack(side: Path, field: int, value: str) -> None:
    path = next(path for path in sorted(side.glob("writer-*")) if "\nack " in path.read_text())
    lines = path.read_text().splitlines()
    i = next(i for i, line in enumerate(lines) if line.startswith("ack "))
    words = lines[i].split()[1].split(":")
    words[field] = value
    lines[i] = f"ack {':'.join(words)}"
    path.write_text("\n".join(lines) + "\n")


def an_acknowledged_record_is_missing(side: Path) -> None:
    _edit_ack(side, 0, "999999999")


def an_acknowledged_record_has_other_content(side: Path) -> None:
    _edit_ack(side, 4, "0" * 40)


def a_fenced_instance_wrote_on(side: Path) -> None:
    vertex = max(side.glob("writer-*")).name.split("-")[1]
    (side / "writer-late").write_text(f"took {vertex} 999 1\n")


def a_trimmed_record_is_gone_without_a_trim(side: Path) -> None:
    (side / "trimmer-trim").write_text("")


@pytest.mark.parametrize(
    "lie",
    [
        a_reader_skipped_a_record,
        a_reader_saw_a_record_twice,
        a_reader_saw_two_records_swapped,
        an_acknowledged_record_is_missing,
        an_acknowledged_record_has_other_content,
        a_fenced_instance_wrote_on,
        a_trimmed_record_is_gone_without_a_trim,
    ],
)
def test_the_checker_finds(lie: Callable[[Path], None], finished: Path, tmp_path: Path) -> None:
    """A check that cannot fail proves nothing: each lie in the side files must be found out."""
    shutil.copytree(finished, tmp_path / "run")
    lie(tmp_path / "run" / "side")
    assert process_checker.check(tmp_path / "run" / "log", tmp_path / "run" / "side")["findings"]
