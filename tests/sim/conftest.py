"""Simulated runs need no compiled code: where it matters a test asks for it."""

from tests.compiled_code import without

__all__ = ["without"]
