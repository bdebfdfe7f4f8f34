"""HTML of every page and of the report, from plain facts. Pure, except for this package's files.

Templates escape everything, and write out invisible characters, so that no name can imitate another.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from barrier_runtime.coordinator.client.rest_types import JobSummary, SlotLines
from barrier_runtime.coordinator.page import charts, checkpoint_chart, figures, job_view
from barrier_runtime.coordinator.page.charts import hour_charts
from barrier_runtime.coordinator.page.checkpoint_chart import timeline
from barrier_runtime.coordinator.page.job_view import job_list
from barrier_runtime.coordinator.status.figure_table import TILES
from barrier_runtime.coordinator.status.history import all_subtasks
from barrier_runtime.coordinator.status.shares import SubtaskWork
from barrier_runtime.coordinator.status.statistics import shortened
from barrier_runtime.coordinator.status.status import ChainStatus, CheckpointStatus, JobStatus, SlotStatus
from barrier_runtime.coordinator.status.transactions import of_sinks
from barrier_runtime.coordinator.status.trend import TrendPoint
from barrier_runtime.coordinator.status.why.checkpoint import SLOW_MS, why_checkpoint
from barrier_runtime.coordinator.status.why.job import why_job
from barrier_runtime.coordinator.status.why.reason import Reason
from barrier_runtime.coordinator.wire.messages import Subject
from barrier_runtime.state.texts import counted, masked_text

HERE = Path(__file__).parent
_CODE = re.compile("`([^`\n]+)`")
_ROWS = 50  # on a page; a report has all
_FAILURES = 3  # newest
SUBTASKS_LISTED = 200  # of a checkpoint
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")


@dataclass(frozen=True)
class CommandLine:
    coordinator: str = "http://127.0.0.1:PORT"
    token_file: str = "FILE"

    def line(self, command: str, *more: str) -> str:
        return " ".join(
            ("barrier-runtime", command, *more, f"--coordinator {self.coordinator} --token-file {self.token_file}")
        )


@dataclass(frozen=True)
class JobFacts:
    """`reasons`: explanations of checkpoints, by number. `of_job`: problems of the whole job, the gravest first."""

    status: JobStatus
    now_ms: int
    reasons: Mapping[int, Reason]
    of_job: tuple[Reason, ...] = ()
    command: CommandLine = CommandLine()
    read_only: str = ""  # why no change is possible here
    leader: str = ""  # of another daemon, if that leads the job
    trend: tuple[TrendPoint, ...] = ()  # of the last hour


def explained(
    status: JobStatus,
    now_ms: int,
    command: CommandLine = CommandLine(),
    read_only: str = "",
    leader: str = "",
    trend: tuple[TrendPoint, ...] = (),
) -> JobFacts:
    history = status.checkpoints.history
    # Each explanation reads the fifty checkpoints before.
    notable = [each for each in history if each.outcome != "complete" or each.duration_ms >= SLOW_MS]
    found = {each.checkpoint: why_checkpoint(each, history, status.chains) for each in notable}
    reasons = {number: reason for number, reason in found.items() if reason is not None}
    return JobFacts(status, now_ms, reasons, why_job(status, now_ms), command, read_only, leader, trend)


def inert(html: str) -> str:
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", html)


def coded(sentence: str) -> Markup:
    """Escapes; text between backticks becomes code."""
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(_CODE.split(sentence))
    )


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    for name in ("duration", "lag", "size", "number", "rate", "share", "time_of_day", "day_and_time", "machine_time"):
        made.filters[name] = getattr(figures, name)
    made.filters["coded"] = coded
    made.filters["counted"] = counted
    made.filters["within"] = shortened
    made.filters["tone"] = job_view.tone
    made.globals["phases"] = checkpoint_chart.PHASES
    made.globals["style"] = _address("page.css")
    made.globals["script"] = _address("page.js")
    return made


@cache
def static_file(name: str) -> bytes:
    if name not in ("page.css", "page.js", "icon.svg"):
        raise KeyError(name)
    return (HERE / "static" / name).read_bytes()


def _address(name: str) -> str:
    """Adds a digest of the content, for caching forever."""
    return f"/static/{name}?v={sha256(static_file(name)).hexdigest()[:12]}"


def _page(template: str, **facts: Any) -> str:
    return inert(_environment().get_template(template).render(report=False, **facts))


def load() -> None:
    """Compiles all templates early, because that takes a while."""
    for name in _environment().list_templates():
        _environment().get_template(name)


def login_page(trouble: str = "", wait_s: int = 0, line: str = "") -> str:
    """`line`: command that prints another link."""
    return _page("login.html", trouble=trouble, wait_s=wait_s, line=line)


def opened_page(target: str) -> str:
    return _page("opened.html", target=target)


def message_page(title: str, text: str, link: str = "") -> str:
    return _page("message.html", title=title, text=text, link=link if _is_web(link) else "")


def _is_web(link: str) -> bool:
    """Another daemon's link, from the store, must be no script."""
    return link.startswith(("http://", "https://"))


