"""Random operations on several handles of a log, against a model that shares no code with it."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.errors import Fenced, SequenceConflict, StreamError, Trimmed
from penstock.log.contract import Log, take_over
from penstock.log.record import Entry, Fence, Position, Record, RecordKind
from tests.log.contract import LogFactory
from tests.thoroughness import examples

TAGS = ("S/a/0", "S/a/1", "S/b/0", "T/v", "m")
VERTICES = ("v", "w")
KEYS = ("k", "k/a", "k/a/b", "k_a", "k/ab")
HANDLES = 3

tag_lists = st.lists(st.sampled_from(TAGS), min_size=1, max_size=4, unique=True).map(tuple)
# Sizes on both sides of the bound below which the embedded backend keeps a body in its index.
contents = st.one_of(
    st.binary(max_size=6),
    st.sampled_from((1_024, 1_025, 9_000)).map(lambda size: bytes([size % 251]) * size),
)
kinds = st.sampled_from(tuple(RecordKind))
Item = tuple[RecordKind, tuple[str, ...], bytes, int]  # the last is a gap in the sequences
items = st.lists(st.tuples(kinds, tag_lists, contents, st.integers(0, 2)), min_size=1, max_size=4)
handles = st.integers(0, HANDLES - 1)
small = st.integers(0, 40)


@dataclass
class ModelRecord:
    kind: RecordKind
    tags: tuple[str, ...]
    producer: str
    instance: int
    sequence: int
    body: bytes
    live_tags: list[str] = field(default_factory=list)

    def writer(self) -> tuple[str, int]:
        return (self.producer, self.instance)

    def entry(self) -> Entry:
        return Entry(self.kind, self.tags, self.producer, self.instance, self.sequence, self.body)


@dataclass
class Model:
    """The log as a list that is scanned for every answer, and the metadata as a dict."""

    records: list[ModelRecord] = field(
        default_factory=list
    )  # item i is at position i + 1, for ever
    trimmed: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    instances: dict[str, int] = field(default_factory=dict)

    def find(self, tags: tuple[str, ...]) -> list[int]:
        return [
            index + 1
            for index, record in enumerate(self.records)
            if any(tag in record.live_tags for tag in tags)
        ]

    def trim(self, tag: str, upto: int) -> None:
        upto = min(upto, len(self.records))
        self.trimmed[tag] = max(upto, self.trimmed.get(tag, 0))
        for record in self.records[:upto]:
            if tag in record.live_tags:
                record.live_tags.remove(tag)

    def known(self, entry: Entry) -> int | None:
        """Return the position that an entry's name was ever given, trimmed or not."""
        for index, record in enumerate(self.records):
            name = (*record.writer(), record.sequence)
            if name == (entry.producer, entry.instance, entry.sequence):
                return index + 1
        return None

    def expect(
        self, batch: list[Entry], fence: Fence | None
    ) -> tuple[int, ...] | tuple[type[StreamError], ...]:
        """Return the positions that an append must give, or the errors that it may raise."""
        old, new, trimmed = [], [], []
        for entry in batch:
            position = self.known(entry)
            own = [r for r in self.records if r.writer() == (entry.producer, entry.instance)]
            if position is not None:
                record = self.records[position - 1]
                if not record.live_tags:
                    trimmed.append(position)
                elif (record.kind, record.tags, record.body) != (
                    entry.kind,
                    entry.tags,
                    entry.body,
                ):
                    return (SequenceConflict,)
                else:
                    old.append(position)
            elif all(record.sequence < entry.sequence for record in own):
                new.append(entry)
            elif any(not r.live_tags and r.sequence > entry.sequence for r in own):
                return (SequenceConflict, Trimmed)  # a log need not remember which it was
            else:
                return (SequenceConflict,)
        if new and (old or trimmed):
            return (SequenceConflict,)
        if trimmed:
            return (Trimmed,)
        if old:
            return tuple(old)
        if fence is not None and self.instances.get(fence.vertex) != fence.instance:
            return (Fenced,)
        first = len(self.records) + 1
        return tuple(range(first, first + len(new)))

    def apply(self, batch: list[Entry]) -> None:
        for entry in batch:
            if self.known(entry) is None:
                self.records.append(
                    ModelRecord(
                        entry.kind,
                        entry.tags,
                        entry.producer,
                        entry.instance,
                        entry.sequence,
                        bytes(entry.body),
                        list(entry.tags),
                    )
                )

    def next_sequence(self, producer: str, instance: int, gap: int) -> int:
        own = [r.sequence for r in self.records if r.writer() == (producer, instance)]
        return max(own, default=-1) + 1 + gap


