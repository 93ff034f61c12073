"""A sink in memory, for tests and notebooks."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from penstock.connectors.contract import Sink, epoch_refused
from penstock.names import check_any_name


class MemorySink(Sink):
    """Keeps every epoch's rows. Share one object between instances: it is the outside system."""

    def __init__(self) -> None:
        self._epochs: dict[tuple[str, int], list[pa.RecordBatch]] = {}
        self._last: dict[str, int] = {}

    def write(self, writer: str, epoch: int, batches: Iterable[pa.RecordBatch]) -> bool:
        check_any_name(writer, "writer")
        if epoch < 0:
            raise epoch_refused(epoch)
        if epoch <= self._last.get(writer, -1):
            return False
        kept = [batch for batch in batches if batch.num_rows]
        if not kept:
            return False
        self._epochs[writer, epoch] = kept
        self._last[writer] = epoch
        return True

    def last_epoch(self, writer: str) -> int | None:
        return self._last.get(check_any_name(writer, "writer"))

    def batches(self) -> list[pa.RecordBatch]:
        """Return everything that was written: each writer's epochs in order, vertices by name."""
        return [batch for key in sorted(self._epochs) for batch in self._epochs[key]]

    def table(self) -> pa.Table:
        """Return everything as one table; there must be a row."""
        return pa.Table.from_batches(self.batches())
