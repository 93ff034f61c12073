"""Functions over groups with states of their own, and the rows that they are given, file by file.

Everything is inside functions, so that it is pickled whole.
"""

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

Rows = list[tuple[str | None, int, int]]  # key, number, second

SCHEMA = "k string, n bigint, ts timestamp"
# The watermark is 2 seconds behind: some rows are late, some keys come back after their time.
FILES: list[Rows] = [
    [("a", 1, 10), ("b", 2, 11), ("a", 3, 12), (None, 4, 12)],
    [("a", 5, 15), ("d", 6, 16)],
    [("c", 7, 30), ("c", 8, 30)],
    [("a", 9, 31), ("d", 10, 5), (None, 11, 32)],
    [("e", 12, 60)],
    [("e", 13, 61), ("b", 14, 75)],
]
START_S = int(datetime.datetime(2024, 3, 1, tzinfo=datetime.UTC).timestamp())


@dataclass(frozen=True)
class Case:
    """What is made of the rows, in which mode, and when all is there that the clock brings."""

    define: Callable[[DataFrame], DataFrame]
    mode: str = "append"
    settled: Callable[[list[dict[str, Any]]], bool] | None = None  # None: the clock brings nothing


def _counts(df: DataFrame) -> DataFrame:
    import pandas as pd  # noqa: PLC0415

    def count(key: Any, frames: Any, state: Any) -> Any:
        # In Structured Streaming no such state holds arrays.
        numbers = list(map(int, state.get[1].split())) if state.exists else []
        for frame in frames:
            assert list(frame.columns) == ["k", "n", "ts"]
            assert list(frame.index) == list(range(len(frame)))
            numbers = [*numbers, *frame["n"].tolist()]
        state.update((len(numbers), " ".join(map(str, numbers)), frame["ts"].max()))
        shown = f"{numbers} {state.get[2].isoformat()} {type(key[0]).__name__}"
        yield pd.DataFrame({"k": [key[0]], "shown": [shown]})

    return df.groupBy("k").applyInPandasWithState(
        count, "k string, shown string", "n int, numbers string, last timestamp",
        "append", "NoTimeout",
    )  # fmt: skip


def _timeouts(df: DataFrame) -> DataFrame:
    import pandas as pd  # noqa: PLC0415

    def watch(key: Any, frames: Any, state: Any) -> Any:
        passed = state.getCurrentWatermarkMs()
        if state.hasTimedOut:
            (nothing,) = frames
            assert nothing.empty
            found = state.getOption
            if key[0] == "d":
                state.update((found[0] + 100,))  # and no timeout: it is not asked again
            elif key[0] == "a":
                state.remove()
            # "b" leaves all as it is, and is asked again each time
            yield pd.DataFrame({"k": [key[0]], "what": ["over"], "n": [found[0]], "at": [passed]})
            return
        count = state.get[0] if state.exists else 0
        for frame in frames:
            count += len(frame)
            last = frame["ts"].max()
        if key[0] == "c":
            state.remove()
            state.setTimeoutTimestamp(int(last.timestamp() * 1000) + 1_000)
        else:
            state.update((count,))
            state.setTimeoutTimestamp(last.to_pydatetime() + pd.Timedelta(seconds=5))
        for what in ("rows", "more"):
            yield pd.DataFrame({"k": [key[0]], "what": [what], "n": [count], "at": [passed]})

    def guarded(key: Any, frames: Any, state: Any) -> Any:
        if state.hasTimedOut and not state.exists:
            yield pd.DataFrame({"k": [key[0]], "what": ["gone"], "n": [0], "at": [0]})
            return
        yield from watch(key, frames, state)

    timed = df.withWatermark("ts", "2 seconds")
    return timed.groupBy("k").applyInPandasWithState(
        guarded, "k string, what string, n bigint, at bigint", "n bigint", "update",
        "EventTimeTimeout",
    )  # fmt: skip


