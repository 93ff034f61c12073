"""`penstock run`: a program runs as under `python`, and its queries outlive its last line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from penstock.cli.main import main
from penstock.log import open_log
from penstock.runtime.queries import (
    needed_query,
    query_progress,
    running_process,
    stored_query,
)
from penstock.runtime.streams import StreamReader

PATIENCE_S = 300

ENDLESS = """
import penstock
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[3]")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
penstock.attach(spark, "log")
rows = spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
penstock.writeStream(rows).queryName("endless").toStream("numbers").start()
"""


def program(tmp_path: Path, text: str) -> str:
    path = tmp_path / "program.py"
    path.write_text(text)
    return str(path)


def test_it_runs_as_the_main_module(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "chosen-before")
    (tmp_path / "beside_it.py").write_text("WORD = 'found'\n")
    text = "import os, sys, beside_it\nprint(__name__, sys.argv[1:], beside_it.WORD)\n"
    text += "print(os.environ['PYSPARK_PYTHON'])\n"
    before = list(sys.argv), list(sys.path)
    assert main(["run", program(tmp_path, text), "--json", "x"]) == 0
    assert capsys.readouterr().out == "__main__ ['--json', 'x'] found\nchosen-before\n"
    assert (list(sys.argv), list(sys.path)) == before
    del sys.modules["beside_it"]


def test_sparks_python_is_this_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "")  # so that it is restored afterwards
    monkeypatch.delenv("PYSPARK_PYTHON")
    text = "import os; print(os.environ['PYSPARK_PYTHON'])"
    assert main(["run", program(tmp_path, text)]) == 0
    assert capsys.readouterr().out == f"{sys.executable}\n"


@pytest.mark.parametrize(
    ("ending", "code"),
    [("pass", 0), ("sys.exit()", 0), ("sys.exit(7)", 7), ("sys.exit('bad day')", 1)],
)
def test_the_exit_code_is_the_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str, code: int
) -> None:
    assert main(["run", program(tmp_path, f"import sys\n{ending}\n")]) == code
    assert ("bad day" in capsys.readouterr().err) == (code == 1)


def test_a_program_that_raises_shows_its_own_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        main(["run", program(tmp_path, "1 / 0")])


def test_a_program_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(tmp_path / "none.py")]) == 2
    assert "there is no program" in capsys.readouterr().err


SESSION = "from pyspark.sql import SparkSession; SparkSession.builder.master('local').getOrCreate()"


@pytest.mark.parametrize(
    ("java", "found"),
    [
        (None, "does not answer"),
        ("echo 'java.version = 11.0.22'; echo 'java.home = /old'", "is version 11.0.22"),
    ],
)
def test_a_java_that_is_missing_or_too_old_is_told(
    tmp_path: Path, java: str | None, found: str
) -> None:
    """Spark itself only says that its gateway has exited."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    if java is not None:
        # Asked for its version it answers; as Spark's Java it ends as one that is too old does.
        text = f'#!/bin/sh\ncase "$*" in *-version*) {java};; *) exit 1;; esac\n'
        (home / "bin" / "java").write_text(text)
        (home / "bin" / "java").chmod(0o755)
    answer = subprocess.run(
        [sys.executable, "-m", "penstock", "run", program(tmp_path, SESSION)],
        env={**os.environ, "JAVA_HOME": str(home)},
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert answer.returncode == 2, answer.stderr
    told = answer.stderr.splitlines()[-1]
    assert told.startswith("penstock: [JAVA_NOT_FOUND] Spark needs Java 17 or newer, and takes"), (
        told
    )
    assert f"{home}/bin/java (JAVA_HOME), which {found}" in told
    assert re.search(r"set JAVA_HOME to /\S+$", told)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(2 * PATIENCE_S)
def test_ctrl_c_stops_the_queries_after_a_last_commit(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "run", program(tmp_path, ENDLESS)]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        wait_for_rows(tmp_path / "log", process)
        assert running_process(tmp_path / "log", "endless") == process.pid
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "stopping after a last commit" in errors
    assert running_process(tmp_path / "log", "endless") is None
    with open_log(tmp_path / "log", read_only=True) as log:
        values = StreamReader(log, "numbers").read_all().column("value").to_pylist()
        assert sorted(values) == list(range(len(values)))
        assert query_progress(log, needed_query(log, "endless").program).epoch > 0


def wait_for_rows(folder: Path, process: subprocess.Popen[str]) -> None:
    """Wait until the query has committed something."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.2)
        if not (folder / "queries").exists():  # made after the log
            continue
        with open_log(folder, read_only=True) as log:
            found = stored_query(log, "endless")
            if found is not None and query_progress(log, found.program).epoch > 0:
                return
    pytest.fail("the query has committed nothing")


PLAIN = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false").getOrCreate()
words = spark.readStream.text("in")
counts = words.groupBy("value").count()
first = (
    counts.writeStream.outputMode("complete").format("memory").queryName("counts")
    .trigger(availableNow=True).start()
)
seen = words.select(F.input_file_block_start().alias("n"))
second = seen.writeStream.format("noop").queryName("seen").trigger(availableNow=True).start()
for query in (first, second):
    query.awaitTermination()
print(type(first).__module__, type(second).__module__, spark.streams.active)
print(sorted(tuple(row) for row in spark.table("counts").collect()))
"""


@pytest.mark.slow  # tests/spark/test_streams.py does the same in a session that is there already
@pytest.mark.spark
@pytest.mark.timeout(3 * PATIENCE_S)
def test_a_program_that_nobody_edited_is_taken_over(tmp_path: Path) -> None:
    """As far as it can be, which is told; a check tells so beforehand, and starts nothing."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "words").write_text("a\nb\na\n")
    file = program(tmp_path, PLAIN)

    def penstock(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "penstock", *words, file]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    ran = penstock("run", "--takeover")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-2:] == [
        "penstock.api.query pyspark.sql.streaming.query []",
        "[('a', 2), ('b', 1)]",
    ]
    assert "query seen runs on Structured Streaming: " in ran.stderr
    summary = ran.stderr[ran.stderr.index("1 of 2 queries ran on Penstock") :].splitlines()
    assert summary[1:3] == ["  counts (memory): Penstock", summary[2]]
    assert summary[2].startswith("  seen (noop): Structured Streaming, because ")
    checked = penstock("check")
    assert checked.returncode == 1
    assert "== counts\nQuery " in checked.stdout
    assert "1 of 2 queries would run on Penstock" in checked.stdout
    assert "the program ended here" in checked.stderr  # there is no view to read
    strict = penstock("run", "--takeover", "--strict")
    assert strict.returncode == 2
    assert "penstock: [UNSUPPORTED_PLAN]" in strict.stderr


STOPS_SPARK = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
writer = rows.writeStream.queryName("ticks").format("parquet")
query = writer.start("out", checkpointLocation="place")
while not (query.lastProgress and query.lastProgress.sink.numOutputRows):
    assert not query.awaitTermination(0.1)
spark.stop()
print(query.isActive, query.exception(), query.awaitTermination())
"""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(3 * PATIENCE_S)
def test_a_program_that_stops_spark_itself_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Its queries commit first, as if they had been stopped, and the next run goes on."""
    file = program(tmp_path, STOPS_SPARK)
    for _ in range(2):
        command = [sys.executable, "-m", "penstock", "run", "--takeover", file]
        ran = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.splitlines()[-1] == "False None None"
        assert "1 of 1 queries ran on Penstock" in ran.stderr
    values = pq.read_table(tmp_path / "out").column("value").to_pylist()
    assert sorted(values) == list(range(len(values)))


def test_strict_is_for_takeover(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--strict", program(tmp_path, "")]) == 2
    assert "--strict is for --takeover" in capsys.readouterr().err
