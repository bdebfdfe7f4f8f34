"""Runs slots in processes of this machine, without Spark, for a job's program and the command `slot`.

`join` adds slots of this machine to a job that another program runs. The coordinator and the job's log give storage,
secret and description; the program is a local file, so no code crosses the network.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import msgspec

from barrier_runtime.carriers.processes import ProcessCarrier
from barrier_runtime.coordinator.client.client import FailoverClient, UnknownJob
from barrier_runtime.coordinator.client.rest_types import DaemonReply
from barrier_runtime.coordinator.log.decision_log import LogView
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.log.records import Fence, Finish
from barrier_runtime.coordinator.option_table import OPTIONS
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.wire.handshake import job_secret
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.graph.logical import Plan
from barrier_runtime.launch.coordinator_of_job import submitted
from barrier_runtime.launch.display import Show
from barrier_runtime.launch.job_handle import JobHandle
from barrier_runtime.launch.local import SIGTERM_S, Termination
from barrier_runtime.launch.options import NOTHING, JobOptions, StorageOfRun, usable_locally
from barrier_runtime.launch.outcome import JobResult, interruption_told
from barrier_runtime.launch.prepare import PreparedJob
from barrier_runtime.launch.requests import HasPlan, continuing_job, load_order
from barrier_runtime.spark.closure import check_travels, fingerprint
from barrier_runtime.spark.task import SlotSettings, local_root
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths

log = logging.getLogger("barrier_runtime.job")


def run(plan: Plan, options: JobOptions, processes: int) -> JobResult:
    """Raises the errors of `JobHandle.wait`. SIGTERM ends the program after temporary folders are removed."""
    told = interruption_told(plan.name, goes_on=options.checkpoints is not None)
    with Termination(), told, start(plan, options, processes) as handle:
        return handle.wait()


def start(plan: Plan, options: JobOptions, processes: int) -> JobHandle:
    """Starts `plan` and returns at once. `barrier-runtime slot` starts the other slots of the job."""
    job = PreparedJob(plan, options)
    check_travels(job.graph)
    local_root(options.run_id)  # refuses an untrusted folder here, not in the slots
    with ExitStack() as undo:
        options = replace(options, checkpoints=undo.enter_context(StorageOfRun(options)))
        store = open_store(options.checkpoints or "")
        job.prove(store)
        if processes < options.parallelism:
            job.spec = msgspec.structs.replace(job.spec, slot_options=options.for_joining_slots())
        coordinator = submitted(job, options, store)
        undo.callback(coordinator.close)
        at_end = ExitStack()
        handle = JobHandle(job, options, ProcessCarrier(), coordinator, range(processes), at_end.close)
        at_end.enter_context(undo.pop_all())
        return handle


def run_until_terminated(plan: Plan, options: JobOptions, processes: int, show: Show) -> tuple[JobResult, bool]:
    """As `run`, for commands: SIGTERM stops the job with a last checkpoint. For the main thread.

    Returns the result and whether the signal came.
    """
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


_LOOK_S = 1.0
_LOG_S = 2.0  # between looks into the log while no coordinator answers
_UNKNOWN_S: float = OPTIONS["coordinator_lease"].default  # after this time without a coordinator slots leave


def join(
    flow: HasPlan,
    client: FailoverClient,
    slots: Sequence[int],
    say: Callable[[str], None],
    given: Mapping[str, object] = NOTHING,
) -> JobStatus:
    """Runs `slots` of the running job of `flow`, a process each, until its end; returns the last status.

    `given`: options of this machine's slots, which win over the program's. Raises `InvalidJob` if the job runs another
    program, or does not miss these slots.
    """
    status = client.status(flow.plan.name)
    daemons = client.daemons()
    if not daemons:
        raise Unavailable(f"no coordinator of job {status.job} answers: is it running?")
    settings = _settings(flow, client, daemons, status, given)
    _check_slots(slots, status)
    carrier = ProcessCarrier()
    group = f"barrier-runtime-{status.run_id}"
    carrying = threading.Thread(target=carrier.submit, args=(settings, slots, group), name="barrier-slots", daemon=True)
    carrying.start()
    say(f"job {status.job}: slots {', '.join(map(str, slots))} run here")
    read = partial(_log_of, settings.storage_url, status)
    returns = not all(each.of_program for each in daemons)
    try:
        return followed(
            status,
            lambda last: client.next_status(last.job, last.run_id, last, _LOOK_S, brief=True),
            carrier.kill,
            lambda silent_s: ended_in_log(status, read(), silent_s, returns=returns),
        )
    finally:
        carrier.close()
        carrying.join()


def followed(
    status: JobStatus,
    next_status: Callable[[JobStatus], JobStatus],
    kill: Callable[[int, str], object],
    ended: Callable[[float], JobStatus | None],
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> JobStatus:
    """Carries out kill orders until the job ends; returns the last status.

    `ended` is called while no coordinator answers, with the seconds since the last answer.
    """
    known_s = looked_s = clock()
    while status.outcome is None:
        try:
            status = next_status(status)
        except Unavailable as error:
            log.debug("job %s: %s", status.job, error)
            now_s = clock()
            if now_s - looked_s >= _LOG_S:
                looked_s, status = now_s, ended(now_s - known_s) or status
        except UnknownJob:  # a restarted daemon knows the job once slots or program have connected
            if clock() - known_s > _UNKNOWN_S:
                raise
            wait(_LOOK_S)  # `UnknownJob` comes at once, unlike a status
        else:
            known_s = clock()
            for order in status.kill:
                kill(order.task_attempt, "given up")
        wait(0.05)
    return status


def ended_in_log(status: JobStatus, view: LogView | None, silent_s: float, *, returns: bool) -> JobStatus | None:
    """End of the run by the job's log; None: the run goes on.

    `view`: None if the store does not answer. `silent_s`: seconds since the coordinator's last answer; too many raise
    `Unavailable` if nobody restarts the coordinator (`returns` false).
    """
    if view is not None:
        if view.head is None or view.fence is None or not isinstance(view.fence.record, Fence):
            raise Unavailable(
                f"job {status.job} has ended, and its temporary checkpoints are removed: its program's output names "
                "the outcome"
            )
        if view.fence.record.spec.run_id != status.run_id:
            other = f"another run of job {status.job} took over: {view.fence.record.reason}"
            return msgspec.structs.replace(status, outcome="fenced", error=other)
        if isinstance(end := view.head.record, Finish):
            return msgspec.structs.replace(status, outcome=end.outcome, error=end.reason)
    if not returns and silent_s > _UNKNOWN_S:
        raise Unavailable(
            f"the program of job {status.job}, which has the coordinator, has not answered for {silent_s:.0f} s, and "
            "the job's log has no end: start the program again, then this command"
        )
    return None


def _log_of(storage: str, status: JobStatus) -> LogView | None:
    try:
        return read_log(open_store(storage), Paths(status.job), run_id=status.run_id)
    except Unavailable as error:
        log.debug("job %s: %s", status.job, error)
        return None


def _settings(
    flow: HasPlan,
    client: FailoverClient,
    daemons: Sequence[DaemonReply],
    status: JobStatus,
    given: Mapping[str, object],
) -> SlotSettings:
    storage = daemons[0].storage
    spec = _described(storage, status)
    of_flow = usable_locally(flow.options, apart=True)
    job = continuing_job(flow.plan, of_flow, load_order("", spec))
    if spec.fingerprint and fingerprint(job.graph, job.spec) != spec.fingerprint:
        raise InvalidJob(
            f"job {spec.job} runs another program than this one: bring the file of the program that runs the job, and "
            "the modules beside it, to this machine"
        )
    of_program = spec.slot_options or {}  # older builds store none: the flow's options apply
    keywords = {**of_program, **given, "run_id": spec.run_id, "mode": spec.checkpoints.mode}
    options = JobOptions.from_keywords(keywords, of_flow)
    return SlotSettings(
        graph=job.graph,
        options=replace(options.for_slots(), slot_timeout=spec.slot_timeout_ms / 1000),
        secret=job_secret(client.root_key, spec.job, spec.run_id),
        control_addresses=tuple((each.control_host, each.control_port) for each in daemons if each.storage == storage),
        storage_url=storage,
        job=spec.job,
        program=spec.program,
    )


def _described(storage: str, status: JobStatus) -> JobSpec:
    view = read_log(open_store(storage), Paths(status.job), completes=1, restore=None, run_id=status.run_id)
    if view.fence is None or not isinstance(view.fence.record, Fence) or view.fence.record.spec.run_id != status.run_id:
        raise Unavailable(f"job {status.job} is starting: its log does not describe this run yet; try again")
    return view.fence.record.spec


def _check_slots(slots: Sequence[int], status: JobStatus) -> None:
    if set(slots) - set(status.missing_slots) or not slots or len(set(slots)) < len(slots):
        missing = ", ".join(map(str, status.missing_slots)) or "none"
        raise InvalidJob(
            f"job {status.job} has slots 0 to {status.parallelism - 1}, and those that are missing now: {missing}: "
            "name each that is to run here once, as in --slot 2 --slot 3. A slot that was lost just now counts as "
            "missing when the coordinator has noticed"
        )
