"""Programs travel as text: exact there and back, and any other text is a named error."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidProgram, ProgramError, StageVersionUnsupported
from penstock.json_codec import canonical_json
from penstock.operators.specs import SPAN_US_MAX
from penstock.stages.program import PROGRAM_VERSION, Program
from penstock.stages.program_json import PROGRAM_CHARACTERS_MAX
from tests.stages.programs import rich, small
from tests.thoroughness import examples

PROGRAMS = [small(), rich()]
TEXTS = [program.to_json() for program in PROGRAMS]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.query)
def test_there_and_back(program: Program) -> None:
    text = program.to_json()
    assert Program.from_json(text) == program
    assert Program.from_json(text).to_json() == text
    assert Program.from_json(text).content_hash == program.content_hash
    assert text.isascii()


def test_spaces_and_order_of_fields_do_not_matter() -> None:
    node = json.loads(TEXTS[0])
    shuffled = json.dumps(dict(reversed(node.items())), indent=2)
    assert Program.from_json(shuffled) == PROGRAMS[0]


def test_the_hash_names_the_content() -> None:
    assert small().content_hash == PROGRAMS[0].content_hash
    assert len({program.content_hash for program in PROGRAMS}) == 2
    changed = json.loads(TEXTS[0])
    changed["settings"]["commit_interval_ms"] = 21
    assert Program.from_json(canonical_json(changed)).content_hash != PROGRAMS[0].content_hash


@pytest.mark.parametrize("version", [PROGRAM_VERSION - 1, PROGRAM_VERSION + 1])
def test_another_version_is_refused_before_anything_else_is_read(version: int) -> None:
    text = canonical_json({"version": version, "stages": "of another shape"})
    with pytest.raises(StageVersionUnsupported, match=f"has version {version}") as error:
        Program.from_json(text)
    assert error.value.details == {"version": version, "version_known": PROGRAM_VERSION}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "version is None"),
        ('{"version":true}', "version is True"),
        ('{"version":0}', "version is 0"),
        ('{"version":"1"}', "version is '1'"),
        (f'{{"version":{PROGRAM_VERSION}}}', "lacks"),
        ('{"version":1,"version":1}', "repeats a field"),
        ('{"version":NaN}', "NaN"),
        ('{"version":Infinity}', "Infinity"),
        ('{"version":1e999}', "beyond a double"),
        ('{"version":' + "9" * 5_000 + "}", "beyond 64 bits"),
        (f'{{"version":{PROGRAM_VERSION},"x":' + "[" * 400 + "]" * 400 + "}", "unknown fields"),
        ('{"version":1,"x":' + "[" * 600 + "]" * 600 + "}", "nested deeper"),
        ("[" * 1_000_000, "nested too deeply"),
        (" " * (PROGRAM_CHARACTERS_MAX + 1), "at most"),
        (b"{}", "a text of at most"),
    ],
    ids=range(18),
)
def test_hostile_texts(text: Any, message: str) -> None:
    with pytest.raises(InvalidProgram, match=message):
        Program.from_json(text)


def first(node: Any, key: str) -> Any:
    """The first object below a value that has this key."""
    for path in paths(node):
        found = at(node, path)
        if isinstance(found, dict) and key in found:
            return found
    raise AssertionError(key)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.update(extra=1), "unknown fields"),
        (lambda p: p["settings"].pop("codec"), "lacks"),
        (lambda p: p["settings"].update(turbo=True), "unknown fields"),
        (lambda p: p["settings"].update(codec="gzip"), "codec"),
        (lambda p: p["stages"][0].update(note=""), "unknown fields"),
        (
            lambda p: p["stages"][0]["ports"][0]["front"][0].update(note=""),
            "unknown fields",
        ),
        (lambda p: p["stages"][0]["ports"][0]["front"][0].update(op="deal"), "is not an operator"),
        (lambda p: p["stages"][0]["ports"][0]["front"][0].update(op=["filter"]), "not an operator"),
        (lambda p: p["stages"][0]["ports"][0]["front"].insert(0, None), "not an operator"),
        (lambda p: first(p, "call").update(call="frobnicate"), "no function 'frobnicate'"),
        (lambda p: first(p, "delay_us").update(delay_us=1.0), "a whole number"),
        (lambda p: first(p, "delay_us").update(delay_us="1000000"), "a whole number"),
        (lambda p: first(p, "delay_us").update(delay_us=True), "a whole number"),
        (lambda p: first(p, "merge_partials").update(merge_partials=1), "true or false"),
        (lambda p: first(p, "outer").update(outer="yes"), "true or false"),
        (lambda p: first(p, "outer").pop("outer"), "would not have written"),
        (lambda p: first(p, "size_us").update(size_us=-1), "0 < slide <= size"),
        (lambda p: first(p, "column").update(type="bigint(3)"), "not a type"),
        (lambda p: first(p, "column").update(column="nowhere"), "there is no column 'nowhere'"),
        (lambda p: p["streams"][0].update(role="boss"), "no role"),
        (lambda p: p["streams"][0].update(substreams=0), "0 substreams"),
        (lambda p: p["streams"][0].update(substreams=10**9), "substreams"),
        (lambda p: p["streams"][0].update(name="a/b"), "not allowed"),
        (lambda p: p["streams"].pop(0), "has no stream"),
        (lambda p: p["streams"].append(p["streams"][0]), "more than once"),
        (lambda p: p["streams"][0]["schema"].append(["x", "int"]), "not a column"),
        (lambda p: p["streams"][0]["schema"].append(["x", "int", 1]), "not a column"),
        (lambda p: p["stages"].clear(), "1 to 1000 stages"),
        (lambda p: p["stages"].append(p["stages"][0]), "more than once"),
        (lambda p: p["stages"][0]["outputs"][0].update(partition_by=["zzz"]), "partitioned by zzz"),
        (
            lambda p: p["stages"][0]["ports"][0].update(streams=[]),
            "a source or at least one stream",
        ),
        (lambda p: p["stages"][0]["outputs"][0]["schema"].pop(), "the chain gives"),
        (lambda p: p["vertices"].pop(), "leave a gap or overlap"),
        (lambda p: p["vertices"][0].update(name="rich.s9.0"), "should be named"),
        (lambda p: p["vertices"][0].update(stage=99), "not numbered from 0"),
        (lambda p: p["vertices"][0].update(key_range=[5, 5]), "key range"),
        (lambda p: p["vertices"][0].update(key_range=[0, 1, 2]), "malformed"),
        (lambda p: p["vertices"][0].update(key_range=[0, 1.5]), "a whole number"),
        (lambda p: p["vertices"][0].update(input_tags=[]), "does not read the markers"),
        (
            lambda p: p["vertices"][0].update(output_tags=[["S/bids/0"]]),
            "need ",
        ),
        (lambda p: p["vertices"][0].update(marker_tags=["T/rich.s0.0"]), "markers lack a tag"),
        (lambda p: p["vertices"][0].update(marker_tags=["../../etc"]), "is not one of"),
        (lambda p: p.update(query="a b"), "not allowed"),
        (lambda p: p.update(query="q" * 65), "1 to 64 of the characters"),
        (lambda p: p.update(query="rich.out"), "names with dots"),
        (lambda p: p["vertices"][0].update(name="other"), "two or three parts"),
        (lambda p: p.update(query=7), "a text was expected"),
        (lambda p: p.update(vertices={}), "a list was expected"),
    ],
)
def test_changed_fields(change: Callable[[Any], Any], message: str) -> None:
    node = json.loads(TEXTS[1])
    change(node)
    with pytest.raises(InvalidProgram, match=message):
        Program.from_json(canonical_json(node))


# --- random damage --------------------------------------------------------------------------------

Path = tuple[str | int, ...]


def paths(node: Any, path: Path = ()) -> Iterator[Path]:
    yield path
    items = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    for key, child in items:
        yield from paths(child, (*path, key))


def at(node: Any, path: Path) -> Any:
    for key in path:
        node = node[key]
    return node


NODES = [json.loads(text) for text in TEXTS]
PATHS = [sorted(paths(node), key=repr) for node in NODES]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([2**31, 2**32, 2**63, -1, 0, 1, 1e308, -0.0, 0.5]),
    st.text(max_size=8),
    st.sampled_from(
        [
            "bigint",
            "string",
            "add",
            "cast",
            "lookup",
            "filter",
            "S/bids/m",
            "a/b",
            "\ud800",
            "decimal(99,1)",
        ]
    ),
    st.recursive(
        st.none() | st.integers(0, 3) | st.sampled_from(["call", "x"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["call", "args", "op", "x", "function", "options"]),
                inner,
                max_size=3,
            )
        ),
        max_leaves=5,
    ),
)


def read_or_named_error(text: str, which: int) -> None:
    """Either the error is one of ours, or it is a program: the same one if nothing changed, and
    another one if anything did, because no field is passed over."""
    try:
        program = Program.from_json(text)
    except ProgramError:  # any other error fails the test
        with contextlib.suppress(ValueError, RecursionError):
            assert _same_json(json.loads(text)) != _same_json(NODES[which]), "a whole program"
        return
    is_same = _same_json(json.loads(text)) == _same_json(NODES[which])
    assert (program == PROGRAMS[which]) == is_same
    assert (program.content_hash == PROGRAMS[which].content_hash) == is_same


def _same_json(node: Any) -> str:
    """A text that is equal for equal JSON; Python's own equality takes 1 for True and 1.0."""
    return json.dumps(node, sort_keys=True)


