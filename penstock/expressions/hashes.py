"""Digests and checksums of bytes, each distinct value once."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from penstock.expressions.frame import Frame
from penstock.expressions.nodes import Call


def _each(column: pa.Array, digest: Callable[[bytes], Any], kind: pa.DataType) -> pa.Array:
    codes = column.dictionary_encode()
    found = [digest(data) for data in codes.dictionary.to_pylist()]
    return pa.array(found, kind).take(codes.indices)


def digest(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """Hexadecimal digits of a digest."""
    name = f"sha{node.option('bits')}" if node.function == "sha2" else node.function
    make = getattr(hashlib, name)
    return _each(args[0], lambda data: make(data, usedforsecurity=False).hexdigest(), pa.string())


def crc32(_node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    return _each(args[0], zlib.crc32, pa.int64())
