"""The NEXMark generator: people, auctions and bids as a function of the event number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from penstock.arguments import check_choice
from penstock.arrays import text_column, texts_of
from penstock.clock import Clock
from penstock.connectors import nexmark_kernels as kernels
from penstock.connectors.contract import (
    DealtSource,
    Offset,
    SourceBatch,
    check_offset,
    check_rows_max,
)
from penstock.connectors.nexmark_columns import KIND_NAMES, ORIGIN_SCHEMA, SCHEMAS, Axis, Events
from penstock.errors import InvalidArgument

Kind = Literal["all", "persons", "auctions", "bids"]
Parallel = Literal["interleaved", "disjoint", "cloned"]
KINDS: tuple[Kind, ...] = ("persons", "auctions", "bids")  # in the order of their numbers

BASE_MS = 1_600_002_000_000
EVENT_ID_MAX = 1 << 52  # exact in a double, which the time axis is computed in
DISJOINT_RANGE = 10**12  # event ids per generator when they are not bounded
SCAN_PER_ROW_MAX = 64  # event numbers looked at for each row asked for


@dataclass(frozen=True)
class NexmarkSettings:
    """What decides every value of a generator's events.

    `rate` sets the event-time axis only: how fast events come is the reader's business, or the
    clock's. `group` events at a time arrive in a shuffled order. `parallel` says what `split` does:

    - interleaved: part g of N emits the events n with n mod N = g; the union does not depend on N;
    - disjoint: part g owns a range of event ids, all on one time axis at rate / N each;
    - cloned: every part emits the same ids with other random values, at rate / N each.
    """

    seed: int = 0
    rate: float = 10_000.0
    events_max: int | None = None
    group: int = 1
    base_ms: int = BASE_MS
    first_event_id: int = 0
    parallel: Parallel = "interleaved"
    source_id: int = 0
    stream: int = 0  # of the random numbers

    def __post_init__(self) -> None:
        self._check("seed", 0 <= self.seed < 1 << 64, "0 to 2**64 - 1")
        self._check("rate", 0 < self.rate <= 1e9, "above 0, at most 1e9 events/s")
        self._check(
            "events_max", self.events_max is None or 0 <= self.events_max <= EVENT_ID_MAX, ">= 0"
        )
        # 953 is prime: any other group is a permutation of its numbers.
        self._check(
            "group", 1 <= self.group <= 10**9 and self.group % 953 != 0, "1 to 1e9, not 953 * k"
        )
        self._check("first_event_id", 0 <= self.first_event_id <= EVENT_ID_MAX, ">= 0")
        self._check(
            "parallel",
            self.parallel in ("interleaved", "disjoint", "cloned"),
            "interleaved, disjoint or cloned",
        )

    def _check(self, name: str, possible: bool, rule: str) -> None:
        if not possible:
            value = getattr(self, name)
            raise InvalidArgument(
                f"{name} is {value!r}, possible is {rule}", setting=name, value=value
            )

    @property
    def delay_us(self) -> float:
        """Event time between two events."""
        return 1e6 / self.rate

    def part(self, part: int, parts: int) -> NexmarkSettings:
        """Return the settings of one of several generators that are not interleaved."""
        first, end = DISJOINT_RANGE * part, None
        if self.events_max is not None:
            first = self.events_max * part // parts
            end = self.events_max * (part + 1) // parts
        cloned = self.parallel == "cloned"
        return replace(
            self,
            rate=self.rate / parts,
            events_max=None if end is None else end - first,
            first_event_id=self.first_event_id + (0 if cloned else first),
            parallel="interleaved",
            source_id=part,
            stream=part if cloned else self.stream,
        )


class NexmarkSource(DealtSource):
    """The generator as a source; the offset is the number of the next event.

    `kind` picks one kind of event, whose columns are then the row, or "all": rows of `etype` (0
    person, 1 auction, 2 bid), `dateTime` and one struct per kind, null for the others. `columns`
    lists what is built, also `source_id` and `seq` (who made the event, and its number), and in the
    merged form single fields such as "bid.price". With a clock, an event can be read from the time
    `start_us` + its time on the axis; without one, all events are there.
    """

    def __init__(
        self,
        settings: NexmarkSettings | None = None,
        kind: Kind = "all",
        columns: Sequence[str] | None = None,
        clock: Clock | None = None,
        start_us: int = 0,
    ) -> None:
        check_choice(kind, "kind", "all", *KINDS)
        self.settings = settings if settings is not None else NexmarkSettings()
        self._kind: Kind = kind
        self._columns = columns
        self._clock = clock
        self._start_us = start_us
        self._axis = Axis(
            self.settings.seed,
            self.settings.stream,
            self.settings.source_id,
            self.settings.first_event_id,
            self.settings.base_ms,
            self.settings.delay_us,
        )
        self._kind_number = kernels.ANY_KIND if kind == "all" else KINDS.index(kind)
        whole = _merged_schema() if kind == "all" else SCHEMAS[self._kind_number]
        self.schema = whole if columns is None else _pruned(whole, columns)

    def read(self, offset: Offset, rows_max: int) -> SourceBatch:
        rows_max = check_rows_max(rows_max)
        settings = self.settings
        end = EVENT_ID_MAX if settings.events_max is None else settings.events_max
        number = check_offset(offset, self._first, end, self._stride)
        available = self._available_end()
        numbers, places, following = kernels.take_events(
            number,
            self._stride,
            min(available, number + rows_max * SCAN_PER_ROW_MAX * self._stride),
            rows_max,
            settings.group,
            settings.first_event_id,
            self._kind_number,
        )
        following = int(following)
        ended = settings.events_max is not None and following >= settings.events_max
        watermark_us = self._axis.time_us(following - following % settings.group)
        batch = self._batch(numbers, places) if numbers.size else None
        idle = following == number and not ended
        more = following < available
        return SourceBatch(batch, following, ended, watermark_us, more=more, idle=idle)

    def _available_end(self) -> int:
        """Return the number of the first event that there never is, or not yet."""
        events_max = self.settings.events_max
        end = EVENT_ID_MAX if events_max is None else min(events_max, EVENT_ID_MAX)
        if self._clock is None:
            return end
        elapsed_us = self._clock.now_us() - self._start_us
        due = int(elapsed_us / self.settings.delay_us) + 1 if elapsed_us >= 0 else 0
        return min(end, due)

    def _batch(self, numbers: np.ndarray, places: np.ndarray) -> pa.RecordBatch:
        if self._kind == "all":
            columns = self._merged(numbers, places)
        else:
            events = Events(self._axis, self._kind_number, numbers, places)
            columns = [events.column(name) for name in self.schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _merged(self, numbers: np.ndarray, places: np.ndarray) -> list[pa.Array]:
        events = Events(self._axis, kernels.ANY_KIND, numbers, places)
        kinds = kernels.kinds(events.ids)
        columns = []
        for column in self.schema:
            if column.name in KIND_NAMES:
                kind = KIND_NAMES.index(column.name)
                rows = np.flatnonzero(kinds == kind)
                own = Events(self._axis, kind, numbers[rows], places[rows])
                columns.append(_spread(own, rows, column.type, numbers.size))
            elif column.name == "etype":
                columns.append(pa.array(kinds))
            elif column.name == "dateTime":
                columns.append(Events(self._axis, 0, numbers, places).column("dateTime"))
            else:
                columns.append(events.column(column.name))
        return columns

    def _part(self, part: int, parts: int) -> DealtSource:
        """As the settings' `parallel` says: events dealt out, or a generator of its own."""
        if self.settings.parallel == "interleaved":
            return super()._part(part, parts)
        return self._with(self.settings.part(part, parts))

    def _copy(self) -> NexmarkSource:
        return self._with(self.settings)

    def _with(self, settings: NexmarkSettings) -> NexmarkSource:
        return NexmarkSource(settings, self._kind, self._columns, self._clock, self._start_us)


