"""`Requests` for a job whose coordinator runs in this process."""

from collections.abc import Callable
from typing import Any

from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest
from barrier_runtime.coordinator.client.client import CoordinatorClient
from barrier_runtime.coordinator.client.rest_types import ReplaceAsked, RescaleAsked, SavepointAsked
from barrier_runtime.coordinator.job.rescaling import RescaleRequest
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.status.why.job import answer
from barrier_runtime.coordinator.status.why.reason import Answer
from barrier_runtime.state.errors import InvalidJob


class LocalRequests:
    """`ask` calls a function with the runner, on the job's loop. `page`: client of the page's server, if any."""

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
