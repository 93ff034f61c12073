"""The queries as the front end reads them, each once, and which of Spark's nodes it met."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from penstock.catalyst.expressions import ExpressionReader
from penstock.catalyst.plans import PlanReader
from penstock.catalyst.translate import Translated, translate
from tests.catalyst.conftest import stream
from tests.oracle.events import EVENT_COLUMNS
from tests.oracle.queries import queries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Planned:
    """Plans DataFrames, and keeps the plans of the cases: several tests ask for them."""

    def __init__(self) -> None:
        self.expression_kinds: set[str] = set()
        self.node_kinds: set[str] = set()
        self._queries: dict[str, Translated] = {}

    def query(self, spark: SparkSession, name: str) -> Translated:
        if name not in self._queries:
            judged = queries()[name]
            frame = judged.define(stream(spark, EVENT_COLUMNS))
            self._queries[name] = self.read(frame, judged.mode)
        return self._queries[name]

    def read(self, frame: DataFrame, mode: str = "append") -> Translated:
        """A DataFrame in our plan; what was read is noted."""
        with pytest.MonkeyPatch.context() as patch:
            for reader, name, kinds in (
                (ExpressionReader, "built", self.expression_kinds),
                (PlanReader, "read", self.node_kinds),
            ):
                patch.setattr(reader, name, _noting(getattr(reader, name), kinds))
            return translate(frame, output_mode=mode, query="q")


def _noting(read: Callable[..., Any], kinds: set[str]) -> Callable[..., Any]:
    def noting(reader: Any, node: Any, *more: Any, **named: Any) -> Any:
        kinds.add(node.kind)
        return read(reader, node, *more, **named)

    return noting
