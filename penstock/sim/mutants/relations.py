"""Broken operators over several rows: ports, joins, tables, sessions, order, static versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.connectors.sqlite_sink import RowChanges, SqliteSink
from penstock.operators import groups, over, table, table_join
from penstock.operators.aggregate import Grouped
from penstock.operators.chain import Chain
from penstock.operators.contract import Batches, Prepared
from penstock.operators.deduplicate import Deduplicate
from penstock.operators.join import Join
from penstock.operators.ordering import sorted_places
from penstock.operators.over import Over
from penstock.operators.sessions import Sessions, _Known
from penstock.operators.shown import weighed
from penstock.operators.sort import Limit, Sort
from penstock.operators.table import Table
from penstock.operators.table_join import TableJoin
from penstock.runtime import static_sides, trimming
from penstock.runtime.assembly import Assembly
from penstock.runtime.event_time import EventTime, Word
from penstock.runtime.markers import Marker, PortMark
from penstock.runtime.static_sides import StaticSides
from penstock.sim.mutants.mutant import Mutant
from penstock.sim.scenario import Scenario
from penstock.sim.swaps import swapped
from penstock.state.columns import MergeRule
from penstock.state.contract import KeyRange
from penstock.state.row_store import RowStore

# --- ports ----------------------------------------------------------------------------------------


def _wrong_port() -> AbstractContextManager[None]:
    process = Join.process

    def elsewhere(self: Join, port: int, prepared: Prepared) -> Batches:
        return process(self, 1 - port, prepared)

    return swapped((Join, "process", elsewhere))


def _words_of_the_other_port() -> AbstractContextManager[None]:
    hear = EventTime.hear

    def mixed_up(self: EventTime, words: Iterable[Word]) -> None:
        others = len(self._ports) - 1
        hear(self, [word._replace(port=others - word.port) for word in words])

    return swapped((EventTime, "hear", mixed_up))


def _forget_second_port() -> AbstractContextManager[None]:
    time = Assembly._time

    def forgetful(self: Assembly, stage: Any, marker: Marker, chain: Chain) -> EventTime:
        first, *others = marker.ports or (PortMark(),)
        forgotten = replace(marker, ports=(first, *(PortMark() for _ in others)))
        return time(self, stage, forgotten if marker.ports else marker, chain)

    return swapped((Assembly, "_time", forgetful))


def _one_port_ends_all() -> AbstractContextManager[None]:
    ended = property(lambda self: any(port.ended for port in self._ports))
    return swapped((EventTime, "ended", ended))


def _say_nothing_behind() -> AbstractContextManager[None]:
    return swapped((Chain, "behind_us", property(lambda self: 0)))


# --- rows that are kept ---------------------------------------------------------------------------


def _keep_rows_unsaid() -> AbstractContextManager[None]:
    insert = RowStore.insert

    def silent(self: RowStore, *given: Any) -> None:
        insert(self, *given)
        self._new_from = self._used

    return swapped((RowStore, "insert", silent))


def _delete_unsaid() -> AbstractContextManager[None]:
    delete = RowStore.delete

    def silent(self: RowStore, rows: Any) -> None:
        delete(self, rows)
        self._deleted.clear()

    return swapped((RowStore, "delete", silent))


def _restore_one_twice() -> AbstractContextManager[None]:
    restore = RowStore.restore

    def twice(
        self: RowStore, batches: Iterable[pa.RecordBatch], only: KeyRange | None = None
    ) -> None:
        restore(self, batches, only)
        first = self.scan().slice(0, 1)
        if first.num_rows:
            self.insert(first, self.kind.keys_of(first), self._until[:1].copy())
            self.discard_changes()

    return swapped((RowStore, "restore", twice))


def _restore_unmarked() -> AbstractContextManager[None]:
    restore = RowStore.restore

    def unmarked(
        self: RowStore, batches: Iterable[pa.RecordBatch], only: KeyRange | None = None
    ) -> None:
        restore(self, batches, only)
        self._marked[:] = False

    return swapped((RowStore, "restore", unmarked))


def _evict_early() -> AbstractContextManager[None]:
    evict = RowStore.evict
    return swapped((RowStore, "evict", lambda self, upto: evict(self, min(upto, 1 << 61) + 10**6)))


def _evict_never() -> AbstractContextManager[None]:
    return swapped((RowStore, "evict", lambda self, upto: 0))


def _evict_before_emitting() -> AbstractContextManager[None]:
    on_watermark = Join.on_watermark

    def hasty(self: Join, watermark_us: int, of_ports_us: Sequence[int]) -> Batches:
        for port, store in enumerate(self._stores):
            if self._spec.side(port).limits:
                store.evict(watermark_us)
        return on_watermark(self, watermark_us, of_ports_us)

    return swapped((Join, "on_watermark", hasty))


# --- rows that come and go ------------------------------------------------------------------------


def _take_nothing_back() -> AbstractContextManager[None]:
    def only_come(rows: pa.RecordBatch, weight: int) -> pa.RecordBatch:
        return weighed(rows if weight > 0 else rows.slice(0, 0), weight)

    return swapped((table, "weighed", only_come))


def _turn_weights() -> AbstractContextManager[None]:
    return swapped((table_join, "weighed", lambda rows, weight: weighed(rows, -weight)))


def _leave_rows_alone() -> AbstractContextManager[None]:
    turned = TableJoin._turned

    def none(self: TableJoin, *given: Any) -> pa.RecordBatch:
        return turned(self, *given).slice(0, 0)

    return swapped((TableJoin, "_turned", none))


def _sort_what_is_gone() -> AbstractContextManager[None]:
    process = Sort.process

    def only_come(self: Sort, port: int, prepared: Prepared) -> Batches:
        rows, weights = prepared.rows
        come = pa.array(weights > 0)
        return process(self, port, replace(prepared, rows=(rows.filter(come), weights[come])))

    return swapped((Sort, "process", only_come))


# --- tables ---------------------------------------------------------------------------------------


def _first_of_a_batch() -> AbstractContextManager[None]:
    newest = Table._newest

    def oldest(self: Table, batch: pa.RecordBatch) -> Any:
        places = np.arange(batch.num_rows)[::-1]
        return np.sort(places[newest(self, batch.take(pa.array(places)))])

    return swapped((Table, "_newest", oldest))


def _keep_what_is_removed() -> AbstractContextManager[None]:
    none = lambda self, rows: np.zeros(rows.num_rows, np.bool_)  # noqa: E731
    return swapped((Table, "_removed", none))


def _old_rows_come_back() -> AbstractContextManager[None]:
    """What changes remove is there again after a recovery."""
    apply_changes = RowStore.apply_changes

    def puts_only(self: RowStore, changes: pa.RecordBatch, only: KeyRange | None = None) -> None:
        kinds = changes.column("__change").to_numpy()
        apply_changes(self, changes.filter(pa.array(kinds != 1)), only)

    return swapped((RowStore, "apply_changes", puts_only))


# --- sessions -------------------------------------------------------------------------------------


def _touch_the_newest_only() -> AbstractContextManager[None]:
    add = _Known.add

    def first_round(self: _Known, *given: Any) -> None:
        if not self.numbers:
            add(self, *given)

    return swapped((_Known, "add", first_round))


def _first_end_stays() -> AbstractContextManager[None]:
    begin, end, before = groups.SESSION_COLUMNS
    return swapped((groups, "SESSION_COLUMNS", (begin, replace(end, rule=MergeRule.FIRST), before)))


def _ends_not_restored() -> AbstractContextManager[None]:
    """After a restart rows of a session are looked for from its begin on only."""
    restore_progress = Grouped.restore_progress

    def forgetful(self: Grouped, progress: Any) -> None:
        restore_progress(self, progress)
        rows = self.state.scan()
        if isinstance(self, Sessions) and rows.num_rows:
            count = len(self.spec.keys)
            values = rows.columns[count + 1 :]
            values[-2] = values[-3]
            panes = rows.column("__pane").to_numpy()
            self.state.put(rows.columns[:count], panes, values)
            self.state.discard_changes()

    return swapped((Grouped, "restore_progress", forgetful))


# --- order, and the first rows --------------------------------------------------------------------


def _turn_ties_after_a_restart() -> AbstractContextManager[None]:
    restore_progress, on_watermark = Over.restore_progress, Over.on_watermark
    places_of = sorted_places
    restored: set[int] = set()
    turned: list[bool] = [False]

    def restore(self: Over, progress: Any) -> None:
        restore_progress(self, progress)
        if progress is not None:
            restored.add(id(self))

    def emit(self: Over, watermark_us: int, of_ports_us: Sequence[int]) -> Batches:
        turned[0] = id(self) in restored
        try:
            return on_watermark(self, watermark_us, of_ports_us)
        finally:
            turned[0] = False

    def places(levels: Sequence[Any], count: int) -> Any:
        if not turned[0]:
            return places_of(levels, count)
        return count - 1 - places_of([level[::-1] for level in levels], count)

    return swapped(
        (Over, "restore_progress", restore),
        (Over, "on_watermark", emit),
        (over, "sorted_places", places),
    )


def _count_rows_anew() -> AbstractContextManager[None]:
    restore_progress = Limit.restore_progress
    return swapped((Limit, "restore_progress", lambda self, _: restore_progress(self, None)))


def _forget_no_key() -> AbstractContextManager[None]:
    return swapped(
        (Deduplicate, "_forget", lambda self, keys, count: None),
        (Deduplicate, "_last_over", lambda self, watermark_us: 0),
    )


# --- static versions ------------------------------------------------------------------------------


def _begin_with_the_newest() -> AbstractContextManager[None]:
    begin = StaticSides.begin

    def newest(self: StaticSides, named: Mapping[str, int]) -> None:
        begin(self, {})

    return swapped((StaticSides, "begin", newest))


def _take_over_at_once() -> AbstractContextManager[None]:
    look = StaticSides.look

    def hasty(self: StaticSides, is_idle: bool) -> bool:
        found = look(self, is_idle)
        self.take_over()
        return found

    return swapped((StaticSides, "look", hasty))


def _trim_by_the_furthest() -> AbstractContextManager[None]:
    trim_versions = static_sides.trim_versions

    def too_much(log: Any, query: str, side: str, readers: Sequence[str]) -> None:
        furthest = max(readers, key=lambda tag: static_sides._named(log.last(tag), side))
        trim_versions(log, query, side, [furthest])

    return swapped((trimming, "trim_versions", too_much))


def _name_the_version_before() -> AbstractContextManager[None]:
    """The marker does not name what takes effect with it."""

    def old_ones(self: StaticSides) -> dict[str, int]:
        return {side: rows.version for side, rows in self._rows.items()}

    return swapped((StaticSides, "versions", old_ones))


# --- sinks ----------------------------------------------------------------------------------------


def _note_epoch_first() -> AbstractContextManager[None]:
    publish = SqliteSink.publish

    def hasty(self: SqliteSink, epoch: int, staged: RowChanges) -> None:
        if staged.num_rows and epoch > (self.last_epoch() or 0):
            publish(self, epoch, replace(staged, gone=[], come=[]))
            with self._transaction("write"):
                self._apply(staged)

    return swapped((SqliteSink, "publish", hasty))


# --- where they show ------------------------------------------------------------------------------


def _in(*names: str) -> Callable[[Scenario], bool]:
    return lambda scenario: scenario.shape.name.startswith(names)


_NEAR = _in("near_", "within", "windows_of_joins")
_TABLES = _in("tables_", "table_of", "met_table", "grouped_table")
_SESSIONS = _in("sessions", "late_sessions")
_STATIC = _in("static_")


RELATIONS: tuple[Mutant, ...] = (
    Mutant("wrong_port", "rows of one port are taken for those of the other", 21, _wrong_port,
           _NEAR),
    Mutant("words_of_the_other_port", "what a producer says is heard on another port", 21,
           _words_of_the_other_port, _NEAR),
    Mutant("second_port_forgotten", "a restart forgets what the second port has heard", 276,
           _forget_second_port, _NEAR),
    Mutant("one_port_ends_all", "the input has ended when one port has", 85, _one_port_ends_all,
           _NEAR),
    Mutant("behind_not_said", "a join does not say how far behind event time its rows are", 1240,
           _say_nothing_behind, _in("joins_of_joins", "windows_of_joins")),
    Mutant("kept_rows_not_said", "a row store takes in rows and says so in no change", 21,
           _keep_rows_unsaid, _NEAR),
    Mutant("deletes_not_said", "a row store deletes rows and says so in no change", 75,
           _delete_unsaid, _TABLES),
    Mutant("one_row_twice", "a row store restores a row twice, and matches count twice", 631,
           _restore_one_twice, _NEAR),
    Mutant("marks_not_restored", "after a restart rows that matched are emitted alone, too", 2816,
           _restore_unmarked, _NEAR),
    Mutant("evicted_too_early", "rows go before event time has passed all that they match", 21,
           _evict_early, _NEAR),
    Mutant("never_evicted", "rows that can match nothing more stay", 21, _evict_never, _NEAR),
    Mutant("evicted_before_emitted", "rows go before they are emitted alone", 21,
           _evict_before_emitting, _NEAR),
    Mutant("nothing_taken_back", "a table does not take back the row that it replaces", 75,
           _take_nothing_back, _TABLES),
    Mutant("weights_turned", "what comes goes, and what goes comes", 75, _turn_weights,
           _in("tables_", "table_of")),
    Mutant("alone_and_matched", "a row that matches at last is still there alone", 75,
           _leave_rows_alone, _in("tables_", "table_of")),
    Mutant("gone_and_sorted", "a sorted result keeps rows that are gone", 46, _sort_what_is_gone,
           _in("ordered", "first_ones")),
    Mutant("first_of_a_batch", "of a batch the first row of a key replaces the table's", 75,
           _first_of_a_batch, _TABLES),
    Mutant("removed_rows_stay", "a row that removes another one is kept itself", 467,
           _keep_what_is_removed, _TABLES),
    Mutant("old_rows_come_back", "recovery puts rows and deletes none", 75, _old_rows_come_back,
           _TABLES),
    Mutant("newest_session_only", "a row that joins several sessions joins the newest only", 74,
           _touch_the_newest_only, _SESSIONS),
    Mutant("first_end_stays", "a session ends when its first row would have ended it", 74,
           _first_end_stays, _SESSIONS),
    Mutant("gaps_not_restored", "after a restart sessions end when they begin", 74,
           _ends_not_restored, _SESSIONS),
    Mutant("ties_turned", "after a restart equal rows come in another order", 868,
           _turn_ties_after_a_restart, _in("ties")),
    Mutant("limit_counts_anew", "after a restart as many rows pass as before", 244,
           _count_rows_anew, _in("first_rows")),
    Mutant("keys_never_over", "keys are not forgotten though their time is over", 259,
           _forget_no_key, _in("within_watermark")),
    Mutant("newest_version", "a replay meets the newest static rows, not the marker's", 212,
           _begin_with_the_newest, _STATIC),
    Mutant("version_within_an_epoch", "a refresh takes effect in the middle of an epoch", 3745,
           _take_over_at_once, _STATIC),
    Mutant("version_trimmed", "static rows are trimmed that some vertex still goes by", 36,
           _trim_by_the_furthest, _STATIC),
    Mutant("version_not_named", "a marker names the static rows of the epoch before", 36,
           _name_the_version_before, _STATIC),
    Mutant("epoch_before_its_rows", "a table notes an epoch before it has its rows", 4953,
           _note_epoch_first, _in("upserts")),
)  # fmt: skip
