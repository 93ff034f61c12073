"""The folder of compiled kernels: one module per content hash, machine code beside it.

k_<hash>.py         a module
k_<hash>.compiled   it is compiled, for the machine that the hash speaks of
__pycache__         Numba's: the machine code
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import ModuleType

import llvmlite.binding
import numba
import numpy as np
from numba.core.registry import cpu_target

KERNEL_ABI = 1  # raise it when generated source calls or is called in another way


@cache
def _environment() -> str:
    """What machine code depends on beside its source."""
    parts = (
        f"abi={KERNEL_ABI}",
        f"python={sys.version_info[0]}.{sys.version_info[1]}",
        f"numba={numba.__version__}",
        f"numpy={np.__version__}",
        f"processor={llvmlite.binding.get_host_cpu_name()}",
        f"features={llvmlite.binding.get_host_cpu_features().flatten()}",
    )
    return "\n".join(parts)


def prepare_process() -> None:
    """Have Numba read its registries now, for which the first kernel of a process waits."""
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


class KernelCache:
    """Turns source into compiled functions; a later process finds the machine code."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._loaded: dict[str, ModuleType] = {}

    def get(self, source: str) -> Callable[..., int] | None:
        """The function `kernel` of a module with this source; None: not yet."""
        return self.load(source)

    def load(self, source: str) -> Callable[..., int]:
        """The function `kernel` of a module with this source, compiled or read from the cache."""
        is_first = self.name_of(source) not in self._loaded
        kernel: Callable[..., int] = self.module(source).kernel
        if is_first:
            self.mark_compiled(self.name_of(source))
        return kernel

    def tend(self) -> bool:
        """Look after what is compiled elsewhere; return whether some of it has become ready."""
        return False

    def rehearse(self, names: Iterable[str]) -> None:
        """See to it that the compiled functions of generators are there; see `rehearsals`."""

    def module(self, source: str) -> ModuleType:
        """The module with this source, whose signatures are compiled or read from the cache."""
        name = self.name_of(source)
        if name not in self._loaded:
            path = self._write(name, source)
            try:
                self._loaded[name] = self._import(name, path)
            except Exception:
                # Machine code that was cut short or damaged is only a copy: make it anew, once.
                if not self._forget_machine_code(name):
                    raise
                self._loaded[name] = self._import(name, path)
        return self._loaded[name]

    def is_compiled(self, unit: str) -> bool:
        """Whether some process has compiled a module, or one part of it."""
        return self._mark(unit).exists()

    def mark_compiled(self, unit: str) -> None:
        """Let other processes know that they will find machine code."""
        self._mark(unit).touch()

    def _mark(self, unit: str) -> Path:
        return self.folder / f"{unit}.compiled"

    @classmethod
    def name_of(cls, source: str) -> str:
        return f"k_{cls.content_hash(source)}"

    @staticmethod
    def content_hash(source: str) -> str:
        """The hash that names a kernel: its source, and all that its machine code depends on."""
        return hashlib.sha256(f"{_environment()}\n{source}".encode()).hexdigest()[:32]

    def _write(self, name: str, source: str) -> Path:
        path = self.folder / f"{name}.py"
        if path.exists() and path.read_text(encoding="utf-8") == source:
            return path  # untouched: Numba's index is keyed by the file's time and size
        handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=f"{name}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(source)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        return path

    def _forget_machine_code(self, name: str) -> bool:
        """Delete what Numba kept of a kernel; return whether there was anything."""
        kept = list((self.folder / "__pycache__").glob(f"{name}.*"))
        for path in kept:
            path.unlink(missing_ok=True)
        return bool(kept)

    @staticmethod
    def _import(name: str, path: Path) -> ModuleType:
        known = sys.modules.get(name)  # of an earlier query in this process: the same, as its name
        if known is not None and known.__file__ == str(path):
            return known
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # machine code in the cache refers to its module by name
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module
