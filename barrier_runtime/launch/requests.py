"""Requests to the coordinator of a running job: a savepoint, another number of slots, another program.

A restarted coordinator does not know earlier requests, so the waiting program repeats a request, by id, to each new
leader. For a replace, the running program loads a file in a separate process (`tools.load_program`), without its own
modules. Only Spark's closures carry code over the network.
"""

import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from barrier_runtime.coordinator.client.rest_types import ReplaceAsked, RescaleAsked, SavepointAsked
from barrier_runtime.coordinator.status.health import ended_in_words
from barrier_runtime.coordinator.status.status import JobStatus, ProgramWanted, RescaleStatus
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.graph.logical import Plan
from barrier_runtime.launch.batch_functions import has_batch_functions
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.launch.prepare import PreparedJob, has_staged_sources
from barrier_runtime.spark.closure import check_travels, fingerprint, pickled
from barrier_runtime.state.errors import UNREADABLE, BarrierRuntimeError, InvalidJob, Unavailable
from barrier_runtime.state.store.urls import shown, without_credentials
from barrier_runtime.state.texts import counted

_POLL_S = 0.05
_Result = TypeVar("_Result")


def wait_until_over(
    over: Callable[[JobStatus], _Result | None],
    ended: Callable[[JobStatus], Exception],
    ask: Callable[[], object],
    status: Callable[[], JobStatus | None],
    timeout: float | None = None,
) -> _Result | None:
    """Returns the first result that `over` finds in a status; None after `timeout` seconds.

    `ask` repeats the request to a new leader. Raises the errors of `over`, and `ended(status)` if the job ends before.
    """
    until = None if timeout is None else time.monotonic() + timeout
    leader = ""
    while until is None or time.monotonic() < until:
        known = status()
        if known is not None:
            result = over(known)
            if result is not None:
                return result
            if known.outcome is not None:
                raise ended(known)
            if known.leader != leader:
                try:
                    ask()
                    leader = known.leader
                except Unavailable:
                    pass  # the next status starts another attempt
        time.sleep(_POLL_S)
    return None


def wait_for_change(
    job: str,
    id: str,
    failed: type[BarrierRuntimeError],
    became: str,
    stays: Callable[[RescaleStatus], str],
    ask: Callable[[], object],
    status: Callable[[], JobStatus | None],
) -> RescaleStatus:
    """Waits for the change `id`; raises `failed` unless the change completes.

    `became`: the change ("it was rescaled"). `stays`: what the job keeps otherwise.
    """

    def over(known: JobStatus) -> RescaleStatus | None:
        found = next((each for each in known.rescales if each.id == id), None)
        if found is None or found.ended_ms is None:
            return None
        if found.error and known.outcome is not None:
            return None
        if found.error:
            raise failed(f"job {job} goes on with {stays(found)}: {found.error}")
        return found

    changed = wait_until_over(over, lambda known: failed(ended_before(known, became)), ask, status)
    assert changed is not None, "without a timeout it is waited for"
    return changed


def ended_before(status: JobStatus, became: str) -> str:
    why = "" if status.outcome in ("finished", "cancelled") else f": {status.error or status.reason}"
    return f"job {status.job} ended ({ended_in_words(status.outcome or '')}) before {became}{why}"


def known_status(client: Any, job: str, run_id: str) -> JobStatus | None:
    try:
        status: JobStatus = client.status(job, run_id)
    except Unavailable:
        return None
    return status


class SavepointFailed(BarrierRuntimeError):
    """The savepoint failed. The job continues, unless already being drained or ended."""


@dataclass(frozen=True)
class SavepointTaken:
    """`url`: the folder, which can be copied or moved whole.
    `bytes`: size of the files.
    """

    url: str
    checkpoint: int
    bytes: int
    taken_at: datetime


def savepoint_asked(url: str) -> SavepointAsked:
    """A path becomes absolute: the writer runs elsewhere."""
    if not url.strip():
        raise InvalidJob("the savepoint's folder is empty: give a URL such as s3://bucket/savepoints/orders-1")
    if "://" not in url:
        url = Path(url).expanduser().absolute().as_uri()
    return SavepointAsked(uuid.uuid4().hex, without_credentials(url, "the savepoint's folder"))


def savepoint_asked_again(asked: SavepointAsked, known: JobStatus) -> SavepointAsked:
    """Returns an earlier request for a final savepoint in the same folder, open or fulfilled, else `asked`."""
    for each in reversed(known.savepoints):
        same = each.stops and each.url == asked.url and not each.error
        if same and (each.ended_ms is None or known.outcome is not None):
            return SavepointAsked(each.id, asked.url)
    return asked


