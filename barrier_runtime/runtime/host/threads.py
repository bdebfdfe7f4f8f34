"""Threads for blocking work that may never return: made when none is free, bounded, and never waited for by a process
that ends.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Threads:
    """At most `most` threads. Work beyond that waits for one, first in first out."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._idle = 0
        self._alive = 0
        self._closed = False

    def submit(self, work: Callable[[], Any]) -> "Future[Any]":
        """After `close` it is cancelled at once."""
        future: Future[Any] = Future()
        with self._changed:
            if self._closed:
                future.cancel()
                return future
            self._waiting.append((future, work))
            if self._idle >= len(self._waiting):
                self._changed.notify()
            elif self._alive < self._most:
                self._alive += 1
                threading.Thread(target=self._serve, name=f"{self._name}-{self._alive}", daemon=True).start()
        return future

    def close(self) -> None:
        """What waits is cancelled, what runs goes on. Does not wait."""
        with self._changed:
            self._closed = True
            dropped = [future for future, _ in self._waiting]
            self._waiting.clear()
            self._changed.notify_all()
        for future in dropped:
            future.cancel()

    def join(self, timeout_s: float) -> bool:
        """After `close`: wait for what runs. False when it takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self._alive == 0, timeout_s)

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                if self._closed:
                    self._alive -= 1
                    self._changed.notify_all()
                    return
                future, work = self._waiting.popleft()
            _run(future, work)
            del future, work  # an idle thread keeps nothing of a generation that is gone


def _run(future: "Future[Any]", work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
