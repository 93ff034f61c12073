"""What is known of the file that a row is from: what Spark has behind `_metadata`, and its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.connectors.folder_files import OpenFile, Piece

# What a URI has as it is: Java quotes all else of ASCII, percent signs too, and no other letters.
_QUOTED = re.compile(r"[^A-Za-z0-9_\-!.~'()*,;:$&+=@/\u0080-\U0010ffff]")


class _Fact(NamedTuple):
    type: pa.DataType
    of: Callable[[OpenFile], int | str]


def _quoted(path: str) -> str:
    return _QUOTED.sub(lambda found: f"%{ord(found[0]):02X}", path)


def _nothing(_file: OpenFile) -> int:
    return 0


# A file is one block here, whoever reads which part of it: how Spark would cut it is not known.
_OF_FILES: Mapping[str, _Fact] = MappingProxyType(
    {
        "file_path": _Fact(pa.string(), lambda file: f"file:{_quoted(str(file.path))}"),
        "input_file_name": _Fact(pa.string(), lambda file: f"file://{_quoted(str(file.path))}"),
        "file_name": _Fact(pa.string(), lambda file: _quoted(file.path.name)),
        "file_size": _Fact(pa.int64(), lambda file: file.size_bytes),
        "file_block_start": _Fact(pa.int64(), _nothing),
        "file_block_length": _Fact(pa.int64(), lambda file: file.size_bytes),
        "file_modification_time": _Fact(
            pa.timestamp("us", "UTC"), lambda file: file.version.mtime_ns // 1_000_000 * 1_000
        ),
    }
)
ROW_INDEX = "row_index"  # of a Parquet file
FACTS = (*_OF_FILES, ROW_INDEX)


def fact_columns(names: tuple[str, ...], file: OpenFile, piece: Piece) -> list[pa.Array]:
    """These facts of each row of a piece of a file."""
    assert piece.batch is not None
    columns = []
    for name in names:
        if name == ROW_INDEX:
            begin = piece.row - piece.batch.num_rows - len(piece.rejects)
            rejected = [reject.line - 1 - begin for reject in piece.rejects]
            columns.append(pa.array(np.delete(np.arange(begin, piece.row), rejected)))
            continue
        fact = _OF_FILES[name]
        value = pa.scalar(fact.of(file), pa.int64() if fact.type != pa.string() else fact.type)
        columns.append(pa.repeat(value.cast(fact.type), piece.batch.num_rows))
    return columns
