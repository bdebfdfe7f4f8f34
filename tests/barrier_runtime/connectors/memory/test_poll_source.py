"""Polled functions: cursors in checkpoints, continuing within a page, refusals."""

import threading
import time
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, RateLimit, Retry
from barrier_runtime.connectors.memory.poll import PollReader
from barrier_runtime.launch.outcome import JobFailed
from barrier_runtime.state.errors import InvalidJob, UserCodeError

SCHEMA = pa.schema([("n", pa.int64())])
EVERY = timedelta(milliseconds=1)
GIVE_UP_S = 120.0


def pages(cursor: Any) -> Any:
    """0 to 9, four at a time; then an empty page, then the end."""
    begin = 0 if cursor is None else cursor["next"]
    if begin > 10:
        return None
    return [{"n": n} for n in range(begin, min(10, begin + 4))], {"next": begin + 4 if begin < 10 else 11}


def read(reader: PollReader, rows: int, at_once: int) -> list[int]:
    found: list[int] = []
    deadline = time.monotonic() + GIVE_UP_S
    while len(found) < rows and not reader.finished:
        assert time.monotonic() < deadline, f"{len(found)} rows came"
        polled = reader.poll(min(at_once, rows - len(found)), 0)
        found += [] if polled is None else polled.rows.column("n").to_pylist()
    return found


@pytest.mark.parametrize("taken", range(11))
def test_a_position_names_the_very_next_row_also_inside_a_page(taken: int) -> None:
    before, after = (PollReader("src", pages, 0.001, SCHEMA) for _ in range(2))
    assert read(before, taken, 3) == list(range(taken))
    after.seek(before.position())
    assert read(after, 20, 3) == list(range(taken, 10))
    before.close()


def test_a_position_is_right_before_the_first_poll_after_a_restore() -> None:
    first, second, third = (PollReader("src", pages, 0.001, SCHEMA) for _ in range(3))
    read(first, 6, 6)
    second.seek(first.position())
    assert second.position() == first.position()
    third.seek(second.position())
    assert read(third, 20, 2) == [6, 7, 8, 9]
    first.close()


@pytest.mark.slow
def test_a_job_goes_on_at_its_cursor(tmp_path: Path) -> None:
    asked: list[Any] = []

    def fetch(cursor: Any) -> Any:
        asked.append(cursor)
        return pages(cursor)

    def run() -> list[int]:
        flow, out = Dataflow("polled"), CollectSink()
        flow.from_poll("src", fetch, every=EVERY, schema={"n": int}).sink("out", out)
        flow.run_local(parallelism=2, checkpoints=str(tmp_path))
        return [row["n"] for row in out.rows()]

    assert run() == list(range(10))
    before = len(asked)
    assert run() == []
    assert None not in asked[before:]


def test_what_the_function_raises_names_it_and_the_cursor() -> None:
    def fetch(cursor: Any) -> Any:
        if cursor == 1:
            raise OSError("HTTP 500")
        return [{"n": 1}], 1

    flow = Dataflow("polled")
    flow.from_poll("src", fetch, every=EVERY, schema={"n": int}).sink("out", CollectSink())
    with pytest.raises(JobFailed, match=r"fetch\(\) \(cursor 1\)|fetch") as failed:
        flow.run_local(parallelism=1)
    assert "HTTP 500" in str(failed.value)
    assert "retry=Retry(5, backoff=1)" in str(failed.value)
    assert "record" not in str(failed.value), "the function was given none"


def test_a_call_that_fails_is_repeated_with_the_same_cursor() -> None:
    asked: list[Any] = []

    def fetch(cursor: Any) -> Any:
        asked.append(cursor)
        if len(asked) in (2, 3):
            raise OSError("HTTP 503")
        return ([{"n": len(asked)}], (cursor or 0) + 1) if len(asked) < 6 else None

    flow, out = Dataflow("polled"), CollectSink()
    retry = Retry(2, backoff=timedelta(milliseconds=1), on=(OSError,))
    flow.from_poll("src", fetch, every=EVERY, schema={"n": int}, retry=retry).sink("out", out)
    flow.run_local(parallelism=1)
    assert asked == [None, 1, 1, 1, 2, 3]
    assert [row["n"] for row in out.rows()] == [1, 4, 5]


@pytest.mark.parametrize(("error", "calls"), [(OSError("HTTP 500"), 3), (ValueError("no such page"), 1)])
def test_the_last_failure_or_one_that_no_retry_names_ends_the_job(error: Exception, calls: int) -> None:
    asked: list[Any] = []

    def fetch(cursor: Any) -> Any:
        asked.append(cursor)
        raise error

    reader = PollReader("src", fetch, 0.001, SCHEMA, Retry(2, timedelta(milliseconds=1), (OSError,)))
    with pytest.raises(UserCodeError, match=str(error)):
        read(reader, 1, 1)
    assert asked == [None] * calls


def test_a_reader_that_is_closed_ends_the_pause_before_a_repetition() -> None:
    failed = threading.Event()

    def fetch(cursor: Any) -> Any:
        failed.set()
        raise OSError("HTTP 503")

    reader = PollReader("src", fetch, 0.001, SCHEMA, Retry(100, timedelta(days=1), (OSError,)))
    assert reader.poll(1, 0) is None
    assert failed.wait(GIVE_UP_S)
    reader.close()
    assert reader._thread is not None
    reader._thread.join(GIVE_UP_S)
    assert not reader._thread.is_alive()


