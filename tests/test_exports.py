"""What `import penstock` offers, and that it stays light until something is used."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from penstock.expressions.types import Field, parse_type
from penstock.runtime.streams import create_stream

HEAVY = ("numba", "numpy", "pandas", "pyarrow", "pyspark", "apsw")


def loaded_after(statement: str) -> list[str]:
    """The heavy packages that a new interpreter has loaded after a statement."""
    program = f"{statement}\nimport sys\nprint(*(m for m in {HEAVY!r} if m in sys.modules))"
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True
    )
    return answer.stdout.split()


@pytest.mark.parametrize(
    "statement",
    [
        "import penstock",
        "import penstock; dir(penstock), penstock.__version__",
        "import penstock; penstock.StreamError",
    ],
)
def test_importing_loads_nothing_heavy(statement: str) -> None:
    assert loaded_after(statement) == []


def test_the_log_loads_no_spark_and_no_compiler() -> None:
    loaded = loaded_after("from penstock import open_log")
    assert "pyspark" not in loaded
    assert "numba" not in loaded


def test_every_name_is_the_one_of_its_module() -> None:
    homes = penstock._HOMES
    assert set(penstock.__all__) == {*homes, "__version__"}
    assert set(penstock.__all__) <= set(dir(penstock))
    for name, module in homes.items():
        assert getattr(penstock, name) is getattr(import_module(module), name)


def test_streams_are_written_and_read_by_the_exported_names(tmp_path: Path) -> None:
    with penstock.open_log(tmp_path / "log", create=True) as log:
        create_stream(log, "numbers", (Field("n", parse_type("bigint")),))
        penstock.StreamWriter(log, "numbers", "me").write(pa.record_batch({"n": [1, 2]}))
        assert penstock.StreamReader(log, "numbers").read_all().to_pydict() == {"n": [1, 2]}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Stream'"):
        _ = penstock.Stream
