"""What must hold after a run, checked from the history of the log alone."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.names import own_name
from penstock.operators.specs import PartialAggregateSpec
from penstock.sim.branches import wrong_beside
from penstock.sim.data import SECOND_US, Row
from penstock.sim.graph_checks import check_graph
from penstock.sim.history import History, Registration, Seen, SinkNote, Trim
from penstock.sim.journals import check_journal
from penstock.sim.judge import WrongWatermark
from penstock.sim.oracle import (
    Committed,
    Group,
    Summary,
    last_window_end,
    running,
    summarise,
    window_starts,
    windowed,
)
from penstock.sim.outcome import Outcome, OutputRow
from penstock.sim.shapes import DEAD, LATE, STATIC_SIDE, Shape
from penstock.sim.sinks import Rows
from penstock.sim.statics import check_static_rows, check_static_trim
from penstock.sim.violation import Violation, check_equal
from penstock.stages.program import Program, sink_stream
from penstock.stages.tags import TagKind, marker_tag, parse_tag

RETENTION = "retention"  # who cuts streams that people named


def check_fences(history: Sequence[Seen], registrations: Sequence[Registration]) -> None:
    """Once a newer instance is registered, an older one appends nothing more."""
    limits: dict[tuple[str, int], int] = {}
    newest: dict[str, Registration] = {}
    for registration in registrations:
        before = newest.get(registration.vertex)
        if before is not None:
            if registration.instance <= before.instance:
                raise Violation(f"{registration.vertex}: instance {before.instance} was reused")
            limits[before.vertex, before.instance] = registration.tail
        newest[registration.vertex] = registration
    for seen in history:
        limit = limits.get((seen.producer, seen.instance))
        if limit is not None and seen.position > limit:
            raise Violation(
                f"fence: {seen.kind} {seen.position} of {seen.producer} instance {seen.instance} "
                f"came after its successor had taken over at {limit}"
            )


def check_staged(history: History) -> None:
    """Once a write of tasks is fenced, nothing more is appended for it but what drops its rows."""
    for name, (place, number) in history.writes.items():
        limits = (
            each.tail
            for each in history.registrations
            if each.vertex == place and each.instance > number
        )
        limit = next(limits, history.tail)
        for seen in history.records:
            if seen.position > limit and seen.instance and seen.producer.startswith(f"{name}."):
                raise Violation(
                    f"fence: {seen.kind} {seen.position} of {seen.producer} came after somebody "
                    f"had begun to clear up after it at {limit}"
                )


def check_markers(history: Sequence[Seen], vertices: Iterable[str]) -> None:
    """The markers of a vertex count its epochs and only ever go forward."""
    last: dict[str, dict[str, Any]] = {}
    for seen in history:
        if seen.kind == "MARKER" and not seen.facts["timeless"]:
            facts = seen.facts
            _check_marker(seen, facts, last.get(seen.producer))
            last[seen.producer] = facts
    for name in vertices:
        if name not in last or not last[name]["ended"]:
            raise Violation(f"{name}: its last marker does not say that it has ended")


def _check_marker(seen: Seen, facts: dict[str, Any], before: dict[str, Any] | None) -> None:
    where = f"marker {seen.position} of {seen.producer}"
    if (facts["vertex"], facts["instance"]) != (seen.producer, seen.instance):
        raise Violation(f"{where}: says it is of {facts['vertex']} instance {facts['instance']}")
    if facts["epoch"] != (1 if before is None else before["epoch"] + 1):
        raise Violation(f"{where}: epoch {facts['epoch']} does not follow the one before")
    if before is None:
        return
    for name in ("watermark_us", "consumed", "resume", "late_rows", "rejected_rows", "ended"):
        if facts[name] < before[name]:
            raise Violation(f"{where}: {name} fell from {before[name]} to {facts[name]}")
    if before["offset"] is not None and _offset(facts) < _offset(before):
        raise Violation(f"{where}: offset fell from {before['offset']} to {facts['offset']}")


def _offset(facts: dict[str, Any]) -> int:
    """Of a source or a writer; that of a sink of Spark's is the number of a batch."""
    offset: Any = facts["offset"]
    return int(offset["batchId"] if isinstance(offset, dict) else offset)


