"""Slots as plain processes: the job's own behaviour, tested without the price of a JVM."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from penstock.runtime.slot import SlotOrder

ROOT = Path(__file__).parents[2]


class ProcessLauncher:
    """Starts a module as a process for each slot, and tells when it has ended."""

    def __init__(self, module: str = "tests.spark.slot_process", *arguments: str) -> None:
        self._command = [sys.executable, "-m", module, *arguments]
        self._processes: dict[int, subprocess.Popen[str]] = {}

    def launch(self, order: SlotOrder, on_end: Callable[[int, str | None], None]) -> None:
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(order)) + "\n")
        process.stdin.close()
        self._processes[order.slot] = process

        def wait() -> None:
            code = process.wait()
            on_end(order.slot, None if code == 0 else f"exit code {code}")

        threading.Thread(target=wait, daemon=True).start()

    def cancel_slot(self, slot: int) -> None:
        self._processes[slot].kill()

    def cancel(self) -> None:
        """End what still runs; a slot that was told to stop gets the time to do so."""
        for process in self._processes.values():
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()

    def ended(self) -> str | None:
        return None
