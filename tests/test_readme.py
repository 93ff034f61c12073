"""The programs in the README run as they stand and print what they promise; its links lead on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.main import COMMANDS, main
from penstock.runtime.queries import running_process

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def programs() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


def program(folder: Path, containing: str) -> Path:
    """Write down the one program of the README that contains a text."""
    (text,) = [each for each in programs() if containing in each]
    path = folder / "first.py"
    path.write_text(text)
    return path


@pytest.mark.slow  # tests/spark does the same in a session that is there already
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_the_first_query_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With spark-submit, in an activated virtual environment; `penstock run` has its own tests."""
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    scripts = str(Path(sys.executable).parent)
    environment["PATH"] = os.pathsep.join([scripts, environment.get("PATH", "")])
    answer = subprocess.run(
        [f"{scripts}/spark-submit", program(tmp_path, "penstock.attach")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.splitlines()
    assert lines[-1] == "92000 bids counted"  # 46 of 50 events are bids
    assert sum(line.startswith("|{") for line in lines) == 3, answer.stdout
    folder = tmp_path / "auctions.log"
    assert running_process(folder, "hot") is None
    assert main(["queries", str(folder)]) == 0
    assert "hot_items" in capsys.readouterr().out
    assert main(["explain", str(folder), "hot"]) == 0
    assert "exactly once: rows count when a marker covers them" in capsys.readouterr().out


def printed(path: Path) -> list[str]:
    answer = subprocess.run(
        [sys.executable, "-W", "error", path],
        cwd=path.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.stderr == ""
    return answer.stdout.splitlines()


def test_the_log_program_runs(tmp_path: Path) -> None:
    assert printed(program(tmp_path, "take_over")) == [
        "1 DATA ('orders', 'orders/eu') b'3 lamps'",
        "2 MARKER ('orders', 'task/shop') b'{}'",
    ]


def test_the_stream_program_runs_again_and_again(tmp_path: Path) -> None:
    sale = "{'item': 'lamp', 'pieces': 3}"
    path = program(tmp_path, "StreamWriter")
    assert printed(path) == [f"[{sale}]"]
    assert printed(path) == [f"[{sale}, {sale}]"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text(encoding="utf-8")):
        assert (document.parent / link).exists(), f"{document.name} links to {link}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_commands_and_targets_that_are_named_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text()
    code = "\n".join(_code(text))
    for command in re.findall(r"\bpenstock ([a-z]+)\b", code):
        assert command in COMMANDS, f"{document.name} names penstock {command}"
    for target in re.findall(r"\bmake ([a-z-]+)\b", code):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{document.name}: make {target}"


def _code(text: str) -> list[str]:
    """What a document shows as code: in backticks, or indented by four."""
    inline = re.findall(r"`([^`]+)`", text)
    return inline + re.findall(r"^    (\S.*)$", text, re.MULTILINE)
