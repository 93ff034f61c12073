"""`penstock log`: look into a log (info, ls, cat, tail), trim a stream, repair what is damaged.

Everything but `trim` and `repair` opens the log read-only, and all but `repair` may be used while
others write to it. What comes from the log is escaped before it reaches a terminal, and payloads
are shown only on request.
"""

from __future__ import annotations

import argparse
import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from penstock.cli.fsck import progress_on_terminal
from penstock.cli.log_rows import FOLLOW_WAIT_S, given_streams, plain_rows, show_rows
from penstock.cli.tables import facts, moment, size, table
from penstock.clock import SystemClock
from penstock.errors import InvalidArgument, PUnitError
from penstock.json_codec import Malformed, parse
from penstock.log import punit
from penstock.log.contract import TAGS_PER_RECORD_MAX, Log
from penstock.log.local import open_log
from penstock.log.record import START, Position, Record, RecordKind
from penstock.log.repair import RepairReport, repair, spans
from penstock.log.survey import list_tags, position_before_newest, summarise, tag_names
from penstock.names import escape
from penstock.runtime.retention import (
    Cut,
    Retention,
    cut,
    plan_cut,
    retain,
    retention_of,
    set_retention,
)
from penstock.runtime.staging import clear_dead_writes

MEANINGS = {
    "synced": "on disk before an append returns: survives a power cut",
    "process": "survives any crash of processes; a power cut may take the newest records",
}
PAGE_RECORDS = 256
PAYLOAD_BYTES_SHOWN = 256
ROWS_SHOWN_MAX = 10_000
HOURS_MAX = 1_000_000
CODEC_TAGS_MAX = 1_000
CODEC_RECORDS_MAX = 16  # the newest of a tag, among which there are rows


def add_parser(subparsers: Any) -> None:
    """Add `penstock log` and its subcommands to the command line."""
    parser = subparsers.add_parser("log", help="look into a log, or repair one")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add(commands, "info", show_info, "what it is, how durable, how large")
    ls = _add(commands, "ls", show_tags, "its tags, or its metadata keys")
    ls.add_argument("--metadata", action="store_true", help="list metadata keys instead of tags")
    cat = _add(commands, "cat", show_records, "its records")
    cat.add_argument("--after", type=int, default=0, metavar="POSITION", help="begin after this")
    cat.add_argument("--limit", type=int, default=None, metavar="N", help="show at most so many")
    _add_record_options(cat)
    tail = _add(commands, "tail", show_newest, "the newest rows of its streams")
    tail.add_argument("-n", "--limit", type=int, default=10, metavar="N", help="how many (10)")
    tail.add_argument("-f", "--follow", action="store_true", help="go on as more arrive")
    tail.add_argument("--stream", help="only this stream (all that people named)")
    tail.add_argument(
        "--raw", action="store_true", help="records instead, with markers; implied by those below"
    )
    _add_record_options(tail)
    trim = _add(commands, "trim", run_trim, "cut off the old end of a stream")
    trim.add_argument("stream", metavar="STREAM")
    age = trim.add_mutually_exclusive_group(required=True)
    age.add_argument("--before", type=int, metavar="POSITION", help="epochs that end before this")
    age.add_argument("--keep-hours", type=float, metavar="N", help="epochs older than N hours")
    trim.add_argument("--dry-run", action="store_true", help="only say what would go")
    keep = _add(commands, "retain", run_retain, "say how long the rows of a stream stay")
    keep.add_argument("stream", metavar="STREAM")
    keep.add_argument(
        "--until-consumed", action="store_true", help="until every query that reads it has them"
    )
    keep.add_argument("--hours", type=float, default=None, metavar="N", help="so long")
    keep.add_argument("--bytes", type=int, default=None, metavar="N", help="the newest so many")
    keep.add_argument("--for-ever", action="store_true", help="as at first")
    mend = _add(commands, "repair", run_repair, "move damage aside and make the rest usable")
    mend.add_argument("--dry-run", action="store_true", help="only say what would be done")


def _add(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], help_: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help_)
    parser.add_argument("dir", metavar="DIR", type=Path)
    parser.add_argument("--json", action="store_true", help="print JSON, one object per line")
    parser.set_defaults(func=run)
    return parser


def _add_record_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tag", action="append", default=[], help="only this tag; may be repeated (all tags)"
    )
    parser.add_argument("--rows", action="store_true", help="print rows of streams")
    parser.add_argument(
        "--payload", action="store_true", help="print the beginning of other bodies"
    )
    parser.add_argument(
        "--skip-lost", action="store_true", help="pass over records that a repair gave up"
    )


