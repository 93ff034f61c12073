"""Streams from outside a query: publishing rows exactly once, and reading what is committed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

import pyarrow as pa

from penstock.arguments import INTEGER_MAX, check_integer, check_type
from penstock.arrays import no_rows
from penstock.connectors.contract import REJECTED_SCHEMA
from penstock.connectors.hidden_files import named_file
from penstock.errors import (
    AlreadyWritten,
    Fenced,
    InvalidArgument,
    InvalidName,
    ProducerEnded,
    SchemaMismatch,
    StreamConflict,
    StreamInputError,
    StreamNotFound,
    Trimmed,
)
from penstock.expressions.types import (
    STRING,
    Field,
    Schema,
    arrow_schema,
    arrow_type,
    from_arrow,
    schema_from_arrow,
)
from penstock.json_codec import parse, read_as, spaced_json
from penstock.log import punit
from penstock.log.committed import CommittedReader, Release
from penstock.log.contract import Log
from penstock.log.record import START, Fence, Position, Record, RecordKind
from penstock.names import check_any_name, check_name, check_own_name
from penstock.operators.chain import RESULT_COLUMN, TOLD_OF_ROWS, told_apart
from penstock.operators.specs import is_key_type, without_weight
from penstock.runtime.inputs import rows_gone
from penstock.runtime.instances import COUNTER_MAX, next_run_instance
from penstock.runtime.markers import WATERMARK_NONE, Marker
from penstock.runtime.outputs import Outputs, Partitioner, check_rows, partitioner
from penstock.runtime.recovery import fence
from penstock.runtime.staging import clear_dead_writes
from penstock.runtime.substreams import count_substreams, stream_key, stream_tags
from penstock.runtime.trimming import TRIM_COMMITS, let_markers_go
from penstock.stages.program import Program, StreamSpec, is_of_sink, shape, show_schema
from penstock.stages.tags import (
    SUBSTREAMS_MAX,
    marker_tag,
    substream_tags,
    vertex_tag,
)

Use = Literal["rows", "late rows", "dead letters"]
_NAMED_BY: Mapping[Use, str] = {"late rows": "lateStream", "dead letters": "deadLetterStream"}
Mode = Literal["append", "update", "complete"]
_HOLDS = {
    "append": "final rows (append mode)",
    "update": "updates of rows (update mode)",
    "complete": "whole results (complete mode)",
}


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What the log knows about a stream."""

    name: str
    schema: Schema
    substreams: int = 1
    use: Use = "rows"
    query: str | None = None  # which described it; None: somebody who publishes to it
    partition_by: tuple[str, ...] = ()  # whose hash finds a row's substream; none: rows go in turn
    writers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # vertices by query
    mode: Mode | None = None  # what its rows are; None: nobody has said, see `_check_mode`

    @property
    def producers(self) -> tuple[str, ...]:
        """The vertices that write it. Others may too: who publishes is not known beforehand."""
        return tuple(vertex for vertices in self.writers.values() for vertex in vertices)

    @property
    def substream_tags(self) -> tuple[str, ...]:
        return substream_tags(self.name, self.substreams)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that all of the stream is found under; `stream_tags` says what is new."""
        return (*self.substream_tags, marker_tag(self.name))


def describe_stream(log: Log, stream: str) -> StreamFacts:
    """Read a stream's columns and substreams; StreamNotFound lists what there is."""
    found = log.get(stream_key(check_any_name(stream, "stream")))
    if found is None:
        known = ", ".join(key.split("/", 1)[1] for key in log.keys("stream")) or "none"
        raise StreamNotFound(
            f"there is no stream {stream!r} in this log; known: {known}. Correct the name, or "
            "write to the stream first",
            stream=stream,
        )
    try:
        facts: Any = parse(found.value)
        schema = read_as(Schema, facts["columns"], "columns")
        use, query = facts["use"], facts["query"]
        if use not in get_args(Use):
            raise ValueError(f"its use is {use!r:.80}")
        writers = {
            check_name(name, "query"): tuple(check_own_name(each, "vertex") for each in vertices)
            for name, vertices in facts["writers"].items()
        }
        partition_by = _check_keys(stream, schema, tuple(facts["partition_by"]))
        count = int(facts["substreams"])
        mode = facts.get("mode")
        if mode is not None and mode not in _HOLDS:
            raise ValueError(f"its mode is {mode!r:.80}")
        return StreamFacts(stream, schema, count, use, query, partition_by, writers, mode)
    except (
        ValueError, KeyError, TypeError, AttributeError, InvalidName, InvalidArgument,
    ) as error:  # fmt: skip
        raise StreamNotFound(
            f"the description of stream {stream!r} cannot be read ({error}): run `penstock fsck`",
            stream=stream,
        ) from error


