"""History of a job across coordinators and runs. Pure.

One object per job, written by the leader after the events. The history decides nothing: a loss costs figures.
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
    """A slot's last registration, so that a successor can request the end of an unknown task."""

    slot: int
    uuid: str
    pid: int
    host: str
    task_attempt: int
    program: str = ""


class RunOutcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome is void once the log has grown beyond `position`: the job has a leader again."""

    run_id: str
    outcome: Literal["finished", "failed", "cancelled"]
    reason: str
    ended_ms: int
    position: int  # of the log's head


class History(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    version: int = HISTORY_VERSION
    job: str
    run_id: str
    triggered: int = 0
    completed: int = 0
    failed: int = 0
    generations: int = 0
    last_completed: CheckpointStatus | None = None
    history: tuple[CheckpointStatus, ...] = ()
    recoveries: tuple[RecoveryStatus, ...] = ()
    failures: tuple[FailureStatus, ...] = ()
    takeovers: tuple[TakeoverStatus, ...] = ()
    taken_over: int = 0
    durations: DurationCounts = DurationCounts()
    latency_hour: dict[str, tuple[LatencyPoint, ...]] = {}
    slots: tuple[KnownSlot, ...] = ()
    rescales: tuple[RescaleStatus, ...] = ()  # ended
    savepoints: tuple[SavepointStatus, ...] = ()  # ended
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
    """The errors of a bad history must not stop a job."""
    return _DECODER.decode(data, name)
