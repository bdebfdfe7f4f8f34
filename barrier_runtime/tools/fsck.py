"""Output of `barrier-runtime fsck`: a report as text or JSON, and progress on a terminal's stderr."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn

from barrier_runtime.connectors.files.sink.commit_check import CommitLogReport, check_commit_logs
from barrier_runtime.coordinator.maintenance.fsck import Damage, FsckReport, JobReport, UnreferencedObject
from barrier_runtime.coordinator.maintenance.fsck_store import (
    CheckProgress,
    check_store,
    delete_orphans,
    no_progress,
    report_of,
)
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.open import open_existing_store
from barrier_runtime.state.texts import counted


def fsck(url: str, job: str | None, *, delete: bool, min_age_s: float, form: str) -> int:
    """Returns the exit code: 0 clean, 1 orphans only, 2 damage or an unreadable job."""
    if form not in ("text", "json"):
        raise InvalidJob(f"--format {form!r} is not known: use text or json")
    if not 0 <= min_age_s <= 10 * 365 * 24 * 3600:
        raise InvalidJob(f"--min-age {min_age_s}: give seconds, 0 or more")
    store = open_existing_store(url)
    logs = check_commit_logs(store, job)
    with _progress() as progress:
        try:
            checked = check_store(store, job, round(min_age_s * 1000), time.time_ns() // 1_000_000, progress)
        except InvalidJob:
            if not logs:
                raise
            checked = []
        if delete:
            checked = delete_orphans(store, checked)
    report = report_of(store, checked)
    exit_code = 2 if any(log.damage for log in logs) else report.exit_code
    if form == "json":
        document = {
            **msgspec.to_builtins(report),
            "commit_logs": msgspec.to_builtins(logs),
            "exit_code": exit_code,
        }
        print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
    else:
        print("\n".join(_lines(report, logs)))
    return exit_code


def _lines(report: FsckReport, logs: Sequence[CommitLogReport]) -> Iterator[str]:
    yield report.url
    for job in report.jobs:
        yield from _job_lines(job)
    for each in logs:
        size = f"{counted(each.records, 'record')}, {counted(each.blocks, 'block')}"
        yield f"commit log of job {each.job}, sink {each.sink}: {size}"
        yield from _damage_lines(each.damage)
    damaged = sum(len(job.damage) for job in report.jobs) + sum(len(log.damage) for log in logs)
    orphans = [each for job in report.jobs for each in job.unreferenced if each.state == "orphan"]
    if damaged:
        yield f"{damaged} damaged"
    if orphans:
        yield f"{_sized(orphans)} orphaned: --delete removes them"
    unreadable = sum(1 for job in report.jobs if job.unreadable)
    if unreadable:
        yield f"{unreadable} not checked"
    if not damaged and not orphans and not unreadable:
        yield "clean"


def _job_lines(job: JobReport) -> Iterator[str]:
    if job.unreadable:
        yield f"job {job.job}: not checked: {job.unreadable}"
        return
    newest = f"newest checkpoint {job.checkpoint}" if job.checkpoint else "no checkpoint"
    yield f"job {job.job}: {counted(job.records, 'log record')}, generation {job.generation}, {newest}"
    ids = ", ".join(map(str, job.verified)) or "none"
    yield f"  verified checkpoints: {ids} ({counted(job.files, 'file')}, {decimal(job.bytes)})"
    yield from _damage_lines(job.damage)
    for left in job.unreferenced:
        yield f"  {left.state:8} {left.key} ({decimal(left.size)}): {left.reason}"
    for note in job.notes:
        yield f"  note     {note}"


def _damage_lines(damage: Sequence[Damage]) -> Iterator[str]:
    for harm in damage:
        yield f"  damage   {harm.object}"
        yield f"           expected: {harm.expected}"
        yield f"           found:    {harm.found}"
        yield f"           remedy:   {harm.remedy}"


def _sized(objects: list[UnreferencedObject]) -> str:
    return f"{counted(len(objects), 'object')} ({decimal(sum(each.size for each in objects))})"


@contextmanager
def _progress() -> Iterator[CheckProgress]:
    if not sys.stderr.isatty():
        yield no_progress
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def told(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total or None)
            bars.update(tasks[what], completed=done)

        yield told
