"""Running the tests of a checkout: what is loaded, which outcomes there are, and what is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools import pyspark_tests

TOOL = Path(pyspark_tests.__file__)
TESTS = """
import unittest

class {name}(unittest.TestCase):
    def test_a_file_of_the_checkout(self):
        self.assertEqual(open("python/word").read(), "found")

    @unittest.skip("not here")
    def test_left_out(self):
        pass

    def test_wrong(self):
        self.assertEqual({wrong}, 1)
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("wrong", [1, 2])
def test_outcomes_are_told_and_those_that_nobody_expects_fail(tmp_path: Path, wrong: int) -> None:
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "word").write_text("found")
    for module in pyspark_tests.MODULES:
        path = tmp_path / "python" / "pyspark" / f"{module.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        (path.parent.parent / "__init__.py").touch()
        path.write_text(TESTS.format(name="Tests", wrong=wrong))
    prefix = "sql.tests.streaming.test_streaming_foreach_batch.Tests."
    passes = {name: {"outcome": "passed"} for name in (f"{prefix}test_wrong", "earlier", "later")}
    (tmp_path / "spark.json").write_text(json.dumps(passes))
    (tmp_path / "out.json").write_text(json.dumps({"earlier": {"outcome": "fell back"}}))
    words = ["--json", str(tmp_path / "out.json"), "--only", "foreach_batch"]
    words += ["--beside", str(tmp_path / "spark.json")]
    answer = subprocess.run(
        [sys.executable, str(TOOL), str(tmp_path), *words],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert answer.returncode == (0 if wrong == 1 else 1), answer.stderr
    outcomes = json.loads((tmp_path / "out.json").read_text())
    assert {name: facts["outcome"] for name, facts in outcomes.items()} == {
        "earlier": "fell back",
        f"{prefix}test_a_file_of_the_checkout": "passed",
        f"{prefix}test_left_out": "skipped",
        f"{prefix}test_wrong": "passed" if wrong == 1 else "failed",
    }
    told = answer.stdout.splitlines()
    assert told[-1] == (
        f"of 3 tests that pass on Structured Streaming {2 - wrong} pass here "
        f"({'33.3' if wrong == 1 else '0.0'} %), 1 fell back"
    )
    assert told[-5:-1] == [f"   {2 if wrong == 1 else 1} passed", "   0 fell back",
                         f"   {0 if wrong == 1 else 1} failed", "   1 skipped"]  # fmt: skip
    assert any("(not expected)" in line for line in told) is (wrong == 2)
