"""Users' functions in the table of steps (`cut_steps`). They depend only on their rows and on event time."""

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime import (
    TTL,
    BroadcastState,
    ListState,
    MapState,
    OwnTrigger,
    ProcessContext,
    TriggerResult,
    TriggerWindow,
    ValueState,
    WatermarkGenerator,
)
from barrier_runtime.data.rows import Row

SCHEMA = pa.schema([("k", pa.string()), ("t", pa.int64()), ("n", pa.int64())])
MS = datetime.timedelta(milliseconds=1)


class Every3(OwnTrigger):
    """Trigger that fires at each third row, purges at each fifth, and fires at times after an even number of rows."""

    state = {"seen": 0}
    interval = 15 * MS

    def on_row(self, row: Row, window: TriggerWindow) -> TriggerResult:
        window.state["seen"] += 1
        fire = TriggerResult.FIRE if window.state["seen"] % 3 == 0 else TriggerResult.NOTHING
        return fire | TriggerResult.PURGE if window.state["seen"] % 5 == 0 else fire

    def on_time(self, time_ms: int, window: TriggerWindow) -> TriggerResult | None:
        return None if window.state["seen"] % 2 else TriggerResult.FIRE


def not_seven(row: Row) -> Row:
    if row["n"] % 7 == 4:
        raise ValueError("such rows fail")
    return row


def plus_one(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([batch["k"], batch["t"], pc.add(batch["n"], 1)], schema=SCHEMA)


def as_many_as_n(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.take(pa.array(np.repeat(np.arange(len(batch)), np.array(batch["n"].to_pylist()) % 3)))


def not_five(batch: pa.RecordBatch) -> pa.RecordBatch:
    if pc.any(pc.equal(batch["n"], 5)).as_py():
        raise ValueError("such batches fail")
    return batch


def fetch(keys: list[int]) -> list[Row | None]:
    return [None if key % 5 == 3 else {"x": key} for key in keys]


def told(key: str, window: Any, table: pa.Table) -> Row:
    numbers = sum(at * n for at, n in enumerate(table["n"].to_pylist(), 1))
    return {"k": key, "t": int(window.end.timestamp() * 1000), "n": numbers}


class Behind(WatermarkGenerator):
    greatest = 0

    def watermarks(self, times: Any) -> Any:
        greatest = np.maximum(np.maximum.accumulate(times), self.greatest)
        self.greatest = int(greatest[-1])
        return greatest - 5


class Rows:
    def process(self, row: Row, ctx: Any) -> Any:
        for number in range(row["n"] % 3):
            ctx.emit("side", row)
            yield {**row, "n": row["n"] * 10 + number}


class Counted:
    seen = ValueState(int, default=0)
    last = ListState(int)

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Any:
        self.seen.value += 1
        self.last.append(row["n"])
        yield {**row, "n": self.seen.value * 100 + sum(self.last) % 100}


class Timed:
    """Groups rows of a key up to 20 ms apart into sessions; each row moves the timer that closes the session."""

    rows = ValueState(int, default=0)
    timer = ValueState(int, default=-1)

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Any:
        assert ctx.timestamp is not None
        self.rows.value += 1
        ctx.timers.delete(self.timer.value)
        self.timer.value = max(self.timer.value, ctx.timestamp + 20)
        ctx.timers.register(self.timer.value)
        if row["n"] % 5 == 0:
            ctx.timers.register(ctx.timestamp - 50)  # in the past, perhaps
        ctx.emit("side", {**row, "n": self.rows.value})
        yield {**row, "n": self.rows.value}

    def on_timer(self, key: str, timestamp_ms: int, ctx: ProcessContext) -> Any:
        yield {"k": key, "t": timestamp_ms, "n": -self.rows.value}
        if timestamp_ms == self.timer.value:
            self.rows.clear()


class Recent:
    """Counts the rows of a key with a TTL of 30 ms; late rows are evaluated at the watermark."""

    rows = ValueState(int, default=0, ttl=TTL(30 * MS))
    numbers = MapState(int, int, ttl=TTL(30 * MS, refresh="on_read"))

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Any:
        self.rows.value += 1
        self.numbers[row["n"] % 4] = row["n"]
        yield {**row, "n": self.rows.value * 10 + len(self.numbers)}


class Failing(Timed):
    def process(self, key: str, row: Row, ctx: ProcessContext) -> Any:
        if row["n"] % 4 == 1:
            raise ValueError("such rows fail")
        ctx.timers.register(row["t"] + 15)
        self.rows.value += 1
        yield {**row, "n": self.rows.value}


class Numbered:
    state = {"rows": "int64"}

    def process_groups(self, keys: Any, batch: pa.RecordBatch, state: Any) -> pa.RecordBatch:
        numbers = []
        for key in keys.of_row.tolist():
            state["rows"][key] += 1
            numbers.append(int(state["rows"][key]))
        made = pa.RecordBatch.from_arrays([batch["k"], batch["t"], pa.array(numbers, pa.int64())], schema=SCHEMA)
        return made.filter(pc.not_equal(made["n"], 3))


class Connected:
    seen = ValueState(int, default=0)

    def on_rows(self, key: str, row: Row, ctx: ProcessContext) -> Any:
        self.seen.value += 1
        ctx.timers.register(row["t"] + 20)
        yield {**row, "n": self.seen.value}

    def on_others(self, key: str, row: Row, ctx: ProcessContext) -> Any:
        self.seen.value += 10

    def on_timer(self, key: str, timestamp_ms: int, ctx: ProcessContext) -> Any:
        yield {"k": key, "t": timestamp_ms, "n": -self.seen.value}


class Ruled:
    rules = BroadcastState(str, int)
    seen = ValueState(int, default=0)

    def on_rows(self, key: str, row: Row, ctx: ProcessContext) -> Any:
        self.seen.value += 1
        ctx.timers.register(row["t"] + 20)
        yield {**row, "n": self.seen.value * 100 + len(self.rules)}

    def on_others(self, row: Row, ctx: Any) -> Any:
        self.rules[row["k"]] = row["n"]

    def on_timer(self, key: str, timestamp_ms: int, ctx: ProcessContext) -> Any:
        yield {"k": key, "t": timestamp_ms, "n": -self.seen.value * 100 - len(self.rules)}
