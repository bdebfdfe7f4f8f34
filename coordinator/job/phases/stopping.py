"""How a running job stops when its user asks: at once, drained, or with a savepoint. A stop with a savepoint survives
the death of the coordinator that was asked:

    ASKED ─ a record says so ─► STOPPING ─ the last checkpoint is visible ─► COPYING ─ copied ─► FINISH, which says so

| who dies, or fails    | ASKED            | STOPPING                        | COPYING            | behind FINISH     |
|-----------------------|------------------|---------------------------------|--------------------|-------------------|
| the coordinator       | the job runs on; | its successor stops the job: of a later checkpoint   | it has ended, with |
|                       | who asked asks   | is the savepoint, which takes the place of what was  | that savepoint     |
|                       | again            | copied under its id                                  |                    |
| a slot                | asked of the     | the next generation reads on, and is stopped         | -                  |
|                       | next generation  |                                 |                    |                   |
| the whole program     | another run reads on; what was copied stays until somebody deletes it                    |
| the copy              | -                | -                               | FENCE without the  | -                 |
|                       |                  |                                 | wish: it runs on   |                   |

A drained job does not run on: its FINISH says nothing of a savepoint that could not be copied. Until a record says so
no checkpoint is triggered, and no source ends: a successor would have half of it, and not know why.
"""

from dataclasses import replace

from barrier_runtime.coordinator.checkpoints.pending import PendingCheckpoints, Triggering
from barrier_runtime.coordinator.checkpoints.savepoints import SavepointState
from barrier_runtime.coordinator.job.decisions import Cancel, Decision, FinishJob, Restart
from barrier_runtime.coordinator.job.facts import Job
from barrier_runtime.coordinator.job.stop import Drain, StopNow, StopWithCheckpoint
from barrier_runtime.coordinator.wire.messages import EndSources


def follow_stop(job: Job, pending: PendingCheckpoints, now_ms: int) -> None:
    """Do what is due of the stop. Asked again, it is still the same checkpoint that is waited for."""
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
    else:  # a successor may find that all have ended, and has still to note that they were told to
        pending.triggering = Triggering.ON_REQUEST if job.all_ended else Triggering.HELD
        if not job.generation.drained and not pending.open:
            _end_sources(job)


def _end_sources(job: Job) -> None:
    """Nothing is under way that could be restored with some of the sources ended, and others not."""
    job.generation.drained = True
    for slot in job.slots.connected:
        job.outbox.send(slot, EndSources(job.led.token))


def needs_another(job: Job, pending: PendingCheckpoints) -> bool:
    """The checkpoint that the stop waits for ended undecided, and was tolerated."""
    last = job.stop_checkpoint
    if last is None or job.last_completed >= last:
        return False
    return not any(checkpoint.id >= last for checkpoint in pending.open)


def stop_anew(job: Job) -> None:
    """A generation runs: the checkpoint to stop with is requested in it."""
    if isinstance(job.stop, StopWithCheckpoint):
        job.stop = replace(job.stop, checkpoint=None)


def drain_on(job: Job) -> None:
    """The coordinator before us was asked to drain the job, and that has ended some of its sources."""
    if not isinstance(job.stop, StopNow):
        job.stop = Drain(None if job.stop is None else job.stop.savepoint)


def end_if_done(job: Job) -> Decision | None:
    """The job's end, natural or wanted."""
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
    return FinishJob() if finished else Cancel()


def _go_on(job: Job, error: str) -> Decision:
    """The job cannot have the savepoint that it was to stop with: its sources, which have stopped, begin again."""
    job.stop = None
    return Restart(f"the savepoint to stop with could not be written, so the job goes on: {error}", counted=False)