def check_trims(
    history: Sequence[Seen],
    trims: Sequence[Trim],
    programs: Sequence[Program],
    sinks: Sequence[SinkNote] = (),
) -> None:
    """No trim takes what an instance that recovers at that moment would begin with.

    Changes of state are left out: that they suffice is seen by what is rebuilt from them.
    """
    marked: dict[str, list[tuple[int, int]]] = {}
    for seen in history:
        if seen.kind == "MARKER":
            resume = seen.facts["resume"]
            marked.setdefault(seen.producer, []).append((seen.position, resume))
    vertices = [vertex for program in programs for vertex in program.vertices]
    inner = {s.name for program in programs for s in program.streams if s.role == "internal"}
    statics = {own_name(each.query, STATIC_SIDE) for each in programs}
    for number, trim in enumerate(trims):
        tag = parse_tag(trim.tag)
        where = f"trim of {trim.tag} up to {trim.upto} at {trim.tail}"
        if tag.kind is TagKind.VERTEX:
            if trim.upto >= _last_mark(marked.get(tag.name, []), trim.tail)[0]:
                raise Violation(f"{where}: takes the last marker of {tag.name}")
        elif tag.name in statics:
            check_static_trim(history, trim, programs[-1])
        elif tag.kind is not TagKind.CHANGES:
            if sinks and tag.name == sink_stream(sinks[0].key.partition("/")[2]):
                fed = [note for note in sinks if note.trims <= number]
                if not fed or trim.upto > fed[-1].facts["resume"]:
                    raise Violation(f"{where}: somebody has not read it")
            elif tag.name not in inner and trim.who != RETENTION:
                raise Violation(f"{where}: {trim.who} has nothing to say about it")
            readers = [vertex.name for vertex in vertices if trim.tag in vertex.input_tags]
            for name in readers:
                _, resume = _last_mark(marked.get(name, []), trim.tail)
                if trim.upto > resume:
                    raise Violation(f"{where}: {name} would begin at {resume}")


def check_cuts(trims: Sequence[Trim], stream: str, releases: Sequence[Committed]) -> None:
    """Retention takes what one marker commits whole or not at all, and the marker last."""
    gone: Counter[str] = Counter()  # by tag: up to where
    for trim in trims:
        if trim.who != RETENTION or parse_tag(trim.tag).name != stream:
            continue
        gone[trim.tag] = max(gone[trim.tag], trim.upto)
        for release in releases:
            rows = [record for record in release.records if record.position <= trim.tail]
            if trim.tag == marker_tag(stream):
                is_whole = all(record.position <= gone[record.tags[0]] for record in rows)
                is_broken = release.marker.position <= trim.upto and not is_whole
            else:
                cut = any(r.position <= trim.upto for r in rows if trim.tag in r.tags)
                is_broken = cut and release.marker.position > trim.upto
            if is_broken:
                raise Violation(
                    f"cut of {trim.tag} up to {trim.upto}: takes a part of what the marker at "
                    f"{release.marker.position} commits"
                )


def check_nothing_left(history: History, programs: Sequence[Program], since: int) -> None:
    """A stream between two stages is empty once all its readers have ended, in peace."""
    for program in programs:
        inner = {each.name for each in program.streams if each.role == "internal"}
        for vertex in program.vertices:
            for tag in vertex.input_tags:
                readers = [each.name for each in program.vertices if tag in each.input_tags]
                ends = [history.last_position(name) for name in readers]
                if parse_tag(tag).name not in inner or min(ends) <= since:
                    continue
                trimmed = max((each.upto for each in history.trims if each.tag == tag), default=0)
                left = [s.position for s in history.records if tag in s.tags]
                if left and max(left) > trimmed and max(left) <= max(ends):
                    raise Violation(f"{tag}: {max(left)} is left behind, trimmed up to {trimmed}")


