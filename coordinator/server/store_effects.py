"""Store effects of a job: each runs on a thread, and is answered with an event.

Reads and writes of manifests are retried with back-off until the store answers. A put into the log happens exactly once
per effect: the protocol interprets an unknown outcome. A deletion checks the permit again before each request.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias, TypeVar

from barrier_runtime.coordinator.checkpoints.retention import discarded
from barrier_runtime.coordinator.job.effects import (
    Append,
    Compact,
    CopySavepoint,
    Delete,
    DeleteAll,
    ListForSweep,
    ReadLog,
    ReadManifest,
    ReadRecord,
    WriteManifest,
)
from barrier_runtime.coordinator.job.events import (
    AppendResult,
    Deleted,
    DeletedAll,
    Event,
    Listed,
    LogRead,
    ManifestFailed,
    ManifestRead,
    ManifestWritten,
    RecordRead,
    SavepointCopied,
    SavepointNotCopied,
    StoreAnswered,
    StoreRefused,
    StoreRetried,
)
from barrier_runtime.coordinator.log.decision_log import DecisionLog, LogEntry, LogView, Permit
from barrier_runtime.coordinator.log.manifest import decided_data, inline_data
from barrier_runtime.coordinator.log.reader import LogReader, is_behind, read_log
from barrier_runtime.coordinator.log.record_builder import Identity, RecordBuilder
from barrier_runtime.coordinator.log.records import NO_RECORD, Fence, Finish, Lead, base_of, decode_record
from barrier_runtime.coordinator.pins import PinnedDeletions
from barrier_runtime.coordinator.savepoint_files import write_savepoint
from barrier_runtime.coordinator.store_calls import backoff_s, check_permit, compact_log, delete_in_order
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.state.errors import BarrierRuntimeError, Corrupt, Unavailable
from barrier_runtime.state.snapshots.transfer import in_parallel
from barrier_runtime.state.store.object_store import ObjectStore, PutOutcome, get_or_none, side_by_side
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.store.urls import shown
from barrier_runtime.state.store.use import counts_of

log = logging.getLogger("coordinator.job")

StoreEffect: TypeAlias = (
    ReadLog
    | Append
    | ReadRecord
    | ReadManifest
    | WriteManifest
    | ListForSweep
    | Delete
    | Compact
    | DeleteAll
    | CopySavepoint
)
_STORE_THREADS = 4
_READS_AT_ONCE = 8  # manifests
_COPY_ATTEMPTS = 5
_SWEEP = "list for the sweep"
_LOG_EVERY_MS = 10_000

Result = TypeVar("Result")


class StoreThreads:
    def __init__(self, job: str) -> None:
        self._pool = ThreadPoolExecutor(_STORE_THREADS, thread_name_prefix=f"store-{job}")
        self._copies = ThreadPoolExecutor(1, thread_name_prefix=f"savepoints-{job}")
        self._compactions = ThreadPoolExecutor(1, thread_name_prefix=f"compaction-{job}")
        self._pools = (self._pool, self._copies, self._compactions)
        self.closed = False

    async def run(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    async def copy(self, call: Callable[[], Result]) -> Result:
        """As `compact`, one at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._copies, call)

    async def compact(self, call: Callable[[], Result]) -> Result:
        """Runs a call that may take minutes, and returns soon once `closed` is set."""
        return await asyncio.get_running_loop().run_in_executor(self._compactions, call)

    def close(self) -> None:
        self.closed = True
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)

    async def quiet(self) -> None:
        """Waits until no call is in progress; after `close`."""
        for pool in self._pools:
            await asyncio.to_thread(pool.shutdown, wait=True)


