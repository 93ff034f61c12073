"""The leaves of Spark's plan: which sources are known, with which options, as scans of ours.

Connectors and their options, as the scans name them:

- a stream of the log: no connector, `StreamRef`;
- `folder`: format (parquet, jsonl, csv, text), path, glob (it is a pattern), columns (name and type
  of each, in the order of the file), partitions (the same of those that folders stand for), base,
  time_zone (of times in folders' names), facts (columns of what is known of a row's file), and as
  given: pattern, recursive, settle_ms, changed, latest_first, files_max, bytes_max, age_ms_max,
  name_only, clean, archive, header, delimiter, escape, check_header, case_sensitive;
- `rate`: rows_per_s;
- `nexmark`: kind, paced, and as given: seed, rate, events_max, base_ms;
- `ysb`: as given: rate, rows_total;
- `replay`: path, time_column, digest (of the file's bytes), and as given: period_us, rows_total;
- `socket`: host, port;
- `producers`: port, token_file, columns, and as given: buffer_bytes.

Generators have the option replayable, which is there where it is false.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from penstock.catalyst.jvm import JvmNode, scala_items, scala_map
from penstock.catalyst.refusals import unsupported
from penstock.catalyst.session import SessionFacts
from penstock.catalyst.spark_types import spark_type
from penstock.catalyst.tables import table_by
from penstock.connectors import generator_options as known
from penstock.connectors.file_facts import FACTS
from penstock.connectors.folder_paths import is_pattern, name_pattern, split_pattern
from penstock.connectors.repeating import sample_digest
from penstock.errors import ExpressionError, InvalidName, PlanError, UnsupportedPlan
from penstock.expressions.durations import parse_duration
from penstock.expressions.tree import Column, Expression, call, literal
from penstock.expressions.types import BOOLEAN, STRING, VOID, Field, Schema
from penstock.names import check_name
from penstock.operators.specs import TableSpec, column_of
from penstock.options import Option, Options, choice, flag, names, whole
from penstock.plan.nodes import Scan, SourceRef, StreamRef, scan
from penstock.runtime.partition_values import PARTITION_KINDS
from penstock.stages.program import COME_ONCE, ConnectorSpec, connector_spec

_UTC_ZONES = frozenset({"UTC", "Etc/UTC", "GMT", "Z", "+00:00", "Etc/GMT", "UCT", "Etc/UCT"})
_FOLDER_FORMATS: Mapping[str, str] = {
    "parquet": "parquet",
    "json": "jsonl",
    "csv": "csv",
    "text": "text",
}

_SHORT_AGE = re.compile(r"([0-9]{1,12})(|ms|s|m|min|h|d)")
_SHORT_UNITS_MS: Mapping[str, int] = {
    "": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip
_METADATA_MARK = "__metadata_col"
_INPUT_FILE = Field("__file.input_file_name", STRING, False)

SubstreamCount = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class ScanOrigin:
    """What one scan reads, and how the user asked for it."""

    scan: Scan
    format: str
    options: tuple[tuple[str, str], ...] = ()
    table: TableSpec | None = None  # that the rows are read as

    @property
    def stream(self) -> str | None:
        """The stream of the log that is read, if it is one."""
        relation = self.scan.relation
        return None if isinstance(relation, SourceRef) else relation[0].name

    @property
    def connector(self) -> ConnectorSpec | None:
        """The connector that is read, if it is one."""
        relation = self.scan.relation
        return relation.spec if isinstance(relation, SourceRef) else None


def read_relation(
    node: JvmNode, session: SessionFacts, substreams: SubstreamCount, names_files: bool = False
) -> ScanOrigin:
    """The scan of a leaf; a refusal that names the source if it is not known.

    With `names_files` it has a column of the names of files, if it reads any.
    """
    if node.kind == "StreamingRelation":
        return _folder(node, session, names_files)
    source = str(node.read("sourceName"))
    given = dict(node.read("extraOptions").asCaseSensitiveMap())
    if source == "penstock":
        return _stream(node, given, substreams)
    if source == "producers":
        return _producers(node, given)
    if source not in _GENERATORS:
        raise unsupported(
            f"source {source}", "this source is not read here; put its rows into a stream first"
        )
    declared, connector = _GENERATORS[source]
    options = _options(source, declared, given)
    partitions = 1 if source in COME_ONCE else None
    relation = SourceRef(connector(options), partitions)
    return _origin(relation, _schema(node), source, given, options)


def spark_may_read(node: JvmNode, refusal: UnsupportedPlan) -> bool:
    """Whether Spark can be asked for the rows of a source that was refused here.

    Not if it has nothing to read either, or if what it is asked for only means something here.
    """
    if node.kind == "StreamingRelation":
        given = scala_map(node.read("dataSource").options())
    else:
        given = dict(node.read("extraOptions").asCaseSensitiveMap())
        if str(node.read("sourceName")) in _ONLY_HERE:
            return False
    if TABLE.name in map(str.lower, given):
        return False
    return refusal.details.get("option") != _PATH.name


def _options(source: str, declared: tuple[Option[Any], ...], given: Mapping[str, str]) -> Options:
    known = {each.name.lower() for each in declared}

    def refuse(message: str, option: str, _given: str) -> UnsupportedPlan:
        place = f"source {source}"
        if option.lower() not in known:
            return UnsupportedPlan(
                f"{place}: {message}. Structured Streaming can run it, and passes "
                "over an option that it does not know",
                node=place,
                option=option,
            )
        if option in (TABLE.name, DELETE_FLAG.name):
            return UnsupportedPlan(
                f"{place}: {message}. Structured Streaming reads no tables",
                node=place,
                option=option,
            )
        refusal = unsupported(place, message)
        refusal.details["option"] = option
        return refusal

    return Options("this source", declared, given, refuse)


def _origin(
    relation: SourceRef | tuple[StreamRef, ...],
    schema: Schema,
    source: str,
    given: Mapping[str, str],
    options: Options,
) -> ScanOrigin:
    if options[TABLE] and isinstance(relation, SourceRef):
        relation = replace(relation, partitions=1)  # which row is newer only their order tells
    try:
        found = scan(relation, schema)
    except PlanError as error:
        raise unsupported(f"source {source}", error.message) from error
    return ScanOrigin(found, source, tuple(sorted(given.items())), _table(options, found.schema))


def _table(options: Options, schema: Schema) -> TableSpec | None:
    """The table that a stream is read as: by its keys, with what says that a row is gone."""
    if not options[TABLE]:
        if options[DELETE_FLAG]:
            raise options.refusal(DELETE_FLAG, "is for tables: name their keys in option 'table'")
        return None
    keys = [_column(options, TABLE, name, schema) for name in options[TABLE]]
    flag: Column | None = None
    if options[DELETE_FLAG]:
        flag = _column(options, DELETE_FLAG, options[DELETE_FLAG], schema)
        if flag.type != BOOLEAN:
            raise options.refusal(DELETE_FLAG, f"names a {flag.type}; it is a boolean column")
    return table_by(keys, flag, [column_of(field) for field in schema])


def _column(options: Options, option: Option[Any], name: str, schema: Schema) -> Column:
    for field in sorted(schema, key=lambda field: field.name != name):
        if field.name.lower() == name.lower():
            return column_of(field)
    known_names = ", ".join(field.name for field in schema)
    raise options.refusal(option, f"names {name!r}, and the columns are {known_names}")


def attribute_value(node: JvmNode, attribute: JvmNode, found: Scan) -> Expression:
    """What an attribute of a leaf is: a column of the scan, or a struct of some."""
    field = field_of_attribute(node, attribute)
    known = {column.name: column_of(column) for column in found.schema}
    if field.name in known:
        return known[field.name]
    names = [member.name for member in field.type.fields]
    return call("struct", *(known[f"{field.name}.{name}"] for name in names), names=names)


def input_file(found: Scan) -> Expression:
    """The name of the file of each row; it is empty where rows are of none."""
    is_there = any(field.name == _INPUT_FILE.name for field in found.schema)
    return column_of(_INPUT_FILE) if is_there else literal("", STRING)


def _schema(node: JvmNode) -> Schema:
    return tuple(field_of_attribute(node, attribute) for attribute in node.output)


def field_of_attribute(node: JvmNode, attribute: JvmNode) -> Field:
    """An attribute as a column of ours; refused where its type is none."""
    name = str(attribute.read("name"))
    try:
        data_type = spark_type(attribute.read("dataType"))
    except ExpressionError as error:
        raise unsupported(node.kind, error.message, column=name) from error
    return Field(name, data_type, bool(attribute.read("nullable")))


# --- streams and generators -----------------------------------------------------------------------


def _fixed(name: str, *values: str) -> Option[str]:
    """An option that is accepted with the value that asks for what is done anyway."""

    def read(text: str) -> str:
        if text.lower() not in (value.lower() for value in values):
            raise ValueError(f"only {' or '.join(values)} is possible here")
        return text

    return Option(name, read, values[0])


def _ignored(*names: str) -> tuple[Option[str], ...]:
    """Options that steer micro-batches, and change no row."""
    return tuple(Option(name, str, "") for name in names)


TABLE: Option[tuple[str, ...]] = Option("table", names, ())
DELETE_FLAG = Option("deleteFlag", str, "")
_NAME = Option("stream", str, "")
_STREAM: tuple[Option[Any], ...] = (
    _NAME,
    TABLE,
    DELETE_FLAG,
    _fixed("startingPosition", "earliest"),
    _fixed("includeMetadata", "false"),
    *_ignored("path", "maxRowsPerTrigger", "numPartitions"),  # who attached the log knows its path
)
_HOST: Option[str | None] = Option("host", str, None)
_PORT: Option[int | None] = Option("port", whole(1, 65_535), None)
_SOCKET: tuple[Option[Any], ...] = (
    _HOST,
    _PORT,
    Option("includeTimestamp", flag, False),  # the schema says it
    *_ignored("numPartitions"),  # lines have one order
)
_RATE: tuple[Option[Any], ...] = (
    Option("rowsPerSecond", whole(), None, "rows_per_s"),
    known.REPLAYABLE,
    _fixed("rampUpTime", "0s", "0", "0 seconds", "0 second"),
    *_ignored("numPartitions"),  # how many vertices read is the query's parallelism
)


def _stream(node: JvmNode, given: Mapping[str, str], substreams: SubstreamCount) -> ScanOrigin:
    options = _options("penstock", _STREAM, given)
    name = options[_NAME]
    if not name:
        raise options.refusal(_NAME, "is missing: name the stream to read")
    try:
        stream = StreamRef(check_name(name, "stream"), substreams(name))
    except InvalidName as error:
        raise options.refusal(_NAME, f"does not fit: {error.message}") from error
    return _origin((stream,), _schema(node), "penstock", given, options)


def _producers(node: JvmNode, given: Mapping[str, str]) -> ScanOrigin:
    options = _options("producers", known.PRODUCERS, given)
    port, token_file = known.listening(options)
    schema = _schema(node)
    columns = [[column.name, str(column.type)] for column in schema]
    facts = {"port": port, "token_file": os.path.abspath(token_file), "columns": columns}
    relation = SourceRef(connector_spec("producers", **facts, **options.arguments()), 1)
    return _origin(relation, schema, "producers", given, options)


def _rate(options: Options) -> ConnectorSpec:
    return connector_spec("rate", **{"rows_per_s": 1} | options.arguments())


def _nexmark(options: Options) -> ConnectorSpec:
    kind, paced = options[known.KIND], not options[known.UNPACED]
    settings = known.nexmark_settings(options)
    if not options[known.REPLAYABLE]:
        settings["replayable"] = False
    return connector_spec("nexmark", kind=kind, paced=paced, **settings)


def _socket(options: Options) -> ConnectorSpec:
    host, port = options.needed(_HOST, "localhost"), options.needed(_PORT, "9999")
    return connector_spec("socket", host=host, port=port)


def _ysb(options: Options) -> ConnectorSpec:
    return connector_spec("ysb", **options.arguments())


def _replay(options: Options) -> ConnectorSpec:
    path, time_column = known.replayed(options)
    path = os.path.abspath(path)
    facts = {"path": path, "time_column": time_column, "digest": sample_digest(path)}
    return connector_spec("replay", **facts, **options.arguments())


# Or read once.
_ONLY_HERE = frozenset({"penstock", "nexmark", "ysb", "replay", "socket", "producers"})
_GENERATORS: Mapping[str, tuple[tuple[Option[Any], ...], Callable[[Options], ConnectorSpec]]] = {
    "rate": (_RATE, _rate),
    "nexmark": (known.NEXMARK_STREAM, _nexmark),
    "ysb": (known.YSB, _ysb),
    "replay": (known.REPLAY, _replay),
    "socket": (_SOCKET, _socket),
}


# --- files ----------------------------------------------------------------------------------------


def _pattern(text: str) -> str:
    name_pattern(text)
    return text


def _age_ms(text: str) -> int:
    """A length of time as Spark has it for ages, `7d` or `30min`, or as elsewhere."""
    short = _SHORT_AGE.fullmatch(text.strip().lower())
    if short is None:
        return parse_duration(text) // 1_000
    return int(short[1]) * _SHORT_UNITS_MS[short[2]]


def _not_streamed(name: str) -> Option[str]:
    """An option that Spark allows for batches alone."""

    def read(_: str) -> str:
        raise ValueError("Spark has it for batches only: filter by a column of the rows instead")

    return Option(name, read, "")


def _character(text: str) -> str:
    if len(text) != 1:
        raise ValueError("it is one character")
    return text


_PATH = Option("path", str, "")
_BASE = Option("basePath", str, "")
_CLEAN = Option("cleanSource", choice("off", "delete", "archive"), "off", "clean")
_ARCHIVE = Option("sourceArchiveDir", str, "")
_FILES: tuple[Option[Any], ...] = (
    _PATH,
    _BASE,
    TABLE,
    DELETE_FLAG,
    Option("recursiveFileLookup", flag, False, "recursive"),
    Option("pathGlobFilter", _pattern, "", "pattern"),
    Option("changedFiles", choice("fail", "skip", "continue"), "fail", "changed"),
    Option("settleTime", lambda text: parse_duration(text) // 1_000, None, "settle_ms"),
    Option("latestFirst", flag, False, "latest_first"),
    Option("maxFilesPerTrigger", whole(1), None, "files_max"),
    Option("maxBytesPerTrigger", whole(1), None, "bytes_max"),
    Option("maxFileAge", _age_ms, None, "age_ms_max"),
    Option("fileNameOnly", flag, False, "name_only"),
    _CLEAN,
    _ARCHIVE,
    _not_streamed("modifiedBefore"),
    _not_streamed("modifiedAfter"),
    *_ignored("maxCachedFiles", "discardCachedInputRatio"),
)
_LINES = (
    _fixed("multiLine", "false"),
    # A line that does not fit stops the query or goes to the dead letters: never a null row.
    _fixed("mode", "FAILFAST"),
    _fixed("encoding", "UTF-8"),
)
_FORMAT_OPTIONS: Mapping[str, tuple[Option[Any], ...]] = {
    "parquet": (_fixed("mergeSchema", "false"),),
    "jsonl": _LINES,
    "csv": (
        Option("header", flag, False, "header"),
        Option("delimiter", _character, None, "delimiter"),
        Option("sep", _character, None, "delimiter"),  # goes before the other one
        Option("escape", choice("\\", '"'), "\\", "escape"),
        Option("enforceSchema", lambda text: not flag(text), False, "check_header"),
        _fixed("quote", '"'),
        *_LINES,
    ),
    "text": (_fixed("wholetext", "false"),),
}
_ALWAYS_SAID = {"csv": {"header": False, "delimiter": ","}}  # in the programs that are stored


def _folder(node: JvmNode, session: SessionFacts, names_files: bool) -> ScanOrigin:
    data_source = node.read("dataSource")
    source = str(data_source.className()).lower()
    file_format = _FOLDER_FORMATS.get(source)
    if file_format is None:
        raise unsupported(
            f"source {source}",
            f"files are read here as {', '.join(_FOLDER_FORMATS)}; other sources are not read",
        )
    given = scala_map(data_source.options())
    options = _options(source, (*_FILES, *_FORMAT_OPTIONS[file_format]), given)
    path = _local_path(options, _PATH, scala_items(data_source.paths()))
    is_glob = is_pattern(path)
    _check_folder(options, split_pattern(path)[0] if is_glob else path)
    schema = tuple(field_of_attribute(node, each) for each in node.output if not _is_fact(each))
    names = set(scala_items(data_source.sourceInfo().partitionColumns()))
    columns = tuple(field for field in schema if field.name not in names)
    partitions = tuple(field for field in schema if field.name in names)
    _check_times(source, columns, session)
    _check_readable(source, file_format, columns)
    _check_partitions(source, file_format, columns, partitions)
    said = _ALWAYS_SAID.get(file_format, {}) | options.arguments()
    if is_glob:
        said["glob"] = True
    if options[_CLEAN] == "archive":
        said["archive"] = _archive(options, path)
    if partitions:
        said["partitions"] = [[field.name, str(field.type)] for field in partitions]
        if any("timestamp" in str(field.type) for field in partitions):
            said["time_zone"] = session.time_zone
        if options[_BASE]:
            said["base"] = _local_path(options, _BASE)
    if session.case_sensitive:
        said["case_sensitive"] = True
    facts = (*_facts(node, source), *([_INPUT_FILE] if names_files else []))
    if facts:
        said["facts"] = [field.name for field in facts]
    spec = connector_spec(
        "folder",
        format=file_format,
        path=path,
        columns=[[field.name, str(field.type)] for field in columns],
        **said,
    )
    return _origin(SourceRef(spec, None), (*schema, *facts), source, given, options)


def _local_path(options: Options, option: Option[str], paths: Sequence[Any] = ()) -> str:
    given = options[option]
    if paths or not given:
        said = "load(path)" if option is _PATH else f'option("{option.name}", …)'
        raise options.refusal(option, f"is missing: name a folder with {said}")
    parts = urlsplit(given) if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", given) else None
    if parts is not None and (parts.scheme != "file" or parts.netloc not in ("", "localhost")):
        refusal = options.refusal(option, f"is {given!r}, which is not a local folder")
        refusal.details.pop("option")  # there is something that Spark may read
        raise refusal
    return os.path.abspath(parts.path if parts is not None else given)


def _archive(options: Options, path: str) -> str:
    """Where files go that were read: not where they, or those that come, would be found again."""
    archive = _local_path(options, _ARCHIVE)
    names = zip(path.strip("/").split("/"), archive.strip("/").split("/"), strict=False)
    if all(name_pattern(pattern).fullmatch(name) for pattern, name in names):
        raise options.refusal(_ARCHIVE, f"is {archive!r}, which is above or below {path!r}")
    return archive


def _check_folder(options: Options, path: str) -> None:
    if os.path.isdir(path):
        return
    if os.path.exists(path):
        raise options.refusal(_PATH, f"is {path!r}, a file; name its folder here")
    raise options.refusal(_PATH, f"is wrong: there is no folder {path!r}")


def _check_partitions(source: str, file_format: str, columns: Schema, partitions: Schema) -> None:
    """Refuse what a folder's name cannot say."""
    for field in partitions:
        if field.type.kind not in PARTITION_KINDS:
            raise unsupported(
                f"source {source}",
                f"a partition column of type {field.type} is not read here: read it as string, "
                "and cast it",
                column=field.name,
            )
    if not columns and file_format in ("csv", "text"):
        raise unsupported(f"source {source}", "files need a column beside those of their folders")


