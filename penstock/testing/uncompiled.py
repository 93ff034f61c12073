"""Runs without compiled code."""

from __future__ import annotations

from collections.abc import Callable

from penstock.kernels.cache import KernelCache


class Uncompiled(KernelCache):
    """Never has a kernel ready: Arrow and NumPy do the work, as while a first start compiles."""

    def get(self, source: str) -> Callable[..., int] | None:
        return None
