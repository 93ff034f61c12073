"""Errors that are PySpark's and Penstock's at once: a job that catches the one catches the other.

`penstock.errors` loads no Spark, so the classes that derive from both trees stand here, where
PySpark is loaded anyway. They survive pickling like all errors of ours.
"""

from __future__ import annotations

import inspect
from typing import Any, NoReturn

from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    PySparkAttributeError,
    PySparkException,
    PySparkValueError,
    StreamingQueryException,
)
from pyspark.errors.utils import ErrorClassesReader

from penstock.errors import InvalidArgument, InvalidOption, QueryActive, StreamError

FAILED = "STREAM_FAILED"  # Spark's condition of a query that an error has ended
FAILED_STATE = "XXKST"  # and its SQLSTATE


class _AsSparks(PySparkException, StreamError):
    """What both trees want to know: Spark's condition and its parameters are among the details."""

    def __init__(
        self,
        message: str,
        *,
        condition: str | None = None,
        parameters: dict[str, str] | None = None,
        **details: Any,
    ) -> None:
        PySparkException.__init__(self, message, condition, parameters)
        if condition is not None:
            details |= {"condition": condition, "parameters": parameters}
        StreamError.__init__(self, message, **details)
        self.args = (message,)

    __str__ = PySparkException.__str__
    __reduce__ = StreamError.__reduce__


class WrongValue(_AsSparks, PySparkValueError, InvalidOption, InvalidArgument):
    """PySpark's ValueError for an argument of the writer or of a query."""


class WrongAttribute(_AsSparks, PySparkAttributeError, InvalidOption):
    """PySpark's AttributeError for an object that lacks what `foreach` calls."""


class IllegalOption(_AsSparks, IllegalArgumentException, InvalidOption):
    """What Spark's JVM refuses as soon as it is said."""


class CannotAnalyze(_AsSparks, AnalysisException, InvalidOption):
    """What Spark finds wrong when a query starts: formats, modes, tables, columns."""


class NameActive(_AsSparks, IllegalArgumentException, QueryActive):
    """A query of this name runs in the session."""


def refuse(kind: type[_AsSparks], condition: str, hint: str = "", **parameters: str) -> NoReturn:
    """Raise PySpark's own error of a condition; `hint` says what else would be possible."""
    message = ErrorClassesReader().get_error_message(condition, parameters)
    raise kind(f"{message} {hint}".strip(), condition=condition, parameters=parameters)


def check_text(value: Any, name: str) -> str:
    """A text that is not empty, without the blanks around it."""
    if not isinstance(value, str) or not value.strip():
        refuse(WrongValue, "VALUE_NOT_NON_EMPTY_STR", arg_name=name, arg_value=str(value))
    return value


def check_true(value: Any, name: str) -> None:
    if value is not True:
        refuse(WrongValue, "VALUE_NOT_ALLOWED", arg_name=name, allowed_values="[True]")


def check_timeout(value: Any) -> None:
    """A number of seconds above 0, as PySpark asks for it."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        kind = type(value).__name__
        refuse(WrongValue, "VALUE_NOT_POSITIVE", arg_name="timeout", arg_value=kind)


# --- the end of a query ---------------------------------------------------------------------------


def query_exception(error: StreamError, **query: str) -> StreamError:
    """An error that ended a query, as a StreamingQueryException that is also what it was.

    `query` are its `id` and `runId`, which Spark has among the parameters of the message.
    """
    if isinstance(error, StreamingQueryException):
        return error
    ended = _ended_by(type(error))(error.message, **error.details, **query)
    ended.__traceback__ = error.__traceback__
    ended.__cause__ = error.__cause__
    return ended


_ENDED: dict[type[StreamError], type[StreamError]] = {}  # by kind: the class that is made of it


def _ended_by(kind: type[StreamError]) -> type[StreamError]:
    """The class of errors of one kind that have ended a query; its name is the kind's own."""
    if kind not in _ENDED:
        _ENDED[kind] = _as_query_exception(kind)
    return _ENDED[kind]


def _as_query_exception(kind: type[StreamError]) -> type[StreamError]:

    def describe(self: Any, message: str, **details: Any) -> None:
        StreamError.__init__(self, message, **details)
        known: dict[str, str] = {
            name: str(details[name]) for name in ("id", "runId") if name in details
        }
        PySparkException.__init__(self, message, FAILED, known | {"message": message})
        self.args = (message,)
        # As those have that come out of the JVM.
        self._desc, self._stackTrace = message, str(details.get("traceback", ""))
        self._cause = self._origin = None

    def rebuilt(self: Any) -> tuple[Any, ...]:
        return _rebuild_ended, (kind, self.message, self.details)

    return type(
        kind.__name__,
        (kind, StreamingQueryException),
        {
            "__doc__": inspect.getdoc(kind),
            "__module__": __name__,
            "__init__": describe,
            "__reduce__": rebuilt,
            "__str__": PySparkException.__str__,
            "getSqlState": lambda self: FAILED_STATE,
        },
    )


def _rebuild_ended(kind: type[StreamError], message: str, details: dict[str, Any]) -> StreamError:
    return _ended_by(kind)(message, **details)
