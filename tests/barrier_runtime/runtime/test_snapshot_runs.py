"""Snapshot of a subtask: the parts that threads produce, and the report."""

import asyncio
import threading

from barrier_runtime.coordinator.wire.messages import SubtaskId
from barrier_runtime.data.elements import Barrier
from barrier_runtime.operators.base import Capture
from barrier_runtime.runtime.checkpointing import SnapshotRun, ValuesStore
from barrier_runtime.runtime.host.workers import Workers
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot, SnapshotTimes

SMALL = 10  # bytes


async def reported(captures: dict[str, Capture]) -> tuple[list[OperatorSnapshot], dict[str, str]]:
    """Returns the reported snapshots, and the storing thread per value."""
    pool = Workers(asyncio.get_running_loop())
    end: asyncio.Future[tuple[OperatorSnapshot, ...]] = asyncio.get_running_loop().create_future()
    threads: dict[str, str] = {}

    def store(values, stored, check):
        threads.update(dict.fromkeys(values, threading.current_thread().name))
        return dict(values), dict(stored)

    try:
        SnapshotRun(
            SubtaskId(0, 1),
            2,
            Barrier(7, 1),
            captures,
            {name: pool.executor(end.set_exception) for name in captures},
            SnapshotTimes(),
            lambda: 0.0,
            False,
            ValuesStore(SMALL, store),
            lambda run, operators, times: end.set_result(operators),
            lambda run, error: end.set_exception(error),
        )
        assert not end.done()  # the caller adds the run to the list first
        return list(await end), threads
    finally:
        pool.close()


async def test_only_what_is_written_before_it_is_reported_takes_a_thread() -> None:
    captures = {
        "src": Capture({"position": b"1"}),
        "large": Capture({"values": b"x" * (SMALL + 1)}),
        "plain": Capture(),
        "out": Capture({"next": b"2"}, blocking=lambda: {"staged": b"3"}),
    }
    operators, threads = await reported(captures)
    assert [(each.operator, each.subtask, each.parallelism, each.values) for each in operators] == [
        ("src", 1, 2, {"position": b"1"}),
        ("large", 1, 2, {"values": b"x" * (SMALL + 1)}),
        ("out", 1, 2, {"next": b"2", "staged": b"3"}),
    ]
    assert sorted(threads) == ["next", "staged", "values"]
    assert threading.current_thread().name not in threads.values()


async def test_a_chain_with_small_values_alone_is_reported_after_the_call_that_began_it() -> None:
    operators, threads = await reported({"src": Capture({"position": b"1"}), "map": Capture({"count": b"2"})})
    assert [(each.operator, each.values) for each in operators] == [
        ("src", {"position": b"1"}),
        ("map", {"count": b"2"}),
    ]
    assert list(threads) == ["count"]
