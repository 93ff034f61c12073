"""The loops of the codecs: numbers as 64-bit words, and words as few bits.

Words come and go in chunks, so that what lies between two loops stays in the processor's cache. No
loop trusts what it reads: each ends where its arrays end, and returns `UNFIT` if the bytes do not
say as many words as it was asked for, or the words do not fit the form.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.loops import Bytes, HashWords, ReadBytes, ReadHashWords, inlined, loop

UNFIT = -1
BLOCK_WORDS = 128  # that have their width and shift in common
STRADDLED_BITS_MIN = 22  # wider words would leave much of 64 bits unused, if none went across two
SIMPLE8B_BITS_MAX = 60

# The orders of differences: values, of neighbours, of those, and bits that neighbours do not share.
VALUES, DELTA, DELTA2, XOR = 0, 1, 2, 3


@inlined
def _differ(values: Any, order: Any, low: Any, mask: Any, at: Any, out: Any) -> Any:
    seen = np.uint64(0)
    if order == 0:
        for i in range(out.size):
            word = (np.uint64(values[at + i]) - low) & mask
            out[i] = word
            seen |= word
    elif order == 1:
        for i in range(out.size):
            word = (np.uint64(values[at + i + 1]) - np.uint64(values[at + i]) - low) & mask
            out[i] = word
            seen |= word
    elif order == 2:
        for i in range(out.size):
            middle = np.uint64(values[at + i + 1])
            twice = middle + middle
            word = np.uint64(values[at + i + 2]) - twice + np.uint64(values[at + i]) - low
            word &= mask
            out[i] = word
            seen |= word
    else:
        for i in range(out.size):
            word = np.uint64(values[at + i + 1]) ^ np.uint64(values[at + i])
            out[i] = word
            seen |= word
    return np.int64(seen)


@loop
def differences(values: ReadBytes, size: int, order: int, low: int, at: int, out: HashWords) -> int:
    """Write the differences of values of `size` bytes, from the one at `at`, less the lowest.

    They are modulo what fits the size. Returns the bits that any of them has.
    """
    below = np.uint64(low)
    last = at + out.size + (2 if order == 2 else 0 if order == 0 else 1)
    if at < 0 or last * size > values.size:
        return UNFIT
    if size == 8:
        mask = ~np.uint64(0)
        return int(_differ(values.view(np.uint64), order, below, mask, at, out))
    mask = (np.uint64(1) << np.uint64(8 * size)) - np.uint64(1)
    if size == 4:
        return int(_differ(values.view(np.uint32), order, below, mask, at, out))
    if size == 2:
        return int(_differ(values.view(np.uint16), order, below, mask, at, out))
    return int(_differ(values, order, below, mask, at, out))


@inlined
def _add_up(words: Any, order: Any, low: Any, at: Any, out: Any) -> Any:
    if order == 0:
        for i in range(words.size):
            out[at + i] = words[i] + low
    elif order == 1:
        value = np.uint64(out[at - 1])
        for i in range(words.size):
            value += words[i] + low
            out[at + i] = value
    elif order == 2:
        value = np.uint64(out[at - 1])
        delta = value - np.uint64(out[at - 2])
        for i in range(words.size):
            delta += words[i] + low
            value += delta
            out[at + i] = value
    else:
        value = np.uint64(out[at - 1])
        for i in range(words.size):
            value ^= words[i]
            out[at + i] = value


@loop
def restore(words: HashWords, size: int, order: int, low: int, at: int, out: Bytes) -> int:
    """Undo `differences`: write values from the one at `at`, behind those that are there."""
    below = np.uint64(low)
    if at < (2 if order == 2 else 0 if order == 0 else 1) or (at + words.size) * size > out.size:
        return UNFIT
    if size == 8:
        _add_up(words, order, below, at, out.view(np.uint64))
    elif size == 4:
        _add_up(words, order, below, at, out.view(np.uint32))
    elif size == 2:
        _add_up(words, order, below, at, out.view(np.uint16))
    else:
        _add_up(words, order, below, at, out)
    return 0


@inlined
def _put(words: Any, at: Any, count: Any, shift: Any, width: Any, out: Any, into: Any) -> Any:
    """Words of some bits, each behind the other, across words of 64; returns where they end."""
    held = np.uint64(0)
    fill = 0
    for i in range(at, at + count):
        word = words[i] >> np.uint64(shift)
        held |= word << np.uint64(fill)
        fill += width
        if fill >= 64:
            out[into] = held
            into += 1
            fill -= 64
            held = word >> np.uint64(width - fill) if fill else np.uint64(0)
    if fill:
        out[into] = held
        into += 1
    return into


@inlined
def _take(stored: Any, start: Any, count: Any, shift: Any, width: Any, out: Any, at: Any) -> Any:
    mask = ~np.uint64(0) >> np.uint64(64 - width)
    bit = 0
    for i in range(at, at + count):
        place = start + (bit >> 6)
        skip = bit & 63
        word = stored[place] >> np.uint64(skip)
        if skip + width > 64:
            word |= stored[place + 1] << np.uint64(64 - skip)
        out[i] = (word & mask) << np.uint64(shift)
        bit += width


@loop
def pack(words: HashWords, width: int, out: HashWords) -> int:
    """Write words of so many bits; none goes across two of 64 bits, unless they are wide."""
    if width < 1 or width > 64:
        return UNFIT
    if width >= 22 and width != 32:
        if (words.size * width + 63) // 64 > out.size:
            return UNFIT
        return int(_put(words, 0, words.size, 0, width, out, 0))
    each = 64 // width
    whole = words.size // each
    if (words.size + each - 1) // each > out.size:
        return UNFIT
    if width == 8:
        narrow8 = out.view(np.uint8)
        for i in range(whole * each):
            narrow8[i] = words[i]
    elif width == 16:
        narrow16 = out.view(np.uint16)
        for i in range(whole * each):
            narrow16[i] = words[i]
    elif width == 32:
        narrow32 = out.view(np.uint32)
        for i in range(whole * each):
            narrow32[i] = words[i]
    else:
        for j in range(whole):
            held = np.uint64(0)
            for i in range(each):
                held |= words[j * each + i] << np.uint64(i * width)
            out[j] = held
    rest = whole * each
    if rest < words.size:
        held = np.uint64(0)
        for i in range(rest, words.size):
            held |= words[i] << np.uint64((i - rest) * width)
        out[whole] = held
        whole += 1
    return whole


@loop
def unpack(stored: ReadHashWords, start: int, width: int, out: HashWords) -> int:
    """Undo `pack`, from the stored word at `start`."""
    if width < 1 or width > 64 or start < 0:
        return UNFIT
    if width >= 22 and width != 32:
        if start + (out.size * width + 63) // 64 > stored.size:
            return UNFIT
        _take(stored, start, out.size, 0, width, out, 0)
        return 0
    each = 64 // width
    whole = out.size // each
    if start + (out.size + each - 1) // each > stored.size:
        return UNFIT
    mask = ~np.uint64(0) >> np.uint64(64 - width)
    if width == 8:
        narrow8 = stored.view(np.uint8)
        for i in range(whole * each):
            out[i] = narrow8[8 * start + i]
    elif width == 16:
        narrow16 = stored.view(np.uint16)
        for i in range(whole * each):
            out[i] = narrow16[4 * start + i]
    elif width == 32:
        narrow32 = stored.view(np.uint32)
        for i in range(whole * each):
            out[i] = narrow32[2 * start + i]
    else:
        for j in range(whole):
            held = stored[start + j]
            for i in range(each):
                out[j * each + i] = (held >> np.uint64(i * width)) & mask
    for i in range(whole * each, out.size):
        out[i] = (stored[start + whole] >> np.uint64((i - whole * each) * width)) & mask
    return 0


@inlined
def _leading_bits(word: Any) -> Any:
    """How many bits a word has from its highest on."""
    bits = 0
    if word >> np.uint64(32):
        bits += 32
        word >>= np.uint64(32)
    if word >> np.uint64(16):
        bits += 16
        word >>= np.uint64(16)
    if word >> np.uint64(8):
        bits += 8
        word >>= np.uint64(8)
    if word >> np.uint64(4):
        bits += 4
        word >>= np.uint64(4)
    if word >> np.uint64(2):
        bits += 2
        word >>= np.uint64(2)
    if word >> np.uint64(1):
        return bits + 2
    return bits + np.int64(word)


@loop
def pack_blocks(words: HashWords, out: HashWords) -> int:
    """Write words in blocks: first their width and shift, then the bits that differ among them."""
    into = 0
    for at in range(0, words.size, 128):
        count = min(128, words.size - at)
        seen = np.uint64(0)
        for i in range(at, at + count):
            seen |= words[i]
        width, shift = 0, 0
        if seen:
            # The lowest bit alone, and how far up it is.
            shift = _leading_bits(seen & (~seen + np.uint64(1))) - 1
            width = _leading_bits(seen) - shift
        if into + 1 + (count * width + 63) // 64 > out.size:
            return UNFIT
        out[into] = np.uint64(width | shift << 8)
        into += 1
        if width:
            into = _put(words, at, count, shift, width, out, into)
    return into


@loop
def unpack_blocks(stored: ReadHashWords, start: int, out: HashWords) -> int:
    """Undo `pack_blocks`, from the stored word at `start`; return where the next one is."""
    if start < 0:
        return UNFIT
    for at in range(0, out.size, 128):
        count = min(128, out.size - at)
        if start >= stored.size:
            return UNFIT
        head = stored[start]
        width = np.int64(head & np.uint64(255))
        shift = np.int64(head >> np.uint64(8) & np.uint64(255))
        start += 1
        if width + shift > 64 or head >> np.uint64(16):
            return UNFIT
        words = int((count * width + 63) // 64)
        if start + words > stored.size:
            return UNFIT
        if width:
            _take(stored, start, count, shift, width, out, at)
        else:
            for i in range(at, at + count):
                out[i] = np.uint64(0)
        start += words
    return start


@inlined
def _selector(count: Any) -> Any:
    """The selector with the most values of those that have at most so many; and how many."""
    if count >= 240:
        return 0, 240
    if count >= 120:
        return 1, 120
    if count >= 60:
        return 2, 60
    if count >= 30:
        return 3, 30
    if count >= 20:
        return 4, 20
    if count >= 15:
        return 5, 15
    if count >= 12:
        return 6, 12
    if count >= 10:
        return 7, 10
    if count >= 8:
        return 8, 8
    if count >= 7:
        return 9, 7
    if count >= 6:
        return 10, 6
    if count >= 5:
        return 11, 5
    if count >= 4:
        return 12, 4
    if count >= 3:
        return 13, 3
    if count >= 2:
        return 14, 2
    return 15, 1


@inlined
def _slots(selector: Any) -> Any:
    """How many values a selector stands for."""
    if selector <= 2:
        return 240 >> selector
    if selector == 3:
        return 30
    if selector <= 6:
        return 20 if selector == 4 else 15 if selector == 5 else 12
    if selector == 7:
        return 10
    return 16 - selector if selector >= 9 else 8


@loop
def simple8b(words: HashWords, out: HashWords) -> int:
    """Write as many words into 60 bits as fit with the width of the widest, and 4 that say so."""
    at, into = 0, 0
    while at < words.size:
        count, widest = 0, 0
        most = min(240, words.size - at)
        while count < most:
            width = max(widest, _leading_bits(words[at + count]))
            if width * (count + 1) > 60:
                break
            widest = width
            count += 1
        if count == 0 or into >= out.size:
            return UNFIT
        selector, slots = _selector(count)
        held = np.uint64(selector) << np.uint64(60)
        if selector > 1:
            bits = 60 // slots
            for i in range(slots):
                held |= words[at + i] << np.uint64(i * bits)
        out[into] = held
        into += 1
        at += slots
    return into


@loop
def unsimple8b(stored: ReadHashWords, start: int, out: HashWords) -> int:
    """Undo `simple8b`, from the stored word at `start`; return where the next one is."""
    at = 0
    if start < 0:
        return UNFIT
    while at < out.size:
        if start >= stored.size:
            return UNFIT
        held = stored[start]
        selector = np.int64(held >> np.uint64(60))
        slots = _slots(selector)
        if at + slots > out.size:
            return UNFIT
        if selector > 1:
            bits = 60 // slots
            mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
            for i in range(slots):
                out[at + i] = (held >> np.uint64(i * bits)) & mask
        else:
            for i in range(slots):
                out[at + i] = np.uint64(0)
        start += 1
        at += slots
    return start


@loop
def variable_bytes(words: HashWords, out: Bytes) -> int:
    """Write seven bits in each byte, and whether more follow."""
    into = 0
    for i in range(words.size):
        word = words[i]
        if into + 10 > out.size:
            return UNFIT
        while word >= np.uint64(128):
            out[into] = np.uint8(word & np.uint64(127)) | np.uint8(128)
            word >>= np.uint64(7)
            into += 1
        out[into] = np.uint8(word)
        into += 1
    return into


@loop
def unvariable_bytes(stored: ReadBytes, start: int, out: HashWords) -> int:
    """Undo `variable_bytes`, from the byte at `start`; return where the next one is."""
    if start < 0:
        return UNFIT
    for i in range(out.size):
        word = np.uint64(0)
        shift = 0
        while True:
            if start >= stored.size or shift > 63:
                return UNFIT
            byte = np.uint64(stored[start])
            start += 1
            word |= (byte & np.uint64(127)) << np.uint64(shift)
            if byte < np.uint64(128):
                break
            shift += 7
        out[i] = word
    return start
