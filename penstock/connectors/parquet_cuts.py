"""Where a Parquet file is cut into parts: between row groups, by what their reading costs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.connectors.folder_files import OpenFile, Version
from penstock.connectors.folder_shares import FoundFile, packed_begins
from penstock.connectors.parquet_pages import FileBytes
from penstock.errors import StreamError


def parquet_begins(folder: Path, found: FoundFile, part_bytes: int) -> tuple[int, ...]:
    """Where parts of a file begin that are whole row groups; it is one if that is not to be known.

    Whoever reads it says why.
    """
    try:
        file = OpenFile(folder, found.name, Version(found.size_bytes, found.mtime_ns))
        try:
            metadata = pq.read_metadata(FileBytes(file))
            groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
        finally:
            file.close()
    except (pa.ArrowException, OSError, UnicodeDecodeError, StreamError):
        return (0,)
    return packed_begins(group_begins(groups, found.size_bytes), found.size_bytes, part_bytes)


def group_begins(groups: Sequence[pq.RowGroupMetaData], size_bytes: int) -> list[int]:
    """Where row groups would begin in a file that had each of their bytes in the same measure.

    Where they are in truth is in the metadata of columns. And this is what their reading costs.
    """
    sizes = [max(group.total_byte_size, 0) for group in groups]
    if not any(sizes):
        sizes = [1] * len(sizes)
    *begins, total = accumulate(sizes, initial=0)
    return [size_bytes * begin // max(total, 1) for begin in begins]
