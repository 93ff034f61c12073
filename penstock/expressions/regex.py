"""Java's regular expressions and SQL's LIKE, rewritten for RE2 where both mean the same.

Understood: literals, `.`, classes without nesting, groups, `|`, greedy and lazy quantifiers, the
escapes \\d \\w \\s (and capitals) \\t \\n \\r \\f and escaped punctuation, `^`, and `$` at the
end of a branch. Everything else (look-around, back references, flags, possessive quantifiers,
\\p, \\b …) is refused with an ExpressionError rather than guessed.
"""

from __future__ import annotations

import re
from functools import lru_cache

from penstock.errors import ExpressionError

_LINE_END = r"\n\r\x{85}\x{2028}\x{2029}"
_DOLLAR = rf"(?:\r\n|[{_LINE_END}])?\z"  # Java's $ also stands before a final line break
_SPACES = r" \t\n\x0B\f\r"
_ESCAPED_OUTSIDE = {
    "d": "[0-9]", "D": "[^0-9]", "w": "[A-Za-z0-9_]", "W": "[^A-Za-z0-9_]",
    "s": f"[{_SPACES}]", "S": f"[^{_SPACES}]", "t": r"\t", "n": r"\n", "r": r"\r", "f": r"\f",
}  # fmt: skip
_ESCAPED_IN_CLASS = {
    "d": "0-9", "w": "A-Za-z0-9_", "s": _SPACES, "t": r"\t", "n": r"\n", "r": r"\r", "f": r"\f",
}  # fmt: skip
_PUNCTUATION = frozenset("\\.[]{}()*+-?^$|/!\"#%&',:;<=>@_`~ ") - {"_"}
_SPECIAL = frozenset("\\.[{()*+?^$|")
_COUNT = re.compile(r"\{\d{1,3}(?:,\d{0,3})?\}")


def _refuse(pattern: str, reason: str) -> ExpressionError:
    return ExpressionError(
        f"the pattern {pattern!r:.200} cannot be run here: {reason}",
        pattern=pattern[:200],
    )


@lru_cache(maxsize=1024)
def search_pattern(pattern: str) -> str:
    """RE2 text that is found exactly where Java would find `pattern`."""
    return _Translation(pattern, anchors=True).run()


@lru_cache(maxsize=1024)
def match_pattern(pattern: str) -> str:
    """RE2 text that matches exactly what Java would; what can match nothing is refused, and so is
    `$`, which would take the line break that it stands before."""
    translated = _Translation(pattern, anchors=True, end_anchor=False).run()
    if re.search(_for_python(translated), "") is not None:
        raise _refuse(pattern, "it can match the empty string")
    return translated


@lru_cache(maxsize=1024)
def split_pattern(pattern: str) -> str:
    """RE2 text to split at; patterns that can match nothing split differently, so are refused."""
    translated = _Translation(pattern, anchors=False).run()
    if re.search(_for_python(translated), "") is not None:
        raise _refuse(pattern, "it can match the empty string")
    return translated


@lru_cache(maxsize=1024)
def plain_text(pattern: str) -> str | None:
    """The text that a Java pattern matches and nothing else, None if it may match others."""
    text = re.sub(r"\\([^A-Za-z0-9_])", lambda escaped: escaped.group(1), pattern)
    bare = re.sub(r"\\[^A-Za-z0-9_]", "", pattern)
    return None if not text or set(bare) & _SPECIAL else text


@lru_cache(maxsize=1024)
def replacement_text(replacement: str) -> str:
    """Java's replacement ($1 is a group, a backslash takes the next character as it is) for RE2."""
    out: list[str] = []
    at = 0
    while at < len(replacement):
        letter = replacement[at]
        at += 1
        if letter == "\\":
            if at == len(replacement):
                raise _refuse(replacement, "it ends in a backslash")
            letter = replacement[at]
            at += 1
        elif letter == "$":
            group = replacement[at : at + 1]
            if not group.isdigit() or not group.isascii() or replacement[at + 1 : at + 2].isdigit():
                raise _refuse(replacement, "only groups $0 to $9 are supported")
            at += 1
            out.append("\\" + group)
            continue
        out.append("\\\\" if letter == "\\" else letter)
    return "".join(out)


@lru_cache(maxsize=1024)
def groups_of(pattern: str) -> int:
    """How many groups a Java pattern has."""
    return re.compile(_for_python(match_pattern(pattern))).groups


