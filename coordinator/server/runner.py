"""Runs a `JobProtocol` on an asyncio loop: carries out effects, and feeds back answers and time.

All methods belong to the loop's thread. Retryable errors of the store are retried forever with back-off and shown in
the status; they never end the process.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest
from barrier_runtime.coordinator.job.effects import CloseLink, Effect, JobEnded, KillSlotTask, SendTo
from barrier_runtime.coordinator.job.events import (
    Begin,
    Event,
    Link,
    ProgramLoaded,
    SlotLost,
    SlotMessage,
    SlotMessages,
    SlotRegistered,
    SlotsStarting,
    Tick,
    UserLeaving,
    UserRescale,
    UserSavepoint,
    UserStop,
    UserTrigger,
)
from barrier_runtime.coordinator.job.facts import Job, Origin
from barrier_runtime.coordinator.job.protocol import JobProtocol
from barrier_runtime.coordinator.job.rescaling import RescaleRequest
from barrier_runtime.coordinator.log.record_builder import Identity, Predecessor
from barrier_runtime.coordinator.server.clock import DeadlineTimer, SteadyClock
from barrier_runtime.coordinator.server.history_writer import HistoryWriter
from barrier_runtime.coordinator.server.logs import JobLog, NewFailures, SlowLines
from barrier_runtime.coordinator.server.slot_links import SlotLink, SlotQuestions
from barrier_runtime.coordinator.server.store_effects import StoreEffect, StoreEffects, StoreThreads, write_end
from barrier_runtime.coordinator.status.health import TROUBLED, Condition
from barrier_runtime.coordinator.status.history import History
from barrier_runtime.coordinator.status.status import JobStatus, Room, StandbysWanted
from barrier_runtime.coordinator.status.summary import JobSummary
from barrier_runtime.coordinator.wire.messages import JobSpec, Register, Shutdown, SlotAnswer, ToCoordinator
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.use import with_own_use

log = logging.getLogger("coordinator.job")

_TURN_MS = 5  # turns of a burst of messages within this time have one end
_LAST_WORD_S = 15.0  # a broken job ends then, whatever the store does


class JobRunner:
    """`leader`: unique to this process start."""

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
        predecessor: Predecessor | None = None,
        versions: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`clock`: wall clock in ms. `sleep`: on threads of the store's pool only."""
        self._identity = Identity(leader, host, predecessor, versions)
        self._protocol = JobProtocol(spec, self._identity, origin)
        self._log = JobLog(log, spec.job, lambda: self._protocol.token)
        self._ends = NewFailures()
        self._slow_lines = SlowLines()
        self._ends_of: object = None
        store = with_own_use(store)  # a daemon has one store for all jobs
        self._store = store
        self._clock = clock or SteadyClock()
        self._sleep = sleep
        self._threads = StoreThreads(spec.job)
        self._history = HistoryWriter(
            self._protocol, store, self._threads, self._leads, self._post, self._spawn, self._clock
        )
        self._store_effects = StoreEffects(
            spec.job, store, self._threads, self._history.read, self._post, self._clock, sleep
        )
        self._links: dict[Link, SlotLink] = {}
        self._numbers: dict[int, Link] = {}  # id(link) -> number
        self.questions = SlotQuestions(spec.job, self._protocol.facts.slots, self._links)
        self._next_link = 1
        self._events: deque[Event] = deque()
        self._handling = False
        self._arrived: list[SlotMessage] = []  # handled in the next turn of the loop
        self._tick_timer = DeadlineTimer(self._clock, lambda: self._post(Tick()))
        self._turn_end = DeadlineTimer(self._clock, self._end_turn)  # of a turn soon after another
        self._turn_ended_ms = 0
        self._tasks: set[asyncio.Task[None]] = set()
        # with the status version at the begin of the wait
        self._listening: dict[asyncio.Future[None], tuple[object, ...]] = {}
        self._ended: asyncio.Future[JobEnded] | None = None
        self._broken = ""  # an internal error
        self._left = False  # `run` was cancelled: leads no more
        self.outcome: JobEnded | None = None
        self.room: Room | None = None  # by the program that runs the slots

    @property
    def spec(self) -> JobSpec:
        return self._protocol.spec

    @property
    def phase(self) -> str:
        return self._protocol.phase

    @property
    def lead_position(self) -> int | None:
        return None if self._broken else self._protocol.lead_position

    @property
    def has_led(self) -> bool:
        return self._protocol.has_led

    @property
    def history_revision(self) -> object:
        return self._protocol.history_revision

    @property
    def history(self) -> History:
        return self._protocol.history()

    @property
    def connected_slots(self) -> int:
        return self._protocol.connected_slots

    async def run(self) -> JobEnded:
        """Cancelling stops leading, without messages to slots."""
        self._ended = asyncio.get_running_loop().create_future()
        if self.outcome is None:
            self._post(Begin())
        else:  # stopped before the begin
            self._ended.set_result(self.outcome)
        try:
            outcome = await asyncio.shield(self._ended)
            await asyncio.sleep(0)  # let links flush their last messages
            await self._history.close(outcome)
            return outcome
        finally:
            self._left = self.outcome is None
            self._tick_timer.cancel()
            self._turn_end.cancel()
            for task in self._tasks:
                task.cancel()
            self._threads.close()

    async def quiet(self) -> None:
        """As `StoreThreads.quiet`, after `run`."""
        await self._threads.quiet()

    def status(self, *, brief: bool = False) -> JobStatus:
        before = self._protocol.condition
        status = self._protocol.status(self._clock(), brief=brief)
        self._tell_condition(before)
        if self._broken:
            error = self._broken
            return msgspec.structs.replace(
                status, phase="failed", outcome="failed", error=error, condition="FAILED", condition_reason=error
            )
        return msgspec.structs.replace(status, room=self.room) if status.missing_slots and self.room else status

    @property
    def standbys(self) -> StandbysWanted | None:
        return self._protocol.standbys

    def summary(self) -> JobSummary:
        """Row in the list of jobs, as of the last event."""
        summary = self._protocol.summary(self._clock())
        if not self._broken:
            return summary
        return msgspec.structs.replace(
            summary, phase="failed", outcome="failed", condition="FAILED", condition_reason=self._broken
        )

    @property
    def facts(self) -> Job:
        """Facts of the job, to read only."""
        return self._protocol.facts

    @property
    def end(self) -> JobEnded | None:
        return JobEnded("failed", self._broken) if self._broken else self.outcome

    def trigger(self) -> None:
        self._post(UserTrigger())

    def stop(self, mode: Literal["checkpoint", "drain", "now"], savepoint: SavepointRequest | None = None) -> None:
        """Raises `InvalidJob` if the savepoint is impossible."""
        if savepoint is not None:
            self._check_savepoint(savepoint)
        self._post(UserStop(mode, savepoint))

    def savepoint(self, request: SavepointRequest) -> None:
        """As `stop`, once per id."""
        self._check_savepoint(request)
        self._post(UserSavepoint(request))

    def _check_savepoint(self, request: SavepointRequest) -> None:
        refusal = self._broken or self._protocol.refuses(request)
        if refusal:
            raise InvalidJob(refusal)

    def rescale(self, request: RescaleRequest) -> None:
        """As `savepoint`."""
        refusal = self._broken or self._protocol.refuses_rescale(request)
        if refusal:
            raise InvalidJob(refusal)
        self._post(UserRescale(request))

    def leave(self, host: str) -> int:
        """Returns the number of slots on `host`."""
        slots = sum(slot.register.host == host for slot in self._protocol.facts.slots)
        self._post(UserLeaving(host))
        return slots

    def replace(self, request: RescaleRequest) -> None:
        """As `rescale`. Without a description, the driver loads the program."""
        self.rescale(request)

    def program_loaded(self, id: str, spec: JobSpec | None, error: str = "") -> None:
        self._post(ProgramLoaded(id, spec, error))

    def tell_room(self, room: Room) -> None:
        self.room = room
        self._post(SlotsStarting(room))

    async def changed(self, wait_s: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listening[waiter] = self._news
        try:
            await asyncio.wait([waiter], timeout=wait_s)
        finally:
            del self._listening[waiter]

    @property
    def _news(self) -> tuple[object, ...]:
        return (*self._protocol.news, self._broken, self.outcome)

    def _tell_listeners(self) -> None:
        if self._listening:
            news = self._news
            for waiter, before in self._listening.items():
                if news != before and not waiter.done():
                    waiter.set_result(None)

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
        if number is None:
            return
        if isinstance(message, SlotAnswer):
            self.questions.answered(number, message)
        else:
            self._arrived.append(SlotMessage(number, message))
            if len(self._arrived) == 1:
                asyncio.get_running_loop().call_soon(self._turn)

    def slot_disconnected(self, link: SlotLink) -> None:
        """May be called repeatedly."""
        number = self._numbers.pop(id(link), None)
        if number is not None:
            self._links.pop(number, None)
            self.questions.lost(number)
            self._post(SlotLost(number))

    def _post(self, event: Event) -> None:
        self._take(event)
        if not self._handling:
            self._end_turn()

    def _turn(self) -> None:
        """Messages of all slots that arrived together are a single event."""
        self._take()
        if 0 <= self._clock() - self._turn_ended_ms < _TURN_MS:
            self._turn_end.set(self._turn_ended_ms + _TURN_MS)
        else:
            self._end_turn()

    def _take(self, *events: Event) -> None:
        """Handles arrived messages, then `events`; `_end_turn` must follow soon."""
        arrived, self._arrived = self._arrived, []
        if self._left:
            return
        self._events.extend([SlotMessages(tuple(arrived)), *events] if arrived else events)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                self._handle(self._events.popleft())
        finally:
            self._handling = False

    def _end_turn(self) -> None:
        if self._left:
            return
        self._turn_ended_ms = self._clock()
        try:
            self._set_timer()
        except Exception as error:
            self._break_by(error)
        self._history.save()
        self._tell_ends()
        self._tell_listeners()

    def _tell_ends(self) -> None:
        if self.history_revision != self._ends_of and self.has_led:  # without leadership the history is unread
            self._ends_of = self.history_revision
            for end in self._ends.look(self.history):
                self._log.info("job %s: %s", self.spec.job, end.text, extra=end.fields)

    def _handle(self, event: Event) -> None:
        if self._broken:
            return
        before, condition = self._protocol.phase, self._protocol.condition
        try:
            effects = self._protocol.handle(event, self._clock())
            self._tell_condition(condition)
            if self._protocol.phase != before:
                self._log.info("job %s: %s (%s)", self.spec.job, self._protocol.phase, self._protocol.reason or "-")
            for effect in effects:
                self._carry_out(effect)
        except Exception as error:
            self._break_by(error)

    def _tell_condition(self, before: Condition) -> None:
        if self._protocol.condition is before:  # a judgement makes another object
            return
        for level, text in self._slow_lines.look((*self._protocol.slow_commits, *self._protocol.slow_uploads)):
            self._log.log(level, "job %s: %s", self.spec.job, text)
        now = self._protocol.condition
        if now.state != before.state:
            level = logging.WARNING if {now.state, before.state} & TROUBLED else logging.INFO
            self._log.log(level, "job %s: %s (was %s)", self.spec.job, now, before.state)

    def _break_by(self, error: Exception) -> None:
        self._log.error("job %s: stopped by an internal error", self.spec.job, exc_info=error)
        self._break(f"job {self.spec.job} was stopped by an internal error: {error}")

    def _break(self, reason: str) -> None:
        led_at = self.lead_position
        self._broken = reason
        self._tell_listeners()
        for number, link in list(self._links.items()):
            link.send(Shutdown("failed", reason))
            self._close(number)
        if led_at is None:
            self._end(JobEnded("failed", reason))
        else:
            self._spawn(self._record_failure(led_at, reason))

    async def _record_failure(self, led_at: int, reason: str) -> None:
        """Writes FINISH; the job has then ended, even without that record."""
        write = partial(write_end, self._store, self.spec, self._identity, led_at, reason, self._clock(), self._sleep)
        try:
            why = await asyncio.wait_for(self._threads.run(write), _LAST_WORD_S)
        except (Exception, asyncio.TimeoutError) as error:
            why = f"{type(error).__name__}: {error}"
        if why:
            self._log.warning("job %s: its log does not say that it broke: %s", self.spec.job, why)
        self._end(JobEnded("failed", reason))

    def _set_timer(self) -> None:
        if self._broken:
            return
        deadline = self._protocol.next_deadline()
        if deadline is None or self.outcome is not None or self._ended is None:
            return
        self._tick_timer.set(deadline)

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
            self._log.warning(
                "job %s: slot %d (attempt %d) has to be ended", self.spec.job, effect.slot, effect.task_attempt
            )
        elif self.outcome is None:
            self._spawn(self._in_store(effect))

    async def _in_store(self, effect: StoreEffect) -> None:
        try:
            event = await self._store_effects.carry_out(effect)
        except Exception as error:  # a bug: the job would wait forever for an answer
            self._log.exception("job %s: %s went wrong", self.spec.job, type(effect).__name__)
            if self.outcome is None and not self._broken:
                self._break(f"job {self.spec.job} was stopped by an internal error: {error}")
            return
        self._post(event)

    def _close(self, number: Link) -> None:
        link = self._links.pop(number, None)
        if link is not None:
            self._numbers.pop(id(link), None)
            link.close()
            self.questions.lost(number)

    def _end(self, effect: JobEnded) -> None:
        if self.outcome is not None:
            return
        self._log.info("job %s: %s: %s", self.spec.job, effect.outcome, effect.reason)
        self.outcome = effect
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(self.outcome)
        self._tell_listeners()

    def _leads(self) -> bool:
        return self.outcome is None and self.lead_position is not None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
