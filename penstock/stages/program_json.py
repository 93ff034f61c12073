"""The text form of a program: canonical JSON out, and back in only if every part is as expected."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, NoReturn

from penstock.errors import InvalidProgram, StageVersionUnsupported, StreamError
from penstock.expressions.types import Field, Schema, parse_type
from penstock.operators.specs import OperatorSpec, cut_at_state, spec_from_json
from penstock.stages.program import (
    PROGRAM_VERSION,
    ConnectorSpec,
    Port,
    Program,
    Stage,
    StageOutput,
    StreamSpec,
    VertexProgram,
    canonical_json,
)
from penstock.stages.settings import Settings, setting_names, settings_to_json

PROGRAM_CHARACTERS_MAX = 32 << 20  # below what the log's metadata store takes
PROGRAM_DEPTH_MAX = 500
_INTEGER_DIGITS_MAX = 20  # no number of a program is beyond 64 bits

# What reading malformed values can raise below the checks here: all of it means the same.
_MALFORMED = (
    KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, RecursionError,
    AssertionError,
)  # fmt: skip


def program_to_json(program: Program) -> str:
    """The canonical text of a program."""
    return canonical_json(
        {
            "version": program.version,
            "query": program.query,
            "settings": settings_to_json(program.settings),
            "streams": [_stream_to_json(stream) for stream in program.streams],
            "stages": [stage_to_json(stage) for stage in program.stages],
            "vertices": [_vertex_to_json(vertex) for vertex in program.vertices],
        }
    )


def program_from_json(text: str) -> Program:
    """The program of a text that `program_to_json` wrote, in this or an older version.

    Nothing is guessed: an unknown, missing or repeated field, a wrong type, or a value that would
    not be written back as it was read, is refused.
    """
    try:
        node = _parse(text)
        _refuse_other_version(node)
        program = _program(node)
        if program_to_json(program) != canonical_json(node):
            raise InvalidProgram(
                "the program holds fields or values that this version would not have written: "
                f"{first_difference(json.loads(program_to_json(program)), node)}"
            )
    except (InvalidProgram, StageVersionUnsupported):
        raise
    except StreamError as error:
        raise InvalidProgram(
            f"the program cannot be read: {error.message}; plan the query again",
            reason=error.error_class,
        ) from error
    except _MALFORMED as error:
        raise InvalidProgram(
            f"the program is malformed: {error!r:.300}; plan the query again",
            reason=type(error).__name__,
        ) from error
    return program


def stage_to_json(stage: Stage) -> dict[str, Any]:
    """One stage as JSON values."""
    return {
        "name": stage.name,
        "ports": [_port_to_json(port) for port in stage.ports],
        "operators": [spec.to_json() for spec in stage.operators],
        "output": {
            "stream": stage.output.stream,
            "partition_by": list(stage.output.partition_by),
            "schema": schema_to_json(stage.output.schema),
        },
    }


def schema_to_json(schema: Schema) -> list[list[Any]]:
    """[name, type, nullable] per column."""
    return [[column.name, str(column.type), column.nullable] for column in schema]


def first_difference(left: Any, right: Any, path: str = "$") -> str:
    """Where two JSON values differ first, as a path into them."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted(set(left) | set(right)):
            if key not in left or key not in right:
                return f"{path}.{key:.80}"
            if canonical_json(left[key]) != canonical_json(right[key]):
                return first_difference(left[key], right[key], f"{path}.{key:.80}")
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for index, (one, other) in enumerate(zip(left, right, strict=True)):
            if canonical_json(one) != canonical_json(other):
                return first_difference(one, other, f"{path}[{index}]")
    return path


# --- text -> JSON values --------------------------------------------------------------------------


def _parse(text: str) -> dict[str, Any]:
    if not isinstance(text, str) or len(text) > PROGRAM_CHARACTERS_MAX:
        raise InvalidProgram(f"a program is a text of at most {PROGRAM_CHARACTERS_MAX} characters")
    try:
        node = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_int=_integer,
            parse_float=_float,
        )
    except RecursionError as error:
        raise InvalidProgram("the program is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise InvalidProgram(
            f"the program is not JSON: {error.msg} at character {error.pos}", position=error.pos
        ) from error
    _check_depth(node)
    if not isinstance(node, dict):
        raise InvalidProgram("the program is not a JSON object")
    return node


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    node = dict(pairs)
    if len(node) != len(pairs):
        raise InvalidProgram("the program repeats a field of an object")
    return node


def _integer(digits: str) -> int:
    if len(digits) > _INTEGER_DIGITS_MAX:
        raise InvalidProgram(f"the program holds the number {digits[:30]}…, beyond 64 bits")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise InvalidProgram(f"the program holds the number {digits[:30]}, beyond a double")
    return value


def _refuse_constant(word: str) -> NoReturn:
    raise InvalidProgram(f"the program holds {word}, which JSON does not know")


def _check_depth(node: Any) -> None:
    level = [node]
    for _ in range(PROGRAM_DEPTH_MAX):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return
    raise InvalidProgram(f"the program is nested deeper than {PROGRAM_DEPTH_MAX}")


