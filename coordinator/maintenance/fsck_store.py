"""Reads a store for `fsck`, and deletes orphans on request.

Checks write nothing. Files are hashed in chunks, never held whole. The job may run meanwhile: the log is read again
after each round, and missing files of a checkpoint dropped since are no damage.
"""

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from barrier_runtime.coordinator.checkpoints.retention import Kept, Retention, RetentionVerdict, SweepPlan
from barrier_runtime.coordinator.log.lease import decode_lease
from barrier_runtime.coordinator.log.manifest import Manifest, decided_data, decode_manifest, own_files
from barrier_runtime.coordinator.log.reader import is_behind
from barrier_runtime.coordinator.maintenance.fsck import (
    Damage,
    Decided,
    FileRange,
    FsckReport,
    JobReport,
    LogWalk,
    UnreferencedObject,
    file_refs,
    inline_damage,
    inline_manifest,
    read_manifest,
)
from barrier_runtime.coordinator.maintenance.left_over import (
    KeptSavepoints,
    NamedBy,
    explained,
    recognised,
    staged_rows_left,
)
from barrier_runtime.coordinator.maintenance.stored_log import StoredLog
from barrier_runtime.coordinator.pins import pins_of
from barrier_runtime.coordinator.status.history import decode_history
from barrier_runtime.coordinator.store_calls import delete_in_order
from barrier_runtime.state.errors import BarrierRuntimeError, Corrupt, Fenced, InvalidJob
from barrier_runtime.state.ids import check_job_id
from barrier_runtime.state.store.object_store import ObjectInfo, ObjectNotFound, ObjectStore, get_or_none
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.texts import counted

_CHUNK = 4 << 20
_PARALLEL = 8
_ROUNDS = 5
_EXPLAINED = 500  # limit of manifests out of reach that are read to explain files

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class CheckProgress(Protocol):
    def __call__(self, what: str, done: int, total: int) -> None: ...


def no_progress(what: str, done: int, total: int) -> None:
    """Shows no progress."""


@dataclass
class CheckedJob:
    report: JobReport
    sweep: SweepPlan
    head: int  # of the log


class NoJob(InvalidJob):
    """No job is there."""


def check_store(
    store: ObjectStore, job: str | None, min_age_ms: int, wall_ms: int, progress: CheckProgress = no_progress
) -> list[CheckedJob]:
    """Raises `NoJob`, or `InvalidJob` if a newer release wrote the requested job."""
    listed = _listed(store, job, progress)
    jobs = {name: objects for name, objects in listed.items() if _is_job(name, objects)}
    if not jobs:
        raise NoJob(_why_none(store, job, listed))
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="fsck") as pool:
        checks = [_Check(store, pool, name, jobs[name], progress) for name in sorted(jobs)]
        if job is not None:
            return [check.run(min_age_ms, wall_ms) for check in checks]
        return [_run_if_readable(check, min_age_ms, wall_ms) for check in checks]


def _run_if_readable(check: "_Check", min_age_ms: int, wall_ms: int) -> CheckedJob:
    try:
        return check.run(min_age_ms, wall_ms)
    except InvalidJob as error:
        report = JobReport(job=check.job, records=0, generation=0, checkpoint=0, unreadable=str(error))
        return CheckedJob(report, SweepPlan(), 0)


def report_of(store: ObjectStore, checked: Iterable[CheckedJob]) -> FsckReport:
    return FsckReport(url=store.url, jobs=tuple(each.report for each in checked))


def delete_orphans(
    store: ObjectStore, checked: list[CheckedJob], sleep: Callable[[float], None] = time.sleep
) -> list[CheckedJob]:
    """Deletes as the jobs' own sweeps, unless anything is damaged or a log has grown."""
    if any(each.report.damage for each in checked):
        reason = "nothing was deleted: there is damage; repair it first, or name a job that has none with --job"
        return [_noted(each, reason) for each in checked]
    return [each if each.report.unreadable else _delete(store, each, sleep) for each in checked]


