"""What is heard about folders, and how often somebody is woken for it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from penstock.connectors import folder_events
from penstock.connectors.folder_events import FolderEvents

PATIENCE_S = 60.0


def test_what_nobody_takes_wakes_twice_and_what_comes_then_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time for a wait that was only just beginning."""
    monkeypatch.setattr(folder_events, "AGAIN_MS", 1)
    wakes = threading.Semaphore(0)
    folder = tmp_path / "in"
    folder.mkdir()
    events = FolderEvents(wakes.release)
    if not events.watch(folder, ""):
        pytest.skip("the kernel does not tell what comes into this folder")
    for name in ("a", "b"):
        (tmp_path / name).touch()
        (tmp_path / name).rename(folder / name)  # one event
        for _ in range(2):
            assert wakes.acquire(timeout=PATIENCE_S)
        assert not wakes.acquire(timeout=0.2)
    assert set(events.take().names) == {"a", "b"}
