"""What a program promises once it is built, and the connector specs inside it."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from penstock.errors import InvalidName, InvalidProgram
from penstock.stages.program import ConnectorSpec, check_acyclic, connector_spec
from tests.stages.programs import rich, small


def test_lookups() -> None:
    program = rich()
    assert program.stream("hot").role == "output"
    with pytest.raises(InvalidProgram, match="has no stream 'cold'"):
        program.stream("cold")
    for vertex in program.vertices:
        assert program.stage_of(vertex) is program.stages[vertex.stage]
        assert vertex in program.stage_vertices(vertex.stage)
        assert vertex.vertex_tag == f"T/{vertex.name}"
        assert vertex.change_tag == f"C/{vertex.name}"


def test_programs_are_values() -> None:
    assert rich() == rich()
    assert pickle.loads(pickle.dumps(small())) == small()


def test_every_written_substream_has_one_reader_per_stage() -> None:
    program = rich()
    for index, stage in enumerate(program.stages):
        read = [
            tag
            for vertex in program.stage_vertices(index)
            for tag in vertex.input_tags
            if not tag.endswith("/m")
        ]
        wanted = [tag for name in stage.streams for tag in program.stream(name).substream_tags]
        assert sorted(read) == sorted(wanted)


def test_parts_that_contradict_each_other() -> None:
    program = small()
    stage = program.stages[0]
    with pytest.raises(InvalidProgram, match="reads price bigint of stream bids"):
        replace(
            program,
            streams=(
                replace(program.streams[0], schema=stage.outputs[0].schema[:1]),
                program.streams[1],
            ),
        )
    with pytest.raises(InvalidProgram, match="to input stream out"):
        replace(program, streams=(program.streams[0], replace(program.streams[1], role="input")))
    with pytest.raises(InvalidProgram, match="each substream of its input is read by one vertex"):
        replace(program, streams=(replace(program.streams[0], substreams=2), program.streams[1]))


def test_stages_cannot_feed_each_other() -> None:
    stage = small().stages[0]
    back = replace(
        stage,
        name="back",
        ports=(replace(stage.ports[0], streams=("out",)),),
        outputs=(replace(stage.outputs[0], stream="bids"),),
    )
    check_acyclic((stage,))
    with pytest.raises(InvalidProgram, match=f"stages {stage.name}, back feed each other"):
        check_acyclic((stage, back))


def test_connector_specs_compare_by_content() -> None:
    assert connector_spec("files", b=1, a=[2]) == connector_spec("files", a=[2], b=1)
    assert connector_spec("files", a=1) != connector_spec("files", a=2)
    assert str(connector_spec("files", path="x", n=3)) == 'files(n=3, path="x")'
    with pytest.raises(InvalidName):
        connector_spec("../files")
    with pytest.raises(InvalidProgram, match="do not fit JSON"):
        connector_spec("files", path=object())
    with pytest.raises(InvalidProgram, match="do not fit JSON"):
        connector_spec("files", limit=float("nan"))
    with pytest.raises(InvalidProgram, match="not a JSON object"):
        ConnectorSpec("files", "[]")
    with pytest.raises(InvalidProgram, match="not a JSON object"):
        ConnectorSpec("files", "{")
