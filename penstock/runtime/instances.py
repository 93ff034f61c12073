"""Instance numbers are handed out, not taken: a later one is greater, whoever hands it out.

Each run of a query first takes a run number, by compare-and-set in the log's metadata, and then
hands out its own numbers from it:

    instance = run << 20 | counter          the counter rises with every number of the run

Whoever recovers a vertex registers the very number it was given, and is refused if one that is not
smaller is registered already (`penstock.log.contract.register`). So the order in which numbers
were handed out decides who owns a vertex, not the order in which recoveries come to register: one
that was held up, or that belongs to a driver long gone, never pushes its successor out.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.log.contract import Log, instance_key
from penstock.names import check_name
from penstock.runtime.backlog import newest_owner

COUNTER_BITS = 20
COUNTER_MAX = (1 << COUNTER_BITS) - 1


class InstanceNumbers:
    """The numbers of one run of a query. For one thread."""

    def __init__(self, log: Log, query: str, vertices: Collection[str]) -> None:
        self._log = log
        self._query = query
        self._vertices = tuple(vertices)
        self._take_run()

    @property
    def run(self) -> int:
        """The number of the run."""
        return self._run

    def next(self) -> int:
        """A number greater than every one that was handed out before."""
        if self._counter == COUNTER_MAX:
            self._take_run()
        self._counter += 1
        return numbered(self._run, self._counter)

    def is_newest_run(self) -> bool:
        """Whether no other run of the query has begun since."""
        newest = self._log.get(run_key(self._query))
        return newest is None or int(newest.value) <= self._run

    def _take_run(self) -> None:
        """Begin a run that is newer than all others.

        The registered numbers and the sink's owner are looked at too: a log that was repaired may
        have lost the key.
        A run number that was taken for nobody, by an outcome that stayed unknown, harms nobody.
        """
        key = run_key(self._query)
        found = (self._log.get(instance_key(vertex)) for vertex in self._vertices)
        registered = max((int(each.value) for each in found if each is not None), default=0)
        least = max(run_of(registered), newest_owner(self._log, self._query))
        while True:
            newest = self._log.get(key)
            version, before = (0, 0) if newest is None else (newest.version, int(newest.value))
            run = max(before, least) + 1
            if self._log.compare_and_set(key, version, b"%d" % run):
                self._run, self._counter = run, 0
                return


def run_of(instance: int) -> int:
    """The run that handed a number out."""
    return instance >> COUNTER_BITS


def numbered(run: int, counter: int) -> int:
    """The instance of this number in a run."""
    return run << COUNTER_BITS | counter


def next_run_instance(log: Log, producer: str) -> int:
    """The first number of a run that a lone producer hands out to itself.

    Once it is registered, all further numbers of the run are this producer's and nobody else's.
    """
    newest = log.get(instance_key(producer))
    return numbered(1 if newest is None else run_of(int(newest.value)) + 1, 0)


def next_instance(log: Log, producer: str) -> int:
    """A number that a lone producer hands out to itself; of two that do so at once one is refused.

    The one that registers first wins, and a writer held up on the way never takes it from a later.
    """
    newest = log.get(instance_key(producer))
    return 1 if newest is None else int(newest.value) + 1


def run_key(query: str) -> str:
    """Where the number of a query's newest run lives in the metadata, as decimal digits."""
    return f"run/{check_name(query, 'query')}"