def valid_changes() -> st.SearchStrategy[tuple[str, Any]]:
    """A key of the programs' JSON, and another value that is as good."""
    numbers = st.integers(1, 1_000_000)
    return st.one_of(
        st.tuples(st.just("commit_interval_ms"), st.integers(0, 3_600_000)),
        st.tuples(st.just("codec"), st.sampled_from(["none", "lz4", "zstd"])),
        st.tuples(st.just("idle_timeout_ms"), st.none() | numbers),
        st.tuples(st.just("dead_letter_stream"), st.none() | st.sampled_from(["bad", "worse"])),
        st.tuples(st.just("delay_us"), st.integers(0, SPAN_US_MAX)),
        st.tuples(st.just("size_us"), st.integers(1, 100).map(lambda n: n * 10_000_000)),
    )


@settings(max_examples=examples(60))
@given(valid_changes(), st.integers(0, 1))
def test_a_valid_change_is_read_and_makes_another_program(
    change: tuple[str, Any], which: int
) -> None:
    key, value = change
    node = copy.deepcopy(NODES[which])
    places = [at(node, path) for path in PATHS[which]]
    for place in places:
        if isinstance(place, dict) and key in place:
            place[key] = value
    program = Program.from_json(json.dumps(node))
    changed = _same_json(node) != _same_json(NODES[which])
    assert (program != PROGRAMS[which]) == changed
    assert Program.from_json(program.to_json()) == program
    found = [p[key] for p in _objects(json.loads(program.to_json())) if key in p]
    assert found == [p[key] for p in _objects(node) if key in p]


