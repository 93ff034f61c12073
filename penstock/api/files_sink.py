"""Files of any of Spark's formats, in folders by partition: Spark writes them, we give them names.

A batch is written by one Spark task to a hidden folder beside the result, which readers pass over.
What it left there is then linked, file by file, to names that query and epoch decide. A name that
is taken stays as it is, and a batch that comes again has the same rows: so whoever publishes it,
and however often that was broken off, each file of it is there once in the end.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.api.session_sinks import frame_of
from penstock.api.spark_errors import CannotAnalyze
from penstock.connectors.folder_sink import FolderSink, StagedFile, link_file
from penstock.connectors.hidden_files import NamedFile, sync_folder, told
from penstock.errors import SinkError
from penstock.expressions.types import STRING, VOID, DataType, schema_from_arrow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What Spark calls its files: the task, a number of the job's own, how many there were before it in
# this folder, and what says format and compression.
_WRITTEN = re.compile(r"part-[0-9]{5,}-[0-9a-f-]{36}[.-]c([0-9]{3,})((?:\.[A-Za-z0-9]+)+)")


@dataclass(frozen=True, slots=True)
class Layout:
    """How files are written: Spark's format, its options, and the columns that name folders."""

    format: str
    options: tuple[tuple[str, str], ...] = ()
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StagedFolder:
    """Rows that Spark has written and that are synced, in a folder that readers pass over."""

    path: str | None  # None: there is no row
    num_rows: int = 0


class FilesSink(FolderSink):
    """Rows as files `<query>-<epoch>-<number>.<format>`, one or more in each partition's folder.

    The files of a batch appear one after the other; each appears whole. What is there is not asked
    for: the log knows how far the sink is, and names that are taken are passed over.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        query: str,
        query_id: str,
        spark: SparkSession,
        layout: Layout,
        on_published: Callable[[list[str]], None] = lambda folders: None,
    ) -> None:
        """`on_published` hears of the folders, below the sink's own, that a batch has files in."""
        super().__init__(folder, query, query_id)
        self.files = None  # these are Spark's, in its format and by partition
        self._spark = spark
        self._layout = layout
        self._on_published = on_published

    def stage_file(self, epoch: int, file: NamedFile) -> StagedFile:
        raise NotImplementedError

    def publish(self, epoch: int, staged: StagedFolder) -> None:  # type: ignore[override]
        if staged.path is None:
            return
        folders = set()
        try:
            for file in _files(Path(staged.path)):
                place = file.parent.relative_to(staged.path)
                folders.add(str(place))
                self._publish_file(file, self._folder / place, epoch)
        finally:
            self.discard(staged)
        self._on_published(sorted(folders))

    def discard(self, staged: StagedFolder) -> None:  # type: ignore[override]
        if staged.path is not None:
            shutil.rmtree(staged.path, ignore_errors=True)

    def _publish_file(self, file: Path, folder: Path, epoch: int) -> None:
        found = _WRITTEN.fullmatch(file.name)
        if found is None:
            raise SinkError(
                f"Spark wrote {file.name!r:.200}, which is not how it names its files: the epoch "
                "is not in the sink; use foreachBatch with this format",
                path=str(file),
            )
        with told("create the folder", folder):
            made = [each for each in (folder, *folder.parents) if not each.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            for each in made:  # a folder that a power cut takes would take its files along
                sync_folder(each.parent)
        link_file(str(file), folder / f"{self._query}-{epoch:020d}-{found[1]}{found[2]}")

    def _find_last(self) -> None:
        """Not known: of a batch that was broken off, some files are there and others are not."""

    def _clear(self, path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            super()._clear(path)

    def _write_temporary(  # type: ignore[override]
        self, epoch: int, batches: Iterable[pa.RecordBatch]
    ) -> StagedFolder:
        kept = [batch for batch in batches if batch.num_rows]
        if not kept:
            return StagedFolder(None)
        rows = pa.Table.from_batches(kept)
        path = self._folder / f".{self._query}-{epoch:020d}-{secrets.token_hex(8)}.tmp"
        frame = frame_of(self._spark, rows).coalesce(1)
        try:
            frame.write.format(self._layout.format).options(
                **dict(self._layout.options)
            ).partitionBy(*self._layout.partition_by).save(str(path))
            for file in _files(path):
                _sync_file(file)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        return StagedFolder(str(path), rows.num_rows)


def check_partitions(spark: SparkSession, wanted: tuple[str, ...], schema: pa.Schema) -> None:
    """Refuse columns that cannot name folders, as Spark does before it writes."""
    if not wanted:
        return
    fold = str if spark.conf.get("spark.sql.caseSensitive") == "true" else str.lower
    known = {fold(name) for name in schema.names}
    missing = [name for name in wanted if fold(name) not in known]
    if missing or len({fold(name) for name in wanted}) == len(schema.names):
        what = (
            f"column {missing[0]!r} is not there" if missing else "no column is left for the rows"
        )
        raise CannotAnalyze(
            f"partitionBy({', '.join(wanted)}) does not fit the rows: {what}; they have "
            f"{', '.join(schema.names)}",
            columns=list(wanted),
        )


def check_format(layout: Layout, schema: pa.Schema) -> None:
    """Refuse columns that files of a format cannot hold, as Spark does before it writes."""
    folders = {name.lower() for name in layout.partition_by}
    kept = [field for field in schema if field.name.lower() not in folders]
    if layout.format == "text" and len(kept) != 1:
        raise CannotAnalyze(
            f"the text sink takes one column, a text, and these rows have {len(kept)}: "
            f"{', '.join(field.name for field in kept)}; put them into one, as with concat_ws or "
            "to_json, or use another format",
            columns=[field.name for field in kept],
        )
    types = {field.name: field.type for field in schema_from_arrow(schema)}
    if layout.format == "parquet" and layout.partition_by:
        return  # Spark writes them
    for field in kept:
        if not _holds(layout.format, types[field.name]):
            way_out = "turn it into a text" if layout.format == "text" else "write it as to_json()"
            raise CannotAnalyze(
                f"the {layout.format} sink cannot hold column {field.name!r}, which is "
                f"{types[field.name]}: {way_out}, or use another format",
                condition="UNSUPPORTED_DATA_TYPE_FOR_DATASOURCE",
                parameters={
                    "columnName": f"`{field.name}`",
                    "columnType": f'"{types[field.name]}"',
                    "format": "Text" if layout.format == "text" else layout.format.upper(),
                },
                column=field.name,
            )


def _holds(format: str, of: DataType) -> bool:
    if format == "text":
        return of == STRING or of.is_collated
    if format == "csv":
        return not of.is_nested and of != VOID
    # Of Parquet, files that slots write themselves: what Arrow makes of it Spark does not read.
    return format not in ("orc", "parquet") or VOID not in of.walk()


def _files(folder: Path) -> list[Path]:
    """What Spark has written, without its notes; in the same order each time."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if not path.name.startswith((".", "_")))


def _sync_file(path: Path) -> None:
    with told("sync", path):
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
