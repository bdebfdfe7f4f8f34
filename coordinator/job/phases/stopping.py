"""Stop of a running job on the user's request: at once, drained, or with a savepoint.

A stop with a savepoint survives the death of the coordinator that received the request:

    ASKED ─ a record says so ─► STOPPING ─ the last checkpoint is visible ─► COPYING ─ copied ─► FINISH, which says so

| who dies, or fails    | ASKED            | STOPPING                        | COPYING            | after FINISH      |
|-----------------------|------------------|---------------------------------|--------------------|-------------------|
| the coordinator       | the job runs on; | the successor stops the job: the savepoint is of a   | the job has ended  |
|                       | the client asks  | later checkpoint, and replaces the files copied      | with that savepoint|
|                       | again            | under the same id                                    |                    |
| a slot                | asked of the     | the next generation reads on, and is stopped         | -                  |
|                       | next generation  |                                 |                    |                   |
| the whole program     | another run reads on; copied files stay until somebody deletes them                      |
| the copy              | -                | -                               | FENCE without the  | -                 |
|                       |                  |                                 | stop: the job runs |                   |

A drained job does not run on: if the copy failed, FINISH names no savepoint. Until a record names the stop, no
checkpoint is triggered and no source ends: a successor would find a half-ended job without the reason.
"""

from dataclasses import replace

from barrier_runtime.coordinator.checkpoints.checkpoint import PendingCheckpoints, Triggering
from barrier_runtime.coordinator.checkpoints.savepoints import SavepointState
from barrier_runtime.coordinator.job.decisions import Cancel, Decision, FinishJob, Restart
from barrier_runtime.coordinator.job.facts import Job
from barrier_runtime.coordinator.job.stop import Drain, StopNow, StopWithCheckpoint
from barrier_runtime.coordinator.wire.messages import EndSources


def follow_stop(job: Job, pending: PendingCheckpoints, now_ms: int) -> None:
    """Continues the stop. A repeated request waits for the same checkpoint."""
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
    else:  # all may have ended under a predecessor, and `drained` is not noted
        pending.triggering = _while_draining(job)
        if not job.generation.drained and not pending.open:
            _end_sources(job)


def _while_draining(job: Job) -> Triggering:
    if job.all_ended:
        return Triggering.ON_REQUEST
    return Triggering.PERIODIC if job.awaits_decisions else Triggering.HELD


def _end_sources(job: Job) -> None:
    """Ends the sources while no checkpoint is pending, so that no restore point is half ended."""
    job.generation.drained = True
    for slot in job.slots.connected:
        job.outbox.send(slot, EndSources(job.led.token))


def request_for_rest(job: Job, pending: PendingCheckpoints) -> None:
    """Requests a checkpoint at the end of the input, for rows that wait for a decision (`stable`).

    Each further end of a subtask may have sent rows to another such step, and so requests another checkpoint.
    """
    generation = job.generation
    if len(generation.ended) <= generation.ended_before or pending.open:
        return
    if not isinstance(job.stop, StopNow | StopWithCheckpoint) and job.awaits_decisions:
        pending.request()


def needs_another(job: Job, pending: PendingCheckpoints) -> bool:
    """Whether the stop's checkpoint ended undecided, and the failure was tolerated."""
    last = job.stop_checkpoint
    if last is None or job.last_completed >= last:
        return False
    return not any(checkpoint.id >= last for checkpoint in pending.open)


def stop_anew(job: Job) -> None:
    if isinstance(job.stop, StopWithCheckpoint):
        job.stop = replace(job.stop, checkpoint=None)


def drain_on(job: Job) -> None:
    """Continues a drain of the previous coordinator, which has ended some of the sources."""
    if not isinstance(job.stop, StopNow):
        job.stop = Drain(None if job.stop is None else job.stop.savepoint)


def end_if_done(job: Job) -> Decision | None:
    """Returns the job's natural or requested end, if reached."""
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
    """Restarts the stopped sources, because the savepoint failed."""
    job.stop = None
    return Restart(f"the savepoint to stop with could not be written, so the job goes on: {error}", counted=False)
