"""What the measurements of one run share: arguments, a folder, and a session that starts late."""

from __future__ import annotations

from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.bench.scabbard.engines import Input
from penstock.bench.scabbard.queries import QUERIES, WindowQuery
from penstock.bench.sessions import local_session

THREADS = 6
SPARK_SETTINGS = {"spark.driver.memory": "4g"}


class Setting:
    """One run of the benchmark; the session is there from its first use until it is stopped."""

    def __init__(self, args: Namespace, folder: Path) -> None:
        self.args = args
        self.folder = folder
        self._stack = ExitStack()
        self._spark: SparkSession | None = None

    @property
    def spark(self) -> SparkSession:
        if self._spark is None:
            session = local_session("scabbard", THREADS, SPARK_SETTINGS)
            self._spark = self._stack.enter_context(session)
        return self._spark

    def close(self) -> None:
        """Give the machine to somebody else; the next use of the session starts another."""
        self._stack.close()
        self._spark = None

    def queries(self, shown: tuple[str, ...] = tuple(QUERIES)) -> list[WindowQuery]:
        """Those that were asked for; if none was named, those that a figure shows."""
        return [QUERIES[name] for name in self.args.queries or shown]

    def scratch(self, name: str) -> Path:
        """A new folder."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        return folder

    def given(self, query: WindowQuery, folder: Path) -> Input:
        """The sample of a query, to be replayed without end."""
        return Input.of(query, folder, self.args.seed, query.sample_rows, query.sample_rows)