# ------------------------------------------------------------------ info and ls


def show_info(args: argparse.Namespace) -> int:
    """Print what a log is."""
    summary = summarise(args.dir)
    meaning = MEANINGS[summary.durability]
    codecs = _stream_codecs(args.dir)
    if args.json:
        described = {**asdict(summary), "durability_meaning": meaning, "codecs": codecs}
        print(json.dumps(described))
        return 0
    kinds = ", ".join(f"{kind.replace('_', '-')} {size(n)}" for kind, n in summary.bytes.items())
    pairs: list[tuple[str, object]] = [
        ("path", summary.path),
        ("id", summary.id),
        ("format version", summary.format_version),
        ("created", moment(summary.created_us)),
        ("durability", f"{summary.durability}: {meaning}"),
        ("records", summary.records),
        ("tail", summary.tail),
        ("visible tail", summary.visible_tail),
        ("tags", summary.tags),
        ("trimmed tags", f"{summary.tags_trimmed}, up to position {summary.trimmed_upto_max}"),
        ("metadata keys", summary.metadata_keys),
        ("segments", summary.segments),
        ("bytes on disk", f"{size(sum(summary.bytes.values()))}: {kinds}"),
        ("SQLite", summary.sqlite_version),
    ]
    if summary.lost:
        pairs.append(("lost records", f"{summary.lost}: `penstock fsck` lists them"))
    print(facts(pairs))
    if codecs:
        keys = ("tag", "column", "codec", "ratio", "reason")
        print("\nthe newest rows of each stream:")
        print(table(keys, [tuple(each[key] for key in keys) for each in codecs]))
    return 0


def _stream_codecs(folder: Path) -> list[dict[str, Any]]:
    """How the columns of the newest rows of each tag are stored."""
    found: list[dict[str, Any]] = []
    with open_log(folder, read_only=True, skip_lost=True) as log:
        for tag in tag_names(folder)[:CODEC_TAGS_MAX]:
            after = Position(position_before_newest(folder, [tag], CODEC_RECORDS_MAX))
            units = [each for each in log.read([tag], after, CODEC_RECORDS_MAX) if _is_rows(each)]
            if units:
                found += _unit_codecs(tag, units[-1])
    return found


def _is_rows(record: Record) -> bool:
    return record.kind is RecordKind.DATA and bytes(record.body[:4]) == punit.MAGIC


def _unit_codecs(tag: str, record: Record) -> list[dict[str, Any]]:
    try:
        header = punit.inspect(record.body)
        columns = punit.describe_columns(record.body, header)
    except PUnitError as error:
        return [{"tag": tag, "column": "", "codec": "", "ratio": 0.0, "reason": error.message}]
    if columns:
        return [
            {
                "tag": tag,
                "column": each.name,
                "codec": each.codec,
                "ratio": round(each.ratio, 2),
                "reason": each.reason,
            }
            for each in columns
        ]
    ratio = round(header.raw_bytes / max(1, header.stored_bytes), 2)
    codec, reason = header.codec.name.lower(), "of the whole unit"
    return [{"tag": tag, "column": "*", "codec": codec, "ratio": ratio, "reason": reason}]


def show_tags(args: argparse.Namespace) -> int:
    """Print a log's tags, or its metadata keys."""
    if args.metadata:
        return _show_metadata(args)
    tags = list_tags(args.dir)
    if args.json:
        for tag in tags:
            print(json.dumps(asdict(tag)))
        return 0
    rows = [
        (each.tag, each.records, each.first, each.last, moment(each.last_time_us), each.trimmed)
        for each in tags
    ]
    print(table(("tag", "records", "first", "last", "last time", "trimmed up to"), rows))
    return 0


def _show_metadata(args: argparse.Namespace) -> int:
    with open_log(args.dir, read_only=True) as log:
        found = [(key, value) for key in log.keys() if (value := log.get(key))]  # noqa: SIM118
    rows = [(key, value.version, len(value.value)) for key, value in found]
    if args.json:
        for key, version, length in rows:
            print(json.dumps({"key": key, "version": version, "bytes": length}))
        return 0
    print(table(("key", "version", "bytes"), rows))
    return 0


# ------------------------------------------------------------------ cat and tail


def show_records(args: argparse.Namespace) -> int:
    """Print records in order."""
    _check_count(args.limit)
    with open_log(args.dir, read_only=True, skip_lost=args.skip_lost) as log:
        shown = 0
        for record in _records(log, _tags(args), Position(args.after), args.limit):
            _print_record(record, args)
            shown += 1
        if shown == 0 and not args.json:
            print("no records" + ("; `penstock log ls DIR` lists the tags" if args.tag else ""))
    return 0


