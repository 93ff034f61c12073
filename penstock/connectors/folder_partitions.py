"""Columns whose values stand in the names of folders, the same for all rows of a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.connectors.parquet_statistics import Bounds, Condition, Value, excludes

NULL_TEXT = "__HIVE_DEFAULT_PARTITION__"  # what a folder is called that has rows with a null
_KEPT_MAX = 1 << 12  # partitions whose values are remembered

Values = Sequence[pa.Scalar]


@dataclass(frozen=True)
class PartitionColumns:
    """The columns that folders stand for: what they are called there, and those that are wanted."""

    known: tuple[str, ...]  # all of them, in the order of the folders
    schema: pa.Schema  # of those that are wanted
    read: Callable[[Sequence[str]], Values]  # the values of the wanted ones, of all texts
    _kept: dict[tuple[str, ...], Values] = field(default_factory=dict)

    def values(self, texts: tuple[str, ...]) -> Values:
        """The values of the columns in a partition."""
        found = self._kept.get(texts)
        if found is None:
            found = self.read(texts)
            if len(self._kept) >= _KEPT_MAX:
                self._kept.clear()
            self._kept[texts] = found
        return found

    def columns(self, texts: tuple[str, ...], rows: int, coded: Set[str]) -> list[pa.Array]:
        """As many of them as a file has rows, texts as codes where these are wanted."""
        columns: list[pa.Array] = []
        for wanted, value in zip(self.schema, self.values(texts), strict=True):
            if wanted.name in coded and value.is_valid:
                codes = pa.array(np.zeros(rows, np.int32))
                columns.append(pa.DictionaryArray.from_arrays(codes, pa.array([value])))
            else:
                columns.append(pa.repeat(value, rows))
        return columns

    def excludes(self, texts: tuple[str, ...], condition: Condition) -> bool:
        """Whether a condition is true of no row of a partition."""
        values = dict(zip(self.schema.names, self.values(texts), strict=True))

        def bounds(name: str) -> Bounds | None:
            if name not in values:
                return None
            value = _ordered(values[name])
            return Bounds(value, value, 0 if values[name].is_valid else 1, 1)

        return excludes(condition, bounds)


def _ordered(value: pa.Scalar) -> Value | None:
    """A value as conditions have it; None: it has no such form."""
    kind = value.type
    if not value.is_valid:
        return None
    if pa.types.is_integer(kind):
        return int(value.as_py())
    if kind == pa.date32() or pa.types.is_timestamp(kind):
        return int(value.value)
    if kind == pa.string():
        return str(value.as_py()).encode()
    if pa.types.is_decimal(kind):
        return int(value.as_py().scaleb(kind.scale))
    return None


NO_PARTITIONS = PartitionColumns((), pa.schema([]), lambda _: ())