def create_stream(
    log: Log,
    stream: str,
    schema: Schema | pa.Schema,
    substreams: int = 1,
    partition_by: Sequence[str] = (),
) -> StreamFacts:
    """Describe a stream, unless it is described already; return how it is described.

    StreamConflict if it is there with other columns. As many vertices of a query can read it as it
    has substreams. Rows go to them in turn, or with `partition_by` by the hash of these columns:
    then rows of one key keep their order.
    """
    check_type(log, Log, "log", "a log, such as open_log() returns")
    check_integer(substreams, "substreams", 1, SUBSTREAMS_MAX)
    if isinstance(schema, pa.Schema):
        schema = schema_from_arrow(schema)
    check_type(schema, tuple, "schema", "an Arrow schema")
    check_type(partition_by, (list, tuple), "partition_by", "a list of columns")
    return stream_for(log, check_name(stream, "stream"), schema, substreams, partition_by)


def stream_for(
    log: Log, stream: str, schema: Schema, substreams: int = 1, partition_by: Sequence[str] = ()
) -> StreamFacts:
    """The same for a name that somebody gave or the engine made."""
    found = described_or_new(log, stream, schema, substreams, tuple(partition_by))
    if shape(found.schema) != shape(schema):
        raise StreamConflict(
            f"stream {stream} is there, with the columns {show_schema(found.schema)}, not "
            f"{show_schema(schema)}: use it as it is, or another name",
            stream=stream,
        )
    return found


def described_or_new(
    log: Log, stream: str, schema: Schema, substreams: int, partition_by: tuple[str, ...]
) -> StreamFacts:
    """How a stream is described, be it otherwise; one that is not there is described so."""
    keys = _check_keys(check_any_name(stream, "stream"), schema, partition_by)
    wanted = StreamFacts(stream, schema, substreams, partition_by=keys)
    log.compare_and_set(stream_key(stream), 0, _encode_facts(wanted))
    return describe_stream(log, stream)


def raise_substreams(log: Log, stream: str, substreams: int) -> StreamFacts:
    """Give a stream more substreams; whoever reads it, now or later, reads these too.

    The vertices of a query stay as many as they were when it was first started. From here on rows
    of a key may go to another substream, and to another vertex, than those before.
    """
    check_integer(substreams, "substreams", 1, SUBSTREAMS_MAX)
    while True:
        facts = describe_stream(log, check_name(stream, "stream"))
        if substreams < facts.substreams:
            raise StreamConflict(
                f"stream {stream} has {facts.substreams} substreams, which may hold rows: their "
                f"number can be raised, and not lowered to {substreams}",
                stream=stream,
                substreams=facts.substreams,
            )
        if _replaced(log, facts, replace(facts, substreams=substreams)):
            return describe_stream(log, stream)


def _replaced(log: Log, known: StreamFacts, facts: StreamFacts) -> bool:
    """Describe a stream anew, if it is still described as is known."""
    stored = log.get(stream_key(known.name))
    if stored is None or stored.value != _encode_facts(known):
        return False
    if facts == known:
        return True
    return log.compare_and_set(stream_key(known.name), stored.version, _encode_facts(facts))


