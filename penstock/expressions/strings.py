"""Text functions on characters, not bytes; indices start at 1 and may count from the end."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import Vector, texts_of, true_rows, validity_of, values_of
from penstock.expressions.arithmetic import both_valid
from penstock.expressions.frame import Frame
from penstock.expressions.nodes import Call, Literal
from penstock.expressions.regex import like_pattern, plain_text, search_pattern, split_pattern
from penstock.expressions.searching import each_contains, each_replaced
from penstock.expressions.types import BOOLEAN
from penstock.expressions.vectors import arrow_column, byte_offsets, changed_at_once, string_slices

PAD_CHARACTERS_MAX = 1_000_000


def length(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    if node.args[0].type.kind == "binary":
        return pc.binary_length(args[0])
    return pc.utf8_length(args[0])


def substring(_node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """From a 1-based position (0 means 1, negative counts from the end) that many characters."""
    positions = values_of(args[1]).astype(np.int64)
    counts = values_of(args[2]).astype(np.int64)
    lengths = values_of(pc.utf8_length(args[0])).astype(np.int64)
    starts = first_character(positions, lengths)
    return characters_of(args[0], starts, starts + counts, args)


def first_character(positions: Vector, lengths: Vector) -> Vector:
    """What a position of SQL means: from 1 on, from the end where negative, and 0 as 1."""
    return np.where(positions > 0, positions - 1, np.where(positions < 0, lengths + positions, 0))


def characters_of(text: pa.Array, starts: Vector, ends: Vector, args: list[pa.Array]) -> pa.Array:
    """Characters [start, end) of each row, clamped to the row."""
    valid = both_valid(args)
    offsets = byte_offsets(text)
    firsts = _first_bytes(text)
    base = np.searchsorted(firsts, offsets)
    lengths = np.diff(base)
    starts = np.clip(starts, 0, lengths)
    ends = np.clip(ends, starts, lengths)
    return string_slices(text, firsts[base[:-1] + starts], firsts[base[:-1] + ends], valid)


def _first_bytes(text: pa.Array) -> Vector:
    """Where each character begins, and the end of the data."""
    _, data = texts_of(text)
    return np.append(np.flatnonzero((data & 0xC0) != 0x80), len(data))


def concat(_node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    return pc.binary_join_element_wise(*args, "", null_handling="emit_null")


def concat_ws(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """What is not null, with the separator in between; empty text if everything is null."""
    separator = node.option("separator")
    pieces = [pc.binary_join_element_wise(separator, arg, "").fill_null("") for arg in args]
    joined = pc.binary_join_element_wise(*pieces, "")
    some = np.logical_or.reduce([validity_of(arg) for arg in args])
    offsets = byte_offsets(joined)
    begins = offsets[:-1] + np.where(some, len(separator.encode("utf-8")), 0)
    return string_slices(joined, begins, offsets[1:], np.ones(len(joined), np.bool_))


def change_case(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """ASCII rows by Arrow; the others by full case mapping, which changes lengths."""
    text = args[0]
    is_upper = node.function == "upper"
    result = (pc.ascii_upper if is_upper else pc.ascii_lower)(text)
    other = ~true_rows(pc.string_is_ascii(text)) & validity_of(text)
    if not other.any():
        return result
    some = text.filter(pa.array(other))
    changed = changed_at_once(some, str.upper if is_upper else str.lower)
    return pc.replace_with_mask(result, pa.array(other), changed)


def trim(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """Spaces only: tabs and line breaks stay."""
    cut = {"trim": pc.utf8_trim, "ltrim": pc.utf8_ltrim, "rtrim": pc.utf8_rtrim}[node.function]
    return cut(args[0], characters=" ")


def _constant(node: Call, index: int) -> str | None:
    arg = node.args[index]
    return arg.value if isinstance(arg, Literal) else None


def starts_or_ends_with(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    text, part = args
    constant = _constant(node, 1)
    if constant is not None:
        test = pc.starts_with if node.function == "starts_with" else pc.ends_with
        return test(text, pattern=constant)
    offsets, part_bytes = byte_offsets(text), np.diff(byte_offsets(part))
    begins, ends = offsets[:-1], offsets[1:]
    if node.function == "starts_with":
        ends = np.minimum(ends, begins + part_bytes)
    else:
        begins = np.maximum(begins, ends - part_bytes)
    # compared as bytes: a cut inside a character cannot equal a whole text
    cut = string_slices(text, begins, ends, both_valid(args)).view(pa.binary())
    return pc.equal(cut, part.view(pa.binary()))


def contains(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    constant = _constant(node, 1)
    if constant is not None:
        return pc.match_substring(args[0], pattern=constant)
    return arrow_column(each_contains(*args), both_valid(args), BOOLEAN)


def replace(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    search, replacement = _constant(node, 1), _constant(node, 2)
    if search == "" and replacement is not None:
        return args[0]
    if search is not None and replacement is not None:
        return pc.replace_substring(args[0], pattern=search, replacement=replacement)
    return each_replaced(args[0], args[1], args[2], both_valid(args))


def like(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    pattern = like_pattern(node.option("pattern"), node.option("escape"))
    return pc.match_substring_regex(args[0], pattern=pattern)


def rlike(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    pattern = search_pattern(node.option("pattern"))
    return pc.match_substring_regex(args[0], pattern=pattern)


def split(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    pattern = node.option("pattern")
    regex, text = split_pattern(pattern), plain_text(pattern)
    if text is not None:  # several times faster, and most patterns are a space or a comma
        return pc.split_pattern(args[0], pattern=text)
    return pc.split_pattern_regex(args[0], pattern=regex)


def pad(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    """To exactly that many characters: cut if longer, filled on one side if shorter."""
    text, fill = args[0], args[2]
    valid = both_valid(args)
    wanted = np.where(valid, np.maximum(values_of(args[1]).astype(np.int64), 0), 0)
    too_long = wanted > PAD_CHARACTERS_MAX
    frame.fail(too_long, f"a text longer than {PAD_CHARACTERS_MAX} characters", node)
    wanted = np.where(too_long, 0, wanted)
    kept = characters_of(text, np.zeros(len(wanted), np.int64), wanted, args)
    missing = np.maximum(wanted - values_of(pc.utf8_length(kept)).astype(np.int64), 0)
    filling = _filling(fill, np.where(valid, missing, 0))
    parts = [filling, kept] if node.function == "lpad" else [kept, filling]
    return pc.binary_join_element_wise(*parts, "", null_handling="emit_null")


def _filling(fill: pa.Array, missing: Vector) -> pa.Array:
    """The first `missing` characters of each fill repeated."""
    firsts = _first_bytes(fill)
    base = np.searchsorted(firsts, byte_offsets(fill))
    lengths = np.diff(base)
    missing = np.where(lengths == 0, 0, missing)
    ends = np.cumsum(missing)
    places = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - missing, missing)
    places = np.repeat(base[:-1], missing) + places % np.repeat(lengths, missing)
    everywhere = np.ones(len(places), np.bool_)
    characters = string_slices(fill, firsts[places], firsts[places + 1], everywhere)
    offsets = byte_offsets(characters)
    begins, ends = offsets[ends - missing], offsets[ends]
    return string_slices(characters, begins, ends, np.ones(len(fill), np.bool_))
