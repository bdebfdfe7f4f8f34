"""What can happen to a job: the facts that go into `JobProtocol.handle`. Plain values; a link is a number."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest
from barrier_runtime.coordinator.job.rescaling import RescaleRequest
from barrier_runtime.coordinator.log.decision_log import LogView
from barrier_runtime.coordinator.wire.messages import JobSpec, Register, ToCoordinator
from barrier_runtime.state.store.object_store import ObjectInfo, PutOutcome
from barrier_runtime.state.store.use import StoreCounts

Link: TypeAlias = int
"""One connection of one slot. Never used twice by an edge."""


@dataclass(frozen=True)
class Begin:
    """Start: the first event."""


@dataclass(frozen=True)
class Tick:
    """Time passed; `now_ms` says what it is."""


@dataclass(frozen=True)
class LogRead:
    """`history`: the bytes of the job's history, None when there is none or `history_trouble` says why it is unread."""

    view: LogView
    history: bytes | None = None
    history_trouble: str = ""


@dataclass(frozen=True)
class AppendResult:
    """`use`: requests that the coordinator has made to the job's store so far."""

    position: int
    outcome: PutOutcome
    use: StoreCounts | None = None


@dataclass(frozen=True)
class RecordRead:
    """Answer to `ReadRecord`. None: nothing is there."""

    position: int
    name: str
    data: bytes | None


@dataclass(frozen=True)
class ManifestRead:
    key: str
    data: bytes | None  # None: no such object


@dataclass(frozen=True)
class ManifestWritten:
    key: str


@dataclass(frozen=True)
class ManifestFailed:
    """The store refused the manifest for good (trouble that a retry may cure is retried by the edge)."""

    key: str
    error: str


@dataclass(frozen=True)
class StoreRefused:
    """Reading or appending is not possible at all (permissions, damage): the job cannot go on."""

    error: str


@dataclass(frozen=True)
class StoreRetried:
    """A store call failed and will be made again. `what` names the operation and the object; for status only."""

    what: str
    error: str
    keeps_from: Literal["progress", "sweeping"] = "progress"


@dataclass(frozen=True)
class StoreAnswered:
    """What was retried has been answered."""

    what: str


@dataclass(frozen=True)
class SlotRegistered:
    link: Link
    register: Register


@dataclass(frozen=True)
class SlotMessage:
    link: Link
    message: ToCoordinator


@dataclass(frozen=True)
class SlotLost:
    """The connection is gone; the process may or may not be."""

    link: Link


@dataclass(frozen=True)
class Listed:
    """Answer to `ListForSweep`. `manifests`: key -> bytes, None where an object is missing."""

    objects: tuple[ObjectInfo, ...]
    manifests: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Deleted:
    """A deletion is done, as far as it could be; `error` is for status only (leaks are allowed)."""

    error: str = ""


@dataclass(frozen=True)
class DeletedAll:
    """`DeleteAll` is done, as far as it could be."""

    error: str = ""


@dataclass(frozen=True)
class SavepointCopied:
    """Answer to `CopySavepoint`. `checkpoint`: which one was copied."""

    id: str
    checkpoint: int
    bytes: int


@dataclass(frozen=True)
class SavepointNotCopied:
    """There is no savepoint; what was copied of it may be left in its folder."""

    id: str
    checkpoint: int
    error: str


@dataclass(frozen=True)
class HistoryTrouble:
    """The history could not be written. For status only: figures may be lost."""

    error: str


@dataclass(frozen=True)
class UserTrigger:
    """Take a checkpoint now."""


@dataclass(frozen=True)
class UserSavepoint:
    """Copy a checkpoint to a folder of its own."""

    request: SavepointRequest


@dataclass(frozen=True)
class ProgramLoaded:
    """What the driver says of a program that it was to load: its description, or why there is none."""

    id: str  # of the request
    spec: JobSpec | None
    error: str = ""


@dataclass(frozen=True)
class UserRescale:
    """Go on with another number of slots."""

    request: RescaleRequest


@dataclass(frozen=True)
class SlotsStarting:
    """What the program that runs the job's slots says: so many of them have their cores, registered or not."""

    slots: int


@dataclass(frozen=True)
class UserStop:
    mode: Literal["checkpoint", "drain", "now"]
    savepoint: SavepointRequest | None = None  # to stop with; if it cannot be had, the job goes on


Event: TypeAlias = (
    Begin
    | Tick
    | LogRead
    | AppendResult
    | RecordRead
    | ManifestRead
    | ManifestWritten
    | ManifestFailed
    | StoreRefused
    | StoreRetried
    | StoreAnswered
    | SlotRegistered
    | SlotMessage
    | SlotLost
    | Listed
    | Deleted
    | DeletedAll
    | SavepointCopied
    | SavepointNotCopied
    | HistoryTrouble
    | UserTrigger
    | UserSavepoint
    | UserRescale
    | ProgramLoaded
    | SlotsStarting
    | UserStop
)