def jobs_page(jobs: Sequence[JobSummary], storage: str, words: str = "", kind: str = "all") -> str:
    return _page("jobs.html", jobs=jobs, storage=storage, list=job_list(jobs, words, kind))


def job_page(facts: JobFacts) -> str:
    return _page("job.html", **_of_job(facts, f"/jobs/{facts.status.job}/checkpoints/"))


def checkpoints_page(facts: JobFacts) -> str:
    return _page("checkpoints.html", status=facts.status, reasons=facts.reasons)


def step_page(facts: JobFacts, chain: ChainStatus, work: Sequence[SubtaskWork]) -> str:
    """Page of a chain, with subtasks from the highest rate to the lowest."""
    work = sorted(work, key=lambda each: -1.0 if each.rows_in_per_s is None else each.rows_in_per_s, reverse=True)
    last = facts.status.checkpoints.last_completed
    state = {} if last is None else last.state_bytes
    most = max((each.rows_in_per_s or 0.0 for each in work), default=0.0)
    return _page(
        "step.html",
        status=facts.status,
        asks=_asks(facts),
        chain=chain,
        work=[(each, 100 * (each.rows_in_per_s or 0.0) / most if most else 0.0) for each in work[:SUBTASKS_LISTED]],
        more=max(0, len(work) - SUBTASKS_LISTED),
        state={name: state[name] for name in chain.operators if name in state},
        dropped=[each for each in job_view.dropped(facts.status) if each[0] in chain.operators],
        metrics=job_view.operator_metrics(facts.status, chain.operators),
    )


def slots_page(facts: JobFacts) -> str:
    """Page of slots; links to logs and stacks only for a job that is led here."""
    return _page("slots.html", status=facts.status, asks=_asks(facts))


def slot_page(facts: JobFacts, number: int, slot: SlotStatus | None, subject: Subject, lines: Sequence[str]) -> str:
    """`lines`: log records, the oldest first, or stacks."""
    return _page("slot.html", status=facts.status, number=number, slot=slot, subject=subject, lines=lines)


def rows_page(facts: JobFacts, step: str, rows: SlotLines) -> str:
    return _page("rows.html", status=facts.status, step=step, rows=rows)


def _asks(facts: JobFacts) -> bool:
    return not (facts.read_only or facts.status.outcome)


def failures_page(facts: JobFacts) -> str:
    return _page(
        "failures.html", status=facts.status, reasons=facts.reasons, failed=job_view.failed_checkpoints(facts.status)
    )


def latency_page(facts: JobFacts) -> str:
    return _page("latency.html", status=facts.status, charts=_latency_charts(facts.status))


def checkpoint_page(facts: JobFacts, checkpoint: int, first: int = 0) -> str | None:
    """Returns None for a checkpoint outside the history. `first`: first row of subtasks."""
    history = facts.status.checkpoints.history
    index = next((at for at, each in enumerate(history) if each.checkpoint == checkpoint), None)
    if index is None:
        return None
    subtasks = all_subtasks(history[index])
    first = first if first < len(subtasks) else 0
    return _page(
        "checkpoint.html",
        **_of_checkpoint(facts, history[index]),
        known=len(subtasks),
        first=first,
        listed=subtasks[first : first + SUBTASKS_LISTED],
        most=SUBTASKS_LISTED,
        status=facts.status,
        before=history[index - 1].checkpoint if index else None,
        after=history[index + 1].checkpoint if index + 1 < len(history) else None,
        command=facts.command.line("why", facts.status.job, str(checkpoint)),
    )


def report(facts: JobFacts) -> str:
    """Makes a file for a bug report: no script, nothing fetched, secrets masked.

    Includes subtasks of the last ten checkpoints that failed, or were slow for a known reason.
    """
    facts = JobFacts(
        masked(facts.status),
        facts.now_ms,
        {number: masked_reason(reason) for number, reason in facts.reasons.items()},
        tuple(map(masked_reason, facts.of_job)),
        facts.command,
        "this is a report",
        trend=facts.trend,
    )
    history = facts.status.checkpoints.history
    notable = [
        each for each in history if each.outcome not in ("complete", "subsumed") or each.checkpoint in facts.reasons
    ]
    return inert(
        _environment()
        .get_template("report.html")
        .render(
            **_of_job(facts, "#checkpoint-"),
            report=True,
            css=Markup(static_file("page.css").decode()),
            notable=[_of_checkpoint(facts, each) for each in notable[-10:]],
        )
    )