def _check_keys(stream: str, schema: Schema, names: tuple[str, ...]) -> tuple[str, ...]:
    kinds = {column.name: column.type for column in schema}
    for name in names:
        if name not in kinds or not is_key_type(kinds[name]):
            problem = f"of type {kinds[name].kind}" if name in kinds else "which it does not have"
            raise InvalidArgument(
                f"stream {stream} cannot be partitioned by column {name!r}, {problem}; its "
                f"columns are {show_schema(schema)}",
                stream=stream,
                column=str(name)[:200],
            )
    return names


def register_streams(log: Log, program: Program) -> None:
    """Check the streams that a program reads, and describe those that it writes to their readers.

    Nothing is described unless everything fits: a query that cannot run leaves no trace.
    """
    for stream in program.streams:
        if stream.role == "input":
            _check_input(describe_stream(log, stream.name), stream)
            clear_dead_writes(log, stream.name)  # their rows would wait in every reader's memory
    written = list(_written(program))
    for wanted in written:
        _check_written(log, wanted)
    for wanted in written:
        _describe(log, wanted)


def check_new_results(log: Log, stored: Program, program: Program) -> None:
    """Raise StreamConflict if a result is new to a query whose rows its stream holds already.

    It was dropped, and would come again from the beginning. Late rows are no result: they go on.
    """
    before, now = ({name for s in each.stages for name in s.written} for each in (stored, program))
    for name in sorted(now - before):
        if program.stream(name).role != "output" or log.get(stream_key(name)) is None:
            continue
        if program.query in describe_stream(log, name).writers:
            raise StreamConflict(
                f"stream {name} holds rows that query {program.query} wrote before it was "
                "started without this result, which would begin anew and write them twice: choose "
                "another stream, or another place for its sink; a function, which has none, can "
                "come back as a query of its own",
                stream=name,
                query=program.query,
            )


def _written(program: Program) -> Iterator[StreamFacts]:
    query, settings = program.query, program.settings
    for stream in program.streams:
        if stream.role != "input":
            use: Use = "late rows" if stream.name == settings.late_stream else "rows"
            writers = {query: program.producers(stream.name)}
            keys = _partitioned_by(program, stream)
            count, mode = stream.substreams, _mode(program, stream)
            yield StreamFacts(stream.name, stream.schema, count, use, query, keys, writers, mode)
    dead = settings.dead_letter_stream
    if dead is not None:
        schema, writers = _dead_letter_schema(program), {query: program.producers(dead)}
        yield StreamFacts(dead, schema, 1, "dead letters", query, (), writers, "append")


def _partitioned_by(program: Program, stream: StreamSpec) -> tuple[str, ...]:
    """The keys by which rows of a stream for others find their substream; stages share them."""
    if stream.role != "output":
        return ()
    return next((output.partition_by for _, output in program.outputs_to(stream.name)), ())


def _mode(program: Program, stream: StreamSpec) -> Mode:
    """What the rows are that a program writes to a stream; only aggregates replace theirs."""
    modes: list[Any] = [
        spec.mode for stage, _ in program.outputs_to(stream.name) for spec in stage.stateful
    ]
    return next((mode for mode in modes if mode != "append"), "append")


def _describe(log: Log, wanted: StreamFacts) -> None:
    """Describe a stream. Of another writer's description, which fits, only the writers change, the
    number of substreams if that is too small, and the mode if nobody has written by now. In one's
    own the rows that are there can still be read."""
    while True:
        if log.compare_and_set(stream_key(wanted.name), 0, _encode_facts(wanted)):
            return
        stored = describe_stream(log, wanted.name)
        facts = _with_rows_of(stored, wanted) if _check_written(log, wanted) else stored
        if not stored.writers:
            facts = replace(facts, mode=wanted.mode)
        count = max(stored.substreams, wanted.substreams)
        writers = {**stored.writers, **wanted.writers}
        if _replaced(log, stored, replace(facts, substreams=count, writers=writers)):
            return


