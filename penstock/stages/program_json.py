"""The text form of a program: canonical JSON out, and back in only if every part is as expected."""

from __future__ import annotations

from typing import Any

from penstock.errors import InvalidProgram, StageVersionUnsupported, StreamError
from penstock.json_codec import (
    Malformed,
    canonical_json,
    fields_of,
    parse,
    parse_strictly,
    record_of,
)
from penstock.operators.specs import OperatorSpec, StatelessSpec, spec_from_json
from penstock.stages.program import PROGRAM_VERSION, Program
from penstock.stages.settings import Settings

PROGRAM_CHARACTERS_MAX = 32 << 20  # below what the log's metadata store takes

# What reading malformed values can raise below the checks here: all of it means the same.
_MALFORMED = (
    KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, RecursionError,
    AssertionError,
)  # fmt: skip


def program_to_json(program: Program) -> str:
    """The canonical text of a program."""
    return canonical_json(fields_of(program))


def program_from_json(text: str) -> Program:
    """The program of a text that `program_to_json` wrote, in this or an older version.

    Nothing is guessed: an unknown, missing or repeated field, a wrong type, or a value that would
    not be written back as it was read, is refused.
    """
    try:
        node = parse_strictly(text, PROGRAM_CHARACTERS_MAX)
        if not isinstance(node, dict):
            raise Malformed("it is not a JSON object")
        _refuse_other_version(node)
        program: Program = _program(node)
        if program_to_json(program) != canonical_json(node):
            raise InvalidProgram(
                "the program holds fields or values that this version would not have written: "
                f"{first_difference(parse(program_to_json(program)), node)}"
            )
    except (InvalidProgram, StageVersionUnsupported):
        raise
    except StreamError as error:
        raise InvalidProgram(
            f"the program cannot be read: {error.message}; plan the query again",
            reason=error.error_class,
        ) from error
    except _MALFORMED as error:
        shown = str(error) if type(error) is Malformed else repr(error)
        raise InvalidProgram(
            f"the program is malformed: {shown:.500}; plan the query again",
            reason=type(error).__name__,
        ) from error
    return program


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


def _operator(node: Any) -> OperatorSpec:
    if not isinstance(node, dict) or not isinstance(node.get("op"), str):
        raise Malformed(f"{node!r:.200} is not an operator of a program")
    return spec_from_json(node)


_program = record_of(
    Program,
    own=(
        (OperatorSpec, _operator),
        (StatelessSpec, _operator),
        (Settings, record_of(Settings, complete=True)),
    ),
)
