"""Queries that were planned and do not run: what `penstock check` gives to the program."""

from __future__ import annotations

import uuid
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery as SparkQuery

from penstock.api.streams import StreamingQueries


class PlannedQuery(SparkQuery):
    """Over before it began: waiting for it returns at once, and it has no progress."""

    def __init__(self, title: str) -> None:
        self._name = title
        self._uuid, self._run_uuid = str(uuid.uuid4()), str(uuid.uuid4())

    @property
    def id(self) -> str:
        return self._uuid

    @property
    def runId(self) -> str:
        return self._run_uuid

    @property
    def name(self) -> str:
        return self._name

    @property
    def isActive(self) -> bool:
        return False

    @property
    def status(self) -> dict[str, Any]:
        return {"message": "Planned", "isDataAvailable": False, "isTriggerActive": False}

    @property
    def lastProgress(self) -> None:
        return None

    @property
    def recentProgress(self) -> list[Any]:
        return []

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        return None if timeout is None else True

    def processAllAvailable(self) -> None:
        pass

    def exception(self) -> None:
        return None

    def explain(self, extended: bool = False) -> None:
        pass

    def stop(self) -> None:
        pass


class PlannedStreams(StreamingQueries):
    """The queries of a session in which none runs: most programs end with waiting for any."""

    def awaitAnyTermination(self, timeout: float | None = None) -> bool | None:
        return None if timeout is None else True
