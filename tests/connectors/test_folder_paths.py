"""Which files count, by their paths alone; `tests/oracle/test_partitions.py` asks Spark too."""

from __future__ import annotations

import pytest

from penstock.connectors.folder_paths import FolderPaths, name_pattern, split_pattern
from penstock.errors import InvalidArgument, SourceError


@pytest.mark.parametrize(
    ("path", "folder", "below"),
    [("/a/b*/c", "/a", "b*/c"), ("/*", "/", "*"), ("/a/{b,c}", "/a", "{b,c}")],
)
def test_a_pattern_begins_where_its_first_wild_name_is(path: str, folder: str, below: str) -> None:
    assert split_pattern(path) == (folder, below)


@pytest.mark.parametrize(
    ("pattern", "fits", "other"),
    [
        ("a.b", "a.b", "axb"),
        ("a?", "ab", "abc"),
        ("{a,b{c,d}}", "bd", "b"),
        ("[!a-c]", "d", "b"),
        ("[a.]", ".", "b"),
        ("a,b}", "a,b}", "a"),
        (r"\*[\]]", "*]", "a]"),
        ("x(1)+$", "x(1)+$", "x1"),
    ],
)
def test_a_pattern_of_names(pattern: str, fits: str, other: str) -> None:
    assert name_pattern(pattern).fullmatch(fits)
    assert not name_pattern(pattern).fullmatch(other)


@pytest.mark.parametrize("pattern", ["{a", "[a", "a\\", "[b-a]"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidArgument, match="is no pattern"):
        name_pattern(pattern)


def test_a_file_in_partitions_that_came_later_is_told() -> None:
    with pytest.raises(SourceError, match="partition by k, but the files of /in were not in"):
        FolderPaths("/in").counts("k=1/f")
    known = FolderPaths("/in", partitions=("k",))
    assert known.counts("k=2/f")
    assert not known.counts("f")
    with pytest.raises(SourceError, match="by k and j"):
        known.counts("k=1/j=2/f")
    with pytest.raises(SourceError, match="has no value"):
        known.counts("k=/f")


def test_names_of_partitions_are_compared_as_the_session_does() -> None:
    assert FolderPaths("/in", partitions=("K",)).counts("k=1/f")
    with pytest.raises(SourceError, match="by k"):
        FolderPaths("/in", partitions=("K",), case_sensitive=True).counts("k=1/f")


def test_a_base_that_is_elsewhere_is_told() -> None:
    with pytest.raises(SourceError, match="not below the base path /other"):
        FolderPaths("/in", partitions=("k",), base="/other").counts("k=1/f")
    assert FolderPaths("/in/a=1", partitions=("a", "k"), base="/in").partition("k=2/f") == (
        "1",
        "2",
    )
