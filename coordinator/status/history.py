"""What a job remembers of itself across coordinators and runs: counters, checkpoints, recoveries, its slots, its end.

One object per job, written by the leader after what it tells of has happened. It decides nothing: losing it loses
figures. Pure: the bytes, what they mean, and how they agree with the decision log.
"""

from typing import Literal

import msgspec

from barrier_runtime.coordinator.status.status import (
    CheckpointStatus,
    CommitsStatus,
    DurationCounts,
    FailureStatus,
    LatencyPoint,
    RecoveryStatus,
    RescaleStatus,
    SavepointStatus,
    TakeoverStatus,
)
from barrier_runtime.state.versioned import Format, VersionedDecoder

HISTORY_VERSION = 1


class KnownSlot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A slot as it registered last. Lets a successor ask for the end of a task it has never heard of."""

    slot: int
    uuid: str
    pid: int
    host: str
    task_attempt: int
    program: str = ""  # as in `JobSpec`


class RunOutcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a run ended. Void once the log has grown beyond `position`: then somebody leads the job again."""

    run_id: str
    outcome: Literal["finished", "failed", "cancelled"]
    reason: str
    ended_ms: int
    position: int  # of the log's head


class History(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    version: int = HISTORY_VERSION
    job: str
    run_id: str  # of the run that wrote it
    triggered: int = 0
    completed: int = 0
    failed: int = 0
    generations: int = 0
    last_completed: CheckpointStatus | None = None
    history: tuple[CheckpointStatus, ...] = ()  # oldest first
    recoveries: tuple[RecoveryStatus, ...] = ()
    failures: tuple[FailureStatus, ...] = ()
    takeovers: tuple[TakeoverStatus, ...] = ()
    taken_over: int = 0
    durations: DurationCounts = DurationCounts()
    latency_hour: dict[str, tuple[LatencyPoint, ...]] = {}
    slots: tuple[KnownSlot, ...] = ()
    rescales: tuple[RescaleStatus, ...] = ()  # those that are over
    savepoints: tuple[SavepointStatus, ...] = ()  # those that are over
    commits: CommitsStatus = CommitsStatus({}, ())
    outcome: RunOutcome | None = None


_ENCODER = msgspec.json.Encoder(order="deterministic")
_FORMAT = Format(
    "history {}",
    HISTORY_VERSION,
    damaged="counters start anew; nothing else depends on it",
    newer="a newer release wrote it; counters start anew, nothing else depends on it",
)
_DECODER = VersionedDecoder(_FORMAT, msgspec.json.Decoder(History))


def encode_history(history: History) -> bytes:
    return _ENCODER.encode(history)


def decode_history(name: str, data: bytes) -> History:
    """The history stored under `name`. Raises `InvalidJob` for one of another version, `Corrupt` for anything else:
    they must not stop a job, only figures are lost."""
    return _DECODER.decode(data, name)
