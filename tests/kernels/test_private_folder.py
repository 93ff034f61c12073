"""Machine code is kept where nobody else can write."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from penstock.kernels.private_folder import private_kernels_folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_the_users_cache_and_for_the_user_alone(tmp_path: Path) -> None:
    folder = private_kernels_folder(home=tmp_path, temporary=tmp_path / "tmp")
    assert folder == tmp_path / ".cache" / "penstock" / "kernels"
    assert mode(folder) == mode(folder.parent) == 0o700
    (folder / "k_1.py").touch()
    assert private_kernels_folder(home=tmp_path, temporary=tmp_path / "tmp") == folder


@pytest.mark.parametrize("made", ["penstock", "penstock/kernels"])
def test_a_folder_that_others_could_write_to_is_passed_over(tmp_path: Path, made: str) -> None:
    """What is in it may be theirs."""
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    (home / ".cache" / made).mkdir(parents=True)
    (home / ".cache" / made).chmod(0o777)
    for _ in range(2):
        folder = private_kernels_folder(home=home, temporary=temporary)
        assert folder == temporary / f"penstock-{os.geteuid()}" / "kernels"
        assert mode(folder) == mode(folder.parent) == 0o700


def test_a_link_or_a_file_in_its_place_is_passed_over(tmp_path: Path) -> None:
    home, temporary, elsewhere = tmp_path / "home", tmp_path / "tmp", tmp_path / "elsewhere"
    (home / ".cache").mkdir(parents=True)
    elsewhere.mkdir()
    (home / ".cache" / "penstock").symlink_to(elsewhere)
    temporary.mkdir()
    (temporary / f"penstock-{os.geteuid()}").write_text("taken")
    folder = private_kernels_folder(home=home, temporary=temporary)
    assert folder.parent == temporary
    assert folder.name.startswith("penstock-kernels-")
    assert mode(folder) == 0o700
    assert list(elsewhere.iterdir()) == []


def test_a_home_that_cannot_be_written_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = private_kernels_folder(home=tmp_path / "file", temporary=tmp_path)
    assert folder == tmp_path / f"penstock-{os.geteuid()}" / "kernels"
