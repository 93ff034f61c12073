"""Chains run without compiled code, and with it in the deep part."""

from tests.compiled_code import without_and_with

__all__ = ["without_and_with"]