def _with_rows_of(stored: StreamFacts, wanted: StreamFacts) -> StreamFacts:
    """The new description, in which a column may be null that was null, or not there, before."""
    before = {field.name: field.nullable for field in stored.schema}
    schema = tuple(
        replace(field, nullable=field.nullable or before.get(field.name, True))
        for field in wanted.schema
    )
    return replace(wanted, schema=schema)


def _check_input(facts: StreamFacts, wanted: StreamSpec) -> None:
    """Raise StreamInputError unless the stream's rows can be read as the program reads them."""
    nothing = no_rows(arrow_schema(facts.schema))
    try:
        punit.conform(nothing, arrow_schema(wanted.schema))
        missing = {f.name for f in wanted.schema} - {f.name for f in facts.schema}
        problem = f"it has no column {', '.join(sorted(missing))}" if missing else ""
    except SchemaMismatch as error:
        problem = error.message
    if facts.substreams < wanted.substreams:
        problem = f"it has {facts.substreams} substreams, the query reads {wanted.substreams}"
    if problem:
        raise StreamInputError(
            f"stream {wanted.name} does not fit this query: {problem}. The stream has "
            f"{show_schema(facts.schema)}, the query reads {show_schema(wanted.schema)}",
            stream=wanted.name,
        )


def _check_written(log: Log, wanted: StreamFacts) -> bool:
    """Whether the query may describe the stream; StreamConflict if it may not even write it.

    The name may be new, or the query's own, perhaps of an earlier version. Another writer's stream
    is shared if it is for the same and the rows fit, and keeps its description.
    """
    if log.get(stream_key(wanted.name)) is None:
        return True
    facts = describe_stream(log, wanted.name)
    is_own = facts.use == wanted.use and facts.query == wanted.query
    if not is_own and (
        facts.use != wanted.use
        or shape(facts.schema) != shape(wanted.schema)
        or facts.partition_by != wanted.partition_by
    ):
        raise StreamConflict(
            f"stream {wanted.name} is there already for {facts.use}, with the columns "
            f"{show_schema(facts.schema)} {_cut_by(facts)}; query {wanted.query} would write "
            f"{wanted.use}, {show_schema(wanted.schema)} {_cut_by(wanted)}: choose another name"
            + (f" in its option {_NAMED_BY[wanted.use]}" if wanted.use in _NAMED_BY else ""),
            stream=wanted.name,
            query=wanted.query,
        )
    _check_mode(log, facts, wanted.mode, f"query {wanted.query}")
    return is_own


def _check_mode(log: Log, facts: StreamFacts, mode: Mode | None, who: str) -> None:
    """Raise StreamConflict if a stream holds rows of another kind: no reader could tell them apart.

    Nobody has said it of a stream that was made and not written, or was described by an older
    version. Of those that queries wrote the query says it that described the stream, when it starts
    again; until then everybody may write, as before. What only others wrote is final.
    """
    held = facts.mode
    if held is None and not facts.writers and log.last(marker_tag(facts.name)) is not None:
        held = "append"
    if held not in (None, mode):
        raise StreamConflict(
            f"stream {facts.name} holds {_HOLDS[held or 'append']}, and {who} would write "
            f"{_HOLDS[mode or 'append']}, which its readers would take for the same: write to "
            "another stream",
            stream=facts.name,
            mode=held,
        )


def claim_for_rows(log: Log, stream: str, who: str) -> StreamFacts:
    """How a stream is described that somebody who is no query will append rows to.

    StreamConflict if it holds results that queries replace; else it says from now on that its rows
    are final, if nobody has said what they are.
    """
    while True:
        facts = describe_stream(log, stream)
        _check_mode(log, facts, "append", who)
        if facts.mode is not None or facts.writers:
            return facts
        if _replaced(log, facts, replace(facts, mode="append")):
            return replace(facts, mode="append")


def _cut_by(facts: StreamFacts) -> str:
    return f"by {', '.join(facts.partition_by)}" if facts.partition_by else "in turn"


