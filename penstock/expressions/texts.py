"""Texts searched, cut, repeated and rewritten, on characters; and bytes as text in other forms."""

from __future__ import annotations

import base64
import re
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import Mask, Vector, text_column, texts_of, validity_of, values_of
from penstock.expressions.arithmetic import both_valid
from penstock.expressions.frame import Frame
from penstock.expressions.nodes import Call
from penstock.expressions.regex import match_pattern, replacement_text
from penstock.expressions.strings import PAD_CHARACTERS_MAX, characters_of, first_character
from penstock.expressions.types import INT
from penstock.expressions.vectors import arrow_column, byte_offsets, string_slices

_HEX_DIGITS = np.frombuffer(b"0123456789ABCDEF", np.uint8)


# --- searched -------------------------------------------------------------------------------------


def octets(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """Length in bytes or bits."""
    lengths = pc.binary_length(args[0])
    return (
        lengths if node.function == "octet_length" else pc.multiply(lengths, pa.scalar(8, "int32"))
    )


def instr(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """Where a constant text is first found, counted from 1 in characters; 0 if it is not."""
    part = node.option("part")
    found = pc.find_substring(args[0].view(pa.binary()), pattern=part.encode("utf-8"))
    at = values_of(found).astype(np.int64)
    begins = byte_offsets(args[0])[:-1]
    before = string_slices(args[0], begins, begins + np.maximum(at, 0), validity_of(args[0]))
    places = values_of(pc.utf8_length(before)).astype(np.int64) + 1
    return arrow_column(np.where(at < 0, 0, places), validity_of(args[0]), INT)


def ascii_code(_node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """The code of the first character, 0 of an empty text."""
    first = pc.utf8_slice_codeunits(args[0], 0, 1)
    codes = pc.utf8_rpad(first.fill_null("\0"), 1, "\0")
    whole = b"".join([text.encode("utf-32-le") for text in _distinct(codes)])
    known = np.frombuffer(whole, np.uint32).astype(np.int64)
    at = codes.dictionary_encode().indices.to_numpy()
    found = known[at] if len(at) else np.zeros(0, np.int64)
    return arrow_column(found, validity_of(args[0]), INT)


def _distinct(texts: pa.Array) -> list[str]:
    found: list[str] = texts.dictionary_encode().dictionary.to_pylist()
    return found


def character(_node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """The character of each code modulo 256; no text for a negative one."""
    codes = values_of(args[0])
    table = pa.array(["", *(chr(code) for code in range(256))])
    at = np.where(codes < 0, 0, codes % 256 + 1)
    return table.take(pa.array(at, mask=~validity_of(args[0])))


# --- cut ------------------------------------------------------------------------------------------


def substring_index(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """What stands before the n-th separator from the left, or behind the n-th from the right."""
    separator, count = node.option("separator"), int(node.option("count"))
    if not separator or count == 0:
        return pc.if_else(args[0].is_valid(), "", args[0])
    limit = abs(count)
    pieces = pc.split_pattern(args[0], pattern=separator, max_splits=limit, reverse=count < 0)
    lengths = pc.list_value_length(pieces).fill_null(0).to_numpy(zero_copy_only=False)
    enough = pa.array(lengths > limit)
    kept = pc.list_slice(pieces, 0, limit) if count > 0 else _last_items(pieces, limit)
    return pc.if_else(enough, pc.binary_join(kept, separator), args[0])


def _last_items(pieces: pa.Array, count: int) -> pa.Array:
    """The last of each list; lists are as long as that, or their rows are not looked at."""
    offsets = pieces.offsets.to_numpy().astype(np.int64)
    begins = np.maximum(offsets[1:] - count, offsets[:-1])
    lengths = offsets[1:] - begins
    ends = np.cumsum(lengths)
    taken = np.repeat(begins - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)
    bounds = pa.array(np.append(0, ends).astype(np.int32))
    return pa.ListArray.from_arrays(bounds, pieces.values.take(pa.array(taken)))


def trim_characters(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """Any of a constant set of characters, cut off at the ends."""
    cut = {
        "trim_characters": pc.utf8_trim,
        "ltrim_characters": pc.utf8_ltrim,
        "rtrim_characters": pc.utf8_rtrim,
    }[node.function]
    wanted = node.option("characters")
    return cut(args[0], characters=wanted) if wanted else args[0]


def split_part(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """The parts between constant separators."""
    separator = node.option("separator")
    if separator:
        return pc.split_pattern(args[0], pattern=separator)
    offsets = pa.array(np.arange(len(args[0]) + 1, dtype=np.int32))
    mask = pa.array(~validity_of(args[0]))
    return pa.ListArray.from_arrays(offsets, args[0].fill_null(""), mask=mask)


def bytes_cut(_node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """A part of bytes, by a position from 1 on or from the end, and a length."""
    offsets = byte_offsets(args[0])
    lengths = np.diff(offsets)
    positions, counts = (values_of(arg).astype(np.int64) for arg in args[1:])
    starts = first_character(positions, lengths)
    ends = np.clip(starts + counts, 0, lengths)
    starts = np.clip(starts, 0, lengths)
    cut = string_slices(args[0], offsets[:-1] + starts, offsets[:-1] + ends, both_valid(args))
    return cut.view(pa.binary())


# --- rewritten ------------------------------------------------------------------------------------


def reverse(_node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    return pc.utf8_reverse(args[0])


def repeat(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    valid = both_valid(args)
    counts = np.where(valid, np.maximum(values_of(args[1]).astype(np.int64), 0), 0)
    lengths = pc.binary_length(args[0]).fill_null(0).to_numpy().astype(np.int64)
    too_long = counts * np.maximum(lengths, 1) > PAD_CHARACTERS_MAX
    frame.fail(too_long & valid, f"a text longer than {PAD_CHARACTERS_MAX} bytes", node)
    counts = np.where(too_long, 0, counts)
    return pc.binary_repeat(args[0], pa.array(counts, mask=~valid))


def translate(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """Constant characters exchanged for others, or left out."""
    table = _translation(node.option("matching"), node.option("replacing"))
    text = args[0]
    codes = text.dictionary_encode()
    changed = pa.array(
        [each.translate(table) for each in codes.dictionary.to_pylist()], pa.string()
    )
    return changed.take(codes.indices)


@lru_cache(maxsize=256)
def _translation(matching: str, replacing: str) -> dict[int, str | None]:
    table: dict[int, str | None] = {}
    for place, letter in enumerate(matching):
        table.setdefault(ord(letter), replacing[place] if place < len(replacing) else None)
    return table


def overlay(_node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """A text with a part of it, from a position on, replaced by another."""
    text, new = args[0], args[1]
    lengths = values_of(pc.utf8_length(text)).astype(np.int64)
    position, wanted = (values_of(arg).astype(np.int64) for arg in args[2:])
    count = np.where(wanted >= 0, wanted, values_of(pc.utf8_length(new)).astype(np.int64))
    before = characters_of(text, np.zeros_like(lengths), position - 1, args)
    after = characters_of(text, first_character(position + count, lengths), lengths, args)
    return pc.binary_join_element_wise(before, new, after, "")


def regexp_replace(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    return pc.replace_substring_regex(
        args[0],
        pattern=match_pattern(node.option("pattern")),
        replacement=replacement_text(node.option("replacement")),
    )


def regexp_extract(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """A group of the first match, empty where there is none, or the group took no part."""
    pattern, group = node.option("pattern"), int(node.option("group"))
    named = match_pattern(pattern)
    wanted = f"(?P<g>{named})" if group == 0 else _with_named_group(named, group)
    found = pc.extract_regex(args[0], pattern=wanted)
    text = pc.struct_field(found, "g").fill_null("")
    return pc.if_else(args[0].is_valid(), text, pa.scalar(None, pa.string()))


@lru_cache(maxsize=256)
def _with_named_group(pattern: str, group: int) -> str:
    """The pattern with its n-th group called g, and the others without a name."""
    out: list[str] = []
    count, at, in_class = 0, 0, False
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            out.append(pattern[at : at + 2])
            at += 2
            continue
        if letter == "[" and not in_class:
            in_class = True
        elif letter == "]":
            in_class = False
        if letter == "(" and not in_class and not pattern.startswith("(?", at):
            count += 1
            out.append("(?P<g>" if count == group else "(?:")
        else:
            out.append(letter)
        at += 1
    return "".join(out)


# --- other forms ----------------------------------------------------------------------------------


def hexadecimal(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """Bytes as two digits each; a number without leading zeros."""
    if node.args[0].type.kind == "bigint":
        return _number_in_base(values_of(args[0]), validity_of(args[0]), 4)
    offsets, data = texts_of(args[0])
    low, high = int(offsets[0]), int(offsets[-1])
    part = data[low:high]
    digits = np.empty(2 * len(part), np.uint8)
    digits[0::2], digits[1::2] = _HEX_DIGITS[part >> 4], _HEX_DIGITS[part & 15]
    bounds = (offsets.astype(np.int64) - low) * 2
    return text_column(pa.string(), bounds, digits, validity_of(args[0]))


def binary_digits(_node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    return _number_in_base(values_of(args[0]), validity_of(args[0]), 1)


def _number_in_base(values: Vector, valid: Mask, bits: int) -> pa.Array:
    """Unsigned 64-bit numbers in digits of that many bits."""
    numbers = values.astype(np.int64).view(np.uint64)
    shifts = np.arange(64 - bits, -1, -bits, dtype=np.uint64)
    digits = (numbers[:, None] >> shifts[None, :]) & np.uint64((1 << bits) - 1)
    width = len(shifts)
    data = _HEX_DIGITS[digits.astype(np.int64)].reshape(-1)
    text = text_column(pa.string(), np.arange(len(values) + 1) * width, data, valid)
    trimmed = pc.utf8_ltrim(text, "0")
    return pc.if_else(pc.equal(trimmed, ""), "0", trimmed)


def unhex(_node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """Bytes of hexadecimal digits, null of others; an odd number of them begins with a zero."""
    codes = args[0].dictionary_encode()
    decoded = [_unhexed(text) for text in codes.dictionary.to_pylist()]
    return pa.array(decoded, pa.binary()).take(codes.indices)


def _unhexed(text: str) -> bytes | None:
    if re.fullmatch("[0-9A-Fa-f]*", text) is None:
        return None
    return bytes.fromhex(text if len(text) % 2 == 0 else "0" + text)


def to_base64(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """Base64 in lines of 76 characters, as MIME has them, or in one."""
    lines = bool(node.option("lines"))
    codes = args[0].dictionary_encode()
    encoded = [_base64_text(data, lines) for data in codes.dictionary.to_pylist()]
    return pa.array(encoded, pa.string()).take(codes.indices)


def padded_number(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """A whole number at least so long; zeros stand between sign and digits, and null is a word."""
    text, width = args[0].cast(pa.string()), int(node.option("width"))
    if node.option("zeros"):
        digits, is_negative = pc.utf8_ltrim(text, "-"), pc.starts_with(text, "-")
        negative = pc.binary_join_element_wise("-", pc.utf8_lpad(digits, width - 1, "0"), "")
        text = pc.if_else(is_negative, negative, pc.utf8_lpad(digits, width, "0"))
    return pc.utf8_lpad(text.fill_null("null"), width, " ")


def from_base64(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    codes = args[0].dictionary_encode()
    decoded = [_of_base64(text) for text in codes.dictionary.to_pylist()]
    found = pa.array(decoded, pa.binary()).take(codes.indices)
    broken = validity_of(args[0]) & ~validity_of(found)
    frame.fail(broken, "a text that is not Base64", node)
    return found


_NOT_BASE64, _IS_BASE64 = re.compile("[^A-Za-z0-9+/]"), re.compile("[A-Za-z0-9+/]")


def _of_base64(text: str) -> bytes | None:
    """As Java reads MIME: what is none of the 64 is passed over; None: the end is broken."""
    letters, padding, rest = text.partition("=")
    own = _NOT_BASE64.sub("", letters)
    last = len(own) % 4
    if last == 1 or (padding and not last) or _IS_BASE64.search(rest):
        return None
    if padding and last == 2 and not rest.startswith("="):
        return None
    return base64.b64decode(own + "=" * (-last % 4))


def _base64_text(data: bytes, lines: bool) -> str:
    text = base64.b64encode(data).decode("ascii")
    if not lines:
        return text
    return "\r\n".join(text[at : at + 76] for at in range(0, len(text), 76))
