"""Effects that `JobProtocol.handle` returns. The edge carries them out in order and answers.

Answers: `ReadLog` → `LogRead` · `Append` → `AppendResult` · `ReadRecord` → `RecordRead` · `ReadManifest` →
`ManifestRead` · `WriteManifest` → `ManifestWritten`/`ManifestFailed` · `ListForSweep` → `Listed` · `Delete` → `Deleted`
· `DeleteAll` → `DeletedAll` · `CopySavepoint` → `SavepointCopied`/`SavepointNotCopied`. Instead of each of these, the
answer may be `StoreRefused`.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from barrier_runtime.coordinator.job.events import Link
from barrier_runtime.coordinator.log.decision_log import Permit
from barrier_runtime.coordinator.log.records import Complete
from barrier_runtime.coordinator.log.savepoint import SavepointCopy
from barrier_runtime.coordinator.wire.messages import ToSlot

Outcome: TypeAlias = Literal["finished", "failed", "cancelled", "fenced", "replaced"]
"""End of a job in this coordinator. "replaced": another coordinator leads the same run now."""


@dataclass(frozen=True)
class ReadLog:
    """Read the log's facts, with every kept decision."""

    completes: int  # number of newest decisions
    restore: int | None  # and back to this checkpoint
    run_id: str


@dataclass(frozen=True)
class Append:
    """Put these bytes at this log position if the position is empty. `attempt` > 1: wait a little first."""

    position: int
    data: bytes
    attempt: int = 1


@dataclass(frozen=True)
class ReadRecord:
    position: int


@dataclass(frozen=True)
class ReadManifest:
    """Read the manifest that `record` decided, from the record itself if the manifest is inside."""

    record: Complete

    @property
    def key(self) -> str:
        return self.record.manifest


@dataclass(frozen=True)
class WriteManifest:
    key: str
    data: bytes


@dataclass(frozen=True)
class ListForSweep:
    """List the job's manifests and data files, and read the manifests of these decisions."""

    manifests: tuple[Complete, ...]


@dataclass(frozen=True)
class Delete:
    permit: Permit
    keys: tuple[str, ...]  # in this order
    newest: int = 0  # the newest decided checkpoint that is dropped with them; 0: unknown


@dataclass(frozen=True)
class DeleteAll:
    """Delete all checkpoints and snapshot files on the user's request; never log or savepoints."""

    permit: Permit


@dataclass(frozen=True)
class CopySavepoint:
    """Copy these objects of the job's store to the folder `url`, then write the savepoint there."""

    url: str
    copy: SavepointCopy


@dataclass(frozen=True)
class SendTo:
    link: Link
    message: ToSlot


@dataclass(frozen=True)
class CloseLink:
    link: Link


@dataclass(frozen=True)
class KillSlotTask:
    """Make the driver end this Spark task: the slot is silent or out of reach, and occupies a core.

    `avoid`: the slot lives, and is wanted on another host than this.
    """

    slot: int
    task_attempt: int
    uuid: str
    avoid: str = ""


@dataclass(frozen=True)
class JobEnded:
    outcome: Outcome
    reason: str


Effect: TypeAlias = (
    ReadLog
    | Append
    | ReadRecord
    | ReadManifest
    | WriteManifest
    | ListForSweep
    | Delete
    | DeleteAll
    | CopySavepoint
    | SendTo
    | CloseLink
    | KillSlotTask
    | JobEnded
)
