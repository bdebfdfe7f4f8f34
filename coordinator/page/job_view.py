"""Content of a job's page and of the list of jobs, from the status. Pure.

Missing figures are absent, never computed from others.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from barrier_runtime.coordinator.client.rest_types import JobSummary
from barrier_runtime.coordinator.metric_table import (
    DUPLICATES,
    ERROR_ROWS,
    LATE_LEFT_ROWS,
    LATE_RIGHT_ROWS,
    LATE_ROWS,
    NULL_VALUES,
    SKIPPED_ROWS,
    UNREAD_SIDE_ROWS,
)
from barrier_runtime.coordinator.page.figures import ABSENT, dollars, duration, lag, number, rate, size, time_of_day
from barrier_runtime.coordinator.status.figure_table import TILES
from barrier_runtime.coordinator.status.health import TROUBLED, spares_in_words, what_died
from barrier_runtime.coordinator.status.statistics import late_rows, over_slots, shortened, totals
from barrier_runtime.coordinator.status.status import CheckpointStatus, JobStatus
from barrier_runtime.coordinator.status.store_use import prices_of, store_rate
from barrier_runtime.state.store.urls import shown
from barrier_runtime.state.texts import counted

_BAD_ENDS = ("FAILED", "FENCED")
_TEXTS: dict[str, Callable[[float | None], str]] = {"ms": duration, "bytes": size, "rows/s": rate}
_LONGEST_DONE = 300
_LONGEST_REASON = 600  # a job's error may be a traceback


@dataclass(frozen=True)
class LatencyView:
    """`name` is "<sink>:processed" or "<sink>:visible"."""

    name: str
    p50: str
    p99: str
    p999: str
    max: str
    rows: str
    minute_p50: str
    minute_p99: str


def tone(condition: str) -> str:
    if condition in _BAD_ENDS:
        return "bad"
    if condition in TROUBLED or condition == "RECOVERING":
        return "warn"
    return "good" if condition in ("RUNNING", "FINISHED") else "quiet"


def _is_slow(status: JobStatus) -> bool:
    return bool(status.commits.slow or status.checkpoints.slow_uploads)


def live(status: JobStatus, now_ms: int) -> dict[str, str]:
    """Figures that a page changes in place, by element."""
    last = status.checkpoints.last_completed
    running = sum(slot.state == "running" for slot in status.slots)
    now, spares = msgspec.structs.replace(status, at_ms=now_ms), status.spares
    return {
        "condition": status.condition or status.phase,
        "tone": "warn" if _is_slow(status) and status.condition == "RUNNING" else tone(status.condition),
        "reason": shortened(status.condition_reason or status.reason, _LONGEST_REASON),
        "since": duration(now_ms - status.condition_since_ms) if status.condition_since_ms else ABSENT,
        "phase": status.phase,
        "generation": number(status.token) if status.token else ABSENT,
        "checkpoint": number(last.checkpoint) if last else ABSENT,
        "in_progress": ", ".join(map(str, status.checkpoints.in_progress)) or "none",
        "waiting_for": ", ".join(status.checkpoints.waiting_for[:8]),
        "slots": f"{running} of {status.parallelism}" + (f", {spares_in_words(spares)}" if spares.wanted else ""),
        **{tile.name: _TEXTS.get(figure.unit, number)(_only(figure.values(now))) for figure, tile in TILES},
        "lag": lag(max((each.lag_ms for each in status.sources if each.lag_ms is not None), default=None)),
        "late": number(sum(late_rows(status).values())),
        "skipped": number(over_slots(SKIPPED_ROWS, [slot.metrics for slot in status.slots]) or 0.0),
        "doing": _under_way(status, now_ms),
        "done": _done(status),
    }


def _under_way(status: JobStatus, now_ms: int) -> str:
    open_ = [(each.what, each.state, each.asked_ms) for each in status.rescales if each.ended_ms is None]
    open_ += [("savepoint", each.state, each.asked_ms) for each in status.savepoints if each.ended_ms is None]
    return "; ".join(f"{what}: {state}, for {duration((now_ms - at) // 1000 * 1000)}" for what, state, at in open_[:3])


def _done(status: JobStatus) -> str:
    found = [
        (
            each.ended_ms,
            f"Savepoint of checkpoint {each.checkpoint or ABSENT}: {each.state}",
            each.error or f"{size(each.bytes)} in {shown(each.url)}",
        )
        for each in status.savepoints
        if each.ended_ms is not None
    ]
    found += [
        (each.ended_ms, f"{each.what.capitalize()}: {each.state}", each.error)
        for each in status.rescales
        if each.ended_ms is not None
    ]
    if not found:
        return ""
    at_ms, what, more = max(found)
    return f"{what} at {time_of_day(at_ms)} UTC{f'. {shortened(more, _LONGEST_DONE)}' if more else ''}"


# metric of an operator -> words
_DROPPED = {
    LATE_ROWS: "too late for a window: dropped",
    LATE_LEFT_ROWS: "left rows too late for a join: dropped",
    LATE_RIGHT_ROWS: "right rows too late for a join: dropped",
    SKIPPED_ROWS: "skipped, because the function raised",
    ERROR_ROWS: "sent to the stream of errors",
    DUPLICATES: "known ids: dropped by deduplicate",
    UNREAD_SIDE_ROWS: "of a side output that nothing reads: dropped",
    NULL_VALUES: "records without a value",
}


def dropped(status: JobStatus) -> list[tuple[str, str, str]]:
    """Returns (operator, reason, rows) over all slots, without zeros."""
    found = totals(slot.metrics for slot in status.slots)
    words = {metric.name: text for metric, text in _DROPPED.items()}
    parted = sorted((*key.rpartition(".")[::2], rows) for key, rows in found.items())
    return [(operator, words[metric], number(rows)) for operator, metric, rows in parted if metric in words and rows]


def notes(status: JobStatus) -> dict[str, str]:
    last = status.checkpoints.last_completed
    found = {name: [f"state {size(bytes_)}"] for name, bytes_ in ({} if last is None else last.state_bytes).items()}
    for operator, rows in late_rows(status).items():
        found.setdefault(operator, []).append(counted(rows, "late row"))
    return {name: " · ".join(parts) for name, parts in found.items()}


def _only(values: Iterator[tuple[tuple[str, ...], float]]) -> float | None:
    return next((value for _, value in values), None)


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
    found = {source.source: lag(source.lag_ms) for source in status.sources}
    return {name: text for name, text in found.items() if text != ABSENT}


def operators(status: JobStatus) -> dict[int, str]:
    return {chain.chain: " → ".join(chain.operators) for chain in status.chains}


@dataclass(frozen=True)
class EventView:
    """`kind`: a key of `EVENT_KINDS`.

    `gap_ms`: time between the completed checkpoints around the event; None: unknown.
    """

    kind: str
    at_ms: int
    what: str
    took_ms: int | None
    gap_ms: int | None
    why: str


# Rows of the time axis.
EVENT_KINDS = {
    "start": "starts",
    "recovery": "recoveries",
    "takeover": "takeovers",
    "rescale": "rescales",
    "replace": "new programs",
    "savepoint": "savepoints",
}


def events(status: JobStatus) -> list[EventView]:
    """Returns events, newest first. A new kind is a function below and a row of `EVENT_KINDS`."""
    ends = sorted(each.triggered_ms + each.duration_ms for each in status.checkpoints.history if _counts(each))

    def gap(at_ms: int) -> int | None:
        index = bisect_right(ends, at_ms)
        return ends[index] - ends[index - 1] if 0 < index < len(ends) else None

    found = (*_generations(status, gap), *_takeovers(status, gap), *_rescales(status, gap), *_savepoints(status))
    return sorted(found, key=lambda event: event.at_ms, reverse=True)


def _generations(status: JobStatus, gap: Callable[[int], int | None]) -> Iterator[EventView]:
    first = status.generations <= len(status.recoveries)
    moved = {each.ended_ms for each in status.rescales if each.state == "done"}
    for index, each in enumerate(status.recoveries):
        if each.running_ms is not None and each.running_ms in moved:
            continue  # shown as a rescale
        kind = "start" if index == 0 and first else each.kind
        what = f"{kind}, generation {each.token}"
        yield EventView(kind, each.started_ms, what, each.duration_ms, gap(each.started_ms), what_died(each.reason))


def _takeovers(status: JobStatus, gap: Callable[[int], int | None]) -> Iterator[EventView]:
    for each in status.takeovers:
        what = f"coordinator replaced in generation {each.token}"
        why = (
            f"{each.ended}; slots went on"
            if each.ended
            else f"the coordinator before died, stalled or left: process {each.leader} leads, slots went on"
        )
        yield EventView("takeover", each.at_ms - (each.away_ms or 0), what, each.away_ms, gap(each.at_ms), why)


def _savepoints(status: JobStatus) -> Iterator[EventView]:
    for each in status.savepoints:
        took = None if each.ended_ms is None else each.ended_ms - each.asked_ms
        of = f", of checkpoint {each.checkpoint}" if each.checkpoint else ""
        yield EventView(
            "savepoint", each.asked_ms, f"savepoint {each.state}{of}", took, None, each.error or shown(each.url)
        )


def _rescales(status: JobStatus, gap: Callable[[int], int | None]) -> Iterator[EventView]:
    for each in status.rescales:
        took = None if each.ended_ms is None else each.ended_ms - each.asked_ms
        what = f"{each.what}: {each.state}"
        pause = "" if each.pause_ms is None else f"sources stopped for {duration(each.pause_ms)}"
        yield EventView(each.kind, each.asked_ms, what, took, gap(each.asked_ms), each.error or pause)


def _counts(checkpoint: CheckpointStatus) -> bool:
    return checkpoint.outcome == "complete"


_Row = TypeVar("_Row")


def noteworthy(rows: Sequence[_Row], most: int | None, order: Callable[[_Row], Any]) -> Sequence[_Row]:
    """Pages with 500 slots must stay small."""
    return rows if most is None or len(rows) <= most else sorted(rows, key=order)[:most]


def failed_checkpoints(status: JobStatus) -> list[CheckpointStatus]:
    return [each for each in reversed(status.checkpoints.history) if each.outcome not in ("complete", "subsumed")]


def store_use(status: JobStatus) -> tuple[list[tuple[str, str]], str]:
    """Returns (label, figure), and a note on the mean; empty while unknown."""
    prices = prices_of(status)
    mean = store_rate(status.checkpoints.history, prices)
    if mean is None:
        return [], ""
    figures = [
        ("PUT, COPY, LIST per checkpoint", number(mean.writes)),
        ("GET, HEAD per checkpoint", number(mean.reads)),
        ("Sent", size(mean.sent_bytes)),
        ("Received", size(mean.received_bytes)),
        ("Would cost on S3, a day", dollars(mean.cost_per_day)),
        ("A checkpoint", dollars(mean.cost)),
    ]
    note = (
        f"Means of the last {mean.checkpoints} checkpoints, of slots and coordinator together; requests at "
        f"{dollars(prices.writes)} and {dollars(prices.reads)} a million (options store_write_price, "
        "store_read_price), without storage and traffic."
    )
    return figures, note


def operator_metrics(status: JobStatus, operators: Sequence[str]) -> list[tuple[str, str, str]]:
    """Returns (operator, metric, figure) of all slots, with metrics of users' functions."""
    found = totals(slot.metrics for slot in status.slots)
    parted = sorted((*key.rpartition(".")[::2], figure) for key, figure in found.items())
    return [(operator, metric, number(figure)) for operator, metric, figure in parted if operator in operators]


