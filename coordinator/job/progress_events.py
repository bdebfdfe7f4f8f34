"""Events after which the condition of a job is judged anew. Others cannot change the condition."""

from barrier_runtime.coordinator.job.events import (
    AppendResult,
    Begin,
    Event,
    ManifestFailed,
    RecordRead,
    SlotMessage,
    SlotsStarting,
    StoreAnswered,
    StoreRetried,
    Tick,
)
from barrier_runtime.coordinator.status.health import State
from barrier_runtime.coordinator.wire.messages import CommitFailing, Committed, Heartbeat, Restored, Waiting

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
