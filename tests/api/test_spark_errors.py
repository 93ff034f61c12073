"""Errors of both trees: caught as PySpark's and as ours, with their facts, also when pickled."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    PySparkAttributeError,
    PySparkException,
    PySparkValueError,
    StreamingQueryException,
)

from penstock import errors
from penstock.api.spark_errors import (
    CannotAnalyze,
    IllegalOption,
    NameActive,
    WrongAttribute,
    WrongValue,
    _AsSparks,
    check_text,
    check_timeout,
    query_exception,
)
from penstock.errors import InvalidOption, JobFailed, QueryActive, RowError, StreamError

BOTH: dict[type[_AsSparks], tuple[type[Exception], ...]] = {
    WrongValue: (PySparkValueError, ValueError, InvalidOption),
    WrongAttribute: (PySparkAttributeError, AttributeError, InvalidOption),
    CannotAnalyze: (AnalysisException, InvalidOption),
    IllegalOption: (IllegalArgumentException, InvalidOption),
    NameActive: (IllegalArgumentException, QueryActive),
}


@pytest.mark.parametrize("kind", BOTH)
def test_an_error_is_of_both_trees_and_survives_pickling(kind: type[_AsSparks]) -> None:
    parameters = {"arg_name": "x", "arg_value": "y"}
    error = kind("it is wrong", condition="VALUE_NOT_POSITIVE", parameters=parameters, where="here")
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert isinstance(each, (PySparkException, *BOTH[kind]))
        assert isinstance(each, StreamError)
        assert str(each) == "[VALUE_NOT_POSITIVE] it is wrong"
        assert each.message == "it is wrong"
        assert each.details["where"] == "here"
        assert (each.getCondition(), each.getMessageParameters()) == (
            "VALUE_NOT_POSITIVE",
            parameters,
        )


def test_arguments_are_refused_in_pysparks_words() -> None:
    with pytest.raises(PySparkValueError, match=r"\[VALUE_NOT_NON_EMPTY_STR\] Value for `queryN"):
        check_text(" ", "queryName")
    with pytest.raises(ValueError, match="`timeout` must be positive, got 'str'"):
        check_timeout("hello")


@pytest.mark.parametrize("kind", [JobFailed, RowError, errors.TooFewSlots])
def test_what_ended_a_query_is_a_streaming_query_exception(kind: type[StreamError]) -> None:
    """And still of its own class, under its own name."""
    plain = kind("the end", epoch=3, traceback="in f\n  raise")
    ended = query_exception(plain, id="7", runId="8")
    for each in (ended, pickle.loads(pickle.dumps(ended)), query_exception(ended)):
        assert isinstance(each, StreamingQueryException)
        assert isinstance(each, kind)
        assert each.details == {**plain.details, "id": "7", "runId": "8"}
        parameters = {"id": "7", "message": "the end", "runId": "8"}
        assert each.getMessageParameters() == parameters
        assert each.error_class == plain.error_class
        assert str(each) == "[STREAM_FAILED] the end"
        assert (each._desc, each._cause) == ("the end", None)  # as those of the JVM
        assert each._stackTrace == "in f\n  raise"
        assert each.getSqlState() == "XXKST"


def test_the_tree_of_errors_loads_no_spark() -> None:
    code = "import sys, penstock.errors; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
