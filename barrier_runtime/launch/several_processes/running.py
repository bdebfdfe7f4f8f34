"""Runs a flow in processes of this machine, a process per slot, without Spark. Other machines may add slots."""

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from barrier_runtime.carriers.processes import ProcessCarrier
from barrier_runtime.graph.logical import Plan
from barrier_runtime.launch.coordinator_of_job import submitted
from barrier_runtime.launch.display import Show
from barrier_runtime.launch.job_handle import JobHandle
from barrier_runtime.launch.local import SIGTERM_S, Termination
from barrier_runtime.launch.options import JobOptions, StorageOfRun
from barrier_runtime.launch.outcome import JobResult, interruption_told
from barrier_runtime.launch.prepare import PreparedJob
from barrier_runtime.spark.closure import check_travels
from barrier_runtime.spark.task import local_root
from barrier_runtime.state.store.open import open_store


def run(plan: Plan, options: JobOptions, processes: int) -> JobResult:
    """Runs `plan` until the job ends, with `processes` slots in processes of this machine.

    Raises the errors of `JobHandle.wait`. SIGTERM ends the program after its temporary folders are removed."""
    told = interruption_told(plan.name, goes_on=options.checkpoints is not None)
    with Termination(), told, start(plan, options, processes) as handle:
        return handle.wait()


def start(plan: Plan, options: JobOptions, processes: int) -> JobHandle:
    """Starts `plan` and returns at once. The other slots of the job are started by `barrier-runtime slot`."""
    job = PreparedJob(plan, options)
    check_travels(job.graph)
    local_root(options.run_id)  # refuses an untrusted folder here rather than in the slots
    with ExitStack() as undo:
        options = replace(options, checkpoints=undo.enter_context(StorageOfRun(options)))
        store = open_store(options.checkpoints or "")
        job.prove(store)
        coordinator = submitted(job, options, store)
        carrier = ProcessCarrier()
        return JobHandle(job, options, carrier, coordinator, range(processes), undo.pop_all().close)


def run_until_terminated(plan: Plan, options: JobOptions, processes: int, show: Show) -> tuple[JobResult, bool]:
    """`run` of a command: SIGTERM stops the job with a last checkpoint. Returns the result and whether the signal came.

    For the main thread."""
    told = interruption_told(plan.name, goes_on=options.checkpoints is not None)
    with told, start(plan, options, processes) as handle, _stopped_by_sigterm(handle) as came:
        handle.show = show
        return handle.wait(), came.is_set()


@contextmanager
def _stopped_by_sigterm(handle: JobHandle) -> Iterator[threading.Event]:
    came = threading.Event()
    at_once = threading.Timer(SIGTERM_S, handle.stop, ["now"], {"wait": False})

    def terminate(*_: object) -> None:
        if not came.is_set():
            came.set()
            threading.Thread(target=handle.stop, kwargs={"wait": False}, name="barrier-stop").start()
            at_once.start()

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield came
    finally:
        at_once.cancel()
        signal.signal(signal.SIGTERM, before)