def _delete(store: ObjectStore, checked: CheckedJob, sleep: Callable[[float], None]) -> CheckedJob:
    paths = Paths(checked.report.job)
    left = set(checked.sweep.keys)

    def check() -> None:
        grown = get_or_none(store, paths.log_record(checked.head + 1)) is not None
        if grown or is_behind(store, paths, checked.head) is not None:
            raise Fenced(
                f"the log of job {paths.job} grew beyond {checked.head} records: it runs, and sweeps for itself"
            )

    note = ""
    pins = [pin for pin in pins_of(store, paths) if pin.until_ms >= time.time_ns() // 1_000_000]
    if pins:
        return _noted(
            checked, f"checkpoints pinned by {counted(len(pins), 'reader')} of job {paths.job}: nothing was deleted"
        )
    try:
        note = delete_in_order(store, paths, checked.sweep.keys, check, sleep)
    except Fenced as error:
        note = f"not all was deleted: {error}"
    if note:
        left = {key for key in left if _exists(store, key)}
    else:
        left.clear()
    unreferenced = tuple(
        msgspec.structs.replace(each, state="deleted") if each.state == "orphan" and each.key not in left else each
        for each in checked.report.unreferenced
    )
    done = CheckedJob(msgspec.structs.replace(checked.report, unreferenced=unreferenced), checked.sweep, checked.head)
    return _noted(done, note) if note else done


def _noted(checked: CheckedJob, note: str) -> CheckedJob:
    report = msgspec.structs.replace(checked.report, notes=(*checked.report.notes, note))
    return CheckedJob(report, checked.sweep, checked.head)


def _listed(store: ObjectStore, job: str | None, progress: CheckProgress) -> dict[str, list[ObjectInfo]]:
    if job is not None:
        check_job_id(job)
    by_name: dict[str, list[ObjectInfo]] = defaultdict(list)
    for number, found in enumerate(store.list("" if job is None else f"{job}/"), start=1):
        by_name[found.key.split("/", 1)[0]].append(found)
        if number % 1_000 == 0:
            progress("objects listed", number, 0)
    return by_name


def _is_job(name: str, objects: Sequence[ObjectInfo]) -> bool:
    try:
        paths = Paths(name)
    except InvalidJob:
        return False
    keys = (found.key for found in objects)
    return any(paths.log_position(key) is not None or paths.checkpoint_of(key) is not None for key in keys)


def _why_none(store: ObjectStore, job: str | None, listed: dict[str, list[ObjectInfo]]) -> str:
    if job is not None:
        return f"there is no job {job} below {store.url}: give the URL that the job has as checkpoints=, and its name"
    inside = Paths("x").log_position("x/" + next((found.key for found in listed.get("log", ())), ""))
    if inside is not None:
        return f"{store.url} is the folder of one job: give the one above it, and the job's name with --job"
    return f"there is no job below {store.url}: give the URL that the job has as checkpoints="


@dataclass
class _Check:
    store: ObjectStore
    pool: ThreadPoolExecutor
    job: str
    objects: list[ObjectInfo]
    progress: CheckProgress
    manifests: dict[int, Manifest] = field(default_factory=dict)  # by log position
    damaged: dict[int, list[Damage]] = field(default_factory=dict)
    absent: set[int] = field(default_factory=set)  # validly dropped
    hashed: set[FileRange] = field(default_factory=set)
    files: int = 0
    bytes_read: int = 0
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.paths = Paths(self.job)
        self.savepoints = KeptSavepoints(self.store, self.objects)
        self.log = StoredLog(self.store, self.paths, self._all, self.progress)

    @property
    def walk(self) -> LogWalk:
        return self.log.walk

    def run(self, min_age_ms: int, wall_ms: int) -> CheckedJob:
        self.log.read(found.key for found in self.objects)
        settled = self._verify()
        damage = [
            *self.walk.damage,
            *self.walk.lost(),
            *self._still_damaged(),
            *self._others_damaged(),
            *self.savepoints.damage(),
        ]
        self.notes += self.savepoints.notes
        plan, unreferenced = SweepPlan(), self._unknown_objects()
        if not settled:
            self.notes.append(
                f"job {self.job} runs, and drops checkpoints faster than they can be verified: check it with a larger "
                "retained=, or when it is stopped; no orphans were looked for"
            )
        elif damage:
            self.notes.append("no orphans were looked for: with damage nobody knows what is needed")
        else:
            plan, unreferenced = self._unreferenced(min_age_ms, wall_ms)
        return CheckedJob(self._report(damage, unreferenced), plan, self.walk.head)

    def _report(self, damage: list[Damage], unreferenced: list[UnreferencedObject]) -> JobReport:
        walk = self.walk
        verified = sorted(each.checkpoint for each in walk.in_reach if each.position in self.manifests)
        return JobReport(
            job=self.job,
            records=walk.head,
            generation=walk.token,
            checkpoint=0 if walk.newest is None else walk.newest.checkpoint,
            verified=tuple(verified),
            files=self.files,
            bytes=self.bytes_read,
            damage=tuple(damage),
            unreferenced=tuple(unreferenced),
            notes=tuple(self.notes),
        )

    def _verify(self) -> bool:
        """False: the job runs, and new checkpoints keep coming."""
        for _ in range(_ROUNDS):
            due = [each for each in self.walk.in_reach if each.position not in self.manifests]
            must = {each.position for each in self.walk.must_exist}
            for decided in due:
                self._verify_checkpoint(decided, decided.position in must)
            if not self.log.catch_up():
                return True
        return not any(self._is_due(each) for each in self.walk.in_reach)

    def _is_due(self, decided: Decided) -> bool:
        known = decided.position in self.manifests or decided.position in self.damaged
        return not known and decided.position not in self.absent

    def _verify_checkpoint(self, decided: Decided, must_exist: bool) -> None:
        _, data = decided_data(decided.record, partial(get_or_none, self.store))
        if data is None and not must_exist:
            self.absent.add(decided.position)
            return
        manifest = read_manifest(self.paths, decided, data)
        if isinstance(manifest, Damage):
            self.damaged[decided.position] = [manifest]
            return
        found = self._verify_files(decided.key, manifest, f"{self.job}: files of checkpoint {decided.checkpoint}")
        if found:
            self.damaged[decided.position] = found
        else:
            self.damaged.pop(decided.position, None)
            self.manifests[decided.position] = manifest

    def _verify_files(self, key: str, manifest: Manifest, what: str) -> list[Damage]:
        found: list[Damage] = []
        wanted: dict[FileRange, None] = {}
        for ref in file_refs(manifest):
            if ref.key is None:
                harm = inline_damage(key, ref)
                found += [harm] if harm is not None else []
                self.files += 1
                self.bytes_read += ref.size
            else:
                wanted[FileRange(ref.key, ref.offset, ref.size, ref.sha256)] = None
        due = [each for each in wanted if each not in self.hashed]
        for number, (each, harm) in enumerate(zip(due, self._all(self._hash, due), strict=True), start=1):
            if harm is None:
                self.hashed.add(each)
                self.files += 1
                self.bytes_read += each.size
            else:
                found.append(harm)
            self.progress(what, number, len(due))
        return found

    def _hash(self, wanted: FileRange) -> Damage | None:
        digest, read = hashlib.sha256(), 0
        while read < wanted.size:
            try:
                chunk = self.store.get(wanted.key, wanted.offset + read, min(_CHUNK, wanted.size - read))
            except ObjectNotFound:
                return wanted.missing()
            if not chunk:
                break
            digest.update(chunk)
            read += len(chunk)
        return wanted.damage(read, digest.hexdigest())

    def _still_damaged(self) -> Iterator[Damage]:
        """Leaves out checkpoints that were dropped during the check."""
        reach = {each.position for each in self.walk.in_reach}
        for position in sorted(self.damaged):
            if position in reach:
                yield from self.damaged[position]
            else:
                self.notes.append(f"the checkpoint of log position {position} was dropped while it was being verified")

    def _others_damaged(self) -> Iterator[Damage]:
        present = {found.key for found in self.objects}
        if self.paths.lease in present:
            yield from self._undecodable(self.paths.lease, lambda data: decode_lease(self.paths.lease, data))
        if self.paths.history in present:
            yield from self._undecodable(self.paths.history, lambda data: decode_history(self.paths.history, data))

    def _undecodable(self, key: str, decode: Callable[[bytes], object]) -> Iterator[Damage]:
        data = get_or_none(self.store, key)
        if data is None:
            return
        try:
            decode(data)
        except Corrupt as error:
            yield Damage(key, "readable", str(error), "delete it: it is written anew, and no decision rests on it")

    def _unrecognised(self) -> list[ObjectInfo]:
        return [
            found
            for found in self.objects
            if not recognised(self.paths, found.key) and not self.savepoints.has(found.key)
        ]

    def _unknown_objects(self) -> list[UnreferencedObject]:
        verdicts = Retention(1).classify(self.paths, self._unrecognised(), self.walk.token, 0)
        found = [each for each, verdict in verdicts if verdict is RetentionVerdict.NOT_OURS]
        explanations = (
            explained(self.paths, each, RetentionVerdict.NOT_OURS, self.walk, False, None) for each in found
        )
        return [each for each in explanations if each is not None]

    def _unreferenced(self, min_age_ms: int, wall_ms: int) -> tuple[SweepPlan, list[UnreferencedObject]]:
        walk, paths = self.walk, self.paths
        kept = [
            Kept(
                each.checkpoint,
                each.key,
                own_files(self.manifests[each.position], paths.data_prefix),
                bool(each.record.inline),
            )
            for each in walk.in_reach
            if each.position in self.manifests
        ]
        retention = Retention(walk.retained, kept)
        objects = self._unrecognised()
        verdicts = list(retention.classify(paths, objects, walk.token, wall_ms, None, min_age_ms))
        loose = [found for found, verdict in verdicts if verdict is not RetentionVerdict.NEEDED]
        owners = {found.key: paths.checkpoint_of(found.key) for found in loose}
        decided = walk.decided(owner for owner in owners.values() if owner is not None)
        named = self._named_by({key: owner for key, owner in owners.items() if owner is not None}, decided)
        explanations = (
            explained(paths, found, verdict, walk, owners.get(found.key) in decided, named.get(found.key))
            for found, verdict in verdicts
        )
        rows = (staged_rows_left(paths, found, walk) for found in self.objects)
        unreferenced = sorted((each for each in (*explanations, *rows) if each is not None), key=lambda each: each.key)
        return retention.sweep(paths, objects, walk.token, wall_ms, None, min_age_ms), unreferenced

    def _named_by(
        self, manifests: dict[str, tuple[int, int]], decided: frozenset[tuple[int, int]]
    ) -> dict[str, NamedBy]:
        named: dict[str, NamedBy] = {}
        newest = sorted(manifests, key=lambda key: manifests[key])[-_EXPLAINED:]
        for key, data in zip(newest, self._all(lambda key: get_or_none(self.store, key), newest), strict=True):
            if data is None:  # deleted since the listing
                continue
            try:
                manifest = decode_manifest(key, data)
            except Corrupt:
                self.notes.append(f"manifest {key} is out of reach and unreadable: whose files it named is not known")
                continue
            checkpoint, token = manifests[key]
            owner = NamedBy(checkpoint, token, manifests[key] in decided)
            for file in own_files(manifest, self.paths.data_prefix):
                named.setdefault(file, owner)
        for dropped in self.walk.dropped(_EXPLAINED):
            inside = inline_manifest(dropped)
            owner = NamedBy(dropped.checkpoint, dropped.record.token, True)
            for file in () if inside is None else own_files(inside, self.paths.data_prefix):
                named.setdefault(file, owner)
        return named

    def _all(self, work: Callable[[_In], _Out], items: Iterable[_In]) -> Iterator[_Out]:
        return self.pool.map(work, items)


def _exists(store: ObjectStore, key: str) -> bool:
    try:
        store.get(key, 0, 1)
    except ObjectNotFound:
        return False
    except BarrierRuntimeError:  # unknown: must not be reported as deleted
        return True
    return True
