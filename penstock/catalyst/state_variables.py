"""What a function over groups keeps for each key: as the query declares it.

A processor declares its states in `init`, which is asked once when the query is planned, as Spark
asks it on its driver, with a handle that only takes note.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming import stateful_processor as processors
from pyspark.sql.types import StructType

from penstock.catalyst.jvm import JvmNode
from penstock.catalyst.refusals import unsupported
from penstock.catalyst.spark_types import parse_json_type
from penstock.errors import UnsupportedPlan
from penstock.json_codec import parse
from penstock.operators.python_functions import STATE, failure_of
from penstock.operators.specs import StateVariable


@dataclass(frozen=True)
class Variable:
    """One state: Spark's JSON of what it holds and, of a map, of its keys."""

    kind: str
    value: str
    key: str | None = None
    ttl_ms: int | None = None

    def declared(self, name: str) -> StateVariable:
        key = () if self.key is None else parse_json_type(self.key).fields
        return StateVariable(name, self.kind, parse_json_type(self.value).fields, key, self.ttl_ms)

    def to_json(self) -> dict[str, Any]:
        facts = {"kind": self.kind, "value": parse(self.value), "ttl_ms": self.ttl_ms}
        return facts | ({} if self.key is None else {"key": parse(self.key)})


def variables_of(
    node: JvmNode, processor: Any, session: Any
) -> tuple[dict[str, Variable], tuple[str, ...]]:
    """The states that a processor asks for, by name, and the names of those that it gives up."""
    noting = _Noting(session)
    try:
        processor.init(noting)
        processor.close()
    except UnsupportedPlan:
        raise
    except Exception as error:  # of any kind: it is the query's own code
        failure = failure_of(error)
        raise unsupported(
            node.kind,
            f"init() of {type(processor).__name__}, which says what states there are, fails when "
            f"the query is planned: {failure.reason}\n{failure.trace}".rstrip(),
        ) from error
    return noting.found, tuple(noting.given_up)


class _Noting(processors.StatefulProcessorHandle):
    """Notes what is asked for, and has nothing."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.found: dict[str, Variable] = {}
        self.given_up: dict[str, None] = {}

    def getValueState(
        self, stateName: str, schema: Any, ttlDurationMs: int | None = None
    ) -> processors.ValueState:
        self._note(stateName, Variable("value", self._json(schema), ttl_ms=ttlDurationMs))
        return processors.ValueState(None, stateName)  # type: ignore[arg-type]

    def getListState(
        self, stateName: str, schema: Any, ttlDurationMs: int | None = None
    ) -> processors.ListState:
        self._note(stateName, Variable("list", self._json(schema), ttl_ms=ttlDurationMs))
        return processors.ListState(None, stateName)  # type: ignore[arg-type]

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Any,
        valueSchema: Any,
        ttlDurationMs: int | None = None,
    ) -> processors.MapState:
        key, value = self._json(userKeySchema), self._json(valueSchema)
        self._note(stateName, Variable("map", value, key, ttlDurationMs))
        return processors.MapState(None, stateName)  # type: ignore[arg-type]

    def registerTimer(self, expiryTimestampMs: int) -> None:
        raise RuntimeError("timers are for handleInputRows() and handleExpiredTimer(), not init()")

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self.registerTimer(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        self.registerTimer(0)
        return iter(())

    def deleteIfExists(self, stateName: str) -> None:
        """A processor may ask for a state and give it up again: it asks for it in slots too."""
        self.given_up[stateName] = None

    def _note(self, name: str, variable: Variable) -> None:
        if name in self.found:
            raise ValueError(f"state {name!r} is asked for twice")
        self.found[name] = variable

    def _json(self, schema: Any) -> str:
        found = self._session._parse_ddl(schema) if isinstance(schema, str) else schema
        if not isinstance(found, StructType):
            raise TypeError(
                f"a state has columns, as in 'count long', and {schema!r:.200} has none"
            )
        return found.json()


__all__ = ["STATE", "Variable", "variables_of"]