def _dead_letter_schema(program: Program) -> Schema:
    """What may be found in a dead letter: a row that came into some stage, or that an operator made
    there, and the error, or a line that a source could not read. Each has its own columns, and the
    others are null."""
    names, told = dead_letter_names(program), _told_of_rows(program)
    columns = {name: Field(name, STRING, True) for name in told}
    for column in _dead_letter_columns(program):
        type = arrow_type(column.type)
        name = names.get((column.name, type), column.name)
        if column.name in told:
            name = told_apart(column.name, type)
        columns[name] = Field(name, column.type, True)
    return tuple(columns.values())


def dead_letter_names(program: Program) -> dict[tuple[str, pa.DataType], str]:
    """What columns are called in dead letters that have several types in a query."""
    types: dict[str, set[pa.DataType]] = {}
    told = _told_of_rows(program)
    for column in _dead_letter_columns(program):
        types.setdefault(column.name, set()).add(arrow_type(column.type))
    return {
        (name, type): told_apart(name, type)
        for name, several in types.items()
        if len(several) > 1 and name not in told
        for type in several
    }


def _told_of_rows(program: Program) -> tuple[str, ...]:
    """What is said of a row that failed; of which result only where there are several."""
    return (*TOLD_OF_ROWS, RESULT_COLUMN) if len(program.results) > 1 else TOLD_OF_ROWS


def _dead_letter_columns(program: Program) -> Iterator[Field]:
    for stage in program.stages:
        for schema in stage.row_schemas():
            yield from without_weight(schema)
    for found in REJECTED_SCHEMA:
        yield Field(found.name, from_arrow(found.type), True)


def _encode_facts(facts: StreamFacts) -> bytes:
    kept: dict[str, Any] = {"query": facts.query, "use": facts.use, "substreams": facts.substreams}
    kept |= {"partition_by": list(facts.partition_by), "writers": dict(facts.writers)}
    if facts.mode is not None:
        kept["mode"] = facts.mode
    return spaced_json(kept | {"columns": facts.schema})


