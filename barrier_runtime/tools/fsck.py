"""Output of `barrier-runtime fsck`: a report as text or JSON, and progress on a terminal's stderr.

A sink's commit log is checked here: each record, each block, and proofs that the log goes on. Files of rows are not
checked: users may move or delete them.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import msgspec
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn

from barrier_runtime.connectors.files.sink import commit_blocks
from barrier_runtime.connectors.files.sink.block_writer import may_go
from barrier_runtime.connectors.files.sink.commit_log import jobs_and_sinks
from barrier_runtime.connectors.files.sink.commit_reader import READS_AT_ONCE, Reading, StoredRecords
from barrier_runtime.coordinator.maintenance.fsck import BACKUP, Damage, FsckReport, JobReport, UnreferencedObject
from barrier_runtime.coordinator.maintenance.fsck_store import (
    CheckProgress,
    NoJob,
    check_store,
    delete_orphans,
    no_progress,
    report_of,
)
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import open_existing_store
from barrier_runtime.state.texts import counted
from barrier_runtime.state.versioned import NewerVersion


class CommitLogReport(msgspec.Struct, frozen=True):
    job: str
    sink: str
    records: int
    blocks: int
    damage: tuple[Damage, ...]
    unreadable: str = ""  # a newer release wrote a record


def check_commit_logs(store: ObjectStore, job: str | None) -> list[CommitLogReport]:
    return [_checked(StoredRecords(store, *each)) for each in jobs_and_sinks(store) if job in (None, each[0])]


def _checked(stored: StoredRecords) -> CommitLogReport:
    keys = [info.key.removeprefix(stored.prefix) for info in stored.store.list(stored.prefix)]
    listed = {int(name) for key in keys if (name := key.removesuffix(".json")).isdigit()}
    blocks = sum(key.startswith("blocks/") for key in keys)
    with ThreadPoolExecutor(READS_AT_ONCE) as reading:
        must_stay: list[int] = []
        damage: list[Damage] = []
        head = 0
        unreadable = ""
        try:
            for record in Reading(stored, reading, 0).all():
                head += 1
                if not may_go(head, record):
                    must_stay.append(head)
        except NewerVersion as error:
            unreadable = str(error)
        except Corrupt as error:
            damage.append(Damage(f"{stored.prefix}, after record {head}", "a readable log", str(error), BACKUP))
        else:
            damage += _behind(stored, head, listed)
        in_blocks = head // commit_blocks.RECORDS * commit_blocks.RECORDS
        due = [each for each in must_stay if each <= in_blocks]
        damage += [each for found in reading.map(lambda at: _kept(stored, at), due) for each in found]
    return CommitLogReport(stored.job, stored.sink, head, blocks, tuple(damage), unreadable)


def _behind(stored: StoredRecords, head: int, listed: set[int]) -> Iterator[Damage]:
    """Records that were listed before the log was read, behind the end that readers see."""
    later = sorted(each for each in listed if each > head)
    if later:
        found = f"nothing, but record {later[0]} is there"
        yield Damage(stored.key(head + 1), "a commit record", found, BACKUP)


def _kept(stored: StoredRecords, position: int) -> list[Damage]:
    """Writers look for these records, although blocks have them."""
    try:
        record = stored.record(position)
    except NewerVersion:
        return []  # it is there
    except Corrupt as error:
        return [Damage(stored.key(position), "a readable commit record", str(error), BACKUP)]
    if record is None:
        return [Damage(stored.key(position), "a commit record, which shows that the log goes on", "nothing", BACKUP)]
    return []


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
        except NoJob:
            if not logs:
                raise
            checked = []
        if delete:
            checked = delete_orphans(store, checked)
    report = report_of(store, checked)
    exit_code = 2 if any(log.damage or log.unreadable for log in logs) else report.exit_code
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
        if each.unreadable:
            yield f"  not checked: {each.unreadable}"
    damaged = sum(len(job.damage) for job in report.jobs) + sum(len(log.damage) for log in logs)
    orphans = [each for job in report.jobs for each in job.unreferenced if each.state == "orphan"]
    if damaged:
        yield f"{damaged} damaged"
    if orphans:
        yield f"{_sized(orphans)} orphaned: --delete removes them"
    unreadable = sum(bool(job.unreadable) for job in report.jobs) + sum(bool(log.unreadable) for log in logs)
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
