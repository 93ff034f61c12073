"""What a Python function is known by: a digest of what it does, not of where it was written.

The same function, pickled by another driver or moved by some lines, has the same digest. Of what is
imported only the name counts, and of a broadcast variable only that there is one.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable
from types import CodeType
from typing import Any

from pyspark import cloudpickle

from penstock.json_codec import canonical_json
from penstock.operators.python_functions import PythonCode

DIGEST_CHARACTERS = 16
_TRACKER = 4  # which argument of the maker of classes is a random number

Pickled = Callable[[int], bytes]


def digest_of(code: PythonCode, pickled: Pickled) -> str:
    """The digest of code; `pickled` gives what a broadcast variable holds."""
    facts: list[Any] = [code.eval_type, code.arguments, code.input_type, code.result_type]
    kept = [] if code.variables == "{}" else [code.variables]
    kept += [] if code.initial_type is None else [code.initial_type]
    digest = hashlib.sha256(canonical_json([*facts, code.settings, *kept]).encode())
    for part in (*code.commands, code.analysed or b""):
        digest.update(hashlib.sha256(_told_apart(part, pickled)).digest())
    return digest.hexdigest()[:DIGEST_CHARACTERS]


def _told_apart(command: bytes, pickled: Pickled) -> bytes:
    """A text of what was pickled that another pickling of the same has too, as far as that goes."""
    try:
        found = unpickled(command, pickled)
        target = io.BytesIO()
        pickler: Any = _Pickler(target)  # type: ignore[no-untyped-call]
        pickler.dump(found)
        return target.getvalue()
    except Exception:  # of any kind: it is user code that is put together
        return command


def unpickled(command: bytes, pickled: Pickled) -> Any:
    """What this very process has pickled a moment ago; large code is in a broadcast variable."""
    found = _Unpickler(io.BytesIO(command)).load()
    if isinstance(found, _Variable):
        found = _Unpickler(io.BytesIO(pickled(found.number))).load()
    return found


class _Variable:
    """Stands for a broadcast variable: its number is another one in each run."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _Variable, (0,)


class _Unpickler(pickle.Unpickler):
    """Rebuilds functions of this very process, which has pickled them a moment ago."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "_from_id" and module.startswith("pyspark."):
            return _Variable
        return super().find_class(module, name)


class _Pickler(cloudpickle.Pickler):
    """Leaves out what differs between two picklings of one function."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):
            return tuple, (_facts(obj),)
        reduced = super().reducer_override(obj)  # type: ignore[no-untyped-call]
        if isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced[1]) > _TRACKER:
            maker, arguments, *rest = reduced
            plain = (*arguments[:_TRACKER], "", *arguments[_TRACKER + 1 :])
            return (maker, plain, *rest)
        return reduced


def _facts(code: CodeType) -> tuple[Any, ...]:
    """What code does, without where it stands."""
    return (
        code.co_name, code.co_code, code.co_consts, code.co_names, code.co_varnames,
        code.co_freevars, code.co_cellvars, code.co_argcount, code.co_posonlyargcount,
        code.co_kwonlyargcount, code.co_flags, code.co_exceptiontable,
    )  # fmt: skip
