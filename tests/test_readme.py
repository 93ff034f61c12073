"""The programs in the README run as they stand and print what they promise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_first_program_runs(tmp_path: Path) -> None:
    programs = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    assert programs
    (tmp_path / "first.py").write_text(programs[0])
    answer = subprocess.run(
        [sys.executable, "-W", "error", "first.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.stderr == ""
    assert answer.stdout.splitlines() == [
        "1 DATA ('orders', 'orders/eu') b'3 lamps'",
        "2 MARKER ('orders', 'task/shop') b'{}'",
    ]
