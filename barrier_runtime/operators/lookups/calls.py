"""Calls of a user's `fetch_many` on threads, or on an asyncio loop in its own thread.
Each call ends with `replied(request, results, error)`, on any thread, unless given up before. Design:
docs/design/joins-and-lookups.md."""

import asyncio
import concurrent.futures
import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from barrier_runtime.operators.base import SequentialExecutor
from barrier_runtime.operators.lookups.book import Request
from barrier_runtime.operators.user_code import said

log = logging.getLogger("barrier_runtime.lookup")


class PricedReply(NamedTuple):
    """`results`: for each key. `spent`: tokens by limit, None if the step has no limits."""

    results: deque[Any]
    spent: tuple[int | None, ...] | None = None


Replied: TypeAlias = Callable[[int, PricedReply | None, Exception | None], None]
Read: TypeAlias = Callable[[Sequence[Any], Any], PricedReply]  # of keys and a reply

_CLOSE_S = 5.0  # before unfinished coroutines are abandoned


class Calls(Protocol):
    def send(self, requests: Sequence[Request]) -> None: ...
    def give_up(self, request: int) -> None: ...

    def close(self) -> None:
        """Ends all calls. May block."""
        ...


def is_coroutine_function(function: Any) -> bool:
    of_class = getattr(type(function), "__call__", None)  # noqa: B004 - the method itself is needed
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(of_class)


class ThreadCalls:
    """Calls of a plain function, with a thread for each parallel call. A hanging call keeps the thread."""

    def __init__(
        self,
        target: Any,
        fetch: Callable[[list[Any]], Any],
        read: Read,
        replied: Replied,
        executors: Sequence[SequentialExecutor],
    ) -> None:
        self._target = target
        self._fetch = fetch
        self._read = read
        self._replied = replied
        self._free = list(executors)
        self._waiting: deque[Request] = deque()
        open_ = getattr(target, "open", None)
        if open_ is not None:
            open_()

    def send(self, requests: Sequence[Request]) -> None:
        self._waiting.extend(requests)
        self._begin()

    def give_up(self, request: int) -> None:
        self._waiting = deque(each for each in self._waiting if each.id != request)

    def close(self) -> None:
        close = getattr(self._target, "close", None)
        if close is not None:
            close()

    def _begin(self) -> None:
        while self._waiting and self._free:
            executor, request = self._free.pop(), self._waiting.popleft()
            executor.submit(partial(_called, self._fetch, self._read, request), partial(self._done, executor, request))

    def _done(self, executor: SequentialExecutor, request: Request, answer: Any, error: BaseException | None) -> None:
        self._free.append(executor)
        if error is not None and not isinstance(error, Exception):  # the executor would only log this error
            error = RuntimeError(f"{type(error).__name__}: {said(error)}")
        self._replied(request.id, answer, error)
        self._begin()


def _called(fetch: Callable[[list[Any]], Any], read: Read, request: Request) -> PricedReply:
    return read(request.keys, fetch(list(request.keys)))


class CoroutineCalls:
    """Calls of an `async def` on a separate loop, which also runs `open` and `close` of the class."""

    def __init__(
        self,
        name: str,
        target: Any,
        fetch: Callable[[list[Any]], Coroutine[Any, Any, Any]],
        read: Read,
        replied: Replied,
    ) -> None:
        self._target = target
        self._fetch = fetch
        self._read = read
        self._replied = replied
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._given_up: set[int] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._told("open"), self._loop).result()
        except BaseException:
            self._stop()
            raise

    def send(self, requests: Sequence[Request]) -> None:
        self._loop.call_soon_threadsafe(self._begin, tuple(requests))

    def give_up(self, request: int) -> None:
        self._loop.call_soon_threadsafe(self._cancel, request)

    def close(self) -> None:
        if self._loop.is_closed():
            return
        closing = asyncio.run_coroutine_threadsafe(self._told("close"), self._loop)
        try:
            closing.result(_CLOSE_S)
        except concurrent.futures.TimeoutError:
            log.warning(
                "%s: a coroutine has not ended %g s after it was cancelled: it is left behind, and what it is "
                "connected to is not closed; let it pass on CancelledError, and call nothing that blocks",
                self._thread.name,
                _CLOSE_S,
            )
        finally:
            self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_S)  # a daemon

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _told(self, what: str) -> None:
        tasks = list(self._tasks.values())
        self._given_up.update(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        method = getattr(self._target, what, None)
        if method is not None:
            result = method()
            if inspect.isawaitable(result):
                await result

    def _begin(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._tasks[request.id] = self._loop.create_task(self._ask(request))

    def _cancel(self, request: int) -> None:
        task = self._tasks.get(request)
        if task is not None:
            self._given_up.add(request)
            task.cancel()

    async def _ask(self, request: Request) -> None:
        answer, error = None, None
        try:
            answer = self._read(request.keys, await self._fetch(list(request.keys)))
        except Exception as raised:
            error = raised
        except asyncio.CancelledError:
            if request.id in self._given_up:
                raise
            error = RuntimeError("CancelledError: what it awaited was cancelled, and not by this lookup")
        finally:
            self._tasks.pop(request.id, None)
            self._given_up.discard(request.id)
        self._replied(request.id, answer, error)
