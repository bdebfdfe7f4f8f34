"""Threads for blocking work that may never return, and short time slices for urgent threads."""

import contextlib
import os
import platform
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from barrier_runtime.state.libc import libc

_Work: TypeAlias = "tuple[Future[Any], Callable[[], Any]]"


class Threads:
    """At most `most` threads; other work waits, first in first out.

    A process that ends waits for no thread. A thread is free before the work is reported done.
    """

    def __init__(self, most: float, name: str) -> None:
        self._most = most
        self._name = name
        self._changed = threading.Condition()
        self._work: SimpleQueue[_Work | None] = SimpleQueue()  # None: a thread ends
        self._unfinished = 0
        self._alive = 0
        self._closed = False

    def submit(self, work: Callable[[], Any]) -> "Future[Any]":
        """After `close` the future is cancelled at once."""
        future: Future[Any] = Future()
        with self._changed:
            if self._closed:
                future.cancel()
                return future
            self._work.put((future, work))
            self._unfinished += 1
            if self._alive < min(self._unfinished, self._most):
                self._alive += 1
                threading.Thread(target=self._serve, name=f"{self._name}-{self._alive}", daemon=True).start()
        return future

    def close(self) -> None:
        """Cancels waiting work; running work continues. Does not wait."""
        dropped: list[_Work | None] = []
        with self._changed:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(Empty):
                while True:
                    dropped.append(self._work.get_nowait())
            for _ in range(self._alive):
                self._work.put(None)
        for work in dropped:
            if work is not None:
                work[0].cancel()

    def join(self, timeout_s: float) -> bool:
        """Waits for running work, after `close`. Returns False at the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._alive == 0, timeout_s)

    def _serve(self) -> None:
        while (taken := self._work.get()) is not None:
            future, work = taken
            runs = future.set_running_or_notify_cancel()
            result, error = _outcome_of(work) if runs else (None, None)
            with self._changed:
                self._unfinished -= 1
            if error is not None:
                future.set_exception(error)
            elif runs:
                future.set_result(result)
            del taken, future, work, result, error  # an idle thread must not keep objects alive
        with self._changed:
            self._alive -= 1
            self._changed.notify_all()


def _outcome_of(work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Runs `work` in a separate call: an error's traceback must keep no future."""
    try:
        return work(), None
    except BaseException as error:
        return None, error


SLICE_NS = 100_000  # the kernel's minimum
_SYSTEM_CALLS = {"x86_64": 314, "aarch64": 274}  # sched_setattr
_THREADS_AS_USUAL = 0x01  # SCHED_FLAG_RESET_ON_FORK
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")  # size, policy, flags, nice, priority, runtime, deadline, period


def ask_for_short_slices(also_started: bool = False) -> bool:
    """Requests short time slices for the calling thread, for good.

    The default slices, 1 to 3 ms, are most of a slow row's latency on shared cores. Linux from 6.12 on schedules a
    thread with shorter slices sooner, without more time in total.

    `also_started`: also for threads that this thread starts, as a client in C does. Returns False, without a change, if
    this system lacks the feature or the thread has another scheduling policy.
    """
    number = _SYSTEM_CALLS.get(platform.machine())
    if platform.system() != "Linux" or number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    flags = 0 if also_started else _THREADS_AS_USUAL
    wanted = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, flags, nice, 0, SLICE_NS, 0, 0)
    return bool(libc().syscall(number, 0, wanted, 0) == 0)