def show_newest(args: argparse.Namespace) -> int:
    """Print the newest rows, or records; with `--follow`, go on until interrupted."""
    _check_count(args.limit)
    if args.raw or args.tag or args.rows or args.payload:
        return _show_newest_records(args)
    with open_log(args.dir, read_only=True, skip_lost=args.skip_lost) as log:
        streams = [args.stream] if args.stream is not None else given_streams(log)
        if streams:
            show_rows(log, args.dir, streams, args.limit, follow=args.follow, as_json=args.json)
            return 0
    return _show_newest_records(args)  # a log by itself: its records are all there is


def _show_newest_records(args: argparse.Namespace) -> int:
    with open_log(args.dir, read_only=True, skip_lost=args.skip_lost) as log:
        after = Position(position_before_newest(args.dir, _tags(args), args.limit))
        while True:
            tail = log.tail()
            for record in _records(log, _tags(args), after, None):
                _print_record(record, args)
                after = record.position
            if not args.follow:
                return 0
            after = max(after, tail)
            while log.tail() <= after:  # asleep in the kernel until the doorbell rings
                log.wait(after, FOLLOW_WAIT_S)


def _check_count(count: int | None) -> None:
    if count is not None and count < 0:
        raise InvalidArgument(f"--limit is {count}; it is 0 or more", limit=count)


def _tags(args: argparse.Namespace) -> list[str]:
    tags: list[str] = args.tag or tag_names(args.dir)
    if len(tags) > TAGS_PER_RECORD_MAX:
        raise InvalidArgument(
            f"the log has {len(tags)} tags, too many to read at once: choose some with --tag "
            "(`penstock log ls` lists them)",
            tags=len(tags),
        )
    return tags


def _records(
    log: Log, tags: list[str], after: Position = START, limit: int | None = None
) -> Iterator[Record]:
    while tags and (limit is None or limit > 0):
        page = log.read(tags, after, min(PAGE_RECORDS, limit or PAGE_RECORDS))
        yield from page
        if not page:
            return
        after = page[-1].position
        limit = None if limit is None else limit - len(page)


def _print_record(record: Record, args: argparse.Namespace) -> None:
    described = describe_record(record, rows=args.rows, payload=args.payload)
    if args.json:
        print(json.dumps(described), flush=True)
        return
    head = (
        f"{record.position:>10}  {record.kind.name:<7}  {moment(record.time_us)}  "
        f"{record.producer}/{record.instance}/{record.sequence}  "
        f"{size(record.body.nbytes)}  [{', '.join(record.tags)}]"
    )
    print(escape(head), flush=True)
    for name in ("punit", "marker", "damage", "payload"):
        if name in described:
            value = described[name]
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            print(f"{'':>12}{name}: {escape(shown)}", flush=True)
    for row in described.get("rows", ()):
        print(f"{'':>12}{escape(json.dumps(row, ensure_ascii=False))}", flush=True)


def describe_record(record: Record, *, rows: bool, payload: bool) -> dict[str, Any]:
    """A record as JSON: what it is, and of its body what may be shown."""
    described: dict[str, Any] = {
        "position": record.position,
        "kind": record.kind.name,
        "tags": list(record.tags),
        "producer": record.producer,
        "instance": record.instance,
        "sequence": record.sequence,
        "time_us": record.time_us,
        "bytes": record.body.nbytes,
    }
    if bytes(record.body[:4]) == punit.MAGIC:
        described.update(_describe_punit(record, rows))
    elif record.kind is RecordKind.MARKER and (marker := _marker(record)) is not None:
        described["marker"] = marker
    elif payload:
        described["payload"] = _payload(bytes(record.body[:PAYLOAD_BYTES_SHOWN]))
    return described


def _describe_punit(record: Record, rows: bool) -> dict[str, Any]:
    try:
        header = punit.inspect(record.body)
        facts_: dict[str, Any] = {
            "punit": {
                "rows": header.rows,
                "codec": header.codec.name.lower(),
                "raw_bytes": header.raw_bytes,
                "schema": [f"{each.name}: {each.type}" for each in header.schema],
            }
        }
        if rows:
            facts_["rows"] = plain_rows(punit.decode_record(record).slice(0, ROWS_SHOWN_MAX))
        return facts_
    except PUnitError as error:
        return {"damage": error.message}


def _marker(record: Record) -> Any:
    try:
        return parse(record.body)
    except Malformed:
        return None


