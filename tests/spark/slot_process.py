"""A slot as a plain process; the order comes on standard input. Spark tasks do the same."""

from __future__ import annotations

import json
import sys

from penstock.runtime.slot import SlotOrder, run_slot

if __name__ == "__main__":
    run_slot(SlotOrder(**json.loads(sys.stdin.readline())))
