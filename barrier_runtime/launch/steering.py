"""Requests to the handle of a running job, and the last checkpoint when the program ends."""

import atexit
import concurrent.futures.thread  # noqa: F401 - registers its own function for the end before ours, to be called after
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import msgspec

from barrier_runtime.coordinator.client.rest_types import ReplaceAsked, RescaleAsked, SavepointAsked
from barrier_runtime.coordinator.status.health import described
from barrier_runtime.coordinator.status.statistics import repeated_in_words
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.status.why.reason import Answer
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.graph.logical import Plan
from barrier_runtime.launch.outcome import plain_errors
from barrier_runtime.launch.prepare import PreparedJob
from barrier_runtime.launch.requests import (
    DEFAULT_TIMEOUT_S,
    HasPlan,
    LoadOrder,
    Replaced,
    Rescaled,
    SavepointTaken,
    load_order,
    replace_asked,
    rescale_asked,
    savepoint_asked,
    wait_for_replace,
    wait_for_rescale,
    wait_for_savepoint,
)
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.texts import counted


class Requests(Protocol):
    def savepoint(self, job: str, asked: SavepointAsked, run_id: str) -> object: ...

    def rescale(self, job: str, asked: RescaleAsked, run_id: str) -> object: ...

    def replace(self, job: str, asked: ReplaceAsked, run_id: str) -> object: ...

    def trigger(self, job: str, run_id: str) -> object: ...

    def why(self, job: str, checkpoint: int | None, run_id: str) -> Answer: ...

    def page_link(self, job: str) -> str: ...

    def report(self, job: str, run_id: str) -> bytes: ...


@plain_errors
class Steered(ABC):
    _job: PreparedJob

    @abstractmethod
    def _requests(self) -> Requests:
        """Returns the coordinator for requests."""

    @abstractmethod
    def _status_now(self) -> JobStatus | None:
        """None while the coordinator restarts."""

    @abstractmethod
    def _learn(self, id: str, flow: HasPlan, order: LoadOrder) -> JobSpec:
        """Makes `flow` known to new slots of the running job by `id`."""

    def trigger_checkpoint(self) -> None:
        """Takes a checkpoint in addition to those of the interval."""
        self._requests().trigger(self._job.spec.job, self._job.spec.run_id)

    def why(self, checkpoint: int | None = None) -> Answer:
        """Explains a slow or failed checkpoint, or (None) the job.

        Prints as reasons with evidence and remedy. Raises `InvalidJob` for a checkpoint before the last 100.
        """
        return self._requests().why(self._job.spec.job, checkpoint, self._job.spec.run_id)

    def savepoint(self, url: str, timeout: float | None = None) -> SavepointTaken:
        """Copies the state of the running job to the folder `url`, and returns the complete savepoint.

        The folder is self-contained: a job begins with the savepoint by `restore=url`. Raises `SavepointFailed`, or
        `Unavailable` after `timeout` seconds."""
        asked, spec = savepoint_asked(url), self._job.spec
        ask = partial(self._requests().savepoint, spec.job, asked, spec.run_id)
        return wait_for_savepoint(spec.job, asked, ask, self._status_now, timeout)

    def rescale(self, parallelism: int, timeout: float = DEFAULT_TIMEOUT_S) -> Rescaled:
        """Changes the number of slots to `parallelism` (at most max_parallelism) while the job runs.

        New slots start first; then the sources stop at a checkpoint, from which the new slots continue. No row is read
        twice. Slots no longer needed leave. Raises `RescaleFailed` if the job continues unchanged, for example because
        within `timeout` seconds the cores are not free or the last checkpoint is not stored.
        """
        asked, spec = rescale_asked(parallelism, timeout), self._job.spec
        ask = partial(self._requests().rescale, spec.job, asked, spec.run_id)
        return wait_for_rescale(spec.job, asked, ask, self._status_now)

    def replace(
        self, flow: HasPlan, timeout: float = DEFAULT_TIMEOUT_S, *, allow_non_restored: bool = False
    ) -> Replaced:
        """Replaces the program of the running job by `flow`, which has the job's name.

        As in `rescale`, the new slots start first, beside the old slots, and no row is read twice; the program is
        checked against the job's state. Raises `ReplaceFailed` if the job continues unchanged: the program cannot be
        loaded or does not fit (`allow_non_restored` drops state that the program lacks), or the cores for as many slots
        again are not free within `timeout` seconds.
        """
        spec = self._job.spec
        if self._job.has_batch_functions:
            raise InvalidJob(f"job {spec.job} has for_each_batch: stop it with a savepoint, and start the new program")
        if not isinstance(getattr(flow, "plan", None), Plan):
            raise InvalidJob(f"replace: {flow!r} is not a flow: pass the Dataflow that goes on with job {spec.job}")
        asked = replace_asked("", timeout, allow_non_restored=allow_non_restored)
        asked = msgspec.structs.replace(asked, spec=self._learn(asked.id, flow, load_order("", spec)))
        ask = partial(self._requests().replace, spec.job, asked, spec.run_id)
        return wait_for_replace(spec.job, asked, ask, self._status_now)

    def page_link(self) -> str:
        """Address of the job's page, for a browser on this machine. The link logs in once, within an hour."""
        return self._requests().page_link(self._job.spec.job)

    def report(self) -> bytes:
        """Returns the page of this job as one HTML file with secrets masked, for a bug report."""
        return self._requests().report(self._job.spec.job, self._job.spec.run_id)

    @property
    @abstractmethod
    def done(self) -> bool:
        """Returns whether the job has ended."""

    @abstractmethod
    def line(self) -> str:
        """Condition, rows and checkpoints, as a line for people."""

    def __repr__(self) -> str:
        return f"<{self.line()}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from barrier_runtime.launch.display import live_widget

        widget = live_widget(self)  # type: ignore[arg-type]  # subclasses have status and stop
        return {"text/plain": repr(self)} if widget is None else dict(widget._repr_mimebundle_())


