"""The timer of a job's runner rings once, at the earliest set time or before."""

import asyncio

from barrier_runtime.coordinator.server.clock import DeadlineTimer, SteadyClock
from tests.waiting import eventually


async def test_the_earliest_time_counts_and_a_cancelled_alarm_is_silent() -> None:
    clock, rung = SteadyClock(), list[str]()
    first, second, cancelled = (DeadlineTimer(clock, lambda name=name: rung.append(name)) for name in ("1", "2", "3"))
    now_ms = clock()
    first.set(now_ms + 3_600_000)
    first.set(now_ms)
    first.set(now_ms + 3_600_000)
    cancelled.set(now_ms)
    cancelled.cancel()
    cancelled.cancel()
    await eventually(lambda: rung == ["1"], "the earliest time")
    second.set(clock())
    await eventually(lambda: rung == ["1", "2"], "a later timer")
    await asyncio.sleep(0)
    first.set(clock())
    await eventually(lambda: rung == ["1", "2", "1"], "the next set time")
    assert "3" not in rung
