"""Kernels on disk: found again by the next process, and done without where they cannot compile."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.expressions.tree import call, column, literal
from penstock.expressions.types import schema_from_arrow
from penstock.kernels.block import Block, BlockAggregate, BlockSpec
from penstock.kernels.cache import KernelCache
from penstock.kernels.compile import KernelFallback

BATCH = pa.RecordBatch.from_pydict(
    {"k": pa.array([1, 2, 1, 3], pa.int32()), "v": pa.array([10, 20, 30, 40], pa.int64())}
)
SPEC = BlockSpec(
    schema_from_arrow(BATCH.schema),
    (call("lt", column("k", "int"), literal(3, "int")),),
    (),
    None,
    BlockAggregate((column("k", "int"),), None, 0, 0, (("sum", column("v", "bigint")),)),
)

RUN = """
import json, sys
import pyarrow as pa
from tests.kernels.test_cache import BATCH, SPEC
from penstock.kernels.block import Block
from penstock.kernels.cache import KernelCache

cache = KernelCache(sys.argv[1])
partials = Block(SPEC, cache).aggregate(BATCH)
kernels = [module.kernel for module in cache._loaded.values()]
hits = sum(sum(kernel.stats.cache_hits.values()) for kernel in kernels)
misses = sum(sum(kernel.stats.cache_misses.values()) for kernel in kernels)
print(json.dumps([partials.words.tolist(), partials.values[0].tolist(), hits, misses]))
"""


def run(folder: Path) -> list[object]:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(folder)],
        capture_output=True, text=True, timeout=100, check=True, cwd=root,
    )  # fmt: skip
    found: list[object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_next_process_loads_machine_code(tmp_path: Path) -> None:
    """The first start compiles; the second does not, and computes the same."""
    assert run(tmp_path) == [[[1], [2]], [40, 20], 0, 1]
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("k_*.py")}
    assert run(tmp_path) == [[[1], [2]], [40, 20], 1, 0]
    after = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("k_*.py")}
    assert before == after
    assert len(before) == 1


def test_a_damaged_module_is_written_again(tmp_path: Path) -> None:
    Block(SPEC, KernelCache(tmp_path)).aggregate(BATCH)
    (path,) = tmp_path.glob("k_*.py")
    source = path.read_text()
    path.write_text("raise SystemExit('half a file")
    partials = Block(SPEC, KernelCache(tmp_path)).aggregate(BATCH)
    assert partials.values[0].tolist() == [40, 20]
    assert path.read_text() == source
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".tmp"] == []


def test_damaged_machine_code_is_made_again(tmp_path: Path) -> None:
    Block(SPEC, KernelCache(tmp_path)).aggregate(BATCH)
    kept = [
        path for path in (tmp_path / "__pycache__").iterdir() if path.suffix in (".nbi", ".nbc")
    ]
    assert len(kept) == 2
    for path in kept:
        path.write_bytes(path.read_bytes()[:40])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        partials = Block(SPEC, KernelCache(tmp_path)).aggregate(BATCH)
    assert partials.values[0].tolist() == [40, 20]


def test_a_kernel_that_does_not_compile_warns_once_and_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: KernelCache, source: str) -> object:
        raise TypeError("no such instruction")

    monkeypatch.setattr(KernelCache, "load", broken)
    block = Block(SPEC, KernelCache(tmp_path))
    with pytest.warns(KernelFallback, match=r"kernel k_[0-9a-f]{32} .*no such instruction"):
        partials = block.aggregate(BATCH)
    assert partials.values[0].tolist() == [40, 20]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert block.aggregate(BATCH).values[0].tolist() == [40, 20]
    assert not block.is_compiled


def test_source_says_what_it_computes_and_holds_no_foreign_text(tmp_path: Path) -> None:
    """A column's name is data: it may hold a line break and code, and must not become source."""
    evil = column('x"\n    import os  # ', "int")
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2], pa.int32())], names=[evil.name])
    spec = BlockSpec(
        schema_from_arrow(batch.schema), (call("gt", evil, literal(1, "int")),), (("o", evil),)
    )
    assert Block(spec, KernelCache(tmp_path)).run(batch).batch.to_pydict() == {"o": [2]}
    (path,) = tmp_path.glob("k_*.py")
    lines = path.read_text().splitlines()
    assert [line for line in lines if "import os" in line and not line.startswith("#")] == []
    assert lines[1].startswith("#   filter (x")
