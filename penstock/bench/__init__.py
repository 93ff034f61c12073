"""Benchmarks: what the parts of Penstock do on this machine, beside what the bare machine does.

Each benchmark is one module with `TITLE`, `add_arguments(parser)` and `measure(args) -> Report`;
`penstock bench NAME` runs it. To add one, write the module and add its line to the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# Word on the command line → module, imported only when its word is used.
BENCHMARKS: Mapping[str, str] = MappingProxyType(
    {
        "codecs": "penstock.bench.codecs",
        "core": "penstock.bench.core",
        "files": "penstock.bench.files",
        "folder": "penstock.bench.folder",
        "join": "penstock.bench.join",
        "latency": "penstock.bench.latency",
        "log": "penstock.bench.log",
        "nexmark": "penstock.bench.nexmark",
        "producers": "penstock.bench.producers",
        "python": "penstock.bench.python",
        "recovery": "penstock.bench.recovery",
        "restore": "penstock.bench.restore",
        "report": "penstock.bench.page",
        "scabbard": "penstock.bench.scabbard",
        "sink": "penstock.bench.sink",
        "throughput": "penstock.bench.throughput",
    }
)
