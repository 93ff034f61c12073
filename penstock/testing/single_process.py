"""A program in this process alone: log, checkpoints, kernels and host put together in one call.

    with SingleProcess(plan_program(query), "my-log") as process:
        process.run()
        print(process.read("hot_auctions"))

It is the whole engine, with no Spark: for notebooks, tests and benchmarks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from penstock.clock import Clock, SystemClock
from penstock.config import LogConfig
from penstock.connectors.hidden_files import FilesKind
from penstock.kernels.cache import KernelCache
from penstock.kernels.private_folder import private_kernels_folder
from penstock.log.local import LocalLog, open_log
from penstock.runtime.assembly import Assembly
from penstock.runtime.checkpointing import BackgroundCheckpointer, CheckpointStatistics
from penstock.runtime.host import HostStatistics
from penstock.runtime.slot import CHECKPOINTS_FOLDER
from penstock.runtime.sources import SOURCES, SourceBuilder
from penstock.runtime.streams import StreamReader
from penstock.runtime.trimming import TRIM_COMMITS
from penstock.stages.program import Program
from penstock.state.checkpoints import CheckpointStore
from penstock.testing.standalone import StandaloneHost


class SingleProcess:
    """Hosts all vertices of a program, or some of them, over the log in a folder.

    The log is made if there is none. Checkpoints are kept beside it, compiled kernels in a folder
    of the user's own. `sources` are connectors of the caller's, beside the known ones. Another one
    over the same folder and program takes the vertices over, and goes on where the committed output
    ends.
    """

    def __init__(
        self,
        program: Program,
        folder: str | os.PathLike[str],
        *,
        vertices: tuple[str, ...] | None = None,
        sources: Mapping[str, SourceBuilder] | None = None,
        kernels: KernelCache | None = None,
        clock: Clock | None = None,
        log_config: LogConfig | None = None,
        trim_commits: int = TRIM_COMMITS,
        files: Mapping[str, FilesKind] | None = None,
    ) -> None:
        path = Path(folder)
        self.log: LocalLog = open_log(path, create=True, config=log_config)
        store = CheckpointStore(path / CHECKPOINTS_FOLDER)
        self._checkpointer = BackgroundCheckpointer(
            CheckpointStore(path / CHECKPOINTS_FOLDER), self.log
        )
        try:
            assembly = Assembly(
                program=program,
                log=self.log,
                clock=clock or SystemClock(),
                checkpoints=store,
                checkpointer=self._checkpointer,
                kernels=kernels or KernelCache(private_kernels_folder()),
                sources={**SOURCES, **(sources or {})},
                trim_commits=trim_commits,
                files=files or {},
            )
            self.host = StandaloneHost(assembly, vertices)
        except BaseException:
            self._close_files()
            raise

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Run until the input ends, or `until` says so."""
        self.host.run(until)

    def run_available(self) -> None:
        """Process everything that is there now, commit it and return."""
        self.host.run_available()

    def read(self, stream: str) -> pa.Table:
        """The committed rows of a stream."""
        return StreamReader(self.log, stream).read_all()

    def statistics(self) -> HostStatistics:
        return self.host.statistics()

    def wait_checkpoints(self, timeout_s: float) -> CheckpointStatistics:
        """Wait for checkpoints and trims that are under way; return what was done so far."""
        self._checkpointer.wait_idle(timeout_s)
        return self._checkpointer.statistics()

    def close(self) -> None:
        """Commit what has been done and let everything go."""
        try:
            self.host.close()
        finally:
            self._close_files()

    def abandon(self) -> None:
        """Let everything go without committing, as a crash would; what is committed stays."""
        self.host.abandon()
        self._close_files()

    def __enter__(self) -> SingleProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()

    def _close_files(self) -> None:
        self._checkpointer.close()
        self.log.close()
