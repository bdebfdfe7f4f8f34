"""Events of a job: facts for `JobProtocol.handle`."""

from collections.abc import Container
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest
from barrier_runtime.coordinator.job.rescaling import RescaleRequest
from barrier_runtime.coordinator.log.decision_log import LogEntry, LogView
from barrier_runtime.coordinator.status.health import State
from barrier_runtime.coordinator.status.status import Room
from barrier_runtime.coordinator.wire.messages import (
    CommitFailing,
    Committed,
    Heartbeat,
    JobSpec,
    Register,
    Restored,
    ToJob,
    Waiting,
)
from barrier_runtime.state.store.object_store import ObjectInfo, PutOutcome
from barrier_runtime.state.store.use import StoreCounts

Link: TypeAlias = int
"""One connection of one slot. An edge never uses a number twice."""


@dataclass(frozen=True)
class Begin:
    """First event."""


@dataclass(frozen=True)
class Tick:
    """Time has passed, to `now_ms`."""


@dataclass(frozen=True)
class LogRead:
    """`history`: None if missing, or unread (`history_trouble`)."""

    view: LogView
    history: bytes | None = None
    history_trouble: str = ""


@dataclass(frozen=True)
class AppendResult:
    """`use`: the coordinator's store requests so far.

    `overtaken`: a record far beyond the compacted position.
    """

    position: int
    outcome: PutOutcome
    use: StoreCounts | None = None
    overtaken: LogEntry | None = None


@dataclass(frozen=True)
class RecordRead:
    """`data`: None if the position is empty."""

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
    """A permanent refusal; the edge retries other errors."""

    key: str
    error: str


@dataclass(frozen=True)
class StoreRefused:
    """Permissions or damage: the job cannot continue."""

    error: str


@dataclass(frozen=True)
class StoreRetried:
    """A store call failed and will be retried. For status only."""

    what: str
    error: str
    keeps_from: Literal["progress", "sweeping"] = "progress"


@dataclass(frozen=True)
class StoreAnswered:
    what: str


@dataclass(frozen=True)
class SlotRegistered:
    link: Link
    register: Register


class SlotMessage(NamedTuple):  # quicker to make than a dataclass
    link: Link
    message: ToJob


@dataclass(frozen=True)
class SlotMessages:
    """Messages that arrived together, in the order of arrival."""

    messages: tuple[SlotMessage, ...]


@dataclass(frozen=True)
class SlotLost:
    """The connection is lost; the process may live."""

    link: Link


@dataclass(frozen=True)
class Listed:
    """`manifests`: key -> bytes; None if missing."""

    objects: tuple[ObjectInfo, ...]
    manifests: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Deleted:
    """The deletion is done as far as possible; `error` is for status only."""

    error: str = ""


@dataclass(frozen=True)
class DeletedAll:
    error: str = ""


@dataclass(frozen=True)
class SavepointCopied:
    id: str
    checkpoint: int
    bytes: int


@dataclass(frozen=True)
class SavepointNotCopied:
    """The savepoint does not exist; some objects may be left in the folder."""

    id: str
    checkpoint: int
    error: str


@dataclass(frozen=True)
class HistoryTrouble:
    """Figures may be lost. For status only."""

    error: str


@dataclass(frozen=True)
class UserTrigger:
    """Take a checkpoint now."""


@dataclass(frozen=True)
class UserSavepoint:
    request: SavepointRequest


@dataclass(frozen=True)
class ProgramLoaded:
    id: str  # of the request
    spec: JobSpec | None
    error: str = ""


@dataclass(frozen=True)
class UserRescale:
    request: RescaleRequest


@dataclass(frozen=True)
class UserLeaving:
    host: str


@dataclass(frozen=True)
class SlotsStarting:
    """Report of the driver."""

    room: Room


@dataclass(frozen=True)
class UserStop:
    mode: Literal["checkpoint", "drain", "now"]
    savepoint: SavepointRequest | None = None  # if this savepoint fails, the job continues


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
    | SlotMessages
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
    | UserLeaving
    | ProgramLoaded
    | SlotsStarting
    | UserStop
)

# Other events cannot change the condition of a job.
_KINDS = (
    Begin,
    Tick,
    AppendResult,
    RecordRead,
    ManifestFailed,
    StoreRetried,
    StoreAnswered,
    SlotsStarting,
    UserLeaving,
)
_HEALS: dict[State, type] = {"WAITING_SINK": Committed, "WAITING_SERVER": Restored}


def may_change_progress(event: Event, state: State, *, slow_commits: bool) -> bool:
    if not isinstance(event, SlotMessages):
        return isinstance(event, _KINDS)
    kinds = {CommitFailing, Waiting, _HEALS.get(state)}
    if slow_commits:
        kinds.add(Committed)
    return any(_tells(each.message, kinds, state) for each in event.messages)


def _tells(message: ToJob, kinds: Container[type | None], state: State) -> bool:
    if isinstance(message, Heartbeat):
        return bool(message.opening or message.blocked or message.unheard or message.notices) or (
            state == "WAITING_NETWORK"
        )
    return type(message) in kinds
