"""Whole jobs with a lookup: coroutines and threads, checkpoints without replies, restarts, the end, and refusals at
build time.
"""

import asyncio
import contextlib
import functools
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import (
    Cache,
    CollectSink,
    Dataflow,
    InvalidJob,
    JobFailed,
    RateLimit,
    RedisUpsertSink,
    Retry,
    Tumbling,
    count,
)
from barrier_runtime.operators.lookups import calls

ROWS = {"user": int, "v": int}
NAME = {"name": str}
PATIENCE_S = 60


def numbers(flow: Dataflow, count: int, users: int = 10, **arguments: Any) -> Any:
    def rows(index: int, of: int) -> Iterator[dict[str, int]]:
        return ({"user": v % users, "v": v} for v in range(index, count, of))

    return flow.from_iterator("numbers", rows, schema=ROWS, **arguments)


def name_of(user: int) -> dict[str, str] | None:
    return {"name": f"user {user}"} if user % 5 else None


async def fetch_async(keys: list[int]) -> list[Any]:
    await asyncio.sleep(0.001 * (1 + keys[0] % 3))
    return [name_of(key) for key in keys]


def fetch_on_threads(keys: list[int]) -> dict[int, Any]:
    return {key: found for key in keys if (found := name_of(key))}


class FetchAsync:
    async def open(self) -> None:
        self.loop = asyncio.get_running_loop()

    async def fetch_many(self, keys: list[int]) -> list[Any]:
        assert asyncio.get_running_loop() is self.loop
        return await fetch_async(keys)

    async def close(self) -> None:
        self.loop.call_soon(lambda: None)


def completed(count: int, users: int = 10) -> list[tuple[int, Any]]:
    return [(v, (name_of(v % users) or {}).get("name")) for v in range(count)]


def found(sink: CollectSink) -> list[tuple[int, Any]]:
    return [(row["v"], row["name"]) for row in sink.rows()]


@pytest.mark.slow
@pytest.mark.parametrize("fetch", [fetch_async, fetch_on_threads, FetchAsync, functools.partial(fetch_async)])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_each_row_is_completed_and_the_end_waits_for_the_last_reply(fetch: Any, parallelism: int) -> None:
    flow, sink = Dataflow("job"), CollectSink()
    numbers(flow, 3_000).lookup("names", fetch, key="user", schema=NAME, capacity=100).sink("out", sink)
    flow.run_local(parallelism=parallelism)
    assert sorted(found(sink)) == completed(3_000)


@pytest.mark.slow
def test_ordered_rows_go_out_as_they_came() -> None:
    flow, sink = Dataflow("job"), CollectSink()
    stream = numbers(flow, 2_000, users=500, splits=1)
    stream.lookup("names", fetch_async, key="user", schema=NAME, ordered=True, max_batch=7).sink("out", sink)
    flow.run_local(parallelism=1)
    assert found(sink) == completed(2_000, 500)


def test_misses_and_errors_are_streams() -> None:
    def fetch(keys: list[int]) -> dict[int, Any]:
        return {key: ValueError(f"no {key}") if key == 3 else name_of(key) for key in keys}

    flow = Dataflow("job")
    streams = numbers(flow, 100).lookup("names", fetch, key="user", schema=NAME, how="side", on_error="side")
    sinks = [CollectSink() for _ in streams]
    for stream, sink, name in zip(streams, sinks, ("out", "misses", "errors"), strict=True):
        stream.sink(name, sink)
    flow.run_local(parallelism=1)
    out, misses, errors = (sink.rows() for sink in sinks)
    assert (len(out), len(misses), len(errors)) == (70, 20, 10)
    assert set(misses[0]) == {"user", "v"}
    assert {row["message"] for row in errors} == {"no 3"}


