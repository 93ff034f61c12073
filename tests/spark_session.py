"""The Spark session that the tests of one process share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def shared_session() -> SparkSession:
    """The session of this process, made when first asked for, or again if somebody stopped it.

    Nobody stops it: the JVM ends with the process.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 (only where Spark is wanted)

    # Spark starts its Python processes by this name, and they need the installed package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master("local[4]")
        .appName("penstock-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.ansi.enabled", "true")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.codegen.comments", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


@contextmanager
def own_session(settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[SparkSession]:
    """A session beside the shared one, active; afterwards that one is again."""
    shared = shared_session()
    session = activated(shared.newSession())
    for name, value in settings.items():
        session.conf.set(name, value)
    yield session
    activated(shared)


def activated(session: SparkSession) -> SparkSession:
    """The session, in which Spark looks for formats from here on."""
    session._jvm.SparkSession.setActiveSession(session._jsparkSession)
    return session
