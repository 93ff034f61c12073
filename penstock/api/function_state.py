"""What functions over groups keep, as rows: the columns of Spark's own reader of states.

A row is a value with its key, an element of a list, or an entry of a map; a list or map may be one
row instead. Where entries have a time to live, it stands beside each value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import StreamNotFound
from penstock.expressions.types import (
    BIGINT,
    STRING,
    DataType,
    Field,
    Schema,
    array_type,
    arrow_schema,
    arrow_type,
    map_type,
    struct_type,
)
from penstock.operators.python_functions import STATE
from penstock.operators.python_groups import (
    entry_state,
    has_timers,
    shown_keys,
    timer_state,
)
from penstock.operators.specs import PythonGroupsSpec, StateVariable
from penstock.state.entries import EntryState
from penstock.state.keyed import BYTES_MAX_DEFAULT

VERTEX_COLUMN = "_vertex"
TIMERS = "timers"
KEY, VALUE = "key", "value"
TTL, TIMEOUT = "ttlExpirationMs", "timeoutTimestamp"


@dataclass(frozen=True)
class FunctionRows:
    """One of the states of a function, as rows."""

    operator: str  # as chains name it
    spec: PythonGroupsSpec
    variable: StateVariable | None  # None: its timers
    flatten: bool = True

    @property
    def schema(self) -> Schema:
        shown = tuple(
            Field(name, given.type, given.nullable)
            for name, given in zip(self.spec.key_names, self.spec.call.inputs, strict=False)
        )
        key = Field(KEY, struct_type(shown))
        return (key, *self._fields, Field(VERTEX_COLUMN, STRING, False))

    @property
    def _fields(self) -> tuple[Field, ...]:
        variable = self.variable
        if variable is None:
            return (Field("expiration_timestamp_ms", BIGINT),)
        value = self._value_type
        if variable.kind == "value":
            return (Field(VALUE, value),)
        if variable.kind == "list":
            if self.flatten:
                return (Field("list_element", value),)
            return (Field("list_value", array_type(value)),)
        key = struct_type(variable.key)
        if self.flatten:
            return (Field("user_map_key", key), Field("user_map_value", value))
        return (Field("map_value", map_type(key, value)),)

    @property
    def _value_type(self) -> DataType:
        variable = self.variable
        assert variable is not None
        value = struct_type(variable.value)
        if not self.spec.is_processor:  # a function with a state, and maybe a timeout
            if self.spec.clock == "none":
                return struct_type((Field("groupState", value),))
            return struct_type((Field("groupState", value), Field(TIMEOUT, BIGINT)))
        if variable.ttl_ms is None:
            return value
        return struct_type((Field(VALUE, value), Field(TTL, BIGINT)))

    def states(self) -> tuple[EntryState, dict[str, EntryState]]:
        """The state, and all that the function has, as a chain has them; empty."""
        spec, found = self.spec, dict[str | None, EntryState]()
        for each in spec.variables:
            found[each.name] = entry_state(self.operator, spec, each, BYTES_MAX_DEFAULT)
        if has_timers(spec):
            found[None] = timer_state(self.operator, spec, BYTES_MAX_DEFAULT)
        wanted = found[None if self.variable is None else self.variable.name]
        return wanted, {state.name: state for state in found.values()}

    def rows(self, state: EntryState, vertex: str) -> pa.RecordBatch:
        """All that a state holds."""
        entries = state.scan()
        keys = shown_keys(self.spec, entries.columns[: len(self.spec.keys)])
        schema = arrow_schema(self.schema)
        key = pa.StructArray.from_arrays(keys, fields=list(schema.field(KEY).type))
        columns = [key, *self._columns(entries, schema)]
        if not self.flatten and self.variable is not None and self.variable.kind != "value":
            columns = _gathered(columns, schema)
        columns.append(pa.repeat(pa.scalar(vertex), len(columns[0])))
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _columns(self, entries: pa.RecordBatch, schema: pa.Schema) -> list[pa.Array]:
        variable = self.variable
        if variable is None:
            return [entries.column("name").field("at_ms")]
        value = self._values(entries)
        return [entries.column("name"), value] if variable.kind == "map" else [value]

    def _values(self, entries: pa.RecordBatch) -> pa.Array:
        assert self.variable is not None
        value = entries.column("value")
        kind = arrow_type(self._value_type)
        plain = arrow_type(struct_type(self.variable.value))
        value = value.cast(plain)
        if kind == plain:
            return value
        until = [entries.column("__until")] if kind.num_fields > 1 else []
        return pa.StructArray.from_arrays([value, *until], fields=list(kind))


def _gathered(columns: list[pa.Array], schema: pa.Schema) -> list[pa.Array]:
    """Entries of a key, which follow each other, as one list or map."""
    key = columns[0]
    count = len(key)
    encoded = key.to_pylist()
    starts = [at for at in range(count) if not at or encoded[at] != encoded[at - 1]]
    offsets = pa.array(np.array([*starts, count], np.int32))
    kind = schema.types[1]
    if pa.types.is_map(kind):
        made = pa.MapArray.from_arrays(offsets, columns[1], columns[2]).cast(kind)
    else:
        made = pa.ListArray.from_arrays(offsets, columns[1]).cast(kind)
    return [key.take(pa.array(starts, pa.int64())), made]


def rows_of_function(
    name: str, operator: str, spec: PythonGroupsSpec, wanted: Mapping[str, Any]
) -> FunctionRows:
    """The state of a function that is asked for; which there are, if that is not clear."""
    variables = {variable.name: variable for variable in spec.variables}
    asked = wanted.get("variable")
    flatten = bool(wanted.get("flatten", True))
    if asked is None and list(variables) == [STATE] and not spec.is_processor:
        asked = STATE
    if asked in variables:
        return FunctionRows(operator, spec, variables[asked], flatten)
    if asked == TIMERS and has_timers(spec):
        return FunctionRows(operator, spec, None, flatten)
    known = [*variables, *([TIMERS] if has_timers(spec) else [])]
    said = "name one" if asked is None else f"there is no {asked!r}"
    raise StreamNotFound(
        f"the function of {name} has the states {', '.join(known) or 'none'}: {said} with option "
        "stateVarName",
        state=name,
    )
