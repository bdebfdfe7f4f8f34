"""Iterators that wait for a socket, an API or a clock block neither their slot, nor checkpoints, nor the end."""

import itertools
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import World
from source_harness import opened, rows_of, snapshot_of, spec_of

from barrier_runtime import CollectSink, Dataflow, JsonlSink
from barrier_runtime.connectors.memory.iterator import IteratedRows, RowsAhead
from barrier_runtime.data.row_class import row_class
from barrier_runtime.data.rows import RowWriter
from barrier_runtime.launch.outcome import JobFailed
from barrier_runtime.runtime.sources.driver import SourceDriver
from barrier_runtime.state.errors import InvalidJob, UserCodeError
from tests.drawn import examples
from tests.integration.harness import visible_files

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
GIVE_UP_S = 120.0


def source_of(make: Any, replayable: bool = True) -> IteratedRows:
    return IteratedRows("src", lambda index, of: make(), SCHEMA, replayable, 1)


def read_until(driver: SourceDriver, rows: int) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = []
    deadline = time.monotonic() + GIVE_UP_S
    while len(read) < rows:
        assert time.monotonic() < deadline, f"{len(read)} rows came"
        batch = driver.poll(time.time_ns())
        read += [] if batch is None else rows_of([batch])
    return read


def numbers_visible(folder: Path) -> list[int]:
    files = [folder / name for name in visible_files(folder)] if folder.exists() else []
    return sorted(json.loads(line)["n"] for file in files for line in file.read_text().splitlines())


