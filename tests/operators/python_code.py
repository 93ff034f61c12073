"""Python functions as Spark sends them, made without Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.types import DataType, LongType, StructType

from penstock.operators.python_functions import PythonCode

SETTINGS = (
    ("spark.sql.execution.arrow.maxRecordsPerBatch", "4"),
    ("spark.sql.session.timeZone", "UTC"),
)
NUMBER = LongType()
PICKLED, ROW_BY_ROW, PANDAS, ARROW = 100, 101, 200, 250


def code(
    function: Callable[..., Any],
    kind: int = PICKLED,
    result: DataType = NUMBER,
    given: StructType | None = None,
) -> PythonCode:
    """The code of a function: of one number to another, unless it is said otherwise."""
    columns = StructType().add("n", NUMBER) if given is None else given
    return PythonCode(
        name=function.__name__,
        eval_type=kind,
        commands=(cloudpickle.dumps(function if kind >= 300 else (function, result)),),
        arguments=(None,) * len(columns.fields),
        input_type=columns.json(),
        result_type=result.json(),
        settings=SETTINGS,
    )