def line_of(status: JobStatus) -> str:
    checkpoints = status.checkpoints
    last = "" if checkpoints.last_completed is None else f", the last is {checkpoints.last_completed.checkpoint}"
    repeated = repeated_in_words(status)
    return (
        f"job {status.job}: {described(status.condition or status.phase, status.condition_reason)}, "
        f"{counted(status.records, 'row')} read, {counted(checkpoints.completed, 'checkpoint')} completed{last}"
        f"{f'; {repeated}' if repeated else ''}"
    )


LAST_CHECKPOINT_S = 30.0  # for the last checkpoint of a job whose program ends

log = logging.getLogger("barrier_runtime")

_calls: dict[object, Callable[[], None]] = {}
_registered = False


def at_end(call: Callable[[], None]) -> Callable[[], None]:
    """Calls `call` when the program ends, unless the returned function is called before.

    Threads still take work then. `atexit` is too late: the interpreter ends the pools of threads before.
    """
    global _registered
    if not _registered:
        _registered = True
        getattr(threading, "_register_atexit", atexit.register)(_end)
    key = object()
    _calls[key] = call

    def cancel() -> None:
        _calls.pop(key, None)

    return cancel


def _end() -> None:
    for call in list(_calls.values()):
        try:
            call()
        except Exception:
            log.exception("a job could not be stopped while the program ends")


def end_in_time(job: str, stop: Callable[[], object], ended: Callable[[float], bool]) -> None:
    """Stops a running job after a last checkpoint; logs a line if that takes too long.

    `stop` requests the end without waiting. `ended` waits for seconds, and returns whether the job has ended.
    """
    if ended(0):
        return
    stop()
    if ended(LAST_CHECKPOINT_S):
        log.warning("job %s was running while its context or program ended: stopped after a last checkpoint", job)
    else:
        log.warning(
            "job %s: its last checkpoint is not complete after %.0f s, so the job stops at once: the next run goes on "
            "from the checkpoint before",
            job,
            LAST_CHECKPOINT_S,
        )
