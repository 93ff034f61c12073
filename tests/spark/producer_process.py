"""A program that sends numbers to a query, so that it can be killed.

`python -m tests.spark.producer_process PORT TOKEN_FILE NAME ROWS PADDING` sends the numbers that
are not acknowledged, in units that each life cuts for itself, a third of them for the filter and at
last some that are only for it. It says "begun", and at the end by how many KiB it has grown.
"""

from __future__ import annotations

import random
import resource
import sys
import time

import pyarrow as pa

from penstock.connectors.producer import Producer

UNIT_ROWS_MAX = 20
DROPPED = 10  # at the end


def peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    port, token_file, name, rows, padding = sys.argv[1:]
    total, pad = int(rows), "x" * int(padding)
    rng = random.Random()
    with Producer(name, int(port), token_file=token_file, kept_bytes_max=1 << 20) as producer:
        done = producer.offset or 0
        print("begun", flush=True)
        before_kib = peak_kib()
        while done < total:
            size = min(rng.randint(1, UNIT_ROWS_MAX), total - done)
            numbers = range(done, done + size)
            keys = [n % 3 if n < total - DROPPED else 0 for n in numbers]
            done += size
            producer.send(pa.record_batch({"n": numbers, "k": keys, "pad": [pad] * size}), done)
            if not pad:
                time.sleep(0.002)
    print(peak_kib() - before_kib, flush=True)


if __name__ == "__main__":
    main()
