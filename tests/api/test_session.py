"""Attaching: what it sets, what it refuses, and what it leaves alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.api.session import attached_log, check_session
from penstock.config import LogConfig
from penstock.errors import (
    InvalidConfig,
    LogNotFound,
    LogVersionUnsupported,
    NotALog,
    NotAttached,
    StreamError,
    UnsupportedSession,
)
from penstock.kernels.cache import KernelCache
from penstock.log import open_log
from tests.spark_session import own_session, shared_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def session() -> SparkSession:
    """A session that nobody has attached."""
    return shared_session().newSession()


@pytest.mark.spark
def test_attaching_twice_is_harmless(session: SparkSession, tmp_path: Path) -> None:
    first = penstock.attach(session, tmp_path / "log")
    assert penstock.attach(session, str(tmp_path / "log")) == first
    assert attached_log(session).log is first.log
    other = penstock.attach(session, tmp_path / "other")
    assert attached_log(session) == other
    assert attached_log(session).log is not first.log


@pytest.mark.spark
def test_attaching_again_looks_at_every_argument(session: SparkSession, tmp_path: Path) -> None:
    first = penstock.attach(session, tmp_path / "log", durability="process")
    wrong: list[dict[str, Any]] = [
        *({"path": value} for value in (None, 5, b"x", "")),
        *({"create": value} for value in (None, 1, "yes")),
        *({"durability": value} for value in (5, "x", "", [], "synced")),
        *({"kernels": value} for value in (5, b"x", [], "")),
    ]
    for arguments in wrong:
        with pytest.raises(StreamError, match=next(iter(arguments))):
            penstock.attach(session, **({"path": tmp_path / "log"} | arguments))
    assert attached_log(session) == first
    for level in (None, "process"):  # None: as it is
        assert penstock.attach(session, tmp_path / "log", durability=level) == first


@pytest.mark.spark
def test_an_existing_log_has_the_durability_it_was_made_with(
    session: SparkSession, tmp_path: Path
) -> None:
    config = LogConfig(durability="process")
    open_log(tmp_path / "log", create=True, config=config).close()
    with pytest.raises(InvalidConfig, match="was made with durability 'process', not 'synced'"):
        penstock.attach(session, tmp_path / "log", durability="synced")
    with pytest.raises(NotAttached):
        attached_log(session)
    assert penstock.attach(session, tmp_path / "log").log.durability == "process"
    assert penstock.attach(session, tmp_path / "new").log.durability == "synced"


@pytest.mark.spark
def test_nothing_is_written_into_sparks_own_objects(session: SparkSession, tmp_path: Path) -> None:
    assert session.conf is not None  # PySpark keeps what it has made once
    before = set(vars(session)), set(vars(session.sparkContext))
    penstock.attach(session, tmp_path / "log")
    assert (set(vars(session)), set(vars(session.sparkContext))) == before


@pytest.mark.spark
def test_another_python_object_of_the_session_is_attached_too(
    session: SparkSession, tmp_path: Path, kernels: KernelCache
) -> None:
    """As SparkSession.getActiveSession() may return one."""
    penstock.attach(session, tmp_path / "log", kernels=kernels.folder)
    same = type(session)(session.sparkContext, session._jsparkSession)
    found = attached_log(same)
    assert found.path == tmp_path / "log"
    assert found.kernels == str(kernels.folder)
    with pytest.raises(NotAttached, match=r"call penstock.attach\(spark, 'path/to/log'\)"):
        attached_log(session.newSession())


@pytest.mark.spark
def test_sparks_python_becomes_this_one_unless_one_was_chosen(
    session: SparkSession, tmp_path: Path
) -> None:
    context = session.sparkContext
    chosen = context.pythonExec
    try:
        context.pythonExec = "python3"  # as where PYSPARK_PYTHON is not set
        penstock.attach(session, tmp_path / "log")
        assert context.pythonExec == sys.executable
        assert _executable_of_a_task(session) == sys.executable
        context.pythonExec = "/chosen/python"
        penstock.attach(session, tmp_path / "other")
        assert context.pythonExec == "/chosen/python"
    finally:
        context.pythonExec = chosen


@pytest.mark.slow
@pytest.mark.spark
def test_streams_are_read_with_the_interpreter_that_became_sparks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = str(tmp_path / "python3")  # as a python3 of the PATH that has no Penstock
    monkeypatch.setattr("penstock.api.session._PYTHON_DEFAULT", missing)
    with own_session() as session:
        monkeypatch.setattr(session.sparkContext, "pythonExec", missing)
        penstock.attach(session, tmp_path / "log")
        writer = session.range(5).write.format("penstock").option("stream", "numbers")
        writer.mode("append").save()
        rows = session.read.format("penstock").option("stream", "numbers").load()
        assert sorted(row.id for row in rows.collect()) == [0, 1, 2, 3, 4]


def _executable_of_a_task(session: SparkSession) -> str:
    def tell(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415 (in the task)

        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"python": [sys.executable]})

    rows = session.range(0, 1, 1, 1).mapInArrow(tell, "python string").collect()
    return str(rows[0]["python"])


# --- sessions that cannot be used -----------------------------------------------------------------


class Remote:
    """Like a session of Spark Connect: there is no JVM behind it."""


@pytest.mark.parametrize("call", [lambda s: penstock.attach(s, "log"), attached_log])
def test_a_spark_connect_session_is_told_what_works(call: Callable[[Any], object]) -> None:
    with pytest.raises(UnsupportedSession, match="classic one") as caught:
        call(Remote())
    assert "Over Connect the data source works" in caught.value.message
    assert "PenstockDataSource" in caught.value.message


class Stopped:
    """What `spark.stop()` leaves of a session."""

    _jsparkSession = object()
    sparkContext = type("Context", (), {"_jsc": None})


def test_a_stopped_session_says_what_to_do() -> None:
    with pytest.raises(UnsupportedSession, match="was stopped: create a new one"):
        check_session(Stopped())


# --- logs that cannot be used ---------------------------------------------------------------------


@pytest.mark.spark
def test_a_log_of_a_newer_version_is_refused_untouched(
    session: SparkSession, tmp_path: Path
) -> None:
    open_log(tmp_path / "log", create=True).close()
    identity = tmp_path / "log" / "penstock-log.json"
    facts = json.loads(identity.read_text())
    identity.write_text(json.dumps({**facts, "version": facts["version"] + 1}))
    before = identity.read_bytes()
    with pytest.raises(LogVersionUnsupported, match=r"(?i)upgrade|newer"):
        penstock.attach(session, tmp_path / "log")
    assert identity.read_bytes() == before


@pytest.mark.spark
def test_a_folder_of_other_things_or_none_is_refused(session: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(NotALog, match="mine"):
        penstock.attach(session, tmp_path / "mine")
    with pytest.raises(LogNotFound, match="check the path"):
        penstock.attach(session, tmp_path / "none", create=False)
    with pytest.raises(NotAttached):
        attached_log(session)


# A log is opened before the rights are dropped: what is imported then may lie where only its owner
# can read, such as below a folder of mktemp's.
READ_ONLY = """
import os, sys, tempfile
from penstock.api.session import attach
from penstock.errors import StreamError
from penstock.log import open_log
with tempfile.TemporaryDirectory() as other:
    open_log(os.path.join(other, "log"), create=True).close()
class Context: _jsc = object()
class Session: _jsparkSession, sparkContext = object(), Context
if os.geteuid() == 0:
    os.setgid(65534); os.setuid(65534)
try:
    attach(Session(), sys.argv[1])
except StreamError as error:
    print(error.error_class, error.message)
"""


def test_a_read_only_log_is_refused() -> None:
    """In a process without root's rights; the log is opened before Spark is asked for anything."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-read-only-"))
    try:
        open_log(folder / "log", create=True).close()
        for path in (folder / "log", *(folder / "log").rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        folder.chmod(0o755)
        answer = subprocess.run(
            [sys.executable, "-c", READ_ONLY, str(folder / "log")],
            capture_output=True, text=True, timeout=60, check=False, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert answer.stdout.startswith("LOG_READ_ONLY "), answer.stdout + answer.stderr
        assert "writ" in answer.stdout
    finally:
        os.chmod(folder / "log", 0o755)
        shutil.rmtree(folder)