class _Translation:
    """One left-to-right pass over a Java pattern."""

    def __init__(self, pattern: str, anchors: bool, end_anchor: bool = True) -> None:
        self.pattern = pattern
        self.anchors = anchors
        self.end_anchor = end_anchor
        self.at = 0
        self.out: list[str] = []

    def run(self) -> str:
        repeatable = False  # whether the last piece may carry a quantifier
        while self.at < len(self.pattern):
            repeatable = self.piece(repeatable)
        translated = "".join(self.out)
        try:
            re.compile(_for_python(translated))
        except re.error as error:
            raise _refuse(self.pattern, f"it is malformed ({error})") from error
        return translated

    def piece(self, repeatable: bool) -> bool:
        character = self.pattern[self.at]
        if character in "*+?{":
            self.quantifier(repeatable)
            return False
        self.at += 1
        if character == "\\":
            self.out.append(self.escape())
        elif character == "[":
            self.out.append(self.character_class())
        elif character == ".":
            self.out.append(f"[^{_LINE_END}]")
        elif character == "(":
            self.group_start()
            return False
        elif character == "|":
            self.out.append("|")
            return False
        elif character in "^$":
            self.anchor(character)
            return False
        elif character in "]}":
            self.out.append("\\" + character)
        else:
            self.out.append(character)
        return True

    def escape(self) -> str:
        if self.at >= len(self.pattern):
            raise _refuse(self.pattern, "it ends in a backslash")
        letter = self.pattern[self.at]
        self.at += 1
        if letter in _ESCAPED_OUTSIDE:
            return _ESCAPED_OUTSIDE[letter]
        if letter in _PUNCTUATION:
            return re.escape(letter)
        raise _refuse(self.pattern, f"\\{letter} is not supported")

    def group_start(self) -> None:
        if self.pattern.startswith("?:", self.at):
            self.at += 2
            self.out.append("(?:")
        elif self.pattern.startswith("?", self.at):
            raise _refuse(self.pattern, "flags, named groups and look-around are not supported")
        else:
            self.out.append("(")

    def anchor(self, character: str) -> None:
        if not self.anchors:
            raise _refuse(self.pattern, f"{character} is not supported in a split")
        if character == "^":
            self.out.append("^")
        elif not self.end_anchor:
            raise _refuse(self.pattern, "$ is supported only to search")
        elif self.at == len(self.pattern) or self.pattern[self.at] in "|)":
            self.out.append(_DOLLAR)
        else:
            raise _refuse(self.pattern, "$ is supported only at the end")

    def quantifier(self, repeatable: bool) -> None:
        if not repeatable:
            raise _refuse(self.pattern, f"nothing to repeat at {self.at}")
        match = re.compile(r"[*+?]").match(self.pattern, self.at)
        match = match or _COUNT.match(self.pattern, self.at)
        if match is None:
            raise _refuse(self.pattern, f"malformed repetition at {self.at}")
        self.at = match.end()
        self.out.append(match.group())
        if self.pattern.startswith("?", self.at):
            self.at += 1
            self.out.append("?")
        elif self.pattern.startswith("+", self.at):
            raise _refuse(self.pattern, "possessive quantifiers are not supported")

    def character_class(self) -> str:
        out = ["["]
        if self.pattern.startswith("^", self.at):
            self.at += 1
            out.append("^")
        empty = True
        while self.at < len(self.pattern):
            character = self.pattern[self.at]
            self.at += 1
            if character == "]" and not empty:
                return "".join([*out, "]"])
            if character in "[]" or self.pattern.startswith("&&", self.at - 1):
                raise _refuse(self.pattern, "nested classes and intersections are not supported")
            out.append(self.class_escape() if character == "\\" else character)
            empty = False
        raise _refuse(self.pattern, "a class is not closed")

    def class_escape(self) -> str:
        letter = self.pattern[self.at : self.at + 1]
        self.at += 1
        if letter in _ESCAPED_IN_CLASS:
            return _ESCAPED_IN_CLASS[letter]
        if letter in _PUNCTUATION:
            return "\\" + letter if letter in "\\[]^-" else letter
        raise _refuse(self.pattern, f"\\{letter} is not supported in a class")


def _for_python(translated: str) -> str:
    """The same pattern for Python's parser, which checks it before RE2 sees it."""
    escaped = re.sub(r"\\x\{([0-9A-F]+)\}", _python_escape, translated)
    return escaped.replace(r"\z", r"\Z")


def _python_escape(match: re.Match[str]) -> str:
    return f"\\u{int(match.group(1), 16):04x}"


@lru_cache(maxsize=1024)
def like_pattern(pattern: str, escape: str) -> str:
    """RE2 text that matches what LIKE does: `%` any text, `_` any character, line breaks too."""
    out = [r"(?s)\A"]
    at = 0
    while at < len(pattern):
        character = pattern[at]
        at += 1
        if character == escape:
            following = pattern[at : at + 1]
            if following not in ("%", "_", escape) or not following:
                raise _refuse(pattern, f"{escape!r} must stand before %, _ or itself")
            at += 1
            out.append(re.escape(following))
        elif character == "%":
            out.append(".*")
        elif character == "_":
            out.append(".")
        else:
            out.append(re.escape(character))
    return "".join([*out, r"\z"])
