"""Going on where a query of Structured Streaming has stopped: `startAfter`, for sources of files.

The files that it has read are listed in the log as if they had been found first, and the source
begins behind them. That is done once for each source, before it is first read.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from penstock.catalyst.fed_sources import FedSource
from penstock.connectors.folder_paths import split_pattern
from penstock.connectors.folder_registry import KnownFiles
from penstock.connectors.folder_shares import FoundFile
from penstock.connectors.spark_checkpoint import files_read
from penstock.errors import QueryMismatch
from penstock.log.contract import Log
from penstock.names import own_name
from penstock.runtime.sources import files_key, first_key
from penstock.stages.program import Program, Stage

logger = logging.getLogger(__name__)


def start_after(
    log: Log, program: Program, fed: tuple[FedSource, ...], checkpoint: str | None
) -> None:
    """Have the sources of a program begin behind what an old checkpoint says was read.

    Nothing happens where they have begun so already.
    """
    if checkpoint is None:
        return
    folders = [stage for stage in program.stages if _is_folder(stage)]
    new = [stage for stage in folders if log.get(first_key(_name(program, stage))) is None]
    if folders and not new:
        return
    others = [stage.name for stage in program.stages if stage.source and not _is_folder(stage)]
    others += [stream.name for stream in program.streams if stream.role == "input"]
    if others or not folders:
        texts = {source.stream: source.text for source in fed}
        what = ", ".join(texts.get(name, name) for name in others) or "nothing of the kind"
        raise _refused(checkpoint, f"only folders of files can go on from it, and it reads {what}")
    read = files_read(Path(checkpoint))
    taken: set[int] = set()
    plans: list[tuple[Stage, KnownFiles, list[FoundFile]]] = []
    for stage in new:
        number = _matching(checkpoint, _folder(stage), read)
        taken.add(number)
        names = sorted(os.path.relpath(path, _folder(stage)) for path in read[number])
        plans.append((stage, *_listed(log, program, stage, names, checkpoint)))
    if len(taken) < len(read) and len(new) == len(folders):
        raise _refused(checkpoint, "its query has read folders that this one does not read")
    for stage, known, files in plans:
        known.add(files)
        log.put(first_key(_name(program, stage)), b"%d" % len(known))
        logger.warning(
            "query %s begins behind %d files of %s that Structured Streaming has read",
            program.query,
            len(files),
            _folder(stage),
        )


def _listed(
    log: Log, program: Program, stage: Stage, names: list[str], checkpoint: str
) -> tuple[KnownFiles, list[FoundFile]]:
    """The list of a source's files, and what it is to begin with; refused if it has begun."""
    options = _options(stage)
    known = KnownFiles(log, files_key(_name(program, stage)), bool(options.get("name_only")))
    known.refresh()
    files = [FoundFile(name) for name in names]
    if not {share.file for share in known.shares} <= {*files}:
        raise _refused(checkpoint, "it has read its files from the beginning already")
    return known, files


def _matching(checkpoint: str, folder: str, read: list[frozenset[str]]) -> int:
    """Which of the old query's sources a folder is: the one whose files are all in it."""
    found = [
        number
        for number, paths in enumerate(read)
        if all(path.startswith(f"{folder.rstrip('/')}/") for path in paths)
    ]
    if len(found) != 1:
        what = "several sources" if found else "no source"
        raise _refused(checkpoint, f"the files of {what} of its query are all in {folder}")
    return found[0]


def _is_folder(stage: Stage) -> bool:
    return stage.source is not None and stage.source.connector == "folder"


def _options(stage: Stage) -> dict[str, Any]:
    assert stage.source is not None
    return stage.source.options


def _folder(stage: Stage) -> str:
    path, is_glob = str(_options(stage)["path"]), bool(_options(stage).get("glob"))
    return split_pattern(path)[0] if is_glob else path


def _name(program: Program, stage: Stage) -> str:
    return own_name(program.query, stage.name)


def _refused(checkpoint: str, why: str) -> QueryMismatch:
    return QueryMismatch(
        f"the query cannot start after the checkpoint {checkpoint}: {why}. Leave startAfter out to "
        "begin with all that is there",
        location=checkpoint,
    )