def check_sink(
    sinks: Sequence[SinkNote], delivered: Sequence[tuple[int, Rows]], outcome: Outcome
) -> None:
    """A sink has each row once, if it tells epochs apart, and its progress never goes back."""
    before: dict[str, Any] = {"owner": 0, "done": 0, "resume": 0}
    for note in sinks:
        for name, value in before.items():
            if note.facts[name] < value:
                raise Violation(f"{note.key}: {name} fell from {before} to {note.facts}")
        before = {name: note.facts[name] for name in before}
    epochs: dict[int, Rows] = {}
    for epoch, rows in delivered:
        if epochs.setdefault(epoch, rows) != rows:
            raise Violation(f"sink: epoch {epoch} came with other rows the second time")
        if epoch != max(epochs) and epochs[epoch] is rows:
            raise Violation(f"sink: epoch {epoch} came first after {max(epochs)}")
    if outcome.scenario.shape.name == "complete":
        keys = len(outcome.scenario.shape.keys)
        found = {row[:keys]: row for row in epochs[max(epochs)]} if epochs else {}
        expected = {tuple(row.values())[:keys]: tuple(row.values()) for row in outcome.out}
        check_equal(Counter(found.values()), Counter(expected.values()), "sink")
        return
    got = Counter(row for rows in epochs.values() for row in rows)
    check_equal(got, Counter(tuple(row.values()) for row in outcome.out), "sink")


def _last_mark(marks: list[tuple[int, int]], tail: int) -> tuple[int, int]:
    """Position and resume of the last marker up to a position."""
    found = bisect_right(marks, tail, key=lambda mark: mark[0])
    return marks[found - 1] if found else (0, 0)


def check_output(outcome: Outcome) -> None:
    """The output must be what the input, the oracle and the committed watermarks say."""
    shape = outcome.scenario.shape
    try:
        outcome.check_sources()
        outcome.check_hearing()
    except WrongWatermark as wrong:
        raise Violation(str(wrong)) from None
    _check_dead_letters(outcome)
    if shape.beside and (difference := wrong_beside(outcome)) is not None:
        raise Violation(difference)
    if shape.answer == "rows":
        _check_rows(outcome)
    elif shape.answer == "distinct":
        distinct = {tuple(getattr(row, key) for key in shape.keys) for row in outcome.living}
        check_equal(Counter(tuple(row.values()) for row in outcome.out), Counter(distinct), "keys")
    elif shape.answer == "joined":
        _check_joined(outcome)
    elif shape.answer == "graph":
        check_graph(outcome)
    elif shape.answer == "journal":
        check_journal(outcome)
    elif shape.answer == "static":
        check_static_rows(outcome)
    elif shape.answer == "running":
        rows = _explode(outcome.living, shape.keys)  # a window of another time is a key here
        _check_running(outcome.out, shape.keys, running(rows), shape.name == "complete")
    else:
        _check_windows(outcome)


def _check_rows(outcome: Outcome) -> None:
    if outcome.scenario.shape.dead_letters:
        expected = Counter((row.rid, row.k, row.v) for row in outcome.living)
    else:
        expected = Counter(
            (row.rid, row.k, None if row.g is None else row.v * 2 + row.g)
            for row in outcome.living
            if row.v is not None and row.v > 0
        )
    check_equal(Counter(tuple(row.values()) for row in outcome.out), expected, "rows")


def _explode(rows: list[Row], keys: tuple[str, ...]) -> list[tuple[Group, int, int | None]]:
    if keys == ("word",):
        return [((word,), row.rid, row.v) for row in rows for word in row.words or ()]
    return [(tuple(_key(row, key) for key in keys), row.rid, row.v) for row in rows]


