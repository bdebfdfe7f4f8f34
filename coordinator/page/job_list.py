"""The list of jobs, filtered by words and by kind. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from barrier_runtime.coordinator.client.rest_types import JobSummary
from barrier_runtime.coordinator.page.figures import ABSENT, duration, lag, number, rate
from barrier_runtime.coordinator.page.job_view import tone

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


_KINDS: dict[str, Callable[[JobSummary], bool]] = {
    "all": lambda job: True,
    "in trouble": lambda job: tone(job.condition) in ("warn", "bad"),
    "running": lambda job: job.phase == "running" and job.outcome is None,
    "ended": lambda job: job.outcome is not None,
}
_ORDER = {"bad": 0, "warn": 1}


def job_list(jobs: Sequence[JobSummary], words: str = "", kind: str = "all") -> JobList:
    """Lists living jobs before ended jobs, jobs in trouble first. An unknown kind is "all"."""
    kind = kind if kind in _KINDS else "all"
    words = words[:LONGEST_FILTER]
    shown = [job for job in jobs if _KINDS[kind](job) and _has(job, words.lower().split())]
    shown.sort(key=lambda job: (job.outcome is not None, _ORDER.get(tone(job.condition), 2), job.job))
    kinds = tuple((name, sum(map(belongs, jobs))) for name, belongs in _KINDS.items())
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
    return f"{duration(max(0, job.at_ms - ms) // 1_000 * 1_000)} ago"
