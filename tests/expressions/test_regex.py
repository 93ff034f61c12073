"""Patterns: what is refused because Java and RE2 would not agree, and what LIKE means."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.errors import ExpressionError
from penstock.expressions.evaluate import evaluate
from penstock.expressions.regex import like_pattern, plain_text, search_pattern, split_pattern
from penstock.expressions.tree import call, column


@pytest.mark.parametrize(
    "pattern",
    [
        "(?i)a", "(?=a)", "(?<n>a)", "\\1", "\\bword", "\\p{L}", "a++", "a*+", "[a-z&&[b]]",
        "[[a]]",
        "a$b", "\\", "[a", "(a", "a)", "*a", "a{2", "a**", "\\Qx\\E", "\\u0041", "[]a]", "{",
        "(*a)",
    ],
)  # fmt: skip
def test_patterns_that_are_refused(pattern: str) -> None:
    with pytest.raises(ExpressionError):
        search_pattern(pattern)


@pytest.mark.parametrize("pattern", ["", "a*", "a?", "^a", "a$", "x|", "(a|b)*"])
def test_patterns_that_cannot_split(pattern: str) -> None:
    with pytest.raises(ExpressionError):
        split_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("a.b", "a\rb", False),
        ("a.b", "a\u2028b", False),
        ("a.b", "a😀b", True),
        ("b$", "ab\n", True),
        ("b$", "ab\n\n", False),
        ("\\s", "\x0b", True),
        ("\\d", "٣", False),
        ("[\\w-]+x", "a-x", True),
        ("a{2}", "aa", True),
        ("a}", "a}", True),
    ],
)
def test_patterns_mean_what_java_means(pattern: str, text: str, found: bool) -> None:
    matched = pc.match_substring_regex(pa.array([text]), pattern=search_pattern(pattern))
    assert matched.to_pylist() == [found]


def test_like_covers_the_whole_text_across_lines() -> None:
    texts = pa.array(["a\nb", "xa\nb", "a\nb\n"])
    matched = pc.match_substring_regex(texts, pattern=like_pattern("a%b", "\\"))
    assert matched.to_pylist() == [True, False, False]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [(" ", " "), (", ", ", "), ("\\.", "."), ("\\|\\|", "||"), ("\\\\", "\\"), ("日", "日")],
)
def test_a_pattern_that_is_plain_text_splits_as_the_text(pattern: str, text: str) -> None:
    assert plain_text(pattern) == text
    rows = pa.array([f"a{text}b", f"{text}{text}", "none", "", None])
    split = evaluate(
        call("split", column("a", "string"), pattern=pattern),
        pa.RecordBatch.from_arrays([rows], ["a"]),
    )
    assert split.equals(pc.split_pattern_regex(rows, pattern=split_pattern(pattern)))


@pytest.mark.parametrize("pattern", ["a.", "\\d", "[,]", "a+", "b|X", "(a)", "^a", "a$", "a{2}"])
def test_a_pattern_that_is_more_is_not_plain_text(pattern: str) -> None:
    assert plain_text(pattern) is None
