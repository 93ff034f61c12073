"""The hardware and versions that figures were taken on."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from penstock.bench.floors import stream_mb_per_s, sync_us
from penstock.bench.report import median

DISK_S = 0.5
SYNCS = 50
_PACKAGES = ("penstock", "pyspark", "pyarrow", "numpy", "numba")


def machine(folder: Path) -> Mapping[str, str]:
    """What it is, and what its disk does alone."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=folder) as name:
        scratch = Path(name)
        disk_mb_per_s = stream_mb_per_s(scratch / "stream", DISK_S)
        sync_ms = median(sync_us(scratch, SYNCS)) / 1e3
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / (1 << 30):.1f} GiB",
        "disk": f"{disk_mb_per_s:,.0f} MB/s, synced every 8 MiB; 4 KiB and a sync {sync_ms:.2f} ms",
        "system": f"{platform.system()} {platform.release()}",
        "load when this began": ", ".join(f"{load:.2f}" for load in os.getloadavg()),
        "versions": ", ".join([f"Python {platform.python_version()}", *_versions()]),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _versions() -> list[str]:
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return found
