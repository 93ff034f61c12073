"""Digests and checksums of bytes, each distinct value once; Spark's hashes of any values."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from penstock.expressions.frame import Frame
from penstock.expressions.nodes import Call
from penstock.expressions.spark_hash import MURMUR3, XXHASH64, SparkHash


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


_HASHES: Mapping[str, SparkHash] = {"hash": MURMUR3, "xxhash64": XXHASH64}


def spark_hash(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    return pa.array(_HASHES[node.function].of_rows(args, frame.num_rows, int(node.option("seed"))))
