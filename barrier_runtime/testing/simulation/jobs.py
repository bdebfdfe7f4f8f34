"""Blocking work without threads: jobs are greenlets, which may wait in a call.

A job yields only where it waits (`block`, a store call). After the death of the process a job never continues; during a
stall it waits.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from barrier_runtime.runtime.host.workers import Done, WorkerExecutor
from barrier_runtime.testing.simulation.contracts import AnyProcess, Simulated

_FIRST_START_US, LATEST_START_US = 20, 300


class BlockingJob(greenlet):  # type: ignore[misc]
    """The parent is the hub, which runs the events."""

    def __init__(self, process: AnyProcess, work: Callable[[], Any], ended: Callable[[Any, Any], None]) -> None:
        super().__init__()
        self.process = process
        self._work = work
        self._ended = ended

    def run(self) -> None:
        result, error = None, None
        try:
            result = self._work()
        except Exception as raised:
            error = raised
        self._ended(result, error)


class _Request:
    __slots__ = ("back_us", "effect", "error", "job", "result")

    def __init__(self, job: BlockingJob, effect: Callable[[], Any], back_us: int) -> None:
        self.job = job
        self.effect = effect
        self.back_us = back_us
        self.result: Any = None
        self.error: Exception | None = None


class Jobs:
    def __init__(self, simulation: Simulated) -> None:
        self._simulation = simulation
        self._hub = getcurrent()
        self.current: BlockingJob | None = None

    def begin(self, job: BlockingJob) -> None:
        job.process.jobs[job] = None
        self._switch(job)

    def block(self, delay_us: int) -> None:
        job = self.running("a wait")
        self._simulation.after(delay_us, self._go_on, job)
        self.wait()

    def request(self, there_us: int, effect: Callable[[], Any], back_us: int) -> Any:
        """Runs `effect` outside the process after `there_us`; result or error arrive `back_us` later.

        The effect also happens during a stall, and after the process's death in half of the cases.
        """
        job = self.running("a request")
        request = _Request(job, effect, back_us)
        self._simulation.after(there_us, self._arrive, request)
        self.wait()
        if request.error is not None:
            raise request.error
        return request.result

    def wait(self) -> None:
        self._hub.switch()
        if self._simulation.closed:
            raise GreenletExit

    def _arrive(self, request: "_Request") -> None:
        if not request.job.process.alive and self._simulation.bits(1):
            return
        try:
            request.result = request.effect()
        except Exception as raised:
            request.error = raised
        self._simulation.after(request.back_us, self._go_on, request.job)

    def running(self, what: str) -> BlockingJob:
        """The current job. Blocking outside of a job would stop a loop."""
        if self._simulation.closed:
            raise GreenletExit
        if self.current is None:
            raise RuntimeError(f"{what} outside of a blocking job would stop the loop of its process")
        if not self.current.process.alive:
            self.wait()
        return self.current

    def _go_on(self, job: BlockingJob) -> None:
        process = job.process
        if process.running:
            self._switch(job)
        elif process.stalled:
            process.held.append((self._go_on, job))

    def _switch(self, job: BlockingJob) -> None:
        self.current = job
        try:
            job.switch()
        finally:
            self.current = None
        if job.dead:
            job.process.jobs.pop(job, None)

    def close(self) -> None:
        for process in self._simulation.processes:
            for job in list(process.jobs):
                if not job.dead:
                    job.throw(GreenletExit)
            process.jobs.clear()


class Pool:
    def __init__(self, process: AnyProcess, threads: int, begins_us: int = LATEST_START_US) -> None:
        self._process = process
        self._threads = threads
        self._begins_us = begins_us
        self._waiting: deque[tuple[Callable[[], Any], Done, Callable[[], bool]]] = deque()
        self.running = 0

    def submit(self, work: Callable[[], Any], deliver: Done, wanted: Callable[[], bool]) -> None:
        """Runs `work`, then `deliver(result, error)` on the loop; neither if `wanted()` is false at the start."""
        self._waiting.append((work, deliver, wanted))
        self._start_next()

    def cancel_waiting(self) -> None:
        self._waiting.clear()

    def _start_next(self) -> None:
        if self._waiting and self.running < self._threads:
            self.running += 1
            simulation = self._process.simulation
            simulation.after(
                simulation.between_us(_FIRST_START_US, self._begins_us), self._begin, self._waiting.popleft()
            )

    def _begin(self, chunk: tuple[Callable[[], Any], Done, Callable[[], bool]]) -> None:
        process = self._process
        if not process.running:
            if process.stalled:
                process.held.append((self._begin, chunk))
            return
        work, deliver, wanted = chunk
        if not wanted():
            self._ended()
            return

        def ended(result: Any, error: BaseException | None) -> None:
            self._ended()
            process.loop.call_soon(deliver, result, error)

        process.simulation.jobs.begin(BlockingJob(process, work, ended))

    def _ended(self) -> None:
        self.running -= 1
        self._start_next()


class SimWorkers:
    def __init__(self, process: AnyProcess, threads: int = 16, begins_us: int = LATEST_START_US) -> None:
        self._process = process
        self._pool = Pool(process, threads, begins_us)
        self._opening = Pool(process, 64)
        self._unhurried = Pool(process, 1_024)
        self._closed = False

    def submit(self, work: Callable[[], Any], done: Done) -> None:
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        self._pool.submit(work, done, lambda: not self._closed)

    async def run(self, work: Callable[[], Any]) -> Any:
        future = self._process.loop.create_future()

        self._opening.submit(work, partial(settle, future), lambda: not self._closed and not future.cancelled())
        return await future

    def executor(self, on_error: Callable[[Exception], None], unhurried: bool = False) -> WorkerExecutor:
        return WorkerExecutor(self._submit_unhurried if unhurried else self.submit, on_error)

    def _submit_unhurried(self, work: Callable[[], Any], done: Done) -> None:
        if not self._closed:
            self._unhurried.submit(work, done, lambda: not self._closed)

    def close(self) -> None:
        self._closed = True
        for pool in (self._pool, self._opening, self._unhurried):
            pool.cancel_waiting()


def settle(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
