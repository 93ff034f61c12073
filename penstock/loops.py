"""Loops of the package over arrays: machine code where there is some, a stand-in until then.

A loop is compiled at its first call, or loaded from Numba's cache. Where that would hold rows up,
it is given a stand-in, which does the same with NumPy, until somebody else has compiled it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])

# What the annotations of a loop mean: to Python some are the same that are not to Numba.
Words = NDArray[np.int64]
Rows = NDArray[np.int64]  # two dimensions: one line of words per row
RowNumbers = NDArray[np.int32]
Hashes = NDArray[np.uint32]
HashWords = NDArray[np.uint64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
FlagRows = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
ReadFlags = NDArray[np.bool_]  # which may belong to somebody else, as what follows
ReadBytes = NDArray[np.uint8]
ReadOffsets = NDArray[np.int32]
ReadHashWords = NDArray[np.uint64]
_TYPES = MappingProxyType(
    {
        "Words": "int64[::1]",
        "Rows": "int64[:,::1]",
        "RowNumbers": "int32[::1]",
        "Hashes": "uint32[::1]",
        "Floats": "float64[::1]",
        "Flags": "boolean[::1]",
        "ReadFlags": 'Array(boolean, 1, "C", readonly=True)',
        "Bytes": "uint8[::1]",
        "ReadBytes": 'Array(uint8, 1, "C", readonly=True)',
        "ReadOffsets": 'Array(int32, 1, "C", readonly=True)',
        "HashWords": "uint64[::1]",
        "ReadHashWords": 'Array(uint64, 1, "C", readonly=True)',
        "FlagRows": "boolean[:,::1]",
        "int": "int64",
        "bool": "boolean",
        "None": "void",
    }
)


def _type_of(annotation: str) -> str:
    if not annotation.startswith("tuple["):
        return _TYPES[annotation]
    parts = annotation.removeprefix("tuple[").removesuffix("]").split(", ")
    return f"Tuple(({', '.join(_TYPES[part] for part in parts)}))"


# Loops only borrow their arrays. Counting references to them in each inner call would cost more
# than the work itself, so it is off wherever nothing is allocated.
_BORROWED: dict[str, Any] = {"_nrt": False}


class Loop:
    """A function over arrays that is compiled for its annotations, when it is first called."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self.__doc__ = function.__doc__
        self.name = function.__name__
        types = {name: _type_of(kind) for name, kind in function.__annotations__.items()}
        result = types.pop("return")
        self._signature = f"{result}({', '.join(types.values())})"
        self._function = function
        self._options = options
        self.use(None)

    def __call__(self, *arguments: Any) -> Any:
        return self._run(*arguments)

    @cached_property
    def machine_code(self) -> Callable[..., Any]:
        """The compiled function: read from the cache beside its module, or made now."""
        dispatcher: Any = njit(cache=True, **self._options)(self._function)
        try:
            dispatcher.compile(self._signature)
        except Exception:
            # What was cut short, by a power cut perhaps, is only a copy: make it anew, once.
            dispatcher._cache.flush()
            dispatcher.compile(self._signature)
        dispatcher.disable_compile()
        return cast(Callable[..., Any], dispatcher)

    @property
    def has_machine_code(self) -> bool:
        """Whether its own machine code is in this process."""
        return "machine_code" in vars(self)

    def use(self, run: Callable[..., Any] | None) -> None:
        """Be done by this function from now on; None: by the loop's own machine code.

        A loop is done by its machine code, which is got at the first call: most programs use few of
        the package's loops, and each takes milliseconds to load.
        """
        twin = self if run is None else run
        self._run: Callable[..., Any] = twin._load_for(self) if isinstance(twin, Loop) else twin

    def _load_for(self, user: Loop) -> Callable[..., Any]:
        def load_and_run(*arguments: Any) -> Any:
            user._run = self.machine_code
            return user._run(*arguments)

        return load_and_run


def loop(function: F) -> F:
    """Make a function that allocates nothing a loop."""
    return cast(F, Loop(function, _BORROWED))


def allocating_loop(function: F) -> F:
    """As `loop`, for functions that return a new array."""
    return cast(F, Loop(function, {}))


def unlocked_loop(function: F) -> F:
    """As `allocating_loop`, for threads that read ahead: Python's lock is let go of."""
    return cast(F, Loop(function, {"nogil": True}))


def inlined(function: F) -> F:
    """Compile a part of a loop into each loop that uses it.

    It stands in the module of these loops: machine code is named by the text of that module alone,
    and would not be made anew for a change elsewhere.
    """
    return cast(F, njit(forceinline=True, **_BORROWED)(function))


def loops_of(module: ModuleType) -> Iterator[Loop]:
    """The loops that a module has."""
    return (found for found in vars(module).values() if isinstance(found, Loop))