@pytest.mark.slow
@pytest.mark.parametrize("unaligned", [False, True])
@pytest.mark.filterwarnings("ignore:.*cannot be copied")  # threads of this process are no part of a flow on Spark
def test_checkpoints_complete_while_nothing_is_replied_and_the_lookup_is_full(unaligned: bool) -> None:
    """The output of the parallel branch becomes visible with a checkpoint; only then do replies arrive."""
    beside, out = CollectSink(), CollectSink()
    allowed = threading.Event()

    async def fetch(keys: list[int]) -> list[Any]:
        while not allowed.is_set():
            await asyncio.sleep(0.01)
        return [name_of(key) for key in keys]

    flow = Dataflow("job")
    stream = numbers(flow, 2_000, users=2_000, splits=1)
    stream.filter("v % 2 = 0").rebalance().lookup(
        "names", fetch, key="user", schema=NAME, capacity=100, timeout=timedelta(seconds=PATIENCE_S)
    ).sink("out", out)
    stream.filter("v % 2 = 1").sink("beside", beside)

    def watch() -> None:
        waited = threading.Event()
        while not allowed.is_set():
            if beside.rows():
                allowed.set()
            waited.wait(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        flow.run_local(parallelism=1, checkpoint_interval=0.05, unaligned=unaligned)
    finally:
        allowed.set()
        watcher.join()
    assert sorted(found(out)) == completed(2_000, 2_000)[::2]
    assert len(beside.rows()) == 1_000


class RestartedSystem:
    """Waits in the first generation for a checkpoint with all rows in flight, and then fails every call."""

    beside = CollectSink()
    opened = 0

    def open(self) -> None:
        RestartedSystem.opened += 1
        self.first = RestartedSystem.opened == 1

    async def fetch_many(self, keys: list[int]) -> list[Any]:
        while self.first and not self.beside.rows():
            await asyncio.sleep(0.01)
        if self.first:
            raise ConnectionError("the other system was restarted")
        return [name_of(key) for key in keys]


@pytest.mark.slow
def test_rows_in_flight_are_asked_for_again_after_a_restart_and_come_out_once() -> None:
    RestartedSystem.beside, RestartedSystem.opened = CollectSink(), 0
    out = CollectSink()
    flow = Dataflow("job")
    stream = numbers(flow, 300, users=300, splits=1)
    retry = Retry(1, timedelta(), (OSError,))
    stream.lookup("names", RestartedSystem, key="user", schema=NAME, capacity=50, retry=retry).sink("out", out)
    stream.sink("beside", RestartedSystem.beside)
    flow.run_local(
        parallelism=1, checkpoint_interval=0.05, restart="fixed_delay", restart_attempts=20, restart_delay=0.0
    )
    assert sorted(found(out)) == completed(300, 300)
    assert sorted(row["v"] for row in RestartedSystem.beside.rows()) == list(range(300))
    assert RestartedSystem.opened > 1


@pytest.mark.slow
def test_watermarks_wait_for_replies_so_no_row_is_late_behind_a_lookup() -> None:
    flow, sink = Dataflow("job"), CollectSink()
    stream = numbers(flow, 5_000, splits=1, event_time="v")
    looked_up = stream.lookup("names", fetch_async, key="user", schema=NAME, max_batch=3, capacity=50)
    windows = looked_up.key_by("user").window("counts", Tumbling(timedelta(milliseconds=100)), event_time="v")
    counts, late = windows.aggregate(late=True, n=count())
    late_rows = CollectSink()
    counts.sink("out", sink)
    late.sink("late", late_rows)
    flow.run_local(parallelism=2)
    assert late_rows.rows() == []
    assert {row["n"] for row in sink.rows()} == {10}
    assert len(sink.rows()) == 500


def test_a_failing_lookup_ends_the_job_and_shows_the_row() -> None:
    def fetch(keys: list[int]) -> Any:
        raise KeyError("no such table")

    flow = Dataflow("job")
    numbers(flow, 10).lookup("names", fetch, key="user", schema=NAME).sink("out", CollectSink())
    with pytest.raises(JobFailed, match=r"raised KeyError: 'no such table'\n  key: 0\n  record: {'user': 0, 'v': 0}"):
        flow.run_local(parallelism=1)


def lookup(**arguments: Any) -> Any:
    given: dict[str, Any] = {"key": "user", "schema": NAME, **arguments}
    fetch = given.pop("fetch", fetch_async)
    return numbers(Dataflow("job"), 1).lookup("names", fetch, **given)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"key": "usr"}, "there is no column 'usr'"),
        ({"key": ()}, "name the column that is looked up"),
        ({"schema": {"v": int}}, "column 'v' is on both sides"),
        ({"schema": {"user": int}}, "has the key alone"),
        ({"capacity": 0}, "capacity=0"),
        ({"max_batch": True}, "max_batch=True"),
        ({"max_requests": -1}, "max_requests=-1"),
        ({"timeout": "2"}, "timeout of lookup 'names' is '2'"),
        ({"timeout": timedelta()}, "timeout is 0"),
        ({"linger": timedelta(hours=1)}, "longer than a minute"),
        ({"how": "outer"}, "how='outer'"),
        ({"ordered": "yes"}, "ordered=<str>: give True or False"),
        ({"retry": 3}, "retry=3: give a Retry"),
        ({"cache": 100}, "cache=100: give a Cache"),
        ({"rate_limit": 5}, "lookup 'names': rate_limit=5: give a RateLimit"),
        ({"rate_limit": [RateLimit(1), 5]}, "give a RateLimit, such as .*, or a list of them"),
        ({"on_error": "ignore"}, "on_error='ignore'"),
        ({"fetch": 5}, "5 cannot be called"),
        ({"fetch": int.__class__("Empty", (), {})}, "class Empty has no method fetch_many"),
    ],
)
def test_what_cannot_be_meant_is_refused_when_the_flow_is_written(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidJob, match=says):
        lookup(**wrong)


def test_result_has_columns_of_both_sides_and_the_schemas_key_adds_no_column() -> None:
    stream = lookup(schema=pa.schema([("user", pa.int64()), ("name", pa.string())]), cache=Cache(5))
    assert stream.schema == pa.schema([("user", pa.int64()), ("v", pa.int64()), ("name", pa.string())])


