"""The Spark session behind a DataFrame: its optimizer, and the settings that change results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from penstock.catalyst.chance import with_functions
from penstock.catalyst.jvm import JvmNode, scala_object, scala_option
from penstock.catalyst.refusals import CLOCK_KINDS, EXPRESSION_REASONS, WAY_OUT, unsupported
from penstock.errors import InvalidArgument, UnsupportedPlan
from penstock.stages.settings import WatermarkPolicy

# Settings under which Spark itself computes something else than this engine.
_REQUIRED_SETTINGS: tuple[tuple[str, str, str], ...] = (
    ("spark.sql.ansi.enabled", "true", "only ANSI arithmetic is run here"),
    (
        "spark.sql.decimalOperations.allowPrecisionLoss",
        "true",
        "decimals are computed here with Spark's default types",
    ),
)
_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


@dataclass(frozen=True)
class SessionFacts:
    """What the translation needs to know about the session."""

    time_zone: str
    case_sensitive: bool
    watermark_policy: WatermarkPolicy
    handle: Any = field(default=None, compare=False)  # the session itself


@dataclass(frozen=True)
class Plans:
    """One DataFrame's plan, as analysed and as optimised."""

    analyzed: JvmNode
    optimized: JvmNode
    session: SessionFacts


def plans_of(df: Any) -> Plans:
    """Let Spark plan a DataFrame. No job runs."""
    session = _session_of(df)
    _check_settings(session)
    analyzed = JvmNode(df._jdf.queryExecution().analyzed())
    if not analyzed.read("isStreaming"):
        raise UnsupportedPlan(
            f"{analyzed.kind}: the DataFrame does not stream, so neither Penstock nor Structured "
            "Streaming can run it as a query: read it with spark.readStream",
            node=analyzed.kind,
        )
    with active_session(session):
        written = with_functions(session, analyzed)
        _refuse_clocks(session, written)
        optimized = _optimized(session, written)
    facts = SessionFacts(
        time_zone=str(session.conf.get("spark.sql.session.timeZone")),
        case_sensitive=str(session.conf.get("spark.sql.caseSensitive")).lower() == "true",
        watermark_policy="max" if str(session.conf.get(_POLICY)).lower() == "max" else "min",
        handle=session,
    )
    return Plans(analyzed, optimized, facts)


def _optimized(session: Any, written: JvmNode) -> JvmNode:
    """The plan as Spark's optimizer leaves it, which fails on some queries whoever runs them.

    What Spark says in words of its own, of a constant division by zero for instance, is raised as
    it is.
    """
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 (Spark is loaded where it is used)

    optimizer = session._jsparkSession.sessionState().optimizer()
    try:
        return JvmNode(optimizer.execute(written.handle))
    except Py4JJavaError as error:
        failure = error.java_exception
        columns = ", ".join(str(each.read("name")) for each in written.output)
        raise UnsupportedPlan(
            f"{written.kind}, columns {columns:.200}: Spark's optimizer failed on the query, as it "
            "does on a batch of it, and Structured Streaming has no other one: "
            f"{failure.toString():.500}. Write what this speaks of in another way, or compute some "
            "of the columns in a query of their own",
            node=written.kind,
            column=columns[:200],
            failure=str(failure.getClass().getName()),
        ) from error


def refused_by_spark(plans: Plans, output_mode: str) -> str | None:
    """Why Structured Streaming would not start a query in this mode either; None if it would."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 (Spark is loaded where it is used)
    from pyspark.errors import PySparkException  # noqa: PLC0415

    session = plans.session.handle
    checker = session._jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    modes = session._jvm.org.apache.spark.sql.streaming.OutputMode
    mode = getattr(modes, output_mode.capitalize())()
    try:
        with active_session(session):
            checker.checkForStreaming(plans.analyzed.handle, mode)
    except PySparkException as error:
        return str(error).splitlines()[0]
    except Py4JJavaError as error:
        return str(error.java_exception.getMessage()).splitlines()[0]
    return None


def lacks_format(session: Any, name: str) -> str | None:
    """Why a session has no data source of this name; None if it has one."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 (Spark is loaded where it is used)
    from pyspark.errors import PySparkException  # noqa: PLC0415

    sources = scala_object(session._jvm.org.apache.spark.sql.execution.datasources, "DataSource")
    try:
        with active_session(session):
            sources.lookupDataSource(name, session._jsparkSession.sessionState().conf())
    except PySparkException as error:
        return str(error).splitlines()[0]
    except Py4JJavaError as error:
        return str(error.java_exception.getMessage()).splitlines()[0]
    return None


def _session_of(df: Any) -> Any:
    """The session of a DataFrame that lives in a JVM of this process's driver."""
    from pyspark.sql import DataFrame  # noqa: PLC0415 (Spark is loaded where it is used)
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame  # noqa: PLC0415

    if isinstance(df, ClassicDataFrame):
        return df.sparkSession
    if isinstance(df, DataFrame):
        raise UnsupportedPlan(
            "DataFrame: it belongs to a Spark Connect session, which does not show its plan to "
            "Python; create the session in the driver (without spark.remote) to run it here. "
            f"{WAY_OUT}",
            node="DataFrame",
        )
    raise InvalidArgument(
        f"a streaming DataFrame was expected, not {type(df).__name__}", given=type(df).__name__
    )


def _check_settings(session: Any) -> None:
    for name, wanted, reason in _REQUIRED_SETTINGS:
        found = str(session.conf.get(name, wanted)).lower()
        if found != wanted:
            raise UnsupportedPlan(
                f"{name} is {found}: {reason}; set it to {wanted} before the DataFrame is made. "
                f"{WAY_OUT}",
                setting=name,
                value=found,
            )


def _refuse_clocks(session: Any, analyzed: JvmNode) -> None:
    """Find what reads the clock before the optimizer turns it into a constant."""
    patterns = session._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    if not analyzed.handle.containsPattern(patterns.CURRENT_LIKE()):
        return
    for node in analyzed.walk():
        for expression in node.nodes("expressions"):
            column = str(expression.read("name")) if expression.kind == "Alias" else None
            for part in expression.walk():
                if part.kind in CLOCK_KINDS:
                    raise unsupported(
                        node.kind, EXPRESSION_REASONS[part.kind], expression=part, column=column
                    )


@contextmanager
def active_session(session: Any) -> Iterator[None]:
    """Make a session the active one of this thread, whose settings and data sources Spark reads
    wherever it is not told of another."""
    sessions = session._jvm.org.apache.spark.sql.classic.SparkSession
    before = scala_option(sessions.getActiveSession())
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        if before is None:
            sessions.clearActiveSession()
        else:
            sessions.setActiveSession(before)
