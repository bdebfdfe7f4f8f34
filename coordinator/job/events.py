"""Events of a job: the facts that go into `JobProtocol.handle`. Plain values; a link is a number."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest
from barrier_runtime.coordinator.job.rescaling import RescaleRequest
from barrier_runtime.coordinator.log.decision_log import LogView
from barrier_runtime.coordinator.status.health import State
from barrier_runtime.coordinator.status.status import Room
from barrier_runtime.coordinator.wire.messages import (
    CommitFailing,
    Committed,
    Heartbeat,
    JobSpec,
    Register,
    Restored,
    ToCoordinator,
    Waiting,
)
from barrier_runtime.state.store.object_store import ObjectInfo, PutOutcome
from barrier_runtime.state.store.use import StoreCounts

Link: TypeAlias = int
"""One connection of one slot. An edge never uses a number twice."""


@dataclass(frozen=True)
class Begin:
    """Start: the first event."""


@dataclass(frozen=True)
class Tick:
    """Time has passed, to `now_ms`."""


@dataclass(frozen=True)
class LogRead:
    """Answer to `ReadLog`. `history`: bytes; None if missing, or unread (`history_trouble`)."""

    view: LogView
    history: bytes | None = None
    history_trouble: str = ""


@dataclass(frozen=True)
class AppendResult:
    """Answer to `Append`. `use`: requests of the coordinator to the job's store so far."""

    position: int
    outcome: PutOutcome
    use: StoreCounts | None = None


@dataclass(frozen=True)
class RecordRead:
    """Answer to `ReadRecord`. None: the position is empty."""

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
    """The store refused the manifest for good (the edge retries retryable errors)."""

    key: str
    error: str


@dataclass(frozen=True)
class StoreRefused:
    """The store refuses reads or appends (permissions, damage): the job cannot continue."""

    error: str


@dataclass(frozen=True)
class StoreRetried:
    """A store call failed and will be retried. `what` names the operation and the object; for status only."""

    what: str
    error: str
    keeps_from: Literal["progress", "sweeping"] = "progress"


@dataclass(frozen=True)
class StoreAnswered:
    """A retried call has been answered."""

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
    """The connection is lost; the process may live."""

    link: Link


@dataclass(frozen=True)
class Listed:
    """Answer to `ListForSweep`. `manifests`: key -> bytes; None: the object is missing."""

    objects: tuple[ObjectInfo, ...]
    manifests: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Deleted:
    """A deletion is done as far as possible; `error` is for status only (leaks are allowed)."""

    error: str = ""


@dataclass(frozen=True)
class DeletedAll:
    """`DeleteAll` is done as far as possible."""

    error: str = ""


@dataclass(frozen=True)
class SavepointCopied:
    """Answer to `CopySavepoint`. `checkpoint`: the copied checkpoint."""

    id: str
    checkpoint: int
    bytes: int


@dataclass(frozen=True)
class SavepointNotCopied:
    """The savepoint does not exist; some of the objects may be left in the folder."""

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
    """Copy a checkpoint to a folder."""

    request: SavepointRequest


@dataclass(frozen=True)
class ProgramLoaded:
    """The driver's answer about a program to load: the description, or the error."""

    id: str  # of the request
    spec: JobSpec | None
    error: str = ""


@dataclass(frozen=True)
class UserRescale:
    """Continue with another number of slots."""

    request: RescaleRequest


@dataclass(frozen=True)
class SlotsStarting:
    """Report of the program that runs the job's slots, about cores for them."""

    room: Room


@dataclass(frozen=True)
class UserStop:
    mode: Literal["checkpoint", "drain", "now"]
    savepoint: SavepointRequest | None = None  # to stop with; if it is impossible, the job continues


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

# Events after which the condition of a job is judged anew; others cannot change the condition.
_KINDS = (Begin, Tick, AppendResult, RecordRead, ManifestFailed, StoreRetried, StoreAnswered, SlotsStarting)
_HEALS: dict[State, type] = {"WAITING_SINK": Committed, "WAITING_SERVER": Restored}


def may_change_progress(event: Event, state: State, *, slow_commits: bool) -> bool:
    """Whether `event` may change the condition `state`. `slow_commits`: a sink commits too slowly."""
    if not isinstance(event, SlotMessage):
        return isinstance(event, _KINDS)
    message = event.message
    if isinstance(message, Heartbeat):
        return bool(message.opening or message.blocked or message.unheard) or state == "WAITING_NETWORK"
    if isinstance(message, Committed) and slow_commits:
        return True
    heals = _HEALS.get(state)
    return isinstance(message, CommitFailing | Waiting) or (heals is not None and isinstance(message, heals))
