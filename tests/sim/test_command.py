"""`penstock sim` as people and programs call it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from penstock.cli import sim
from penstock.cli.main import main
from penstock.kernels.cache import KernelCache
from penstock.sim.violation import Violation
from penstock.sim.world import World


@pytest.fixture(autouse=True)
def heard_again() -> Iterator[None]:
    """The command lets the engine say nothing; later tests of this process read what it says."""
    logger = logging.getLogger("penstock")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.mark.timeout(300)
def test_last_line_is_json(kernels: KernelCache, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sim", "--seed", "0", "--seeds", "2", "--json", "--kernels", str(kernels.folder)]
    assert main(words) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert facts["seeds"] == facts["schedules"] == 2
    assert facts["violations"] == 0
    assert facts["steps"] > 0
    assert {"faults", "sometimes", "mutants", "mutants_caught", "seconds"} <= facts.keys()
    assert facts["mutants_missed"] == []


@pytest.mark.timeout(300)
def test_a_long_run_says_how_far_it_is(
    kernels: KernelCache, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sim, "PROGRESS_S", 0.0)
    assert main(["sim", "--seed", "0", "--seeds", "2", "--kernels", str(kernels.folder)]) == 0
    shown = capsys.readouterr()
    assert "2 of 2 seeds, 0 violations" in shown.err
    assert "2 of 2" not in shown.out


@pytest.mark.timeout(300)
def test_one_seed_shows_its_schedule(
    kernels: KernelCache, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", "--seed", "0", "--trace", "--kernels", str(kernels.folder)]) == 0
    shown = capsys.readouterr().out
    assert "start driver1 filter_map" in shown
    assert "heal" in shown


@pytest.mark.timeout(300)
def test_a_violation_fails_and_says_how_to_see_it_again(
    kernels: KernelCache, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(world: World) -> None:
        raise Violation("made up")

    monkeypatch.setattr(World, "run", broken)
    assert main(["sim", "--seed", "1", "--kernels", str(kernels.folder)]) == 1
    shown = capsys.readouterr().out
    assert "seed 1 (union_rows): VIOLATION made up" in shown
    assert "penstock sim --seed 1 --trace" in shown


@pytest.mark.parametrize("words", [["--seeds", "0"], ["--seeds", "x"], ["--seed", "-1"]])
def test_wrong_numbers_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["sim", *words])
    assert stopped.value.code == 2
