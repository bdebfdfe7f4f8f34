"""History of a job across coordinators and runs: packed times of subtasks, status of past runs. Pure.

One object per job, written by the leader after the events. The history decides nothing: a loss costs figures.
"""

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from itertools import chain
from operator import attrgetter
from typing import Literal

import msgspec

from barrier_runtime.coordinator.log.decision_log import LogView
from barrier_runtime.coordinator.log.records import Fence, Finish
from barrier_runtime.coordinator.options import effective
from barrier_runtime.coordinator.status.health import ENDS
from barrier_runtime.coordinator.status.shares import chain_statuses
from barrier_runtime.coordinator.status.status import (
    CheckpointsStatus,
    CheckpointStatus,
    CommitsStatus,
    DurationCounts,
    FailureStatus,
    JobStatus,
    LatencyPoint,
    RecoveryStatus,
    RescaleStatus,
    SavepointStatus,
    SubtaskPhases,
    TakeoverStatus,
)
from barrier_runtime.coordinator.wire.messages import Ack, JobSpec, SubtaskId
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
    started_as: int = -1  # number for the driver, if other than `slot`


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


# Durations of every subtask in a checkpoint, packed for the history. Pure.
#
# The history is rewritten after each checkpoint; a packed subtask takes 10 to 30 bytes:
#
#     version (1 byte), then zlib of: count, and a column per field of `_FIELDS`, subtasks in the order of their ids
#
# Bounds: the `MOST` slowest subtasks of a checkpoint; `MOST_TOGETHER` of a job's newest checkpoints. So a job of up to
# 160 subtasks has all subtasks of the last 100 checkpoints.

MOST = 4_096
MOST_TOGETHER = 16_384
_VERSION = 1
_TENTHS = ("start_delay_ms", "alignment_ms", "sync_ms", "async_ms", "precommit_ms", "upload_ms")  # of a millisecond
_FIELDS = ("chain", "subtask", "ack_ms", *_TENTHS, "rows", "new_bytes")
_DURATIONS_FORMAT = Format(
    "phase times of subtasks", _VERSION, damaged="they are shown to people; nothing else depends on them"
)
_COUNT = struct.Struct("<I")
_TOP = (2.0**32 - 1) / 10  # ms


def packed(acks: Mapping[SubtaskId, Ack], acked_ms: Mapping[SubtaskId, int], triggered_ms: int) -> bytes:
    if not acks:
        return b""
    ids: Sequence[SubtaskId] = list(acks)
    if len(ids) > MOST:
        ids = nlargest(MOST, ids, key=acked_ms.__getitem__)
    ids = sorted(ids)
    times = [acks[each].times for each in ids]
    columns: list[list[int]] = [
        [each.chain for each in ids],
        [each.index for each in ids],
        [max(0, acked_ms[each] - triggered_ms) for each in ids],
        *(_tenths(map(attrgetter(name), times)) for name in _TENTHS),
        [each.rows for each in times],
        [new_bytes(acks[each]) for each in ids],
    ]
    flat = chain.from_iterable(columns)
    return bytes((_VERSION,)) + zlib.compress(_COUNT.pack(len(ids)) + _layout(len(ids)).pack(*flat), 1)


def _tenths(values: Iterable[float]) -> list[int]:
    return [round(10 * value) if 0.0 < value < _TOP else round(10 * _TOP) if value >= _TOP else 0 for value in values]


def unpacked(data: bytes, most: int = MOST) -> list[SubtaskPhases]:
    """Raises `InvalidJob` for another version, `Corrupt` for damage."""
    if not data:
        return []
    try:
        _DURATIONS_FORMAT.check(data[0])
        raw = zlib.decompress(data[1:])
        (count,) = _COUNT.unpack_from(raw)
        flat = _layout(count).unpack_from(raw, _COUNT.size)
    except (zlib.error, struct.error) as error:
        raise _DURATIONS_FORMAT.unreadable(error) from error
    columns = {name: flat[at * count : (at + 1) * count] for at, name in enumerate(_FIELDS)}
    slowest = nlargest(most, range(count), key=columns["ack_ms"].__getitem__)
    return [
        SubtaskPhases(**{name: column[at] / 10 if name in _TENTHS else column[at] for name, column in columns.items()})
        for at in slowest
    ]


def all_subtasks(record: CheckpointStatus, most: int = MOST) -> list[SubtaskPhases]:
    full = {(each.chain, each.subtask) for each in record.subtasks}
    others = (each for each in unpacked(record.phases, most) if (each.chain, each.subtask) not in full)
    return [*record.subtasks, *others][:most]


def new_bytes(ack: Ack) -> int:
    """Includes rows in flight."""
    keyed = sum(each.keyed.new_bytes for each in ack.operators if each.keyed is not None)
    return keyed + sum(each.file.size for snapshot in ack.operators for each in snapshot.in_flight)


