"""Runs one `JobProtocol` on an asyncio loop: carries out its effects, feeds the answers and the time back.

All methods belong to the loop's thread. The object store is blocking and is called on a small thread pool. How slots
are connected is not known here: a `SlotLink` may be a TCP connection or, in local mode, an object of the same process.
Trouble with the store is retried for ever with back-off and shown in the status; it never ends the process.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from barrier_runtime.coordinator.backoff import backoff_s
from barrier_runtime.coordinator.checkpoints.retention import discarded
from barrier_runtime.coordinator.deleting import check_permit, delete_in_order
from barrier_runtime.coordinator.job.effects import (
    Append,
    CloseLink,
    Delete,
    DeleteAll,
    Effect,
    JobEnded,
    KillSlotTask,
    ListForSweep,
    Outcome,
    ReadLog,
    ReadManifest,
    ReadRecord,
    SendTo,
    WriteManifest,
)
from barrier_runtime.coordinator.job.events import (
    AppendResult,
    Begin,
    Deleted,
    DeletedAll,
    Event,
    HistoryTrouble,
    Link,
    Listed,
    LogRead,
    ManifestFailed,
    ManifestRead,
    ManifestWritten,
    RecordRead,
    SlotLost,
    SlotMessage,
    SlotRegistered,
    StoreAnswered,
    StoreRefused,
    StoreRetried,
    Tick,
    UserStop,
    UserTrigger,
)
from barrier_runtime.coordinator.job.facts import Origin
from barrier_runtime.coordinator.job.protocol import JobProtocol
from barrier_runtime.coordinator.log.decision_log import Permit
from barrier_runtime.coordinator.log.reader import LogReader
from barrier_runtime.coordinator.log.record_builder import Identity
from barrier_runtime.coordinator.server.last_word import write_end
from barrier_runtime.coordinator.status.health import TROUBLED, Condition
from barrier_runtime.coordinator.status.history import RunOutcome, encode_history
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.wire.messages import JobSpec, Register, Shutdown, ToCoordinator, ToSlot
from barrier_runtime.state.errors import BarrierRuntimeError, Unavailable
from barrier_runtime.state.store.object_store import ObjectStore, PutOutcome, get_or_none
from barrier_runtime.state.store.paths import Paths

log = logging.getLogger("coordinator.job")

_STORE_THREADS = 4
_SWEEP = "list for the sweep"
_LOG_EVERY_MS = 10_000
_LAST_WORD_S = 15.0  # a job that broke ends then, whatever the store does
_HISTORY_TRIES = 3  # to read it, and to write it at the end: a job neither starts nor ends later for its figures

Result = TypeVar("Result")


class SlotLink(Protocol):
    """A connection to one slot. Neither method blocks; errors show up as `slot_disconnected`."""

    def send(self, message: ToSlot) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class JobOutcome:
    outcome: Outcome
    reason: str


class SteadyClock:
    """Wall-clock milliseconds that never jump: the wall is read once, then time goes on monotonically."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def __call__(self) -> int:
        return int((self._offset + time.monotonic()) * 1000)


