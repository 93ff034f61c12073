"""Chains of one port, as most tests want them."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.expressions.types import Schema
from penstock.kernels.cache import KernelCache
from penstock.operators.chain import Chain
from penstock.operators.contract import SparkEvaluator
from penstock.operators.python_functions import PythonFunctions
from penstock.operators.specs import OperatorSpec, cut_at_state
from penstock.state.keyed import BYTES_MAX_DEFAULT


def linear(
    specs: Sequence[OperatorSpec],
    schema: Schema,
    cache: KernelCache | None,
    *,
    want_late: bool = False,
    spark: SparkEvaluator | None = None,
    python: PythonFunctions | None = None,
    is_rehearsal: bool = False,
    state_bytes_max: int = BYTES_MAX_DEFAULT,
) -> Chain:
    """The operators over the rows of one port, those before the first state as its front."""
    front, operators = cut_at_state(specs)
    return Chain(
        [(schema, front)],
        operators,
        cache,
        want_late=want_late,
        spark=spark,
        python=python,
        is_rehearsal=is_rehearsal,
        state_bytes_max=state_bytes_max,
    )
