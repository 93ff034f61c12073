"""Where the log of a query is: the one that its session shares, or the query's own place.

Without `attach`, a query keeps its log in its `checkpointLocation`, and one that Spark would give a
temporary location has a temporary log. What a start that fails has made there is removed again.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.api.session import Attached, attached_log, is_attached, prepare_session
from penstock.api.spark_errors import CannotAnalyze
from penstock.config import LogConfig
from penstock.errors import InvalidName, InvalidOption, LogReadOnly, QueryMismatch
from penstock.log.local import FORMAT_FILE, open_log
from penstock.names import check_name
from penstock.options import is_elsewhere, local_path
from penstock.runtime.queries import stored_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCATIONS_SETTING = "spark.sql.streaming.checkpointLocation"
_WORDS = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True)
class Place:
    """A log for a query, and what becomes of it when the query is over."""

    attached: Attached
    is_own: bool = False  # no other query has it
    is_temporary: bool = False
    is_new: bool = False  # this start has made it
    made: tuple[Path, ...] = ()  # folders, the innermost first

    def query_name(self, wanted: str | None) -> str | None:
        """The name under which the query of an own log is stored; None if anything will do."""
        if not self.is_own:
            return None if wanted is None else check_name(wanted, "query")
        if names := stored_names(self.attached.log):
            return names[0]
        with suppress(InvalidName):  # people's names for queries may hold anything
            return check_name(wanted or "", "query")
        return location_name(str(self.attached.path))

    def release(self) -> None:
        """Let go of the log of a query that is over."""
        if not self.is_own:
            return
        self.attached.log.close()
        if self.is_temporary:
            shutil.rmtree(self.attached.path, ignore_errors=True)

    def undo(self) -> None:
        """Leave no trace of a start that was refused; what is stored stays."""
        is_bare = self.is_new and not stored_names(self.attached.log)
        self.release()
        if not is_bare or self.is_temporary:
            return
        for path in self.attached.path.iterdir():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
        for folder in self.made:
            folder.rmdir()


def location_name(location: str) -> str:
    """A name for the query of a location: the end of it, and a digest of all of it."""
    words = _WORDS.sub("_", Path(location).name)[:20]
    return f"{words}_{hashlib.sha256(location.encode()).hexdigest()[:12]}"


def find_place(
    spark: SparkSession,
    location: str | None,
    name: str | None,
    *,
    needs_location: bool,
    keeps: bool = True,
) -> Place:
    """The log for a query: that of the session, or one of the query's own.

    With `keeps` False nothing is made outside temporary folders, as for an explanation.
    """
    if location is not None:
        refuse_spark_checkpoint(location)
    if is_attached(spark):
        return Place(attached_log(spark))
    folder = _own_folder(spark, location, name, needs_location=needs_location)
    if folder is None or (not keeps and not os.path.exists(folder / FORMAT_FILE)):
        path = Path(tempfile.mkdtemp(prefix="penstock-"))
        # What is explained promises what the log that a start would make promises.
        config = LogConfig(durability="process") if folder is None else LogConfig()
        log = open_log(path, create=True, config=config)
        place = Place(Attached(spark, path, log), True, is_temporary=True, is_new=True)
    else:
        place = open_own(spark, folder)
    if keeps:
        prepare_session(spark, None)
    return place


def refuse_spark_checkpoint(location: str) -> None:
    """A folder in which Structured Streaming keeps a query's progress is never touched."""
    folder = Path(location)
    if not (os.path.isfile(folder / "metadata") or os.path.isdir(folder / "offsets")):
        return
    raise QueryMismatch(
        f"checkpointLocation {location!r} holds the checkpoint of a Structured Streaming query, "
        "which is not continued here and not touched: its state and offsets are Spark's. To move "
        "the query, stop it there once it has caught up, and start it here with another "
        "checkpointLocation and another place for its result; with "
        f'.option("startAfter", "{location}") it begins behind the files that were read there, '
        "without with all that is there (docs/migrating.md)",
        location=location,
    )


def _own_folder(
    spark: SparkSession, location: str | None, name: str | None, *, needs_location: bool
) -> Path | None:
    """The folder of a query's own log; None for a temporary one."""
    if location is None and (shared := spark.conf.get(_LOCATIONS_SETTING, None)):
        location = os.path.join(shared, name or str(uuid.uuid4()))
    if location is None:
        if not needs_location:
            return None
        raise CannotAnalyze(
            "the query has no place for its log: give it one with "
            '.option("checkpointLocation", "a folder"), set '
            f"{_LOCATIONS_SETTING}, or call penstock.attach(spark, 'path/to/log') for all queries "
            "of the session"
        )
    if is_elsewhere(location):
        raise InvalidOption(
            f"checkpointLocation {location!r} is not on this machine, where a query keeps its log: "
            "choose a local folder, or call penstock.attach(spark, 'path/to/log') first; then the "
            "location only names the query",
            option="checkpointLocation",
        )
    refuse_spark_checkpoint(location)
    return Path(local_path(location)).absolute()


def open_own(spark: SparkSession, folder: Path) -> Place:
    """The log of a query in a folder of its own, which is made if there is none."""
    # What may not be looked at is not there: making it says what is wrong.
    made = tuple(each for each in (folder, *folder.parents) if not os.path.exists(each))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_new = not any(folder.iterdir())
    except OSError as error:
        raise LogReadOnly(
            f"checkpointLocation {folder} cannot be used ({error}): the query keeps its log there, "
            "so it must be a folder that this user can write to",
            path=str(folder),
        ) from error
    log = open_log(folder, create=True)
    return Place(Attached(spark, folder, log), True, is_new=is_new, made=made)