def costly(reply: Any) -> int:
    return int(1e18) * len(reply[0])


@pytest.mark.parametrize("limit", [RateLimit(1, per=timedelta(days=1)), RateLimit(1e6, cost=0, reply_cost=costly)])
@pytest.mark.parametrize("fails", [False, True])
def test_calls_and_repetitions_wait_for_tokens_but_not_after_a_close(limit: RateLimit, fails: bool) -> None:
    asked: list[Any] = []

    def fetch(cursor: Any) -> Any:
        asked.append(cursor)
        if fails and len(asked) == 1:
            raise OSError("HTTP 429")
        return [{"n": 1}], 7

    more = limit.cost == 0 and fails  # what a call without a reply has cost is 0
    reader = PollReader("src", fetch, 0.0, SCHEMA, Retry(1, timedelta()), [limit])
    if fails and not more:
        assert reader.poll(1, 0) is None
    else:
        assert read(reader, 1, 1) == [1]
        assert reader.poll(1, 0) is None
    deadline = time.monotonic() + GIVE_UP_S
    while not asked:
        assert time.monotonic() < deadline
    reader.close()
    assert reader._thread is not None
    reader._thread.join(GIVE_UP_S)
    assert not reader._thread.is_alive()
    assert asked == [None] * (1 + more)


def test_a_call_costs_by_its_cursor_and_by_its_rows() -> None:
    seen: list[Any] = []

    def cost(cursor: Any) -> int:
        seen.append(cursor)
        return 1

    def spent(reply: Any) -> int:
        seen.append(([row["n"] for row in reply[0]], reply[1]))
        return 1

    reader = PollReader("src", pages, 0.0, SCHEMA, None, [RateLimit(1e6, cost=cost, reply_cost=spent)])
    assert read(reader, 20, 20) == list(range(10))
    nexts = [{"next": 4}, {"next": 8}, {"next": 12}]
    assert seen == [
        *(None, ([0, 1, 2, 3], nexts[0]), nexts[0], ([4, 5, 6, 7], nexts[1]), nexts[1], ([8, 9], nexts[2])),
        nexts[2],
    ]


def test_a_rate_limit_of_a_poller_is_one_and_explain_says_it() -> None:
    flow = Dataflow("polled")
    with pytest.raises(InvalidJob, match="source 'src': rate_limit=3: give a RateLimit"):
        flow.from_poll("src", pages, every=EVERY, schema={"n": int}, rate_limit=3)  # type: ignore[arg-type]
    limit = RateLimit(60, per=timedelta(minutes=1))
    flow.from_poll("src", pages, every=EVERY, schema={"n": int}, rate_limit=limit).sink("out", CollectSink())
    assert "at most 60 requests per 60 s" in flow.explain()


def test_retry_is_a_retry() -> None:
    with pytest.raises(InvalidJob, match="retry=3: give a Retry"):
        Dataflow("polled").from_poll("src", pages, every=EVERY, schema={"n": int}, retry=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("cursor", [7, 1 << 64, 1.5, "2026-01-01", True, None, [1, "x"], {"next": [1, {"a": 2}]}])
def test_a_cursor_of_json_comes_back_equal_and_of_the_same_type(cursor: Any) -> None:
    asked: list[Any] = []

    def fetch(given: Any) -> Any:
        asked.append(given)
        return ([{"n": 1}], cursor) if len(asked) < 2 else None

    before, after = PollReader("src", fetch, 0.001, SCHEMA), PollReader("src", fetch, 0.001, SCHEMA)
    assert read(before, 2, 1) == [1]
    after.seek(before.position())
    assert read(after, 1, 1) == []
    assert [(type(each), each) for each in asked[1:]] == [(type(cursor), cursor)] * 2


UNKEPT = {
    "datetime": datetime(2026, 1, 1),
    "set": {1},
    "bytes": b"1",
    "dict": {1: 1},
    "tuple": (1, "x"),
    "list": [(1, 2)],
    "int64": np.int64(1),
    "float": float("nan"),
    "Decimal": Decimal("1.5"),
    "str": "\ud800",
    "object": object(),
}


@pytest.mark.parametrize("kind", UNKEPT)
def test_a_cursor_that_json_would_change_is_refused(kind: str) -> None:
    def fetch(cursor: Any) -> Any:
        return [{"n": 1}], UNKEPT[kind]

    said = rf"fetch\(\) of source 'src' returned the next cursor .*, of type {kind}: .*Return a number or text"
    with pytest.raises(InvalidJob, match=said) as refused:
        read(PollReader("src", fetch, 0.001, SCHEMA), 1, 1)
    assert "make it accept this record" not in str(refused.value)


@pytest.mark.parametrize("given", [[], ({"n": 1},)])
def test_a_result_that_is_no_page_is_refused(given: Any) -> None:
    reader = PollReader("src", lambda cursor: given, 0.001, SCHEMA)
    with pytest.raises(UserCodeError):
        read(reader, 1, 1)


def test_a_function_is_wanted_and_a_duration() -> None:
    flow = Dataflow("polled")
    with pytest.raises(InvalidJob, match="fetch=<str>: give a function"):
        flow.from_poll("src", "http://x", every=EVERY, schema={"n": int})  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match=r"every of source 'src' is '5': pass a datetime\.timedelta"):
        flow.from_poll("src", pages, every="5", schema={"n": int})  # type: ignore[arg-type]
