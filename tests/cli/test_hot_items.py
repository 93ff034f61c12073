"""What the demo shows: counters that never fall, and nothing twice where it is not a terminal."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from penstock.api.progress import RowCount
from penstock.cli import hot_items
from penstock.cli.hot_items import HotItems, Screen, View


def test_piped_output_repeats_no_block(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot_items, "LINE_S", 0.0)
    view, screen = View(time.monotonic()), Screen()
    view.note("the first thing that happened")
    for rows in range(3):
        view.rows_in = rows
        screen.draw(view)
        screen.draw(view)  # nothing new
    view.note("the last one")
    screen.draw(view, last=True)
    shown = capsys.readouterr().out.splitlines()
    assert sum("the first thing" in line for line in shown) == 1
    assert [line.split(": ")[1].split(" bids")[0] for line in shown if "bids read," in line] == [
        "0", "1", "2",
    ]  # fmt: skip
    assert sum(line.startswith("hot items") for line in shown) == 1
    assert len(shown) == 2 + 3 + len(view.lines())


def test_counters_go_on_when_a_slot_or_the_driver_dies(tmp_path: Path) -> None:
    count, total, seen = RowCount("rows_in"), 0, []
    for instance, rows in ((1, 5), (1, 9), (2, 3), (2, 4)):  # the second one counts from 0
        total += sum(count.take({"v": {"instance": instance, "rows_in": rows}}).values())
        seen.append(total)
    assert seen == [5, 9, 12, 13]
    demo = HotItems(tmp_path / "log", 10, 1)
    status = {"type": "status", "slots": {}, "rows_rate": 1.0, "recoveries": 1, "rows_in": 70}
    demo._hear(status)
    demo._note_driver_dead()
    demo._hear({**status, "rows_in": 2, "recoveries": 0})
    assert (demo._view.rows_in, demo._view.recoveries) == (72, 1)
