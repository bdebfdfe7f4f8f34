"""What `restore=<savepoint>` means for a job, by what its log says. Pure.

| the job's log                                                    | what is done                                     |
|------------------------------------------------------------------|--------------------------------------------------|
| no completed checkpoint                                          | the savepoint becomes its first one              |
| its newest checkpoint is the one that was copied                 | it goes on from that: nothing has to be copied   |
| its newest checkpoint grew from this savepoint                   | it goes on from its newest checkpoint: a         |
|                                                                  | supervisor starts a program again by the same    |
|                                                                  | command                                          |
| … and the user allows a replay, and it has moved on since        | the savepoint becomes its newest checkpoint      |
|                                                                  | again, as `restore=<number>` would do            |
| anything else, also a job that began with this savepoint and was | refused, unless the user allows a replay: rows   |
| put on another state since                                       | since would be written again                     |

The lineage of the newest checkpoint says which savepoint it grew from: each import begins a lineage, whose id carries a
mark of the savepoint. So the number of runs since does not matter, nor does any earlier import.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from barrier_runtime.coordinator.log.decision_log import DecisionLog, LogView, complete_of
from barrier_runtime.coordinator.log.hashing import sha256_hex
from barrier_runtime.coordinator.log.records import Complete, Fence
from barrier_runtime.coordinator.log.savepoint import Savepoint
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.state.errors import InvalidJob

_IMPORT = "savepoint-"  # run ids of imports begin so
_MARK = 16  # characters of a lineage's id


@dataclass(frozen=True)
class Import:
    """Make the savepoint checkpoint `checkpoint` of the job."""

    checkpoint: int


@dataclass(frozen=True)
class GoOn:
    """The job goes on from its newest checkpoint."""

    why: str


def import_run_id(savepoint_id: str) -> str:
    """Id of the run that brings the savepoint into a job's log, and does nothing else."""
    return f"{_IMPORT}{savepoint_id}"


def import_leader(savepoint_id: str, random: str) -> str:
    """Id of the process that imports the savepoint, which the lineage that it begins is named after. `random`: hex,
    never the same twice."""
    return _mark_of(savepoint_id) + random[:_MARK]


def grew_from(view: LogView, savepoint_id: str) -> bool:
    """Whether the newest checkpoint of the job grew from an import of the savepoint. `view`: of older releases' logs
    read back to the run `import_run_id`."""
    newest = _newest(view)
    if newest is None:
        return False
    return newest.lineage.startswith(_mark_of(savepoint_id)) or any(
        fence.spec.run_id == import_run_id(savepoint_id) and fence.lineage == newest.lineage for fence in _fences(view)
    )


def grew_from_any(view: LogView) -> bool:
    """The same of any savepoint, for claims that do not name theirs."""
    newest = _newest(view)
    return newest is not None and any(
        fence.spec.run_id.startswith(_IMPORT) and fence.lineage == newest.lineage for fence in _fences(view)
    )


def savepoint_choice(spec: JobSpec, savepoint: Savepoint, view: LogView) -> Import | GoOn:
    """`view`: read back to the run `import_run_id`. Raises `InvalidJob` for what would write rows again."""
    taken = savepoint.taken
    newest = _newest(view)
    as_next = Import(max(taken.checkpoint, DecisionLog(spec.job, view).checkpoint_floor + 1))
    if newest is None:
        return as_next
    if (newest.checkpoint, newest.token, newest.lineage) == (taken.checkpoint, taken.token, taken.lineage):
        return GoOn(f"the savepoint is a copy of checkpoint {newest.checkpoint}, the newest of job {spec.job}")
    begun = grew_from(view, savepoint.id)
    if begun and not (spec.allow_replay and _moved_on(newest)):
        return GoOn(f"job {spec.job} began with this savepoint and has reached checkpoint {newest.checkpoint}")
    if not spec.allow_replay:
        once = any(fence.spec.run_id == import_run_id(savepoint.id) for fence in _fences(view))
        since = "began with this savepoint, was put on another state since, and " if once else ""
        raise InvalidJob(
            f"job {spec.job} {since}has completed checkpoint {newest.checkpoint}; to begin with the savepoint of "
            f"checkpoint {taken.checkpoint} of job {taken.job} would write rows again: use restore='latest', another "
            "job name, or allow_replay if that is wanted"
        )
    return as_next


def _newest(view: LogView) -> Complete | None:
    return complete_of(view.completes[0]) if view.completes else None


def _moved_on(newest: Complete) -> bool:
    """Whether it is another checkpoint than the one that the import itself wrote, as the process which began its
    lineage."""
    return newest.put_id.rpartition("-")[0] != newest.lineage.rpartition("-")[0]


def _fences(view: LogView) -> Iterator[Fence]:
    """The last one of each run, newest first."""
    entries = (entry for entry in (view.fence, *view.earlier_runs) if entry is not None)
    return (entry.record for entry in entries if isinstance(entry.record, Fence))


def _mark_of(savepoint_id: str) -> str:
    return sha256_hex(savepoint_id.encode())[:_MARK]
