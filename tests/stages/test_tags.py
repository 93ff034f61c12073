"""Tags are built and parsed in one place, and nothing else is a tag."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidName
from penstock.stages.tags import (
    SUBSTREAMS_MAX,
    Tag,
    TagKind,
    change_tag,
    marker_tag,
    parse_tag,
    substream_tag,
    vertex_tag,
)

NAMES = st.from_regex(r"[A-Za-z0-9_]{1,64}", fullmatch=True)


def test_texts() -> None:
    assert substream_tag("bids", 3) == "S/bids/3"
    assert marker_tag("bids") == "S/bids/m"
    assert vertex_tag("q.s0.1") == "T/q.s0.1"
    assert change_tag("q.s0.1") == "C/q.s0.1"


@given(NAMES, st.integers(0, SUBSTREAMS_MAX - 1))
def test_built_tags_parse_back(name: str, index: int) -> None:
    assert parse_tag(substream_tag(name, index)) == Tag(TagKind.SUBSTREAM, name, index)
    assert parse_tag(marker_tag(name)) == Tag(TagKind.STREAM_MARKERS, name)
    assert parse_tag(vertex_tag(name)) == Tag(TagKind.VERTEX, name)
    assert parse_tag(change_tag(name)) == Tag(TagKind.CHANGES, name)
    for text in (substream_tag(name, index), marker_tag(name), vertex_tag(name), change_tag(name)):
        assert str(parse_tag(text)) == text


def test_a_stream_called_m_has_its_own_tags() -> None:
    assert len({substream_tag("m", 0), marker_tag("m"), vertex_tag("m"), change_tag("m")}) == 4


@pytest.mark.parametrize(
    "text",
    [
        "", "S", "S/bids", "S/bids/", "S/bids/01", "S/bids/-1", "S/bids/65536", "S/bids/1/2",
        "S/bids/x", "S/bi ds/1", "S//1", "T/", "T/a/b", "C/a b", "X/a", "s/bids/1", "T/é",
        "S/bids/1\n", "S/bids/١", None, 3, ["S/bids/1"],
    ],
)  # fmt: skip
def test_other_texts_are_refused(text: object) -> None:
    with pytest.raises(InvalidName):
        parse_tag(text)  # type: ignore[arg-type]


_PARTS = st.sampled_from(["a", "_0", "m", "0", "10", "01", "", " "])
_PATHS = st.tuples(st.sampled_from(["S", "T", "C", "X"]), _PARTS) | st.tuples(
    st.sampled_from(["S", "T"]), _PARTS, _PARTS
)
_TAGS = re.compile(r"S/[A-Za-z0-9_]+/(m|0|[1-9][0-9]*)|[TC]/[A-Za-z0-9_]+")


@given(st.text(alphabet="STCm/01a_ ", max_size=12) | _PATHS.map("/".join))
def test_what_is_a_tag_prints_itself_and_nothing_else_parses(text: str) -> None:
    try:
        tag = parse_tag(text)
    except InvalidName:
        assert not _TAGS.fullmatch(text)
        return
    assert str(tag) == text
    assert _TAGS.fullmatch(text)


@pytest.mark.parametrize("index", [-1, SUBSTREAMS_MAX])
def test_substreams_are_bounded(index: int) -> None:
    with pytest.raises(InvalidName, match="is not allowed"):
        substream_tag("bids", index)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 65, "né"])
def test_names_are_checked(name: str) -> None:
    for build in (marker_tag, vertex_tag, change_tag):
        with pytest.raises(InvalidName):
            build(name)
    with pytest.raises(InvalidName):
        substream_tag(name, 0)
