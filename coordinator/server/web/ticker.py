"""Stream of figures for open pages, made once a second per topic (a job's name, or "": all jobs).

A slow reader misses ticks, never delays others, and holds only the newest bytes.

A tick carries figures as text and the number of the newest page; a page with another number requests the new page.
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
_KEEP_ALIVE = b": still here\n\n"


class PageTick(msgspec.Struct, frozen=True):
    """`changes`: stays the same if only figures of the page differ. `urgent`: changes to show at once."""

    figures: dict[str, str]
    changes: str
    urgent: str = ""


class _Sent(msgspec.Struct, frozen=True):
    page: int
    figures: dict[str, str]


@dataclass
class _Topic:
    readers: int = 0
    data: bytes = b""
    number: int = 0
    page: int = 0
    page_s: float = 0.0
    changes: str = ""
    urgent: str = ""
    # The next tick sets another future. No Condition: a reader that anyio cancels twice would release another reader's
    # lock, or leave a lock held.
    fresh: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Ticker:
    def __init__(self, look: Callable[[str], PageTick], clock_s: Callable[[], float]) -> None:
        """`look` must not block; an exception skips the tick."""
        self._look = look
        self._clock_s = clock_s
        self._topics: dict[str, _Topic] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def readers(self) -> int:
        return sum(topic.readers for topic in self._topics.values())

    async def follow(self, name: str, until_s: float) -> AsyncIterator[bytes]:
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
                    continue  # a tick may have come, or the session have ended
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
        except Exception:  # a bug in a figure must not stop the daemon's jobs
            log.exception("the figures of %s could not be made", f"job {name}" if name else "the list of jobs")
            return
        now_s = self._clock_s()
        at_once = tick.urgent != topic.urgent or not topic.page
        if tick.changes != topic.changes and (at_once or now_s - topic.page_s >= PAGE_S):
            # No earlier daemon used this number, so a page that outlived a daemon requests the new page.
            topic.page = max(topic.page + 1, int(now_s * 1000))
            topic.changes, topic.urgent, topic.page_s = tick.changes, tick.urgent, now_s
        data = b"event: tick\ndata: " + msgspec.json.encode(_Sent(topic.page, tick.figures)) + b"\n\n"
        if data != topic.data:
            topic.data = data
            topic.number += 1
