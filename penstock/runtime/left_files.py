"""Files that slots of earlier runs have written for a sink, and that no record will ever name.

They are found when a sink's feeding begins, and removed once that is known of each: its instance is
fenced, so it can append nothing more, and what it has appended names other files. The fence is
looked at first, and then the log. A file that was published by somebody who died before he could
clear its first name goes too, once its record is passed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.connectors.contract import Sink
from penstock.connectors.hidden_files import FileOfSlot, named_file
from penstock.errors import SinkError
from penstock.log.contract import Log, instance_key
from penstock.log.record import Position, RecordKind
from penstock.runtime.instances import run_of

READ_RECORDS = 1_024

logger = logging.getLogger(__name__)


class LeftFiles:
    """Of the runs before this one."""

    def __init__(self, log: Log, sink: Sink, tags: Sequence[str], run: int) -> None:
        self._log = log
        self._sink = sink
        self._tags = tags
        found = sink.files_of_slots()
        self._left = [each for each in found if run_of(each.instance) < run]

    def clear(self, resume: Position) -> None:
        """Remove those of which it is known by now; `resume` is where the sink reads on from."""
        if not self._left:
            return
        there = {each.name for each in self._sink.files_of_slots()}
        self._left = [each for each in self._left if each.name in there]
        fenced = [each for each in self._left if self._is_fenced(each)]
        if not fenced:
            return
        named = self._named(resume)
        for each in fenced:
            if each.name not in named:
                logger.info("%s was written for nobody: it goes", each.name)
                try:
                    self._sink.clear_file(each.name)
                except SinkError as error:
                    logger.warning("%s", error.message)
        self._left = [each for each in self._left if each not in fenced or each.name in named]

    def _is_fenced(self, file: FileOfSlot) -> bool:
        key = instance_key(file.vertex)
        newest = self._log.get(key)
        if newest is None or int(newest.value) <= file.instance:
            return False
        # Sets nothing, and shows all that was appended before: who appended it may have died before
        # he could.
        self._log.compare_and_set(key, 0, newest.value)
        return True

    def _named(self, resume: Position) -> set[str]:
        """The files that records behind this position name, whether or not a marker covers them."""
        names: set[str] = set()
        at, tail = resume, self._log.tail()
        while at < tail:
            records = self._log.read(self._tags, at, READ_RECORDS)
            for record in records:
                if record.kind is RecordKind.DATA and (file := named_file(record.body)):
                    names.add(file.name)
            if len(records) < READ_RECORDS:
                break
            at = records[-1].position
        return names