def _layout(count: int) -> struct.Struct:
    return struct.Struct(f"<{count * (len(_FIELDS) - 2)}I{count * 2}Q")


# Status from log and history, of a run that has ended or has another leader. Pure.

STANDBY = "STANDBY"
"""Condition of a job that another daemon leads, as shown by a standby daemon."""

Past = Literal["finished", "failed", "cancelled", "fenced"]


def past_status(view: LogView, history: History | None, run_id: str | None) -> JobStatus | None:
    """`run_id` None: the last run. Returns None if no end is recorded."""
    if view.head is None or view.fence is None or not isinstance(view.fence.record, Fence):
        return None
    fence = view.fence.record
    if run_id is not None and run_id != fence.spec.run_id:
        for entry in view.earlier_runs:
            earlier = entry.record
            if isinstance(earlier, Fence) and earlier.spec.run_id == run_id:
                by = f"generation {fence.token} of {fence.spec.submitter}"
                reason = f"job {earlier.spec.job} was taken over by {by}"
                return _status(earlier.spec, earlier.token, "fenced", reason, None, by)
        return None
    head = view.head.record
    if isinstance(head, Finish):
        reason = head.reason or f"job {fence.spec.job} had ended: {head.outcome}"
        ended_as = _status(fence.spec, fence.token, head.outcome, reason, history)
        commits = ended_as.commits
        if head.outcome == "finished":  # all rows are visible, although the figures may be older
            commits = msgspec.structs.replace(commits, troubles=())
        savepoints = with_last_savepoint(ended_as.savepoints, head)
        return msgspec.structs.replace(ended_as, savepoints=savepoints, commits=commits)
    ended = None if history is None else history.outcome
    if ended is None or ended.run_id != fence.spec.run_id or view.head.position > ended.position:
        return None
    return _status(fence.spec, fence.token, ended.outcome, ended.reason, history)


def with_last_savepoint(known: tuple[SavepointStatus, ...], finish: Finish) -> tuple[SavepointStatus, ...]:
    """Adds FINISH's savepoint, which the history may lack after a coordinator's death."""
    stop = finish.stops_with
    if stop is None:
        return known
    last = SavepointStatus(
        id=stop.savepoint,
        url=stop.url,
        state="done",
        checkpoint=stop.checkpoint,
        asked_ms=next((each.asked_ms for each in known if each.id == stop.savepoint), finish.wall_ms),
        ended_ms=finish.wall_ms,
        bytes=stop.bytes,
        stops=True,
    )
    return (*(each for each in known if each.id != last.id), last)


def led_elsewhere(view: LogView, history: History | None, reason: str) -> JobStatus | None:
    """Status stored by a run's leader; None: missing, or the run has ended."""
    if view.head is None or view.fence is None or not isinstance(view.fence.record, Fence):
        return None
    if isinstance(view.head.record, Finish):
        return None
    fence = view.fence.record
    ended = _status(fence.spec, fence.token, "finished", "", history)
    return msgspec.structs.replace(
        ended,
        phase=STANDBY.lower(),
        outcome=None,
        condition=STANDBY,
        condition_reason=reason,
        reason=reason,
    )


def _status(
    spec: JobSpec, token: int, outcome: Past, reason: str, history: History | None, fenced_by: str | None = None
) -> JobStatus:
    known = history or History(job=spec.job, run_id=spec.run_id)
    return JobStatus(
        job=spec.job,
        run_id=spec.run_id,
        submitter=spec.submitter,
        phase=outcome,
        outcome=outcome,
        condition=ENDS[outcome],
        condition_reason=f"by {fenced_by}" if fenced_by else reason,
        reason=reason,
        error=reason if outcome in ("failed", "fenced") else None,
        fenced_by=fenced_by,
        token=token,
        generations=known.generations,
        leader="",
        parallelism=spec.parallelism,
        max_parallelism=spec.max_parallelism,
        slots=(),
        missing_slots=(),
        checkpoints=CheckpointsStatus(
            triggered=known.triggered,
            completed=known.completed,
            failed=known.failed,
            last_completed=known.last_completed,
            history=known.history,
            durations=known.durations,
        ),
        recoveries=known.recoveries,
        failures=known.failures,
        takeovers=known.takeovers,
        taken_over=known.taken_over,
        rescales=known.rescales,
        savepoints=known.savepoints,
        latency_hour=known.latency_hour,
        chains=chain_statuses(spec.chains, {}),
        watermark_ms=None,
        records=0,
        records_after_checkpoint=0 if outcome == "finished" else None,
        latency={},
        commits=known.commits,
        kill=(),
        options=effective(spec),
        restored_checkpoint=0,
    )
