"""What the page of a job says, from its status: figures that change (`live`), tables, and the graph's lags. Pure.

What a status does not have is shown as absent, never computed from something else.
"""

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from barrier_runtime.coordinator.page.figures import ABSENT, duration, number, rate, size
from barrier_runtime.coordinator.status.health import TROUBLED
from barrier_runtime.coordinator.status.status import CheckpointStatus, JobStatus
from barrier_runtime.state.store.urls import shown

_BAD_ENDS = ("FAILED", "FENCED")


@dataclass(frozen=True)
class SinkView:
    """One sink's subtask: up to which checkpoint its transactions are visible, and what waits."""

    sink: str
    through: int
    pending: int  # completed checkpoints that it has not committed
    oldest_ms: int | None  # how long the oldest of them has been decided
    attempts: int
    error: str


@dataclass(frozen=True)
class LatencyView:
    """One figure in text for each column; `name` is "<sink>:processed" or "<sink>:visible"."""

    name: str
    p50: str
    p99: str
    p999: str
    max: str
    rows: str
    minute_p50: str
    minute_p99: str


def tone(condition: str) -> str:
    """Class of a condition's colour."""
    if condition in _BAD_ENDS:
        return "bad"
    if condition in TROUBLED or condition == "RECOVERING":
        return "warn"
    return "good" if condition in ("RUNNING", "FINISHED") else "quiet"


def rows_per_s(status: JobStatus) -> float | None:
    """Read by all sources together; None while it is not known of each."""
    rates = [chain.rows_in_per_s for chain in status.chains if chain.is_source]
    known = [each for each in rates if each is not None]
    return sum(known) if known and len(known) == len(rates) else None


def live(status: JobStatus, now_ms: int) -> dict[str, str]:
    """The figures that a page changes in place, as text, by the name under which its elements ask for them."""
    last = status.checkpoints.last_completed
    lags = [source.lag_ms for source in status.sources if source.lag_ms is not None]
    running = sum(slot.state == "running" for slot in status.slots)
    figures = {
        "condition": status.condition or status.phase,
        "tone": tone(status.condition),
        "reason": status.condition_reason or status.reason,
        "since": duration(now_ms - status.condition_since_ms) if status.condition_since_ms else ABSENT,
        "phase": status.phase,
        "generation": number(status.token) if status.token else ABSENT,
        "records": number(status.records),
        "rate": rate(rows_per_s(status)),
        "lag": duration(max(lags)) if lags else ABSENT,
        "checkpoint": number(last.checkpoint) if last else ABSENT,
        "checkpoint_took": duration(last.duration_ms) if last else ABSENT,
        "checkpoint_age": duration(max(0, now_ms - last.triggered_ms - last.duration_ms)) if last else ABSENT,
        "in_progress": ", ".join(map(str, status.checkpoints.in_progress)) or "none",
        "waiting_for": ", ".join(status.checkpoints.waiting_for[:8]),
        "completed": number(status.checkpoints.completed),
        "failed": number(status.checkpoints.failed),
        "state": size(last.full_bytes) if last else ABSENT,
        "slots": f"{running} of {status.parallelism}",
        "pending": number(sum(sink.pending for sink in sinks(status, now_ms))),
    }
    for kind in ("processed", "visible"):
        recent = [each for name, each in status.latency_last_minute.items() if name.endswith(f":{kind}") and each.count]
        figures[f"{kind}_p50"] = duration(max(each.p50 for each in recent)) if recent else ABSENT
        figures[f"{kind}_p99"] = duration(max(each.p99 for each in recent)) if recent else ABSENT
    return figures


