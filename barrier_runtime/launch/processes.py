"""Jobs with slots in processes of this machine, without Spark: the program of a job, and the command `slot`.

`join` adds slots of this machine to a job that another program runs. The program is a file on this machine, too, so no
code crosses the network; storage, secret and the newest description of the job are found through the coordinator and
the job's log.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

from barrier_runtime.carriers.processes import ProcessCarrier
from barrier_runtime.coordinator.client.failover import FailoverClient
from barrier_runtime.coordinator.client.rest_token import daemon_key
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.log.records import Fence
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


def run(plan: Plan, options: JobOptions, processes: int) -> JobResult:
    """Runs `plan` until the job ends, with `processes` slots in processes of this machine.

    Raises the errors of `JobHandle.wait`. SIGTERM ends the program after temporary folders are removed.
    """
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
        coordinator = submitted(job, options, store)
        undo.callback(coordinator.close)
        at_end = ExitStack()
        handle = JobHandle(job, options, ProcessCarrier(), coordinator, range(processes), at_end.close)
        at_end.enter_context(undo.pop_all())
        return handle


def run_until_terminated(plan: Plan, options: JobOptions, processes: int, show: Show) -> tuple[JobResult, bool]:
    """`run` of a command: SIGTERM stops the job with a last checkpoint. For the main thread.

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


def join(
    flow: HasPlan,
    client: FailoverClient,
    token: str,
    slots: Sequence[int],
    say: Callable[[str], None],
    given: Mapping[str, object] = NOTHING,
) -> JobStatus:
    """Runs `slots` of the running job of `flow`, a process for each, until the job ends; returns the last status.

    `given`: options of this machine's slots, which win over the flow's. Raises `InvalidJob` if the job runs another
    program, or has other slots.
    """
    status = client.status(flow.plan.name)
    settings = _settings(flow, client, token, status, given)
    _check_slots(slots, status)
    carrier = ProcessCarrier()
    group = f"barrier-runtime-{status.run_id}"
    carrying = threading.Thread(target=carrier.submit, args=(settings, slots, group), name="barrier-slots", daemon=True)
    carrying.start()
    say(f"job {status.job}: slots {', '.join(map(str, slots))} run here")
    try:
        return _followed(client, status, carrier)
    finally:
        carrier.close()
        carrying.join()


def _followed(client: FailoverClient, status: JobStatus, carrier: ProcessCarrier) -> JobStatus:
    while status.outcome is None:
        with suppress(Unavailable):  # the slots wait, too
            status = client.next_status(status.job, status.run_id, status, _LOOK_S)
            for order in status.kill:
                carrier.kill(order.task_attempt, "given up")
        time.sleep(0.05)
    return status


def _settings(
    flow: HasPlan, client: FailoverClient, token: str, status: JobStatus, given: Mapping[str, object]
) -> SlotSettings:
    daemons = client.daemons()
    if not daemons:
        raise Unavailable(f"no coordinator of job {status.job} answers: is it running?")
    storage = daemons[0].storage
    spec = _described(storage, status)
    of_flow = usable_locally(flow.options, apart=True)
    job = continuing_job(flow.plan, of_flow, load_order("", spec))
    if spec.fingerprint and fingerprint(job.graph, job.spec) != spec.fingerprint:
        raise InvalidJob(
            f"job {spec.job} runs another program than this one: bring the file of the program that runs the job, and "
            "the modules beside it, to this machine"
        )
    keywords = {**given, "run_id": spec.run_id, "mode": spec.checkpoints.mode}
    options = JobOptions.from_keywords(keywords, of_flow)
    return SlotSettings(
        graph=job.graph,
        options=replace(options.for_slots(), slot_timeout=spec.slot_timeout_ms / 1000),
        secret=job_secret(daemon_key(token), spec.job, spec.run_id),
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
