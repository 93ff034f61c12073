"""JSON as it is kept and read back: layouts, foreign text within bounds, records by their fields.

Whatever is wrong with a text or with its values is a `Malformed` that says what was expected where;
whoever reads says in an error of its own what that means.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NewType, NoReturn, TypeVar, Union, cast, get_args, get_origin
from typing import get_type_hints as type_hints

DEPTH_MAX = 500
_INTEGER_DIGITS_MAX = 20  # no number of ours is beyond 64 bits
_COMPACT = (",", ":")

T = TypeVar("T")
Reader = Callable[[Any], Any]
Readers = tuple[tuple[Any, Reader], ...]  # of types that are read in a way of their own


class Malformed(ValueError):
    """A text that is not JSON, or JSON that is not what was expected: why, and the path to it."""

    def __init__(self, reason: str, *path: str) -> None:
        super().__init__(reason, *path)
        self.reason, self.path = reason, path

    def __str__(self) -> str:
        return f"{'.'.join(self.path)} {self.reason}" if self.path else self.reason

    def below(self, name: str) -> Malformed:
        return Malformed(self.reason, name, *self.path)


# --- values -> text -------------------------------------------------------------------------------


def canonical_json(value: Any) -> str:
    """The one text of a JSON value: sorted keys, no spaces, ASCII, no NaN or infinity."""
    return json.dumps(value, sort_keys=True, separators=_COMPACT, allow_nan=False, default=_as_json)


def compact_json(value: Any) -> bytes:
    """Without spaces, in the order given: what is written often."""
    return json.dumps(value, separators=_COMPACT, allow_nan=False, default=_as_json).encode()


def spaced_json(value: Any) -> bytes:
    """On one line: what a log's metadata holds."""
    return json.dumps(value, allow_nan=False, default=_as_json).encode()


def indented_json(value: Any) -> bytes:
    """On many lines: files that people look into."""
    return json.dumps(value, indent=1, allow_nan=False, default=_as_json).encode() + b"\n"


def fields_of(record: Any) -> dict[str, Any]:
    """The fields of a dataclass in their order, as JSON's object."""
    return {name: getattr(record, name) for name in _field_names(record.__class__)}


def _as_json(record: Any) -> Any:
    return record.to_json() if hasattr(record, "to_json") else fields_of(record)


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


# --- text -> values -------------------------------------------------------------------------------


def parse(text: str | bytes | memoryview) -> Any:
    """The values of a text that one of ours wrote, if nothing happened to it."""
    try:
        return json.loads(bytes(text) if isinstance(text, memoryview) else text)
    except RecursionError:
        raise Malformed("it is nested too deeply") from None
    except ValueError as error:
        raise Malformed(f"it is not JSON: {error}") from None