@pytest.mark.slow
def test_rows_are_committed_while_the_iterator_waits(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def slowly() -> Iterator[dict[str, Any]]:
        for n in range(5):
            yield {"n": n}
            deadline = time.monotonic() + GIVE_UP_S
            while n not in numbers_visible(out):
                assert time.monotonic() < deadline, f"row {n} is not visible while the iterator waits"
                time.sleep(0.01)

    flow = Dataflow("waiting")
    flow.from_iterator("src", lambda i, of: slowly(), schema={"n": int}, splits=1).sink("out", JsonlSink(str(out)))
    flow.run_local(checkpoint_interval=0.1)
    assert numbers_visible(out) == [0, 1, 2, 3, 4]


def test_poll_does_not_wait_for_a_waiting_iterator_and_gets_each_row_on_arrival() -> None:
    goes_on, over = threading.Semaphore(0), threading.Event()

    def waiting() -> Iterator[dict[str, Any]]:
        try:
            for n in range(3):
                assert goes_on.acquire(timeout=GIVE_UP_S)
                yield {"n": n}
            assert goes_on.acquire(timeout=GIVE_UP_S)
        finally:
            over.set()

    driver = opened(spec_of(source_of(waiting)), World())
    for n in range(3):
        assert driver.poll(time.time_ns()) is None
        goes_on.release()
        assert [row["n"] for row in read_until(driver, 1)] == [n]
    assert not driver.finished
    goes_on.release()
    assert over.wait(GIVE_UP_S)
    deadline = time.monotonic() + GIVE_UP_S
    while not driver.finished:
        assert time.monotonic() < deadline
        assert driver.poll(time.time_ns()) is None


def test_close_does_not_wait_for_a_waiting_iterator_whose_thread_ends_later() -> None:
    began, goes_on, pulled = threading.Event(), threading.Event(), []

    def waiting() -> Iterator[dict[str, Any]]:
        began.set()
        assert goes_on.wait(GIVE_UP_S)
        for n in range(1_000_000):
            pulled.append(n)
            yield {"n": n}

    of_other_tests = threading.enumerate()
    driver = opened(spec_of(source_of(waiting)), World())
    assert began.wait(GIVE_UP_S)
    (thread,) = [each for each in threading.enumerate() if each.name == "rows-src-0" and each not in of_other_tests]
    assert thread.daemon
    driver.close()
    goes_on.set()
    thread.join(GIVE_UP_S)
    assert not thread.is_alive()
    assert len(pulled) <= 2_048


@pytest.mark.filterwarnings("ignore:.*cannot be copied")  # threads of this process are no part of a flow on Spark
def test_a_job_ends_by_its_own_failure_while_an_iterator_waits(tmp_path: Path) -> None:
    never = threading.Event()

    def waiting() -> Iterator[dict[str, Any]]:
        yield {"n": 1}
        never.wait()

    def fail(row: dict[str, Any]) -> dict[str, Any]:
        raise InvalidJob("the job ends here")

    flow = Dataflow("ends")
    rows = flow.from_iterator("src", lambda i, of: waiting(), schema={"n": int}, splits=1)
    rows.map(fail, schema={"n": int}).sink("out", CollectSink())
    with pytest.raises(JobFailed, match="the job ends here"):
        flow.run_local()
    never.set()


@pytest.mark.slow
def test_an_iterator_is_not_pulled_far_ahead_of_what_was_taken() -> None:
    pulled: list[int] = []

    def large() -> Iterator[dict[str, Any]]:
        for n in range(1_000):
            pulled.append(n)
            yield {"n": n, "text": "x" * (1 << 20)}

    driver = opened(spec_of(source_of(large)), World())
    taken = 0
    while taken < 100:
        taken += len(read_until(driver, 1))
        assert len(pulled) - taken <= 24  # a batch of about 8 MiB is ready; the next begins only after a take
    driver.close()


def test_iterator_error_follows_its_earlier_rows_with_the_users_traceback() -> None:
    def broken_feed() -> Iterator[dict[str, Any]]:
        yield {"n": 0}
        yield {"n": 1}
        raise ConnectionResetError("the feed is gone")

    driver = opened(spec_of(source_of(broken_feed)), World())
    assert [row["n"] for row in read_until(driver, 2)] == [0, 1]
    with pytest.raises(UserCodeError, match=r"row 2 of split 0.*ConnectionResetError: the feed is gone") as raised:
        read_until(driver, 1)
    assert 'raise ConnectionResetError("the feed is gone")' in str(raised.value.user_traceback)
    assert "connectors/memory/iterator" not in str(raised.value.user_traceback)


def test_an_iterator_that_cannot_be_made_is_the_users_error() -> None:
    def make() -> Iterator[dict[str, Any]]:
        raise ValueError("no address")

    driver = opened(spec_of(source_of(make)), World())
    with pytest.raises(UserCodeError, match="ValueError: no address"):
        read_until(driver, 1)


@pytest.mark.slow
@examples(25)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(1, 30), st.booleans()), max_size=25),
)
def test_polls_and_restarts_give_every_row_once_whenever_the_iterator_waits(
    waits: list[int], polls: list[tuple[int, bool]]
) -> None:
    def slowly() -> Iterator[dict[str, Any]]:
        for n, wait in enumerate(waits):
            time.sleep(wait * 0.001)
            yield {"n": n, "text": "x" * wait}

    spec, world = spec_of(source_of(slowly)), World()
    driver, read = opened(spec, world), []
    for limit, restart in polls:
        batch = driver.poll(time.time_ns(), limit)
        read += [] if batch is None else rows_of([batch])
        if restart:
            snapshot = snapshot_of(driver, world)
            driver.close()
            driver = opened(spec, world, (snapshot,))
    read += read_until(driver, len(waits) - len(read))
    assert [row["n"] for row in read] == list(range(len(waits)))
    driver.close()


@dataclass(frozen=True)
class Body:
    text: str


@pytest.mark.parametrize("make", [Body, lambda text: {"text": text}])
def test_large_rows_are_pulled_only_until_their_bytes_suffice(make: Any) -> None:
    pulled: list[int] = []

    def rows() -> Iterator[Any]:
        for number in itertools.count():
            pulled.append(number)
            yield make("x" * 200_000)

    kind = row_class(Body, "test")
    assert kind is not None
    ahead = RowsAhead(rows, RowWriter("test", kind), kind.schema, "test")
    with ahead._changed:
        assert ahead._changed.wait_for(ahead._is_enough, GIVE_UP_S)
    assert len(pulled) < 64
    ahead.close()
