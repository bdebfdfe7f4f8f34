"""One tick for all readers: shared data, the task's lifetime, and isolation of slow and leaving readers."""

import asyncio
from random import Random

import msgspec
import pytest

from barrier_runtime.coordinator.server.web import ticker as module
from barrier_runtime.coordinator.server.web.ticker import PageTick, Ticker


class Looked:
    """The source of the ticker, with a count of reads."""

    def __init__(self) -> None:
        self.times: dict[str, int] = {}
        self.changes = "a"
        self.urgent = ""
        self.broken = False

    def __call__(self, name: str) -> PageTick:
        if self.broken:
            raise RuntimeError("a figure that cannot be made")
        self.times[name] = self.times.get(name, 0) + 1
        return PageTick({"records": str(self.times[name])}, self.changes, self.urgent)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(module, "TICK_S", 0.002)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def told(event: bytes) -> dict:
    assert event.startswith(b"event: tick\ndata: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 3
    return msgspec.json.decode(event[18:])


async def test_all_readers_get_the_same_bytes_and_each_tick_is_made_once(quick):
    looked = Looked()
    ticker = Ticker(looked, Clock())
    readers = [ticker.follow("flights", 1e9) for _ in range(5)]
    first = [await anext(reader) for reader in readers]
    assert told(first[-1])["figures"] == {"records": "5"}, "a new reader has a tick at once"
    for reader in readers[:-1]:
        assert told(await anext(reader)) == told(first[-1]), "what was made while it took the one before"
    made = looked.times["flights"]
    later = await asyncio.gather(*(anext(reader) for reader in readers))
    ticks = {id(each) for each in later}  # a single tick, unless the loop was late for some of the readers
    assert len(ticks) == len({bytes(each) for each in later}) <= looked.times["flights"] - made
    for reader in readers:
        await reader.aclose()
    assert ticker.readers == 0


async def test_nobody_looks_and_nothing_ticks(quick):
    looked = Looked()
    ticker = Ticker(looked, Clock())
    reader = ticker.follow("flights", 1e9)
    await anext(reader)
    task = ticker._task
    await reader.aclose()
    await asyncio.wait_for(task, 30)
    assert ticker._topics == {}
    again = ticker.follow("flights", 1e9)
    await anext(again)
    await anext(again)
    assert ticker._task is not task
    await again.aclose()


async def test_a_slow_reader_gets_the_newest_and_holds_up_nobody(quick):
    looked = Looked()
    ticker = Ticker(looked, Clock())
    slow, quick_one = ticker.follow("flights", 1e9), ticker.follow("flights", 1e9)
    await anext(slow)
    for _ in range(10):
        newest = await anext(quick_one)
    assert int(told(await anext(slow))["figures"]["records"]) >= int(told(newest)["figures"]["records"])
    await slow.aclose()
    await quick_one.aclose()


async def test_the_page_is_new_at_most_every_few_seconds_unless_it_is_urgent(quick):
    looked, clock = Looked(), Clock()
    ticker = Ticker(looked, clock)
    reader = ticker.follow("flights", 1e9)
    first = told(await anext(reader))["page"]
    looked.changes = "b"
    clock.now_s += 4.9
    assert told(await anext(reader))["page"] == first
    clock.now_s += 0.1
    second = told(await anext(reader))["page"]
    assert second > first
    assert told(await anext(reader))["page"] == second, "nothing changed but figures"
    looked.changes, looked.urgent = "c", "the job ended"
    third = told(await anext(reader))["page"]
    assert third > second
    looked.changes = "d"
    assert told(await anext(reader))["page"] == third, "still of the same end"
    await reader.aclose()


async def test_a_figure_that_cannot_be_made_ends_no_stream(quick, caplog):
    looked = Looked()
    ticker = Ticker(looked, Clock())
    reader = ticker.follow("flights", 1e9)
    await anext(reader)
    looked.broken = True
    while "could not be made" not in caplog.text:
        await asyncio.sleep(0.001)
    looked.broken = False
    assert told(await anext(reader))["figures"]["records"] == "2"
    await reader.aclose()


async def test_a_stream_says_that_it_lives_and_ends_with_the_session(quick, monkeypatch):
    monkeypatch.setattr(module, "KEEP_ALIVE_S", 0.001)
    monkeypatch.setattr(module, "TICK_S", 3600.0)
    clock = Clock()
    ticker = Ticker(Looked(), clock)
    reader = ticker.follow("", 200.0)
    await anext(reader)
    assert (await anext(reader)).startswith(b":"), "a comment, which no page hears"
    clock.now_s = 200.0
    assert [each async for each in reader] == []
    ticker._task.cancel()


@pytest.mark.slow
async def test_readers_that_come_and_leave_at_any_moment_end_no_other_stream(monkeypatch):
    """Who leaves is cancelled again and again, as anyio does, until it has ended: a page that another one replaces."""
    monkeypatch.setattr(module, "TICK_S", 0.0)
    ticker, chance = Ticker(Looked(), Clock()), Random(0)

    async def read() -> None:
        async for _ in ticker.follow("flights", 1e9):
            pass

    staying, leaving = set(), set()
    for _ in range(3000):
        if len(staying) < 4 and chance.random() < 0.3:
            staying.add(asyncio.create_task(read()))
        if staying and chance.random() < 0.1:
            leaving.add(staying.pop())
        for task in leaving:
            task.cancel()
        await asyncio.sleep(0)
        assert not any(task.done() for task in staying)
        leaving = {task for task in leaving if not task.done()}
    for task in staying:
        task.cancel()
    await asyncio.wait(staying, timeout=30)
    await asyncio.wait_for(ticker._task, 30)
    assert ticker.readers == 0
