"""What a source has next, read by a thread while what was read before is processed."""

from __future__ import annotations

import threading
import weakref
from queue import SimpleQueue

from penstock.connectors.contract import Offset, Source, SourceBatch

JOIN_S = 5.0  # a read is bounded by its rows; a disk that hangs must not hold the process up

_Ask = tuple[Offset, int]
_Answer = SimpleQueue[SourceBatch | BaseException]


class ReadAhead:
    """Asks a source for one answer ahead, once it has said that there is more.

    A source is a function of the offset, so it does not matter when it is read; an error is raised
    where its rows would have come. One answer is held at most, besides the one that is processed:
    what a source may hand out at once bounds the memory. Only one thread uses the source at a time.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._asked: SimpleQueue[_Ask | None] = SimpleQueue()
        self._answers: _Answer = SimpleQueue()
        self._offset: Offset = None  # of what is read ahead
        self._is_under_way = False
        self._ready: SourceBatch | None = None
        self._end: weakref.finalize[..., ReadAhead] | None = None

    def read(self, offset: Offset, rows_max: int, may_be_more: bool = False) -> SourceBatch | None:
        """Return what the source has at an offset; None if that is more than may be taken now.

        Who may never have more than was asked for ahead never gets it.
        """
        answer: SourceBatch | BaseException | None = self._ready
        if self._is_under_way:
            answer, self._is_under_way = self._answers.get(), False
        self._ready = None
        if answer is None or self._offset != offset:
            return self._source.read(offset, rows_max)
        if isinstance(answer, BaseException):
            raise answer
        if answer.rows > rows_max and not may_be_more:
            self._ready = answer
            return None
        return answer

    def begin(self, offset: Offset, rows_max: int) -> None:
        """Have what follows read; `read` asks for it next, or it is forgotten."""
        if self._end is None:
            thread = threading.Thread(
                target=_read_on,
                args=(self._source, self._asked, self._answers),
                name="penstock-read-ahead",
                daemon=True,
            )
            thread.start()
            # Also when this is forgotten, and before the interpreter ends: a thread that comes out
            # of Arrow after that takes the process down with it.
            self._end = weakref.finalize(self, _end, self._asked, thread)
        self._offset, self._is_under_way = offset, True
        self._asked.put((offset, rows_max))

    def close(self) -> None:
        """Forget what was read ahead, end the thread, and close the source."""
        if self._end is not None:
            self._end()
        self._is_under_way, self._ready = False, None
        self._source.close()


def _read_on(source: Source, asked: SimpleQueue[_Ask | None], answers: _Answer) -> None:
    while (ask := asked.get()) is not None:
        offset, rows_max = ask
        try:
            answers.put(source.read(offset, rows_max))
        except BaseException as error:
            answers.put(error)


def _end(asked: SimpleQueue[_Ask | None], thread: threading.Thread) -> None:
    asked.put(None)
    if thread is not threading.current_thread():  # where garbage may be collected, too
        thread.join(JOIN_S)