def _of_job(facts: JobFacts, link: str) -> dict[str, Any]:
    status, command = facts.status, facts.command
    history = status.checkpoints.history
    in_report = link.startswith("#")
    events = job_view.events(status)
    store_use, store_note = job_view.store_use(status)
    sinks, rows = of_sinks(status, facts.now_ms), None if in_report else _ROWS
    return {
        "status": status,
        "now_ms": facts.now_ms,
        "read_only": facts.read_only,
        "elsewhere": f"{facts.leader}/jobs/{status.job}" if _is_web(facts.leader) else "",
        "tiles": [tile for _, tile in TILES],
        "live": job_view.live(status, facts.now_ms),
        "hour": hour_charts(status, facts.trend, facts.now_ms),
        "graph": charts.graph(
            status.chains,
            job_view.lags(status),
            job_view.notes(status),
            "" if in_report or facts.read_only else f"/jobs/{status.job}/steps/",
        ),
        "dropped": job_view.dropped(status),
        "timeline": timeline(status, events, facts.now_ms),
        "strip": checkpoint_chart.strip(history, "" if in_report else link, events),
        "events": events,
        "reasons": facts.reasons,
        "of_job": facts.of_job,
        "latencies": job_view.latency_rows(status),
        "latency_charts": _latency_charts(status) if in_report else [],
        "sinks": job_view.noteworthy(sinks, rows, lambda each: (not each.error, -each.pending)),
        "more_sinks": 0 if rows is None else max(0, len(sinks) - rows),
        "slots": job_view.noteworthy(
            status.slots, rows, lambda each: (each.state == "running", -each.heartbeat_age_ms)
        ),
        "failures": status.failures[::-1][: None if in_report else _FAILURES],
        "store_use": store_use,
        "store_note": store_note,
        "failed_checkpoints": job_view.failed_checkpoints(status)[: 20 if in_report else 8],
        "lines": {
            "status": command.line("status", status.job),
            "why": command.line("why", status.job),
            "checkpoint": command.line("checkpoint", status.job),
            "savepoint": command.line("savepoint", status.job, "--to", "URL"),
            "rescale": command.line("rescale", status.job, "--parallelism", "SLOTS"),
            "stop": command.line("stop", status.job),
            "stop_now": command.line("stop", status.job, "--now"),
        },
    }


def _latency_charts(status: JobStatus) -> list[tuple[str, Markup, Markup]]:
    return [
        (name, charts.latencies(status.latency_hour.get(name, ()), name), charts.distribution(each, name))
        for name, each in sorted(status.latency.items())
    ]


def _of_checkpoint(facts: JobFacts, checkpoint: CheckpointStatus) -> dict[str, Any]:
    operators = job_view.operators(facts.status)
    return {
        "checkpoint": checkpoint,
        "told": checkpoint_chart.tooltip(checkpoint),
        "parts_of": checkpoint_chart.phases_of(checkpoint),
        "phase_names": checkpoint_chart.NAMES | {"failed": "until it failed"},
        "subtasks": checkpoint_chart.subtasks(checkpoint, operators),
        "operators": operators,
        "reason": facts.reasons.get(checkpoint.checkpoint),
    }


_STATUS = msgspec.msgpack.Decoder(JobStatus)
_ANY = msgspec.msgpack.Decoder()


def masked(status: JobStatus) -> JobStatus:
    """Masks possible secrets in all texts, operators' names included."""
    plain = _ANY.decode(msgspec.msgpack.encode(status))  # not as JSON: encoded bytes may look like a password
    return _STATUS.decode(msgspec.msgpack.encode(_without_secrets(plain)))


def masked_reason(reason: Reason) -> Reason:
    evidence = tuple(map(masked_text, reason.evidence))
    return Reason(reason.cause, masked_text(reason.sentence), evidence, masked_text(reason.remedy))


def _without_secrets(value: Any) -> Any:
    if isinstance(value, str):
        return masked_text(value)
    if isinstance(value, list):
        return [_without_secrets(each) for each in value]
    if isinstance(value, dict):
        return {masked_text(key): _without_secrets(each) for key, each in value.items()}
    return value
