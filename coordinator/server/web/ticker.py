"""One tick for all open pages: while anybody looks, the figures of what is looked at are made once a second.

| nobody looks | no task, no tick |
| first reader of a topic | the task starts, the reader gets a tick at once |
| each second | the topic's bytes are made once; every reader of it is woken and takes the newest |
| a reader that is slow | misses ticks, never delays others, holds no more than the newest bytes |
| last reader leaves | the task ends with its next round |

A topic is a job's name, or "" for the list of jobs. A tick carries figures as text and the number of the newest page; a
page that shows another number asks for the new one. That number rises at most every `PAGE_S` seconds.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import msgspec

log = logging.getLogger("coordinator.page")

TICK_S = 1.0
PAGE_S = 5.0
KEEP_ALIVE_S = 15.0
MAX_READERS = 64
_KEEP_ALIVE = b": still here\n\n"


class PageTick(msgspec.Struct, frozen=True):
    """`changes`: equal as long as the page would look the same but for its figures. `urgent`: show it at once."""

    figures: dict[str, str]
    changes: str
    urgent: bool = False


class _Sent(msgspec.Struct, frozen=True):
    page: int
    figures: dict[str, str]


@dataclass
class _Topic:
    readers: int = 0
    data: bytes = b""
    number: int = 0  # of the data
    page: int = 0
    page_s: float = 0.0  # when it rose last
    changes: str = ""
    # Done with the next tick, which puts another in its place. No Condition: a reader that is cancelled twice, as anyio
    # does, would release the lock that another reader holds, or leave it taken.
    fresh: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Ticker:
    def __init__(self, look: Callable[[str], PageTick], clock_s: Callable[[], float]) -> None:
        """`look` makes the tick of a topic; it must not block. What it raises ends no stream: the tick is left out."""
        self._look = look
        self._clock_s = clock_s
        self._topics: dict[str, _Topic] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def readers(self) -> int:
        return sum(topic.readers for topic in self._topics.values())

    async def follow(self, name: str, until_s: float) -> AsyncIterator[bytes]:
        """Events for one reader, until it leaves or the clock says `until_s`."""
        topic = self._topics.setdefault(name, _Topic())
        topic.readers += 1
        try:
            self._make(name, topic)
            if self._task is None or self._task.done():
                self._task = asyncio.get_running_loop().create_task(self._run())
            seen = 0
            while self._clock_s() < until_s:
                if topic.number != seen:
                    seen = topic.number
                    yield topic.data
                    continue  # while it was taken, a tick may have come, or the session have ended
                ticked, _ = await asyncio.wait([topic.fresh], timeout=KEEP_ALIVE_S)
                if not ticked:
                    yield _KEEP_ALIVE
        finally:
            topic.readers -= 1
            if not topic.readers:
                self._topics.pop(name, None)

    async def _run(self) -> None:
        while self._topics:
            await asyncio.sleep(TICK_S)
            for name, topic in list(self._topics.items()):
                self._make(name, topic)
                fresh, topic.fresh = topic.fresh, asyncio.get_running_loop().create_future()
                fresh.set_result(None)

    def _make(self, name: str, topic: _Topic) -> None:
        try:
            tick = self._look(name)
        except Exception:  # a bug in making a figure: pages stand still, the daemon's jobs must not
            log.exception("the figures of %s could not be made", f"job {name}" if name else "the list of jobs")
            return
        now_s = self._clock_s()
        if tick.changes != topic.changes and (tick.urgent or not topic.page or now_s - topic.page_s >= PAGE_S):
            # A number that no daemon has given before, so that a page which outlived a daemon asks for the new one.
            topic.page = max(topic.page + 1, int(now_s * 1000))
            topic.changes, topic.page_s = tick.changes, now_s
        data = b"event: tick\ndata: " + msgspec.json.encode(_Sent(topic.page, tick.figures)) + b"\n\n"
        if data != topic.data:
            topic.data = data
            topic.number += 1
