"""Every broken engine is caught, and documented."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from penstock.kernels.cache import KernelCache
from penstock.sim.mutants import MUTANTS, Mutant
from penstock.sim.runner import catch

DOCS = Path(__file__).parents[2] / "docs" / "simulator.md"


QUICK = MUTANTS[1::24]  # the others in the deep suite


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(mutant, id=mutant.name, marks=() if mutant in QUICK else pytest.mark.slow)
        for mutant in MUTANTS
    ],
)
def test_mutant_is_caught(mutant: Mutant, kernels: KernelCache) -> None:
    found = catch(mutant, kernels)
    assert found.misfit is None, f"the patch does not fit the engine any more: {found.misfit}"
    assert found.seed is not None, f"{mutant.name} was not caught"
    assert pickle.loads(pickle.dumps(found)) == found  # the command has it found by other processes


def test_there_are_enough_and_no_two_alike() -> None:
    assert len(MUTANTS) >= 60
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_the_docs_list_them() -> None:
    rows = [line for line in DOCS.read_text(encoding="utf-8").splitlines() if line[:3] == "| `"]
    expected = [f"| `{m.name}` | {m.breaks} |" for m in MUTANTS]
    assert rows == expected


def test_a_patch_leaves_the_engine_as_it_was(kernels: KernelCache) -> None:
    from penstock.log.committed import CommittedReader  # noqa: PLC0415 (beside its use)

    before = vars(CommittedReader)["_release"]
    mutant = next(each for each in MUTANTS if each.name == "ignore_instances")
    with mutant.patch():
        assert vars(CommittedReader)["_release"] is not before
    assert vars(CommittedReader)["_release"] is before
