"""The compiled loops over a state's arrays: hashing, probing, merging, freeing, copying, interning.

Every function takes plain arrays and has one signature, its annotations, so that each is compiled
once and then loaded as machine code. A row is one line of a two-dimensional int64 array:

    META    the caller's 32-bit key hash, and the flags LIVE, DIRTY, SAVED above it
    LINK    the neighbours in the list of the row's pane (next low, previous high; each row + 1);
            in a free row the next free one
    NULLS   one bit per key column that is null
    PANE
    VALID   one bit per value column that is not null
    keys…   one word each, 0 if null
    values… one word each, 0 if null; a float is kept as its bits

A slot of the hash table is 0, or 31 bits of hash above (row + 1): probing, growing and removing
look at rows only when the hash bits match.

Loops that may need room stop, say for what, and leave in NEXT the first input row not done yet.
The caller makes room and calls again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.loops import (
    Bytes,
    Flags,
    Floats,
    Hashes,
    ReadBytes,
    RowNumbers,
    Rows,
    Words,
    allocating_loop,
    inlined,
    loop,
)

META, LINK, NULLS, PANE, VALID, KEYS = range(6)

HASH_MASK = (1 << 32) - 1
LIVE = 1 << 32
DIRTY = 1 << 33  # on the list of changed rows
SAVED = 1 << 34  # the running snapshot has this row already, or must not have it

# Counters shared between the loops and their callers.
(
    ROWS_USED,  # rows ever handed out: all live and free rows are below
    ROWS_LIVE,
    FREE_HEAD,  # a free row + 1, or 0
    PANES_USED,  # entries of the pane table, those of emptied panes included
    PANE_MIN,  # no live row is in a lower pane
    DIRTY_COUNT,
    DIRTY_STALE,  # entries of the list of changes whose row was freed since
    SAVED_COUNT,
    COPY_NEXT,  # the running snapshot still has to look at rows COPY_NEXT <= row < COPY_END
    COPY_END,
    NEXT,
    COUNTERS,
) = range(12)

# Columns of the pane table.
PANE_USED, PANE_ID, PANE_HEAD, PANE_COUNT, PANE_COLUMNS = range(5)

DONE, ROWS_FULL, SLOTS_FULL, PANES_FULL, BYTES_FULL, STRINGS_FULL = range(6)
MERGE, PUT, RESOLVE = range(3)
LOOK_AHEAD = 256  # rows

# What merging does to a value column.
(
    SUM_INT,
    SUM_FLOAT,
    MIN_INT,
    MAX_INT,
    MIN_FLOAT,
    MAX_FLOAT,
    MIN_BYTES,
    MAX_BYTES,
    AND_INT,
    OR_INT,
    XOR_INT,
    MEAN,
    MOMENT_2,
    MOMENT_3,
    MOMENT_4,
    COMOMENT,
    OF_LEAST,
    OF_GREATEST,
    FIRST,
    LAST,
) = range(20)
# A rule may read other value columns, which stand behind its own, so that they are not merged yet:
# their places are above the rule, so many bits each.
RULE_BITS = 8
RULE_MASK = (1 << RULE_BITS) - 1

# Counters of a string pool.
STRINGS, STRING_BYTES, STRING_NEXT, STRING_COUNTERS = range(4)


@inlined
def _mix(state: Any, word: Any) -> Any:
    state = (state ^ np.uint64(word)) * np.uint64(0x9E3779B97F4A7C15)
    return state ^ (state >> np.uint64(32))


@inlined
def _finish(state: Any) -> Any:
    # Words that differ only in their high bits, as small doubles do, must reach the low bits too.
    state = (state ^ (state >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.int64(state >> np.uint64(33))


@inlined
def _row_hash(rows: Any, row: Any, first: Any, count: Any, nulls: Any, pane: Any) -> Any:
    state = _mix(np.uint64(0x2545F4914F6CDD1D), pane)
    if nulls != 0:
        state = _mix(state, nulls)
    for column in range(first, first + count):
        state = _mix(state, rows[row, column])
    return _finish(state)


@inlined
def _is_row(store: Any, row: Any, words: Any, at: Any, nulls: Any, pane: Any) -> Any:
    if store[row, PANE] != pane or store[row, NULLS] != nulls:
        return False
    for key in range(words.shape[1]):  # noqa: SIM110 (no generators in compiled loops)
        if store[row, KEYS + key] != words[at, key]:
            return False
    return True


@inlined
def _find(store: Any, slots: Any, words: Any, at: Any, nulls: Any, pane: Any, key_hash: Any) -> Any:
    """The slot that holds this key, or the empty slot where it would go, as -1 - slot."""
    mask = slots.size - 1
    slot = key_hash & mask
    while True:
        entry = slots[slot]
        if entry == 0:
            return -1 - slot
        if entry >> 32 == key_hash and _is_row(
            store, (entry & HASH_MASK) - 1, words, at, nulls, pane
        ):
            return slot
        slot = (slot + 1) & mask


@inlined
def _pane_entry(panes: Any, pane: Any) -> Any:
    """The entry of this pane, or the empty one where it would go, as -1 - entry."""
    mask = panes.shape[0] - 1
    at = _finish(_mix(np.uint64(7), pane)) & mask
    while panes[at, PANE_USED] != 0:
        if panes[at, PANE_ID] == pane:
            return at
        at = (at + 1) & mask
    return -1 - at


@inlined
def _save(store: Any, row: Any, counters: Any, saved: Any) -> None:
    """Keep what the running snapshot must see of a row that is about to change."""
    if counters[COPY_NEXT] <= row < counters[COPY_END] and store[row, META] & SAVED == 0:
        at = counters[SAVED_COUNT]
        for word in range(store.shape[1]):
            saved[at, word] = store[row, word]
        counters[SAVED_COUNT] = at + 1
        store[row, META] |= SAVED


@inlined
def _touch(store: Any, row: Any, counters: Any, dirty: Any, saved: Any, captured: Any) -> None:
    _save(store, row, counters, saved)
    if captured and store[row, META] & DIRTY == 0:
        store[row, META] |= DIRTY
        dirty[counters[DIRTY_COUNT]] = row
        counters[DIRTY_COUNT] += 1


@inlined
def _link(store: Any, row: Any, panes: Any, entry: Any) -> None:
    head = panes[entry, PANE_HEAD]
    store[row, LINK] = head
    if head != 0:
        store[head - 1, LINK] |= (row + 1) << 32
    panes[entry, PANE_HEAD] = row + 1
    panes[entry, PANE_COUNT] += 1


@inlined
def _unlink(store: Any, row: Any, panes: Any) -> None:
    entry = _pane_entry(panes, store[row, PANE])
    after = store[row, LINK] & HASH_MASK
    before = store[row, LINK] >> 32
    if before != 0:
        store[before - 1, LINK] = (store[before - 1, LINK] & ~HASH_MASK) | after
    else:
        panes[entry, PANE_HEAD] = after
    if after != 0:
        store[after - 1, LINK] = (store[after - 1, LINK] & HASH_MASK) | (before << 32)
    panes[entry, PANE_COUNT] -= 1


@inlined
def _bytes_less(arena: Any, starts: Any, left: Any, right: Any) -> Any:
    """Whether one interned string sorts before another, byte by byte, as Spark compares them."""
    left_at, right_at = starts[left], starts[right]
    left_size, right_size = starts[left + 1] - left_at, starts[right + 1] - right_at
    for offset in range(min(left_size, right_size)):
        a, b = arena[left_at + offset], arena[right_at + offset]
        if a != b:
            return a < b
    return left_size < right_size


@inlined
def _float_less(left: Any, right: Any) -> Any:
    """NaN is the greatest value, as in Spark."""
    if np.isnan(left):
        return False
    return np.isnan(right) or left < right


@inlined
def _is_before(
    rule: Any,
    store: Any,
    floats: Any,
    row: Any,
    word: Any,
    values: Any,
    value_floats: Any,
    at: Any,
    column: Any,
    arena: Any,
    starts: Any,
) -> Any:
    """Whether what a row has is a lesser minimum, or a greater maximum, than what comes."""
    if rule == MIN_INT:
        return store[row, word] < values[at, column]
    if rule == MAX_INT:
        return store[row, word] > values[at, column]
    if rule == MIN_FLOAT:
        return _float_less(floats[row, word], value_floats[at, column])
    if rule == MAX_FLOAT:
        return _float_less(value_floats[at, column], floats[row, word])
    if rule == MIN_BYTES:
        return _bytes_less(arena, starts, store[row, word], values[at, column])
    return _bytes_less(arena, starts, values[at, column], store[row, word])


@inlined
def _moment(
    code: Any,
    store: Any,
    floats: Any,
    row: Any,
    first: Any,
    word: Any,
    values: Any,
    value_floats: Any,
    at: Any,
    column: Any,
) -> Any:
    """A mean or a central moment of two sets together, by what is known of each, as Spark does it.

    It reads the number of values, the mean, and the moments below it, in this order.
    """
    rule = code & RULE_MASK
    count_at = code >> RULE_BITS & RULE_MASK
    mean_at = code >> 2 * RULE_BITS & RULE_MASK
    second_at = code >> 3 * RULE_BITS & RULE_MASK
    third_at = code >> 4 * RULE_BITS & RULE_MASK
    n1 = np.float64(store[row, first + count_at])
    n2 = np.float64(values[at, count_at])
    total = n1 + n2
    one, other = floats[row, word], value_floats[at, column]
    if rule == MEAN:
        return one + (other - one) / total * n2
    delta = value_floats[at, mean_at] - floats[row, first + mean_at]
    share = delta / total
    if rule == MOMENT_2:
        return one + other + delta * share * n1 * n2
    if rule == COMOMENT:
        across = value_floats[at, second_at] - floats[row, first + second_at]
        return one + other + delta * (across / total) * n1 * n2
    second1, second2 = floats[row, first + second_at], value_floats[at, second_at]
    if rule == MOMENT_3:
        return (
            one
            + other
            + share * share * delta * n1 * n2 * (n1 - n2)
            + 3.0 * share * (n1 * second2 - n2 * second1)
        )
    third1, third2 = floats[row, first + third_at], value_floats[at, third_at]
    return (
        one
        + other
        + share * share * share * delta * n1 * n2 * (n1 * n1 - n1 * n2 + n2 * n2)
        + 6.0 * share * share * (n1 * n1 * second2 + n2 * n2 * second1)
        + 4.0 * share * (n1 * third2 - n2 * third1)
    )


@inlined
def merge_row(
    store: Any,
    floats: Any,
    row: Any,
    is_new: Any,
    values: Any,
    value_floats: Any,
    at: Any,
    bits: Any,
    rules: Any,
    lows: Any,
    highs: Any,
    peaks: Any,
    arena: Any,
    starts: Any,
) -> Any:
    """Merge one input row into one row; return the column whose sum left its range, or -1."""
    first = store.shape[1] - rules.size
    have = store[row, VALID]
    for column in range(rules.size):
        rule = rules[column] & RULE_MASK
        word = first + column
        bit = np.int64(1) << column
        given = bits & bit != 0
        if rule in (OF_LEAST, OF_GREATEST):
            by = rules[column] >> RULE_BITS
            by_bit = np.int64(1) << by
            if bits & by_bit != 0 and (
                have & by_bit == 0
                or not _is_before(
                    rules[by], store, floats, row, first + by, values, value_floats, at, by,
                    arena, starts,
                )
            ):  # fmt: skip
                store[row, word] = values[at, column] if given else 0
                have = have | bit if given else have & ~bit
            continue
        if rule >= FIRST:
            if rule == LAST or is_new:
                store[row, word] = values[at, column] if given else 0
                have = have | bit if given else have & ~bit
            continue
        if not given:
            continue
        if have & bit == 0:
            store[row, word] = values[at, column]
            have |= bit
            if rule == SUM_INT:
                peaks[column] = max(peaks[column], abs(np.float64(values[at, column])))
            continue
        if rule == SUM_INT:
            old, more = store[row, word], values[at, column]
            # Unsigned: a signed sum never wraps as far as the compiler is concerned, which would
            # leave it free to drop the check below.
            total = np.int64(np.uint64(old) + np.uint64(more))
            wrapped = ((old ^ total) & (more ^ total)) < 0
            if wrapped or total < lows[column] or total > highs[column]:
                return column
            store[row, word] = total
            peaks[column] = max(peaks[column], abs(np.float64(total)))
        elif rule == SUM_FLOAT:
            floats[row, word] += value_floats[at, column]
        elif rule == AND_INT:
            store[row, word] &= values[at, column]
        elif rule == OR_INT:
            store[row, word] |= values[at, column]
        elif rule == XOR_INT:
            store[row, word] ^= values[at, column]
        elif rule >= MEAN:
            floats[row, word] = _moment(
                rules[column], store, floats, row, first, word, values, value_floats, at, column
            )
        else:
            if rule == MIN_INT:
                better = values[at, column] < store[row, word]
            elif rule == MAX_INT:
                better = values[at, column] > store[row, word]
            elif rule == MIN_FLOAT:
                better = _float_less(value_floats[at, column], floats[row, word])
            elif rule == MAX_FLOAT:
                better = _float_less(floats[row, word], value_floats[at, column])
            elif rule == MIN_BYTES:
                better = _bytes_less(arena, starts, values[at, column], store[row, word])
            else:
                better = _bytes_less(arena, starts, store[row, word], values[at, column])
            if better:
                store[row, word] = values[at, column]
    store[row, VALID] = have
    return -1


@inlined
def _put_row(store: Any, row: Any, values: Any, at: Any, bits: Any, rules: Any, peaks: Any) -> None:
    first = store.shape[1] - rules.size
    store[row, VALID] = bits
    for column in range(rules.size):
        given = bits & (np.int64(1) << column) != 0
        store[row, first + column] = values[at, column] if given else 0
        if given and rules[column] == SUM_INT:
            peaks[column] = max(peaks[column], abs(np.float64(values[at, column])))


@inlined
def _look_ahead(
    store: Any, slots: Any, words: Any, nulls: Any, pane_of: Any, first: Any, ahead: Any
) -> Any:
    """Hash the next rows and touch what they will need, all at once; return where the block ends.

    One after the other, each row would wait for memory twice. Loads that depend on nothing overlap.
    """
    mask = slots.size - 1
    count = min(LOOK_AHEAD, pane_of.size - first)
    for at in range(count):
        ahead[at + LOOK_AHEAD - count] = _row_hash(
            words, first + at, 0, words.shape[1], nulls[first + at], pane_of[first + at]
        )
    touched = np.int64(0)
    for at in range(LOOK_AHEAD - count, LOOK_AHEAD):
        touched ^= slots[ahead[at] & mask]
    for at in range(LOOK_AHEAD - count, LOOK_AHEAD):
        entry = slots[ahead[at] & mask]
        if entry != 0:
            touched ^= store[(entry & HASH_MASK) - 1, META]
    ahead[LOOK_AHEAD] = touched  # keeps the loads from being optimised away
    return first + count


@loop
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
    """Find or make the row of each input key, then merge (MERGE) or overwrite (PUT) its values.

    RESOLVE only finds or makes rows and returns them in `rows_out`, as -1 - row where one was made;
    new ones have no values yet.
    `initial` has the validity bits of columns that start at zero instead of null. The caller has
    made sure that a MERGE cannot overflow and that `dirty` and `saved` have room for all rows.
    """
    keys = words.shape[1]
    floats = store.view(np.float64)
    value_floats = values.view(np.float64)
    slots_max = slots.size * 6 // 10
    panes_max = panes.shape[0] * 6 // 10
    entry = np.int64(-1)
    block_end = counters[NEXT]
    for at in range(counters[NEXT], pane_of.size):
        if at == block_end:
            block_end = _look_ahead(store, slots, words, nulls, pane_of, at, ahead)
        pane = pane_of[at]
        null = nulls[at]
        key_hash = ahead[at - block_end + LOOK_AHEAD]
        slot = _find(store, slots, words, at, null, pane, key_hash)
        is_new = slot < 0
        if is_new:
            counters[NEXT] = at
            if counters[ROWS_LIVE] >= slots_max:
                return SLOTS_FULL
            if counters[FREE_HEAD] == 0 and counters[ROWS_USED] >= store.shape[0]:
                return ROWS_FULL
            if entry < 0 or panes[entry, PANE_ID] != pane:
                entry = _pane_entry(panes, pane)
                if entry < 0:
                    if counters[PANES_USED] >= panes_max:
                        return PANES_FULL
                    entry = -1 - entry
                    panes[entry, PANE_USED] = 1
                    panes[entry, PANE_ID] = pane
                    panes[entry, PANE_HEAD] = 0
                    panes[entry, PANE_COUNT] = 0
                    counters[PANES_USED] += 1
            if counters[FREE_HEAD] != 0:
                row = counters[FREE_HEAD] - 1
                counters[FREE_HEAD] = store[row, LINK]
            else:
                row = counters[ROWS_USED]
                counters[ROWS_USED] += 1
            counters[ROWS_LIVE] += 1
            counters[PANE_MIN] = min(counters[PANE_MIN], pane)
            slots[-1 - slot] = (key_hash << 32) | (row + 1)
            store[row, META] = np.int64(hashes[at]) | LIVE
            if counters[COPY_NEXT] <= row < counters[COPY_END]:
                store[row, META] |= SAVED  # born after the snapshot began: not for it to copy
            store[row, NULLS] = null
            store[row, PANE] = pane
            store[row, VALID] = initial
            for word in range(keys):
                store[row, KEYS + word] = words[at, word]
            for word in range(KEYS + keys, store.shape[1]):
                store[row, word] = 0
            _link(store, row, panes, entry)
        else:
            row = (slots[slot] & HASH_MASK) - 1
        if mode == RESOLVE:
            # Existing rows stay untouched until it is certain that the whole merge succeeds.
            rows_out[at] = -1 - row if is_new else row
            if is_new:
                _touch(store, row, counters, dirty, saved, captured)
            continue
        _touch(store, row, counters, dirty, saved, captured)
        if mode == MERGE:
            merge_row(
                store, floats, row, is_new, values, value_floats, at, bits[at],
                rules, lows, highs, peaks, arena, starts,
            )  # fmt: skip
        else:
            store[row, META] = (store[row, META] & ~HASH_MASK) | np.int64(hashes[at])
            _put_row(store, row, values, at, bits[at], rules, peaks)
    counters[NEXT] = pane_of.size
    return DONE


@loop
def merge_into(
    store: Rows,
    rows: RowNumbers,
    fresh: Flags,
    values: Rows,
    bits: Words,
    rules: Words,
    lows: Words,
    highs: Words,
    peaks: Floats,
    arena: Bytes,
    starts: Words,
) -> tuple[int, int]:
    """Merge input row i into row rows[i]; return where a sum overflowed, (-1, -1) if nowhere.

    The place is (input row, column). `fresh` says which rows have no values yet, and is
    cleared as they get them.
    """
    floats = store.view(np.float64)
    value_floats = values.view(np.float64)
    for at in range(rows.size):
        row = rows[at]
        column = merge_row(
            store, floats, row, fresh[row], values, value_floats, at, bits[at],
            rules, lows, highs, peaks, arena, starts,
        )  # fmt: skip
        fresh[row] = False
        if column >= 0:
            return at, column
    return -1, -1


@loop
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
    """Give each row the validity and values of its line."""
    for at in range(rows.size):
        row = rows[at]
        _touch(store, row, counters, dirty, saved, captured)
        store[row, VALID] = lines[at, VALID]
        for word in range(first, store.shape[1]):
            store[row, word] = lines[at, word]


@allocating_loop
def find_rows(store: Rows, slots: Words, words: Rows, nulls: Words, pane_of: Words) -> RowNumbers:
    """The row of each input key, -1 where there is none."""
    rows = np.empty(pane_of.size, np.int32)
    for at in range(pane_of.size):
        key_hash = _row_hash(words, at, 0, words.shape[1], nulls[at], pane_of[at])
        slot = _find(store, slots, words, at, nulls[at], pane_of[at], key_hash)
        rows[at] = (slots[slot] & HASH_MASK) - 1 if slot >= 0 else -1
    return rows


@loop
def may_overflow(values: Rows, bits: Words, rules: Words, peaks: Floats, limits: Floats) -> bool:
    """Whether some integer sum could leave its range: no group moves further than all input."""
    for column in range(rules.size):
        if rules[column] == SUM_INT:
            total = peaks[column]
            bit = np.int64(1) << column
            for at in range(bits.size):
                if bits[at] & bit != 0:
                    total += abs(np.float64(values[at, column]))
            if total > limits[column]:
                return True
    return False


@inlined
def _remove_slot(store: Any, slots: Any, row: Any, keys: Any) -> None:
    """Take a row out of the hash table and shift back what had to step over it."""
    mask = slots.size - 1
    key_hash = _row_hash(store, row, KEYS, keys, store[row, NULLS], store[row, PANE])
    hole = key_hash & mask
    while slots[hole] & HASH_MASK != row + 1:
        hole = (hole + 1) & mask
    slot = hole
    while True:
        slot = (slot + 1) & mask
        entry = slots[slot]
        if entry == 0:
            break
        wanted = (entry >> 32) & mask
        if (slot - wanted) & mask >= (slot - hole) & mask:
            slots[hole] = entry
            hole = slot
    slots[hole] = 0


@loop
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
    """Free rows; `in_slots` and `in_panes` say whether to take them out of those one by one."""
    for at in range(rows.size):
        row = rows[at]
        _save(store, row, counters, saved)
        if in_slots:
            _remove_slot(store, slots, row, keys)
        if in_panes:
            _unlink(store, row, panes)
        if store[row, META] & DIRTY != 0:
            counters[DIRTY_STALE] += 1
        store[row, META] = 0
        store[row, LINK] = counters[FREE_HEAD]
        counters[FREE_HEAD] = row + 1
    counters[ROWS_LIVE] -= rows.size


@allocating_loop
def walk_panes(store: Rows, heads: Words, total: int) -> RowNumbers:
    """The rows of some panes, pane by pane."""
    rows = np.empty(total, np.int32)
    count = 0
    for at in range(heads.size):
        follow = heads[at]
        while follow != 0:
            rows[count] = follow - 1
            count += 1
            follow = store[follow - 1, LINK] & HASH_MASK
    assert count == total
    return rows


@allocating_loop
def take_dirty(store: Rows, counters: Words, dirty: RowNumbers) -> RowNumbers:
    """The live rows on the list of changes, each once, in the order of their first change."""
    rows = np.empty(counters[DIRTY_COUNT], np.int32)
    count = 0
    for at in range(counters[DIRTY_COUNT]):
        row = dirty[at]
        # A row that was freed and used again is listed twice; its flag falls with the first.
        if store[row, META] & DIRTY != 0:
            store[row, META] &= ~DIRTY
            rows[count] = row
            count += 1
    counters[DIRTY_COUNT] = 0
    counters[DIRTY_STALE] = 0
    return rows[:count]


@loop
def list_dirty(store: Rows, counters: Words, dirty: RowNumbers) -> None:
    """Leave on the list of changes each live row once, in the order of their first change."""
    count = 0
    for at in range(counters[DIRTY_COUNT]):
        row = dirty[at]
        if store[row, META] & DIRTY != 0:
            store[row, META] &= ~DIRTY
            dirty[count] = row
            count += 1
    for at in range(count):
        store[dirty[at], META] |= DIRTY
    counters[DIRTY_COUNT] = count
    counters[DIRTY_STALE] = 0


@loop
def copy_live(store: Rows, counters: Words, out: Rows) -> int:
    """Copy for the running snapshot what is left to copy among the next `len(out)` rows."""
    first = counters[COPY_NEXT]
    last = min(first + out.shape[0], counters[COPY_END])
    count = 0
    for row in range(first, last):
        meta = store[row, META]
        if meta & SAVED != 0:
            store[row, META] = meta & ~SAVED
        elif meta & LIVE != 0:
            for word in range(store.shape[1]):
                out[count, word] = store[row, word]
            count += 1
    counters[COPY_NEXT] = last
    return count


@loop
def grow_slots(old: Words, new: Words) -> None:
    """Move all entries into a larger table; the rows are not looked at."""
    mask = new.size - 1
    for at in range(old.size):
        entry = old[at]
        if entry != 0:
            slot = (entry >> 32) & mask
            while new[slot] != 0:
                slot = (slot + 1) & mask
            new[slot] = entry


@loop
def fill_slots(store: Rows, slots: Words, used: int, keys: int) -> None:
    """Enter all live rows into an empty table."""
    mask = slots.size - 1
    for row in range(used):
        if store[row, META] & LIVE != 0:
            key_hash = _row_hash(store, row, KEYS, keys, store[row, NULLS], store[row, PANE])
            slot = key_hash & mask
            while slots[slot] != 0:
                slot = (slot + 1) & mask
            slots[slot] = (key_hash << 32) | (row + 1)


@loop
def grow_panes(old: Rows, new: Rows) -> int:
    """Move the entries of panes that have rows into an empty pane table; return their number."""
    count = 0
    for at in range(old.shape[0]):
        if old[at, PANE_COUNT] > 0:
            entry = -1 - _pane_entry(new, old[at, PANE_ID])
            for column in range(PANE_COLUMNS):
                new[entry, column] = old[at, column]
            count += 1
    return count


@loop
def compact_rows(store: Rows, used: int, new: Rows, panes: Rows, moved: RowNumbers) -> int:
    """Copy live rows to the front of a new store and link them again; `moved` gets their places.

    The pane table must have its entries, with no rows in them.
    """
    count = 0
    for row in range(used):
        moved[row] = -1
        if store[row, META] & LIVE != 0:
            for word in range(store.shape[1]):
                new[count, word] = store[row, word]
            _link(new, count, panes, _pane_entry(panes, new[count, PANE]))
            moved[row] = count
            count += 1
    return count


@inlined
def _same_key(lines: Any, one: Any, other: Any, keys: Any) -> Any:
    if lines[one, NULLS] != lines[other, NULLS]:
        return False
    for word in range(KEYS, KEYS + keys):  # noqa: SIM110 (no generators in compiled loops)
        if lines[one, word] != lines[other, word]:
            return False
    return True


@loop
def fold_blocks(
    lines: Rows,
    prefixes: Rows,
    suffixes: Rows,
    keys: int,
    per_window: int,
    rules: Words,
    lows: Words,
    highs: Words,
    peaks: Floats,
    arena: Bytes,
    starts: Words,
) -> None:
    """Merge each line with those before it, and with those behind it, in its block and key.

    Lines come by key, then pane; the other two as copies of them. LINK says which column's sum
    has left its range, from 1, and 0 if none has.
    """
    first = KEYS + keys
    values, value_floats = lines[:, first:], lines.view(np.float64)[:, first:]
    folded, folded_floats = suffixes[:, first:], suffixes.view(np.float64)[:, first:]
    prefix_floats, suffix_floats = prefixes.view(np.float64), suffixes.view(np.float64)
    count = lines.shape[0]
    for at in range(count):
        prefixes[at, LINK] = 0
        if (
            at == 0
            or lines[at, PANE] // per_window != lines[at - 1, PANE] // per_window
            or not _same_key(lines, at, at - 1, keys)
        ):
            continue
        prefixes[at, LINK] = prefixes[at - 1, LINK]
        prefixes[at, VALID] = prefixes[at - 1, VALID]
        for word in range(first, lines.shape[1]):
            prefixes[at, word] = prefixes[at - 1, word]
        column = merge_row(
            prefixes, prefix_floats, at, False, values, value_floats, at, lines[at, VALID],
            rules, lows, highs, peaks, arena, starts,
        )  # fmt: skip
        if column >= 0:
            prefixes[at, LINK] = column + 1
    for back in range(count):
        at = count - 1 - back
        suffixes[at, LINK] = 0
        if (
            back == 0
            or lines[at, PANE] // per_window != lines[at + 1, PANE] // per_window
            or not _same_key(lines, at, at + 1, keys)
        ):
            continue
        suffixes[at, LINK] = suffixes[at + 1, LINK]
        column = merge_row(
            suffixes, suffix_floats, at, False, folded, folded_floats, at + 1,
            suffixes[at + 1, VALID], rules, lows, highs, peaks, arena, starts,
        )  # fmt: skip
        if column >= 0:
            suffixes[at, LINK] = column + 1


@inlined
def _first_window(windows: Any, begin: Any, pane: Any, per_window: Any, per_slide: Any) -> Any:
    """The place of the first window, from `begin` on, that reaches this pane."""
    lowest = (pane - per_window) // per_slide + 1
    end = windows.size
    while begin < end:
        middle = (begin + end) // 2
        if windows[middle] < lowest:
            begin = middle + 1
        else:
            end = middle
    return begin


@loop
def walk_windows(
    lines: Rows,
    prefixes: Rows,
    suffixes: Rows,
    changed: Words,
    keys: int,
    windows: Words,
    per_window: int,
    per_slide: int,
    places: Words,
    out: Rows,
    rules: Words,
    lows: Words,
    highs: Words,
    peaks: Floats,
    arena: Bytes,
    starts: Words,
) -> int:
    """Write the line of each key in each window at the window's next place, which moves on.

    If `out` has no room the places move and nothing is written: that counts the lines. `changed`
    has how many lines before each one have changed, or nothing if that does not matter. Returns
    the place at which a sum left its range, with its column + 1 in LINK, or -1.
    """
    first = KEYS + keys
    tails, tail_floats = prefixes[:, first:], prefixes.view(np.float64)[:, first:]
    out_floats = out.view(np.float64)
    count = lines.shape[0]
    key_end = np.int64(0)
    while key_end < count:
        begin = key_end
        key_end += 1
        while key_end < count and _same_key(lines, begin, key_end, keys):
            key_end += 1
        end = begin
        at = _first_window(windows, 0, lines[begin, PANE], per_window, per_slide)
        while at < windows.size:
            pane_first = windows[at] * per_slide
            pane_end = pane_first + per_window
            while begin < key_end and lines[begin, PANE] < pane_first:
                begin += 1
            if begin == key_end:
                break
            if lines[begin, PANE] >= pane_end:
                at = _first_window(windows, at + 1, lines[begin, PANE], per_window, per_slide)
                continue
            end = max(end, begin)
            while end < key_end and lines[end, PANE] < pane_end:
                end += 1
            if changed.size != 0 and changed[begin] == changed[end]:
                at += 1
                continue
            place = places[at]
            places[at] += 1
            if out.shape[0] == 0:
                at += 1
                continue
            block_end = (pane_first // per_window + 1) * per_window
            if lines[begin, PANE] >= block_end:
                for word in range(lines.shape[1]):
                    out[place, word] = prefixes[end - 1, word]
            else:
                for word in range(lines.shape[1]):
                    out[place, word] = suffixes[begin, word]
                if lines[end - 1, PANE] >= block_end and out[place, LINK] == 0:
                    out[place, LINK] = prefixes[end - 1, LINK]
                    column = merge_row(
                        out, out_floats, place, False, tails, tail_floats, end - 1,
                        prefixes[end - 1, VALID], rules, lows, highs, peaks, arena, starts,
                    )  # fmt: skip
                    if column >= 0:
                        out[place, LINK] = column + 1
            out[place, PANE] = windows[at]
            if out[place, LINK] != 0:
                return int(place)
            at += 1
    return -1


@inlined
def _eight_bytes(data: Any, at: Any) -> Any:
    """Eight bytes as a word. With an unsigned index the compiler makes one load of them."""
    word = np.uint64(0)
    for byte in range(8):
        word |= np.uint64(data[at + np.uint64(byte)]) << np.uint64(8 * byte)
    return word


@inlined
def _last_bytes(data: Any, at: Any, rest: Any) -> Any:
    """The last bytes of a string, less than eight, as a word."""
    if at + np.uint64(8) <= np.uint64(data.size):
        beyond = np.uint64(8) * (np.uint64(8) - rest)
        return _eight_bytes(data, at) << beyond >> beyond
    word = np.uint64(0)
    for byte in range(rest):
        word |= np.uint64(data[at + np.uint64(byte)]) << np.uint64(8 * byte)
    return word


@inlined
def _bytes_hash(data: Any, start: Any, size: Any) -> Any:
    state = np.uint64(size)
    at, end = np.uint64(start), np.uint64(start + size)
    while at + np.uint64(8) <= end:
        state = _mix(state, _eight_bytes(data, at))
        at += np.uint64(8)
    if at < end:
        state = _mix(state, _last_bytes(data, at, end - at))
    return _finish(state)


@inlined
def _same_bytes(data: Any, start: Any, size: Any, arena: Any, starts: Any, string: Any) -> Any:
    if starts[string + 1] - starts[string] != size:
        return False
    here, there = np.uint64(start), np.uint64(starts[string])
    end = np.uint64(start + size)
    while here + np.uint64(8) <= end:
        if _eight_bytes(data, here) != _eight_bytes(arena, there):
            return False
        here += np.uint64(8)
        there += np.uint64(8)
    rest = end - here
    return rest == 0 or _last_bytes(data, here, rest) == _last_bytes(arena, there, rest)


@loop
def intern(
    offsets: Words,
    data: ReadBytes,
    valid: Flags,
    arena: Bytes,
    starts: Words,
    slots: Words,
    counters: Words,
    ids: Words,
    add: bool,
) -> int:
    """Give each string the number of its first occurrence; absent ones get -1 unless `add`."""
    mask = slots.size - 1
    slots_max = slots.size * 6 // 10
    for at in range(counters[STRING_NEXT], ids.size):
        if not valid[at]:
            ids[at] = 0
            continue
        start = offsets[at]
        size = offsets[at + 1] - start
        key_hash = _bytes_hash(data, start, size)
        slot = key_hash & mask
        found = np.int64(-1)
        while slots[slot] != 0:
            entry = slots[slot]
            if entry >> 32 == key_hash:
                string = (entry & HASH_MASK) - 1
                if _same_bytes(data, start, size, arena, starts, string):
                    found = string
                    break
            slot = (slot + 1) & mask
        if found < 0 and add:
            counters[STRING_NEXT] = at
            if counters[STRINGS] >= slots_max:
                return SLOTS_FULL
            if counters[STRINGS] + 1 >= starts.size:
                return STRINGS_FULL
            if counters[STRING_BYTES] + size > arena.size:
                return BYTES_FULL
            found = counters[STRINGS]
            used = counters[STRING_BYTES]
            for offset in range(size):
                arena[used + offset] = data[start + offset]
            starts[found + 1] = used + size
            slots[slot] = (key_hash << 32) | (found + 1)
            counters[STRINGS] = found + 1
            counters[STRING_BYTES] = used + size
        ids[at] = found
    counters[STRING_NEXT] = ids.size
    return DONE


@loop
def fill_string_slots(arena: Bytes, starts: Words, count: int, slots: Words) -> None:
    """Enter all strings into an empty table."""
    mask = slots.size - 1
    for string in range(count):
        start = starts[string]
        key_hash = _bytes_hash(arena, start, starts[string + 1] - start)
        slot = key_hash & mask
        while slots[slot] != 0:
            slot = (slot + 1) & mask
        slots[slot] = (key_hash << 32) | (string + 1)


@loop
def string_ends(starts: Words, ids: Words, valid: Flags, ends: Words) -> None:
    """Where each string ends if they are written one after the other."""
    used = 0
    for at in range(ids.size):
        if valid[at]:
            used += starts[ids[at] + 1] - starts[ids[at]]
        ends[at] = used


@loop
def copy_strings(arena: Bytes, starts: Words, ids: Words, valid: Flags, out: Bytes) -> None:
    """Write strings one after the other, by eight bytes where both sides have so many."""
    used = np.uint64(0)
    room = np.uint64(out.size)
    for at in range(ids.size):
        if not valid[at]:
            continue
        byte, end = np.uint64(starts[ids[at]]), np.uint64(starts[ids[at] + 1])
        done = used + (end - byte)
        # What goes beyond the string's end is overwritten by the next one.
        while (
            byte < end
            and byte + np.uint64(8) <= np.uint64(arena.size)
            and (used + np.uint64(8) <= room)
        ):
            word = _eight_bytes(arena, byte)
            for offset in range(8):
                out[used + np.uint64(offset)] = np.uint8(word >> np.uint64(8 * offset))
            byte += np.uint64(8)
            used += np.uint64(8)
        while byte < end:
            out[used] = arena[byte]
            byte += np.uint64(1)
            used += np.uint64(1)
        used = done