def _objects(node: Any) -> list[dict[str, Any]]:
    return [found for path in paths(node) if isinstance(found := at(node, path), dict)]


@settings(max_examples=examples(400))
@given(st.data(), st.integers(0, 1))
def test_any_value_anywhere(data: st.DataObject, which: int) -> None:
    node = copy.deepcopy(NODES[which])
    for _ in range(data.draw(st.integers(0, 3))):
        path = data.draw(st.sampled_from(PATHS[which]).filter(bool))
        try:
            parent = at(node, path[:-1])
            parent[path[-1]]
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change removed it
        if not isinstance(parent, dict | list):
            continue
        action = data.draw(st.sampled_from(["put", "drop", "repeat", "rename"]))
        if action == "drop":
            del parent[path[-1]]
        elif action == "repeat" and isinstance(parent, list):
            parent.insert(0, copy.deepcopy(parent[path[-1]]))
        elif action == "rename" and isinstance(parent, dict):
            parent[data.draw(st.sampled_from(["x", "function", "self", ""]))] = parent.pop(path[-1])
        else:
            parent[path[-1]] = data.draw(VALUES)
    read_or_named_error(json.dumps(node), which)


@settings(max_examples=examples(400))
@given(st.data(), st.integers(0, 1))
def test_any_damage_to_the_text(data: st.DataObject, which: int) -> None:
    text = TEXTS[which]
    start = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 20))
    put = data.draw(st.text(alphabet='{}[]",:0123456789eE.-\\utrnfalse ', max_size=10))
    read_or_named_error(text[:start] + put + text[start + length :], which)


@settings(max_examples=examples(400))
@given(st.data())
def test_swapped_parts(data: st.DataObject) -> None:
    node = copy.deepcopy(NODES[1])
    places = st.sampled_from(PATHS[1]).filter(bool)
    one, other = data.draw(places), data.draw(places)
    node_one, node_other = copy.deepcopy(at(node, one)), copy.deepcopy(at(node, other))
    at(node, one[:-1])[one[-1]] = node_other
    with contextlib.suppress(KeyError, IndexError, TypeError):  # its place may be gone by now
        at(node, other[:-1])[other[-1]] = node_one
    read_or_named_error(json.dumps(node), 1)
