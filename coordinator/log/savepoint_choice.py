"""What `restore=<savepoint>` means for a job, by what its log says. Pure.

| the job's log                                              | what is done                                           |
|------------------------------------------------------------|--------------------------------------------------------|
| no completed checkpoint                                    | the savepoint becomes its first one                    |
| it began with this savepoint                               | it goes on from its newest checkpoint: a supervisor    |
|                                                            | starts a program again by the same command             |
| its newest checkpoint is the one that was copied           | it goes on from that: nothing has to be copied         |
| anything else                                              | refused, unless the user allows a replay: rows since   |
|                                                            | would be written again                                 |
"""

from dataclasses import dataclass

from barrier_runtime.coordinator.log.decision_log import DecisionLog, LogView, complete_of
from barrier_runtime.coordinator.log.records import Fence
from barrier_runtime.coordinator.log.savepoint import Savepoint
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.state.errors import InvalidJob


@dataclass(frozen=True)
class Import:
    """Make it checkpoint `checkpoint` of the job."""

    checkpoint: int


@dataclass(frozen=True)
class GoOn:
    """The job goes on from its newest checkpoint."""

    why: str


def import_run_id(savepoint: Savepoint) -> str:
    """Of the run that brings the savepoint into a job's log, and does nothing else."""
    return f"savepoint-{savepoint.id}"


def savepoint_choice(spec: JobSpec, savepoint: Savepoint, view: LogView) -> Import | GoOn:
    """`view`: read back to the run `import_run_id`. Raises `InvalidJob` for what would write rows again."""
    taken = savepoint.taken
    newest = complete_of(view.completes[0]) if view.completes else None
    floor = DecisionLog(spec.job, view).checkpoint_floor
    if newest is None:
        return Import(max(taken.checkpoint, floor + 1))
    fences = [entry for entry in (view.fence, *view.earlier_runs) if entry is not None]
    begun = next((entry for entry in fences if _run_of(entry.record) == import_run_id(savepoint)), None)
    if begun is not None and view.completes[0].position > begun.position:
        return GoOn(f"job {spec.job} began with this savepoint and has reached checkpoint {newest.checkpoint}")
    if (newest.checkpoint, newest.token, newest.lineage) == (taken.checkpoint, taken.token, taken.lineage):
        return GoOn(f"the savepoint is a copy of checkpoint {newest.checkpoint}, the newest of job {spec.job}")
    if not spec.allow_replay:
        raise InvalidJob(
            f"job {spec.job} has completed checkpoint {newest.checkpoint}; to begin with the savepoint of checkpoint "
            f"{taken.checkpoint} of job {taken.job} would write rows again: use restore='latest', another job name, or "
            "allow_replay if that is wanted"
        )
    return Import(max(taken.checkpoint, floor + 1))


def _run_of(record: object) -> str:
    return record.spec.run_id if isinstance(record, Fence) else ""