# The list of jobs, filtered by words and by kind. Pure.

LONGEST_FILTER = 100  # characters


@dataclass(frozen=True)
class JobRow:
    job: str
    condition: str
    tone: str
    reason: str  # empty if the job runs well
    uptime: str
    rate: str
    lag: str
    latency: str
    checkpoint: str
    checkpoint_age: str
    parallelism: str
    restarts: str
    version: str


@dataclass(frozen=True)
class JobList:
    """`kinds`: (kind, number of jobs) of the whole list."""

    kinds: tuple[tuple[str, int], ...]
    kind: str
    words: str
    rows: tuple[JobRow, ...]


JOB_FILTERS: dict[str, Callable[[JobSummary], bool]] = {
    "all": lambda job: True,
    "in trouble": lambda job: tone(job.condition) in ("warn", "bad"),
    "running": lambda job: job.phase == "running" and job.outcome is None,
    "ended": lambda job: job.outcome is not None,
}
_ORDER = {"bad": 0, "warn": 1}


def job_list(jobs: Sequence[JobSummary], words: str = "", kind: str = "all") -> JobList:
    """Lists living jobs before ended jobs, jobs in trouble first. An unknown kind is "all"."""
    kind = kind if kind in JOB_FILTERS else "all"
    words = words[:LONGEST_FILTER]
    shown = [job for job in jobs if JOB_FILTERS[kind](job) and _has(job, words.lower().split())]
    shown.sort(key=lambda job: (job.outcome is not None, _ORDER.get(tone(job.condition), 2), job.job))
    kinds = tuple((name, sum(map(belongs, jobs))) for name, belongs in JOB_FILTERS.items())
    return JobList(kinds, kind, words, tuple(map(_row, shown)))


