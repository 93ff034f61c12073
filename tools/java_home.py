"""Prints the JAVA_HOME to run Spark with; without one it says what was found and exits with 1.

It needs nothing but the standard library: the build asks it before anything is installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from penstock.cli.java import java_home
from penstock.errors import JavaNotFound


def main() -> int:
    """Print the home of the first Java that is new enough."""
    try:
        print(java_home())
    except JavaNotFound as error:
        print(error.message, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
