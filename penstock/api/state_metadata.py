"""What a query keeps state for, as rows: the columns of Spark's format `state-metadata`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.operators.specs import PythonGroupsSpec, StatefulSpec
from penstock.runtime.queries import needed_query, query_progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.log.contract import Log

COLUMNS = (
    "operatorId bigint, operatorName string, stateStoreName string, numPartitions int, "
    "minBatchId bigint, maxBatchId bigint, operatorProperties string"
)
PROCESSOR = "transformWithStateInPySparkExec"
_TIME_MODES = {"none": "NoTime", "processing": "ProcessingTime", "event": "EventTime"}
_TIMERS = {"processing": "$procTimers_keyToTimestamp", "event": "$eventTimers_keyToTimestamp"}


def state_metadata(spark: SparkSession, log: Log, query: str) -> DataFrame:
    """One row for each operator with state. Only the newest epoch can be read, so it is alone."""
    program = needed_query(log, query).program
    epoch = query_progress(log, program).epoch
    rows: list[tuple[Any, ...]] = []
    for at, stage in enumerate(program.stages):
        parts = len(program.stage_vertices(at))
        for spec in stage.stateful:
            name, facts = _facts(spec)
            rows.append((len(rows), name, "default", parts, epoch, epoch, json.dumps(facts)))
    return spark.createDataFrame(rows, COLUMNS)


def _facts(spec: StatefulSpec) -> tuple[str, dict[str, Any]]:
    """What Spark calls an operator, and what it says of one."""
    if not isinstance(spec, PythonGroupsSpec) or not spec.is_processor:
        return spec.title, {}
    variables = [
        {
            "stateName": each.name,
            "stateVariableType": f"{each.kind.title()}State",
            "ttlEnabled": each.ttl_ms is not None,
        }
        for each in spec.variables
        if each.name not in spec.given_up
    ]
    if spec.clock in _TIMERS:  # as in Spark, whether it sets any or not
        timers = {"stateName": _TIMERS[spec.clock], "stateVariableType": "TimerState"}
        variables.append({**timers, "ttlEnabled": False})
    return PROCESSOR, {"timeMode": _TIME_MODES[spec.clock], "stateVariables": variables}
