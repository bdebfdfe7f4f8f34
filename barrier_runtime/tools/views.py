"""Views of a job for `status`, `top` and `report`.

Names are plain text, never markup; characters that would move the cursor are replaced.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from barrier_runtime.coordinator.client.rest_types import JobSummary
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.page import render
from barrier_runtime.coordinator.page.charts import backlog_in_words
from barrier_runtime.coordinator.page.figures import duration, lag
from barrier_runtime.coordinator.page.job_view import events
from barrier_runtime.coordinator.status.health import (
    TROUBLED,
    described,
    ended_in_words,
    in_seconds,
    spares_in_words,
)
from barrier_runtime.coordinator.status.history import decode_history, past_status
from barrier_runtime.coordinator.status.statistics import late_rows_in_words
from barrier_runtime.coordinator.status.status import ChainStatus, CheckpointStatus, JobStatus
from barrier_runtime.coordinator.status.why.bottleneck import bottleneck
from barrier_runtime.coordinator.status.why.checkpoint import why_checkpoint
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.ids import check_job_id
from barrier_runtime.state.store.object_store import get_or_none
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.store.urls import shown
from barrier_runtime.state.texts import counted
from barrier_runtime.tools.coordinators import client_of

CHECKPOINTS = 8
_FAILURES = 3
_EVENTS = 3
_BAR = 10


def plain(text: object) -> str:
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(text))


def jobs_view(jobs: Sequence[JobSummary]) -> RenderableType:
    if not jobs:
        return Text("no jobs")
    table = _table("job", "phase", "condition")
    for job in jobs:
        _add(
            table,
            plain(job.job),
            ended_in_words(job.outcome or job.phase),
            _condition(job.condition, job.condition_reason),
        )
    return table


def job_view(status: JobStatus, checkpoints: int = CHECKPOINTS) -> RenderableType:
    """All tables with content, those that explain problems first: a small terminal cuts off the end."""
    parts: list[RenderableType | None] = [
        _head(status),
        _bottleneck(status),
        _events(status),
        _commits(status),
        _chains(status.chains),
        _sources(status),
        _latencies(status),
        _checkpoints(status, checkpoints),
        _failures(status),
        _slots(status),
    ]
    shown = [part for part in parts if part is not None]
    spaced = [each for part in shown for each in (part, Text(""))]
    return Group(*spaced[:-1])


def _head(status: JobStatus) -> RenderableType:
    line = Text(f"job {plain(status.job)}: {ended_in_words(status.outcome or status.phase)}, ")
    line.append_text(_condition(status.condition, status.condition_reason))
    facts = [
        f"generation {status.token} ({status.generations} begun)",
        f"{counted(status.records, 'row')} read",
        f"{counted(status.checkpoints.completed, 'checkpoint')} completed, {status.checkpoints.failed:,} failed",
        f"{len(status.slots) - len(status.missing_slots)} of {status.parallelism} slots",
    ]
    if status.spares.wanted:
        facts.append(spares_in_words(status.spares))
    late = late_rows_in_words(status)
    if late:
        facts.append(plain(late))
    return Group(line, Text("; ".join(facts)))


def _condition(state: str, reason: str) -> Text:
    return Text(plain(described(state, reason)), style="bold red" if state in TROUBLED else "")


def _chains(chains: Sequence[ChainStatus]) -> RenderableType | None:
    if not any(chain.busy is not None for chain in chains):
        return None
    table = _table("chain", "rows/s in", "out", "busy", "", "waits for receivers", "for servers", "busiest slot")
    for chain in chains:
        busiest = "" if chain.busiest is None else f"{_percent(chain.busiest)} (slot {chain.busiest_slot})"
        _add(
            table,
            plain(" → ".join(chain.operators)),
            _rate(chain.rows_in_per_s),
            _rate(chain.rows_out_per_s),
            _percent(chain.busy),
            "█" * round(_BAR * (chain.busy or 0.0)),
            _percent(chain.backpressured),
            _percent(chain.held),
            busiest,
        )
    return table


def _sources(status: JobStatus) -> RenderableType | None:
    with_time = {source.source: source for source in status.sources}
    backlogs = {chain.operators[0]: backlog_in_words(chain) for chain in status.chains if chain.backlog is not None}
    if not with_time and not backlogs:
        return None
    table = _table("source", "backlog", "watermark behind", "held back by", "idle")
    for name in dict.fromkeys([*with_time, *backlogs]):
        source = with_time.get(name)
        if source is None:
            _add(table, plain(name), backlogs[name], "", "", "")
            continue
        behind = "no row yet" if source.lag_ms is None else lag(max(0, source.lag_ms))
        split = f"{plain(source.split)} (slot {source.split_slot})" if source.split else ""
        _add(table, plain(name), backlogs.get(name, ""), behind, split, plain(source.idle))
    return table


def _latencies(status: JobStatus) -> RenderableType | None:
    told = {name: latency for name, latency in status.latency_last_minute.items() if latency.count}
    if not told:
        return None
    table = _table("latency of the last minute, ms", "p50", "p99", "p99.9", "max", "rows")
    for name, latency in told.items():
        sink, _, kind = name.rpartition(":")
        figures = (latency.p50, latency.p99, latency.p999, latency.max)
        _add(table, f"{plain(sink)}, {kind}", *(f"{ms:,.1f}" for ms in figures), f"{latency.count:,}")
    return table


def _checkpoints(status: JobStatus, count: int) -> RenderableType | None:
    history = status.checkpoints.history
    if not history:
        return None
    table = _table("checkpoint", "ended", "ms", "acks", "manifest", "record", "commit", "uploaded", "why")
    for record in history[-count:]:
        stored = (record.ack_duration_ms, record.persist_duration_ms, record.decide_duration_ms)
        _add(
            table,
            str(record.checkpoint),
            record.outcome,
            f"{record.duration_ms:,}",
            *("" if stage is None else f"{stage:,}" for stage in (*stored, record.commit_duration_ms)),
            _size(record.new_bytes),
            _cause(record, history),
        )
    return table


def _cause(record: CheckpointStatus, history: Iterable[CheckpointStatus]) -> str:
    reason = why_checkpoint(record, history) if record.subtasks or record.outcome != "complete" else None
    return "" if reason is None else reason.cause


def _events(status: JobStatus) -> RenderableType | None:
    newest = [each for each in events(status) if each.kind != "start"][:_EVENTS]
    if not newest:
        return None
    table = _table("event", "", "took", "why")
    for each in newest:
        ago = f"{in_seconds(max(0, status.at_ms - each.at_ms))} ago" if status.at_ms else ""
        took = "" if each.took_ms is None else duration(each.took_ms)
        _add(table, ago, plain(each.what), took, _line(each.why))
    return table


def _commits(status: JobStatus) -> RenderableType | None:
    if not status.commits.troubles:
        return None
    table = _table("sink that cannot commit", "for", "checkpoint", "attempts", "error")
    for trouble in status.commits.troubles:
        lasts = in_seconds(max(0, status.at_ms - trouble.since_ms)) if status.at_ms and trouble.since_ms else ""
        _add(table, plain(trouble.sink), lasts, str(trouble.checkpoint), str(trouble.attempts), _line(trouble.error))
    return table


def _slots(status: JobStatus) -> RenderableType | None:
    if not status.slots:
        return None
    table = _table("slot", "state", "host", "pid", "heard of", "memory", "loop lag, ms")
    for slot in status.slots:
        _add(
            table,
            str(slot.slot),
            slot.state,
            plain(slot.host),
            str(slot.pid),
            f"{in_seconds(slot.heartbeat_age_ms)} ago",
            _size(int(slot.metrics.get("rss_bytes", 0))),
            f"{slot.metrics.get('loop_lag_ms', 0.0):,.0f}",
        )
    return table


def _failures(status: JobStatus) -> RenderableType | None:
    if not status.failures:
        return None
    table = _table("failure", "generation", "slot", "operator", "error")
    for failure in status.failures[-_FAILURES:]:
        ago = f"{in_seconds(max(0, status.at_ms - failure.at_ms))} ago" if status.at_ms else ""
        _add(table, ago, str(failure.token), str(failure.slot), plain(failure.operator), _line(failure.error))
    return table


def _bottleneck(status: JobStatus) -> RenderableType | None:
    reason = bottleneck(status.chains) if status.phase == "running" else None
    return None if reason is None else Text(plain(reason.sentence))


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, column in enumerate(columns):
        table.add_column(column, overflow="fold" if at == 0 or column in ("error", "why", "condition") else "ellipsis")
    return table


def _add(table: Table, *cells: str | Text) -> None:
    """Plain text, which the table does not parse as markup."""
    table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))


def _line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return plain("" if not lines else lines[-1] if lines[0].startswith("Traceback") else lines[0])


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.0f}"


def _size(size: int) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"


def watch(
    ask: Callable[[], JobStatus],
    every_s: float,
    *,
    once: bool = False,
    console: Console | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Repeats the tables until the job ends or Ctrl-C. A later `Unavailable` is shown, not raised."""
    console = console or Console(highlight=False)
    status = ask()
    if once or not console.is_terminal:
        console.print(job_view(status))
        return
    try:
        with Live(_screen(status, "", console), console=console, screen=True, auto_refresh=False) as live:
            while status.outcome is None:
                sleep(every_s)
                trouble = ""
                try:
                    status = ask()
                except Unavailable as error:
                    trouble = str(error)
                live.update(_screen(status, trouble, console), refresh=True)
    except KeyboardInterrupt:
        return
    console.print(job_view(status))  # the job's end stays readable


