"""Late rows as the operator that found them would have taken them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.errors import RowError
from penstock.kernels.block import Block, BlockSpec
from penstock.operators.contract import Tools
from penstock.operators.front import Fusion, failures


class LateRows:
    """Takes late rows through the steps that are fused with their operator, if they are wanted."""

    def __init__(self, fusion: Fusion, tools: Tools) -> None:
        self._block = Block(BlockSpec(fusion.schema, (), tuple(fusion.columns.items())), None)
        self._are_wanted = tools.want_late

    def of(
        self, batch: pa.RecordBatch, rows: NDArray[np.int64], collect_bad: bool
    ) -> tuple[pa.RecordBatch | None, dict[int, RowError]]:
        """These rows of a batch, if any; some may fail on their way."""
        if not self._are_wanted or not rows.size:
            return None, {}
        late = batch.take(pa.array(rows))
        made = self._block.run(late, collect_bad)
        failing = failures(self._block, late, made.bad_rows)
        return made.batch, {int(rows[row]): error for row, error in failing.items()}
