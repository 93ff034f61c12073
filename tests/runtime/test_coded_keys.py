"""Keys of Parquet files keep their codes from the file through the exchange to the state."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.connectors.parquet_pages import CODED_ROWS_MIN
from penstock.kernels import coding
from penstock.operators import aggregate
from penstock.operators.specs import AggregateSpec
from penstock.plan.optimizer import plan_program
from penstock.state.keyed import KeyedState
from penstock.testing.plans import col, count, query, scan_source, window
from tests.runtime.laboratory import SECOND_US, TIMESTAMP, Laboratory, table, table_source


@pytest.mark.parametrize("persisted", [False, True])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_no_text_of_a_file_is_coded_again(
    lab: Laboratory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    parallelism: int,
    persisted: bool,
) -> None:
    """Nor where the rows are persisted before they are grouped."""
    codings: list[int] = []
    code = coding._distinct

    def counted(texts: pa.Array, *rest: Any) -> pa.Array:
        codings.append(len(texts))
        return code(texts, *rest)

    monkeypatch.setattr(coding, "_distinct", counted)
    expected: Counter[Any] = Counter()
    (tmp_path / "in").mkdir()
    for number in range(2):
        names = pa.array([f"name-{number + place}" for place in range(30)])
        rows = np.arange(CODED_ROWS_MIN * 2)
        codes = pa.array(rows * 7 % 30, mask=rows % 100 == 0)
        texts = names.take(codes)
        pq.write_table(
            pa.table({"name": texts}),
            tmp_path / "in" / f"{number}",
            row_group_size=CODED_ROWS_MIN,
        )
        expected.update(texts.to_pylist())
    options: dict[str, Any] = {"path": str(tmp_path / "in"), "format": "parquet"}
    if persisted:
        options["replayable"] = False
    source = scan_source("folder", "name string", None, **options)
    kept = source.filter(col("name") != "name-7")
    counts = kept.group_by("name").agg(count().alias("n"), mode="update")
    program = plan_program(query("counts", counts.to_stream("out"), parallelism=parallelism))
    assert persisted == any(stage.name.startswith("read_") for stage in program.stages)
    with lab.open(program) as process:
        process.run_available()
    found = {row["name"]: row["n"] for row in lab.rows("out")}  # the last of each
    assert found == {name: n for name, n in expected.items() if name not in (None, "name-7")}
    assert not codings


def test_keys_that_repeat_cross_the_exchange_as_codes(
    lab: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[pa.DataType] = []
    merge = aggregate.merge_batch

    def noted(state: KeyedState, spec: AggregateSpec, batch: pa.RecordBatch) -> Any:
        kinds.append(batch.column("name").type)
        return merge(state, spec, batch)

    monkeypatch.setattr(aggregate, "merge_batch", noted)
    rows = [(f"name-{n % 30}" if n % 7 else None, n * SECOND_US) for n in range(4_000)]
    source = table_source(table(rows, name=pa.string(), at=TIMESTAMP))
    read = scan_source("rows", "name string, at timestamp", None).with_watermark("at", "0 seconds")
    windows = read.group_by("name", window=window("at", "500 seconds")).agg(count().alias("n"))
    program = query("counts", windows.to_stream("out"), parallelism=2)
    with lab.open(program, {"rows": source}) as process:
        process.run_available()
    found = Counter[Any]()
    for row in lab.rows("out"):
        found[row["name"]] += row["n"]
    assert found == Counter(name for name, _ in rows)
    assert set(kinds) == {pa.dictionary(pa.int32(), pa.string())}
