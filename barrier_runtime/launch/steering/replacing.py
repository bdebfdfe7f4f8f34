"""Another program for a running job, as the program that runs it, or a command, asks for it.

A command names a file, and the program that runs the job loads it: no code crosses the network but in Spark's closures.
It is loaded in a process of its own (`tools.load_program`), which has none of the old program's modules, and whose
failure is an answer.
"""

import logging
import os
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from barrier_runtime.coordinator.client.rest_types import ReplaceAsked
from barrier_runtime.coordinator.status.status import JobStatus, ProgramWanted
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.graph.logical import Plan
from barrier_runtime.launch.batch_functions import has_batch_functions
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.launch.prepare import PreparedJob
from barrier_runtime.launch.staged_sources import has_staged_sources
from barrier_runtime.launch.steering.wishes import wait_for_change
from barrier_runtime.spark.closure import check_travels, fingerprint, pickled
from barrier_runtime.state.errors import UNREADABLE, BarrierRuntimeError, InvalidJob, Unavailable

log = logging.getLogger("barrier_runtime.job")

_LOADER = "barrier_runtime.tools.load_program"


class ReplaceFailed(BarrierRuntimeError):
    """The job goes on with the program that it had."""


@dataclass(frozen=True)
class Replaced:
    """`checkpoint`: that the new program took over. `pause_ms`: from the order to the sources to stop until the new
    program ran."""

    checkpoint: int | None
    pause_ms: int


class HasPlan(Protocol):
    """A `Dataflow`."""

    plan: Plan
    options: Any


class NewProgram(msgspec.Struct, frozen=True):
    """A program that is to go on with a job: what its coordinator is told, and what its slots run."""

    spec: JobSpec
    graph: bytes  # as `closure.pickled` makes it


class LoadOrder(msgspec.Struct, frozen=True):
    """To a process that loads a program: for a job of which this is known. It writes a `LoadedProgram` to `answer`."""

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
    """Compiled for the running job. Raises `InvalidJob` for one that can never go on with it."""
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
    check_travels(job.graph)
    spec = msgspec.structs.replace(job.spec, fingerprint=fingerprint(job.graph, job.spec))
    return NewProgram(spec, pickled(job.graph))


def load_order(flow: str, spec: JobSpec, answer: str = "") -> LoadOrder:
    """`spec`: as the run began. Also of a job that was rescaled since: what is generated has a split for each slot of
    the parallelism that its flow was compiled with."""
    return LoadOrder(flow, spec.job, spec.parallelism, spec.max_parallelism, spec.checkpoints.mode, answer)


def asked_for(flow: str, timeout_s: float, *, allow_non_restored: bool = False) -> ReplaceAsked:
    """A new wish. `flow`: "app.py:flow"; "" for a program at hand. `timeout_s`: for the new slots to come."""
    if not timeout_s > 0:
        raise InvalidJob(f"timeout={timeout_s!r}: give seconds for the new slots to come")
    timeout_ms = max(1, round(timeout_s * 1000))
    return ReplaceAsked(uuid.uuid4().hex, flow, None, allow_non_restored, timeout_ms)


def wait_for_replace(
    job: str, asked: ReplaceAsked, ask: Callable[[], object], status: Callable[[], JobStatus | None]
) -> Replaced:
    """Until it is over. `status`: None while the coordinator is being restarted; one that was does not know of the
    wish, and hears it again by `ask`. Raises `ReplaceFailed`."""

    kept = "the program that it had"
    found = wait_for_change(job, asked.id, ReplaceFailed, "its program was replaced", lambda _: kept, ask, status)
    return Replaced(found.checkpoint, found.pause_ms or 0)


class Programs:
    """Loads what a coordinator wants, once for each wish, in a thread of its own, and tells it. `own`: the file and the
    flow that this program was started with ("" without): a token may have that loaded anew, and nothing else."""

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
        self._loaded: dict[str, LoadedProgram] = {}  # by id
        self._thread: threading.Thread | None = None

    def follow(self, status: JobStatus) -> None:
        """What a coordinator says now."""
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
        except (Unavailable, InvalidJob) as error:  # away: its successor asks anew
            log.warning("job %s: what was loaded could not be told: %s", self._spec.job, error)

    def _load(self, wanted: ProgramWanted) -> LoadedProgram:
        refusal = _why_not_own(wanted.flow, self._own)
        if refusal:
            return LoadedProgram(None, refusal)
        with tempfile.TemporaryDirectory(prefix="barrier-runtime-program-") as folder:
            return loaded_apart(load_order(self._own, self._spec, str(Path(folder) / "answer")))


def loaded_apart(order: LoadOrder) -> LoadedProgram:
    """In a process of its own. It says what is wrong; one that dies has said something, too."""
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
    """Of "app.py:flow". Links are not followed: a link may lead to the new release."""
    file, _, name = flow.rpartition(":")
    return f"{os.path.abspath(file)}:{name}"


def own_flow(target: str) -> str:
    """`target` as `Programs` knows it."""
    return _absolute(target) if target else ""