def parse_strictly(text: str, characters_max: int) -> Any:
    """As `parse`, and nothing that would be read in another way than it was meant: no field twice,
    no number that does not fit, nothing of endless size or depth."""
    if not isinstance(text, str) or len(text) > characters_max:
        raise Malformed(f"a text of at most {characters_max} characters was expected")
    try:
        node = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_int=_integer,
            parse_float=_float,
        )
    except RecursionError:
        raise Malformed("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise Malformed(f"it is not JSON: {error.msg} at character {error.pos}") from None
    _check_depth(node)
    return node


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    node = dict(pairs)
    if len(node) != len(pairs):
        raise Malformed("it repeats a field of an object")
    return node


def _integer(digits: str) -> int:
    if len(digits) > _INTEGER_DIGITS_MAX:
        raise Malformed(f"it holds the number {digits[:30]}…, beyond 64 bits")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise Malformed(f"it holds the number {digits[:30]}, beyond a double")
    return value


def _refuse_constant(word: str) -> NoReturn:
    raise Malformed(f"it holds {word}, which JSON does not know")


def _check_depth(node: Any) -> None:
    level = [node]
    for _ in range(DEPTH_MAX):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return
    raise Malformed(f"it is nested deeper than {DEPTH_MAX}")


def _children(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []


# --- values -> records ----------------------------------------------------------------------------


def read_as(kind: type[T], node: Any, where: str) -> T:
    """JSON values as a value of a type; `where` is what they are called in errors.

    The types are those of records: texts, numbers, flags, what may be null, tuples, dictionaries,
    named tuples, whose last items may be absent if they have a default, as may fields of
    dataclasses. A class that has its own `from_json` is asked.
    """
    try:
        found: T = _reader(cast(Hashable, kind))(node)
    except Malformed as error:
        raise error.below(where) from None
    return found


def list_of(item: Reader) -> Reader:
    """What reads a list of such values, as a tuple."""
    items = _exactly(list)
    return lambda node: tuple(map(item, items(node)))


def record_of(kind: Any, complete: bool = False, own: Readers = (), **named: Reader) -> Reader:
    """What reads a dataclass, with readers of their own for some types and some fields.

    A record that is `complete` has all its fields, also those with a default.
    """
    hints = type_hints(kind)
    readers = {name: named.get(name) or _reader(hints[name], own) for name in _field_names(kind)}
    needed = {
        field.name
        for field in fields(kind)
        if complete or (field.default is MISSING and field.default_factory is MISSING)
    }

    def read(node: Any) -> Any:
        if not isinstance(node, dict):
            raise _unexpected(node, "an object")
        if not needed <= node.keys() <= readers.keys():
            unknown, missing = sorted(node.keys() - readers.keys()), sorted(needed - node.keys())
            raise Malformed(f"has unknown fields {unknown!r:.200} and lacks {missing}")
        values = {}
        for name, each in node.items():
            try:
                values[name] = readers[name](each)
            except Malformed as error:
                raise error.below(name) from None
        return kind(**values)

    return read


def _unexpected(node: Any, expected: str) -> Malformed:
    return Malformed(f"is {node!r:.200}; {expected} was expected")


_EXACT = {str: "a text", int: "a whole number", bool: "true or false", list: "a list"}


@cache
def _reader(kind: Any, own: Readers = ()) -> Reader:
    for its, reader in own:
        if kind == its:
            return reader
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda node: node
    if kind in _EXACT:
        return _exactly(kind)
    if isinstance(kind, NewType):
        return _reader(kind.__supertype__, own)
    if origin is Literal:
        return _exactly(type(args[0]))  # which of them there are is the record's own check
    if origin in (Union, UnionType):
        assert NoneType in args, f"nothing says which of {kind} a value is"
        there = _reader(Union[tuple(each for each in args if each is not NoneType)], own)  # noqa: UP007
        return lambda node: None if node is None else there(node)
    if origin is tuple:
        return list_of(_reader(args[0], own)) if args[1:] == (...,) else _tuple(tuple, args, own)
    if origin in (dict, Mapping):
        return _dictionary(_reader(args[1], own))
    if hasattr(kind, "from_json"):
        return cast(Reader, kind.from_json)
    if issubclass(kind, tuple):
        kinds, absent = tuple(type_hints(kind).values()), len(kind._field_defaults)
        return _tuple(lambda values: kind(*values), kinds, own, absent)
    return record_of(kind, own=own)


def _exactly(kind: Any) -> Reader:
    def read(node: Any) -> Any:
        if type(node) is not kind:
            raise _unexpected(node, _EXACT[kind])
        return node

    return read


def _tuple(
    make: Callable[[list[Any]], Any], kinds: tuple[Any, ...], own: Readers, absent: int = 0
) -> Reader:
    readers = [_reader(kind, own) for kind in kinds]

    def read(node: Any) -> Any:
        if type(node) is not list or not len(readers) - absent <= len(node) <= len(readers):
            raise _unexpected(node, f"a list of {len(readers)}")
        return make([reader(each) for reader, each in zip(readers, node, strict=False)])

    return read


def _dictionary(value: Reader) -> Reader:
    def read(node: Any) -> Any:
        if not isinstance(node, dict):
            raise _unexpected(node, "an object")
        return {key: value(each) for key, each in node.items()}

    return read
