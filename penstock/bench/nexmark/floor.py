"""What reading the events and writing the answer take by themselves: pyarrow, and no engine."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow.parquet as pq

from penstock.bench.crew import Crew, wait_until
from penstock.bench.nexmark.engines import SLOTS


def floor_seconds(files: Path, answer: Path, scratch: Path) -> float:
    """How long as many processes as there are slots read all columns of the events' files, and
    write the rows of an answer that is there.

    Nothing is computed in between, and no dictionary is built: whoever reads these files and writes
    this answer with Arrow takes longer.
    """
    scratch.mkdir()
    with Crew(SLOTS) as crew:
        shares = [(_share, files, answer, scratch, number) for number in range(SLOTS)]
        crew.run(shares)  # not counted: it imports what it needs
        return float(max(crew.run(shares)))


def _share(start_s: float, files: Path, answer: Path, scratch: Path, number: int) -> float:
    """The seconds of one process: its files, and its part of the rows."""
    wait_until(start_s)
    for file in sorted(files.iterdir())[number::SLOTS]:
        with pq.ParquetFile(file) as events:
            for group in range(events.num_row_groups):
                events.read_row_group(group, use_threads=False)
    read_s = time.perf_counter() - start_s
    rows = pq.read_table(answer)
    size = -(-len(rows) // SLOTS)
    begun_s = time.perf_counter()
    with open(scratch / f"{number}.parquet", "wb") as place:
        pq.write_table(rows.slice(number * size, size), place, use_dictionary=False)
        os.fsync(place.fileno())
    return read_s + time.perf_counter() - begun_s
