"""Penstock: an exactly-once continuous stream engine for PySpark, over one shared log.

The folders tell the story in this order, and import only downwards:

    api          what a PySpark user touches: writer, query, sinks, the data source
    catalyst     Spark's plan, read into ours
    plan         the logical plan and the visible tuple of rules that rewrite it
    runtime      job, slot, vertex (the protocol in one screen), inputs, outputs, markers, recovery
    stages       the program that is shipped to slots; the waist between compiling and running
    operators    what a vertex computes: chains of steps, and operators with state by one contract
    kernels      compiled loops of expressions and groups, hashing, the compiled-code cache
    expressions  types, functions and expression trees: evaluated by Arrow, or written as loops
    connectors   sources and sinks
    state        states by one contract, keyed state, changes, checkpoints
    log          records, sequencer, segments, p-units: one total order that everything stands on

Anyone may import `errors`, `config`, `clock`, `names`, `arguments`, `options`, `json_codec`,
`arrays` and `loops`. `testing`, `sim`, `bench` and `cli` stand outside: they may import anything,
and no layer imports them.
"""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.api.registry import queries, query
    from penstock.api.session import attach
    from penstock.api.streams import streams
    from penstock.api.tables import as_table
    from penstock.api.takeover import takeover
    from penstock.api.writer import writeStream, writeStreams
    from penstock.connectors.producer import Producer
    from penstock.errors import StreamError
    from penstock.log.local import open_log
    from penstock.runtime.retention import Retention, set_retention
    from penstock.runtime.streams import StreamReader, StreamWriter, create_stream

__version__ = "0.1.0.dev0"

__all__ = [
    "Producer",
    "Retention",
    "StreamError",
    "StreamReader",
    "StreamWriter",
    "__version__",
    "as_table",
    "attach",
    "create_stream",
    "open_log",
    "queries",
    "query",
    "set_retention",
    "streams",
    "takeover",
    "writeStream",
    "writeStreams",
]

# Name → the module that it comes from, imported when the name is first used: whoever only wants
# the log, or the command line, does not wait for Spark.
_HOMES = MappingProxyType(
    {
        "Producer": "penstock.connectors.producer",
        "Retention": "penstock.runtime.retention",
        "StreamError": "penstock.errors",
        "StreamReader": "penstock.runtime.streams",
        "StreamWriter": "penstock.runtime.streams",
        "as_table": "penstock.api.tables",
        "attach": "penstock.api.session",
        "create_stream": "penstock.runtime.streams",
        "open_log": "penstock.log.local",
        "queries": "penstock.api.registry",
        "query": "penstock.api.registry",
        "set_retention": "penstock.runtime.retention",
        "streams": "penstock.api.streams",
        "takeover": "penstock.api.takeover",
        "writeStream": "penstock.api.writer",
        "writeStreams": "penstock.api.writer",
    }
)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
