"""The queries of a session, of both engines: `spark.streams` with Penstock's beside Spark's own."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery as SparkQuery
from pyspark.sql.streaming.query import StreamingQueryManager

from penstock.api.registry import STARTED
from penstock.api.session import check_session
from penstock.api.spark_errors import NameActive, check_timeout
from penstock.arguments import check_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.api.query import StreamingQuery

TURN_S = 0.1  # how long each engine is waited for in turn

logger = logging.getLogger(__name__)

Tell = Callable[[StreamingQueryListener], None]


class Listeners:
    """Who wants to hear of the queries of each session, by the session's id in the JVM."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_session: dict[str, list[StreamingQueryListener]] = {}

    def add(self, session: str, listener: StreamingQueryListener) -> None:
        with self._lock:
            self._by_session.setdefault(session, []).append(listener)

    def remove(self, session: str, listener: StreamingQueryListener) -> None:
        with self._lock:
            kept = [each for each in self._by_session.get(session, ()) if each is not listener]
            self._by_session[session] = kept

    def tell(self, session: str, tell: Tell) -> None:
        """Call every listener; one that raises is told to the log, and keeps nobody from more.

        So does one that calls `sys.exit()`, as to end a job whose query has ended.
        """
        with self._lock:
            listeners = list(self._by_session.get(session, ()))
        for listener in listeners:
            try:
                tell(listener)
            except (Exception, SystemExit):
                logger.warning("a StreamingQueryListener raised", exc_info=True)


LISTENERS = Listeners()


class StreamingQueries(StreamingQueryManager):
    """All queries of a session, whoever runs them. Every name means what it means in PySpark."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark._jsparkSession.streams())
        self._session = session_id(spark)
        self._forgotten: weakref.WeakSet[StreamingQuery] = weakref.WeakSet()

    @property
    def active(self) -> list[SparkQuery]:
        return [*super().active, *(query for query in self._ours() if query.isActive)]

    def get(self, id: str) -> SparkQuery | None:
        """The running query of an id; None if none runs under it."""
        check_type(id, str, "id", "a text")
        ours = (query for query in self._ours() if query.isActive and query.id == id)
        return next(ours, None) or super().get(id)

    def awaitAnyTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until any query has ended since the start, or since the last reset."""
        if timeout is not None:
            check_timeout(timeout)
        end_s = None if timeout is None else time.monotonic() + timeout
        while True:
            for query in self._ours():
                if not query.isActive and query not in self._forgotten:
                    if (error := query.exception()) is not None:
                        raise error
                    return None if timeout is None else True
            left_s = TURN_S if end_s is None else min(TURN_S, end_s - time.monotonic())
            if left_s <= 0:
                return False
            turn_s: Any = max(left_s, 0.001)  # PySpark takes fractions of a second too
            if super().awaitAnyTermination(turn_s):
                return None if timeout is None else True

    def resetTerminated(self) -> None:
        """Forget those that have ended, so that the next one to end can be waited for."""
        self._forgotten.update(query for query in self._ours() if not query.isActive)
        super().resetTerminated()

    def addListener(self, listener: StreamingQueryListener) -> None:
        check_type(listener, StreamingQueryListener, "listener", "a StreamingQueryListener")
        super().addListener(listener)
        LISTENERS.add(self._session, listener)

    def removeListener(self, listener: StreamingQueryListener) -> None:
        check_type(listener, StreamingQueryListener, "listener", "a StreamingQueryListener")
        super().removeListener(listener)
        LISTENERS.remove(self._session, listener)

    def _ours(self) -> list[StreamingQuery]:
        return [query for query in STARTED.all() if query.session_id == self._session]


_MADE: weakref.WeakKeyDictionary[SparkSession, StreamingQueries] = weakref.WeakKeyDictionary()


def streams(spark: SparkSession) -> StreamingQueries:
    """The queries of a session, of both engines, and who listens to them."""
    check_session(spark)
    if spark not in _MADE:
        _MADE[spark] = StreamingQueries(spark)
    return _MADE[spark]


def session_id(spark: Any) -> str:
    """What tells sessions apart: PySpark makes new Python objects for one session."""
    return str(spark._jsparkSession.sessionUUID())


def check_name_is_free(spark: SparkSession, name: str | None, folder: Path | None = None) -> None:
    """In a session no two queries of one name run, but for the one whose log is in `folder`."""
    session = session_id(spark)
    for query in STARTED.all():
        is_other = query.isActive and query.session_id == session and query.folder != folder
        if is_other and name is not None and query.name == name:
            raise NameActive(
                f"a query with the name {name!r} is running in this session already: stop it "
                "first, or choose another queryName",
                query=name,
            )
