"""Import of a savepoint into a job's own log and folder, before the job's first generation. Blocking.

The import is a run without slots, and writes three records:

    FENCE ─► files are copied to the job's folder, the manifest is written ─► COMPLETE ─► FINISH

| the import dies, or stalls | left behind                              | the next start                        |
|----------------------------|------------------------------------------|---------------------------------------|
| before FENCE               | nothing                                  | begins anew                           |
| before COMPLETE            | a run that decided nothing, and files    | begins anew; a stalled COMPLETE fails |
| before FINISH              | the checkpoint                           | continues from the checkpoint         |
| before the deletion        | the checkpoint, the savepoint, the claim | continues, and deletes                |
| after the deletion         | the checkpoint, the claim                | continues                             |
"""

import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec

from barrier_runtime.coordinator.log.decision_log import Appended, DecisionLog, Foreign, LogView, complete_of
from barrier_runtime.coordinator.log.manifest import Manifest, encode_manifest, packed
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.log.record_builder import Identity, RecordBuilder
from barrier_runtime.coordinator.log.records import Record
from barrier_runtime.coordinator.log.restore_choice import (
    GoOn,
    Import,
    Lineage,
    RestoreFrom,
    check_fits,
    grew_from,
    grew_from_any,
    import_leader,
    import_run_id,
    savepoint_choice,
)
from barrier_runtime.coordinator.log.savepoint import Claim, Savepoint, files_by_object, imported, object_sizes
from barrier_runtime.coordinator.savepoint_files import (
    check_whole,
    claim,
    claimed_by,
    copy_objects,
    delete_claimed,
    find_savepoint,
    named,
    no_savepoint,
)
from barrier_runtime.coordinator.store_calls import append_record
from barrier_runtime.coordinator.wire.messages import JobSpec, ManifestRef
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import open_existing_store
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.store.urls import shown
from barrier_runtime.state.versioned import sha256_hex

RestoreMode = Literal["no_claim", "claim"]
_LOST_RACES = 20