def _screen(status: JobStatus, trouble: str, console: Console) -> RenderableType:
    now = f"{datetime.now():%H:%M:%S}, Ctrl-C leaves"
    line = Text(f"{now}; {plain(trouble)}", style="bold red") if trouble else Text(now)
    shown: RenderableType = line
    for checkpoints in range(CHECKPOINTS, 0, -1):
        shown = Group(line, job_view(status, checkpoints))
        if len(console.render_lines(shown, pad=False)) <= console.height:
            break
    return shown


def report(
    job: str, to: Path, coordinator: str | None, token_file: Path | None, ca: str | None, checkpoints: str | None
) -> int:
    """Writes the page of `job`, from coordinator or checkpoints; returns the size in bytes.

    Raises `InvalidJob` or `Unavailable`.
    """
    if coordinator is not None and checkpoints is not None:
        raise InvalidJob("--coordinator is for a running job, --checkpoints for an ended job: leave one of them out")
    if checkpoints is not None:
        data = _from_store(check_job_id(job), checkpoints)
    else:
        data = client_of(job, coordinator, token_file, ca).report(job)
    write(to, data)
    return len(data)


def write(to: Path, data: bytes) -> None:
    beside = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        beside.write_bytes(data)
        beside.replace(to)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise InvalidJob(f"the report cannot be written to {to}: {error.strerror}: choose another file") from error


def _from_store(job: str, url: str) -> bytes:
    store, paths = open_store(url), Paths(job)
    try:
        view = read_log(store, paths)
        known = get_or_none(store, paths.history)
    except OSError as error:
        raise Unavailable(f"the past of job {job} cannot be read from {shown(url)}: {error}: try again") from error
    history = None if known is None else decode_history(paths.history, known)
    status = past_status(view, history, None)
    if status is None:
        why = "there is no log of it" if view.head is None else "nothing says that it has ended"
        raise InvalidJob(f"job {job} in {shown(url)}: {why}: check both names, or ask its coordinator (--coordinator)")
    return render.report(render.explained(status, time.time_ns() // 1_000_000)).encode()