class StoreEffects:
    """For the loop's thread."""

    def __init__(
        self,
        job: str,
        store: ObjectStore,
        threads: StoreThreads,
        read_history: Callable[[], Awaitable[tuple[bytes | None, str]]],
        tell: Callable[[StoreRetried | StoreAnswered], None],
        clock: Callable[[], int],
        sleep: Callable[[float], None],
    ) -> None:
        """`read_history`: for the answer to `ReadLog`. `clock` in ms; `sleep` is for the store's threads."""
        self._job = job
        self._store = store
        self._paths = Paths(job)
        self._held_back = PinnedDeletions(store, self._paths, clock)
        self._log_reader = LogReader(store, self._paths)
        self._threads = threads
        self._read_history = read_history
        self._tell = tell
        self._clock = clock
        self._sleep = sleep
        self._retried_calls: set[str] = set()
        self._logged_ms = 0
        self._appended = NO_RECORD  # position of this process's newest record
        self._answered_at = NO_RECORD  # highest position where a put of this process was answered
        self._below_base: set[int] = set()  # records below the log's base that stay
        self._compacting = False
        self._undecided: set[str] = set()  # keys of log records whose put has no or an unknown outcome

    async def carry_out(self, effect: StoreEffect) -> Event:
        """Returns the event that answers `effect`, also if the store refuses. Raises only for a bug."""
        try:
            event = await self._answer(effect)
        except (BarrierRuntimeError, OSError) as error:
            if isinstance(effect, CopySavepoint):
                event = SavepointNotCopied(*_taken_of(effect), f"{shown(effect.url)}: {error}")
            elif isinstance(effect, WriteManifest):
                event = ManifestFailed(effect.key, str(error))
            elif isinstance(effect, Delete | Compact):
                event = Deleted(str(error))
            elif isinstance(effect, DeleteAll):
                event = DeletedAll(str(error))
            else:
                event = StoreRefused(f"{self._store.url}: {error}")
        if isinstance(event, Deleted) and event.error:
            log.warning("job %s: not all that nobody needs could be deleted: %s", self._job, event.error)
        return event

    async def _answer(self, effect: StoreEffect) -> Event:
        if isinstance(effect, Append):
            return await self._append(effect)
        if isinstance(effect, ReadLog):
            view, history = await asyncio.gather(
                self._retried(f"read the log {self._paths.log_prefix}", lambda: self._read_log(effect)),
                self._read_history(),
            )
            return LogRead(view, *history)
        if isinstance(effect, ReadRecord):
            key = self._paths.log_record(effect.position)
            data = await self._retried(f"read {key}", lambda: get_or_none(self._store, key))
            return RecordRead(effect.position, key, data)
        if isinstance(effect, ReadManifest):
            data = inline_data(effect.record)
            if data is None:
                data = await self._retried(f"read {effect.key}", lambda: get_or_none(self._store, effect.key))
            return ManifestRead(effect.key, data)
        if isinstance(effect, WriteManifest):
            await self._retried(f"write {effect.key}", lambda: self._store.put(effect.key, effect.data))
            return ManifestWritten(effect.key)
        if isinstance(effect, ListForSweep):
            return await self._retried(_SWEEP, lambda: self._list(effect))
        if isinstance(effect, CopySavepoint):
            return SavepointCopied(*_taken_of(effect), await self._threads.copy(lambda: self._copy(effect)))
        if isinstance(effect, Delete):
            return Deleted(await self._threads.run(lambda: self._delete(effect.permit, effect.keys, effect.newest)))
        if isinstance(effect, Compact):
            return await self._compact(effect)
        return DeletedAll(await self._threads.run(lambda: self._delete_all(effect.permit)))

    async def _compact(self, effect: Compact) -> Event:
        """A running compaction leaves the rest to the next effect."""
        if self._compacting:
            return Deleted("")
        self._compacting = True
        try:
            return Deleted(await self._threads.compact(lambda: self._compact_log(effect)))
        finally:
            self._compacting = False

    async def _append(self, effect: Append) -> Event:
        if effect.attempt > 1:
            await asyncio.sleep(backoff_s(effect.attempt - 1))
        key, overtaken = self._paths.log_record(effect.position), None
        try:
            outcome, overtaken = await self._threads.run(lambda: self._put_record(effect.position, key, effect.data))
            why = "the outcome of the put is unknown"
        except (Unavailable, OSError) as error:
            outcome, why = PutOutcome.UNKNOWN, str(error)
        if outcome is PutOutcome.UNKNOWN:
            self._note(f"append {key}", why)
        else:
            self._answered(f"append {key}")
        return AppendResult(effect.position, outcome, counts_of(self._store), overtaken)

    async def _retried(self, what: str, call: Callable[[], Result]) -> Result:
        attempt = 0
        while True:
            try:
                result = await self._threads.run(call)
            except (Unavailable, OSError) as error:
                attempt += 1
                self._note(what, str(error))
                await asyncio.sleep(backoff_s(attempt))
            else:
                self._answered(what)
                return result

    def _answered(self, what: str) -> None:
        if what in self._retried_calls:
            self._retried_calls.discard(what)
            self._tell(StoreAnswered(what))

    def _note(self, what: str, why: str) -> None:
        self._retried_calls.add(what)
        self._tell(StoreRetried(what, why, "sweeping" if what == _SWEEP else "progress"))
        if self._clock() - self._logged_ms > _LOG_EVERY_MS:
            self._logged_ms = self._clock()
            log.warning("job %s: object store: %s: %s; retrying", self._job, what, why)

    # on the store's threads

    @property
    def _swept_prefixes(self) -> tuple[str, str]:
        return self._paths.checkpoints_prefix, self._paths.data_prefix

    def _read_log(self, effect: ReadLog) -> Any:
        return self._log_reader.read(
            completes=effect.completes, restore=effect.restore, run_id=effect.run_id, kept=True
        )

    def _list(self, effect: ListForSweep) -> Listed:
        objects = tuple(found for prefix in self._swept_prefixes for found in self._store.list(prefix))
        read = partial(get_or_none, self._store)
        found = in_parallel(
            lambda record: decided_data(record, read),
            effect.manifests,
            side_by_side(self._store, _READS_AT_ONCE),
        )
        return Listed(objects, tuple(found))

    def _copy(self, effect: CopySavepoint) -> int:
        """Retries for a while; then there is no savepoint, and the user gets the error."""
        attempt = 0
        while True:
            try:
                return write_savepoint(self._store, effect.url, effect.copy, lambda: self._threads.closed)
            except (Unavailable, OSError):
                attempt += 1
                if attempt >= _COPY_ATTEMPTS or self._threads.closed:
                    raise
                self._sleep(backoff_s(attempt))

    def _put_record(self, position: int, key: str, data: bytes) -> tuple[PutOutcome, LogEntry | None]:
        """Also returns a proof that the position had been compacted.

        No read is needed for a position right after this process's newest record.
        """
        self._undecided.add(key)
        outcome = self._store.put_if_absent(key, data)
        if outcome is PutOutcome.UNKNOWN:
            return outcome, None
        overtaken = None if position - 1 == self._appended else is_behind(self._store, self._paths, position)
        self._undecided.discard(key)
        self._answered_at = max(self._answered_at, position)
        if outcome is PutOutcome.CREATED and overtaken is None:
            self._appended = position
        return outcome, overtaken

    def _delete(self, permit: Permit, keys: tuple[str, ...], newest: int = 0, *, pinned: bool = True) -> str:
        """`newest`: the newest dropped checkpoint. `pinned`: pinned objects stay for now."""

        def check() -> None:
            check_permit(self._store, self._paths, permit, self._answered_at)
            if self._undecided:  # requested before that put, but not begun (I9)
                raise Unavailable(
                    f"the outcome of the put of {', '.join(self._undecided)} is unknown: nothing is deleted meanwhile"
                )

        left = [
            delete_in_order(self._store, self._paths, each, check, self._sleep)
            for each in (self._held_back.free(keys, newest) if pinned else [keys])
        ]
        return "; ".join(filter(None, left))

    def _compact_log(self, effect: Compact) -> str:
        ended = lambda: self._threads.closed  # noqa: E731
        return compact_log(
            self._store, self._paths, effect.base, effect.kept, effect.first_sha256, self._below_base, ended
        )

    def _delete_all(self, permit: Permit) -> str:
        prefixes = (*self._swept_prefixes, self._paths.write_ahead_prefix)
        objects = (found for prefix in prefixes for found in self._store.list(prefix))
        return self._delete(permit, discarded(self._paths, objects, permit.token).keys, pinned=False)