def _processor(
    make: Callable[[list[dict[str, Any]]], Any],
    numbers: Callable[[Any], list[int]],
    firsts: Callable[[Any], list[int]],
) -> Any:
    """A processor that uses everything there is; `make` makes what it gives, of rows."""
    from pyspark.sql.streaming import StatefulProcessor  # noqa: PLC0415

    class Everything(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.total = handle.getValueState("total", "n bigint, last string")
            self.list = handle.getListState("seen", "n bigint")
            value = "count bigint, names array<string>"
            self.parts = handle.getMapState("parts", "part int", value)
            handle.getValueState("given_up", "n bigint")
            handle.deleteIfExists("given_up")
            self.calls = 0

        def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
            first = [int(n) for n in firsts(initialState)]
            before = self.total.get()
            self.total.update(((before[0] if before is not None else 0) + sum(first), "first"))
            self.list.appendList([(n,) for n in first])
            self.handle.registerTimer(START_S * 1_000 + 20_000)
            assert timerValues.getCurrentWatermarkInMs() == 0

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            self.calls += 1
            found = numbers(rows)
            before = self.total.get()
            total = (before[0] if before is not None else 0) + sum(found)
            self.total.update((total, f"last {found[-1]}"))
            if found[0] % 3 == 0:
                self.list.put([(n,) for n in found])
            else:
                self.list.appendList([(n,) for n in found])
                self.list.appendValue((-found[0],))
            for n in found:
                part = (n % 4,)
                count, names = self.parts.getValue(part) or (0, [])
                self.parts.updateValue(part, (count + 1, [*names, str(n)]))
            if total > 20 and self.parts.containsKey((1,)):
                self.parts.removeKey((1,))
            passed = timerValues.getCurrentWatermarkInMs()
            if passed >= 0:
                for timer in self.handle.listTimers():
                    if timer % 2 == 0:
                        self.handle.deleteTimer(timer)
                self.handle.registerTimer(passed + 4_000)
                self.handle.registerTimer(passed + 20_001)
            yield make([self.shown(key, "rows", passed)])

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            expired = expiredTimerInfo.getExpiryTimeInMs()
            if expired % 2:
                shown = self.shown(key, "clears", expired)
                self.total.clear()
                self.list.clear()
                self.parts.clear()
                yield make([shown])
            else:
                self.total.update((-1, None))
                yield make([self.shown(key, "timer", expired)])

        def shown(self, key: Any, what: str, at: int) -> dict[str, Any]:
            assert self.total.exists() == (self.total.get() is not None)
            parts = sorted((k, v[0], list(v[1])) for k, v in self.parts.iterator())
            assert sorted(self.parts.keys()) == [k for k, *_ in parts]
            assert self.parts.exists() == bool(parts)
            total, seen = self.total.get(), list(self.list.get())
            timers = []
            if at >= 0:
                timers = sorted(self.handle.listTimers())
            text = f"{what} {at} {total} {seen} {parts} {timers}"
            return {"k": key[0], "text": text}

        def close(self) -> None:
            self.handle = None

    return Everything()


def _begins_with(df: DataFrame) -> Any:
    """What keys begin with: one twice, one that is null, one that never has a row."""
    rows = [("a", 100, True), (None, 7, None), ("z", 9, False), ("a", 101, True)]
    return df.sparkSession.createDataFrame(rows, "k string, m int, flag boolean").groupBy("k")


def _pandas_processor(mode: str, begins: bool = False) -> Callable[[DataFrame], DataFrame]:
    def define(df: DataFrame) -> DataFrame:
        import pandas as pd  # noqa: PLC0415

        def numbers(frames: Any) -> list[int]:
            return [n for frame in frames for n in frame["n"].tolist()]

        def firsts(frame: Any) -> list[int]:
            assert list(frame.columns) == ["k", "m", "flag"]
            return list(frame["m"])

        timed = df.withWatermark("ts", "2 seconds")
        return timed.groupBy("k").transformWithStateInPandas(
            _processor(pd.DataFrame, numbers, firsts), "k string, text string", "append", mode,
            initialState=_begins_with(df) if begins else None,
        )  # fmt: skip

    return define


def _row_processor(mode: str, begins: bool = False) -> Callable[[DataFrame], DataFrame]:
    def define(df: DataFrame) -> DataFrame:
        from pyspark.sql import Row  # noqa: PLC0415

        def numbers(rows: Any) -> list[int]:
            return [row.n for row in rows]

        def firsts(row: Any) -> list[int]:
            assert list(row.asDict()) == ["k", "m", "flag"]
            return [row.m]

        timed = df.withWatermark("ts", "2 seconds")
        return timed.groupBy("k").transformWithState(
            _processor(lambda rows: Row(**rows[0]), numbers, firsts), "k string, text string",
            "append", mode, initialState=_begins_with(df) if begins else None,
        )  # fmt: skip

    return define


def _chained(df: DataFrame) -> DataFrame:
    """A processor whose rows have times of their own, which are grouped by windows."""
    import pandas as pd  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415
    from pyspark.sql.streaming import StatefulProcessor  # noqa: PLC0415

    class Later(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.count = handle.getValueState("count", "n bigint")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            for frame in rows:
                count = (self.count.get() or (0,))[0] + len(frame)
                self.count.update((count,))
                at = frame["ts"].max() + pd.Timedelta(seconds=3)
                yield pd.DataFrame({"k": [key[0]], "count": [count], "at": [at]})

    timed = df.withWatermark("ts", "2 seconds")
    later = timed.groupBy("k").transformWithStateInPandas(
        Later(), "k string, count bigint, at timestamp", "append", "EventTime",
        eventTimeColumnName="at",
    )  # fmt: skip
    return later.groupBy(F.window("at", "10 seconds")).agg(
        F.sum("count").alias("total"), F.count("*").alias("rows")
    )


def _clocked(df: DataFrame) -> DataFrame:
    """States that the clock ends before a timer by the clock looks for them."""
    from pyspark.sql import Row  # noqa: PLC0415
    from pyspark.sql.streaming import StatefulProcessor  # noqa: PLC0415

    class Clocked(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.total = handle.getValueState("total", "n bigint")
            self.value = handle.getValueState("value", "n bigint", 200)
            self.list = handle.getListState("list", "n bigint", 200)
            self.map = handle.getMapState("map", "n bigint", "n bigint", 200)
            self.days = handle.getMapState("days", "n bigint", "n bigint", 86_400_000)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            before = self.shown()
            now = timerValues.getCurrentProcessingTimeInMs()
            assert not list(self.handle.listTimers())
            for row in rows:
                (total,) = self.total.get() or (0,)
                self.total.update((total + row.n,))
                self.value.update((row.n,))
                self.list.appendValue((row.n,))
                for each in (self.map, self.days):
                    each.updateValue((row.n,), (-row.n,))
            self.handle.registerTimer(now + 300)
            self.handle.registerTimer(now + 86_400_000)
            self.handle.deleteTimer(now + 86_400_000)
            yield Row(k=key[0], what="rows", text=f"{before} then {self.shown()}")

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            due = expiredTimerInfo.getExpiryTimeInMs()
            assert due <= timerValues.getCurrentProcessingTimeInMs()
            yield Row(k=key[0], what="timer", text=self.shown())

        def shown(self) -> str:
            parts = (self.total.get(), self.value.get(), list(self.list.get()))
            maps = (sorted(self.map.iterator()), sorted(self.days.iterator()))
            return " ".join(map(str, (*parts, *maps)))

    return df.groupBy("k").transformWithState(
        Clocked(), "k string, what string, text string", "append", "ProcessingTime"
    )


def _timers_came(found: list[dict[str, Any]]) -> bool:
    """Each call with rows has a timer, which comes when the clock says so."""
    return 2 * sum(row["what"] == "rows" for row in found) == len(found) > 0


def keeping(df: DataFrame, schema: str, more: tuple[Any, ...]) -> DataFrame:
    """Keeps a number of the newest rows, behind other values, and shows what was there before."""
    from pyspark.sql import Row  # noqa: PLC0415
    from pyspark.sql.streaming import StatefulProcessor  # noqa: PLC0415

    class Keeping(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.kept = handle.getValueState("kept", schema)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            before = self.kept.get()
            for row in rows:
                self.kept.update((*more, row.n))
            yield Row(text=str(before))

    return df.groupBy("k").transformWithState(Keeping(), "text string", "append", "None")


def _maps(df: DataFrame) -> DataFrame:
    """Groups of a batch, by functions that keep nothing."""
    import pandas as pd  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415

    def largest(key: Any, frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(of=f"{key[0]} {len(frame)}").nlargest(1, "n")[["of", "n"]]

    def counted(table: pa.Table) -> pa.Table:
        return pa.table({"of": table["k"].slice(0, 1), "n": pa.array([-table.num_rows])})

    one = df.groupBy("k").applyInPandas(largest, "of string, n bigint")
    return one.unionByName(df.groupBy("k").applyInArrow(counted, "of string, n bigint"))


def cases() -> dict[str, Case]:
    return {
        "maps": Case(_maps),
        "counts": Case(_counts),
        "timeouts": Case(_timeouts, "update"),
        "pandas": Case(_pandas_processor("EventTime")),
        "rows": Case(_row_processor("EventTime")),
        "pandas_none": Case(_pandas_processor("None")),
        "rows_none": Case(_row_processor("None")),
        "chained": Case(_chained),
        "begins_pandas": Case(_pandas_processor("EventTime", begins=True)),
        "begins_rows": Case(_row_processor("EventTime", begins=True)),
        "clocked": Case(_clocked, settled=_timers_came),
    }


NAMES = ("counts", "timeouts", "pandas", "rows", "maps", "clocked")
MORE_NAMES = ("pandas_none", "rows_none", "chained", "begins_pandas")
PROCESSORS = (
    "pandas", "rows", "pandas_none", "rows_none", "chained", "begins_pandas", "begins_rows",
    "clocked",
)  # fmt: skip
SAME = {"begins_pandas": "begins_rows"}  # whose answers are another's
GROUP_NODES = {
    "FlatMapGroupsInArrow", "FlatMapGroupsInPandas", "FlatMapGroupsInPandasWithState",
    "TransformWithStateInPySpark", "UpdateEventTimeWatermarkColumn",
}  # fmt: skip
