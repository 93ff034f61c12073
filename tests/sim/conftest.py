"""Simulated runs need no compiled code, unless there are many of them."""

from tests.compiled_code import only_where_it_pays

__all__ = ["only_where_it_pays"]
