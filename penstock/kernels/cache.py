"""The folder of compiled kernels: one module per content hash, machine code beside it."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np

KERNEL_ABI = 1  # raise it when generated source calls or is called in another way


class KernelCache:
    """Turns source into compiled functions; a later process finds the machine code."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._loaded: dict[str, Any] = {}

    def load(self, source: str) -> Callable[..., int]:
        """The function `kernel` of a module with this source, compiled or read from the cache."""
        name = f"k_{self.content_hash(source)}"
        if name not in self._loaded:
            path = self._write(name, source)
            try:
                self._loaded[name] = self._import(name, path)
            except Exception:
                # Machine code that was cut short or damaged is only a copy: make it anew, once.
                if not self._forget_machine_code(name):
                    raise
                self._loaded[name] = self._import(name, path)
        kernel: Callable[..., int] = self._loaded[name].kernel
        return kernel

    @staticmethod
    def content_hash(source: str) -> str:
        """The hash that names a kernel: its source, and all that its machine code depends on."""
        parts = (
            f"abi={KERNEL_ABI}",
            f"python={sys.version_info[0]}.{sys.version_info[1]}",
            f"numba={numba.__version__}",
            f"numpy={np.__version__}",
            source,
        )
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]

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
    def _import(name: str, path: Path) -> Any:
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
