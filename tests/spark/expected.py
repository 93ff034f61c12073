"""What the queries of these tests must give: computed from the event numbers alone, with NumPy.

Nothing of the engine is used here, nor of its generator: this is the judge.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

BASE_MS = 1_600_002_000_000
SIZE_US, SLIDE_US = 10_000_000, 2_000_000


def bids(events: int, rate: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Auction and time (in microseconds) of the bids among the first events."""
    numbers = np.arange(events, dtype=np.uint64)
    numbers = numbers[numbers % 50 > 3]
    epochs = numbers // 50
    newest = (3 * epochs + 2).astype(np.int64)
    hot = newest // 100 * 100
    oldest = np.maximum(newest - 100, 0)
    drawn = _hash(seed, numbers, 2) % (newest + 10 - oldest + 1).astype(np.uint64)
    is_hot = _hash(seed, numbers, 1) % np.uint64(2) > 0
    auctions = 1000 + np.where(is_hot, hot, oldest + drawn.astype(np.int64))
    delay_us = 1_000_000 / rate
    times_ms = BASE_MS + (numbers.astype(np.float64) * delay_us).astype(np.int64) // 1000
    return auctions, times_ms * 1000


def running_counts(events: int, rate: float) -> dict[int, int]:
    """Bids per auction."""
    auctions, _ = bids(events, rate)
    keys, counts = np.unique(auctions, return_counts=True)
    return dict(zip(keys.tolist(), counts.tolist(), strict=True))


def window_counts(events: int, rate: float) -> Counter[tuple[int, int, int]]:
    """(start of window, auction, bids) for windows of 10 s every 2 s, each once."""
    auctions, times_us = bids(events, rate)
    last_us = times_us // SLIDE_US * SLIDE_US
    rows: Counter[tuple[int, int, int]] = Counter()
    starts = np.concatenate([last_us - back for back in range(0, SIZE_US, SLIDE_US)])
    pairs = np.stack([starts, np.tile(auctions, SIZE_US // SLIDE_US)])
    keys, counts = np.unique(pairs, axis=1, return_counts=True)
    for start, auction, count in zip(*keys.tolist(), counts.tolist(), strict=True):
        rows[start, auction, count] += 1
    return rows


def _hash(seed: int, numbers: np.ndarray, field: int) -> np.ndarray:
    state = np.zeros(len(numbers), np.uint64)
    for word in (np.uint64(seed), np.uint64(0), numbers, np.uint64(field)):
        state = _mix(state ^ _mix(np.broadcast_to(word, state.shape)))
    return state


def _mix(words: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        z = words + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
