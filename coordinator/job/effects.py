"""Effects of `JobProtocol.handle`. The edge carries them out in order.

Each effect on the store is answered by an event; `Delete` and `Compact` by `Deleted`. Instead, the answer may be
`StoreRefused`.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from barrier_runtime.coordinator.job.events import Link
from barrier_runtime.coordinator.log.decision_log import Permit
from barrier_runtime.coordinator.log.records import Complete
from barrier_runtime.coordinator.log.savepoint import SavepointCopy
from barrier_runtime.coordinator.wire.messages import ToSlot

Outcome: TypeAlias = Literal["finished", "failed", "cancelled", "fenced", "replaced"]
"""End of a job in this coordinator. "replaced": another coordinator leads the same run now."""


@dataclass(frozen=True)
class ReadLog:
    completes: int  # number of newest decisions
    restore: int | None  # and back to this checkpoint
    run_id: str


@dataclass(frozen=True)
class Append:
    """Put these bytes if the position is empty. `attempt` > 1: wait a little first."""

    position: int
    data: bytes
    attempt: int = 1


@dataclass(frozen=True)
class ReadRecord:
    position: int


@dataclass(frozen=True)
class ReadManifest:
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
    manifests: tuple[Complete, ...]


@dataclass(frozen=True)
class Delete:
    permit: Permit
    keys: tuple[str, ...]  # in this order: after a crash no manifest may lack files
    newest: int = 0  # newest dropped checkpoint; 0: unknown


@dataclass(frozen=True)
class Compact:
    """Delete log records below `base`. `kept`: positions of kept decisions."""

    base: int
    kept: frozenset[int]
    first_sha256: str  # of the first record, which no other log has


@dataclass(frozen=True)
class DeleteAll:
    """Delete all checkpoints and snapshot files, but never log or savepoints."""

    permit: Permit


@dataclass(frozen=True)
class CopySavepoint:
    url: str
    copy: SavepointCopy


class SendTo(NamedTuple):  # quicker to make than a dataclass
    link: Link
    message: ToSlot


@dataclass(frozen=True)
class CloseLink:
    link: Link


@dataclass(frozen=True)
class KillSlotTask:
    """The slot is silent or out of reach.

    `avoid`: the slot lives; the replacement should be on another host.
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
    | Compact
    | DeleteAll
    | CopySavepoint
    | SendTo
    | CloseLink
    | KillSlotTask
    | JobEnded
)
