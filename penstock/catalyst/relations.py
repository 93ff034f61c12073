"""The leaves of Spark's plan: which sources are known, with which options, as scans of ours.

Connectors and their options, as the scans name them:

- a stream of the log: no connector, `StreamRef`;
- `folder`: format (parquet, jsonl, csv, text), path, columns (name and type of each, in the order
  of the file), and as given: pattern, recursive, settle_ms, changed, header, delimiter, escape,
  check_header, case_sensitive;
- `rate`: rows_per_s;
- `nexmark`: kind, paced, and as given: seed, rate, events_max, base_ms;
- `ysb`: as given: rate, rows_total.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from penstock.catalyst.jvm import JvmNode, scala_items, scala_map
from penstock.catalyst.refusals import unsupported
from penstock.catalyst.session import SessionFacts
from penstock.catalyst.spark_types import spark_type
from penstock.errors import (
    ExpressionError,
    InvalidName,
    PlanError,
    StreamError,
    UnsupportedPlan,
)
from penstock.expressions.durations import parse_duration
from penstock.expressions.types import Field, Schema
from penstock.names import check_name
from penstock.plan.nodes import Scan, Source, StreamRef
from penstock.stages.program import ConnectorSpec, connector_spec

_UTC_ZONES = frozenset({"UTC", "Etc/UTC", "GMT", "Z", "+00:00", "Etc/GMT", "UCT", "Etc/UCT"})
_FOLDER_FORMATS: Mapping[str, str] = {
    "parquet": "parquet",
    "json": "jsonl",
    "csv": "csv",
    "text": "text",
}
_GLOB = re.compile(r"[*?\[\]{}\\]")
_PATTERN_REFUSED = re.compile(r"[\[\]{}\\]")  # where Hadoop's globs and the shell's differ

_METADATA_MARK = "__metadata_col"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

SubstreamCount = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class ScanOrigin:
    """What one scan reads, and how the user asked for it."""

    scan: Scan
    format: str
    options: tuple[tuple[str, str], ...] = ()

    @property
    def stream(self) -> str | None:
        """The stream of the log that is read, if it is one."""
        relation = self.scan.relation
        return None if isinstance(relation, Source) else relation[0].name

    @property
    def connector(self) -> ConnectorSpec | None:
        """The connector that is read, if it is one."""
        relation = self.scan.relation
        return relation.spec if isinstance(relation, Source) else None


class _Options:
    """The options of one source, each taken once; what is left at the end is refused by name."""

    def __init__(self, source: str, given: Mapping[str, str]) -> None:
        self.source = source
        self.given = dict(given)
        self._left = {name.lower(): (name, value) for name, value in given.items()}

    def take(self, name: str, default: str) -> str:
        return self._left.pop(name.lower(), (name, default))[1]

    def number(self, name: str, default: int | None, kind: type = int) -> Any:
        text = self.take(name, "" if default is None else str(default))
        if not text:
            return None
        try:
            return kind(text)
        except ValueError:
            raise self.refuse(name, f"{text!r} is not a number") from None

    def flag(self, name: str, default: bool) -> bool:
        text = self.take(name, str(default)).lower()
        if text not in ("true", "false"):
            raise self.refuse(name, f"{text!r} is neither true nor false")
        return text == "true"

    def require(self, name: str, *values: str) -> None:
        """Accept an option only with a value that asks for what is done anyway."""
        found = self.take(name, values[0])
        if found.lower() not in [value.lower() for value in values]:
            raise self.refuse(name, f"{found!r} is not possible here, only {' or '.join(values)}")

    def ignore(self, *names: str) -> None:
        """Accept options that steer micro-batches and change no row."""
        for name in names:
            self.take(name, "")

    def finish(self) -> None:
        for name, _ in self._left.values():
            raise self.refuse(name, "this option is not known here")

    def refuse(self, name: str, reason: str) -> UnsupportedPlan:
        return unsupported(f"source {self.source}", f"option {name!r}: {reason}", column=None)


def read_relation(node: JvmNode, session: SessionFacts, substreams: SubstreamCount) -> ScanOrigin:
    """The scan of a leaf; a refusal that names the source if it is not known."""
    if node.kind == "StreamingRelation":
        return _folder(node, session)
    source = str(node.read("sourceName"))
    options = _Options(source, dict(node.read("extraOptions").asCaseSensitiveMap()))
    if source == "penstock":
        return _stream(node, options, substreams)
    reader = _GENERATORS.get(source)
    if reader is None:
        raise unsupported(
            f"source {source}", "this source is not read here; put its rows into a stream first"
        )
    spec = reader(options)
    options.finish()
    return _origin(Source(spec, None), _schema(node), source, options)


def _origin(
    relation: Source | tuple[StreamRef, ...], schema: Schema, source: str, options: _Options
) -> ScanOrigin:
    try:
        scan = Scan(relation, schema)
    except PlanError as error:
        raise unsupported(f"source {source}", error.message) from error
    return ScanOrigin(scan, source, tuple(sorted(options.given.items())))


def _schema(node: JvmNode) -> Schema:
    return tuple(_field(node, attribute) for attribute in node.output)


def _field(node: JvmNode, attribute: JvmNode) -> Field:
    name = str(attribute.read("name"))
    try:
        data_type = spark_type(attribute.read("dataType"))
    except ExpressionError as error:
        raise unsupported(node.kind, error.message, column=name) from error
    return Field(name, data_type, bool(attribute.read("nullable")))


# --- streams and generators -----------------------------------------------------------------------


def _stream(node: JvmNode, options: _Options, substreams: SubstreamCount) -> ScanOrigin:
    name = options.take("stream", "")
    # Where the log is, whoever attached it knows; how Spark would cut micro-batches is no matter.
    options.ignore("path", "maxRowsPerTrigger", "numPartitions")
    options.require("startingPosition", "earliest")
    options.require("includeMetadata", "false")
    options.finish()
    if not name:
        raise options.refuse("stream", "name the stream to read")
    try:
        stream = StreamRef(check_name(name, "stream"), substreams(name))
    except InvalidName as error:
        raise options.refuse("stream", error.message) from error
    return _origin((stream,), _schema(node), options.source, options)


def _rate(options: _Options) -> ConnectorSpec:
    rows_per_s = options.number("rowsPerSecond", 1)
    options.require("rampUpTime", "0s", "0", "0 seconds", "0 second")
    options.ignore("numPartitions")  # how many vertices read is the query's parallelism
    return connector_spec("rate", rows_per_s=rows_per_s)


def _nexmark(options: _Options) -> ConnectorSpec:
    wanted = {
        "seed": options.number("seed", None),
        "rate": options.number("rate", None, float),
        "events_max": options.number("events", None),
        "base_ms": _first_moment_ms(options),
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    if "." in options.take("columns", ""):
        raise options.refuse("columns", "single fields of a struct are not picked here")
    # How many tasks and rows a micro-batch has is not our business.
    options.ignore("numPartitions", "maxRowsPerTrigger")
    paced = not options.flag("unpaced", False)
    return connector_spec("nexmark", kind=options.take("kind", "bids"), paced=paced, **given)


def _ysb(options: _Options) -> ConnectorSpec:
    wanted = {"rate": options.number("rate", None), "rows_total": options.number("rows", None)}
    options.ignore("numPartitions")
    given = {name: value for name, value in wanted.items() if value is not None}
    return connector_spec("ysb", **given)


def _first_moment_ms(options: _Options) -> int | None:
    text, zone = options.take("startingTime", ""), options.take("timeZone", "UTC")
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=ZoneInfo(zone))
    except (ValueError, OSError, ZoneInfoNotFoundError):
        raise options.refuse("startingTime", f"{text!r} is not a time in zone {zone!r}") from None
    return (moment - _EPOCH) // timedelta(milliseconds=1)


_GENERATORS: Mapping[str, Callable[[_Options], ConnectorSpec]] = {
    "rate": _rate,
    "nexmark": _nexmark,
    "ysb": _ysb,
}


# --- files ----------------------------------------------------------------------------------------


def _folder(node: JvmNode, session: SessionFacts) -> ScanOrigin:
    data_source = node.read("dataSource")
    source = str(data_source.className()).lower()
    file_format = _FOLDER_FORMATS.get(source)
    options = _Options(source, scala_map(data_source.options()))
    if file_format is None:
        raise unsupported(
            f"source {source}",
            f"files are read here as {', '.join(_FOLDER_FORMATS)}; other sources are not read",
        )
    path = _local_path(options, scala_items(data_source.paths()))
    recursive = options.flag("recursiveFileLookup", False)
    if not recursive:
        _refuse_folders_below(options, path)
    _refuse_metadata(node, source)
    schema = _schema(node)
    _check_times(options, schema, session)
    _check_readable(options, file_format, schema)
    spec = connector_spec(
        "folder",
        format=file_format,
        path=path,
        columns=[[field.name, str(field.type)] for field in schema],
        **_file_options(options, file_format, recursive),
        **({"case_sensitive": True} if session.case_sensitive else {}),
    )
    options.finish()
    return _origin(Source(spec, None), schema, source, options)


def _file_options(options: _Options, file_format: str, recursive: bool) -> dict[str, Any]:
    wanted: dict[str, Any] = {"recursive": True} if recursive else {}
    pattern = options.take("pathGlobFilter", "")
    if _PATTERN_REFUSED.search(pattern):
        raise options.refuse("pathGlobFilter", f"only * and ? are known in {pattern!r}")
    if pattern:
        wanted["pattern"] = pattern
    changed = options.take("changedFiles", "fail").lower()
    if changed not in ("fail", "skip", "continue"):
        raise options.refuse("changedFiles", f"{changed!r} is not fail, skip or continue")
    if changed != "fail":
        wanted["changed"] = changed
    settle = options.take("settleTime", "")
    if settle:
        try:
            wanted["settle_ms"] = parse_duration(settle) // 1_000
        except StreamError as error:
            raise options.refuse("settleTime", error.message) from error
    wanted |= _FORMAT_OPTIONS[file_format](options)
    options.require("latestFirst", "false")
    options.require("cleanSource", "off")
    options.ignore("maxFilesPerTrigger", "maxBytesPerTrigger", "maxFileAge", "maxCachedFiles")
    return wanted


def _csv_options(options: _Options) -> dict[str, Any]:
    wanted: dict[str, Any] = {
        "header": options.flag("header", False),
        "delimiter": options.take("sep", options.take("delimiter", ",")),
    }
    if len(wanted["delimiter"]) != 1:
        raise options.refuse("sep", f"{wanted['delimiter']!r} is not one character")
    escape = options.take("escape", "\\")
    if escape not in ("\\", '"'):
        raise options.refuse("escape", f"{escape!r} is not possible here, only \\ or a quote")
    if escape != "\\":
        wanted["escape"] = escape
    if not options.flag("enforceSchema", True):
        wanted["check_header"] = True
    options.require("quote", '"')
    _require_lines(options)
    return wanted


def _json_options(options: _Options) -> dict[str, Any]:
    _require_lines(options)
    return {}


def _require_lines(options: _Options) -> None:
    """Accept what CSV and JSON have in common, with the values that are read here."""
    options.require("multiLine", "false")
    # A line that does not fit stops the query or goes to the dead letters: never a null row.
    options.require("mode", "FAILFAST")
    options.require("encoding", "UTF-8")


def _text_options(options: _Options) -> dict[str, Any]:
    options.require("wholetext", "false")
    return {}


def _parquet_options(options: _Options) -> dict[str, Any]:
    options.require("mergeSchema", "false")
    return {}


_FORMAT_OPTIONS: Mapping[str, Callable[[_Options], dict[str, Any]]] = {
    "parquet": _parquet_options,
    "jsonl": _json_options,
    "csv": _csv_options,
    "text": _text_options,
}


def _local_path(options: _Options, paths: list[Any]) -> str:
    given = options.take("path", "")
    if paths or not given:
        raise options.refuse("path", "one folder is read here, given with load(path)")
    if _GLOB.search(given):
        raise options.refuse("path", f"{given!r} is a pattern; name one folder here")
    parts = urlsplit(given) if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", given) else None
    if parts is not None and (parts.scheme != "file" or parts.netloc not in ("", "localhost")):
        raise options.refuse("path", f"{given!r} is not a local folder")
    return os.path.abspath(parts.path if parts is not None else given)


def _refuse_folders_below(options: _Options, path: str) -> None:
    """Spark reads partition folders too and makes columns of their names."""
    try:
        with os.scandir(path) as entries:
            below = sorted(entry.name for entry in entries if entry.is_dir())
    except NotADirectoryError:
        raise options.refuse("path", f"{path!r} is a file; name its folder here") from None
    except FileNotFoundError:
        raise options.refuse("path", f"there is no folder {path!r}") from None
    shown = [name for name in below if not name.startswith(("_", "."))]
    if shown:
        raise options.refuse(
            "path",
            f"{path!r} has folders below it ({shown[0]!r}), which Spark takes for partitions; "
            "set recursiveFileLookup to true to read their files as they are",
        )


def _check_readable(options: _Options, file_format: str, schema: Schema) -> None:
    """Refuse columns that a format cannot fill, or that Spark fills with something else."""
    if file_format not in ("csv", "jsonl"):
        return
    for field in schema:
        why = None
        kind = str(field.type)
        if field.name == "_corrupt_record":
            why = "a line that does not fit is no row here: name a deadLetterStream for it"
        elif file_format == "csv" and kind.startswith(("array", "map", "struct", "binary")):
            why = f"a column of type {kind} is not read from CSV here"
        elif file_format == "jsonl" and "map<" in kind:
            why = "maps are not read from JSON here: read a struct, or a string"
        if why is not None:
            raise unsupported(f"source {options.source}", why, column=field.name)


def _refuse_metadata(node: JvmNode, source: str) -> None:
    """Columns that Spark makes up beside those of the files, such as `_metadata.file_path`."""
    for attribute in node.output:
        if attribute.read("metadata").contains(_METADATA_MARK):
            raise unsupported(
                f"source {source}",
                "what Spark knows about a row's file is not known here",
                column=str(attribute.read("name")),
            )


def _check_times(options: _Options, schema: Schema, session: SessionFacts) -> None:
    """Texts without a zone are taken as UTC, which is Spark's reading only in a UTC session."""
    if options.source not in ("csv", "json") or session.time_zone in _UTC_ZONES:
        return
    for field in schema:
        if "timestamp" in str(field.type):
            raise unsupported(
                f"source {options.source}",
                f"times without a zone are read as UTC here, but spark.sql.session.timeZone is "
                f"{session.time_zone}; set it to UTC, or read the column as string and cast it",
                column=field.name,
            )
