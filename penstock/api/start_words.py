"""What starts a query, with PySpark's arguments: once for every writer that takes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

QueryT = TypeVar("QueryT")


class StartWords(ABC, Generic[QueryT]):
    """`start` and `toTable` of a writer: what they are given is as if it had been said before."""

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: Any = None,
        queryName: str | None = None,
        **options: Any,
    ) -> QueryT:
        """Check, plan, store and run the query. The arguments are PySpark's."""
        words = {"outputMode": outputMode, "partitionBy": partitionBy, "queryName": queryName}
        self._say_all(options, words | {"format": format})
        return self._start_at(path)

    def toTable(
        self,
        tableName: str,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: Any = None,
        queryName: str | None = None,
        **options: Any,
    ) -> QueryT:
        """Run the query, and add its rows to a table of the catalog, made if it is missing."""
        words = {"outputMode": outputMode, "partitionBy": partitionBy, "queryName": queryName}
        self._say_all(options, words | {"format": format})
        return self._start_table(tableName)

    @abstractmethod
    def _start_at(self, path: str | None) -> QueryT: ...

    @abstractmethod
    def _start_table(self, name: str) -> QueryT: ...

    def _say_all(self, options: Mapping[str, Any], words: Mapping[str, Any]) -> None:
        writer: Any = self
        writer.options(**options)
        for word, value in words.items():
            if value is not None:
                getattr(writer, word)(value)
