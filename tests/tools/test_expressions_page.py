"""The page of expressions is what the tables and Spark's classes give."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from penstock.catalyst.expressions import EXPRESSION_KINDS

SCRIPT = Path(__file__).parents[2] / "tools" / "expressions_page.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("expressions_page", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_tables_give(tool: ModuleType) -> None:
    written = tool.PAGE.read_text(encoding="utf-8")
    assert written == tool.page(), "run: python tools/expressions_page.py"


def test_what_is_read_is_a_class_of_spark(tool: ModuleType) -> None:
    classes = tool.expression_classes()
    assert {"Add", "Cast", "AttributeReference", "PythonUDF"} <= set(classes)
    named = {tool.NODE_NAMES.get(name, name) for name in classes}
    assert EXPRESSION_KINDS - named == set()


def test_chance_has_a_step_of_its_own_and_what_spark_can_do_is_its_own(tool: ModuleType) -> None:
    classes = tool.expression_classes()
    status = {name: tool.status_of(name, classes[name])[0] for name in classes}
    assert status["MonotonicallyIncreasingID"] == "refused"
    assert status["Rand"] == status["CurrentTimestamp"] == status["PythonUDF"] == "Python"
    assert status["Stack"] == status["Lag"] == "compiled"
    assert status["SoundEx"] == status["Sin"] == "by Spark"
    assert status["Nvl2"] == "rewritten"
    assert status["Add"] == "compiled"
    assert status["DateFormatClass"] == status["ArrayTransform"] == "Arrow"