def _key(row: Row, key: str) -> Any:
    if key != "window":
        return getattr(row, key)
    start_us = row.u - row.u % (6 * SECOND_US)
    return (start_us, start_us + 6 * SECOND_US)


def _check_running(
    rows: list[OutputRow], keys: tuple[str, ...], expected: dict[Group, Summary], repeats: bool
) -> None:
    """Per key, each update tells of more rows than the one before, and the last one of all."""
    last: dict[Group, OutputRow] = {}
    for row in rows:
        group = tuple(row[key] for key in keys)
        before = last.get(group)
        if before is not None and row["n"] < before["n"] + (not repeats):
            raise Violation(f"update: {group} went from {before} to {row}")
        last[group] = row
    for group in expected.keys() | last.keys():
        if group not in last or group not in expected:
            raise Violation(f"update: {group} is {'missing' if group in expected else 'foreign'}")
        _check_summary(f"update: {group}", last[group], expected[group])


def _check_summary(where: str, row: OutputRow, expected: Summary) -> None:
    for name in ("n", "c", "s", "lo", "top"):
        if name in row and row[name] != getattr(expected, name):
            raise Violation(f"{where}: {row} instead of {expected}")


def _check_dead_letters(outcome: Outcome) -> None:
    """Every row that fails is in the dead-letter stream once, and is counted."""
    rejected = sum(facts["rejected_rows"] for facts in outcome.last_facts.values())
    found: Counter[int] = Counter()
    if outcome.scenario.shape.dead_letters:
        found.update(row["rid"] for row in outcome.reading(DEAD)[0])
    if rejected != found.total():
        raise Violation(f"dead letters: {rejected} counted, {found.total()} in the stream")
    open_ones = outcome.failing - outcome.dead
    decided = Counter({rid: times for rid, times in found.items() if rid not in open_ones})
    check_equal(decided, Counter(outcome.dead), "dead letters")
    if any(found[rid] > 1 for rid in open_ones):
        raise Violation(f"dead letters: some row twice: {found}")


# Joins -------------------------------------------------------------------------------------


def _check_joined(outcome: Outcome) -> None:
    """Each pair of rows of the two feeds that belong together, and of the left rows the others."""
    shape = outcome.scenario.shape
    left, right = outcome.scenario.feeds
    if shape.near_us is None:
        expected = Counter(
            (row.rid, other.rid) for row in left for other in right if _same(shape, row, other)
        )
        check_equal(Counter((r["rid"], r["r_rid"]) for r in outcome.out), expected, "pairs")
        return
    (stage,) = outcome.aggregate_stages()
    try:
        judged = outcome.judged(stage)
    except WrongWatermark as wrong:
        raise Violation(str(wrong)) from None
    late = {row.rid for row in outcome.rows if row.ts is not None and row.ts <= judged[row.rid]}
    count = _late_count(outcome, stage)
    if count != len(late):
        raise Violation(f"late: {count} rows counted, {len(late)} are")
    before_us, after_us = shape.near_us
    owed: Counter[tuple[int, int | None]] = Counter()
    for row in left:
        if row.rid in late:
            continue
        others: list[int | None] = [
            other.rid
            for other in right
            if other.rid not in late
            and _same(shape, row, other)
            and row.ts is not None
            and other.ts is not None
            and row.ts - before_us <= other.ts <= row.ts + after_us
        ]
        owed.update((row.rid, other) for other in others or [None])
    check_equal(Counter((r["rid"], r["r_rid"]) for r in outcome.out), owed, "pairs")


def _same(shape: Shape, row: Row, other: Row) -> bool:
    return all(
        getattr(row, key) is not None and getattr(row, key) == getattr(other, key)
        for key in shape.keys
    )


# Windows -----------------------------------------------------------------------------------