def wait_for_savepoint(
    job: str,
    asked: SavepointAsked,
    ask: Callable[[], object],
    status: Callable[[], JobStatus | None],
    timeout: float | None,
    *,
    ends: bool = False,
) -> SavepointTaken:
    """Waits until the savepoint is complete and, with `ends`, until the job has ended.

    Raises `SavepointFailed`, or `Unavailable` after `timeout` seconds.
    """

    def over(known: JobStatus) -> SavepointTaken | None:
        taken = savepoint_of(known, asked.id)
        return None if ends and known.outcome is None else taken

    def ended(known: JobStatus) -> Exception:
        return SavepointFailed(ended_before(known, "the savepoint was taken"))

    taken = wait_until_over(over, ended, ask, status, timeout)
    if taken is not None:
        return taken
    raise Unavailable(
        f"the savepoint of job {job} was not there after {timeout} s: it may still come to {shown(asked.url)}; "
        "`barrier-runtime status` tells what the job waits for"
    )


def savepoint_of(status: JobStatus, id: str) -> SavepointTaken | None:
    """None if not complete yet. Raises `SavepointFailed`."""
    found = next((each for each in status.savepoints if each.id == id), None)
    if found is None or found.ended_ms is None:
        return None
    if found.error:
        raise SavepointFailed(f"job {status.job} has no savepoint in {shown(found.url)}: {found.error}")
    taken_at = datetime.fromtimestamp(found.ended_ms / 1000, timezone.utc)
    return SavepointTaken(found.url, found.checkpoint or 0, found.bytes, taken_at)


DEFAULT_TIMEOUT_S = 60.0


class RescaleFailed(BarrierRuntimeError):
    """The rescale failed. The job continues with the previous slots, unless ended before."""


@dataclass(frozen=True)
class Rescaled:
    """`pause_ms`: from the order to stop the sources until the new slots ran.

    `checkpoint`: from which the new slots continue; None if there was nothing to do."""

    before: int
    parallelism: int
    checkpoint: int | None
    pause_ms: int


def rescale_asked(parallelism: int, timeout_s: float) -> RescaleAsked:
    """`timeout_s`: limit for the new slots to register."""
    if isinstance(parallelism, bool) or not isinstance(parallelism, int) or parallelism < 1:
        raise InvalidJob(f"parallelism={parallelism!r}: give a whole number of slots, at least 1")
    if not timeout_s > 0:
        raise InvalidJob(f"timeout={timeout_s!r}: give seconds for the new slots to come")
    return RescaleAsked(uuid.uuid4().hex, parallelism, max(1, round(timeout_s * 1000)))


def wait_for_rescale(
    job: str, asked: RescaleAsked, ask: Callable[[], object], status: Callable[[], JobStatus | None]
) -> Rescaled:
    def stays(found: RescaleStatus) -> str:
        return f"{counted(found.before, 'slot')} and not with {found.parallelism}"

    found = wait_for_change(job, asked.id, RescaleFailed, "it was rescaled", stays, ask, status)
    return Rescaled(found.before, found.parallelism, found.checkpoint, found.pause_ms or 0)


log = logging.getLogger("barrier_runtime.job")

_LOADER = "barrier_runtime.tools.load_program"


class ReplaceFailed(BarrierRuntimeError):
    """The replace failed. The job continues with the previous program, unless ended before."""


@dataclass(frozen=True)
class Replaced:
    """`pause_ms`: from the order to stop the sources until the new program ran.

    `checkpoint`: from which the new program continues."""

    checkpoint: int | None
    pause_ms: int


class HasPlan(Protocol):
    plan: Plan
    options: Any


class NewProgram(msgspec.Struct, frozen=True):
    spec: JobSpec
    graph: bytes


class LoadOrder(msgspec.Struct, frozen=True):
    flow: str
    job: str
    parallelism: int
    max_parallelism: int
    mode: str
    answer: str


class LoadedProgram(msgspec.Struct, frozen=True):
    program: NewProgram | None
    error: str = ""


_LOADED = msgspec.msgpack.Decoder(LoadedProgram)


def new_program(plan: Plan, of_flow: Mapping[str, object], order: LoadOrder) -> NewProgram:
    job = continuing_job(plan, of_flow, order)
    check_travels(job.graph)
    spec = msgspec.structs.replace(job.spec, fingerprint=fingerprint(job.graph, job.spec))
    return NewProgram(spec, pickled(job.graph))