class StreamWriter:
    """Publishes rows to a stream, each call atomically, under a producer name.

    A producer is one writer at a time: opening it again fences the earlier one. `offset` is the
    caller's own progress, kept with the rows it belongs to: after a crash `offset` says how far
    the committed rows go, so the caller goes on there and nothing is lost or doubled.

    A write that raised may be repeated as it is: its rows are then published once. What the failed
    one left in the log is never committed, because the next write begins as a new instance. Should
    the failed one be in the log after all, which an outcome that stayed unknown can mean, that
    instance finds its marker and every later write raises `AlreadyWritten`.

    A producer that has ended stays so: readers may be gone that would miss what comes later.
    """

    def __init__(
        self,
        log: Log,
        stream: str,
        producer: str,
        codec: punit.Codec = punit.Codec.NONE,
    ) -> None:
        check_type(log, Log, "log", "a log, such as open_log() returns")
        check_type(codec, punit.Codec, "codec", "a Codec")
        self._log = log
        self._producer = check_name(producer, "producer")
        self._facts = claim_for_rows(log, check_name(stream, "stream"), f"producer {producer}")
        self._schema = arrow_schema(self._facts.schema)
        self._codec = codec
        self._tags = (vertex_tag(producer), marker_tag(stream))
        self._marker: Marker
        self._outputs: Outputs
        self._deal: Partitioner
        self._begin(next_run_instance(log, producer))
        self._has_failed = False  # the last write has raised
        self._refusal: AlreadyWritten | None = None

    @property
    def offset(self) -> Any:
        """What was last said, in a committed write, about the caller's progress; else None."""
        return self._marker.offset

    def write(
        self,
        batch: pa.RecordBatch | None,
        *,
        offset: Any = None,
        watermark_us: int | None = None,
        ended: bool = False,
    ) -> Position:
        """Publish a batch (or only progress); it is durable and visible when this returns.

        `offset` is any value that fits JSON. The log keeps it and does not look at it: whether rows
        of an offset were written before is for the caller to ask. Without one the last stays.
        """
        if batch is not None:
            check_type(batch, pa.RecordBatch, "batch", "an Arrow record batch (or None)")
        if watermark_us is not None:
            check_integer(watermark_us, "watermark_us", -INTEGER_MAX)
        check_type(ended, bool, "ended", "True or False")
        rows = None
        if batch is not None:
            self._check_names(batch)
            rows = punit.conform(batch, self._schema) if batch.num_rows else None
        if rows is not None:
            check_rows(rows)
        if self._has_failed:
            self._begin_again()
        if self._marker.ended and (rows is not None or not ended):
            raise self._has_ended()
        self._follow_substreams()
        had_input = self._marker.had_input or batch is not None
        marker = self._next_marker(offset, watermark_us, ended, had_input)
        encoded = _encode(marker)
        self._has_failed = True  # until it is known not to have
        if rows is not None:
            for tag, part in self._deal(rows):
                self._outputs.add(RecordKind.DATA, tag, part)
        position = self._outputs.commit(self._tags, encoded)
        self._has_failed = False
        self._marker = marker
        if marker.epoch % TRIM_COMMITS == 0:
            let_markers_go(self._log, self._tags[0], position)
        return position

    def _check_names(self, batch: pa.RecordBatch) -> None:
        """Refuse what readers would let go: a column that is misspelt becomes nulls."""
        unknown = [name for name in batch.schema.names if name not in self._schema.names]
        if unknown:
            raise SchemaMismatch(
                f"the rows do not fit stream {self._facts.name!r}, which has no column "
                f"{', '.join(unknown)}; its columns are {', '.join(self._schema.names)}. Nothing "
                "was written: select and name the stream's columns",
                stream=self._facts.name,
                columns=unknown,
            )

    def _follow_substreams(self) -> None:
        """Deal rows to the substreams that the stream has by now."""
        count = count_substreams(self._log, self._facts.name)
        if count != self._facts.substreams:
            self._facts = replace(self._facts, substreams=count)
            self._deal = self._dealing()

    def _dealing(self) -> Partitioner:
        facts = self._facts
        first = self._marker.epoch % facts.substreams  # not the same one whenever it is opened
        return partitioner(facts.substream_tags, facts.partition_by, first)

    def _begin(self, instance: int, *, again: bool = False) -> None:
        self._marker, _ = fence(self._log, self._producer, self._tags[0], instance, again=again)
        if self._marker.ended and (last := self._log.last(self._tags[0])) is not None:
            # It may have been another stream that this producer wrote to its end.
            self._marker = replace(self._marker, ended=self._tags[1] in last.tags)
        own = Fence(self._producer, instance)
        self._outputs = Outputs(self._log, own, self._codec, lambda tag: True)
        self._deal = self._dealing()

    def _begin_again(self) -> None:
        """Become a new instance after a failed write, unless that write is in the log.

        The next number, and no other: somebody who opened this producer since then keeps it. Who
        opens one begins another run of numbers, so if that number is registered already, then by
        this writer, in a try that failed behind it.
        """
        if self._refusal is not None:
            raise self._refusal
        epoch, instance = self._marker.epoch, self._marker.instance
        if instance & COUNTER_MAX == COUNTER_MAX:
            raise Fenced(
                f"producer {self._producer} has begun again {COUNTER_MAX} times after writes that "
                "failed, and has no number left: open a new StreamWriter",
                vertex=self._producer,
                instance=instance,
            )
        self._begin(instance + 1, again=True)
        if self._marker.epoch > epoch:
            self._refusal = AlreadyWritten(
                f"the last write of producer {self._producer} to stream {self._facts.name} raised "
                f"an error, and is in the log after all: do not repeat it. Open a new "
                f"StreamWriter and go on after its offset, {self.offset!r:.200}",
                stream=self._facts.name,
                producer=self._producer,
            )
            raise self._refusal

    def _has_ended(self) -> ProducerEnded:
        return ProducerEnded(
            f"producer {self._producer} has ended its part of stream {self._facts.name}, and a "
            "query that has read the end reads no more: nothing was written. Write these rows "
            "under another producer name",
            stream=self._facts.name,
            producer=self._producer,
        )

    def _next_marker(
        self, offset: Any, watermark_us: int | None, ended: bool, had_input: bool
    ) -> Marker:
        last = self._marker
        given_us = WATERMARK_NONE if watermark_us is None else watermark_us
        return Marker(
            vertex=last.vertex,
            instance=last.instance,
            epoch=last.epoch + 1,
            offset=last.offset if offset is None else offset,
            watermark_us=max(last.watermark_us, given_us),
            ended=ended,
            had_input=had_input,
        )


