"""Where the processor time of a query goes: all its vertices in one process, under the profiler."""

from __future__ import annotations

import cProfile
import os
import time
from pathlib import Path
from types import CodeType
from typing import Any

import penstock
from penstock.bench.files.engines import Place, session
from penstock.bench.files.queries import QUERIES
from penstock.catalyst.translate import translate
from penstock.kernels.cache import KernelCache
from penstock.kernels.private_folder import private_kernels_folder
from penstock.plan.optimizer import plan_program
from penstock.stages.program import Program
from penstock.stages.settings import Settings
from penstock.testing.plans import Draft, query
from penstock.testing.single_process import SingleProcess

TOP = 25
_PACKAGE = os.path.dirname(os.path.dirname(penstock.__file__)) + os.sep


def profile_query(
    start_s: float, name: str, place: Place, parallelism: int
) -> list[dict[str, Any]]:
    """The functions that took most, by their own time; compiled loops count for their caller.

    The query runs twice, and the second time counts: by then everything is compiled and loaded.
    Time is the main thread's on a processor: other programs, and waiting for the disk, do not show.
    """
    del start_s
    with session() as spark:
        rows = QUERIES[name].stream(spark, str(place.input))
        mode = QUERIES[name].output
        relation = translate(rows, output_mode=mode, query=name, substreams=lambda _: 1).relation
        write = Draft(relation).to_stream("result")
        settings = Settings(available_now=True)
        program = plan_program(query(name, write, parallelism=parallelism, settings=settings))
    kernels = KernelCache(private_kernels_folder())
    _run(program, place.scratch / "first", kernels)
    profiler = cProfile.Profile(time.thread_time)
    profiler.enable()
    _run(program, place.scratch / "second", kernels)
    profiler.disable()
    return _top(profiler)


def _run(program: Program, log: Path, kernels: KernelCache) -> None:
    with SingleProcess(program, log, kernels=kernels) as process:
        process.run_available()


def _top(profiler: cProfile.Profile) -> list[dict[str, Any]]:
    entries = sorted(profiler.getstats(), key=lambda entry: -entry.inlinetime)
    whole_s = sum(entry.inlinetime for entry in entries)
    return [
        {
            "function": _where(entry.code),
            "calls": entry.callcount,
            "own_s": round(entry.inlinetime, 3),
            "with_called_s": round(entry.totaltime, 3),
            "share": round(entry.inlinetime / whole_s, 3),
        }
        for entry in entries[:TOP]
    ]


def _where(code: CodeType | str) -> str:
    if isinstance(code, str):
        return code
    return f"{code.co_filename.removeprefix(_PACKAGE)}:{code.co_firstlineno} {code.co_qualname}"