def _merged_schema() -> pa.Schema:
    structs = [
        # Nullable inside as well: under a null struct there is nothing else to put.
        pa.field(name, pa.struct([field.with_nullable(True) for field in schema]))
        for name, schema in zip(KIND_NAMES, SCHEMAS, strict=True)
    ]
    time = SCHEMAS[0].field("dateTime")
    return pa.schema([pa.field("etype", pa.int32(), nullable=False), time, *structs])


def _pruned(whole: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Return the fields asked for, in the order asked for; fields of one struct stay together."""
    available = {field.name: field for field in (*whole, *ORIGIN_SCHEMA)}
    chosen: dict[str, pa.Field] = {}
    for column in columns:
        name, _, child = column.partition(".")
        field = available.get(name)
        if field is None or (child and child not in _names(field)):
            raise InvalidArgument(
                f"there is no column {column!r}; possible are {', '.join(available)}", column=column
            )
        if child:
            before = list(chosen[name].type) if name in chosen else []
            if child not in [part.name for part in before]:
                before.append(field.type.field(child))
            field = pa.field(name, pa.struct(before))
        chosen[name] = field
    if not chosen:
        raise InvalidArgument("columns is empty: name at least one")
    return pa.schema(list(chosen.values()))


def _names(field: pa.Field) -> list[str]:
    return [part.name for part in field.type] if pa.types.is_struct(field.type) else []


def _spread(own: Events, rows: np.ndarray, struct: pa.StructType, rows_total: int) -> pa.Array:
    """Return one kind's events as structs at their rows, null between them."""
    if not rows.size:
        return pa.nulls(rows_total, struct)
    absent = np.ones(rows_total, bool)
    absent[rows] = False
    children = [_spread_column(own.column(field.name), rows, rows_total) for field in struct]
    return pa.StructArray.from_arrays(children, fields=list(struct), mask=pa.array(absent))


def _spread_column(column: pa.Array, rows: np.ndarray, rows_total: int) -> pa.Array:
    """Return a column with its values at some rows, in order, and 0 or '' between them."""
    if not pa.types.is_string(column.type):
        values = np.zeros(rows_total, np.int64)
        values[rows] = column.view(pa.int64()).to_numpy()
        return pa.array(values).view(column.type)
    # The bytes stay where they are: rows between two texts get an empty range of them.
    assert column.offset == 0
    offsets = np.zeros(rows_total + 1, np.int32)
    begins, data = texts_of(column)
    offsets[rows + 1] = np.diff(begins)
    np.cumsum(offsets, out=offsets)
    return text_column(pa.string(), offsets, data)