def begin_with_savepoint(
    store: ObjectStore,
    url: str,
    spec: JobSpec,
    mode: RestoreMode,
    *,
    fits: Callable[[ObjectStore, Manifest], None] = lambda store, taken: None,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Imports if needed; then the job starts by restoring the newest checkpoint. Returns text.

    `fits`: raises if the program does not fit the state. Raises `InvalidJob` if the job does not fit (before any
    write), or if rows of the job would be written again.
    """
    wanted = wanted_savepoint(store, url, spec)
    savepoint = wanted.savepoint
    if savepoint is None or (isinstance(wanted.choice, GoOn) and mode == "claim" and wanted.claimed_by_another):
        assert isinstance(wanted.choice, GoOn)
        return wanted.choice.why
    if isinstance(wanted.choice, Import):
        check_fits(spec, savepoint.taken, wanted.what)
        check_whole(url, savepoint)
        fits(open_existing_store(url), savepoint.taken)
    if mode == "claim":
        claim(url, Claim(job=spec.job, store=store.url, savepoint=savepoint.id))
    bring = partial(copy_objects, open_existing_store(url), store, files=files_by_object(savepoint.taken))
    importing = _Importing(store, spec, savepoint, bring, now_ms, sleep)
    done = importing.done(_Found(wanted.view, wanted.choice))
    if mode == "claim":
        delete_claimed(url, savepoint)
    return f"{wanted.what}: {done}"


@dataclass(frozen=True)
class WantedSavepoint:
    """`savepoint`: None if the claimed savepoint is deleted and the job continues."""

    savepoint: Savepoint | None
    what: str
    view: LogView
    choice: Import | GoOn
    claimed_by_another: bool = False


def wanted_savepoint(store: ObjectStore, url: str, spec: JobSpec) -> WantedSavepoint:
    """Reads the savepoint and the job's log. Writes nothing.

    Raises `InvalidJob` if there is no savepoint, or if rows of the job would be written again.
    """
    try:
        savepoint, owner = find_savepoint(url), claimed_by(url)
    except InvalidJob as error:  # no such folder
        raise _with_own_checkpoints(error, store, spec) from error
    if savepoint is not None:
        what = named(url, savepoint)
        view = _log_of(store, spec, savepoint.id)
        another = owner is not None and (owner.job != spec.job or owner.store not in ("", store.url))
        return WantedSavepoint(savepoint, what, view, savepoint_choice(spec, savepoint, view), another)
    view = _log_of(store, spec, "" if owner is None else owner.savepoint)
    if owner is not None and view.completes and _has_begun(spec, owner, view):
        reached = complete_of(view.completes[0]).checkpoint
        own = owner.job == spec.job and owner.store in ("", store.url)
        did = "claimed the savepoint" if own else "began with the savepoint"
        then = "before" if own else f"which {owner} has claimed since{owner.place}"
        why = f"job {spec.job} {did} {shown(url)} {then}, and goes on from checkpoint {reached}, which it has reached"
        return WantedSavepoint(None, why, view, GoOn(why))
    raise _with_own_checkpoints(no_savepoint(url), store, spec)


def _has_begun(spec: JobSpec, owner: Claim, view: LogView) -> bool:
    if owner.savepoint:
        return grew_from(view, owner.savepoint)
    return owner.job == spec.job and grew_from_any(view)


def _log_of(store: ObjectStore, spec: JobSpec, savepoint_id: str) -> LogView:
    return read_log(store, Paths(spec.job), run_id=import_run_id(savepoint_id))


def import_savepoint(
    store: ObjectStore,
    spec: JobSpec,
    savepoint: Savepoint,
    bring: Callable[[Mapping[str, str]], None],
    *,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """The caller has read and checked the savepoint.

    `bring`: copies the savepoint's files to `store`; gets the new key of each file.
    """
    importing = _Importing(store, spec, savepoint, bring, now_ms, sleep)
    return importing.done(importing.look())


def _with_own_checkpoints(error: InvalidJob, store: ObjectStore, spec: JobSpec) -> InvalidJob:
    """Adds a hint: the import of an earlier command may have deleted the savepoint."""
    view = _log_of(store, spec, "")
    if not view.completes:
        return error
    return InvalidJob(
        f"{error}. Job {spec.job} has completed checkpoint {complete_of(view.completes[0]).checkpoint} of its own: to "
        "go on from that, start it without restore= (or --restore)"
    )


@dataclass(frozen=True)
class _Found:
    view: LogView
    choice: Import | GoOn


class _Importing:
    def __init__(
        self,
        store: ObjectStore,
        spec: JobSpec,
        savepoint: Savepoint,
        bring: Callable[[Mapping[str, str]], None],
        now_ms: Callable[[], int],
        sleep: Callable[[float], None],
    ) -> None:
        self._store = store
        self._bring = bring
        self._job = spec
        self._savepoint = savepoint
        self._now_ms = now_ms
        self._sleep = sleep
        self._paths = Paths(spec.job)
        self._spec = msgspec.structs.replace(spec, run_id=import_run_id(savepoint.id))

    def look(self) -> _Found:
        view = _log_of(self._store, self._job, self._savepoint.id)
        return _Found(view, savepoint_choice(self._job, self._savepoint, view))

    def done(self, found: _Found) -> str:
        for _ in range(_LOST_RACES):
            if isinstance(found.choice, GoOn):
                return found.choice.why
            if self._imported(found.view, found.choice):
                return f"it is checkpoint {found.choice.checkpoint} of job {self._spec.job} now"
            found = self.look()
        raise InvalidJob(
            f"job {self._spec.job}: others took the log's head {_LOST_RACES} times in a row: stop the other runs of "
            "this job, then start again"
        )

    def _imported(self, view: LogView, choice: Import) -> bool:
        log = DecisionLog(self._spec.job, view)
        leader = import_leader(self._savepoint.id, uuid.uuid4().hex)
        records = RecordBuilder(self._spec, Identity(leader, socket.gethostname()))
        reason = f"begins with the savepoint of checkpoint {self._savepoint.taken.checkpoint}"
        start = RestoreFrom(None, Lineage.NEW)
        fence = self._append(log, records.fence(log, start, reason, choice.checkpoint - 1, self._now_ms()))
        if isinstance(fence, Foreign):
            return False
        lineage, token = fence.entry.record.put_id, fence.permit.token
        manifest, inline = self._copied(choice, token, lineage)
        complete = records.complete(log, choice.checkpoint, lineage, manifest, self._now_ms(), inline)
        if isinstance(self._append(log, complete), Foreign):
            return False
        self._append(log, records.finish(log, "finished", self._now_ms()))  # may be lost: the job has begun
        return True

    def _copied(self, choice: Import, token: int, lineage: str) -> tuple[ManifestRef, bytes]:
        keys = sorted(object_sizes(self._savepoint.taken))
        objects = {key: self._paths.data_file(token, "savepoint", str(n)) for n, key in enumerate(keys, 1)}
        self._bring(objects)
        manifest = imported(self._savepoint, objects, self._spec.job, choice.checkpoint, token, lineage, self._now_ms())
        data, key = encode_manifest(manifest), self._paths.manifest(choice.checkpoint, token)
        inline = packed(data)
        if not inline:
            self._store.put(key, data)
        return ManifestRef(key, sha256_hex(data)), inline

    def _append(self, log: DecisionLog, record: Record) -> Appended | Foreign:
        return append_record(self._store, self._spec.job, log, record, self._sleep)