def _has(job: JobSummary, words: Sequence[str]) -> bool:
    text = " ".join((job.job, job.condition, job.condition_reason, job.outcome or job.phase, job.program)).lower()
    return all(word in text for word in words)


def _row(job: JobSummary) -> JobRow:
    well = tone(job.condition) == "good"
    return JobRow(
        job=job.job,
        condition=job.condition or job.phase,
        tone=tone(job.condition),
        reason="" if well else job.condition_reason,
        uptime=_uptime(job),
        rate=rate(job.rows_per_s),
        lag=lag(job.lag_ms),
        latency=duration(job.latency_ms),
        checkpoint=number(job.checkpoint) if job.checkpoint else ABSENT,
        checkpoint_age=_ago(job, job.checkpoint_ended_ms) if job.checkpoint else "",
        parallelism=str(job.parallelism) if job.parallelism else ABSENT,
        restarts=number(job.restarts) if job.parallelism else ABSENT,
        version=f"{job.program}{', replaced' if job.replaced else ''}" if job.program else ABSENT,
    )


def _uptime(job: JobSummary) -> str:
    if job.ended_ms:
        return f"ended {_ago(job, job.ended_ms)}"
    return duration(job.at_ms - job.running_since_ms) if job.running_since_ms else ABSENT


def _ago(job: JobSummary, ms: int) -> str:
    seconds = max(0, job.at_ms - ms) // 1_000
    return f"{duration(1_000 * seconds)} ago" if seconds else "just now"