def _taken_of(effect: CopySavepoint) -> tuple[str, int]:
    savepoint = effect.copy.savepoint
    return savepoint.id, savepoint.taken.checkpoint


# Writes FINISH (failed) to the log of a broken job, so that no other daemon adopts the job. Blocking.
#
# Nothing is written if another FENCE or LEAD follows this process's record: that writer owns the job. Each attempt
# reads the log anew, because the facts of the broken job may be wrong; so FINISH takes the position of an append
# without an answer, or the next, and a FINISH whose answer was lost is found. If all attempts fail, the log is
# damaged, or the process dies, the next daemon breaks again, and writes then.

_ATTEMPTS = 6  # about three seconds
_MAX_REASON = 20_000  # characters


def write_end(
    store: ObjectStore,
    spec: JobSpec,
    identity: Identity,
    led_at: int,
    reason: str,
    wall_ms: int,
    sleep: Callable[[float], None],
) -> str:
    """Returns why the log lacks FINISH, or "". `led_at`: position of a record by which this process led."""
    why = ""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            why = _attempt(store, spec, identity, led_at, reason, wall_ms)
            if why is not _AGAIN:
                return why
        except (Unavailable, OSError) as error:
            why = str(error)
        except BarrierRuntimeError as error:  # the log itself is damaged
            return str(error)
        sleep(backoff_s(attempt))
    return why


_AGAIN = "the log's head moved on each time"


def _attempt(store: ObjectStore, spec: JobSpec, identity: Identity, led_at: int, reason: str, wall_ms: int) -> str:
    paths = Paths(spec.job)
    view = read_log(store, paths, run_id=spec.run_id)
    other = _other_leader(store, paths, view, identity, led_at)
    if other:
        return other
    assert view.head is not None, "who led has written a record"
    if isinstance(view.head.record, Finish):
        return ""
    log = DecisionLog(spec.job, view)
    records = RecordBuilder(spec, Identity(f"{identity.leader}-end", identity.host))
    step = log.propose(records.finish(log, "failed", wall_ms, reason=reason[-_MAX_REASON:]))
    outcome = store.put_if_absent(paths.log_record(step.position), step.data)
    return "" if outcome is PutOutcome.CREATED else _AGAIN


def _other_leader(store: ObjectStore, paths: Paths, view: LogView, identity: Identity, led_at: int) -> str:
    if view.head is None or view.head.position < led_at:
        raise Corrupt(f"log record {paths.log_record(led_at)} is gone: restore it from a backup of the store")
    for position in range(led_at + 1, view.head.position + 1):
        key = paths.log_record(position)
        data = get_or_none(store, key)
        if data is None and position < base_of(view.head.record):
            continue  # compacted away, so neither FENCE nor LEAD
        record = decode_record(key, data or b"")
        if isinstance(record, Fence | Lead) and not record.put_id.startswith(f"{identity.leader}-"):
            return f"{record.writer} leads it now with generation {record.token}"
    return ""
