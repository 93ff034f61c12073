"""Attaching a Spark session to a log: the one call before anything else."""

from __future__ import annotations

import os
import sys
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from penstock.api.datasource import data_source_for
from penstock.api.launcher import prepare_slots
from penstock.api.nexmark_source import NexmarkDataSource
from penstock.api.producers_source import ProducersDataSource
from penstock.api.replay_source import ReplayDataSource
from penstock.arguments import check_folder, check_type
from penstock.catalyst.session import active_session
from penstock.config import Durability, LogConfig
from penstock.errors import InvalidConfig, NotAttached, UnsupportedSession
from penstock.log.local import LocalLog, open_log

# In the session's own settings: PySpark makes new Python objects for one session, as for the
# result of SparkSession.getActiveSession().
_LOG_SETTING = "spark.penstock.log"
_KERNELS_SETTING = "spark.penstock.kernels"
_PYTHON_DEFAULT = "python3"  # what PySpark takes where nobody has named an interpreter
_PYTHON_SETTINGS = ("spark.pyspark.python", "spark.pyspark.driver.python")


@dataclass(frozen=True)
class _Attachment:
    """What a session is attached to; without the session, which is to go when nobody uses it."""

    path: Path
    log: LocalLog
    kernels: str | None


_ATTACHMENTS: weakref.WeakKeyDictionary[SparkSession, _Attachment] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Attached:
    """A session, its log, and where its slots keep compiled kernels (None: each user's own)."""

    spark: SparkSession
    path: Path
    log: LocalLog
    kernels: str | None = None


def attach(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    create: bool = True,
    durability: Durability | None = None,
    kernels: str | os.PathLike[str] | None = None,
) -> Attached:
    """Use a folder as this session's log; it is created if there is none.

    From here on `spark.readStream.format("penstock").option("stream", name)` reads its streams, and
    `penstock.writeStream(df)` runs queries over it. Attaching again, as a notebook cell that is run
    twice does, is harmless; attaching to another folder replaces the first for new queries.

    `durability` is that of a new log, "synced" or "process"; None means that of the log that is
    there, and "synced" for a new one. An existing log keeps its own: asking for another is an
    error. `kernels` is a folder for compiled code, the same on every executor; whoever can write to
    it runs code in the slots.

    In a local session where no interpreter was named, Spark's Python processes become this one's.
    Some are started in the background, for the slots of the first query, and where nothing was
    compiled yet, the process that will.
    """
    check_session(spark)
    folder = check_folder(path, "path")
    check_type(create, bool, "create", "True or False")
    kept = None if kernels is None else str(check_folder(kernels, "kernels"))
    config = LogConfig() if durability is None else LogConfig(durability=durability)
    known = _ATTACHMENTS.get(spark)
    if known is not None and (known.path, known.kernels) == (folder, kept):
        _check_durability(known.log, durability)
        return Attached(spark, known.path, known.log, known.kernels)
    log = open_log(folder, create=create, config=config)
    try:
        _check_durability(log, durability)
    except InvalidConfig:
        log.close()
        raise
    prepare_session(spark, kept)  # first: a source keeps the interpreter it is registered with
    with active_session(spark):  # else Spark looks for these names among another one's sources
        spark.dataSource.register(data_source_for(str(folder)))
        spark.dataSource.register(NexmarkDataSource)
        spark.dataSource.register(ReplayDataSource)
        spark.dataSource.register(ProducersDataSource)
    spark.conf.set(_LOG_SETTING, str(folder))
    spark.conf.set(_KERNELS_SETTING, kept or "")
    _ATTACHMENTS[spark] = _Attachment(folder, log, kept)
    return Attached(spark, folder, log, kept)


def prepare_session(spark: SparkSession, kernels: str | None) -> None:
    """Have Spark's Python processes run with this interpreter, and some of them wait for slots."""
    _use_this_python(spark)
    prepare_slots(spark.sparkContext, kernels)


def is_attached(spark: Any) -> bool:
    """Whether a session has a log that its queries share."""
    check_session(spark)
    return bool(spark.conf.get(_LOG_SETTING, None))


def attached_log(spark: Any) -> Attached:
    """The log that a session was attached to."""
    check_session(spark)
    known = _ATTACHMENTS.get(spark)
    folder = spark.conf.get(_LOG_SETTING, None)
    if known is not None and str(known.path) == folder:
        return Attached(spark, known.path, known.log, known.kernels)
    if folder:
        kernels = spark.conf.get(_KERNELS_SETTING, "") or None
        return attach(spark, folder, create=False, kernels=kernels)
    raise NotAttached(
        "this Spark session is not attached to a log: call penstock.attach(spark, 'path/to/log') "
        "first"
    )


def check_session(spark: Any) -> None:
    """Raise UnsupportedSession for what Penstock cannot plan queries in."""
    if type(spark).__module__ == "builtins":
        raise UnsupportedSession(
            f"this is {type(spark).__name__}, not a Spark session: make one with "
            "SparkSession.builder.master(...).getOrCreate()"
        )
    if not hasattr(spark, "_jsparkSession"):
        raise UnsupportedSession(
            "this is a Spark Connect session, which has no access to Catalyst's plans: create a "
            "classic one (SparkSession.builder.master(...)). Over Connect the data source works: "
            "register penstock.api.datasource.PenstockDataSource and use format('penstock')"
        )
    if spark.sparkContext._jsc is None:
        raise UnsupportedSession(
            "this Spark session was stopped: create a new one with SparkSession.builder, attach it "
            "to the same log and start the query again; it goes on from there"
        )


def _check_durability(log: LocalLog, wanted: Durability | None) -> None:
    if wanted not in (None, log.durability):
        raise InvalidConfig(
            f"the log at {log.folder} was made with durability {log.durability!r}, not {wanted!r}, "
            "and keeps it: leave `durability` out, or choose a new folder",
            setting="durability",
            value=wanted,
        )


def _use_this_python(spark: SparkSession) -> None:
    """Start Spark's Python processes with this interpreter, unless somebody chose another.

    Only where they run on this machine: elsewhere its path means nothing.
    """
    context = spark.sparkContext
    chosen = any(context.getConf().contains(setting) for setting in _PYTHON_SETTINGS)
    is_local = str(context.master).startswith("local")
    if is_local and not chosen and context.pythonExec == _PYTHON_DEFAULT and sys.executable:
        context.pythonExec = sys.executable
