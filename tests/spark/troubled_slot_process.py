"""A slot as a plain process. The first of all that come to a certain place stays there.

`step` hangs in a step, as one does whose disk does not answer; `recovery` stops the whole process
just before it registers its instance; `crash` meets what nobody expects, with rows in its hands.
The place is taken once: a file says so, with the process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from penstock.runtime import recovery
from penstock.runtime.slot import SlotOrder, run_slot
from penstock.runtime.vertex import Vertex


def is_first(flag: Path) -> bool:
    try:
        with flag.open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return False
    return True


def trouble(place: str, flag: Path) -> None:
    step, process, register = Vertex.step, Vertex._process, recovery.register

    def hang(vertex: Vertex) -> bool:
        if vertex.marker.epoch > 3 and is_first(flag):
            threading.Event().wait()
        return step(vertex)

    def stop(*given: Any, **named: Any) -> None:
        if is_first(flag):
            os.kill(os.getpid(), signal.SIGSTOP)
        register(*given, **named)

    def crash(vertex: Vertex, delivery: Any) -> None:
        if vertex.marker.epoch > 3 and vertex._is_dirty and is_first(flag):
            raise ValueError("nobody thought of it")
        process(vertex, delivery)

    if place == "step":
        Vertex.step = hang  # type: ignore[method-assign]
    elif place == "crash":
        Vertex._process = crash  # type: ignore[method-assign]
    else:
        recovery.register = stop


if __name__ == "__main__":
    trouble(sys.argv[1], Path(sys.argv[2]))
    run_slot(SlotOrder(**json.loads(sys.stdin.readline())))
