"""A version of a static side: its rows, and indexes to find them by keys."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import Mask, Numbers, no_rows, validity_of
from penstock.expressions.types import Schema, arrow_schema, from_arrow
from penstock.kernels.columns import plain
from penstock.kernels.hashing import column_words, hash_words
from penstock.loops import Hashes, Words


class StaticRows:
    """The rows of one version. All vertices of a process share it, with its indexes."""

    def __init__(self, version: int, batch: pa.RecordBatch) -> None:
        self.version = version
        self.batch = batch
        self._indexes: dict[tuple[tuple[str, bool], ...], StaticIndex] = {}

    @classmethod
    def none_of(cls, schema: Schema) -> StaticRows:
        """Before a version is known: for chains that only rehearse."""
        return cls(0, no_rows(arrow_schema(schema)))

    def index(self, keys: Sequence[tuple[str, bool]]) -> StaticIndex:
        """An index of these columns, each with whether its nulls are equal."""
        wanted = tuple(keys)
        if wanted not in self._indexes:
            columns = [self.batch.column(name) for name, _ in wanted]
            safe = [null_safe for _, null_safe in wanted]
            self._indexes[wanted] = StaticIndex(columns, safe, self.batch.num_rows)
        return self._indexes[wanted]


class StaticIndex:
    """Rows by the hash of their key: those of a bucket stand together, in their first order."""

    def __init__(self, columns: Sequence[pa.Array], null_safe: Sequence[bool], rows: int) -> None:
        self._null_safe = null_safe
        self._keys = StaticKeys(columns, null_safe, rows)
        self._order: Numbers = np.flatnonzero(self._keys.may_match)
        count = self._order.size
        bits = max(1, min(28, int(count).bit_length() + 1))  # about two buckets for each row
        self._shift = np.uint32(32 - bits)
        buckets = self._keys.hashes[self._order] >> self._shift
        self._order = self._order[np.argsort(buckets, kind="stable")]
        sizes = np.bincount(buckets, minlength=1 << bits)
        self._ends: Numbers = np.cumsum(sizes)
        self._sizes: Numbers = sizes.astype(np.int64)

    @cached_property
    def has_one_each(self) -> bool:
        """Whether no key has two rows. Of several columns this is not found out."""
        return self._keys.are_distinct

    def keys(self, columns: Sequence[pa.Array], rows: int) -> StaticKeys:
        """The keys of rows that are to be looked up."""
        return StaticKeys(columns, self._null_safe, rows)

    def find(self, column: pa.Array) -> Numbers:
        """The row of each key, -1 if it has none, where no key has two."""
        keys = self.keys([column], len(column))
        begins, counts = self.candidates(keys)
        rows = np.repeat(np.arange(counts.size), counts)
        places = np.arange(rows.size) + np.repeat(begins - (np.cumsum(counts) - counts), counts)
        rows, statics = self.matches(keys, rows, places)
        found: Numbers = np.full(counts.size, -1)
        found[rows] = statics
        return found

    def candidates(self, keys: StaticKeys) -> tuple[Numbers, Numbers]:
        """For each key where the rows begin that may have it, and how many they are."""
        buckets = keys.hashes >> self._shift
        counts = np.where(keys.may_match, self._sizes[buckets], 0)
        return self._ends[buckets] - self._sizes[buckets], counts

    def matches(self, keys: StaticKeys, rows: Numbers, places: Numbers) -> tuple[Numbers, Numbers]:
        """Of pairs of a key and a candidate's place those that are equal, as pairs of rows."""
        found = self._order[places]
        equal = keys.hashes[rows] == self._keys.hashes[found]
        rows, found = rows[equal], found[equal]
        equal = keys.equal(rows, self._keys, found)
        return (rows, found) if equal.all() else (rows[equal], found[equal])


class StaticKeys:
    """Keys of some rows: hash and words of each, and the texts behind words that are hashes."""

    def __init__(self, columns: Sequence[pa.Array], null_safe: Sequence[bool], rows: int) -> None:
        self._words: list[Words] = [column_words(column) for column in columns]
        self._texts = [_text(column) for column in columns]
        self._nulls: list[Mask | None] = [
            ~validity_of(column) if column.null_count else None for column in columns
        ]
        self.hashes: Hashes = hash_words(self._words, rows)
        self.may_match: Mask = np.ones(rows, np.bool_)
        for nulls, safe in zip(self._nulls, null_safe, strict=True):
            if nulls is not None and not safe:
                self.may_match &= ~nulls

    @property
    def are_distinct(self) -> bool:
        if len(self._words) != 1:
            return False
        words = self._words[0][self.may_match]
        return bool(np.unique(words).size == words.size)

    def equal(self, rows: Numbers, others: StaticKeys, found: Numbers) -> Mask:
        """Whether keys of these rows are equal to those of others."""
        equal: Mask = np.ones(rows.size, np.bool_)
        for at, words in enumerate(self._words):
            equal &= words[rows] == others._words[at][found]
            equal &= _at(self._nulls[at], rows) == _at(others._nulls[at], found)
            mine, its = self._texts[at], others._texts[at]
            if mine is not None and its is not None:
                same = pc.equal(mine.take(pa.array(rows)), its.take(pa.array(found)))
                equal &= np.asarray(same.fill_null(True))  # both are null, or one and seen above
        return equal


def _at(nulls: Mask | None, rows: Numbers) -> Mask | np.bool_:
    return np.bool_(False) if nulls is None else nulls[rows]


def _text(column: pa.Array) -> pa.Array | None:
    values = plain(column)
    return values if from_arrow(values.type).kind in ("string", "binary") else None
