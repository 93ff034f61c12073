"""A program that sends lines of CSV to a query and knows nothing of Penstock but its first line.

`python tests/spark/plain_process.py PORT TOKEN_FILE NAME ROWS` sends the numbers that are not
acknowledged, some again, until the last one is: over as many connections as it takes. The last
rows are only for the filter.
"""

from __future__ import annotations

import json
import random
import select
import socket
import sys
import time
from contextlib import suppress

DROPPED = 10  # at the end
LINES = 50


def line(number: int, total: int) -> bytes:
    return b"%d,%d,\n" % (number, number % 3 if number < total - DROPPED else 0)


def attempt(port: int, token: str, name: str, total: int, after: int) -> int:
    """Send over one connection what it takes; return what is acknowledged."""
    done = after
    hello = {"penstock": "rows", "format": "csv", "name": name, "token": token, "after": after}
    with (
        suppress(OSError),
        socket.create_connection(("127.0.0.1", port), 10) as connection,
        connection.makefile("rb") as answers,
    ):
        connection.sendall(json.dumps(hello).encode() + b"\n")
        sent = after
        while done < total:
            ready, _, _ = select.select([connection], [], [], 0 if sent < total else 5)
            if ready:
                said = json.loads(answers.readline() or b'{"type": "gone"}')
                if said["type"] not in ("welcome", "acknowledged"):
                    return done
                done = said["offset"]
            if sent < total:
                end = min(total, sent + LINES)
                connection.sendall(b"".join(line(number, total) for number in range(sent, end)))
                sent = end
                time.sleep(0.005)
    return done


def main() -> None:
    port, token_file, name, rows = sys.argv[1:]
    done = 0
    while done < int(rows):
        with suppress(OSError), open(token_file, encoding="ascii") as file:
            begin = random.randint(0, done)
            done = max(done, attempt(int(port), file.read().strip(), name, int(rows), begin))
        time.sleep(0.05)
    print(0, flush=True)


if __name__ == "__main__":
    main()
