"""`penstock bench restore`: it runs, ends with JSON, and its goals follow from its figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.cli.main import main


@pytest.mark.slow
def test_a_small_state_is_checkpointed_and_restored_and_nothing_is_left_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "restore", "--keys", "20000", "--dir", str(tmp_path)]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    figures = json.loads(last)
    keys = {"checkpoint_ms", "restore_ms", "restore_cpu_ms", "step_ms_plain", "step_ms_checkpoint"}
    assert all(figures[key] > 0 for key in keys)
    assert figures["stall_ms_max"] >= 0
    assert figures["step_ms_plain"] <= figures["step_ms_plain_max"]
    assert figures["state_bytes"] > 20_000 * 40
    assert figures["incremental_share"] == pytest.approx(
        figures["incremental_bytes"] / figures["checkpoint_bytes"], rel=0.01
    )
    assert figures["reach"] == {
        "incremental_share_at_most_2_percent": figures["incremental_share"] <= 0.02,
        "restore_within_1_s": figures["restore_ms"] <= 1_000,
        "stall_at_most_20_ms": figures["stall_ms_max"] <= 20,
    }
    assert "20,000 keys" in table[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("keys", ["0", "1e9", "many"])
def test_an_impossible_number_of_keys_is_refused(keys: str) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["bench", "restore", "--keys", keys])
    assert exit.value.code == 2
