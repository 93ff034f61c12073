"""The codecs' loops with NumPy: what runs until they are compiled, and where they cannot be.

All that is stored can be read with them. Of what writes, only differences and packing have one; the
others say that nothing fits, and another form is taken.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.log.codecs.kernels import (
    BLOCK_WORDS,
    DELTA,
    DELTA2,
    STRADDLED_BITS_MIN,
    UNFIT,
    VALUES,
    XOR,
)

_Words = NDArray[np.uint64]
_Bytes = NDArray[np.uint8]
_ALL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_SLOTS = np.array([240, 120, 60, 30, 20, 15, 12, 10, 8, 7, 6, 5, 4, 3, 2, 1])

logger = logging.getLogger(__name__)


def run(loop: Any, *arguments: Any) -> int:
    """Run a loop, or for good what stands in for it if it cannot be compiled."""
    try:
        return int(loop(*arguments))
    except Exception:  # whatever Numba or the disk raises: loops themselves raise nothing
        logger.warning("codec loop %s cannot be compiled: NumPy does it", loop.name, exc_info=True)
        loop.use(STAND_INS[loop.name])
        return int(loop(*arguments))


def _of_size(values: _Bytes, size: int) -> NDArray[Any]:
    return values[: values.size // size * size].view(f"u{size}")


def differences(values: _Bytes, size: int, order: int, low: int, at: int, out: _Words) -> int:
    found = _of_size(values, size)[at:]
    count = out.size
    if order == XOR:
        out[:] = found[1 : count + 1] ^ found[:count]
    else:
        firsts = found[: count + order]
        part = np.diff(firsts, order) if order else firsts
        out[:] = part - np.array(low % (1 << 8 * size)).astype(part.dtype)
    return int(np.bitwise_or.reduce(out).astype(np.int64)) if count else 0


def restore(words: _Words, size: int, order: int, low: int, at: int, out: _Bytes) -> int:
    values = _of_size(out, size)
    below = np.uint64(low % (1 << 64))
    if order == VALUES:
        found = words + below
    elif order == XOR:
        found = np.bitwise_xor.accumulate(np.append(values[at - 1 : at].astype(np.uint64), words))[
            1:
        ]
    else:
        found = np.cumsum(words + below)
        last = values[at - 1 : at].astype(np.uint64)
        if order == DELTA2:
            delta = last - values[at - 2 : at - 1].astype(np.uint64)
            found = np.cumsum(found + delta)
        found = found + last
    assert order in (VALUES, DELTA, DELTA2, XOR)
    values[at : at + words.size] = found.astype(values.dtype)
    return 0


def _to_bits(words: _Words, width: int) -> _Words:
    bits = np.unpackbits(words.view(np.uint8), bitorder="little").reshape(-1, 64)[:, :width]
    packed = np.packbits(bits.ravel(), bitorder="little")
    return np.frombuffer(packed.tobytes() + bytes(-packed.size % 8), np.uint64)


def _from_bits(stored: _Words, width: int, count: int) -> _Words:
    bits = np.unpackbits(stored.view(np.uint8), count=count * width, bitorder="little")
    wide = np.zeros((count, 64), np.uint8)
    wide[:, :width] = bits.reshape(count, width)
    return np.packbits(wide.ravel(), bitorder="little").view(np.uint64)


def pack(words: _Words, width: int, out: _Words) -> int:
    if width >= STRADDLED_BITS_MIN and width != 32:
        found = _to_bits(np.ascontiguousarray(words), width)
    else:
        each = 64 // width
        lines = np.zeros(-(-words.size // each) * each, np.uint64)
        lines[: words.size] = words
        shifts = np.arange(each, dtype=np.uint64) * np.uint64(width)
        found = np.bitwise_or.reduce(lines.reshape(-1, each) << shifts, axis=1)
    out[: found.size] = found
    return found.size


def unpack(stored: _Words, start: int, width: int, out: _Words) -> int:
    straddled = width >= STRADDLED_BITS_MIN and width != 32
    each = 64 // width
    size = -(-out.size * width // 64) if straddled else -(-out.size // each)
    if start + size > stored.size:
        return UNFIT
    found = stored[start : start + size]
    if straddled:
        out[:] = _from_bits(found, width, out.size)
    else:
        shifts = np.arange(each, dtype=np.uint64) * np.uint64(width)
        lines = (found[:, None] >> shifts) & (_ALL >> np.uint64(64 - width))
        out[:] = lines.ravel()[: out.size]
    return 0


def unpack_blocks(stored: _Words, start: int, out: _Words) -> int:
    for at in range(0, out.size, BLOCK_WORDS):
        part = out[at : at + BLOCK_WORDS]
        if start >= stored.size:
            return UNFIT
        head = int(stored[start])
        width, shift, start = head & 255, head >> 8, start + 1
        size = -(-part.size * width // 64)
        if width + shift > 64 or start + size > stored.size:
            return UNFIT
        part[:] = 0
        if width:
            part[:] = _from_bits(stored[start : start + size], width, part.size) << np.uint64(shift)
        start += size
    return start


def unsimple8b(stored: _Words, start: int, out: _Words) -> int:
    held = stored[start : start + out.size]
    selectors = (held >> np.uint64(60)).astype(np.int64)
    ends = np.cumsum(_SLOTS[selectors])
    used = int(np.searchsorted(ends, out.size)) + 1
    if not out.size:
        return start
    if used > held.size or ends[used - 1] != out.size:
        return UNFIT
    held, selectors, begins = held[:used], selectors[:used], ends[:used] - _SLOTS[selectors[:used]]
    out[:] = 0
    for selector in range(2, 16):
        slots = int(_SLOTS[selector])
        bits, mine = 60 // slots, np.flatnonzero(selectors == selector)
        shifts = np.arange(slots, dtype=np.uint64) * np.uint64(bits)
        places = begins[mine][:, None] + np.arange(slots)
        out[places] = (held[mine][:, None] >> shifts) & np.uint64((1 << bits) - 1)
    return start + used


def unvariable_bytes(stored: _Bytes, start: int, out: _Words) -> int:
    if not out.size:
        return start
    part = stored[start : start + 10 * out.size]
    ends = np.flatnonzero(part < 128)[: out.size]
    if ends.size < out.size:
        return UNFIT
    begins = np.append(0, ends[:-1] + 1)
    lengths = ends + 1 - begins
    if lengths.max() > 10:
        return UNFIT
    part = part[: ends[-1] + 1].astype(np.uint64)
    shifts = (np.arange(part.size) - np.repeat(begins, lengths)).astype(np.uint64) * np.uint64(7)
    out[:] = np.bitwise_or.reduceat((part & np.uint64(127)) << shifts, begins)
    return start + part.size


def _nothing_fits(*arguments: Any) -> int:
    return UNFIT


STAND_INS: MappingProxyType[str, Callable[..., int]] = MappingProxyType(
    {
        "differences": differences,
        "restore": restore,
        "pack": pack,
        "unpack": unpack,
        "pack_blocks": _nothing_fits,
        "unpack_blocks": unpack_blocks,
        "simple8b": _nothing_fits,
        "unsimple8b": unsimple8b,
        "variable_bytes": _nothing_fits,
        "unvariable_bytes": unvariable_bytes,
    }
)