class JobRunner:
    """`leader`: unique to this process start. Use: `task = create_task(runner.run())`, then the slot methods."""

    def __init__(
        self,
        spec: JobSpec,
        store: ObjectStore,
        *,
        leader: str,
        host: str,
        origin: Origin = Origin.SUBMITTED,
        clock: Callable[[], int] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`clock`: wall clock in ms. `sleep` is used on the threads of the store's pool only."""
        self._identity = Identity(leader, host)
        self._protocol = JobProtocol(spec, self._identity, origin)
        self._store = store
        self._paths = Paths(spec.job)
        self._log_reader = LogReader(store, self._paths.log_record)
        self._clock = clock or SteadyClock()
        self._sleep = sleep
        self._pool = ThreadPoolExecutor(_STORE_THREADS, thread_name_prefix=f"store-{spec.job}")
        self._links: dict[Link, SlotLink] = {}
        self._numbers: dict[int, Link] = {}  # id(link) -> number
        self._next_link = 1
        self._events: deque[Event] = deque()
        self._handling = False
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for_ms = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Future[JobOutcome] | None = None
        self._retried_calls: set[str] = set()  # store calls that failed and are being made again
        self._logged_ms = 0
        self._broken = ""  # why, when the job broke inside
        self._undecided: set[str] = set()  # keys of log records whose put has no answer, or an unknown one
        self._left = False  # `run` was cancelled: whatever slots still say, nobody leads here any more
        self._saving: asyncio.Task[None] | None = None  # the history: one put at a time
        self._saved_revision = 0
        self.outcome: JobOutcome | None = None

    @property
    def spec(self) -> JobSpec:
        return self._protocol.spec

    @property
    def phase(self) -> str:
        return self._protocol.phase

    @property
    def lead_position(self) -> int | None:
        """Of the newest log record by which this runner leads; None when it does not (yet, or any more)."""
        return None if self._broken else self._protocol.lead_position

    @property
    def connected_slots(self) -> int:
        return self._protocol.connected_slots

    # ------------------------------------------------------------ life

    async def run(self) -> JobOutcome:
        """Lead the job to its end. Cancelling this stops leading without any farewell."""
        self._ended = asyncio.get_running_loop().create_future()
        self._post(Begin())
        try:
            outcome = await asyncio.shield(self._ended)
            await asyncio.sleep(0)  # let links flush what was just sent
            await self._close_history(outcome)
            return outcome
        finally:
            self._left = self.outcome is None
            if self._timer is not None:
                self._timer.cancel()
            for task in self._tasks:
                task.cancel()
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def quiet(self) -> None:
        """Until no store call of this runner is under way any more; after `run`."""
        await asyncio.to_thread(self._pool.shutdown, wait=True)

    def status(self) -> JobStatus:
        before = self._protocol.condition
        status = self._protocol.status(self._clock())
        self._tell_condition(before)
        if self._broken:
            error = self._broken
            return msgspec.structs.replace(
                status, phase="failed", outcome="failed", error=error, condition="FAILED", condition_reason=error
            )
        return status

    @property
    def condition(self) -> Condition:
        """Whether the job gets on, as of its last event."""
        known = self._protocol.condition
        if self._broken:
            return Condition("FAILED", self._broken, known.since_ms)
        return known

    def trigger(self) -> None:
        """Take a checkpoint as soon as there is room."""
        self._post(UserTrigger())

    def stop(self, mode: Literal["checkpoint", "now"]) -> None:
        self._post(UserStop(mode))

    # ------------------------------------------------------------ slots

    def slot_connected(self, link: SlotLink, register: Register) -> None:
        if self._broken:
            link.send(Shutdown("failed", self._broken))
            link.close()
            return
        number = self._next_link
        self._next_link += 1
        self._links[number] = link
        self._numbers[id(link)] = number
        self._post(SlotRegistered(number, register))

    def slot_message(self, link: SlotLink, message: ToCoordinator) -> None:
        number = self._numbers.get(id(link))
        if number is not None:
            self._post(SlotMessage(number, message))

    def slot_disconnected(self, link: SlotLink) -> None:
        """The connection is gone, from either side. May be called more than once."""
        number = self._numbers.pop(id(link), None)
        if number is not None:
            self._links.pop(number, None)
            self._post(SlotLost(number))

    # ------------------------------------------------------------ the pump

    def _post(self, event: Event) -> None:
        if self._left:
            return
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                self._handle(self._events.popleft())
        finally:
            self._handling = False
        self._set_timer()
        self._save_history()

    def _handle(self, event: Event) -> None:
        if self._broken:
            return
        before, condition = self._protocol.phase, self._protocol.condition
        try:
            effects = self._protocol.handle(event, self._clock())
            self._tell_condition(condition)
            if self._protocol.phase != before:
                log.info("job %s: %s (%s)", self.spec.job, self._protocol.phase, self._protocol.reason or "-")
            for effect in effects:
                self._carry_out(effect)
        except Exception as error:  # a broken law or a bug: it must end this job, visibly, and not the other jobs
            log.exception("job %s: stopped by an internal error", self.spec.job)
            self._break(f"job {self.spec.job} was stopped by an internal error: {error}")

    def _tell_condition(self, before: Condition) -> None:
        now = self._protocol.condition
        if now.state != before.state:
            level = logging.WARNING if {now.state, before.state} & TROUBLED else logging.INFO
            log.log(level, "job %s: %s (was %s)", self.spec.job, now, before.state)

    def _break(self, reason: str) -> None:
        led_at = self.lead_position
        self._broken = reason
        for number, link in list(self._links.items()):
            link.send(Shutdown("failed", reason))
            self._close(number)
        if led_at is None:
            self._end(JobEnded("failed", reason))
        else:
            self._spawn(self._say_last_word(led_at, reason))

    async def _say_last_word(self, led_at: int, reason: str) -> None:
        """Then the job has ended, whether or not the log could be told."""
        write = partial(write_end, self._store, self.spec, self._identity, led_at, reason, self._clock(), self._sleep)
        try:
            why = await asyncio.wait_for(self._in_thread(write), _LAST_WORD_S)
        except (Exception, asyncio.TimeoutError) as error:
            why = f"{type(error).__name__}: {error}"
        if why:
            log.warning("job %s: its log does not say that it broke: %s", self.spec.job, why)
        self._end(JobEnded("failed", reason))

    def _set_timer(self) -> None:
        """Arm the timer for the next deadline. One that is armed earlier may stay: an early tick does no harm."""
        deadline = self._protocol.next_deadline()
        if deadline is None or self.outcome is not None or self._ended is None:
            return
        if self._timer is not None:
            if self._armed_for_ms <= deadline:
                return
            self._timer.cancel()
        delay = max(0.0, (deadline - self._clock()) / 1000)
        self._armed_for_ms = deadline
        self._timer = asyncio.get_running_loop().call_later(delay + 0.0005, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._post(Tick())

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, SendTo):
            link = self._links.get(effect.link)
            if link is not None:
                link.send(effect.message)
        elif isinstance(effect, CloseLink):
            self._close(effect.link)
        elif isinstance(effect, JobEnded):
            self._end(effect)
        elif isinstance(effect, KillSlotTask):
            log.warning("job %s: slot %d (attempt %d) has to be ended", self.spec.job, effect.slot, effect.task_attempt)
        elif self.outcome is None:
            self._spawn(self._storage(effect))

    def _close(self, number: Link) -> None:
        link = self._links.pop(number, None)
        if link is not None:
            self._numbers.pop(id(link), None)
            link.close()

    def _end(self, effect: JobEnded) -> None:
        if self.outcome is not None:
            return
        log.info("job %s: %s: %s", self.spec.job, effect.outcome, effect.reason)
        self.outcome = JobOutcome(effect.outcome, effect.reason)
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(self.outcome)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ------------------------------------------------------------ storage

    async def _storage(
        self, effect: ReadLog | Append | ReadRecord | ReadManifest | WriteManifest | ListForSweep | Delete | DeleteAll
    ) -> None:
        try:
            event = await self._answer(effect)
        except (BarrierRuntimeError, OSError) as error:
            if isinstance(effect, WriteManifest):
                event = ManifestFailed(effect.key, str(error))
            elif isinstance(effect, Delete):
                event = Deleted(str(error))
            elif isinstance(effect, DeleteAll):
                event = DeletedAll(str(error))
            else:
                event = StoreRefused(f"{self._store.url}: {error}")
        except Exception as error:  # a bug: without an answer the job would wait for ever
            log.exception("job %s: %s went wrong", self.spec.job, type(effect).__name__)
            if self.outcome is None and not self._broken:
                self._break(f"job {self.spec.job} was stopped by an internal error: {error}")
            return
        if isinstance(event, Deleted) and event.error:
            log.warning("job %s: not all that nobody needs could be deleted: %s", self.spec.job, event.error)
        self._post(event)

    async def _answer(self, effect: Effect) -> Event:
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
            data = await self._retried(f"read {effect.key}", lambda: get_or_none(self._store, effect.key))
            return ManifestRead(effect.key, data)
        if isinstance(effect, WriteManifest):
            await self._retried(f"write {effect.key}", lambda: self._store.put(effect.key, effect.data))
            return ManifestWritten(effect.key)
        if isinstance(effect, ListForSweep):
            return await self._retried(_SWEEP, lambda: self._list(effect))
        if isinstance(effect, Delete):
            return Deleted(await self._in_thread(lambda: self._delete(effect.permit, effect.keys)))
        assert isinstance(effect, DeleteAll), effect
        return DeletedAll(await self._in_thread(lambda: self._delete_all(effect.permit)))

    async def _append(self, effect: Append) -> Event:
        """Exactly one put per effect: what an unknown outcome means is the protocol's business."""
        if effect.attempt > 1:
            await asyncio.sleep(backoff_s(effect.attempt - 1))
        key = self._paths.log_record(effect.position)
        try:
            outcome = await self._in_thread(lambda: self._put_record(key, effect.data))
            why = "the outcome of the put is unknown"
        except (Unavailable, OSError) as error:
            outcome, why = PutOutcome.UNKNOWN, str(error)
        if outcome is PutOutcome.UNKNOWN:
            self._note(f"append {key}", why)
        else:
            self._answered(f"append {key}")
        return AppendResult(effect.position, outcome)

    async def _retried(self, what: str, call: Callable[[], Result]) -> Result:
        attempt = 0
        while True:
            try:
                result = await self._in_thread(call)
            except (Unavailable, OSError) as error:
                attempt += 1
                self._note(what, str(error))
                await asyncio.sleep(backoff_s(attempt))
            else:
                self._answered(what)
                return result

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def _answered(self, what: str) -> None:
        if what in self._retried_calls:
            self._retried_calls.discard(what)
            self._post(StoreAnswered(what))

    def _note(self, what: str, why: str) -> None:
        self._retried_calls.add(what)
        self._post(StoreRetried(what, why, "sweeping" if what == _SWEEP else "progress"))
        if self._clock() - self._logged_ms > _LOG_EVERY_MS:
            self._logged_ms = self._clock()
            log.warning("job %s: object store: %s: %s; retrying", self.spec.job, what, why)

    # ------------------------------------------------------------ history

    async def _read_history(self) -> tuple[bytes | None, str]:
        """The stored history, and why it could not be read, if so."""
        attempt = 0
        while True:
            try:
                return await self._in_thread(lambda: get_or_none(self._store, self._paths.history)), ""
            except (BarrierRuntimeError, OSError) as error:
                attempt += 1
                if attempt == _HISTORY_TRIES:
                    return None, f"history {self._paths.history} could not be read: {error}"
                await asyncio.sleep(backoff_s(attempt))

    def _save_history(self) -> None:
        """Written by who leads, beside everything else; what happens while a put is under way goes with the next."""
        if self._saving is None and self._unsaved():
            self._saving = self._spawn(self._write_history())

    def _unsaved(self) -> bool:
        changed = self._saved_revision != self._protocol.history_revision
        return changed and self.outcome is None and self.lead_position is not None

    async def _write_history(self) -> None:
        try:
            attempt = 0
            while self._unsaved():
                revision = self._protocol.history_revision
                try:
                    await self._put_history(None)
                    self._saved_revision, attempt = revision, 0
                except (Unavailable, OSError) as error:
                    attempt += 1
                    self._history_trouble(error, attempt)
                    await asyncio.sleep(backoff_s(attempt))
                except BarrierRuntimeError as error:  # what no retry can cure: the next change tries again
                    self._saved_revision = revision
                    self._history_trouble(error, 1)
        finally:
            self._saving = None

    def _history_trouble(self, error: Exception, attempt: int) -> None:
        if attempt == 1:
            log.warning("job %s: its history could not be written: %s", self.spec.job, error)
            self._post(HistoryTrouble(f"history could not be written ({type(error).__name__})"))

    async def _close_history(self, end: JobOutcome) -> None:
        """How the run ended, for whoever asks a daemon that did not see it."""
        if not self._protocol.has_led or end.outcome in ("fenced", "replaced"):
            return
        if self._saving is not None:
            await asyncio.wait([self._saving])
        for attempt in range(1, _HISTORY_TRIES + 1):
            try:
                await self._put_history(end)
                return
            except (BarrierRuntimeError, OSError) as error:
                log.warning("job %s: how it ended could not be written down: %s", self.spec.job, error)
                await asyncio.sleep(backoff_s(attempt))

    async def _put_history(self, end: JobOutcome | None) -> None:
        """Not over a successor's: whoever wrote the log's next record has figures of its own."""
        protocol = self._protocol
        following = protocol.next_position
        ours = protocol.undecided  # what may be found there
        ended = None
        if end is not None and end.outcome != "fenced" and end.outcome != "replaced":
            head = following if ours else following - 1
            ended = RunOutcome(self.spec.run_id, end.outcome, end.reason, self._clock(), head)
        data = encode_history(protocol.history(ended))

        def put() -> None:
            if ours or get_or_none(self._store, self._paths.log_record(following)) is None:
                self._store.put(self._paths.history, data)

        await self._in_thread(put)

    # ------------------------------------------------------------ on the pool's threads

    @property
    def _swept_prefixes(self) -> tuple[str, str]:
        return self._paths.checkpoints_prefix, self._paths.data_prefix

    def _read_log(self, effect: ReadLog) -> Any:
        return self._log_reader.read(completes=effect.completes, restore=effect.restore, run_id=effect.run_id)

    def _list(self, effect: ListForSweep) -> Listed:
        objects = tuple(found for prefix in self._swept_prefixes for found in self._store.list(prefix))
        return Listed(objects, tuple((key, get_or_none(self._store, key)) for key in effect.manifests))

    def _put_record(self, key: str, data: bytes) -> PutOutcome:
        self._undecided.add(key)
        outcome = self._store.put_if_absent(key, data)
        if outcome is not PutOutcome.UNKNOWN:
            self._undecided.discard(key)
        return outcome

    def _delete(self, permit: Permit, keys: tuple[str, ...]) -> str:
        def check() -> None:
            check_permit(self._store, self._paths, permit)
            if self._undecided:  # asked for before that put, but not begun (I9)
                raise Unavailable(
                    f"the outcome of the put of {', '.join(self._undecided)} is unknown: nothing is deleted meanwhile"
                )

        return delete_in_order(self._store, self._paths, keys, check, self._sleep)

    def _delete_all(self, permit: Permit) -> str:
        prefixes = (*self._swept_prefixes, self._paths.write_ahead_prefix)
        objects = (found for prefix in prefixes for found in self._store.list(prefix))
        return self._delete(permit, discarded(self._paths, objects, permit.token).keys)
