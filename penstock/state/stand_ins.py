"""The loops over a state's arrays written with NumPy and Arrow: what runs until they are compiled.

They leave the same rows, values, flags and lists as the compiled loops, in tables that these can go
on with. Only the numbers of new rows, and the order of rows in the list of a pane, may differ.
`merge_into` has none, nor have the loops of overlapping windows: these wait for the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.arrays import text_column, texts_of
from penstock.loops import Bytes, Flags, Floats, Hashes, RowNumbers, Rows, Words
from penstock.state import tables
from penstock.state.tables import (
    COPY_END,
    COPY_NEXT,
    DIRTY,
    DIRTY_COUNT,
    DIRTY_STALE,
    FREE_HEAD,
    HASH_MASK,
    KEYS,
    LINK,
    LIVE,
    META,
    NEXT,
    NULLS,
    PANE,
    PANE_COUNT,
    PANE_HEAD,
    PANE_ID,
    PANE_MIN,
    PANE_USED,
    PANES_USED,
    ROWS_LIVE,
    ROWS_USED,
    SAVED,
    SAVED_COUNT,
    STRING_BYTES,
    STRING_NEXT,
    STRINGS,
    VALID,
)

_PIECE = 1_024  # inputs at the least
_Unsigned = NDArray[np.uint64]


# --- hashes ---------------------------------------------------------------------------------------


def _mix(state: _Unsigned, word: NDArray[Any]) -> _Unsigned:
    state = (state ^ word.view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    return state ^ (state >> np.uint64(32))


def _finish(state: _Unsigned) -> Words:
    state = (state ^ (state >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return (state >> np.uint64(33)).astype(np.int64)


def _key_hashes(words: Rows, nulls: Words, panes: Words) -> Words:
    state = _mix(np.full(panes.size, 0x2545F4914F6CDD1D, np.uint64), np.ascontiguousarray(panes))
    state = np.where(nulls != 0, _mix(state, np.ascontiguousarray(nulls)), state)
    for column in words.T:
        state = _mix(state, np.ascontiguousarray(column))
    return _finish(state)


def eights(starts: Words, sizes: Words, data: Bytes) -> Iterator[tuple[Words, _Unsigned]]:
    """Strings by eight bytes: who has some more, and these as words, the last padded with zeros."""
    for at in range(0, int(sizes.max(initial=0)), 8):
        has = np.flatnonzero(sizes > at)
        word = np.zeros(has.size, np.uint64)
        for byte in range(8):
            inside = sizes[has] > at + byte
            value = data[starts[has[inside]] + at + byte].astype(np.uint64)
            word[inside] |= value << np.uint64(8 * byte)
        yield has, word


def _string_hashes(starts: Words, ends: Words, data: Bytes) -> Words:
    state = (ends - starts).astype(np.uint64)
    for has, word in eights(starts, ends - starts, data):
        state[has] = _mix(state[has], word)
    return _finish(state)


# --- tables of slots and of panes -----------------------------------------------------------------


def _enter(slots: Words, hashes: Words, entries: Words) -> Words:
    """Put entries, all different, where their hashes want them, or behind; return their slots."""
    at = hashes & (slots.size - 1)
    waiting = np.arange(entries.size)
    while waiting.size:
        free = waiting[slots[at[waiting]] == 0]
        slots[at[free]] = entries[free]  # of those that want the same slot one gets it
        waiting = waiting[slots[at[waiting]] != entries[waiting]]
        at[waiting] = (at[waiting] + 1) & (slots.size - 1)
    return at


def _enter_rows(store: Rows, slots: Words, rows: Words, keys: int) -> None:
    lines = store[rows, : KEYS + keys]
    hashes = _key_hashes(lines[:, KEYS:], lines[:, NULLS], lines[:, PANE])
    _enter(slots, hashes, hashes << 32 | (rows + 1))


def _probe(
    size: int, hashes: Words, look: Callable[[Words, Words], tuple[Flags, Flags]]
) -> Iterator[tuple[Words, Words]]:
    """Follow each hash from slot to slot until `look` says that it is there, or that none is.

    `look` gets inputs and slots, and says which are found, and which slots are empty. The found
    ones come as pairs of inputs and slots.
    """
    at = hashes & (size - 1)
    waiting = np.arange(hashes.size)
    while waiting.size:
        found, empty = look(waiting, at[waiting])
        yield waiting[found], at[waiting[found]]
        waiting = waiting[~(found | empty)]
        at[waiting] = (at[waiting] + 1) & (size - 1)


def _find(store: Rows, slots: Words, words: Rows, nulls: Words, panes: Words) -> Words:
    hashes = _key_hashes(words, nulls, panes)

    def look(inputs: Words, at: Words) -> tuple[Flags, Flags]:
        entries = slots[at]
        found = (entries != 0) & (entries >> 32 == hashes[inputs])
        rows, those = (entries[found] & HASH_MASK) - 1, inputs[found]
        same = (store[rows, PANE] == panes[those]) & (store[rows, NULLS] == nulls[those])
        same &= (store[rows, KEYS : KEYS + words.shape[1]] == words[those]).all(axis=1)
        found[found] = same
        return found, entries == 0

    rows = np.full(panes.size, -1, np.int64)
    for inputs, at in _probe(slots.size, hashes, look):
        rows[inputs] = (slots[at] & HASH_MASK) - 1
    return rows


def _pane_hashes(panes: Words) -> Words:
    return _finish(_mix(np.full(panes.size, 7, np.uint64), np.ascontiguousarray(panes)))


def _pane_entries(table: Rows, panes: Words) -> Words:
    """The entry of each pane, -1 where there is none."""

    def look(inputs: Words, at: Words) -> tuple[Flags, Flags]:
        used = table[at, PANE_USED] != 0
        return used & (table[at, PANE_ID] == panes[inputs]), ~used

    entries = np.full(panes.size, -1, np.int64)
    for inputs, at in _probe(table.shape[0], _pane_hashes(panes), look):
        entries[inputs] = at
    return entries


def _enter_panes(table: Rows, panes: Words) -> Words:
    """Make entries, with no rows in them, for panes that have none."""
    used = table[:, PANE_USED].copy()
    at = _enter(used, _pane_hashes(panes), np.arange(2, panes.size + 2))
    table[at] = 0
    table[at, PANE_USED] = 1
    table[at, PANE_ID] = panes
    return at


def _link(store: Rows, rows: Words, panes: Rows) -> None:
    """Put rows at the heads of the lists of their panes."""
    if not rows.size:
        return
    ids, places = np.unique(store[rows, PANE], return_inverse=True)
    entries = _pane_entries(panes, ids)
    order = np.argsort(places, kind="stable")
    rows, places = rows[order], places[order]
    is_first = np.r_[True, places[1:] != places[:-1]]
    is_last = np.r_[is_first[1:], True]
    heads = panes[entries, PANE_HEAD]
    after, before = np.r_[rows[1:], 0] + 1, np.r_[0, rows[:-1]] + 1
    after[is_last], before[is_first] = heads, 0
    store[rows, LINK] = after | before << 32
    has_more = heads != 0
    store[heads[has_more] - 1, LINK] |= (rows[is_last][has_more] + 1) << 32
    panes[entries, PANE_HEAD] = rows[is_first] + 1
    panes[entries, PANE_COUNT] += np.bincount(places, minlength=ids.size)


def _live(store: Rows) -> Words:
    return np.flatnonzero(store[:, META] & LIVE)


# --- changing rows --------------------------------------------------------------------------------


def _save(store: Rows, rows: Words, counters: Words, saved: Rows) -> None:
    rows = rows[(rows >= counters[COPY_NEXT]) & (rows < counters[COPY_END])]
    rows = rows[store[rows, META] & SAVED == 0]
    first = counters[SAVED_COUNT]
    saved[first : first + rows.size] = store[rows]
    counters[SAVED_COUNT] += rows.size
    store[rows, META] |= SAVED


def _touch(
    store: Rows, rows: Words, counters: Words, dirty: RowNumbers, saved: Rows, captured: bool
) -> None:
    rows = _each_once(rows)
    _save(store, rows, counters, saved)
    if captured:
        rows = rows[store[rows, META] & DIRTY == 0]
        first = counters[DIRTY_COUNT]
        dirty[first : first + rows.size] = rows
        counters[DIRTY_COUNT] += rows.size
        store[rows, META] |= DIRTY


def _each_once(numbers: NDArray[Any]) -> NDArray[Any]:
    return numbers[np.sort(np.unique(numbers, return_index=True)[1])]


def merge_rows(
    store: Rows,
    slots: Words,
    panes: Rows,
    counters: Words,
    dirty: RowNumbers,
    saved: Rows,
    words: Rows,
    nulls: Words,
    pane_of: Words,
    hashes: Hashes,
    values: Rows,
    bits: Words,
    rules: Words,
    lows: Words,
    highs: Words,
    peaks: Floats,
    initial: int,
    arena: Bytes,
    starts: Words,
    mode: int,
    captured: bool,
    rows_out: RowNumbers,
    ahead: Words,
) -> int:
    while (begin := int(counters[NEXT])) < pane_of.size:
        room = min(slots.size * 6 // 10, store.shape[0]) - int(counters[ROWS_LIVE])
        piece_end = _piece_end(begin, room, pane_of.size)
        end = _panes_end(panes, counters, pane_of[:piece_end])
        some = slice(begin, end)
        rows = _find(store, slots, words[some], nulls[some], pane_of[some])
        absent = np.flatnonzero(rows < 0)
        first, places = _distinct(words[some][absent], nulls[some][absent], pane_of[some][absent])
        is_new = np.zeros(rows.size, np.bool_)
        is_new[absent[first]] = True
        first = begin + absent[first]
        reason = _room(store, slots, panes, counters, pane_of[first])
        if reason != tables.DONE:
            return reason
        made = _new_rows(store, counters, first.size)
        store[made] = 0
        store[made, META] = hashes[first].astype(np.int64) | LIVE
        # Born after the snapshot began: not for it to copy.
        young = made[(made >= counters[COPY_NEXT]) & (made < counters[COPY_END])]
        store[young, META] |= SAVED
        store[made, NULLS], store[made, PANE] = nulls[first], pane_of[first]
        store[made, VALID] = initial
        store[made, KEYS : KEYS + words.shape[1]] = words[first]
        _link(store, made, panes)
        _enter_rows(store, slots, made, words.shape[1])
        rows[absent] = made[places]
        touched = rows[is_new] if mode == tables.RESOLVE else rows
        _touch(store, touched, counters, dirty, saved, captured)
        if mode == tables.RESOLVE:
            rows_out[some] = np.where(is_new, -1 - rows, rows)
        elif mode == tables.MERGE:
            for turn in _turns(rows, rules):
                _merge(
                    store, rows[turn], is_new[turn], values[some][turn], bits[some][turn], rules,
                    peaks, (arena, starts),
                )  # fmt: skip
        else:
            store[rows, META] = store[rows, META] & ~HASH_MASK | hashes[some]
            _put(store, rows, values[some], bits[some], rules, peaks)
        counters[NEXT] = end
        if end < piece_end:
            return tables.PANES_FULL
    return tables.DONE


def _piece_end(begin: int, room: int, inputs: int) -> int:
    """How far to look at once: not at all inputs again each time that a table has grown."""
    return min(inputs, begin + max(_PIECE, 4 * room))


def _panes_end(panes: Rows, counters: Words, pane_of: Words) -> int:
    """The first input, from the next one on, whose pane has no room in the table any more."""
    waiting = pane_of[counters[NEXT] :]
    firsts, _ = _first_seen(pa.array(waiting))
    ids = waiting[firsts]
    missing = np.sort(firsts[_pane_entries(panes, ids) < 0])
    room = int(panes.shape[0] * 6 // 10 - counters[PANES_USED])
    return int(counters[NEXT] + missing[room]) if missing.size > room else pane_of.size


def _distinct(words: Rows, nulls: Words, panes: Words) -> tuple[Words, Words]:
    """The first input of each key, in the order of the inputs, and which of these each one has."""
    keys = np.ascontiguousarray(np.column_stack([words, nulls, panes]))
    whole = [None, pa.py_buffer(keys)]
    return _first_seen(pa.Array.from_buffers(pa.binary(keys.shape[1] * 8), panes.size, whole))


def _first_seen(values: pa.Array) -> tuple[Words, Words]:
    """Where each value is seen first, in the order of the inputs, and which of these each is."""
    places = values.dictionary_encode().indices.to_numpy().astype(np.int64)
    firsts = np.empty(places.max(initial=-1) + 1, np.int64)
    firsts[places[::-1]] = np.arange(places.size)[::-1]  # the first one is written last
    return firsts, places


def _room(store: Rows, slots: Words, panes: Rows, counters: Words, new: Words) -> int:
    """Whether rows in these panes have room, or of what there is too little."""
    if counters[ROWS_LIVE] + new.size > slots.size * 6 // 10:
        return tables.SLOTS_FULL
    if counters[ROWS_LIVE] + new.size > store.shape[0]:
        return tables.ROWS_FULL
    if not new.size:
        return tables.DONE
    ids = np.unique(new)
    missing = ids[_pane_entries(panes, ids) < 0]
    _enter_panes(panes, missing)
    counters[PANES_USED] += missing.size
    counters[PANE_MIN] = min(counters[PANE_MIN], ids[0])
    return tables.DONE


def _new_rows(store: Rows, counters: Words, count: int) -> Words:
    used = int(counters[ROWS_USED])
    free = np.flatnonzero(store[:used, META] & LIVE == 0)
    more = max(0, count - free.size)
    made: Words = np.r_[free[:count], np.arange(used, used + more)]
    free = free[count:]
    store[free, LINK] = np.r_[free[1:] + 1, 0][: free.size]
    counters[FREE_HEAD] = free[0] + 1 if free.size else 0
    counters[ROWS_USED] += more
    counters[ROWS_LIVE] += count
    return made


def _merge(
    store: Rows,
    rows: Words,
    is_new: Flags,
    values: Rows,
    bits: Words,
    rules: Words,
    peaks: Floats,
    strings: tuple[Bytes, Words],
) -> None:
    first = store.shape[1] - rules.size
    for index, code in enumerate(rules.tolist()):
        rule = code & tables.RULE_MASK
        bit = np.int64(1) << index
        given = bits & bit != 0
        column, numbers = store[:, first + index], values[:, index]
        if rule in (tables.OF_LEAST, tables.OF_GREATEST):
            taken = _better(store, rows, values, bits, code >> tables.RULE_BITS, rules, strings)
            column[rows[taken]] = np.where(given, numbers, 0)[taken]
            kept = store[rows[taken], VALID] & ~bit
            store[rows[taken], VALID] = np.where(given[taken], kept | bit, kept)
            continue
        if rule >= tables.FIRST:
            taken = np.flatnonzero(is_new) if rule == tables.FIRST else np.arange(rows.size)
            # Of several values for one row the last one stays.
            column[rows[taken]] = np.where(given, numbers, 0)[taken]
            kept = store[rows[taken], VALID] & ~bit
            store[rows[taken], VALID] = np.where(given[taken], kept | bit, kept)
            continue
        targets, numbers = rows[given], numbers[given]
        begins = _begins(store, targets, bit)
        column[targets[begins]] = numbers[begins]
        store[targets[begins], VALID] |= bit
        later = np.ones(targets.size, np.bool_)
        later[begins] = False
        if rule in _MOMENTS:
            known, more = store[targets[later], first:], values[given][later]
            column[targets[later]] = _moments(code, index, known, more).view(np.int64)
            continue
        _fold(rule, column, targets[later], numbers[later], strings)
        if rule == tables.SUM_INT and targets.size:
            peaks[index] = max(peaks[index], np.abs(column[targets].astype(np.float64)).max())


def _turns(rows: Words, rules: Words) -> Iterator[Words]:
    """The inputs all at once; each row at most once in a turn, where columns read each other."""
    if not (rules > tables.RULE_MASK).any():
        yield np.arange(rows.size)
        return
    order = np.argsort(rows, kind="stable")
    begins = np.flatnonzero(np.r_[True, rows[order][1:] != rows[order][:-1]][: rows.size])
    sizes = np.diff(np.r_[begins, rows.size])
    turns = np.empty(rows.size, np.int64)
    turns[order] = np.arange(rows.size) - np.repeat(begins, sizes)
    in_turn = np.argsort(turns, kind="stable")
    yield from np.split(in_turn, np.cumsum(np.bincount(turns))[:-1])


def _better(
    store: Rows,
    rows: Words,
    values: Rows,
    bits: Words,
    by: int,
    rules: Words,
    strings: tuple[Bytes, Words],
) -> Words:
    """Which inputs bring a value of a column that is as good as that of their rows, or better."""
    bit = np.int64(1) << by
    given = np.flatnonzero(bits & bit != 0)
    known = store[rows[given], VALID] & bit != 0
    numbers = np.ascontiguousarray(values[given[known], by])
    before = store[rows[given[known]], store.shape[1] - rules.size + by]
    merged = before.copy()
    _fold(int(rules[by]), merged, np.arange(merged.size), numbers, strings)
    same = numbers == before
    if rules[by] in (tables.MIN_FLOAT, tables.MAX_FLOAT):
        floats, others = numbers.view(np.float64), before.view(np.float64)
        same = (floats == others) | (np.isnan(floats) & np.isnan(others))
    taken = np.ones(given.size, np.bool_)
    taken[known] = same | (merged != before)
    return given[taken]


_MOMENTS = frozenset(
    {tables.MEAN, tables.MOMENT_2, tables.MOMENT_3, tables.MOMENT_4, tables.COMOMENT}
)


def _moments(code: int, index: int, known: Rows, more: Rows) -> Floats:
    """Means or central moments of pairs of sets, as the loop computes them."""
    rule = code & tables.RULE_MASK
    places = [code >> turn * tables.RULE_BITS & tables.RULE_MASK for turn in range(1, 5)]
    (one, n1, mean1, second1, third1), (other, n2, mean2, second2, third2) = (
        [rows[:, index].view(np.float64), rows[:, places[0]].astype(np.float64)]
        + [rows[:, place].view(np.float64) for place in places[1:]]
        for rows in (np.asfortranarray(known), np.asfortranarray(more))
    )
    total = n1 + n2
    with np.errstate(all="ignore"):
        if rule == tables.MEAN:
            return one + (other - one) / total * n2
        delta = mean2 - mean1
        share = delta / total
        if rule == tables.MOMENT_2:
            return one + other + delta * share * n1 * n2
        if rule == tables.COMOMENT:
            return one + other + delta * ((second2 - second1) / total) * n1 * n2
        if rule == tables.MOMENT_3:
            far = share * share * delta * n1 * n2 * (n1 - n2)
            return one + other + far + 3.0 * share * (n1 * second2 - n2 * second1)
        far = share * share * share * delta * n1 * n2 * (n1 * n1 - n1 * n2 + n2 * n2)
        near = 6.0 * share * share * (n1 * n1 * second2 + n2 * n2 * second1)
        return one + other + far + near + 4.0 * share * (n1 * third2 - n2 * third1)


def _begins(store: Rows, targets: Words, bit: np.int64) -> Words:
    """Which inputs are the first values of their rows."""
    firsts, _ = _first_seen(pa.array(targets))
    begins: Words = firsts[store[targets[firsts], VALID] & bit == 0]
    return begins


def _fold(
    rule: int, column: Words, targets: Words, numbers: Words, strings: tuple[Bytes, Words]
) -> None:
    """Merge values into rows that have some, in their order."""
    numbers = np.ascontiguousarray(numbers)
    floats, float_numbers = column.view(np.float64), numbers.view(np.float64)
    if rule == tables.SUM_INT:
        np.add.at(column, targets, numbers)
    elif rule == tables.SUM_FLOAT:
        np.add.at(floats, targets, float_numbers)
    elif rule == tables.MIN_INT:
        np.minimum.at(column, targets, numbers)
    elif rule == tables.MAX_INT:
        np.maximum.at(column, targets, numbers)
    elif rule == tables.AND_INT:
        np.bitwise_and.at(column, targets, numbers)
    elif rule == tables.OR_INT:
        np.bitwise_or.at(column, targets, numbers)
    elif rule == tables.XOR_INT:
        np.bitwise_xor.at(column, targets, numbers)
    elif rule == tables.MIN_FLOAT:
        fold_least(floats, targets, float_numbers)
    elif rule == tables.MAX_FLOAT:
        fold_greatest(floats, targets, float_numbers)
    else:
        _fold_strings(rule, column, targets, numbers, strings)


def fold_least(totals: Floats, targets: Words, numbers: Floats) -> None:
    """Merge values into the least ones; NaN is the greatest value."""
    with _first_zeros(totals, targets, numbers):
        np.fmin.at(totals, targets, numbers)


def fold_greatest(totals: Floats, targets: Words, numbers: Floats) -> None:
    """Merge values into the greatest ones; NaN is the greatest value."""
    with _first_zeros(totals, targets, numbers):
        np.maximum.at(totals, targets, numbers)


@contextmanager
def _first_zeros(totals: Floats, targets: Words, numbers: Floats) -> Iterator[None]:
    """Where a merge ends at zero, keep the first of the zeros, which are equal, and its sign."""
    before = totals[targets]
    with np.errstate(invalid="ignore"):  # NaN is no mistake
        yield
    is_zero = totals[targets] == 0
    for zeros in (numbers, before):  # what was there came first
        found = np.flatnonzero(is_zero & (zeros == 0))[::-1]
        totals[targets[found]] = zeros[found]  # the last one assigned stays


def _fold_strings(
    rule: int, column: Words, targets: Words, numbers: Words, strings: tuple[Bytes, Words]
) -> None:
    ids = np.unique(np.r_[column[targets], numbers])
    by_rank = ids[pc.sort_indices(_chosen(*strings, ids)).to_numpy()]
    rank = np.empty(ids.size, np.int64)
    rank[np.searchsorted(ids, by_rank)] = np.arange(ids.size)
    rows, places = np.unique(targets, return_inverse=True)
    best = rank[np.searchsorted(ids, column[rows])]
    better = np.minimum if rule == tables.MIN_BYTES else np.maximum
    better.at(best, places, rank[np.searchsorted(ids, numbers)])
    column[rows] = by_rank[best]


def _put(store: Rows, rows: Words, values: Rows, bits: Words, rules: Words, peaks: Floats) -> None:
    first = store.shape[1] - rules.size
    given = (bits[:, None] >> np.arange(rules.size)) & 1 != 0
    values = np.where(given, values, 0)
    store[rows, VALID] = bits
    store[rows, first:] = values
    for index in np.flatnonzero(rules == tables.SUM_INT):
        peak = np.abs(values[:, index].astype(np.float64)).max(initial=0)
        peaks[index] = max(peaks[index], peak)


def replace_values(
    store: Rows,
    counters: Words,
    dirty: RowNumbers,
    saved: Rows,
    rows: RowNumbers,
    lines: Rows,
    first: int,
    captured: bool,
) -> None:
    _touch(store, rows.astype(np.int64), counters, dirty, saved, captured)
    store[rows, VALID] = lines[:, VALID]
    store[rows, first:] = lines[:, first:]


def free_rows(
    store: Rows,
    slots: Words,
    panes: Rows,
    counters: Words,
    saved: Rows,
    rows: RowNumbers,
    keys: int,
    in_slots: bool,
    in_panes: bool,
) -> None:
    if not rows.size:
        return
    numbers = rows.astype(np.int64)
    _save(store, numbers, counters, saved)
    counters[DIRTY_STALE] += np.count_nonzero(store[numbers, META] & DIRTY)
    store[numbers, META] = 0
    store[numbers, LINK] = np.r_[numbers[1:] + 1, counters[FREE_HEAD]]
    counters[FREE_HEAD] = numbers[0] + 1
    counters[ROWS_LIVE] -= numbers.size
    if in_slots:
        slots[:] = 0
        fill_slots(store, slots, int(counters[ROWS_USED]), keys)
    if in_panes:
        ids = np.unique(store[numbers, PANE])
        entries = _pane_entries(panes, ids)
        panes[entries, PANE_HEAD] = panes[entries, PANE_COUNT] = 0
        live = _live(store)
        _link(store, live[np.isin(store[live, PANE], ids)], panes)


# --- reading and copying --------------------------------------------------------------------------


def find_rows(store: Rows, slots: Words, words: Rows, nulls: Words, pane_of: Words) -> RowNumbers:
    return _find(store, slots, words, nulls, pane_of).astype(np.int32)


def may_overflow(values: Rows, bits: Words, rules: Words, peaks: Floats, limits: Floats) -> bool:
    for index in np.flatnonzero(rules == tables.SUM_INT):
        given = bits & (np.int64(1) << index) != 0
        more = np.abs(values[given, index].astype(np.float64)).sum()
        if peaks[index] + more > limits[index]:
            return True
    return False


def walk_panes(store: Rows, heads: Words, total: int) -> RowNumbers:
    ids = store[heads - 1, PANE]
    order = np.argsort(ids)
    live = _live(store)
    live = live[np.isin(store[live, PANE], ids)]
    places = order[np.searchsorted(ids, store[live, PANE], sorter=order)] if ids.size else live
    assert live.size == total
    return live[np.argsort(places, kind="stable")].astype(np.int32)


def take_dirty(store: Rows, counters: Words, dirty: RowNumbers) -> RowNumbers:
    rows = dirty[: counters[DIRTY_COUNT]]
    rows = _each_once(rows[store[rows, META] & DIRTY != 0])
    store[rows, META] &= ~DIRTY
    counters[DIRTY_COUNT] = counters[DIRTY_STALE] = 0
    return rows


def list_dirty(store: Rows, counters: Words, dirty: RowNumbers) -> None:
    rows = take_dirty(store, counters, dirty)
    dirty[: rows.size] = rows
    store[rows, META] |= DIRTY
    counters[DIRTY_COUNT] = rows.size


def copy_live(store: Rows, counters: Words, out: Rows) -> int:
    first = int(counters[COPY_NEXT])
    last = min(first + out.shape[0], int(counters[COPY_END]))
    lines = store[first:last]
    chosen = lines[(lines[:, META] & SAVED == 0) & (lines[:, META] & LIVE != 0)]
    out[: len(chosen)] = chosen
    lines[:, META] &= ~SAVED
    counters[COPY_NEXT] = last
    return len(chosen)


# --- growing and shrinking ------------------------------------------------------------------------


def grow_slots(old: Words, new: Words) -> None:
    entries = old[old != 0]
    _enter(new, entries >> 32, entries)


def fill_slots(store: Rows, slots: Words, used: int, keys: int) -> None:
    _enter_rows(store, slots, _live(store[:used]), keys)


def grow_panes(old: Rows, new: Rows) -> int:
    kept = old[old[:, PANE_COUNT] > 0]
    new[_enter_panes(new, kept[:, PANE_ID])] = kept
    return len(kept)


def compact_rows(store: Rows, used: int, new: Rows, panes: Rows, moved: RowNumbers) -> int:
    live = _live(store[:used])
    moved[:] = -1
    moved[live] = np.arange(live.size)
    new[: live.size] = store[live]
    _link(new, np.arange(live.size), panes)
    return live.size


# --- strings --------------------------------------------------------------------------------------


def _texts(data: Bytes, offsets: Words) -> pa.Array:
    """The strings between these offsets."""
    return text_column(pa.large_binary(), offsets, data)


def _chosen(arena: Bytes, starts: Words, ids: Words) -> pa.Array:
    """Interned strings by their numbers."""
    known = int(ids.max(initial=-1)) + 1  # behind the last string the table of starts is not set
    return _texts(arena, starts[: known + 1]).take(pa.array(ids))


def _flat(texts: pa.Array) -> tuple[Words, Bytes]:
    """The offsets of strings, from 0, and their bytes."""
    starts, whole = texts_of(texts)
    return starts - starts[0], whole[starts[0] : starts[-1]]


def intern(
    offsets: Words,
    data: Bytes,
    valid: Flags,
    arena: Bytes,
    starts: Words,
    slots: Words,
    counters: Words,
    ids: Words,
    add: bool,
) -> int:
    while (begin := int(counters[STRING_NEXT])) < ids.size:
        count, used = int(counters[STRINGS]), int(counters[STRING_BYTES])
        room = min(slots.size * 6 // 10, starts.size - 1) - count
        end = _piece_end(begin, room, ids.size) if add else ids.size
        is_text = valid[begin:end]
        texts = _texts(data, offsets[begin : end + 1]).filter(pa.array(is_text)).dictionary_encode()
        known = _texts(arena, starts[: count + 1])
        numbers = pc.fill_null(pc.index_in(texts.dictionary, value_set=known), -1).to_numpy()
        numbers = numbers.astype(np.int64)
        if add and (numbers < 0).any():
            fresh = np.flatnonzero(numbers < 0)
            ends, more = _flat(texts.dictionary.take(pa.array(fresh)))
            if count + fresh.size > slots.size * 6 // 10:
                return tables.SLOTS_FULL
            if count + fresh.size >= starts.size:
                return tables.STRINGS_FULL
            if used + more.size > arena.size:
                return tables.BYTES_FULL
            arena[used : used + more.size] = more
            starts[count + 1 : count + 1 + fresh.size] = used + ends[1:]
            numbers[fresh] = np.arange(count, count + fresh.size)
            hashes = _string_hashes(ends[:-1], ends[1:], more)
            _enter(slots, hashes, hashes << 32 | (numbers[fresh] + 1))
            counters[STRINGS] += fresh.size
            counters[STRING_BYTES] += more.size
        ids[begin:end][~is_text] = 0
        ids[begin:end][is_text] = numbers[texts.indices.to_numpy()]
        counters[STRING_NEXT] = end
    return tables.DONE


def fill_string_slots(arena: Bytes, starts: Words, count: int, slots: Words) -> None:
    hashes = _string_hashes(starts[:count], starts[1 : count + 1], arena)
    _enter(slots, hashes, hashes << 32 | np.arange(1, count + 1))


def string_ends(starts: Words, ids: Words, valid: Flags, ends: Words) -> None:
    np.cumsum(np.where(valid, starts[ids + 1] - starts[ids], 0), out=ends)


def copy_strings(arena: Bytes, starts: Words, ids: Words, valid: Flags, out: Bytes) -> None:
    _, copied = _flat(_chosen(arena, starts, ids[valid]))
    out[: copied.size] = copied


STAND_INS = MappingProxyType(
    {
        stand_in.__name__: stand_in
        for stand_in in (
            merge_rows, replace_values, free_rows, find_rows, may_overflow, walk_panes, take_dirty,
            list_dirty, copy_live, grow_slots, fill_slots, grow_panes, compact_rows, intern,
            fill_string_slots, string_ends, copy_strings,
        )
    }
)  # fmt: skip
