"""`penstock log` and `penstock fsck`: what people and programs read, and the exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.cli.main import main
from penstock.cli.tables import moment, size, table
from penstock.config import LogConfig
from penstock.expressions.types import schema_from_arrow
from penstock.log import open_log, punit
from penstock.log.record import Entry, RecordKind
from penstock.log.segments import ALIGNMENT
from penstock.names import escape
from penstock.runtime.streams import StreamWriter, create_stream

ROWS = pa.record_batch({"id": [1, 2], "text": ["plain", "\x1b[31mred\u202e"]})
CONFIG = LogConfig(inline_bytes_max=1_000)
MARKER = b'{"version":1,"epoch":7,"vertex":"count_0"}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log with a unit, markers, payloads with escapes in them, a trimmed tag, and metadata."""
    path = tmp_path / "log"
    with open_log(path, create=True, config=CONFIG) as log:
        unit = bytes(punit.encode(ROWS))
        log.append(
            [
                Entry(RecordKind.DATA, ("orders", "orders/0"), "web", 3, 1, unit),
                Entry(RecordKind.MARKER, ("orders", "task/count"), "web", 3, 2, MARKER),
                Entry(RecordKind.CONTROL, ("notes",), "web", 3, 3, b"\x1b]0;owned\x07 secret"),
                Entry(RecordKind.DATA, ("orders",), "web", 3, 4, b"\xff" * 5_000),
            ]
        )
        log.trim("orders/0", log.tail())
        log.put("instance/count", b"17")
        log.put("instance/count", b"18")
    return path


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert main([str(word) for word in argv]) == 0
    return capsys.readouterr().out


def lines(capsys: pytest.CaptureFixture[str], *argv: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(capsys, *argv, "--json").splitlines()]


def test_info(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "log", "info", folder)
    for part in ("synced", "on disk before an append returns", "segments", "SQLite", "tail"):
        assert part in shown
    (facts,) = lines(capsys, "log", "info", folder)
    assert facts["path"] == str(folder)
    assert facts["id"] == json.loads((folder / "penstock-log.json").read_bytes())["id"]
    assert (facts["records"], facts["tail"], facts["visible_tail"]) == (4, 4, 4)
    assert (facts["tags"], facts["tags_trimmed"], facts["metadata_keys"]) == (3, 1, 1)
    assert facts["durability"] == "synced"
    assert facts["bytes"]["segments"] > 5_000
    assert facts["bytes"]["index"] > 4_096


