"""Spans of a job: a trace per checkpoint, recovery and rescale. Pure.

Ids are hashes of the job, the generation and the checkpoint: a successor's addition (the commit) is in the
predecessor's trace.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from barrier_runtime.coordinator.status.history import History, all_subtasks
from barrier_runtime.coordinator.status.statistics import SUBTASKS
from barrier_runtime.coordinator.status.status import CheckpointStatus, RecoveryStatus, RescaleStatus, SubtaskPhases

Attribute = str | int | float
MOST_SUBTASKS = 160  # per look: five spans each, 25 µs a span, on the loop that decides checkpoints


@dataclass(frozen=True)
class Span:
    """`parent_id` 0: the root of a trace. Times are wall-clock milliseconds."""

    name: str
    trace_id: int  # 128 bits
    span_id: int  # 64 bits
    parent_id: int
    start_ms: float
    end_ms: float
    attributes: dict[str, Attribute] = field(default_factory=dict)
    error: str = ""


def _number(size: int, *parts: object) -> int:
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:size], "big") or 1


class _Trace:
    def __init__(self, job: str, kind: str, token: int, number: int) -> None:
        self._key = (job, kind, token, number)
        self.id = _number(16, *self._key)

    def span_id(self, *path: str) -> int:
        return _number(8, *self._key, *path)

    def span(
        self,
        path: tuple[str, ...],
        start_ms: float,
        end_ms: float,
        attributes: dict[str, Attribute] | None = None,
        error: str = "",
    ) -> Span:
        """`path`: names from the root."""
        parent_id = self.span_id(*path[:-1]) if len(path) > 1 else 0
        own = attributes or {}
        return Span(path[-1], self.id, self.span_id(*path), parent_id, start_ms, max(start_ms, end_ms), own, error)


def checkpoint_spans(job: str, record: CheckpointStatus, most: int = MOST_SUBTASKS) -> list[Span]:
    trace, start_ms = _trace_of(job, record), record.triggered_ms
    root = _root(record)
    attributes: dict[str, Attribute] = {
        "barrier.job": job,
        "barrier.checkpoint": record.checkpoint,
        "barrier.generation": record.token,
        "barrier.outcome": record.outcome,
        "barrier.new_bytes": record.new_bytes,
        "barrier.full_bytes": record.full_bytes,
        "barrier.subtasks": record.parts,
    }
    error = "" if record.outcome in ("complete", "subsumed") else record.reason
    spans = [trace.span((root,), start_ms, start_ms + record.duration_ms, attributes, error)]
    for subtask in all_subtasks(record, most):
        spans += _subtask_spans(trace, root, record, subtask)
    at_ms = start_ms + (record.ack_duration_ms or 0)
    for name, took_ms in (("manifest", record.persist_duration_ms), ("log record", record.decide_duration_ms)):
        if took_ms is not None:
            spans.append(trace.span((root, name), at_ms, at_ms + took_ms))
            at_ms += took_ms
    return spans


def _subtask_spans(trace: _Trace, root: str, record: CheckpointStatus, subtask: SubtaskPhases) -> Iterator[Span]:
    name = f"subtask {subtask.chain}/{subtask.subtask}"
    attributes: dict[str, Attribute] = {
        "barrier.chain": subtask.chain,
        "barrier.slot": subtask.subtask,
        "barrier.rows": subtask.rows,
        "barrier.new_bytes": subtask.new_bytes,
    }
    at_ms = float(record.triggered_ms)
    yield trace.span((root, name), at_ms, at_ms + subtask.ack_ms, attributes)
    phases = (
        ("start delay", subtask.start_delay_ms),
        ("alignment", subtask.alignment_ms),
        ("sync", subtask.sync_ms),
        ("async", subtask.async_ms),
    )
    for phase, took_ms in phases:
        yield trace.span((root, name, phase), at_ms, at_ms + took_ms)
        at_ms += took_ms


def commit_spans(job: str, record: CheckpointStatus) -> list[Span]:
    if record.commit_duration_ms is None:
        return []
    decided_ms = record.triggered_ms + record.duration_ms
    attributes: dict[str, Attribute] = {"barrier.slowest": record.slowest_commit} if record.slowest_commit else {}
    path = (_root(record), "commit")
    return [_trace_of(job, record).span(path, decided_ms, decided_ms + record.commit_duration_ms, attributes)]


def recovery_spans(job: str, recovery: RecoveryStatus) -> list[Span]:
    if recovery.running_ms is None:
        return []
    trace, root = _Trace(job, "recovery", recovery.token, recovery.started_ms), f"recovery of {job}"
    attributes: dict[str, Attribute] = {"barrier.job": job, "barrier.reason": recovery.reason}
    spans = [trace.span((root,), recovery.started_ms, recovery.running_ms, attributes)]
    if recovery.slots_ready_ms is not None:
        spans.append(trace.span((root, "slots register"), recovery.started_ms, recovery.slots_ready_ms))
        spans.append(trace.span((root, "restore"), recovery.slots_ready_ms, recovery.running_ms))
    return spans


def rescale_spans(job: str, rescale: RescaleStatus) -> list[Span]:
    if rescale.ended_ms is None:
        return []
    trace, root = _Trace(job, f"{rescale.kind} {rescale.id}", 0, rescale.asked_ms), f"{rescale.kind} of {job}"
    attributes: dict[str, Attribute] = {
        "barrier.job": job,
        "barrier.slots_before": rescale.before,
        "barrier.slots": rescale.parallelism,
        "barrier.outcome": rescale.state,
    }
    spans = [trace.span((root,), rescale.asked_ms, rescale.ended_ms, attributes, rescale.error)]
    begins = [
        ("slots start", rescale.asked_ms),
        ("checkpoint", rescale.paused_ms),
        ("commit", rescale.decided_ms),
        ("move", rescale.moved_ms),
    ]
    known = [(name, at_ms) for name, at_ms in begins if at_ms is not None]
    ends = [at_ms for _, at_ms in known[1:]] + [rescale.ended_ms]
    return spans + [trace.span((root, name), at_ms, end) for (name, at_ms), end in zip(known, ends, strict=True)]


def _trace_of(job: str, record: CheckpointStatus) -> _Trace:
    return _Trace(job, "checkpoint", record.token, record.checkpoint)


def _root(record: CheckpointStatus) -> str:
    return f"checkpoint {record.checkpoint}"


class NewSpans:
    """The first look yields nothing: old entries were exported."""

    def __init__(self) -> None:
        self._before: set[tuple[str, int, int]] | None = None

    def look(self, history: History) -> list[Span]:
        job = history.job
        found: dict[tuple[str, int, int], Callable[[], list[Span]]] = {}
        known = self._before or set()
        new = sum(("checkpoint", record.token, record.checkpoint) not in known for record in history.history)
        most = max(SUBTASKS, MOST_SUBTASKS // max(1, new))
        for record in history.history:
            found[("checkpoint", record.token, record.checkpoint)] = partial(checkpoint_spans, job, record, most)
            if record.commit_duration_ms is not None:
                found[("commit", record.token, record.checkpoint)] = partial(commit_spans, job, record)
        for recovery in history.recoveries:
            if recovery.running_ms is not None:
                found[("recovery", recovery.token, recovery.started_ms)] = partial(recovery_spans, job, recovery)
        for rescale in history.rescales:
            found[(rescale.id, 0, rescale.asked_ms)] = partial(rescale_spans, job, rescale)
        before, self._before = self._before, set(found)
        return [] if before is None else [span for key, make in found.items() if key not in before for span in make()]
