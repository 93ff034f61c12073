"""Expressions compiled to fused Numba loops: source, cache, hashing, and a NumPy path."""
