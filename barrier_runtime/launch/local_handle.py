"""Handle of a job that runs in a thread of this process: the result of `Dataflow.start_local`.

| state    | status()                   | stop()                       | wait()           | next               |
|----------|----------------------------|------------------------------|------------------|--------------------|
| starting | waits until the job runs   | is kept until the job runs   | waits            | running, over      |
| running  | asks the coordinator       | asks the coordinator         | waits            | over               |
| over     | the last one, or its error | nothing                      | result, or error | -                  |

A program that ends, also by an exception, stops its running jobs after a last checkpoint (see `steering`).
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent import futures
from functools import partial
from typing import Any, Literal, TypeVar

from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest
from barrier_runtime.coordinator.client.client import CoordinatorClient
from barrier_runtime.coordinator.client.rest_types import ReplaceAsked, RescaleAsked, SavepointAsked
from barrier_runtime.coordinator.job.rescaling import RescaleRequest
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.status.why.job import answer
from barrier_runtime.coordinator.status.why.reason import Answer
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.graph.logical import Plan
from barrier_runtime.launch.local import make_runner, run_graph, run_prepared
from barrier_runtime.launch.local_page import with_page
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.launch.outcome import JobResult, how_to_stop, plain_errors
from barrier_runtime.launch.prepare import PreparedJob
from barrier_runtime.launch.requests import (
    HasPlan,
    LoadOrder,
    SavepointTaken,
    continuing_job,
    savepoint_asked,
    wait_for_savepoint,
)
from barrier_runtime.launch.steering import Requests, Steered, at_end, end_in_time, line_of
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.store.object_store import ObjectStore

_T = TypeVar("_T")
Mode = Literal["checkpoint", "drain", "now"]


@plain_errors
class LocalJobHandle(Steered):
    def __init__(self, plan: Plan, options: JobOptions) -> None:
        self._job = PreparedJob(plan, options)
        self._programs: dict[str, JobGraph] = {}
        self._page: CoordinatorClient | None = None
        self._name = plan.name
        self._known = threading.Event()  # set when the job runs, or has failed before
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._running: tuple[asyncio.AbstractEventLoop, JobRunner] | None = None
        self._stop_first: Mode | None = None
        self._last: JobStatus | None = None
        self._result: JobResult | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(options,), name=f"barrier-{plan.name}", daemon=True)
        self._forget = at_end(self._end)  # before the thread, which calls it at its end
        self._thread.start()

    @property
    def done(self) -> bool:
        return self._over.is_set()

    def status(self) -> JobStatus:
        """Returns the coordinator's current status. Raises the error that kept the job from starting."""
        self._known.wait()
        told = self._ask(lambda runner: runner.status())
        if told is not None:
            self._last = told
        if self._last is None:
            assert self._error is not None, "over without a status and without an error"
            raise self._error
        return self._last

    def stop(
        self,
        mode: Literal["checkpoint", "now"] = "checkpoint",
        *,
        savepoint: str | None = None,
        drain: bool = False,
        wait: bool = True,
        timeout: float | None = None,
    ) -> SavepointTaken | None:
        """Ends the job: after a last committed checkpoint ("checkpoint") or at once ("now").

        Waits for the end, at most `timeout` seconds. `wait=False` returns at once; a function of the job itself never
        waits. Raises as `wait` does. `drain` and `savepoint` are those of `JobHandle.stop`.
        """
        how = how_to_stop(mode, drain, savepoint)
        if savepoint is not None:
            return self._stop_with(how, savepoint, timeout)
        if not self._over.is_set():
            self._request_stop(how)
        if wait and threading.current_thread() is not self._thread:
            self.wait(timeout)
        return None

    def _stop_with(self, how: Mode, url: str, timeout: float | None) -> SavepointTaken:
        asked = savepoint_asked(url)
        request = SavepointRequest(asked.id, asked.url, stops=True)
        ask = partial(self._ask, lambda runner: runner.stop(how, request))
        taken = wait_for_savepoint(self._name, asked, ask, self.status, timeout, ends=True)
        self.wait(timeout)
        return taken

    def _request_stop(self, how: Mode) -> None:
        with self._lock:
            if self._running is None:
                self._stop_first = how
                return
        self._ask(lambda runner: runner.stop(how))

    def wait(self, timeout: float | None = None) -> JobResult:
        """Waits until the job ends. Ctrl-C ends the waiting, not the job.

        Raises `JobFailed`, `Fenced`, or `Unavailable` after `timeout` seconds."""
        if not self._over.wait(timeout):
            raise Unavailable(f"job {self._name} still runs after {timeout} s: wait longer or stop it")
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def __enter__(self) -> "LocalJobHandle":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end(after_checkpoint=kind is None)
        self._over.wait()

    def line(self) -> str:
        if self._over.is_set() and self._error is not None and self._last is None:
            return f"job {self._name} failed: {self._error}"
        if not self._known.is_set():
            return f"job {self._name} starts"
        return line_of(self.status())

    def _requests(self) -> Requests:
        self._known.wait()
        return LocalRequests(self._ask, self.status, self._page)

    def _status_now(self) -> JobStatus | None:
        return self.status()

    def _learn(self, id: str, flow: HasPlan, order: LoadOrder) -> JobSpec:
        job = continuing_job(flow.plan, flow.options, order)
        self._programs[id] = job.graph
        return job.spec

    def _run(self, options: JobOptions) -> None:
        try:
            self._result = run_prepared(self._job, options, self._run_graph)
            self._last = self._result.status
        except BaseException as error:  # `wait` raises the error
            self._error = error
            self._last = getattr(error, "status", self._last)
        finally:
            with self._lock:
                self._running = None
            self._over.set()
            self._known.set()
            self._forget()

    async def _run_graph(self, graph: JobGraph, spec: JobSpec, store: ObjectStore, options: JobOptions) -> JobStatus:
        runner = make_runner(spec, store)

        async def run() -> JobStatus:
            with self._lock:
                self._running = asyncio.get_running_loop(), runner
                first = self._stop_first
            running = asyncio.ensure_future(run_graph(graph, spec, store, options, runner, programs=self._programs))
            await asyncio.sleep(0)  # the job runs from here on
            if first is not None:
                runner.stop(first)
            self._known.set()
            return await running

        def serves(client: CoordinatorClient) -> None:
            self._page = client

        try:
            return await with_page(run, runner, store, ui=options.ui, serves=serves)
        finally:
            self._last = runner.status()
            with self._lock:
                self._running = None

    def _ask(self, of: Callable[[JobRunner], _T]) -> _T | None:
        """Calls `of` on the job's loop. None: the job ended before the answer."""
        with self._lock:
            if self._running is None:
                return None
            loop, runner = self._running
            asked = asyncio.run_coroutine_threadsafe(_answered(partial(of, runner)), loop)
        waited_s = 0.0
        while not asked.done() and not self._over.is_set():
            try:
                return asked.result(0.2)
            except futures.TimeoutError:
                waited_s += 0.2
            except futures.CancelledError:  # before the loop ran the call
                return None
            if waited_s >= _ASKED_S:
                raise Unavailable(
                    f"job {self._name} has not answered for {_ASKED_S:.0f} s: a function of yours keeps its thread"
                )
        return None if asked.cancelled() or not asked.done() else asked.result()

    def _end(self, *, after_checkpoint: bool = True) -> None:
        if after_checkpoint:
            end_in_time(self._name, partial(self._request_stop, "checkpoint"), self._over.wait)
        self._request_stop("now")
        self._over.wait(_AT_ONCE_S)