def continuing_job(plan: Plan, of_flow: Mapping[str, object], order: LoadOrder) -> PreparedJob:
    if plan.name != order.job:
        raise InvalidJob(f"the flow is called {plan.name!r}, the job {order.job!r}: give the flow the job's name")
    if has_batch_functions(plan):
        raise InvalidJob(
            "the flow has for_each_batch, whose function the program that runs the job calls: stop the job with a "
            "savepoint, and start the new program with it"
        )
    kept = {"parallelism": order.parallelism, "max_parallelism": order.max_parallelism, "mode": order.mode}
    job = PreparedJob(plan, JobOptions.from_keywords(kept, of_flow))
    if has_staged_sources(job.graph):
        raise InvalidJob(
            "the flow reads a DataFrame, whose rows are stored when a job starts: stop the job with a savepoint, and "
            "start the new program with it"
        )
    return job


def load_order(flow: str, spec: JobSpec, answer: str = "") -> LoadOrder:
    """`spec`: description at the job's start, whose parallelism determines splits of generated sources."""
    return LoadOrder(flow, spec.job, spec.parallelism, spec.max_parallelism, spec.checkpoints.mode, answer)


def replace_asked(flow: str, timeout_s: float, *, allow_non_restored: bool = False) -> ReplaceAsked:
    """`flow`: "app.py:flow", or "" if the caller sets `spec` itself.
    `timeout_s`: limit for the new slots to register.
    """
    if not timeout_s > 0:
        raise InvalidJob(f"timeout={timeout_s!r}: give seconds for the new slots to come")
    timeout_ms = max(1, round(timeout_s * 1000))
    return ReplaceAsked(uuid.uuid4().hex, flow, None, allow_non_restored, timeout_ms)


def wait_for_replace(
    job: str, asked: ReplaceAsked, ask: Callable[[], object], status: Callable[[], JobStatus | None]
) -> Replaced:
    kept = "the program that it had"
    found = wait_for_change(job, asked.id, ReplaceFailed, "its program was replaced", lambda _: kept, ask, status)
    return Replaced(found.checkpoint, found.pause_ms or 0)


class Programs:
    """Loads programs, once per request id, in a thread.

    `own`: file and flow of this program, all that a holder of the token may load; "": nothing.
    """

    def __init__(
        self,
        own: str,
        spec: JobSpec,
        learn: Callable[[str, bytes], None],
        tell: Callable[[ReplaceAsked], object],
    ) -> None:
        self._own = own
        self._spec = spec
        self._learn = learn
        self._tell = tell
        self._asked = ""
        self._loaded: dict[str, LoadedProgram] = {}
        self._thread: threading.Thread | None = None

    def follow(self, status: JobStatus) -> None:
        wanted = status.program_wanted
        if wanted is None or wanted.request == self._asked:
            return
        self._asked = wanted.request
        self._thread = threading.Thread(target=self._answer, args=(wanted,), name="barrier-program", daemon=True)
        self._thread.start()

    def _answer(self, wanted: ProgramWanted) -> None:
        loaded = self._loaded.get(wanted.id)
        if loaded is None:
            loaded = self._loaded[wanted.id] = self._load(wanted)
        if loaded.program is not None:
            self._learn(wanted.id, loaded.program.graph)
        spec = None if loaded.program is None else loaded.program.spec
        try:
            self._tell(ReplaceAsked(wanted.id, spec=spec, error=loaded.error))
        except (Unavailable, InvalidJob) as error:  # the next leader asks again
            log.warning("job %s: what was loaded could not be told: %s", self._spec.job, error)

    def _load(self, wanted: ProgramWanted) -> LoadedProgram:
        refusal = _why_not_own(wanted.flow, self._own)
        if refusal:
            return LoadedProgram(None, refusal)
        with tempfile.TemporaryDirectory(prefix="barrier-runtime-program-") as folder:
            return loaded_apart(load_order(self._own, self._spec, str(Path(folder) / "answer")))


def loaded_apart(order: LoadOrder) -> LoadedProgram:
    """Loads in a separate process, whose death is an error, too."""
    done = subprocess.run(
        [sys.executable, "-m", _LOADER],
        input=msgspec.json.encode(order),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    try:
        return _LOADED.decode(Path(order.answer).read_bytes())
    except (OSError, *UNREADABLE):
        words = done.stderr.decode(errors="replace")[-4000:]
        return LoadedProgram(None, f"{order.flow} could not be loaded (exit {done.returncode}): {words}")


def _why_not_own(flow: str, own: str) -> str:
    if not own:
        return (
            "the program that runs the job was not started by `barrier-runtime run app.py:flow`, so no file can be "
            "loaded anew: call handle.replace(flow) in it"
        )
    if _absolute(flow) != own:
        return f"the job's program is {own}: only that file can be loaded anew, not {flow}"
    return ""


def _absolute(flow: str) -> str:
    """Keeps symlinks: one may lead to a new release."""
    file, _, name = flow.rpartition(":")
    return f"{os.path.abspath(file)}:{name}"


def own_flow(target: str) -> str:
    return _absolute(target) if target else ""