def _children(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []


def _refuse_other_version(node: dict[str, Any]) -> None:
    version = node.get("version")
    if type(version) is not int or version < 1:
        raise InvalidProgram(f"the program's version is {version!r:.80}, not a number from 1 on")
    if version != PROGRAM_VERSION:
        raise StageVersionUnsupported(
            f"the program has version {version}; this Penstock runs version {PROGRAM_VERSION}: run "
            "it with the Penstock that stored it, or start the query under a new name",
            version=version,
            version_known=PROGRAM_VERSION,
        )


# --- JSON values -> program -----------------------------------------------------------------------


def _program(node: dict[str, Any]) -> Program:
    _check_fields(node, "program", "version", "query", "settings", "streams", "stages", "vertices")
    _check_fields(node["settings"], "settings", *setting_names())
    return Program(
        query=_text(node["query"], "query"),
        settings=Settings(**node["settings"]),
        streams=tuple(_stream(item) for item in _list(node["streams"], "streams")),
        stages=tuple(_stage(item) for item in _list(node["stages"], "stages")),
        vertices=tuple(_vertex(item) for item in _list(node["vertices"], "vertices")),
        version=node["version"],
    )


def _stream(node: Any) -> StreamSpec:
    _check_fields(node, "stream", "name", "schema", "substreams", "role")
    return StreamSpec(
        _text(node["name"], "stream"),
        _schema(node["schema"]),
        _number(node["substreams"], "substreams"),
        node["role"],
    )


def _stream_to_json(stream: StreamSpec) -> dict[str, Any]:
    return {
        "name": stream.name,
        "schema": schema_to_json(stream.schema),
        "substreams": stream.substreams,
        "role": stream.role,
    }


def _stage(node: Any) -> Stage:
    _check_fields(node, "stage", "name", "ports", "operators", "output")
    written = node["output"]
    _check_fields(written, "output", "stream", "partition_by", "schema")
    return Stage(
        _text(node["name"], "stage"),
        tuple(_port(item) for item in _list(node["ports"], "ports")),
        tuple(_operator(item) for item in _list(node["operators"], "operators")),
        StageOutput(
            _text(written["stream"], "stream"),
            _texts(written["partition_by"], "partition_by"),
            _schema(written["schema"]),
        ),
    )


def _port_to_json(port: Port) -> dict[str, Any]:
    return {
        "source": _connector_to_json(port.source),
        "streams": list(port.streams),
        "schema": schema_to_json(port.schema),
        "front": [spec.to_json() for spec in port.front],
    }


def _port(node: Any) -> Port:
    _check_fields(node, "port", "source", "streams", "schema", "front")
    front, rest = cut_at_state([_operator(item) for item in _list(node["front"], "front")])
    if rest:
        raise InvalidProgram("a port of the program has an operator with state")
    return Port(
        _connector(node["source"]),
        _texts(node["streams"], "streams"),
        _schema(node["schema"]),
        front,
    )


def _operator(node: Any) -> OperatorSpec:
    if not isinstance(node, dict) or not isinstance(node.get("op"), str):
        raise InvalidProgram(f"{node!r:.200} is not an operator of a program")
    return spec_from_json(node)


def _connector_to_json(connector: ConnectorSpec | None) -> dict[str, Any] | None:
    if connector is None:
        return None
    return {"connector": connector.connector, "options": connector.options}


def _connector(node: Any) -> ConnectorSpec | None:
    if node is None:
        return None
    _check_fields(node, "connector", "connector", "options")
    return ConnectorSpec(_text(node["connector"], "connector"), canonical_json(node["options"]))


def _vertex_to_json(vertex: VertexProgram) -> dict[str, Any]:
    return {
        "name": vertex.name,
        "stage": vertex.stage,
        "index": vertex.index,
        "key_range": list(vertex.key_range),
        "input_tags": list(vertex.input_tags),
        "output_tags": list(vertex.output_tags),
        "marker_tags": list(vertex.marker_tags),
    }


def _vertex(node: Any) -> VertexProgram:
    _check_fields(
        node, "vertex", "name", "stage", "index", "key_range", "input_tags", "output_tags",
        "marker_tags",
    )  # fmt: skip
    low, high = (_number(edge, "key_range") for edge in _list(node["key_range"], "key_range"))
    return VertexProgram(
        _text(node["name"], "vertex"),
        _number(node["stage"], "stage"),
        _number(node["index"], "index"),
        (low, high),
        _texts(node["input_tags"], "input_tags"),
        _texts(node["output_tags"], "output_tags"),
        _texts(node["marker_tags"], "marker_tags"),
    )


def _schema(node: Any) -> Schema:
    return tuple(_field(item) for item in _list(node, "schema"))


def _field(node: Any) -> Field:
    if not isinstance(node, list) or [type(part) for part in node] != [str, str, bool]:
        raise InvalidProgram(f"{node!r:.200} is not a column: [name, type, nullable] was expected")
    return Field(node[0], parse_type(node[1]), node[2])


def _typed(expected: type, what: str) -> Callable[[Any, str], Any]:
    def check(node: Any, where: str) -> Any:
        if type(node) is not expected:
            raise InvalidProgram(f"{where} is {node!r:.200}; {what} was expected")
        return node

    return check


_text = _typed(str, "a text")
_number = _typed(int, "a whole number")
_list = _typed(list, "a list")


def _texts(node: Any, where: str) -> tuple[str, ...]:
    return tuple(_text(item, where) for item in _list(node, where))


def _check_fields(node: Any, what: str, *names: str) -> None:
    if not isinstance(node, dict):
        raise InvalidProgram(f"the {what} is {node!r:.200}; an object was expected")
    unknown, missing = sorted(set(node) - set(names)), sorted(set(names) - set(node))
    if unknown or missing:
        raise InvalidProgram(
            f"the {what} of the program has unknown fields {unknown!r:.200} and lacks {missing}",
            unknown=[str(name)[:80] for name in unknown[:10]],
            missing=missing,
        )
