"""Where machine code of kernels is kept: a folder of this user's own.

Machine code that is loaded is run, so whoever can write to its folder can run code as whoever reads
it. Logs may be shared, and their folders written by others; this one is not.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

_OWNER_ONLY = 0o700
_NAME = ("penstock", "kernels")


def private_kernels_folder(home: Path | None = None, temporary: Path | None = None) -> Path:
    """`~/.cache/penstock/kernels`, or its like among the temporary files where that cannot be.

    Both are made for the owner alone, and passed over if somebody else could write to them; a new
    folder with a random name, which no later process will find, is the last resort.
    """
    temporary = temporary or Path(tempfile.gettempdir())
    choices = [temporary / f"penstock-{os.geteuid()}"]
    if (own := home or _home()) is not None:
        choices.insert(0, own / ".cache" / _NAME[0])
    for parent in choices:
        folder = parent / _NAME[1]
        if _made_private(parent) and _made_private(folder):
            return folder
    return Path(tempfile.mkdtemp(prefix="penstock-kernels-", dir=temporary))


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:  # a user without an entry in the password file
        return None


def _made_private(folder: Path) -> bool:
    """Make a folder unless it is there; return whether it is ours, and only ours to write to."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=_OWNER_ONLY, exist_ok=True)
        facts = folder.lstat()
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
            return False
        if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return False  # what is in it may be somebody else's
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)