def test_a_lookup_is_refused_before_a_sink_that_relies_on_a_deterministic_replay() -> None:
    with pytest.raises(InvalidJob, match="'names' before it rows are looked up in another system"):
        lookup().sink("out", RedisUpsertSink("redis://127.0.0.1", key="{user}", deterministic=True))


async def cancelled(keys: list[int]) -> list[Any]:
    given: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
    given.cancel()
    return await given


def cancelled_on_a_thread(keys: list[int]) -> list[Any]:
    raise asyncio.CancelledError("what it awaited was cancelled, and not by this lookup")


@pytest.mark.parametrize("fetch", [cancelled, cancelled_on_a_thread])
def test_a_call_that_is_cancelled_from_elsewhere_has_failed_and_is_not_waited_for(fetch: Any) -> None:
    """Clients cancel awaited calls, for example when a connection is lost."""
    flow, sink = Dataflow("job"), CollectSink()
    _, errors = numbers(flow, 3).lookup(
        "names", fetch, key="user", schema=NAME, timeout=timedelta(hours=1), on_error="side"
    )
    errors.sink("errors", sink)
    flow.run_local(parallelism=1)
    assert {(row["error_type"], row["message"]) for row in sink.rows()} == {
        ("RuntimeError", "CancelledError: what it awaited was cancelled, and not by this lookup")
    }


def test_a_coroutine_that_does_not_let_itself_be_cancelled_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fetch(keys: list[int]) -> list[Any]:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3_600)

    monkeypatch.setattr(calls, "_CLOSE_S", 0.1)
    flow, sink = Dataflow("job"), CollectSink()
    stream = numbers(flow, 3).lookup(
        "names", fetch, key="user", schema=NAME, timeout=timedelta(milliseconds=50), on_error="side"
    )
    stream[1].sink("errors", sink)
    flow.run_local(parallelism=1)
    assert {row["error_type"] for row in sink.rows()} == {"NoReply"}
    assert "a coroutine has not ended 0.1 s after it was cancelled: it is left behind" in caplog.text


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: RateLimit(0), "RateLimit: tokens=0: give a number above 0"),
        (lambda: RateLimit(None), "RateLimit: tokens=None: give a number above 0"),  # type: ignore[arg-type]
        (lambda: RateLimit("5"), "RateLimit: tokens='5': give a number above 0"),  # type: ignore[arg-type]
        (lambda: RateLimit(5, per=0), "RateLimit: per=.*: give a time above 0"),
        (lambda: RateLimit(5, per="1 s"), "per of a RateLimit is '1 s': pass a datetime.timedelta"),  # type: ignore[arg-type]
        (lambda: RateLimit(5, burst=-1), "RateLimit: burst=.*: give a time that is not negative"),
        (lambda: RateLimit(5, cost=1.5), "RateLimit: cost=1.5: use a whole number, 0 or more"),  # type: ignore[arg-type]
        (lambda: RateLimit(5, cost=-1), "RateLimit: cost=-1: use a whole number, 0 or more"),
        (lambda: RateLimit(5, reply_cost=3), "RateLimit: reply_cost=3: give a function of a reply"),  # type: ignore[arg-type]
    ],
)
def test_a_rate_limit_that_cannot_be_meant_is_refused(make: Any, says: str) -> None:
    with pytest.raises(InvalidJob, match=says):
        make()


def test_explain_says_all_limits_of_a_lookup() -> None:
    flow, limit = Dataflow("job"), RateLimit(90_000, per=timedelta(minutes=1), cost=200)
    stream = numbers(flow, 1).lookup(
        "names", fetch_async, key="user", schema=NAME, max_requests_per_second=5, rate_limit=limit
    )
    stream.sink("out", CollectSink())
    assert "at most 5 requests per second and 90,000 tokens per 60 s over all subtasks" in flow.explain()


@pytest.mark.parametrize("fetch", [fetch_async, fetch_on_threads])
def test_a_job_with_tokens_completes_each_row(fetch: Any) -> None:
    priced: list[Any] = []

    def spent(reply: Any) -> int:
        priced.append(reply)
        return len(reply)

    limit = RateLimit(10_000, cost=lambda keys: 2 * len(keys), reply_cost=spent)
    flow, sink = Dataflow("job"), CollectSink()
    numbers(flow, 50).lookup("names", fetch, key="user", schema=NAME, rate_limit=limit).sink("out", sink)
    flow.run_local(parallelism=1)
    assert sorted(found(sink)) == completed(50)
    assert {type(each) for each in priced} == {list if fetch is fetch_async else dict}


def test_a_reply_that_cannot_be_priced_ends_the_job_with_the_name_of_the_step() -> None:
    limit = RateLimit(10, reply_cost=lambda reply: reply["usage"])
    flow = Dataflow("job")
    numbers(flow, 1).lookup("names", fetch_async, key="user", schema=NAME, rate_limit=limit).sink("out", CollectSink())
    with pytest.raises(JobFailed, match=r"reply_cost=.* of a RateLimit of operator 'names'.*TypeError"):
        flow.run_local(parallelism=1)