class LogMachine(RuleBasedStateMachine):
    """Each rule does one operation on a random handle and compares its outcome with the model's."""

    backend = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-machine-"))
        self.factory = LogFactory(self.backend, self.folder)
        self.logs = [self.factory.open() for _ in range(HANDLES)]
        self.model = Model()

    def teardown(self) -> None:
        try:
            for log in self.logs:
                self.check_records(log.read(TAGS, Position(0), 65_536), self.model.find(TAGS))
                assert log.keys() == sorted(self.model.metadata)
        finally:
            self.factory.close()
            shutil.rmtree(self.folder)

    def check_records(self, records: list[Record], expected: list[int]) -> None:
        assert [record.position for record in records] == expected
        for record in records:
            model = self.model.records[record.position - 1]
            assert (record.kind, record.tags, bytes(record.body)) == (
                model.kind,
                model.tags,
                model.body,
            )
            assert (record.producer, record.instance) == model.writer()
            assert record.sequence == model.sequence

    def append(self, log: Log, batch: list[Entry], fence: Fence | None) -> None:
        expected = self.model.expect(batch, fence)
        if isinstance(expected[0], type):
            with pytest.raises(expected):
                log.append(batch, fence)
            return
        assert log.append(batch, fence) == expected
        self.model.apply(batch)

    def fence(self, choice: int, vertex: str) -> Fence | None:
        """Return no fence, the newest instance's, an older, a newer or another vertex's."""
        newest = self.model.instances.get(vertex, 0)
        other = VERTICES[1 - VERTICES.index(vertex)]
        return (
            None,
            Fence(vertex, newest),
            Fence(vertex, newest),
            Fence(vertex, max(0, newest - 1)),
            Fence(vertex, newest + 1),
            Fence(other, newest),
        )[choice]

    def near_the_log(self, number: int) -> int:
        """Return a position of the log, 0, or one a little beyond its tail."""
        return number % (len(self.model.records) + 3)

    @initialize(taken=st.booleans(), first=items, second=items)
    def start(self, taken: bool, first: list[Item], second: list[Item]) -> None:
        """Hypothesis leaves some rules out of each run: begin with something to read and trim."""
        if taken:
            for vertex in VERTICES:
                self.take_over(0, vertex)
        self.append_new(0, "v", 0, first, False, 0)
        self.append_new(1, "w", 0, second, True, 0)

    @rule(
        handle=handles,
        vertex=st.sampled_from(VERTICES),
        back=st.integers(0, 2),
        items=items,
        guest=st.booleans(),
        fence=st.integers(0, 5),
    )
    def append_new(
        self,
        handle: int,
        vertex: str,
        back: int,
        items: list[Item],
        guest: bool,
        fence: int,
    ) -> None:
        instance = max(0, self.model.instances.get(vertex, 0) - back)
        batch = []
        sequence = self.model.next_sequence(vertex, instance, 0)
        for kind, tags, body, gap in items:
            sequence += gap
            batch.append(Entry(kind, tags, vertex, instance, sequence, body))
            sequence += 1
        if guest:  # a second producer in the same append
            number = self.model.next_sequence("guest", 0, 0)
            batch.insert(1, Entry(RecordKind.CONTROL, ("m",), "guest", 0, number, b"hello"))
        self.append(self.logs[handle], batch, self.fence(fence, vertex))

    @precondition(lambda self: self.model.records)
    @rule(handle=handles, start=small, count=st.integers(1, 4), fence=st.integers(0, 5))
    def append_again(self, handle: int, start: int, count: int, fence: int) -> None:
        start %= len(self.model.records)
        batch = [record.entry() for record in self.model.records[start : start + count]]
        self.append(self.logs[handle], batch, self.fence(fence, VERTICES[0]))

    @precondition(lambda self: self.model.records)
    @rule(
        handle=handles, start=small, part=st.sampled_from(("body", "tags", "kind")), tags=tag_lists
    )
    def append_changed(self, handle: int, start: int, part: str, tags: tuple[str, ...]) -> None:
        record = self.model.records[start % len(self.model.records)]
        kind, body = record.kind, record.body
        if part == "body":
            body += b"!"
        elif part == "kind":
            kind = RecordKind(kind % 4 + 1)
        changed = tags if part == "tags" else record.tags
        if sorted(changed) == sorted(record.tags):
            changed = record.tags
        entry = Entry(kind, changed, record.producer, record.instance, record.sequence, body)
        self.append(self.logs[handle], [entry], None)

    @precondition(lambda self: self.model.records)
    @rule(handle=handles, start=small, tags=tag_lists, new_first=st.booleans())
    def append_old_and_new(
        self, handle: int, start: int, tags: tuple[str, ...], new_first: bool
    ) -> None:
        old = self.model.records[start % len(self.model.records)].entry()
        number = self.model.next_sequence("guest", 1, 0)
        new = Entry(RecordKind.DATA, tags, "guest", 1, number, b"")
        self.append(self.logs[handle], [new, old] if new_first else [old, new], None)

    @rule(handle=handles, vertex=st.sampled_from(VERTICES), sequence=small, tags=tag_lists)
    def append_at_any_sequence(
        self, handle: int, vertex: str, sequence: int, tags: tuple[str, ...]
    ) -> None:
        instance = self.model.instances.get(vertex, 0)
        entry = Entry(RecordKind.DATA, tags, vertex, instance, sequence, b"any")
        self.append(self.logs[handle], [entry], None)

    @rule(handle=handles, vertex=st.sampled_from(VERTICES))
    def take_over(self, handle: int, vertex: str) -> None:
        instance = take_over(self.logs[handle], vertex)
        assert instance == self.model.instances.get(vertex, 0) + 1
        self.model.instances[vertex] = instance
        self.model.metadata[f"instance/{vertex}"] = (b"%d" % instance, instance)

    @rule(handle=handles, tags=tag_lists, after=small, limit=st.integers(1, 12))
    def read(self, handle: int, tags: tuple[str, ...], after: int, limit: int) -> None:
        after = self.near_the_log(after)
        found = self.logs[handle].read(tags, Position(after), limit)
        expected = [position for position in self.model.find(tags) if position > after]
        self.check_records(found, expected[:limit])

    @rule(handle=handles, tag=st.sampled_from(TAGS))
    def last(self, handle: int, tag: str) -> None:
        found = self.logs[handle].last(tag)
        self.check_records([found] if found else [], self.model.find((tag,))[-1:])

    @rule(handle=handles, tag=st.sampled_from(TAGS), upto=small)
    def trim(self, handle: int, tag: str, upto: int) -> None:
        upto = self.near_the_log(upto)
        self.logs[handle].trim(tag, Position(upto))
        self.model.trim(tag, upto)

    @rule(handle=handles, key=st.sampled_from(KEYS), value=st.binary(max_size=4))
    def put(self, handle: int, key: str, value: bytes) -> None:
        version = self.model.metadata.get(key, (b"", 0))[1] + 1
        assert self.logs[handle].put(key, value) == version
        self.model.metadata[key] = (value, version)

    @rule(handle=handles, key=st.sampled_from(KEYS), version=st.integers(0, 3), value=st.binary())
    def compare_and_set(self, handle: int, key: str, version: int, value: bytes) -> None:
        current = self.model.metadata.get(key, (b"", 0))[1]
        assert self.logs[handle].compare_and_set(key, version, value) == (version == current)
        if version == current:
            self.model.metadata[key] = (value, version + 1)

    @rule(handle=handles, key=st.sampled_from(KEYS))
    def look_up(self, handle: int, key: str) -> None:
        found = self.logs[handle].get(key)
        assert (found and (found.value, found.version)) == self.model.metadata.get(key)
        below = [k for k in self.model.metadata if k == key or k.startswith(key + "/")]
        assert self.logs[handle].keys(key) == sorted(below)

    @rule(handle=handles)
    def reopen(self, handle: int) -> None:
        self.logs[handle].close()
        self.logs[handle] = self.factory.open()

    @invariant()
    def every_handle_agrees_on_the_ends(self) -> None:
        for log in self.logs:
            assert log.tail() == log.wait(Position(0), 0.0) == len(self.model.records)
            assert [log.trimmed(tag) for tag in TAGS] == (
                [self.model.trimmed.get(tag, 0) for tag in TAGS]
            )


@pytest.mark.timeout(300)  # a failure is shrunk before it is shown
@pytest.mark.parametrize(
    ("backend", "many"), [("memory", 120), ("local-synced", 30), ("local-process", 48)]
)
@pytest.mark.hypothesis
def test_random_operations_match_the_model(backend: str, many: int) -> None:
    if backend != "memory":
        pytest.importorskip("penstock.log.local")

    def machine() -> Any:
        made = type("Machine", (LogMachine,), {"backend": backend})
        return made()

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples(many),
            stateful_step_count=40,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
