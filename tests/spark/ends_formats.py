"""Formats of a user's own: a source of numbers that ends where a file says, a sink of lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make both known; the classes are inside, so that they travel to Spark's processes."""
    import os  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    from pyspark.sql.datasource import (  # noqa: PLC0415
        DataSource,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        InputPartition,
        WriterCommitMessage,
    )

    class Span(InputPartition):
        def __init__(self, first: int, end: int) -> None:
            self.first, self.end = first, end

    class NumbersReader(DataSourceStreamReader):
        """Numbers from 0 to what stands in a file; `at` is a tenth of a second for each."""

        def __init__(self, options) -> None:  # type: ignore[no-untyped-def]
            self._file, self._step = options["upto"], int(options.get("step", 1_000_000))
            self._offset = 0

        def initialOffset(self):  # type: ignore[no-untyped-def]
            return {"next": 0}

        def latestOffset(self):  # type: ignore[no-untyped-def]
            told = Path(self._file).read_text("utf-8")
            self._offset = min(int(told), self._offset + self._step)
            return {"next": self._offset}

        def partitions(self, start, end):  # type: ignore[no-untyped-def]
            self._offset = max(self._offset, end["next"])
            return [Span(start["next"], end["next"])]

        def read(self, partition):  # type: ignore[no-untyped-def]
            from datetime import datetime, timedelta  # noqa: PLC0415

            if Path(self._file + ".broken").exists():
                raise ValueError("the numbers are broken")
            for n in range(partition.first, partition.end):
                yield n, datetime(2030, 1, 1) + timedelta(milliseconds=100 * n), str(n)

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "numbers"

        def schema(self) -> str:
            return "n bigint, at timestamp, told string"

        def streamReader(self, schema):  # type: ignore[no-untyped-def]
            return NumbersReader(self.options)

    class Lines(WriterCommitMessage):
        def __init__(self, lines) -> None:  # type: ignore[no-untyped-def]
            self.lines = lines

    class LinesWriter(DataSourceStreamWriter):
        """A file for each batch, named by its number: one that comes again replaces itself."""

        def __init__(self, folder: str) -> None:
            self._folder = folder

        def write(self, iterator):  # type: ignore[no-untyped-def]
            return Lines([",".join(map(str, row)) for row in iterator])

        def commit(self, messages, batchId):  # type: ignore[no-untyped-def]
            if Path(self._folder, "broken").exists():
                raise ValueError("the lines are broken")
            lines = [line for each in messages if each is not None for line in each.lines]
            draft = Path(self._folder, f".{batchId}")
            draft.write_text("".join(f"{line}\n" for line in lines), "utf-8")
            os.replace(draft, Path(self._folder, f"{batchId}.lines"))

        def abort(self, messages, batchId):  # type: ignore[no-untyped-def]
            pass

    class LinesSink(DataSource):
        @classmethod
        def name(cls) -> str:
            return "lines"

        def streamWriter(self, schema, overwrite):  # type: ignore[no-untyped-def]
            return LinesWriter(self.options["folder"])

    spark.dataSource.register(Numbers)
    spark.dataSource.register(LinesSink)
