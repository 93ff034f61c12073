"""The program that is killed: a session, and one query over rows that another program sends.

It is told what to run by JSON on its command line, says on its standard output when it is how far,
and ends when its standard input does.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from penstock.api.session import attach
from penstock.api.writer import writeStream
from penstock.bench.scabbard.engines import SLOTS, Way, in_its_way
from penstock.bench.scabbard.queries import QUERIES
from penstock.bench.scabbard.sending import reader_options
from penstock.bench.scabbard.setting import SPARK_SETTINGS
from penstock.bench.sessions import local_session, wait_compiled

RUNNING_S_MAX = 300.0
POLL_S = 0.002
# Thirty rows are a second of event time: a larger step would emit the windows of hours at once.
WAY = Way(step_rows=1 << 16)


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    query = QUERIES[given["query"]]
    with local_session("restart", SLOTS + 1, SPARK_SETTINGS) as spark:
        spark.range(1).count()
        _say("session")
        attached = attach(spark, given["log"])
        reader = spark.readStream.format("producers").schema(given["schema"])
        rows = reader.options(**reader_options(given["port"], given["token"])).load()
        writer = writeStream(query.build(rows.withWatermark("ts", "0 seconds"), rows))
        running = in_its_way(writer.queryName(query.name), WAY).toStream(query.name).start()
        _say("started")
        end_s = time.monotonic() + RUNNING_S_MAX
        while time.monotonic() < end_s and not _are_placed(running.job.slot_processes()):
            time.sleep(POLL_S)
        _say("placed")
        running.job.wait_running(RUNNING_S_MAX)
        _say("running")
        wait_compiled(None)
        _say("compiled")
        sys.stdin.read()
        running.stop()
        attached.log.close()


def _are_placed(slots: dict[int, tuple[int, str, tuple[str, ...]]]) -> bool:
    """Whether all slots are there, and know their vertices."""
    return len(slots) == SLOTS and all(vertices for _, _, vertices in slots.values())


def _say(word: str) -> None:
    print(json.dumps({word: time.time()}), flush=True)


if __name__ == "__main__":
    main()
