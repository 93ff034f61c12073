"""Wrong types and None at every public call: a named error, and nothing is changed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.api.query import StreamingQuery
from penstock.api.writer import DataStreamWriter
from penstock.errors import StreamError
from penstock.expressions.types import BIGINT, Field
from penstock.log import LocalLog, open_log
from penstock.runtime.streams import create_stream

Call = Callable[[Any], object]


class Session:
    """What is asked of a Spark session before its log is opened."""

    _jsparkSession = object()
    sparkContext = type("Context", (), {"_jsc": object()})


NUMBERS = (Field("n", BIGINT, False),)
NOTHING = object()  # a value of no type that anybody expects
NO_TEXT = (None, 1, 1.5, True, b"x", [], {}, NOTHING)
NO_FLAG = (None, 0, 1, "yes", [], NOTHING)
NO_NUMBER = (True, "1", b"1", [], NOTHING)
NO_COUNT = (None, "x", b"x", [], {}, NOTHING, -1, 0, 1.5)
NO_BOUND = (True, "1", b"1", [], {}, NOTHING, -1, 1.5, 1 << 62)
FOR_EVER = penstock.Retention()
NO_COLUMN = (None, 1, b"x", [1], {}, NOTHING)
NO_OBJECT = (None, 1, "x", b"x", [], {}, NOTHING)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalLog]:
    with open_log(tmp_path_factory.mktemp("arguments") / "log", create=True) as made:
        create_stream(made, "numbers", NUMBERS)
        penstock.StreamWriter(made, "numbers", "test")
        yield made


def frame() -> Any:
    """A DataFrame of which nothing is asked before the other arguments have been looked at."""
    from pyspark.sql.classic.dataframe import DataFrame  # noqa: PLC0415

    return object.__new__(DataFrame)


def words(writer: DataStreamWriter) -> dict[str, tuple[Call, tuple[Any, ...]]]:
    """The calls that say what a query should do; no session is asked before `start` has them."""
    return {
        "outputMode": (writer.outputMode, NO_TEXT),
        "queryName": (writer.queryName, NO_TEXT),
        "format": (writer.format, NO_TEXT),
        "toStream": (writer.toStream, NO_TEXT),
        "option.key": (lambda v: writer.option(v, 1), NO_TEXT),
        "option.value": (lambda v: writer.option("path", v), (b"x", [], {}, NOTHING)),
        "options": (lambda v: writer.options(parallelism=v), NO_COUNT[1:]),
        "trigger.processingTime": (
            lambda v: writer.trigger(processingTime=v),
            (*NO_TEXT, "", "soon", "-1 seconds", "1 month"),
        ),
        "trigger.availableNow": (lambda v: writer.trigger(availableNow=v), (False, *NO_FLAG)),
        "foreachBatch": (writer.foreachBatch, NO_OBJECT),
        "foreach": (writer.foreach, NO_OBJECT),
        "partitionBy": (writer.partitionBy, NO_COLUMN),
        "clusterBy": (writer.clusterBy, NO_COLUMN),
        "toTable": (writer.toTable, ("", " ", *NO_TEXT)),
        "start.path": (writer.start, (b"x", [], {}, NOTHING)),
        "start.format": (lambda v: writer.start(format=v), (1, b"x", [], NOTHING)),
        "start.outputMode": (lambda v: writer.start(outputMode=v), (1, b"x", [], NOTHING)),
        "start.queryName": (lambda v: writer.start(queryName=v), (1, b"x", [], NOTHING)),
        "start.options": (lambda v: writer.start(slots=v), NO_COUNT[1:]),
    }


def calls(log: Any) -> dict[str, tuple[Call, tuple[Any, ...]]]:
    """Every call that a user may make, by name, and values that it cannot take."""

    def write(*batch: Any, **facts: Any) -> object:
        return penstock.StreamWriter(log, "numbers", "test").write(*(batch or (None,)), **facts)

    def attach(path: Any = None, **how: Any) -> object:
        return penstock.attach(Session(), log.folder / "none" if path is None else path, **how)  # type: ignore[arg-type]

    create, retain = penstock.create_stream, penstock.set_retention
    idle = object.__new__(StreamingQuery)  # arguments are looked at before anything else
    sending = object.__new__(penstock.Producer)

    def produce(name: Any = "p", port: Any = 1, token_file: Any = "none", **how: Any) -> object:
        return penstock.Producer(name, port, token_file=token_file, **how)

    return {
        **words(DataStreamWriter(None)),  # type: ignore[arg-type]
        "open_log.path": (penstock.open_log, ("", "a\0b", *NO_TEXT)),
        "open_log.create": (lambda v: penstock.open_log(log.folder, create=v), NO_FLAG),
        "open_log.config": (lambda v: penstock.open_log(log.folder, config=v), NO_OBJECT[1:]),
        "attach.spark": (lambda v: penstock.attach(v, "x"), NO_OBJECT),
        "attach.path": (attach, ("", "a\0b", *NO_TEXT[1:])),
        "attach.create": (lambda v: attach(create=v), NO_FLAG),
        "attach.durability": (lambda v: attach(durability=v), ("", "x", "Synced", *NO_TEXT[1:])),
        "attach.kernels": (lambda v: attach(kernels=v), ("", "a\0b", *NO_TEXT[1:])),
        "attach.level": (lambda v: attach(log.folder, durability=v), ("process",)),
        "writeStream": (penstock.writeStream, NO_OBJECT),
        "writeStreams": (penstock.writeStreams, NO_OBJECT),
        "streams.spark": (penstock.streams, NO_OBJECT),
        "takeover.spark": (penstock.takeover, NO_OBJECT),
        "takeover.strict": (lambda v: penstock.takeover(Session(), strict=v), NO_FLAG),  # type: ignore[arg-type]
        "query.name": (penstock.query, NO_TEXT),
        "query.log": (lambda v: penstock.query("q", log=v), NO_OBJECT[1:]),
        "create_stream.log": (lambda v: create(v, "new", NUMBERS), NO_OBJECT),
        "create_stream.stream": (lambda v: create(log, v, NUMBERS), NO_TEXT),
        "create_stream.schema": (lambda v: create(log, "new", v), (["n"], "n bigint", *NO_OBJECT)),
        "create_stream.substreams": (lambda v: create(log, "new", NUMBERS, v), NO_NUMBER[1:]),
        "create_stream.keys": (
            lambda v: create(log, "new", NUMBERS, 1, v),
            (None, 1, "n", b"n", {}, ["m"], [1], NOTHING),
        ),
        "StreamWriter.log": (lambda v: penstock.StreamWriter(v, "numbers", "p"), NO_OBJECT),
        "StreamWriter.stream": (lambda v: penstock.StreamWriter(log, v, "p"), NO_TEXT),
        "StreamWriter.producer": (lambda v: penstock.StreamWriter(log, "numbers", v), NO_TEXT),
        "StreamWriter.codec": (
            lambda v: penstock.StreamWriter(log, "numbers", "p", v),
            (None, "lz4", NOTHING),
        ),
        "write.batch": (write, (pa.table({"n": [1]}), *NO_OBJECT[1:])),
        "write.offset": (lambda v: write(offset=v), (NOTHING, b"x", {1, 2})),
        "write.watermark": (
            lambda v: write(watermark_us=v),
            (*NO_NUMBER, 1.5, 1 << 63),
        ),
        "write.ended": (lambda v: write(ended=v), NO_FLAG),
        "StreamReader.log": (lambda v: penstock.StreamReader(v, "numbers"), NO_OBJECT),
        "StreamReader.stream": (lambda v: penstock.StreamReader(log, v), NO_TEXT),
        "StreamReader.after": (
            lambda v: penstock.StreamReader(log, "numbers", v),
            (None, *NO_NUMBER, 1.5, -1, 1 << 63),
        ),
        "StreamReader.resume": (
            lambda v: penstock.StreamReader(log, "numbers", resume=v),
            (*NO_NUMBER, 1.5, -1, 1 << 63),
        ),
        "Producer.name": (produce, NO_TEXT),
        "Producer.port": (lambda v: produce(port=v), (None, *NO_NUMBER, 1.5, 0, -1, 1 << 16)),
        "Producer.token_file": (lambda v: produce(token_file=v), ("", "a\0b", *NO_TEXT)),
        "Producer.kept_bytes_max": (lambda v: produce(kept_bytes_max=v), NO_COUNT),
        "Producer.patience_s": (
            lambda v: produce(patience_s=v),
            (None, *NO_NUMBER, -1, float("nan")),
        ),
        "Producer.send": (lambda v: sending.send(v, 1), (pa.table({"n": [1]}), *NO_OBJECT)),
        "Producer.send.offset": (lambda v: sending.send_csv(b"1", v), NO_COUNT),
        "Producer.send_csv": (lambda v: sending.send_csv(v, 1), (None, 1, "x", [], {}, NOTHING)),
        "Producer.send_json": (lambda v: sending.send_json(v, 1), (None, 1, "x", [], {}, NOTHING)),
        "set_retention.log": (lambda v: retain(v, "numbers", FOR_EVER), NO_OBJECT),
        "set_retention.stream": (lambda v: retain(log, v, FOR_EVER), ("none", *NO_TEXT)),
        "set_retention.retention": (lambda v: retain(log, "numbers", v), NO_OBJECT),
        "Retention.until_consumed": (penstock.Retention, NO_FLAG),
        "Retention.age_s": (lambda v: penstock.Retention(age_s=v), NO_BOUND),
        "Retention.bytes_max": (lambda v: penstock.Retention(bytes_max=v), NO_BOUND),
        "as_table.df": (lambda v: penstock.as_table(v, "n"), NO_OBJECT),
        "as_table.keys": (
            lambda v: penstock.as_table(frame(), v),
            (None, "", (), [], {}, 1, b"n", [1], ["n", None], NOTHING),
        ),
        "as_table.delete_flag": (
            lambda v: penstock.as_table(frame(), "n", v),
            (1, 1.5, True, b"x", [], {}, NOTHING),
        ),
        "awaitTermination": (idle.awaitTermination, (*NO_NUMBER, 0, -1, float("nan"))),
        "explain": (idle.explain, NO_FLAG),
    }


CALLS = sorted(calls(None))


def test_every_public_name_is_looked_at() -> None:
    """A call that is added has to be added here."""
    told = {name.split(".")[0] for name in CALLS}
    without = {"StreamError", "__version__", "queries"}
    assert set(penstock.__all__) - without <= told
    assert {f"attach.{each}" for each in inspect.signature(penstock.attach).parameters} <= {*CALLS}
    methods = {
        name
        for name, member in inspect.getmembers(DataStreamWriter, inspect.isfunction)
        if not name.startswith("_") and len(inspect.signature(member).parameters) > 1
    }
    assert methods <= told


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_value_is_named(log: LocalLog, name: str) -> None:
    call, values = calls(log)[name]
    tail, keys = log.tail(), log.keys()
    for value in values:
        with pytest.raises(StreamError) as caught:
            call(value)
        assert caught.value.message
    assert (log.tail(), log.keys()) == (tail, keys)
    assert not (log.folder / "none").exists()
