"""An `async def` in a place that does not await is refused at build time; the error names the right place."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, Global, InvalidJob, RowAggregate, connect, count


async def row_function(row: Any) -> Any:
    return row


async def rows_function(row: Any) -> Any:
    yield row


class Called:
    async def __call__(self, row: Any) -> Any:
        return row


class Unkeyed:
    async def process(self, row: Any, ctx: Any) -> Any:
        return row


class Keyed:
    async def process(self, key: Any, row: Any, ctx: Any) -> Any:
        yield row


class Timed:
    def process(self, key: Any, row: Any, ctx: Any) -> Any: ...

    async def on_wall_timer(self, key: Any, due_ms: int, ctx: Any) -> Any: ...


class Batches:
    state = {"n": "int64"}

    async def process_groups(self, keys: Any, batch: Any, state: Any) -> Any: ...


class Inputs:
    async def on_left(self, key: Any, row: Any, ctx: Any) -> Any: ...


async def whole_window(key: Any, window: Any, table: Any) -> Any: ...


class Own(RowAggregate):
    type, state = pa.int64(), int

    def zero(self) -> int:
        return 0

    async def add(self, state: int, value: int) -> int:  # type: ignore[override]
        return state

    def result(self, state: int) -> int:
        return state


class Opened:
    async def open(self, ctx: Any) -> None: ...

    def process(self, key: Any, row: Any, ctx: Any) -> Any: ...


@pytest.mark.parametrize(
    ("write", "named"),
    [
        (lambda rows: rows.map(row_function), r"map: row_function\(\)"),
        (lambda rows: rows.map(Called()), r"map: Called\.__call__\(\)"),
        (lambda rows: rows.flat_map(rows_function), r"flat_map: rows_function\(\)"),
        (lambda rows: rows.filter(row_function, name="f"), r"filter f: row_function\(\)"),
        (lambda rows: rows.map_batches(row_function), r"map_batches: row_function\(\)"),
        (lambda rows: rows.process("p", Unkeyed), r"process 'p': Unkeyed\.process\(\)"),
        (lambda rows: rows.key_by("value").process("p", Keyed), r"process 'p': Keyed\.process\(\)"),
        (lambda rows: rows.key_by("value").process("p", Timed()), r"process 'p': Timed\.on_wall_timer\(\)"),
        (lambda rows: rows.key_by("value").process("p", Opened), r"process 'p': Opened\.open\(\)"),
        (
            lambda rows: rows.key_by("value").process_groups("p", Batches),
            r"process_groups 'p': Batches\.process_groups",
        ),
        (
            lambda rows: rows.key_by("value").window("w", Global()).apply(whole_window, schema={"n": int}),
            r"window 'w': whole_window\(\)",
        ),
        (
            lambda rows: rows.key_by("value").window("w", Global()).apply(whole_window, schema={"n": int}, n=count()),
            r"window 'w': whole_window\(\)",
        ),
        (lambda rows: rows.split("s", row_function, into=("a", "b")), r"split 's': row_function\(\)"),
        (lambda rows: rows.for_each_batch(row_function, name="b"), r"for_each_batch 'b': row_function\(\)"),
        (lambda rows: rows.key_by("value").aggregate("a", own=Own("value")), r"aggregate 'a', own: Own\.add\(\)"),
        (lambda rows: connect(left=rows.key_by("value")).process("c", Inputs), r"connect 'c': Inputs\.on_left\(\)"),
    ],
)
def test_an_async_function_is_refused_where_nobody_awaits_it(write: Callable[[Any], Any], named: str) -> None:
    with pytest.raises(InvalidJob, match=named + r".* is an async def, .*write a plain function; .*lookup\("):
        write(Dataflow("f").rate("numbers", 1, 1))


def test_a_lookup_takes_coroutines_as_ever() -> None:
    async def fetch(keys: Any) -> Any:
        return [{"text": str(key)} for key in keys]

    flow, sink = Dataflow("f"), CollectSink()
    rows = flow.rate("numbers", 1_000_000, 3, splits=1)
    rows.lookup("texts", fetch, key="value", schema={"text": str}).sink("out", sink)
    flow.run_local(parallelism=1)
    assert sorted(row["text"] for row in sink.rows()) == ["0", "1", "2"]