def test_info_says_what_the_weaker_level_means(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_log(tmp_path / "log", create=True, config=LogConfig(durability="process")).close()
    shown = run(capsys, "log", "info", tmp_path / "log")
    assert "process" in shown
    assert "a power cut may take the newest records" in shown


def test_info_says_how_columns_are_stored_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pa.record_batch({"n": pa.array(range(50_000))})
    with open_log(tmp_path / "log", create=True) as log:
        create_stream(log, "numbers", schema_from_arrow(rows.schema))
        StreamWriter(log, "numbers", "somebody", punit.Codec.ADAPTIVE).write(rows)
    (found,) = lines(capsys, "log", "info", tmp_path / "log", "--json")
    (column,) = found["codecs"]
    assert (column["column"], column["tag"].split(":")[0] != "") == ("n", True)
    assert column["reason"].endswith("MB/s")
    assert column["codec"] in run(capsys, "log", "info", tmp_path / "log")


def test_ls(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "log", "ls", folder).splitlines()
    assert shown[0].split()[:2] == ["tag", "records"]
    assert [line.split()[0] for line in shown[2:]] == ["notes", "orders", "task/count"]
    orders = lines(capsys, "log", "ls", folder)[1]
    assert (orders["records"], orders["first"], orders["last"]) == (3, 1, 4)
    assert orders["last_time_us"] > 0


def test_ls_metadata(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = [{"key": "instance/count", "version": 2, "bytes": 2}]
    assert lines(capsys, "log", "ls", folder, "--metadata") == expected
    shown = run(capsys, "log", "ls", folder, "--metadata")
    assert "instance/count" in shown
    assert "18" not in shown


def test_cat_shows_what_records_are_and_hides_payloads(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = run(capsys, "log", "cat", folder)
    assert "web/3/1" in shown
    assert "id: int64" in shown
    assert '"epoch": 7' in shown
    assert "secret" not in shown
    assert "plain" not in shown
    unit, marker, note, large = lines(capsys, "log", "cat", folder)
    assert unit["punit"]["rows"] == 2
    assert unit["punit"]["schema"] == ["id: int64", "text: string"]
    assert marker["marker"]["vertex"] == "count_0"
    assert marker["kind"] == "MARKER"
    assert "payload" not in note
    assert large["bytes"] == 5_000


def test_cat_shows_payloads_and_rows_on_request_and_escapes_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = run(capsys, "log", "cat", folder, "--rows", "--payload")
    assert "plain" in shown
    assert "secret" in shown
    assert "base64:" in shown
    assert all(each.isprintable() or each == "\n" for each in shown)
    unit, *_ = lines(capsys, "log", "cat", folder, "--rows")
    assert unit["rows"][1]["text"] == "\x1b[31mred\u202e"


def test_cat_by_tag_and_position(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def positions(*options: object) -> list[int]:
        return [each["position"] for each in lines(capsys, "log", "cat", folder, *options)]

    assert positions("--tag", "orders") == [1, 2, 4]
    assert positions("--tag", "orders", "--after", 1) == [2, 4]
    assert positions("--tag", "orders", "--limit", 2) == [1, 2]
    assert positions("--tag", "orders", "--tag", "notes", "--after", 2) == [3, 4]
    assert positions("--limit", 0) == []
    absent = run(capsys, "log", "cat", folder, "--tag", "absent")
    assert absent == "no records; `penstock log ls DIR` lists the tags\n"


def test_tail(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newest = lines(capsys, "log", "tail", folder, "-n", "2")
    assert [each["position"] for each in newest] == [3, 4]
    of_task = lines(capsys, "log", "tail", folder, "--tag", "task/count")
    assert [each["position"] for each in of_task] == [2]


def test_tail_shows_committed_rows_to_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the streams that people named; the records behind them on request."""
    path = tmp_path / "log"
    with open_log(path, create=True) as log:
        for name in ("orders", "refunds"):
            create_stream(log, name, schema_from_arrow(ROWS.schema))
        orders, refunds = (StreamWriter(log, name, f"of_{name}") for name in ("orders", "refunds"))
        orders.write(ROWS)
        refunds.write(ROWS.slice(0, 1))
        orders.write(None)
        unit = bytes(punit.encode(ROWS))
        log.append([Entry(RecordKind.DATA, ("S/orders/0",), "other", 1, 1, unit)])  # uncommitted
    shown = run(capsys, "log", "tail", path).splitlines()
    assert [line.split("  ", 1)[1] for line in shown] == [
        'orders  {"id": 1, "text": "plain"}',
        'orders  {"id": 2, "text": "\\u001b[31mred\\u202e"}',
        'refunds  {"id": 1, "text": "plain"}',
    ]
    of_orders = lines(capsys, "log", "tail", path, "--stream", "orders", "-n", "1")
    assert [(each["stream"], each["row"]["id"]) for each in of_orders] == [("orders", 2)]
    raw = lines(capsys, "log", "tail", path, "--raw")
    assert [each["kind"] for each in raw].count("MARKER") == 3
    assert main(["log", "tail", str(path), "--stream", "ordres"]) == 2
    assert "known: orders, refunds" in capsys.readouterr().err


def test_tail_of_several_streams_one_of_which_was_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Further than to where the newest rows of all begin."""
    path = tmp_path / "log"
    with open_log(path, create=True) as log:
        for name in ("orders", "refunds"):
            create_stream(log, name, schema_from_arrow(ROWS.schema))
        orders, refunds = (StreamWriter(log, name, f"of_{name}") for name in ("orders", "refunds"))
        for _ in range(3):
            refunds.write(ROWS.slice(0, 1))
        for _ in range(5):
            before = log.tail()
            orders.write(ROWS.slice(0, 1))
        refunds.write(ROWS.slice(1, 1))
    run(capsys, "log", "trim", path, "orders", "--before", before + 1)
    newest = lines(capsys, "log", "tail", path, "-n", "3")
    assert [(each["stream"], each["row"]["id"]) for each in newest] == [
        ("refunds", 1),
        ("orders", 1),
        ("refunds", 2),
    ]
    assert len(lines(capsys, "log", "tail", path)) == 5


def test_tail_follows_the_doorbell_until_interrupted(folder: Path) -> None:
    """Also records under a tag that was not there when it began."""
    with (
        open_log(folder, config=CONFIG) as log,
        subprocess.Popen(
            [sys.executable, "-m", "penstock", "log", "tail", str(folder), "-f", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as follower,
    ):
        try:
            assert follower.stdout is not None
            first = [json.loads(follower.stdout.readline())["position"] for _ in range(4)]
            assert first == [1, 2, 3, 4]
            for sequence in range(1, 4):
                time.sleep(0.05)
                log.append([Entry(RecordKind.DATA, ("brand/new",), "late", 1, sequence, b"")])
                assert json.loads(follower.stdout.readline())["position"] == 4 + sequence
            follower.send_signal(signal.SIGINT)
            _, errors = follower.communicate(timeout=60)
        finally:
            follower.kill()
    assert follower.returncode == 130
    assert errors == ""


def test_a_log_in_use_can_be_looked_into(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_log(folder, config=CONFIG) as log:
        log.append([Entry(RecordKind.DATA, ("orders",), "web", 3, 5, b"just now")])
        (facts,) = lines(capsys, "log", "info", folder)
        assert facts["visible_tail"] == 5
        assert lines(capsys, "log", "tail", folder, "-n", "1")[0]["position"] == 5
        assert "no damage" in run(capsys, "fsck", folder)


def test_fsck_and_repair(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no damage" in run(capsys, "fsck", folder, "--deep")
    assert "nothing to repair" in run(capsys, "log", "repair", folder)
    (segment,) = (folder / "segments").iterdir()
    damaged = bytearray(segment.read_bytes())
    damaged[2 * ALIGNMENT] ^= 1
    segment.write_bytes(damaged)

    assert main(["fsck", str(folder)]) == 1
    shown = capsys.readouterr().out
    assert "segment_damaged" in shown
    assert "DAMAGED: 1 errors" in shown
    assert main(["fsck", str(folder), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["clean"]
    assert report["findings"][0]["position"] == 4

    assert main(["log", "repair", str(folder), "--dry-run"]) == 1
    assert "dry run" in capsys.readouterr().out
    assert segment.exists()

    shown = run(capsys, "log", "repair", folder)
    assert "lost: 1 records, at positions 4" in shown
    assert "the log is usable again" in shown
    assert not segment.exists()
    assert main(["fsck", str(folder)]) == 0
    assert "record_lost" in capsys.readouterr().out
    assert main(["log", "cat", str(folder)]) == 2
    assert "[RECORD_LOST]" in capsys.readouterr().err
    positions = [each["position"] for each in lines(capsys, "log", "cat", folder, "--skip-lost")]
    assert positions == [1, 2, 3]


@pytest.mark.parametrize(
    "words", [["log", "info"], ["log", "ls"], ["log", "cat"], ["log", "tail"], ["fsck"]]
)
def test_no_log_is_one_line_and_exit_code_2(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, str(tmp_path / "nowhere")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("penstock: [LOG_NOT_FOUND]")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert main([*words, str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("penstock: [NOT_A_LOG]")


def test_a_negative_limit_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "cat", str(folder), "--limit", "-1"]) == 2
    assert "[INVALID_ARGUMENT]" in capsys.readouterr().err


def test_a_damaged_unit_is_shown_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "log"
    unit = bytearray(punit.encode(ROWS))
    unit[40] ^= 1
    with open_log(folder, create=True) as log:
        log.append([Entry(RecordKind.DATA, ("a",), "p", 1, 1, bytes(unit))])
    assert "damage: " in run(capsys, "log", "cat", folder, "--rows")
    assert main(["fsck", str(folder), "--deep"]) == 1
    assert "punit_damaged" in capsys.readouterr().out


def test_tables() -> None:
    shown = table(("name", "n"), [("a\tb", 1_234), ("c", None)])
    assert shown.splitlines() == ["name      n", "----  -----", "a\\tb  1,234", "c         -"]
    assert table(("name",), []) == "name\n----"


def test_text_for_terminals() -> None:
    assert escape("a\x1b[0m\u202e\r\nb") == "a\\x1b[0m\\u202e\\r\\nb"
    assert escape("größe 日本") == "größe 日本"
    assert [size(n) for n in (0, 1_023, 1_536, 5 << 30)] == ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]
    assert moment(1_700_000_000_123_456) == "2023-11-14 22:13:20.123Z"
    assert moment(None) == "-"
    assert moment(1 << 62).endswith("us")


def test_a_copy_without_the_right_to_write(folder: Path, tmp_path: Path) -> None:
    """As root the mode bits do not bind, so this is only half the proof; tests/log has the rest."""
    for path in (*folder.rglob("*"), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = sorted(os.listdir(folder))
    answer = subprocess.run(
        [sys.executable, "-m", "penstock", "fsck", str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert sorted(os.listdir(folder)) == before
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
