"""Expressions compiled to fused Numba loops: source, cache, hashing, and the NumPy path beside them."""