def _encode(marker: Marker) -> bytes:
    try:
        return marker.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"the offset {marker.offset!r:.200} does not fit JSON ({error}); nothing was written: "
            "use numbers, texts, lists and objects of them",
            offset=repr(marker.offset)[:200],
        ) from error


class StreamReader:
    """Reads the committed rows of a stream, in log order.

    Without `after` it begins with what is kept. With the `position` of an earlier reader it goes on
    behind that, or `Trimmed` says that some of it is gone. Rows may stand before a position and be
    committed after it, so all that is kept is looked through for them; `resume` of the same reader
    says where it is enough to begin.
    """

    def __init__(
        self, log: Log, stream: str, after: Position = START, resume: Position | None = None
    ) -> None:
        check_type(log, Log, "log", "a log, such as open_log() returns")
        check_integer(after, "after", START)
        if resume is not None:
            check_integer(resume, "resume", START)
        self._log = log
        self._facts = describe_stream(log, stream)
        self._schema = arrow_schema(self._facts.schema)
        begin = resume
        if after and resume is None:
            begin = max(log.trimmed(tag) for tag in self._facts.tags)
            begin = min(begin, after)  # which the first read refuses
        self._tags = partial(stream_tags, log, stream)
        self._reader = CommittedReader(log, self._tags, begin, after)

    @property
    def position(self) -> Position:
        """The marker of the last rows that were read."""
        return self._reader.consumed

    @property
    def resume(self) -> Position:
        """Where a reader that goes on behind `position` must begin, at the latest."""
        return self._reader.resume

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield everything that is committed by now and has not been read."""
        while (release := self._take()) is not None:
            for record in release.records:
                yield self._rows(record)

    def _rows(self, record: Record) -> pa.RecordBatch:
        stream = self._facts.name
        if is_of_sink(stream) and (file := named_file(record.body)) is not None:
            raise StreamInputError(
                f"{file.rows:,} rows at position {record.position} of stream {stream} are in a "
                f"file, {file.name}: the vertex {record.producer} has written it for the sink. "
                "Read the sink's folder, or have the query write a stream of its own: toStream()",
                stream=stream,
                position=record.position,
                file=file.name,
            )
        return punit.conform(punit.decode_record(record), self._schema)

    def _take(self) -> Release | None:
        while True:
            try:
                return self._reader.take()
            except Trimmed as gone:
                self._pass_cut(gone)

    def _pass_cut(self, gone: Trimmed) -> None:
        """Go on behind a cut that took no rows but such as were read here, or say that it did.

        Rows are cut before their markers, so in this order none is overlooked.
        """
        tags, markers = self._tags(), marker_tag(self._facts.name)
        kept_from = max(self._log.trimmed(tag) for tag in tags)
        rows_upto = max(self._log.trimmed(tag) for tag in tags if tag != markers)
        if rows_upto > self.position:
            raise rows_gone(
                gone, "Open a reader without `after`: it begins with what is kept"
            ) from gone
        # What is committed later stands behind the cut: none goes past rows that wait.
        self._reader = CommittedReader(self._log, self._tags, kept_from, self.position)

    def read_all(self) -> pa.Table:
        """Everything committed and not yet read, as one table."""
        return pa.Table.from_batches(list(self.read()), self._schema)