async def _answered(ask: Callable[[], _T]) -> _T:
    return ask()


class LocalRequests:
    def __init__(
        self,
        ask: Callable[[Callable[[JobRunner], Any]], object],
        status: Callable[[], JobStatus],
        page: CoordinatorClient | None,
    ) -> None:
        self._ask = ask
        self._status = status
        self._served = page

    def savepoint(self, job: str, asked: SavepointAsked, run_id: str) -> None:
        self._ask(lambda runner: runner.savepoint(SavepointRequest(asked.id, asked.url)))

    def rescale(self, job: str, asked: RescaleAsked, run_id: str) -> None:
        request = RescaleRequest(asked.id, asked.parallelism, asked.timeout_ms)
        self._ask(lambda runner: runner.rescale(request))

    def replace(self, job: str, asked: ReplaceAsked, run_id: str) -> None:
        allow = asked.allow_non_restored
        request = RescaleRequest(asked.id, 1, asked.timeout_ms, asked.spec, allow_non_restored=allow)
        self._ask(lambda runner: runner.replace(request))

    def trigger(self, job: str, run_id: str) -> None:
        self._ask(lambda runner: runner.trigger())

    def why(self, job: str, checkpoint: int | None, run_id: str) -> Answer:
        return answer(self._status(), checkpoint)

    def page_link(self, job: str) -> str:
        return self._page(job).page_link(job)

    def report(self, job: str, run_id: str) -> bytes:
        return self._page(job).report(job, run_id)

    def _page(self, job: str) -> CoordinatorClient:
        if self._served is None:
            raise InvalidJob(f"job {job} runs without its page: start it with ui=True")
        return self._served


_ASKED_S = 30.0  # users' functions may keep the job's loop busy
_AT_ONCE_S = 10.0  # for a job that stops at once while the program ends
