"""The results of a query: which rows go to which sink, by way of which stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from penstock.api.promises import explain_with_ends
from penstock.api.sinks import SinkChoice
from penstock.connectors.contract import Sink
from penstock.errors import InvalidOption
from penstock.log.local import LocalLog
from penstock.runtime.queries import StoredQuery
from penstock.stages.program import Program, shape, show_schema, sink_stream_of


class Result(NamedTuple):
    """One of the results of a query: where its rows go, by way of which stream."""

    frame: DataFrame
    mode: str
    sink: SinkChoice
    stream: str

    @property
    def replaces(self) -> bool:
        """Whether each batch takes the place of the one before."""
        return self.mode == "complete"

    def open(self, spark: SparkSession, stored: StoredQuery) -> Sink | None:
        """Prepare the sink; None if the stream is all that is wanted."""
        return self.sink.open(spark, replace(stored, output=self.stream), replaces=self.replaces)


def streams_of(
    query: str, sinks: Sequence[SinkChoice], stored: StoredQuery | None
) -> Iterator[str]:
    """The stream of each result: of a sink that is known the one that has fed it so far."""
    known = {} if stored is None else {text: name for name, text in stored.sinks_ever.items()}
    taken = set(known.values())
    for sink in sinks:
        text, stream = sink.text(query), sink.stream(query)
        if sink.is_outside and text in known:
            stream = known[text]
        elif sink.is_outside and len(sinks) > 1 and stream in taken:
            stream = sink_stream_of(query, text)
        taken.add(stream)
        yield stream


def check_apart(query: str, sinks: Sequence[SinkChoice]) -> None:
    """Raise InvalidOption if two results would be mixed up in one place."""
    places = [sink.place(query) for sink in sinks]
    repeated = {place for place in places if places.count(place) > 1}
    if repeated:
        raise InvalidOption(
            f"two writers have the same sink: {', '.join(sorted(repeated))}. Give each its own, or "
            "write the union of the DataFrames"
        )


def refusal_of(results: Sequence[Result], stored: StoredQuery, program: Program) -> str | None:
    """Why a stored query cannot go on with these sinks, or with its new columns for one of them."""
    if len(results) == 1 and (refusal := results[0].sink.refusal(stored)) is not None:
        return refusal
    before = {stream.name: stream.schema for stream in stored.program.streams}
    for sink, stream, replaces in ((each.sink, each.stream, each.replaces) for each in results):
        after = program.stream(stream).schema
        had = before.get(stream, after)
        if shape(had) == shape(after) or (sink.takes_any_columns and not replaces):
            continue
        whole = " in complete mode" if replaces else ""
        return (
            f"{sink.text(stored.name)}{whole} got {show_schema(had)} and would get "
            f"{show_schema(after)}"
        )
    return None


def explain_results(
    log: LocalLog, program: Program, results: Sequence[Result], fed: Mapping[str, str]
) -> str:
    """The program for people, and what each sink, and each source that Spark reads, promises."""
    texts = (result.sink.text(program.query) for result in results)
    return explain_with_ends(program, log, texts, fed)
