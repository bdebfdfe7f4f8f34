"""Stop of a running job on request.
Crash points: docs/design/savepoints.md.
"""

from dataclasses import replace

from barrier_runtime.coordinator.checkpoints.checkpoint import PendingCheckpoints, Triggering
from barrier_runtime.coordinator.checkpoints.savepoints import SavepointState
from barrier_runtime.coordinator.job.facts import Job
from barrier_runtime.coordinator.job.phases.phase import Cancel, Decision, FinishJob, Restart
from barrier_runtime.coordinator.job.stop import Drain, StopNow, StopWithCheckpoint
from barrier_runtime.coordinator.wire.messages import EndSources


def follow_stop(job: Job, pending: PendingCheckpoints, now_ms: int) -> None:
    """A repeated request waits for the same checkpoint."""
    if job.stop is None or isinstance(job.stop, StopNow):
        return
    if not job.stop_is_logged:
        pending.triggering = Triggering.HELD
        if not job.log.in_flight and not pending.deciding:
            job.append(job.records.stop(job.log, now_ms))
    elif isinstance(job.stop, StopWithCheckpoint):
        pending.triggering = Triggering.ON_REQUEST
        if job.stop.checkpoint is None:
            job.stop = replace(job.stop, checkpoint=pending.request())
    else:  # all may have ended under a predecessor, without `drained`
        pending.triggering = _while_draining(job)
        if not job.generation.drained and not pending.open:
            _end_sources(job)


def _while_draining(job: Job) -> Triggering:
    if job.all_ended:
        return Triggering.ON_REQUEST
    return Triggering.PERIODIC if job.awaits_decisions else Triggering.HELD


def _end_sources(job: Job) -> None:
    """No checkpoint may be pending: a restore point would be half ended."""
    job.generation.drained = True
    for slot in job.slots.connected:
        job.outbox.send(slot, EndSources(job.led.token))


def request_for_rest(job: Job, pending: PendingCheckpoints) -> None:
    """Rows of `stable` steps need a checkpoint at the end of input.

    Each subtask's end may have sent rows to such a step, and requests another checkpoint.
    """
    generation = job.generation
    if len(generation.ended) <= generation.ended_before or pending.open:
        return
    if not isinstance(job.stop, StopNow | StopWithCheckpoint) and job.awaits_decisions:
        pending.request()


def needs_another(job: Job, pending: PendingCheckpoints) -> bool:
    """Returns whether the stop's checkpoint ended undecided, and was tolerated."""
    last = job.stop_checkpoint
    if last is None or job.last_completed >= last:
        return False
    return not any(checkpoint.id >= last for checkpoint in pending.open)


def stop_anew(job: Job) -> None:
    if isinstance(job.stop, StopWithCheckpoint):
        job.stop = replace(job.stop, checkpoint=None)


def drain_on(job: Job) -> None:
    if not isinstance(job.stop, StopNow):
        job.stop = Drain(None if job.stop is None else job.stop.savepoint)


def end_if_done(job: Job) -> Decision | None:
    final, reached = job.generation.final, job.last_completed
    finished = final is not None and job.commits.all_through(final)
    stopped = job.stop_reached and job.commits.all_through(reached)
    if not finished and not stopped:
        return None
    wanted = job.stop.savepoint if isinstance(job.stop, StopWithCheckpoint) else None
    if stopped and wanted is not None and job.savepoints.state(wanted.id) is SavepointState.FAILED:
        return _go_on(job, job.savepoints.error(wanted.id))
    if job.savepoints.open:
        return None
    return FinishJob() if finished else Cancel(reached)


def _go_on(job: Job, error: str) -> Decision:
    job.stop = None
    return Restart(f"the savepoint to stop with could not be written, so the job goes on: {error}", counted=False)