def _payload(beginning: bytes) -> str:
    try:
        return beginning.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(beginning).decode('ascii')}"


# ------------------------------------------------------------------ trim


def run_trim(args: argparse.Namespace) -> int:
    """Cut off the old end of a stream, as far as the queries of the log have read it."""
    before, before_us = args.before, None
    if before is not None and before < 1:
        raise InvalidArgument(f"--before is {before}; positions begin at 1", before=before)
    if args.keep_hours is not None:
        before_us = SystemClock().now_us() - 1_000_000 * _seconds("--keep-hours", args.keep_hours)
    with open_log(args.dir, read_only=args.dry_run) as log:
        if not args.dry_run:
            clear_dead_writes(log, args.stream)
        planned = plan_cut(log, args.stream, before=before, before_us=before_us)
        if not args.dry_run:
            cut(log, planned)
    print(json.dumps(asdict(planned)) if args.json else _describe_cut(planned, args.dry_run))
    return 0


def _describe_cut(planned: Cut, dry_run: bool) -> str:
    what = "would be trimmed" if dry_run else "trimmed"
    line = f"{escape(planned.stream)}: {planned.epochs:,} epochs {what}, up to {planned.upto}"
    if planned.held_back_by is not None:
        line += f"; query {escape(planned.held_back_by)} has not read further"
    return line


def _seconds(option: str, hours: float) -> int:
    if not 0 <= hours <= HOURS_MAX:
        raise InvalidArgument(f"{option} is {hours:g}; it is 0 to {HOURS_MAX:,}")
    return round(hours * 3_600)


def run_retain(args: argparse.Namespace) -> int:
    """Say how long the rows of a stream stay, or what was said, and who holds it by now."""
    age_s = None if args.hours is None else _seconds("--hours", args.hours)
    wanted = Retention(args.until_consumed, age_s, args.bytes)
    if args.for_ever and not wanted.is_for_ever:
        raise InvalidArgument("--for-ever and a bound: say one of them")
    is_new = args.for_ever or not wanted.is_for_ever
    with open_log(args.dir, read_only=not is_new) as log:
        if is_new:
            set_retention(log, args.stream, wanted)
            retain(log, args.stream, SystemClock().now_us())  # perhaps nobody writes or reads it
        facts_of = retention_of(log, args.stream)
        held_back_by = plan_cut(log, args.stream).held_back_by
    if args.json:
        print(json.dumps(asdict(facts_of) | {"held_back_by": held_back_by}))
        return 0
    rules = [
        *(["until every query that reads it has them"] if facts_of.until_consumed else []),
        *([f"for {facts_of.age_s / 3600:g} hours"] if facts_of.age_s is not None else []),
        *([f"up to {size(facts_of.bytes_max)}"] if facts_of.bytes_max is not None else []),
    ]
    line = f"{escape(args.stream)}: rows stay {', or '.join(rules) or 'for ever'}"
    if held_back_by is not None:
        line += (
            f"; query {escape(held_back_by)} has not read all of it, and holds what it has not "
            "read, also while it is stopped"
        )
    print(line)
    return 0


# ------------------------------------------------------------------ repair


def run_repair(args: argparse.Namespace) -> int:
    """Repair a log, or say what a repair would do."""
    report = repair(args.dir, args.dry_run, progress=progress_on_terminal())
    if args.json:
        print(json.dumps(encode_repair(report)))
    else:
        print(describe_repair(report))
    return 0 if report.is_clean else 1


def encode_repair(report: RepairReport) -> dict[str, Any]:
    """A repair's report as JSON."""
    return {
        "path": report.path,
        "dry_run": report.dry_run,
        "clean": report.is_clean,
        "actions": [asdict(action) for action in report.actions],
        "lost_positions": [list(span) for span in spans(report.lost)],
        "manifests": report.manifests,
    }


def describe_repair(report: RepairReport) -> str:
    """A repair's report for people."""
    if not report.actions:
        return f"{escape(report.path)}: nothing to repair"
    rows = [(each.what, each.file, each.to or "", each.why) for each in report.actions]
    lines = [table(("what", "file", "to", "why"), rows), ""]
    if report.lost:
        runs = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans(report.lost))
        lines.append(f"lost: {len(report.lost):,} records, at positions {runs}")
    else:
        lines.append("lost: nothing")
    if report.dry_run:
        lines.append("this was a dry run: nothing was changed")
    else:
        lines += [f"manifest: {escape(name)}" for name in report.manifests]
        lines.append("the log is usable again" if report.is_clean else "DAMAGE REMAINS: see fsck")
    return "\n".join(lines)