def _check_windows(outcome: Outcome) -> None:
    shape = outcome.scenario.shape
    assert shape.window_us is not None
    stage = outcome.aggregate_stages()[0]
    planned = outcome.scenario.program.stages[stage]
    try:
        judged = outcome.judged(stage)
    except WrongWatermark as wrong:
        raise Violation(str(wrong)) from None
    _check_late(outcome, stage, judged)
    grouped = [(tuple(getattr(row, key) for key in shape.keys), row) for row in outcome.living]
    expected = {
        group: _summary(rows) for group, rows in windowed(grouped, *shape.window_us, judged).items()
    }
    if not any(isinstance(spec, PartialAggregateSpec) for spec in planned.specs):
        found = outcome.reading(planned.written[0])[0]
        _check_window_rows(found, shape.keys, shape.window_us[0], expected)
    if shape.then is not None:
        _check_second(outcome, expected)


def _late_count(outcome: Outcome, stage: int) -> int:
    return sum(outcome.last_facts[name]["late_rows"] for name in outcome.vertices_of(stage))


def _check_late(outcome: Outcome, stage: int, judged: Mapping[int, int]) -> set[int]:
    """The rows whose last window had been closed are late, and no others; return them."""
    shape = outcome.scenario.shape
    assert shape.window_us is not None
    size_us, slide_us = shape.window_us
    late = {
        row.rid
        for row in outcome.living
        if row.ts is not None and last_window_end(row.ts, size_us, slide_us) <= judged[row.rid]
    }
    count = _late_count(outcome, stage)
    if count != len(late):
        raise Violation(f"late: {count} rows counted, {len(late)} are")
    if shape.late_stream:
        found = Counter(row["rid"] for row in outcome.reading(LATE)[0])
        check_equal(found, Counter(late), "late rows")
    return late


def _check_window_rows(
    found: list[OutputRow],
    keys: tuple[str, ...],
    size_us: int,
    expected: Mapping[tuple[int, Group], Summary],
) -> None:
    seen: set[tuple[int, Group]] = set()
    for row in found:
        start_us, end_us = _window(row, size_us)
        key = (start_us, tuple(row[name] for name in keys))
        if key in seen or key not in expected or end_us != start_us + size_us:
            raise Violation(f"window {key}: {'twice' if key in seen else 'foreign'}: {row}")
        seen.add(key)
        _check_summary(f"window {key}", row, expected[key])
    missing = [key for key in expected if key not in seen]
    if missing:
        raise Violation(f"window {missing[0]} is missing, and {len(missing) - 1} more")


def _window(row: OutputRow, size_us: int) -> tuple[int, int]:
    """Start and end of a row's window; a second aggregate is given only the end."""
    if "window" in row:
        start_us, end_us = row["window"]
        return start_us, end_us
    return row["at"] - size_us, row["at"]


def _summary(rows: list[Row]) -> Summary:
    return summarise((row.rid, row.v) for row in rows)


def _newest_and_count(made: Summary) -> tuple[int, int]:
    assert made.top is not None, "a window has rows"
    return made.top, made.n


def _check_second(outcome: Outcome, first: Mapping[tuple[int, Group], Summary]) -> None:
    """The aggregate over the windows must be one over all windows that the first one has."""
    shape = outcome.scenario.shape
    keys = shape.keys
    if shape.then == "running":
        rows = [(group, *_newest_and_count(made)) for (_, group), made in first.items()]
        _check_running(outcome.out, keys, running(rows), repeats=False)
        return
    assert shape.window_us is not None
    assert shape.then_window_us is not None
    groups: dict[tuple[int, Group], list[tuple[int, int | None]]] = {}
    for (begun_us, key), made in first.items():
        for start_us in window_starts(begun_us + shape.window_us[0], *shape.then_window_us):
            groups.setdefault((start_us, key), []).append(_newest_and_count(made))
    found = {(row["window"][0], tuple(row[key] for key in keys)): row for row in outcome.out}
    if len(found) != len(outcome.out) or found.keys() != groups.keys():
        raise Violation(f"second windows: {len(outcome.out)} rows, {len(groups)} expected")
    for group, pairs in groups.items():
        _check_summary(f"second window {group}", found[group], summarise(pairs))