def _check_readable(source: str, file_format: str, schema: Schema) -> None:
    """Refuse columns that a format cannot fill, or that Spark fills with something else."""
    if file_format not in ("csv", "jsonl"):
        return
    for field in schema:
        why = None
        kind = str(field.type)
        if field.name == "_corrupt_record":
            why = "a line that does not fit is no row here: name a deadLetterStream for it"
        elif "interval " in kind or VOID in field.type.walk():
            why = f"a column of type {kind} is not read from texts here: read a string, and cast it"
        elif file_format == "csv" and kind.startswith(("array", "map", "struct", "binary")):
            why = f"a column of type {kind} is not read from CSV here"
        elif file_format == "jsonl" and "map<" in kind:
            why = "maps are not read from JSON here: read a struct, or a string"
        if why is not None:
            raise unsupported(f"source {source}", why, column=field.name)


def _is_fact(attribute: JvmNode) -> bool:
    """Whether Spark makes a column up beside those of the files: what it knows about them."""
    return bool(attribute.read("metadata").contains(_METADATA_MARK))


def _facts(node: JvmNode, source: str) -> Schema:
    """What is asked for of the file of each row, a column for each of its members."""
    found = [attribute for attribute in node.output if _is_fact(attribute)]
    columns = []
    for attribute in found:
        whole = field_of_attribute(node, attribute)
        for field in whole.type.fields:
            if field.name not in FACTS:
                raise unsupported(
                    f"source {source}",
                    f"of a row's file is known here: {', '.join(FACTS)}",
                    column=f"{whole.name}.{field.name}",
                )
            columns.append(Field(f"{whole.name}.{field.name}", field.type, False))
    return tuple(columns)


def _check_times(source: str, schema: Schema, session: SessionFacts) -> None:
    """Texts without a zone are taken as UTC, which is Spark's reading only in a UTC session."""
    if source not in ("csv", "json") or session.time_zone in _UTC_ZONES:
        return
    for field in schema:
        if "timestamp" in str(field.type):
            raise unsupported(
                f"source {source}",
                f"times without a zone are read as UTC here, but spark.sql.session.timeZone is "
                f"{session.time_zone}; set it to UTC, or read the column as string and cast it",
                column=field.name,
            )
