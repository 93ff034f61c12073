"""Spark's streaming examples, each run as its users run it, against a server of lines.

An example is a program of its own that never ends: it is read until its console has shown what it
must, and then stopped. What that is follows from the lines that were sent.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path("examples/src/main/python/sql/streaming")
LINES = ("the quick brown fox", "jumps over the lazy dog", "the end")
WORDS = Counter(word for line in LINES for word in line.split())
PATIENCE_S = 240.0
SPARK_ARGS = "--master local[4] --conf spark.ui.enabled=false pyspark-shell"

Table = list[dict[str, str]]


class Example(NamedTuple):
    """A program, what it gets beside host and port, and what its tables say in the end."""

    file: str
    arguments: tuple[str, ...]
    found: Callable[[list[Table]], Counter[str]]


def _newest(tables: list[Table]) -> Counter[str]:
    """Of a whole result each table replaces the one before."""
    counts: Counter[str] = Counter()
    for row in tables[-1] if tables else ():
        counts[row["word"]] += int(row["count"])
    return counts


def _sessions(tables: list[Table]) -> Counter[str]:
    """Sessions come once, when they are over."""
    counts: Counter[str] = Counter()
    for row in (row for table in tables for row in table):
        counts[row["sessionId"]] += int(row["count"])
    return counts


def _updates(tables: list[Table]) -> Counter[str]:
    """Of what changes, the newest row of a session counts."""
    newest = {(row["sessionId"], row["start"]): row for table in tables for row in table}
    counts: Counter[str] = Counter()
    for row in newest.values():
        counts[row["sessionId"]] += int(row["numEvents"])
    return counts


EXAMPLES = (
    Example("structured_network_wordcount.py", (), _newest),
    Example("structured_network_wordcount_windowed.py", ("3600",), _newest),
    Example("structured_network_wordcount_session_window.py", (), _sessions),
    Example("structured_sessionization.py", (), _updates),
)


def run_example(checkout: Path, example: Example, *, on_spark: bool) -> dict[str, Any]:
    """Run one: `passed`, `fell back` or `failed`, and why."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_serve, args=(server,), daemon=True).start()
        file = str(checkout / FOLDER / example.file)
        words = [] if on_spark else ["-m", "penstock", "run", "--takeover"]
        port = str(server.getsockname()[1])
        process = subprocess.Popen(
            [sys.executable, *words, file, "127.0.0.1", port, *example.arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYSPARK_SUBMIT_ARGS": SPARK_ARGS, "PYSPARK_PYTHON": sys.executable},
        )
        printed: list[str] = []
        told: list[str] = []
        readers = [
            threading.Thread(target=lambda to, of: to.extend(of), args=pair, daemon=True)
            for pair in ((printed, process.stdout), (told, process.stderr))
        ]
        for reader in readers:
            reader.start()
        deadline_s = time.monotonic() + PATIENCE_S
        while process.poll() is None and time.monotonic() < deadline_s:
            if example.found(tables_of(printed)) == WORDS:
                break
            time.sleep(0.2)
        found = example.found(tables_of(printed))
        _end(process)
        for reader in readers:
            reader.join(5)
    if found != WORDS:
        errors = [line.strip() for line in told if "Error" in line or "Exception" in line]
        why = errors[-1][:300] if errors else f"its console shows {dict(found)}"
        return {"outcome": "failed", "queries": 1, "why": [why]}
    left = [line.strip() for line in told if ": Structured Streaming, because " in line]
    return {"outcome": "fell back" if left else "passed", "queries": 1, "why": left}


def _serve(server: socket.socket) -> None:
    """Send the lines to who comes first, and keep everybody's connection open."""
    kept = []
    try:
        while True:
            connection, _ = server.accept()
            if not kept:
                connection.sendall("".join(f"{line}\n" for line in LINES).encode())
            kept.append(connection)
    except OSError:
        return  # the server was closed


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def tables_of(printed: list[str]) -> list[Table]:
    """The tables of the console, as rows by column; one that is not all there yet is left out."""
    tables: list[Table] = []
    names: list[str] | None = None
    rows: Table | None = None
    for line in list(printed):
        if line.startswith("+-"):
            if rows is not None and names is not None:
                tables.append(rows)  # the line below the rows
                names = rows = None
            elif names is not None:
                rows = []  # the line below the names
        elif line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if names is None:
                names = cells
            elif rows is not None:
                rows.append(dict(zip(names, cells, strict=True)))
    return tables