def sinks(status: JobStatus, now_ms: int) -> list[SinkView]:
    """Every subtask of a sink that commits."""
    completes = [each for each in status.checkpoints.history if each.outcome == "complete"]
    troubles = {each.sink: each for each in status.commits.troubles}
    found = []
    for sink, through in sorted(status.commits.through.items()):
        open_ones = [each for each in completes if each.checkpoint > through]
        oldest = min((each.triggered_ms + each.duration_ms for each in open_ones), default=None)
        trouble = troubles.get(sink)
        found.append(
            SinkView(
                sink,
                through,
                len(open_ones),
                None if oldest is None or status.outcome is not None else max(0, now_ms - oldest),
                0 if trouble is None else trouble.attempts,
                "" if trouble is None else trouble.error,
            )
        )
    return found


def latency_rows(status: JobStatus) -> list[LatencyView]:
    found = []
    for name, each in sorted(status.latency.items()):
        minute = status.latency_last_minute.get(name)
        recent = minute if minute is not None and minute.count else None
        found.append(
            LatencyView(
                name,
                duration(each.p50),
                duration(each.p99),
                duration(each.p999) if each.p999 else ABSENT,
                duration(each.max),
                number(each.count),
                ABSENT if recent is None else duration(recent.p50),
                ABSENT if recent is None else duration(recent.p99),
            )
        )
    return found


def lags(status: JobStatus) -> dict[str, str]:
    """By source."""
    return {source.source: duration(source.lag_ms) for source in status.sources if source.lag_ms is not None}


def operators(status: JobStatus) -> dict[int, str]:
    """Names of each chain's operators."""
    return {chain.chain: " → ".join(chain.operators) for chain in status.chains}


def first_of_generations(history: Sequence[CheckpointStatus]) -> list[int]:
    """Checkpoints that are the first of their generation, but for the oldest one that is known."""
    return [each.checkpoint for before, each in itertools.pairwise(history) if each.token != before.token]


@dataclass(frozen=True)
class EventView:
    """A generation, takeover, savepoint or rescale. `gap_ms`: from the last completed checkpoint before it to the first
    after it, which is how long no row became visible; None while there is none after it, or none is known before it."""

    at_ms: int
    what: str
    took_ms: int | None
    gap_ms: int | None
    why: str


def events(status: JobStatus) -> list[EventView]:
    """Newest first."""
    ends = sorted(each.triggered_ms + each.duration_ms for each in status.checkpoints.history if _counts(each))

    def gap(at_ms: int) -> int | None:
        index = bisect_right(ends, at_ms)
        return ends[index] - ends[index - 1] if 0 < index < len(ends) else None

    found = [
        EventView(each.started_ms, f"generation {each.token}", each.duration_ms, gap(each.started_ms), each.reason)
        for each in status.recoveries
    ]
    for each in status.takeovers:
        what = f"coordinator replaced in generation {each.token}"
        found.append(EventView(each.at_ms, what, None, gap(each.at_ms), f"process {each.leader} leads, slots went on"))
    for savepoint in status.savepoints:
        took = None if savepoint.ended_ms is None else savepoint.ended_ms - savepoint.asked_ms
        what = f"savepoint {savepoint.state}" + (
            f", of checkpoint {savepoint.checkpoint}" if savepoint.checkpoint else ""
        )
        found.append(EventView(savepoint.asked_ms, what, took, None, savepoint.error or shown(savepoint.url)))
    for rescale in status.rescales:
        took = None if rescale.ended_ms is None else rescale.ended_ms - rescale.asked_ms
        what = f"rescale {rescale.before} -> {rescale.parallelism} slots: {rescale.state}"
        pause = "" if rescale.pause_ms is None else f"sources stopped for {rescale.pause_ms} ms"
        found.append(EventView(rescale.asked_ms, what, took, None, rescale.error or pause))
    return sorted(found, key=lambda event: event.at_ms, reverse=True)


def _counts(checkpoint: CheckpointStatus) -> bool:
    return checkpoint.outcome == "complete"


def failed_checkpoints(status: JobStatus) -> list[CheckpointStatus]:
    """Newest first. One that a newer completed checkpoint made superfluous is none."""
    return [each for each in reversed(status.checkpoints.history) if each.outcome not in ("complete", "subsumed")]
